"""Packets in flight, as loss recovery knows them: one record for a run of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aioquic.quic.packet import QuicPacketType
from aioquic.tls import Epoch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from moqt.asyncio.bulk.sender import ReferencingSender


class SentRun:
    """Packets of one stream that were sent together, numbered one after another.

    To aioquic's loss recovery and to congestion control it is one large packet: it stands in for a
    `QuicSentPacket`, whose number is the last one's. `moqt.asyncio.bulk.outstanding` cuts it where
    an ACK, or what was lost, begins or ends.

    All packets but the last are of `datagram_octets` and have `step` octets of the stream; so has
    the last one at most.
    """

    __slots__ = (
        "_fin",
        "_sender",
        "_start",
        "_step",
        "_stop",
        "datagram_octets",
        "first_number",
        "packet_number",
        "sent_bytes",
        "sent_time",
    )

    epoch = Epoch.ONE_RTT
    in_flight = True
    is_ack_eliciting = True
    is_crypto_packet = False
    packet_type = QuicPacketType.ONE_RTT
    quic_logger_frames: tuple[()] = ()

    def __init__(
        self,
        *,
        first_number: int,
        last_number: int,
        octets: int,
        datagram_octets: int,
        sent_time: float,
        sender: ReferencingSender,
        start: int,
        stop: int,
        step: int,
        fin: bool,
    ) -> None:
        self.first_number = first_number
        self.packet_number = last_number
        self.sent_bytes = octets
        self.datagram_octets = datagram_octets
        self.sent_time = sent_time
        self._sender = sender
        self._start = start
        self._stop = stop
        self._step = step
        self._fin = fin

    @property
    def sizes(self) -> list[int]:
        """The size of each packet, in octets."""
        full = self.packet_number - self.first_number
        return [self.datagram_octets] * full + [self.sent_bytes - full * self.datagram_octets]

    @property
    def delivery_handlers(self) -> Sequence[tuple[Callable[..., None], tuple[int, int, bool]]]:
        """Whom to tell of its fate. Made when asked for, so that a run in flight is one object."""
        return ((self._sender.on_data_delivery, (self._start, self._stop, self._fin)),)

    def cut(self, number: int) -> SentRun:
        """Split off the packets below `number`, some but not all, and return them; the rest stays
        here, and the last number with it."""
        packets = number - self.first_number
        assert 0 < packets <= self.packet_number - self.first_number
        octets = packets * self.datagram_octets
        middle = self._start + packets * self._step
        lower = SentRun(
            first_number=self.first_number,
            last_number=number - 1,
            octets=octets,
            datagram_octets=self.datagram_octets,
            sent_time=self.sent_time,
            sender=self._sender,
            start=self._start,
            stop=middle,
            step=self._step,
            fin=False,
        )
        self.first_number = number
        self.sent_bytes -= octets
        self._start = middle
        return lower
