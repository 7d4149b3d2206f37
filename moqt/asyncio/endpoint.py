"""A UDP socket of our own: many datagrams a wake-up in, one list of datagrams out.

asyncio's datagram transport reads one datagram a wake-up, so everything behind it would run once a
datagram. Here the loop only says that the socket is readable, and up to `BATCH_DATAGRAMS` are read
at once. Event loops that watch no sockets (Windows' proactor) get their datagrams one by one.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections import deque
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable

Address = Any
"""What the socket module takes for an address of the socket's family."""

Datagram = tuple[bytes, Address]

BATCH_DATAGRAMS = 64
"""Read in one wake-up; then other tasks have their turn."""

DATAGRAM_OCTETS = 65535


class DatagramReceiver(Protocol):
    """Whom an endpoint reports to."""

    def on_batch(self, batch: list[Datagram]) -> None:
        """What was read in one wake-up."""

    def on_writable(self) -> None:
        """The socket takes datagrams again."""

    def on_error(self, error: OSError) -> None:
        """A connected socket's peer refuses, or is unreachable."""

    def on_too_large(self, address: Address) -> None:
        """The path to `address` doesn't take datagrams of the size just sent."""


class UdpEndpoint:
    """Owns `sock`, which is non-blocking, and bound, or connected to `remote`, until `close`."""

    def __init__(self, sock: socket.socket, *, remote: Address | None) -> None:
        self._sock = sock
        self.remote = remote
        self._receiver: DatagramReceiver | None = None
        self._loop = asyncio.get_running_loop()
        self._unsent: deque[Datagram] = deque()
        self._fallback: asyncio.DatagramTransport | None = None
        self._is_closed = False

    @property
    def address(self) -> Address:
        """The socket's own address."""
        return self._sock.getsockname()

    @property
    def is_blocked(self) -> bool:
        """Whether the socket takes no datagrams now. Nothing more should be built meanwhile, so
        what waits is bounded by one flight of each connection."""
        return bool(self._unsent)

    async def start(self, receiver: DatagramReceiver, *, watch_socket: bool = True) -> None:
        """Begin to receive. Cancelled, it leaves the socket to `close`."""
        self._receiver = receiver
        if watch_socket:
            try:
                self._loop.add_reader(self._sock, self._read_ready)
            except NotImplementedError:
                pass
            else:
                return
        transport, _ = await self._loop.create_datagram_endpoint(
            lambda: _OneByOne(self), sock=self._sock
        )
        self._fallback = transport
        if self._is_closed:
            transport.close()

    def send(self, datagrams: Iterable[Datagram]) -> None:
        """Send as much as the socket takes; the rest follows when it is writable again."""
        if self._is_closed:
            return
        if self._fallback is not None:
            for data, address in datagrams:
                self._fallback.sendto(data, None if self.remote is not None else address)
            return
        self._unsent.extend(datagrams)
        if not self._send_some():
            self._loop.add_writer(self._sock, self._write_ready)

    def close(self) -> None:
        """Close the socket; what waits is dropped."""
        if self._is_closed:
            return
        self._is_closed = True
        self._unsent.clear()
        if self._fallback is not None:
            self._fallback.close()
            return
        try:
            self._loop.remove_reader(self._sock)
            self._loop.remove_writer(self._sock)
        except NotImplementedError:
            pass
        self._sock.close()

    def _send_some(self) -> bool:
        unsent = self._unsent
        sock = self._sock
        is_connected = self.remote is not None
        while unsent:
            data, address = unsent[0]
            try:
                if is_connected:
                    sock.send(data)
                else:
                    sock.sendto(data, address)
            except (BlockingIOError, InterruptedError):
                return False
            except OSError as error:
                unsent.popleft()  # lost, as any datagram may be
                self.report(error, address)
                if self._is_closed:
                    return True
                continue
            unsent.popleft()
        return True

    def _write_ready(self) -> None:
        if self._send_some() and not self._is_closed:
            self._loop.remove_writer(self._sock)
            if self._receiver is not None:
                self._receiver.on_writable()

    def _read_ready(self) -> None:
        batch: list[Datagram] = []
        remote = self.remote
        sock = self._sock
        error: OSError | None = None
        for _ in range(BATCH_DATAGRAMS):
            try:
                if remote is not None:
                    batch.append((sock.recv(DATAGRAM_OCTETS), remote))
                else:
                    batch.append(sock.recvfrom(DATAGRAM_OCTETS))
            except (BlockingIOError, InterruptedError):
                break
            except OSError as caught:
                error = caught
                break
        if batch:
            self.receive(batch)
        if error is not None:
            self.report(error, remote)

    def receive(self, batch: list[Datagram]) -> None:
        """Hand on what was read."""
        if self._receiver is not None and not self._is_closed:
            self._receiver.on_batch(batch)

    def report(self, error: OSError, address: Address) -> None:
        """Hand on what the system said."""
        if self._receiver is None or self._is_closed:
            return
        if error.errno == errno.EMSGSIZE:
            self._receiver.on_too_large(address)
        elif self.remote is not None:
            self._receiver.on_error(error)
        # on a server's socket it's some client's doing; that client's timers find out


class _OneByOne(asyncio.DatagramProtocol):
    """What a loop without `add_reader` offers."""

    def __init__(self, endpoint: UdpEndpoint) -> None:
        self._endpoint = endpoint

    def datagram_received(self, data: bytes, addr: Address) -> None:
        remote = self._endpoint.remote
        self._endpoint.receive([(data, addr if remote is None else remote)])

    def error_received(self, exc: Exception) -> None:
        if isinstance(exc, OSError):
            self._endpoint.report(exc, self._endpoint.remote)


def udp_socket(family: int, buffer_octets: int) -> socket.socket:
    """Return a non-blocking UDP socket whose buffers are as large as the system grants."""
    sock = socket.socket(family, socket.SOCK_DGRAM)
    sock.setblocking(False)
    for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
        try:
            sock.setsockopt(socket.SOL_SOCKET, option, buffer_octets)
        except OSError:  # some systems refuse what others cut
            continue
    return sock
