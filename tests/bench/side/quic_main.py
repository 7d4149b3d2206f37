"""One end of a raw QUIC stream on aioquic as it is, tuned: uvloop, no pacer, large windows.

`python -m tests.bench.side.quic_main (send | receive) PLAN`
"""

from __future__ import annotations

import asyncio
import socket
import sys
from typing import TYPE_CHECKING, Any

import uvloop
from aioquic.asyncio.client import connect
from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.asyncio.server import serve
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import QuicEvent, StreamDataReceived
from aioquic.quic.recovery import QuicPacketPacer

from tests.bench.side.ends import Receiving, Sending
from tests.bench.side.inside import MEBI, heard, pin, plan, say

if TYPE_CHECKING:
    from collections.abc import Callable

WINDOW_OCTETS = 64 * MEBI
SOCKET_BUFFER_OCTETS = 4 * MEBI

SEND_AHEAD_OCTETS = 4 * MEBI
"""aioquic takes whatever it is given; no more than this is unacknowledged at a time."""


def configuration(given: dict[str, Any], *, is_client: bool) -> QuicConfiguration:
    """Return limits that don't limit."""
    made = QuicConfiguration(
        is_client=is_client,
        alpn_protocols=["bench"],
        max_data=WINDOW_OCTETS,
        max_stream_data=WINDOW_OCTETS,
        max_datagram_size=given["datagram"],
        server_name="localhost",
    )
    if is_client:
        made.load_verify_locations(given["certificate"])
    else:
        made.load_cert_chain(given["certificate"], given["private_key"])
    return made


def enlarge_buffers(transport: Any) -> None:
    """Ask for socket buffers that a burst fits in."""
    sock = transport.get_extra_info("socket")
    for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
        sock.setsockopt(socket.SOL_SOCKET, option, SOCKET_BUFFER_OCTETS)


class Receiver(QuicConnectionProtocol):
    """Copies what comes to its place."""

    receiving: Receiving
    done: asyncio.Event

    def quic_event_received(self, event: QuicEvent) -> None:
        """Take data."""
        if isinstance(event, StreamDataReceived):
            self.receiving.put(event.data)
            if self.receiving.is_done:
                self.done.set()


class Sender(QuicConnectionProtocol):
    """Keeps its stream filled."""

    take: Callable[[], memoryview | None] | None = None
    stream_id: int | None = None

    def begin(self, take: Callable[[], memoryview | None]) -> None:
        """Send what `take` returns until it returns None."""
        self.take = take
        if self.stream_id is None:
            self.stream_id = self._quic.get_next_available_stream_id(is_unidirectional=True)
            self._quic.send_stream_data(self.stream_id, b"")
        self.transmit()

    def transmit(self) -> None:
        """Send, after filling up."""
        if self.take is not None and self.stream_id is not None:
            buffer = self._quic._streams[self.stream_id].sender
            while buffer._buffer_stop - buffer._buffer_start < SEND_AHEAD_OCTETS:
                piece = self.take()
                if piece is None:
                    self.take = None
                    break
                self._quic.send_stream_data(self.stream_id, piece)  # type: ignore[arg-type]
        super().transmit()


async def receive(given: dict[str, Any]) -> None:
    """Serve one sender."""
    Receiver.receiving, Receiver.done = Receiving(given), asyncio.Event()
    server = await serve(
        "127.0.0.1",
        0,
        configuration=configuration(given, is_client=False),
        create_protocol=Receiver,
    )
    transport = server._transport
    assert transport is not None
    enlarge_buffers(transport)
    say("serving", port=transport.get_extra_info("sockname")[1])
    await Receiver.done.wait()
    Receiver.receiving.check()
    server.close()


async def send(given: dict[str, Any]) -> None:
    """Connect and send."""
    sending = Sending(given)
    async with connect(
        "127.0.0.1",
        given["port"],
        configuration=configuration(given, is_client=True),
        create_protocol=Sender,
    ) as sender:
        assert isinstance(sender, Sender)
        enlarge_buffers(sender._transport)
        warm = iter(sending.warm)
        sender.begin(lambda: next(warm, None))
        await heard()
        sending.begin()
        sender.begin(sending.next)
        await heard()
        sending.report()


def main() -> None:
    """Take the pacer out, and do what the arguments say."""
    given = plan()
    pin(given["core"])
    for name in ("next_send_time", "update_after_send"):
        setattr(QuicPacketPacer, name, lambda self, now: None)
    uvloop.run((send if sys.argv[1] == "send" else receive)(given))


main()
