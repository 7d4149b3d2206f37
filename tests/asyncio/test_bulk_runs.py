"""Packets that go on where the last one ended are opened by one loop."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from moqt.asyncio.bulk.opening import Opener
from tests.asyncio.bulk_twins import Damage, Packet, Twins, packets, run, stream_frame, varint

if TYPE_CHECKING:
    from typing import Any


@pytest.fixture(autouse=True)
def no_leaks() -> None:
    """Nothing here has a task or a socket."""


BETWEEN_RUNS: dict[str, list[Packet]] = {
    "nothing": [],
    "a ping": packets(b"\x01\0\0\0", first=5),
    "a loss": [Packet(6, b"\x01\0\0\0")],
    "one of the same again": packets(*run(6, 1 << 14, 5, 100), first=0)[4:],
    "the same octets in another packet": packets(*run(6, 1 << 14, 5, 100)[4:], first=5),
    "octets further on": packets(*run(6, (1 << 14) + 900, 1, 100), first=5),
    "another stream": packets(*run(10, 1 << 14, 1, 100), first=5),
    "the end": packets(stream_frame(6, (1 << 14) + 500, bytes(500), fin=True), first=5),
    "a reset": packets(b"\x04" + varint(6) + varint(1) + varint((1 << 14) + 1000), first=5),
    "junk": [Packet(5, bytes(107), damage=Damage.NOISE)],
    "junk that is no packet": [Packet(5, bytes(107), damage=Damage.FLIPPED)],
}


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many packets were opened at once, by call."""
    counts: list[int] = []
    open_on = Opener.open_on

    def spied(self: Opener, *given: Any, **named: Any) -> tuple[int, int]:
        rows, step = open_on(self, *given, **named)
        counts.append(rows)
        return rows, step

    monkeypatch.setattr(Opener, "open_on", spied)
    return counts


@pytest.mark.parametrize("spin", [False, True])
@pytest.mark.parametrize("between", BETWEEN_RUNS)
def test_what_goes_on_from_one_run_to_the_next(between: str, spin: bool, opened: list[int]) -> None:
    twins = Twins()
    twins.feed(packets(*run(6, 1 << 14, 5, 100)))
    assert sum(opened) == 4  # all but the first
    twins.feed(BETWEEN_RUNS[between])
    opened.clear()
    first = 1 + max([4, *(one.number for one in BETWEEN_RUNS[between])])
    frames = run(6, (1 << 14) + 500, 5, 100)
    twins.feed([replace(one, spin=spin) for one in packets(*frames, first=first)])
    assert not twins.is_over
    is_next = between in ("nothing", "a ping", "one of the same again")
    assert sum(opened) == 5 if is_next else sum(opened) >= 4


def test_frames_with_a_length_go_on_while_it_stays_the_same(opened: list[int]) -> None:
    twins = Twins()
    frames = run(6, 1 << 14, 10, 100, has_length=True)
    twins.feed(packets(*frames[:5]))
    twins.feed(packets(*frames[5:], first=5))
    assert sum(opened) == 9
    more = run(6, (1 << 14) + 1000, 5, 100, has_length=True)
    twins.feed(packets(*(frame + b"\x01" for frame in more), first=10))
    assert not twins.is_over
    assert sum(opened) == 9
    assert twins.bulk.reader.received_octets == 1500


def test_reserved_bits_end_the_connection_where_a_run_goes_on() -> None:
    twins = Twins()
    twins.feed(packets(*run(6, 1 << 14, 5, 100)))
    frames = run(6, (1 << 14) + 500, 5, 100)
    twins.feed([replace(one, reserved=8) for one in packets(*frames, first=5)])
    assert twins.is_over


@pytest.mark.parametrize(("start", "octets"), [(60, 100), (60, 1000), ((1 << 14) - 150, 100)])
def test_offsets_that_need_more_octets_from_one_packet_to_the_next(start: int, octets: int) -> None:
    """Packets stay as long as they are, so their frames hold less."""
    twins = Twins()
    frames = []
    for _ in range(8):
        data = bytes(octets - len(varint(start)))
        frames.append(stream_frame(6, start, data))
        start += len(data)
    twins.feed(packets(*frames))
    assert not twins.is_over


def test_nothing_goes_on_behind_the_end_of_a_stream() -> None:
    twins = Twins()
    start = 1 << 14
    last = stream_frame(6, start + 300, bytes(100), fin=True)
    twins.feed(packets(*run(6, start, 3, 100), last, *run(6, start + 400, 2, 100)))
    assert twins.is_over


def test_a_late_packet_is_not_taken_for_those_that_are_still_missing() -> None:
    """Octets of it come again in a new packet, and go on where those of the late one ended."""
    twins = Twins()
    frames = run(6, 1 << 14, 8, 100)
    ahead = packets(*frames[:2], first=0) + packets(*frames[4:6], first=4)
    late, again = packets(frames[2], first=2), packets(*frames[3:], first=6)
    twins.feed([*ahead, *late, *again])
    assert not twins.is_over
