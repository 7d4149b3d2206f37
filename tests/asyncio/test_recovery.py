"""Loss detection that adapts, by a virtual clock, on real packets' records."""

from __future__ import annotations

import pytest
from aioquic.quic.rangeset import RangeSet
from hypothesis import given
from hypothesis import strategies as st

from moqt.asyncio.cubic import Cubic
from moqt.asyncio.recovery import FORGET_EVENTS, REMEMBERED_PACKETS, AdaptiveRecovery
from tests.asyncio.recovery_path import OCTETS, RTT, Path


def reordered(path: Path, now: float) -> int:
    """Have a packet declared lost that comes 10 ms late, and return its number."""
    late, *others = path.send(5, now)
    path.acknowledge(*others, now=now + RTT)
    path.acknowledge(late, *others, now=now + RTT + 0.01)
    return late


def test_without_reordering_the_standards_thresholds_rule() -> None:
    """RFC 9002 6.1.1 and 6.1.2."""
    path = Path()
    path.warm_up()
    numbers = path.send(5, 2.0)
    path.acknowledge(*numbers[1:], now=2.0 + RTT)
    assert path.lost == [numbers[0]]
    (number,) = path.send(1, 3.0)
    other = path.send(1, 3.01)[0]
    path.acknowledge(other, now=3.01 + RTT)
    assert path.space.loss_time == pytest.approx(3.0 + 9 / 8 * RTT)
    path.recovery.on_loss_detection_timeout(now=3.0 + 9 / 8 * RTT + 1e-6)
    assert path.lost == [numbers[0], number]
    assert path.recovery.late_s == 0


def test_a_packet_that_comes_late_is_waited_for_the_next_time() -> None:
    """RFC 9002 6.1.1: a threshold that follows what was seen."""
    path = Path()
    path.warm_up()
    late = reordered(path, 2.0)
    assert path.lost == [late]
    assert path.recovery.spurious_losses == 1
    assert 0.0125 <= path.recovery.late_s <= 2 * RTT
    next_late = reordered(path, 3.0)
    assert path.lost == [late]
    assert next_late in path.acked


def test_what_is_really_lost_is_found_by_time_while_the_path_reorders() -> None:
    path = Path()
    path.warm_up()
    reordered(path, 2.0)
    path.lost.clear()
    gone, *others = path.send(50, 3.0)
    path.acknowledge(*others, now=3.0 + RTT)
    assert path.lost == []
    at = path.space.loss_time
    assert at is not None
    assert path.recovery.get_loss_detection_time(amplification_limited=False) == at
    assert at <= 3.0 + 3 * RTT + 1e-9
    path.recovery.on_loss_detection_timeout(now=at)
    assert path.lost == [gone]
    assert path.space.loss_time is None


def test_a_mistaken_event_is_undone_when_all_its_packets_have_come() -> None:
    """RFC 9438 4.9.2."""
    path = Path()
    path.warm_up()
    controller = path.recovery._cc
    window = controller.congestion_window
    first, second, *others = path.send(8, 2.0)
    path.acknowledge(*others, now=2.0 + RTT)
    assert path.lost == [first, second]
    assert controller.ssthresh == controller.congestion_window
    path.acknowledge(first, *others, now=2.0 + RTT + 0.005)
    assert controller.ssthresh is not None
    path.acknowledge(first, second, *others, now=2.0 + RTT + 0.006)
    assert controller.congestion_window >= window
    assert controller.ssthresh is None


def test_an_event_with_a_real_loss_is_not_undone() -> None:
    path = Path()
    path.warm_up()
    first, _, *others = path.send(8, 2.0)
    path.acknowledge(*others, now=2.0 + RTT)
    path.acknowledge(first, *others, now=2.0 + RTT + 0.005)
    assert path.recovery._cc.ssthresh is not None


def test_reno_has_nothing_to_undo() -> None:
    path = Path("reno")
    path.warm_up()
    reordered(path, 2.0)
    assert path.recovery.spurious_losses == 1
    assert path.recovery._cc.ssthresh is not None


def test_the_standards_thresholds_return_after_losses_without_a_mistake() -> None:
    """RFC 8985 6.2 step 4."""
    path = Path()
    path.warm_up()
    reordered(path, 2.0)
    now = 3.0
    for _ in range(FORGET_EVENTS + 1):
        assert path.recovery.late_s > 0
        gone, *others = path.send(8, now)
        path.acknowledge(*others, now=now + RTT)
        path.recovery.on_loss_detection_timeout(now=now + 4 * RTT)
        assert path.lost[-1] == gone
        now += 1.0
    assert path.recovery.late_s == 0


def test_packets_sent_with_the_first_acknowledged_one_are_no_congestion() -> None:
    """RFC 9002 7.4: the peer may not have had the keys to read them."""
    path = Path()
    window = path.recovery.congestion_window
    early = path.send(6, 1.0)
    path.acknowledge(5, now=1.0 + RTT)
    assert path.lost == list(early[:3])
    assert path.recovery.congestion_window >= window
    assert path.recovery._cc.ssthresh is None
    assert path.recovery.lost_packets == 0
    later = path.send(6, 2.0)
    path.acknowledge(5, later[-1], now=2.0 + RTT)
    assert path.recovery._cc.ssthresh is not None


def test_the_first_acknowledged_packet_may_be_one_that_a_probe_timeout_repeated() -> None:
    """It was sent before those that were lost."""
    path = Path()
    (first,) = path.send(1, 1.0)
    path.recovery.on_loss_detection_timeout(now=2.0)
    assert path.lost == [first]
    later = path.send(6, 3.0)
    path.acknowledge(first, later[-1], now=3.0 + RTT)
    assert path.lost == [first, *later[:3]]
    assert path.recovery._cc.ssthresh is not None


