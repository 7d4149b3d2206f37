"""Packet numbers that have come: the same answers as aioquic's window of that size gives."""

from __future__ import annotations

from aioquic.quic.recovery import QuicPacketNumberWindow
from hypothesis import given
from hypothesis import strategies as st

from moqt.asyncio.bulk.received import WINDOW_PACKETS, ReceivedNumbers

STEPS = st.lists(
    st.tuples(
        st.one_of(st.integers(-9, 9), st.integers(-5000, 9000)),  # behind, or beyond, what came
        st.one_of(st.integers(1, 3), st.integers(1, 9000)),
    ),
    min_size=1,
    max_size=12,
)


@given(STEPS)
def test_it_knows_what_a_set_of_numbers_knows(steps: list[tuple[int, int]]) -> None:
    """RFC 9000 12.3."""
    ours, theirs = ReceivedNumbers(), QuicPacketNumberWindow()
    theirs._size = WINDOW_PACKETS
    largest = -1
    for ahead, length in steps:
        first = max(0, largest + ahead)
        ours.add_run(first, first + length)
        for number in range(first, first + length):
            theirs.add(number)
        largest = max(largest, first + length - 1)
        numbers = range(max(0, largest - WINDOW_PACKETS - 2), largest + WINDOW_PACKETS + 2)
        assert [number in ours for number in numbers] == [number in theirs for number in numbers]


def test_one_is_a_run_of_one() -> None:
    received = ReceivedNumbers()
    assert 0 not in received
    received.add(2)
    received.add(WINDOW_PACKETS + 1)
    assert [number in received for number in range(5)] == [True, True, True, False, False]
    received.add(WINDOW_PACKETS + 2)
    assert 3 not in received
    assert WINDOW_PACKETS + 1 in received
    assert WINDOW_PACKETS + 3 not in received
