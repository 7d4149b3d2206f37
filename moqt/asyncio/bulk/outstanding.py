"""What a packet number space has in flight: packets of aioquic's and runs of the bulk path's.

aioquic's `QuicPacketSpace.sent_packets` has both, in the order of sending, by packet number; a run
(`SentRun`) is one entry, under the number of its last packet. So what is left of a run when its
first packets are acknowledged, or lost, keeps its key and its place.

`ack_eliciting_in_flight` counts entries: aioquic takes one off for each that is acknowledged, lost
or discarded, and asks only whether any is left. A cut makes two of one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from moqt.asyncio.bulk.sent import SentRun

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aioquic.quic.packet_builder import QuicSentPacket
    from aioquic.quic.recovery import QuicPacketSpace


def numbers_of(packet: QuicSentPacket) -> range:
    """Return the packet numbers of an entry."""
    run: Any = packet  # a SentRun, where there is one, stands in for aioquic's
    first = run.first_number if type(run) is SentRun else packet.packet_number
    return range(first, packet.packet_number + 1)


def sizes_of(packet: QuicSentPacket) -> list[int]:
    """Return how large the datagrams of an entry are, in octets."""
    run: Any = packet
    return run.sizes if type(run) is SentRun else [packet.sent_bytes]


def fresh_ranges(ranges: Sequence[range], known: Sequence[range]) -> list[tuple[int, int]]:
    """Return, as (start, stop), what of `ranges` is not in `known`; both and the result ascend."""
    fresh: list[tuple[int, int]] = []
    at = 0
    for wanted in ranges:
        start, stop = wanted.start, wanted.stop
        while at < len(known) and known[at].stop <= start:
            at += 1
        look = at
        while look < len(known) and known[look].start < stop:
            if known[look].start > start:
                fresh.append((start, known[look].start))
            start = known[look].stop
            look += 1
        at = max(at, look - 1)
        if start < stop:
            fresh.append((start, stop))
    return fresh


def take(space: QuicPacketSpace, ranges: Sequence[tuple[int, int]]) -> dict[int, QuicSentPacket]:
    """Take out what has numbers in `ranges`, which ascend as (start, stop); return it in order.

    A run that they have in part is cut, and its rest stays, in order. Costs Python by the entry:
    those up to the last range's end, and all when something stays below what was taken of its run.
    """
    outstanding: dict[int, Any] = space.sent_packets
    taken: dict[int, QuicSentPacket] = {}
    before = len(outstanding)
    left: list[SentRun] = []
    for packet, index in _touched(outstanding, ranges):
        number = packet.packet_number
        if type(packet) is SentRun:
            left += _take_of_run(packet, ranges, index, taken)
        else:
            taken[number] = packet
        if number in taken:
            del outstanding[number]
    if left:
        ordered = sorted([*outstanding.items(), *((run.packet_number, run) for run in left)])
        outstanding.clear()
        outstanding.update(ordered)
    space.ack_eliciting_in_flight += len(taken) + len(outstanding) - before
    return taken


def _touched(
    outstanding: dict[int, Any], ranges: Sequence[tuple[int, int]]
) -> list[tuple[Any, int]]:
    """Return which entries have numbers in `ranges`, and the index of the first such range."""
    touched: list[tuple[Any, int]] = []
    if not ranges:
        return touched
    index = 0
    start, stop = ranges[0]
    for number, packet in outstanding.items():
        if number < start:
            continue
        first = packet.first_number if type(packet) is SentRun else number
        while first >= stop:
            index += 1
            if index == len(ranges):
                return touched
            start, stop = ranges[index]
        if number >= start:
            touched.append((packet, index))
    return touched


def _take_of_run(
    run: SentRun,
    ranges: Sequence[tuple[int, int]],
    index: int,
    taken: dict[int, Any],
) -> list[SentRun]:
    """Cut a run by the ranges from `index` on; return what lies below what was taken. What is above
    it stays in `run`, if its last number isn't taken."""
    below: list[SentRun] = []
    last = run.packet_number
    while index < len(ranges) and ranges[index][0] <= last:
        start, stop = ranges[index]
        if run.first_number < start:
            below.append(run.cut(start))
        if stop > last:
            taken[last] = run
            break
        piece = run.cut(stop)
        taken[piece.packet_number] = piece
        index += 1
    return below


def cut_off(space: QuicPacketSpace, packet: QuicSentPacket, number: int) -> QuicSentPacket:
    """Make an entry of its own of a run's packets below `number`. It's out of order, so it is to be
    taken away before anyone looks."""
    run: Any = packet
    piece = run.cut(number)
    space.sent_packets[piece.packet_number] = piece
    space.ack_eliciting_in_flight += 1
    return piece  # type: ignore[no-any-return]
