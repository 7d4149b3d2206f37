from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moqt.asyncio.pacing import (
    BURST_S,
    LATE_S,
    LOCAL_BURST_OCTETS,
    RATE_FACTOR,
    SMALLEST_BURST_OCTETS,
    TICK_S,
    BurstPacer,
)

DATAGRAM = 1000


def paced(*, window: int, rtt: float) -> BurstPacer:
    pacer = BurstPacer(max_datagram_size=DATAGRAM)
    pacer.update_rate(congestion_window=window, smoothed_rtt=rtt)
    return pacer


def sent_until_held(pacer: BurstPacer, now: float) -> tuple[int, float]:
    octets = 0
    while (at := pacer.next_send_time(now)) is None:
        pacer.update_after_send(now)
        octets += DATAGRAM
        assert octets < 10**9
    return octets, at


def test_nothing_is_held_back_before_the_first_round_trip() -> None:
    pacer = BurstPacer(max_datagram_size=DATAGRAM)
    for _ in range(10_000):
        assert pacer.next_send_time(5.0) is None
        pacer.update_after_send(5.0)


@pytest.mark.parametrize(
    ("window", "rtt", "expected"),
    [
        (12_000, 0.1, SMALLEST_BURST_OCTETS),
        (625_000, 0.05, int(RATE_FACTOR * 625_000 / 0.05 * BURST_S)),
        (4_000_000, 0.01, int(RATE_FACTOR * 4_000_000 / 0.01 * BURST_S)),
    ],
)
def test_a_burst_is_two_milliseconds_of_the_rate(window: int, rtt: float, expected: int) -> None:
    """Bursts that a timer of milliseconds can keep and a short queue can take."""
    octets, at = sent_until_held(paced(window=window, rtt=rtt), 1.0)
    assert expected <= octets <= expected + DATAGRAM
    assert at >= 1.0 + TICK_S


def test_who_was_held_back_and_comes_late_catches_up_but_who_was_idle_does_not() -> None:
    pacer = paced(window=4_000_000, rtt=0.02)
    assert pacer.rate is not None
    _, at = sent_until_held(pacer, 1.0)
    late, _ = sent_until_held(pacer, at + 0.005)
    assert late > 0.004 * pacer.rate
    pacer.next_send_time(at + 1.0)  # tokens are there, nothing is sent
    idle, _ = sent_until_held(pacer, at + 2.0)
    assert idle <= pacer.burst_octets + DATAGRAM


def test_so_many_datagrams_make_a_burst_however_large_they_are() -> None:
    pacer = BurstPacer(max_datagram_size=8_900)
    pacer.path_datagram_octets = 8_900
    pacer.update_rate(congestion_window=120_000, smoothed_rtt=0.1)
    assert pacer.burst_octets == 16 * 8_900


def test_nothing_is_held_back_within_a_machine() -> None:
    """Only there are datagrams so large; once the path is another one, its rate counts."""
    pacer = BurstPacer(max_datagram_size=DATAGRAM)
    pacer.path_datagram_octets = 60_000
    pacer.update_rate(congestion_window=120_000, smoothed_rtt=0.1)
    assert pacer.available(1.0) == pacer.burst_octets == LOCAL_BURST_OCTETS
    pacer.spend(10 * LOCAL_BURST_OCTETS, 1.0)
    assert pacer.next_send_time(1.0) is None
    pacer.path_datagram_octets = DATAGRAM
    pacer.update_rate(congestion_window=120_000, smoothed_rtt=0.1)
    octets, _ = sent_until_held(pacer, 2.0)
    assert octets <= pacer.burst_octets + DATAGRAM


def test_a_window_that_doubles_is_sent_twice_a_round_trip() -> None:
    pacer = paced(window=1_000_000, rtt=0.1)
    pacer.is_doubling = True
    assert pacer.rate == RATE_FACTOR * 10_000_000
    pacer.update_rate(congestion_window=1_000_000, smoothed_rtt=0.1)
    assert pacer.rate == 20_000_000


@given(
    window=st.integers(2400, 1 << 26),
    rtt=st.floats(0.0001, 2.0),
    batches=st.lists(st.tuples(st.integers(1, 65_536), st.floats(0.0, 0.01)), max_size=50),
)
def test_spending_batches_is_spending_their_octets(
    window: int, rtt: float, batches: list[tuple[int, float]]
) -> None:
    """What may go is positive exactly when the pacer holds nothing back, and never above a
    burst; over any time no more goes than the rate, a burst and one batch."""
    pacer = paced(window=window, rtt=rtt)
    now, sent = 1.0, 0
    assert pacer.rate is not None
    for octets, pause in batches:
        now += pause
        available = pacer.available(now)
        assert (available > 0) == (pacer.next_send_time(now) is None)
        assert available <= max(pacer.burst_octets, int(LATE_S * pacer.rate))
        if available:
            pacer.spend(octets, now)
            sent += octets
    allowed = pacer.burst_octets + LATE_S * pacer.rate + (now - 1.0) * pacer.rate + 65_536
    assert sent <= allowed * (1 + 1e-9)


def test_the_rate_is_a_quarter_above_the_window_per_round_trip() -> None:
    """RFC 9002 7.7."""
    window, rtt = 4_000_000, 0.1
    pacer = paced(window=window, rtt=rtt)
    now, octets = 1.0, 0
    sent_until_held(pacer, now)  # the first burst
    while now < 2.0:
        burst, now = sent_until_held(pacer, now)
        octets += burst
    assert abs(octets - RATE_FACTOR * window / rtt) < 0.01 * RATE_FACTOR * window / rtt


def test_a_timer_that_comes_late_by_milliseconds_costs_no_rate() -> None:
    window, rtt, late = 4_000_000, 0.02, 0.001
    pacer = paced(window=window, rtt=rtt)
    now, octets = 1.0, 0
    sent_until_held(pacer, now)
    while now < 2.0:
        burst, at = sent_until_held(pacer, now)
        octets += burst
        now = at + late
    assert octets > 0.97 * RATE_FACTOR * window / rtt


def test_a_slow_path_is_asked_again_when_a_datagram_may_go() -> None:
    pacer = paced(window=2400, rtt=1.0)
    _, at = sent_until_held(pacer, 1.0)
    assert pacer.next_send_time(at + 1e-9) is None
