"""Loss detection that learns how much a path reorders, on top of aioquic's.

RFC 9002 6.1 declares a packet lost when one three numbers above it is acknowledged, or after 9/8 of
a round trip. On a path that reorders more than that (several radio links, jitter), each such packet
halves the window, and the transfer crawls. RFC 9002 6.1.1 and 6.1.2 leave room to adapt, and RFC
8985 (RACK) shows how:

- What was declared lost is remembered for a while. When one of them is acknowledged after all, the
  path reorders: packets are no more counted from then on, and the time that a packet may be late
  grows to what was seen and a quarter, up to two round trips.
- When all packets of the last congestion event were such, the event is undone.
- Packets sent no later than the first one acknowledged may have come before the peer had the keys
  to read them: that is no congestion (RFC 9002 7.4).
- After `FORGET_EVENTS` congestion events without any, the standard's thresholds return.

`install` puts it in the place of a new connection's recovery. It uses of aioquic's inside:
`QuicConnection._loss`; `QuicPacketRecovery` (`_cc`, `_pacer`, `_pto_count`, `_rtt_latest`,
`_rtt_smoothed`, `_rtt_initialized`, `_rtt_initial`, `_rtt_min`, `_detect_loss`, `_on_packets_lost`,
`_in_persistent_congestion`, `spaces`, which the connection sets); `QuicPacketSpace`
(`sent_packets`, `largest_acked_packet`, `loss_time`, `received_packets`). What is outstanding are
packets of aioquic's and runs of the bulk path's: `moqt.asyncio.bulk.outstanding`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

from aioquic.quic.recovery import (
    K_PACKET_THRESHOLD,
    K_PERSISTENT_CONGESTION_THRESHOLD,
    K_TIME_THRESHOLD,
    QuicPacketRecovery,
)

from moqt.asyncio.bulk.outstanding import cut_off, fresh_ranges, numbers_of, sizes_of, take
from moqt.asyncio.bulk.received import ReceivedNumbers
from moqt.asyncio.cubic import Cubic
from moqt.asyncio.pacing import BurstPacer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from aioquic.quic.connection import QuicConnection
    from aioquic.quic.packet_builder import QuicSentPacket
    from aioquic.quic.rangeset import RangeSet
    from aioquic.quic.recovery import QuicPacketSpace

REMEMBERED_PACKETS = 4096
"""Of those declared lost, so many are remembered, for `REMEMBERED_ROUNDS` round trips."""

REMEMBERED_ROUNDS = 4

MAX_LATE_ROUNDS = 2
"""Round trips are measured on the packets that come first, so more than one may be needed."""

LATENESS_MARGIN = 1.25
"""How much longer than the latest packet seen so far the next one may take."""

FORGET_EVENTS = 16
"""RFC 8985 6.2 step 4: so many congestion events in a row without a mistake end the adaptation."""


class _Numbered(NamedTuple):
    """What aioquic looks at of a lost packet."""

    packet_number: int
    is_ack_eliciting: bool
    sent_time: float


class AdaptiveRecovery(QuicPacketRecovery):
    """aioquic's recovery with thresholds that follow the path."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.late_s = 0.0
        """How much later than a round trip a packet may be; 0: RFC 9002's thresholds rule."""
        self.spurious_losses = 0
        """How many packets were declared lost and acknowledged after all."""
        self.lost_packets = 0
        """How many were declared lost, those included; none that a probe timeout repeated, that was
        sent before the peer can have had its keys, or that probed the path's MTU."""
        self.probe_timeouts = 0
        """How many probe timeouts have run out (RFC 9002 6.2)."""
        self.on_lost: Callable[[list[int]], None] | None = None
        """Told the sizes of application data's packets in flight that were declared lost; not of
        repeated ones."""
        self.on_acked: Callable[[int], None] | None = None
        """Told the size of the newest packet of application data that an ACK acknowledges."""
        self._declared: OrderedDict[int, tuple[float, float]] = OrderedDict()
        """Packet number -> when it was sent, and when the event began that it belongs to."""
        self._first_acked: float = inf
        """The lowest number of application data that was acknowledged, and when it was sent."""
        self._first_acked_sent_at = 0.0
        self._last_ack: Sequence[range] = ()
        """The ranges of application data that the last ACK had."""
        self._outstanding: dict[int, QuicSentPacket] | None = None
        """What is not acknowledged, while aioquic looks at what is."""
        self._event_began_at = 0.0
        self._event_lost = 0
        self._event_spurious = 0
        self._clean_events = 0

    @property
    def smoothed_rtt_s(self) -> float | None:
        """The smoothed round trip (RFC 9002 5.3); None before the first sample."""
        return self._rtt_smoothed if self._rtt_initialized else None

    @property
    def least_rtt_s(self) -> float | None:
        """The shortest round trip on this path; None before the first sample."""
        return None if self._rtt_min == inf else self._rtt_min

    def forget_round_trips(self) -> None:
        """The path is another one: the shortest round trip of the old one says nothing."""
        self._rtt_min = inf

    # --- what aioquic calls ---

    @property
    def spaces(self) -> list[QuicPacketSpace]:
        """The packet number spaces; a connection sets them when it begins."""
        return self._spaces

    @spaces.setter
    def spaces(self, spaces: list[QuicPacketSpace]) -> None:
        self._spaces = spaces
        for space in spaces:
            if space.is_application_data:
                space.received_packets = ReceivedNumbers()

    def on_ack_received(
        self, *, ack_rangeset: RangeSet, ack_delay: float, now: float, space: QuicPacketSpace
    ) -> None:
        """Act on an ACK, with what it says of packets that were taken for lost."""
        outstanding = space.sent_packets
        if space.is_application_data:
            taken = self._take_acknowledged(ack_rangeset, space)
            if taken:
                self._note_acknowledged(taken, ack_rangeset)
            if self._declared:
                self._find_mistakes(ack_rangeset, now)
            self._outstanding = outstanding
            space.sent_packets = taken
        cc = self._cc
        pacer: Any = self._pacer
        if isinstance(pacer, BurstPacer):
            pacer.is_doubling = cc.ssthresh is None or cc.congestion_window < cc.ssthresh
        try:
            super().on_ack_received(
                ack_rangeset=ack_rangeset, ack_delay=ack_delay, now=now, space=space
            )
        finally:
            space.sent_packets = outstanding
            self._outstanding = None

    def _take_acknowledged(
        self, ack_rangeset: RangeSet, space: QuicPacketSpace
    ) -> dict[int, QuicSentPacket]:
        """Take what this ACK is the first to acknowledge. aioquic lists all that is outstanding to
        find it, which at 1 Gbit/s and 100 ms costs more than everything else that an ACK does; so
        it's given these packets alone until it comes to `_detect_loss`."""
        outstanding = space.sent_packets
        if not outstanding:
            return {}
        end = next(reversed(outstanding)) + 1  # a peer may acknowledge what was never sent
        taken = take(space, fresh_ranges(ack_rangeset, self._last_ack))
        self._last_ack = [range(r.start, min(r.stop, end)) for r in ack_rangeset if r.start < end]
        return taken

    def _note_acknowledged(self, taken: dict[int, QuicSentPacket], ack_rangeset: RangeSet) -> None:
        if self.on_acked is not None:
            newest = taken.get(ack_rangeset.bounds().stop - 1)
            if newest is not None:
                self.on_acked(sizes_of(newest)[-1])
        first = ack_rangeset[0].start
        if first < self._first_acked:
            oldest = next(iter(taken.values()))
            if numbers_of(oldest).start == first:
                self._first_acked = first
                self._first_acked_sent_at = _sent_at(oldest)

    def on_loss_detection_timeout(self, *, now: float) -> None:
        """Act on a timer, which is a probe timeout's if no packet is due to be declared lost."""
        before = self._pto_count
        super().on_loss_detection_timeout(now=now)
        if self._pto_count > before:
            self.probe_timeouts += 1

    def _detect_loss(self, *, now: float, space: QuicPacketSpace) -> None:
        """As aioquic's, with our thresholds, and for runs, of which some packets may be lost only.
        Packets are numbered in the order of sending, so what is behind one that isn't lost isn't
        either."""
        if self._outstanding is not None:
            space.sent_packets = self._outstanding
        largest = space.largest_acked_packet
        round_trip = max(self._rtt_latest, self._rtt_smoothed)
        if self.late_s:
            allowed, by_number = round_trip + self.late_s, -1
        else:
            allowed = K_TIME_THRESHOLD * (
                round_trip if self._rtt_initialized else self._rtt_initial
            )
            by_number = largest - K_PACKET_THRESHOLD
        lost: list[QuicSentPacket] = []
        space.loss_time = None
        for packet in space.sent_packets.values():
            numbers = numbers_of(packet)
            if numbers.start > largest:
                break
            late_at = _sent_at(packet) + allowed
            last_lost = largest if late_at <= now else by_number
            if packet.packet_number > last_lost:
                if numbers.start <= last_lost:
                    lost.append(cut_off(space, packet, last_lost + 1))
                if last_lost < largest:
                    space.loss_time = late_at
                break
            lost.append(packet)
        if lost:
            self._on_packets_lost(
                now=now,
                packets=lost,
                persistent_congestion=self._in_persistent_congestion(packets=lost),
                space=space,
            )

    def _in_persistent_congestion(self, *, packets: list[QuicSentPacket]) -> bool:
        """As aioquic's, which takes a gap in the numbers for a packet that was acknowledged: runs
        that follow each other are numbered so."""
        if _sent_at(packets[-1]) - _sent_at(packets[0]) <= (
            self.get_probe_timeout() * K_PERSISTENT_CONGESTION_THRESHOLD
        ):
            return False
        numbered: list[Any] = []
        number = 0
        stop = -1
        for packet in packets:
            numbers = numbers_of(packet)
            number += 1 if numbers.start == stop else 2
            stop = numbers.stop
            numbered.append(_Numbered(number, packet.is_ack_eliciting, _sent_at(packet)))
        return super()._in_persistent_congestion(packets=numbered)

    def _on_packets_lost(
        self,
        *,
        congestion_event: bool = True,
        now: float,
        packets: Iterable[QuicSentPacket],
        persistent_congestion: bool = False,
        space: QuicPacketSpace,
    ) -> None:
        packets = tuple(packets)
        if not congestion_event:  # a probe timeout, which repeats one packet (RFC 9002 6.2.4)
            packets = tuple(_first_of(packet, space) for packet in packets)
        elif packets and space.is_application_data:
            if _sent_at(packets[-1]) <= self._first_acked_sent_at:
                congestion_event = False
            else:
                self._remember(packets, now)
            if self.on_lost is not None:
                self.on_lost(
                    [n for packet in packets if packet.in_flight for n in sizes_of(packet)]
                )
        super()._on_packets_lost(
            congestion_event=congestion_event,
            now=now,
            packets=packets,
            persistent_congestion=persistent_congestion,
            space=space,
        )

    # --- mistakes ---

    def _remember(self, packets: tuple[QuicSentPacket, ...], now: float) -> None:
        if _sent_at(packets[-1]) > self._event_began_at:
            if self._event_lost and not self._event_spurious:
                self._clean_events += 1
                if self._clean_events >= FORGET_EVENTS:
                    self.late_s = 0.0
            self._event_began_at = now
            self._event_lost = self._event_spurious = 0
        declared = self._declared
        self._forget(now)
        for packet in packets:
            numbers = numbers_of(packet)
            self._event_lost += len(numbers)
            if not _is_mtu_probe(packet):
                self.lost_packets += len(numbers)
            declared.update(dict.fromkeys(numbers, (_sent_at(packet), self._event_began_at)))
        while len(declared) > REMEMBERED_PACKETS:
            declared.popitem(last=False)

    def _forget(self, now: float) -> None:
        declared = self._declared
        oldest = now - REMEMBERED_ROUNDS * self._rtt_smoothed
        while declared and next(iter(declared.values()))[0] < oldest:
            declared.popitem(last=False)

    def _find_mistakes(self, ack_rangeset: RangeSet, now: float) -> None:
        declared = self._declared
        self._forget(now)
        numbers = list(declared)  # ascending: packets are declared lost in the order of sending
        mistakes: list[int] = []
        for acked in ack_rangeset:
            first = bisect_left(numbers, acked.start)
            mistakes += numbers[first : bisect_left(numbers, acked.stop, first)]
        if not mistakes:
            return
        round_trip = max(self._rtt_latest, self._rtt_smoothed)
        for number in mistakes:
            sent_time, event_began_at = declared.pop(number)
            lateness = LATENESS_MARGIN * (now - sent_time - round_trip)
            self.late_s = max(self.late_s, lateness, round_trip * (K_TIME_THRESHOLD - 1))
            if event_began_at == self._event_began_at:
                self._event_spurious += 1
        self.late_s = min(self.late_s, MAX_LATE_ROUNDS * round_trip)
        self.spurious_losses += len(mistakes)
        self._clean_events = 0
        if self._event_spurious and self._event_spurious >= self._event_lost:
            cc = self._cc
            if isinstance(cc, Cubic) and cc.undo():
                self._event_lost = self._event_spurious = 0


