"""A packet in flight, as loss recovery knows it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aioquic.quic.packet import QuicPacketType
from aioquic.tls import Epoch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from moqt.asyncio.bulk.sender import ReferencingSender


class SentPacket:
    """What aioquic's loss recovery keeps of a packet: stands in for its `QuicSentPacket`."""

    __slots__ = ("_fin", "_sender", "_start", "_stop", "packet_number", "sent_bytes", "sent_time")

    epoch = Epoch.ONE_RTT
    in_flight = True
    is_ack_eliciting = True
    is_crypto_packet = False
    packet_type = QuicPacketType.ONE_RTT
    quic_logger_frames: tuple[()] = ()

    def __init__(
        self,
        number: int,
        octets: int,
        at: float,
        sender: ReferencingSender,
        start: int,
        stop: int,
        fin: bool,
    ) -> None:
        self.packet_number = number
        self.sent_bytes = octets
        self.sent_time = at
        self._sender = sender
        self._start = start
        self._stop = stop
        self._fin = fin

    @property
    def delivery_handlers(self) -> Sequence[tuple[Callable[..., None], tuple[int, int, bool]]]:
        """Whom to tell of its fate. Made when asked for, so that a packet in flight is one object:
        a few thousand more would have the garbage collector look at everything, again and again."""
        return ((self._sender.on_data_delivery, (self._start, self._stop, self._fin)),)

    def absorb(self, other: SentPacket) -> bool:
        """Take in the packet behind it, if that was sent at the same moment and has the octets that
        follow: acknowledged together, they are as good as one. False: it isn't that one."""
        if (
            other._start != self._stop
            or other._sender is not self._sender
            or other.sent_time != self.sent_time
        ):
            return False
        self._stop, self._fin = other._stop, other._fin
        self.packet_number = other.packet_number
        self.sent_bytes += other.sent_bytes
        return True
