"""CUBIC and HyStart++ by a virtual clock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from aioquic.quic.congestion.base import create_congestion_control
from hypothesis import given
from hypothesis import strategies as st

from moqt.asyncio import cubic
from moqt.asyncio.cubic import BETA, C, Cubic, HyStart

if TYPE_CHECKING:
    from collections.abc import Iterable

MDS = 1000


@dataclass(slots=True)
class Sent:
    """What a controller looks at in a packet."""

    sent_bytes: int
    sent_time: float


def send(controller: Cubic, octets: int, now: float) -> list[Any]:
    packets: list[Any] = [Sent(MDS, now) for _ in range(octets // MDS)]
    for packet in packets:
        controller.on_packet_sent(packet=packet)
    return packets


def acknowledge(controller: Cubic, packets: Iterable[Any], now: float) -> None:
    rtt = None
    for packet in packets:
        controller.on_packet_acked(packet=packet, now=now)
        rtt = now - packet.sent_time
    if rtt is not None:
        controller.on_rtt_measurement(now=now, rtt=rtt)


def lossless_rounds(controller: Cubic, *, rounds: int, rtt: float, now: float = 1.0) -> float:
    """Fill the window and have it acknowledged, `rounds` times, in four ACKs each."""
    for _ in range(rounds):
        packets = send(controller, controller.congestion_window - controller.bytes_in_flight, now)
        now += rtt
        quarter = max(1, len(packets) // 4)
        for first in range(0, len(packets), quarter):
            acknowledge(controller, packets[first : first + quarter], now)
    return now


def after_a_loss(window: int, now: float) -> Cubic:
    """Return a controller that had `window` octets when it lost a packet sent at `now`."""
    controller = Cubic(max_datagram_size=MDS)
    controller.congestion_window = window
    controller.ssthresh = window
    packets = send(controller, window, now)
    controller.on_packets_lost(packets=packets[:1], now=now + 0.1)
    acknowledge(controller, packets[1:], now + 0.1)
    return controller


def test_aioquic_makes_one_by_its_name() -> None:
    cubic.register()
    made = create_congestion_control(cubic.NAME, max_datagram_size=1200)
    assert isinstance(made, Cubic)
    assert made.congestion_window == 12_000
    assert made.bytes_in_flight == 0
    assert made.ssthresh is None


@pytest.mark.parametrize(
    ("octets", "expected"), [(1200, 12_000), (1452, 14_520), (8900, 17_800), (60_000, 120_000)]
)
def test_the_first_window_follows_the_datagram_size(octets: int, expected: int) -> None:
    """RFC 9002 7.2."""
    controller = Cubic(max_datagram_size=1200)
    controller._max_datagram_size = octets
    assert controller.congestion_window == expected


def test_the_window_doubles_each_round_trip_in_slow_start() -> None:
    controller = Cubic(max_datagram_size=MDS)
    lossless_rounds(controller, rounds=5, rtt=0.05)
    assert controller.congestion_window == 10 * MDS * 2**5


def test_a_window_that_is_not_filled_does_not_grow() -> None:
    """RFC 9002 7.8."""
    controller = Cubic(max_datagram_size=MDS)
    for step in range(20):
        acknowledge(controller, send(controller, 2 * MDS, float(step)), step + 0.05)
    assert controller.congestion_window == 10 * MDS


def test_the_cubic_stands_still_while_it_is_not_the_limit() -> None:
    """RFC 9438 4.2: t must not count periods that the application limited."""
    controller = after_a_loss(1_000_000, 1.0)
    now = lossless_rounds(controller, rounds=3, rtt=0.1, now=2.0)
    before = controller.congestion_window
    for _ in range(600):  # a minute with little to send
        packets = send(controller, 2 * MDS, now)
        now += 0.1
        acknowledge(controller, packets, now)
    assert controller.congestion_window == before
    lossless_rounds(controller, rounds=1, rtt=0.1, now=now)
    assert controller.congestion_window < 1.1 * before


def test_a_loss_leaves_seven_tenths_of_the_window_whatever_is_in_flight() -> None:
    """RFC 9438 4.6."""
    controller = Cubic(max_datagram_size=MDS)
    controller.congestion_window = 1_000_000
    packets = send(controller, 20 * MDS, 1.0)
    controller.on_packets_lost(packets=packets[:1], now=1.1)
    assert controller.congestion_window == controller.ssthresh == int(1_000_000 * BETA)


def test_packets_sent_before_a_loss_was_seen_neither_grow_nor_reduce_the_window() -> None:
    """RFC 9002 7.3.2."""
    controller = Cubic(max_datagram_size=MDS)
    packets = send(controller, 10 * MDS, 1.0)
    controller.on_packets_lost(packets=packets[:1], now=1.1)
    window = controller.congestion_window
    controller.on_packets_lost(packets=packets[1:2], now=1.11)
    acknowledge(controller, packets[2:], 1.12)
    assert controller.congestion_window == window
    assert controller.bytes_in_flight == 0


def test_the_window_is_back_at_its_peak_after_k_seconds() -> None:
    """RFC 9438 4.2: K = cbrt((W_max - cwnd) / C), in segments."""
    peak = 2_000_000
    controller = after_a_loss(peak, 1.0)
    k = ((peak - BETA * peak) / MDS / C) ** (1 / 3)
    rtt = 0.05
    now = lossless_rounds(controller, rounds=1, rtt=rtt, now=2.0)
    begun_at = now
    while now < begun_at + k:
        now = lossless_rounds(controller, rounds=1, rtt=rtt, now=now)
    assert 0.95 * peak < controller.congestion_window < 1.05 * peak
    plateau = controller.congestion_window
    lossless_rounds(controller, rounds=int(k / rtt), rtt=rtt, now=now)
    assert controller.congestion_window > 1.1 * plateau  # convex: it looks for more


def test_a_small_window_grows_as_renos() -> None:
    """RFC 9438 4.3: with alpha 0.53 segments a round trip until the window before the loss, then
    one."""
    controller = after_a_loss(40 * MDS, 1.0)
    window = controller.congestion_window
    rounds = 20
    lossless_rounds(controller, rounds=rounds, rtt=0.01, now=2.0)
    grown = (controller.congestion_window - window) / MDS
    assert 0.45 * rounds < grown < 0.6 * rounds
    lossless_rounds(controller, rounds=60, rtt=0.01, now=3.0)
    assert (controller.congestion_window - window) / MDS > 0.53 * (rounds + 60) + 10


def test_a_second_loss_below_the_peak_lowers_the_peak() -> None:
    """RFC 9438 4.7, fast convergence."""
    controller = after_a_loss(1_000_000, 1.0)
    window = controller.congestion_window
    packets = send(controller, MDS, 2.0)
    controller.on_packets_lost(packets=packets, now=2.1)
    assert controller._w_max == window * (1 + BETA) / 2


def test_persistent_congestion_leaves_two_datagrams() -> None:
    """RFC 9002 7.6.2."""
    controller = after_a_loss(1_000_000, 1.0)
    controller.on_persistent_congestion()
    assert controller.congestion_window == 2 * MDS
    assert not controller.undo()
    lossless_rounds(controller, rounds=3, rtt=0.05, now=2.0)
    assert controller.congestion_window == 16 * MDS  # slow start, up to ssthresh


def test_an_event_that_was_none_is_undone_once() -> None:
    """RFC 9438 4.9.2."""
    controller = Cubic(max_datagram_size=MDS)
    controller.congestion_window = 500_000
    packets = send(controller, 100 * MDS, 1.0)
    controller.on_packets_lost(packets=packets[:3], now=1.1)
    assert controller.undo()
    assert controller.congestion_window == 500_000
    assert controller.ssthresh is None
    assert not controller.undo()


def hystart_rounds(rtts: list[float]) -> tuple[HyStart, list[bool], int | None]:
    """Feed rounds of 16 samples. Returns whether growth was slow after each, and when slow start
    was over."""
    hystart = HyStart()
    now = 1.0
    slow: list[bool] = []
    for number, rtt in enumerate(rtts):
        until = now + rtt
        while now < until:
            if hystart.on_sample(now=now, rtt=rtt):
                return hystart, slow, number
            now += rtt / 16
        slow.append(hystart.is_slow)
    return hystart, slow, None


def test_slow_start_ends_when_round_trips_grow_and_stay_longer() -> None:
    """RFC 9406 4.2: after five rounds of slower growth."""
    _, slow, ended_in = hystart_rounds([0.05] * 4 + [0.06] * 12)
    assert not any(slow[:4])
    began = slow.index(True)
    assert began <= 6
    assert ended_in is not None
    assert began + 4 <= ended_in <= began + 6


def test_slow_start_goes_on_when_a_long_round_trip_was_a_mistake() -> None:
    """RFC 9406 4.2."""
    hystart, slow, ended_in = hystart_rounds([0.05] * 4 + [0.06] * 3 + [0.05] * 20)
    assert any(slow)
    assert ended_in is None
    assert not hystart.is_slow


def test_a_queue_is_seen_in_the_round_in_which_it_grows() -> None:
    """Not in the next, when the window has doubled once more."""
    hystart = HyStart()
    now = 1.0
    for _ in range(150):
        hystart.on_sample(now=now, rtt=0.05)
        now += 0.001
    begun_at = now
    while not hystart.is_slow:
        rtt = 0.05 + (now - begun_at) / 2  # twice the path's rate is sent
        assert now - begun_at < 0.04
        hystart.on_sample(now=now, rtt=rtt)
        now += 0.001


def test_one_late_ack_is_no_queue() -> None:
    hystart = HyStart()
    now = 1.0
    for number in range(400):
        hystart.on_sample(now=now, rtt=0.05 if number % 7 else 0.2)
        assert not hystart.is_slow
        now += 0.05 / 16


def test_round_trips_that_grow_by_less_than_an_eighth_are_no_queue() -> None:
    """RFC 9406 4.2: and no less than 4 ms."""
    _, slow, ended_in = hystart_rounds([0.05] * 4 + [0.055] * 20)
    assert not any(slow)
    assert ended_in is None
    _, slow, ended_in = hystart_rounds([0.001] * 4 + [0.0045] * 20)
    assert not any(slow)


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["send", "ack", "lose", "expire", "undo", "collapse", "resize"]),
        st.integers(0, 40),
        st.floats(0.0, 0.5),
    ),
    max_size=80,
)


@given(EVENTS)
def test_whatever_happens_the_window_stays_above_two_datagrams(
    events: list[tuple[str, int, float]],
) -> None:
    """And what is in flight is what was sent and neither acknowledged nor lost."""
    controller = Cubic(max_datagram_size=MDS)
    flying: list[Any] = []
    now = 1.0
    for what, count, pause in events:
        now += pause
        some, rest = flying[:count], flying[count:]
        match what:
            case "send":
                flying += send(controller, count * MDS, now)
            case "ack":
                acknowledge(controller, some, now)
                flying = rest
            case "lose" if some:
                controller.on_packets_lost(packets=some, now=now)
                flying = rest
            case "expire":
                controller.on_packets_expired(packets=some)
                flying = rest
            case "undo":
                controller.undo()
            case "collapse":
                controller.on_persistent_congestion()
            case "resize":
                controller._max_datagram_size = 1000 + count
        assert controller.bytes_in_flight == MDS * len(flying) >= 0
        assert controller.congestion_window >= 2 * controller._max_datagram_size
        assert isinstance(controller.congestion_window, int)
