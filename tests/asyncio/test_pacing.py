from __future__ import annotations

from moqt.asyncio.pacing import BURST_OCTETS, RATE_FACTOR, TICK_S, BurstPacer

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


def test_a_burst_is_at_least_128_kib_and_waits_are_whole_milliseconds() -> None:
    pacer = paced(window=12_000, rtt=0.1)
    octets, at = sent_until_held(pacer, 1.0)
    assert BURST_OCTETS <= octets <= BURST_OCTETS + DATAGRAM
    assert at >= 1.0 + TICK_S


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