def test_a_probe_timeouts_repeat_is_no_mistake() -> None:
    path = Path()
    path.warm_up()
    (number,) = path.send(1, 2.0)
    path.recovery.on_loss_detection_timeout(now=4.0)
    assert path.lost == [number]
    path.acknowledge(number, now=4.1)
    assert path.recovery.spurious_losses == 0
    assert path.recovery.late_s == 0


def test_probe_timeouts_are_counted_and_losses_found_by_time_are_none() -> None:
    path = Path()
    path.warm_up()
    path.send(2, 2.0)
    for round_ in range(1, 4):
        path.recovery.on_loss_detection_timeout(now=2.0 + round_)
        assert path.recovery.probe_timeouts == round_
    path.send(2, 7.0)
    path.acknowledge(path.number - 1, now=7.0 + RTT)
    assert path.recovery._pto_count == 0  # aioquic's begins anew
    assert path.space.loss_time is not None
    path.recovery.on_loss_detection_timeout(now=path.space.loss_time + 1e-6)
    assert path.recovery.lost_packets == 1
    assert path.recovery.probe_timeouts == 3


def test_the_loss_of_a_probe_of_the_path_is_not_counted() -> None:
    """RFC 9000 14.4: it says that the path doesn't carry its size."""
    path = Path()
    path.warm_up()
    probes = path.send(2, 2.0)
    for number in probes:  # as `moqt.asyncio.mtu_prober` has it
        path.space.sent_packets[number].in_flight = False
    path.acknowledge(*path.send(4, 2.0), now=2.0 + RTT)
    assert path.lost == list(probes)
    assert path.recovery.lost_packets == 0


def test_round_trips_are_unknown_before_one_was_measured() -> None:
    path = Path()
    assert path.recovery.smoothed_rtt_s is None
    assert path.recovery.least_rtt_s is None
    path.warm_up()
    assert path.recovery.smoothed_rtt_s == pytest.approx(RTT)
    assert path.recovery.least_rtt_s == pytest.approx(RTT)
    path.recovery.forget_round_trips()
    assert path.recovery.smoothed_rtt_s == pytest.approx(RTT)
    assert path.recovery.least_rtt_s is None


def test_what_is_remembered_of_losses_is_bounded() -> None:
    path = Path()
    path.warm_up()
    numbers = path.send(3 * REMEMBERED_PACKETS, 2.0)
    path.acknowledge(numbers[-1], now=2.0 + RTT)
    assert len(path.lost) > 2 * REMEMBERED_PACKETS
    assert len(path.recovery._declared) == REMEMBERED_PACKETS
    for now in (10.0, 11.0):
        path.acknowledge(path.send(1, now)[0], now=now + RTT)
    assert not path.recovery._declared


def test_the_pacer_learns_whether_the_window_doubles() -> None:
    path = Path()
    path.warm_up()
    assert path.pacer.is_doubling
    numbers = path.send(6, 2.0)
    path.acknowledge(*numbers[1:], now=2.0 + RTT)
    numbers = path.send(6, 3.0)
    path.acknowledge(*numbers, now=3.0 + RTT)
    assert not path.pacer.is_doubling


@given(st.data())
def test_each_packet_is_acknowledged_or_lost_once_and_nothing_stays_in_flight(
    data: st.DataObject,
) -> None:
    """On any path: some packets are lost, others overtake each other, and ACKs come in any order
    of the packets' arrival."""
    path = Path()
    arrivals: list[tuple[float, int]] = []
    now = 1.0
    for _ in range(data.draw(st.integers(1, 12))):
        arrivals += [
            (now + RTT + data.draw(st.floats(0.0, 0.3)), number)
            for number in path.send(data.draw(st.integers(1, 12)), now)
            if data.draw(st.integers(0, 9))
        ]
        now += 0.02
    (last,) = path.send(1, now)
    arrivals.append((now + RTT, last))
    come: list[int] = []
    for at, number in sorted(arrivals):
        come.append(number)
        if data.draw(st.booleans()) or number == last:
            path.acknowledge(*sorted(come)[-40:], now=at)
        assert isinstance(path.recovery, AdaptiveRecovery)
        assert isinstance(path.recovery._cc, Cubic)
        assert path.recovery.bytes_in_flight == OCTETS * len(path.space.sent_packets)
        assert path.space.ack_eliciting_in_flight == len(path.space.sent_packets)
        assert path.recovery.congestion_window >= 2 * OCTETS
    for _ in range(200):
        at_ = path.recovery.get_loss_detection_time(amplification_limited=False)
        if at_ is None:
            break
        path.recovery.on_loss_detection_timeout(now=at_)
    assert not path.space.sent_packets
    assert path.recovery.bytes_in_flight == 0
    assert sorted(path.acked + path.lost) == list(range(path.number))


def test_an_ack_of_all_packets_there_can_be_takes_no_longer_than_those_sent() -> None:
    path = Path()
    numbers = path.send(10, 1.0)
    ranges = RangeSet([range(0, (1 << 62) - 1)])
    path.recovery.on_ack_received(ack_rangeset=ranges, ack_delay=0.0, now=1.1, space=path.space)
    assert path.acked == list(numbers)
    (number,) = path.send(1, 2.0)
    path.acknowledge(number, now=2.1)
    assert path.acked[-1] == number
