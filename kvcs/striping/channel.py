"""Messages between a process and a worker that it started, over a pair of local sockets.

A message is a pickled value, and file descriptors may come with it. Secrets travel this way alone:
it has no name, and nobody else holds an end of it. Values are trusted, since both ends are ours.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import socket
import struct
import threading
from typing import TYPE_CHECKING

from moqt.errors import NotSupported

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["MAX_DESCRIPTORS", "Channel"]

MAX_DESCRIPTORS = 250
"""Descriptors in one message; Linux takes 253."""

MAX_MESSAGE_OCTETS = 1 << 30
"""A pickled message: the tokens of a prompt are the longest part of one."""

_HEAD = struct.Struct("!QI")


class Channel:
    """One end. Calls block, and may come from several threads; `close` ends those of the other."""

    def __init__(self, end: socket.socket) -> None:
        self.socket = end
        self._sending = threading.Lock()

    @classmethod
    def pair(cls) -> tuple[Channel, socket.socket]:
        """Return an end for us, and a socket to hand to the worker. Raises: NotSupported."""
        if not hasattr(socket, "send_fds"):
            raise NotSupported("worker processes need local sockets that carry descriptors: POSIX")
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        return cls(ours), theirs

    def send(self, message: object, descriptors: Sequence[int] = ()) -> None:
        """Send a message. Raises: OSError when the other end is gone, ValueError for too much."""
        if len(descriptors) > MAX_DESCRIPTORS:
            raise ValueError(
                f"{len(descriptors)} descriptors, at most {MAX_DESCRIPTORS} go in one message"
            )
        octets = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        if len(octets) > MAX_MESSAGE_OCTETS:
            raise ValueError(f"a message of {len(octets)} octets, at most {MAX_MESSAGE_OCTETS}")
        head = _HEAD.pack(len(octets), len(descriptors))
        with self._sending:
            sent = socket.send_fds(self.socket, [head], descriptors) if descriptors else 0
            self.socket.sendall(head[sent:])
            self.socket.sendall(octets)

    def receive(self) -> tuple[object, list[int]]:
        """Return the next message and its descriptors, which are the caller's to close.

        Raises: EOFError when the other end is gone, OSError.
        """
        head, descriptors, _, _ = socket.recv_fds(self.socket, _HEAD.size, MAX_DESCRIPTORS)
        try:
            head += self._exactly(_HEAD.size - len(head))
            octets, _ = _HEAD.unpack(head)
            return pickle.loads(self._exactly(octets)), list(descriptors)
        except BaseException:
            for descriptor in descriptors:
                os.close(descriptor)
            raise

    def listen(
        self,
        taken: Callable[[object, list[int]], None],
        gone: Callable[[], None],
    ) -> None:
        """Hand every message to the running loop from now on, and say once that there are no more.

        A thread waits for them, since loops differ in what they do to a socket that they watch.
        """
        loop = asyncio.get_running_loop()

        def listening() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is there
                try:
                    while True:
                        loop.call_soon_threadsafe(taken, *self.receive())
                except (EOFError, OSError):
                    loop.call_soon_threadsafe(gone)

        threading.Thread(target=listening, name="kvcs-channel", daemon=True).start()

    def close(self) -> None:
        """Close it; calls that wait end."""
        with contextlib.suppress(OSError):  # the other end is gone already
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()

    def _exactly(self, octets: int) -> bytearray:
        found = bytearray(octets)
        view = memoryview(found)
        while view:
            count = self.socket.recv_into(view)
            if not count:
                raise EOFError("the other process is gone")
            view = view[count:]
        return found