def _sent_at(packet: QuicSentPacket) -> float:
    sent_at: Any = packet.sent_time  # None only before it is sent
    return float(sent_at)


def _first_of(packet: QuicSentPacket, space: QuicPacketSpace) -> QuicSentPacket:
    """The first packet of an entry, as one of its own."""
    first = numbers_of(packet).start
    return packet if first == packet.packet_number else cut_off(space, packet, first + 1)


def _is_mtu_probe(packet: QuicSentPacket) -> bool:
    """Whether `moqt.asyncio.mtu_prober` made it. An ACK alone isn't in flight either."""
    return packet.is_ack_eliciting and not packet.in_flight


def install(connection: QuicConnection, *, pacer: BurstPacer) -> AdaptiveRecovery:
    """Replace a new connection's recovery, before anything was sent, and its pacer."""
    stock = connection._loss
    recovery = AdaptiveRecovery(
        congestion_control_algorithm=connection._configuration.congestion_control_algorithm,
        initial_rtt=stock._rtt_initial,
        max_datagram_size=connection._max_datagram_size,
        peer_completed_address_validation=stock.peer_completed_address_validation,
        send_probe=stock._send_probe,
        logger=stock._logger,
        quic_logger=stock._quic_logger,
    )
    recovery._pacer = pacer  # type: ignore[assignment]
    connection._loss = recovery
    return recovery
