"""A run of packets in flight is one record, and its fate is that of its packets one by one."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from aioquic.quic.packet_builder import QuicDeliveryState
from aioquic.quic.rangeset import RangeSet
from aioquic.quic.recovery import QuicPacketRecovery
from hypothesis import event, given, settings
from hypothesis import strategies as st

from moqt.asyncio import cubic
from moqt.asyncio.bulk.outstanding import fresh_ranges, numbers_of, sizes_of
from moqt.asyncio.bulk.sent import SentRun
from tests.asyncio.recovery_path import LAST_OCTETS, OCTETS, STEP, Path, RunPath

if TYPE_CHECKING:
    from collections.abc import Sequence

TICK = 1 / 64
"""Times are multiples of it, so that sums of them are exact, whatever is added first."""

RTT = 6 * TICK

EXAMPLES = 300


@pytest.fixture(autouse=True)
def no_leaks() -> None:
    """Nothing here has a task or a socket."""


# --- ranges ---

RANGES = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 8)), max_size=12).map(
    lambda drawn: RangeSet([range(start, start + length) for start, length in drawn])
)


@given(RANGES, RANGES)
def test_fresh_ranges_are_those_that_were_not_known(ranges: RangeSet, known: RangeSet) -> None:
    fresh = fresh_ranges(ranges, known)
    numbers = [number for start, stop in fresh for number in range(start, stop)]
    expected = {n for r in ranges for n in r} - {n for r in known for n in r}
    assert numbers == sorted(expected)


# --- pieces ---


def entries(path: Path) -> list[tuple[int, ...]]:
    return [tuple(numbers_of(packet)) for packet in path.space.sent_packets.values()]


def warm(path: RunPath) -> RunPath:
    path.warm_up()
    assert not path.space.sent_packets
    return path


def test_an_ack_of_the_first_packets_leaves_the_rest_in_its_place() -> None:
    path = warm(RunPath(is_joined=True))
    path.send_run(8, 2.0)
    path.send(1, 2.0)
    path.acknowledge(*range(4), now=2.0 + RTT)
    assert entries(path) == [(4, 5, 6, 7, 8), (9,)]
    assert path.senders[0].acked == list(range(3 * STEP))
    assert path.space.ack_eliciting_in_flight == 2


def test_an_ack_in_the_middle_cuts_a_run_in_three() -> None:
    path = warm(RunPath(is_joined=True))
    path.send_run(8, 2.0, fin=True)
    path.send_run(2, 2.0, sender=1)
    path.acknowledge(0, 3, 4, now=2.0 + RTT)
    assert path.senders[0].lost == list(range(STEP))  # three below the newest: RFC 9002 6.1.1
    assert entries(path) == [(2,), (5, 6, 7, 8), (9, 10)]
    assert path.senders[0].acked == list(range(2 * STEP, 4 * STEP))
    assert path.recovery.bytes_in_flight == 4 * OCTETS + LAST_OCTETS + OCTETS + LAST_OCTETS
    path.acknowledge(*range(5, 9), now=2.0 + RTT)
    assert path.senders[0].ends == [QuicDeliveryState.ACKED]
    assert path.senders[0].lost == list(range(2 * STEP))


def test_an_ack_with_holes_in_one_run_takes_what_is_between_them() -> None:
    path = warm(RunPath(is_joined=True))
    path.recovery.late_s = 1.0
    path.send_run(12, 2.0)
    path.acknowledge(0, 2, 3, 5, 8, 9, now=2.0 + RTT)
    assert entries(path) == [(1,), (4,), (6, 7), (10, 11, 12)]
    path.acknowledge(0, *range(2, 13), now=2.0 + RTT)
    assert entries(path) == [(1,)]
    assert path.space.ack_eliciting_in_flight == 1
    assert path.recovery.bytes_in_flight == OCTETS


def test_a_probe_timeout_repeats_one_packet() -> None:
    """RFC 9002 6.2.4."""
    path = warm(RunPath(is_joined=True))
    path.send_run(20, 2.0)
    path.recovery.on_loss_detection_timeout(now=4.0)
    assert path.senders[0].lost == list(range(STEP))
    assert entries(path) == [tuple(range(2, 21))]
    assert path.space.ack_eliciting_in_flight == 1
    assert path.recovery.lost_packets == 0
    for count in range(2, 21):
        path.recovery.on_loss_detection_timeout(now=4.0 + count)
        assert path.senders[0].lost == list(range(min(count * STEP, 20 * STEP - 1)))
    assert entries(path) == []
    assert path.space.ack_eliciting_in_flight == path.recovery.bytes_in_flight == 0


@pytest.mark.parametrize("algorithm", [cubic.NAME, "reno"])
def test_runs_lost_over_a_long_time_are_persistent_congestion(algorithm: str) -> None:
    """RFC 9002 7.6.2; unless something between them arrived."""
    for acked, is_persistent in ((), True), ((10, 20, 30), False):
        path = warm(RunPath(is_joined=True, algorithm=algorithm))
        for second in range(4):
            path.send_run(10, 2.0 + second)
        (last,) = path.send(1, 5.5)
        path.acknowledge(*acked, last, now=5.5 + RTT)
        window = path.recovery.congestion_window
        controller: Any = path.recovery._cc
        assert (window == 2 * controller._max_datagram_size) == is_persistent


def test_an_entry_knows_the_sizes_of_its_datagrams() -> None:
    path = warm(RunPath(is_joined=True))
    sizes: list[int] = []
    path.recovery.on_lost = sizes.extend
    newest: list[int] = []
    path.recovery.on_acked = newest.append
    path.send_run(3, 2.0)
    path.send_run(6, 2.0)
    path.acknowledge(9, now=2.0 + RTT)
    assert newest == [LAST_OCTETS]
    assert sizes == [OCTETS, OCTETS, LAST_OCTETS, OCTETS, OCTETS, OCTETS]
    path.send_run(3, 3.0)
    path.acknowledge(10, 11, now=3.0 + RTT)
    assert newest == [LAST_OCTETS, OCTETS]


def test_a_run_is_cut_where_it_has_packets_on_both_sides() -> None:
    path = RunPath(is_joined=True)
    path.send_run(4, 1.0)
    run: Any = path.space.sent_packets[3]
    assert isinstance(run, SentRun)
    for number in (0, 4):
        with pytest.raises(AssertionError):
            run.cut(number)
    lower = run.cut(3)
    assert (lower.sizes, run.sizes) == ([OCTETS] * 3, [LAST_OCTETS])


# --- as single packets ---


def values(of: object) -> dict[str, Any]:
    return {
        name: value
        for name, value in vars(of).items()
        if isinstance(value, int | float | None) and name != "ack_eliciting_in_flight"
    }


def state(path: RunPath) -> dict[str, Any]:
    """All that does not depend on how packets in flight are recorded."""
    packets = path.space.sent_packets.values()
    loss = path.recovery
    assert path.space.ack_eliciting_in_flight == sum(packet.is_ack_eliciting for packet in packets)
    assert list(path.space.sent_packets) == [packet.packet_number for packet in packets]
    sizes = [size for packet in packets if packet.in_flight for size in sizes_of(packet)]
    assert loss.bytes_in_flight == sum(sizes)
    return {
        "numbers": [number for packet in packets for number in numbers_of(packet)],
        "sizes": sizes,
        "single": (path.acked, path.lost),
        "streams": [(stream.acked, stream.lost, stream.ends) for stream in path.senders],
        "space": values(path.space),
        "recovery": values(loss),
        "controller": values(loss._cc),
        "declared": list(loss._declared.items()),
        "timer": loss.get_loss_detection_time(amplification_limited=False),
    }


COUNTS = st.one_of(st.integers(1, 6), st.integers(1, 40))
SENDING = st.tuples(
    st.sampled_from(["run", "run", "run", "single", "probe"]), COUNTS, st.integers(0, 1)
)
ACKED = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 30)), min_size=1, max_size=5)
"""How far below the newest packet a range begins, and how long it is."""

STEPS = st.lists(
    st.tuples(
        st.integers(0, 8),
        st.lists(SENDING, max_size=3),
        st.one_of(st.none(), st.just("timer"), ACKED, ACKED),
    ),
    min_size=4,
    max_size=25,
)


def send(path: RunPath, sending: Sequence[tuple[str, int, int]], now: float) -> None:
    for kind, count, sender in sending:
        if kind == "run":
            path.send_run(count, now, sender=sender, fin=count % 5 == 0)
            continue
        for number in path.send(1 if kind == "probe" else min(count, 3), now):
            if kind == "probe":  # as `moqt.asyncio.mtu_prober` has it
                path.space.sent_packets[number].in_flight = False
                path.recovery._cc.bytes_in_flight -= OCTETS


def acknowledged(acked: Sequence[tuple[int, int]], number: int) -> RangeSet:
    ranges = RangeSet()
    for below, length in acked:
        start = max(0, number - 1 - below)
        ranges.add(start, min(start + length, number + 3))  # some that were never sent
    return ranges


def acknowledge(path: RunPath, ranges: RangeSet, now: float) -> None:
    path.recovery.on_ack_received(ack_rangeset=ranges, ack_delay=0.0, now=now, space=path.space)


@pytest.mark.parametrize("is_reordering", [False, True])
@settings(max_examples=EXAMPLES)
@given(STEPS)
def test_runs_are_acknowledged_and_lost_as_their_packets_would_be(
    is_reordering: bool, steps: list[tuple[int, list[tuple[str, int, int]], Any]]
) -> None:
    """Octets in flight, losses, mistakes, timers, windows; packets of aioquic's between them."""
    ours, theirs = (RunPath(is_joined=is_joined) for is_joined in (True, False))
    told: tuple[list[Any], list[Any]] = ([], [])
    for path, heard in zip((ours, theirs), told, strict=True):
        path.recovery.on_lost = heard.append
        path.recovery.on_acked = heard.append
        if is_reordering:
            path.recovery.late_s = RTT / 2
    now = 1.0
    for ticks, sending, then in steps:
        now += ticks * TICK
        for path in (ours, theirs):
            send(path, sending, now)
        timer_at = ours.recovery.get_loss_detection_time(amplification_limited=False)
        if then == "timer" and timer_at is not None:
            event("loss timer" if ours.space.loss_time is not None else "probe timeout")
            now = max(now, timer_at)
            for path in (ours, theirs):
                path.recovery.on_loss_detection_timeout(now=now)
        elif isinstance(then, list) and ours.number:
            ranges = acknowledged(then, ours.number)
            for path in (ours, theirs):
                acknowledge(path, ranges, now + RTT)
        assert state(ours) == state(theirs)
        assert told[0] == told[1]
    event(f"spurious: {bool(ours.recovery.spurious_losses)}")
    event(f"lost: {bool(ours.recovery.lost_packets)}")
    for path in (ours, theirs):
        path.recovery.discard_space(path.space)
        assert path.recovery.bytes_in_flight == 0


@settings(max_examples=EXAMPLES)
@given(STEPS)
def test_an_ack_has_the_same_effect_as_on_aioquics_own_recovery(
    steps: list[tuple[int, list[tuple[str, int, int]], Any]],
) -> None:
    """But for packets that were lost by mistake, and for the first ones, which ours knows. A peer
    may acknowledge what was never sent: aioquic doesn't mind."""
    ours, theirs = (RunPath(is_joined=is_joined) for is_joined in (True, False))
    for path in (ours, theirs):
        path.recovery._find_mistakes = lambda *_: None  # type: ignore[method-assign]
        path.recovery._first_acked = -1
    stock: Any = theirs.recovery
    for name in ("on_ack_received", "_detect_loss", "_in_persistent_congestion"):
        setattr(stock, name, partial(getattr(QuicPacketRecovery, name), stock))
    now = 1.0
    for ticks, sending, then in steps:
        now += ticks * TICK
        for path in (ours, theirs):
            send(path, sending, now)
        if isinstance(then, list) and ours.number:
            ranges = acknowledged(then, ours.number)
            for path in (ours, theirs):
                acknowledge(path, ranges, now + RTT)
        assert state(ours) == state(theirs)
