"""The search for a path's datagram size, probe by probe."""

from __future__ import annotations

import pytest

from moqt.asyncio.path_mtu import (
    BASE_OCTETS,
    MAX_PROBES,
    PAUSE_S,
    RAISE_S,
    SUSPICIOUS_LOSSES,
    PathMtu,
    Probe,
    tolerance,
)


def due(search: PathMtu, now: float = 0.0) -> list[Probe]:
    """Return all probes that it wants to send now."""
    probes = []
    while (probe := search.next_probe(now)) is not None:
        probes.append(probe)
    return probes


def sizes(probes: list[Probe]) -> list[int]:
    return [probe.octets for probe in probes]


def refused(search: PathMtu, interface: int, now: float = 0.0) -> list[Probe]:
    """Send probes through a socket that refuses what its interface doesn't carry."""
    probes = []
    while (probe := search.next_probe(now)) is not None:
        if probe.octets > interface:
            assert search.on_too_large(probe.octets, now) == probe.octets
        else:
            probes.append(probe)
    return probes


def run(search: PathMtu, mtu: int, now: float = 0.0) -> int:
    """Let every probe reach its end at once, until there are none; return how many it took."""
    count = 0
    while probes := due(search, now):
        for probe in probes:
            count += 1
            if probe.octets <= mtu:
                search.on_acked(probe)
            else:
                search.on_lost(probe, now)
    return count


def found(mtu: int, *, limit: int = 65527) -> PathMtu:
    search = PathMtu(limit=limit)
    run(search, mtu)
    assert search.is_settled
    return search


def test_the_first_flight_finds_loopback_in_one_round_trip() -> None:
    search = PathMtu(limit=65527)
    probes = refused(search, 65507)
    assert sizes(probes) == [65488, 1452]
    search.on_acked(probes[0])
    assert search.size == 65488
    assert due(search) == []
    assert search.is_settled


def test_the_first_flight_finds_ethernet_in_one_round_trip() -> None:
    search = PathMtu(limit=65527)
    probes = refused(search, 1472)
    assert sizes(probes) == [1472, 1452]
    for probe in probes:
        search.on_acked(probe)
    assert search.size == 1472
    assert refused(search, 1472) == []
    assert search.is_settled


def test_a_jumbo_interface_on_a_path_of_1500_has_1452_after_one_round_trip() -> None:
    search = PathMtu(limit=65527)
    large, small = refused(search, 8972)
    assert (large.octets, small.octets) == (8952, 1452)
    search.on_acked(small)
    search.on_lost(large, 0.1)
    assert search.size == 1452
    assert not search.is_settled
    run(search, 1472)
    assert search.size == 1472


@pytest.mark.parametrize("mtu", [1200, 1208, 1372, 1452, 1464, 1472, 1500, 4000, 8848, 8972, 65507])
def test_any_path_is_found_but_for_the_tolerance(mtu: int) -> None:
    search = found(mtu)
    assert mtu - tolerance(search.size) <= search.size <= mtu


@pytest.mark.parametrize("limit", [1200, 1201, 1440, 1472, 9000, 16383])
def test_a_limit_is_reached_and_not_exceeded(limit: int) -> None:
    """Peers announce 1440 or 1472 (RFC 9000 18.2); a user may want 9000 exactly."""
    search = found(65527, limit=limit)
    assert search.size == limit
    assert due(search, 10 * RAISE_S) == []


def test_the_peers_limit_counts_as_well() -> None:
    search = PathMtu(limit=9000)
    search.lower_limit(1440)
    search.lower_limit(65527)
    assert max(sizes(due(search))) == 1440


def test_a_size_is_given_up_after_three_lost_probes() -> None:
    """RFC 8899 5.1.2: MAX_PROBES."""
    search = PathMtu(limit=1452)
    for _ in range(MAX_PROBES - 1):
        (probe,) = due(search)
        assert probe.octets == 1452
        search.on_lost(probe, 0.0)
    (probe,) = due(search)
    assert probe.octets == 1452
    search.on_acked(probe)
    assert search.size == 1452

    search = PathMtu(limit=1452)
    for _ in range(MAX_PROBES):
        (probe,) = due(search)
        search.on_lost(probe, 0.0)
    (probe,) = due(search)
    assert BASE_OCTETS < probe.octets < 1452


def test_larger_sizes_are_looked_for_again_after_the_raise_timer() -> None:
    """RFC 8899 5.1.1: PMTU_RAISE_TIMER."""
    search = found(1472)
    assert due(search, RAISE_S - 1) == []
    assert search.is_settled
    run(search, 8972, RAISE_S + 1)
    assert search.size == 8952


def test_a_size_that_was_lost_by_chance_is_confirmed_by_a_larger_one() -> None:
    search = PathMtu(limit=65527)
    large, small = refused(search, 1472)
    for _ in range(MAX_PROBES):
        assert small.octets == 1452
        search.on_lost(small, 0.0)
        (small,) = due(search)
    assert small.octets < 1452
    search.on_acked(large)
    assert search.size == 1472
    assert due(search) == []
    assert search.is_settled


def test_lost_packets_alone_do_not_shrink_datagrams() -> None:
    """Loss is congestion, as a rule: a probe of the size in use tells."""
    search = found(1472)
    search.on_packets_lost([1400] * (SUSPICIOUS_LOSSES - 1))
    assert due(search) == []
    search.on_packets_lost([1400])
    assert search.size == 1472
    (probe,) = due(search)
    assert probe.octets == 1472
    search.on_acked(probe)
    assert search.size == 1472
    search.on_packets_lost([1400] * (SUSPICIOUS_LOSSES - 1))
    assert due(search) == []


def test_a_large_packet_that_arrives_ends_the_suspicion() -> None:
    search = found(8972)
    search.on_packets_lost([8952] * (SUSPICIOUS_LOSSES - 1))
    search.on_packet_acked(8951)  # what was lost is larger
    assert search.is_suspicious
    search.on_packet_acked(8952)
    search.on_packets_lost([8952] * (SUSPICIOUS_LOSSES - 1))
    assert due(search) == []
    search.on_packets_lost([8952])
    (probe,) = due(search)
    assert probe.octets == 8952
    search.on_packet_acked(8952)
    for _ in range(MAX_PROBES):
        search.on_lost(probe, 0.0)
    assert search.size == 8952
    assert search.is_settled


def test_a_packet_of_before_does_not_end_doubt() -> None:
    search = found(8972)
    search.doubt()
    search.on_packet_acked(8952)
    assert search.size == BASE_OCTETS
    assert sizes(due(search)) == [8952]


def test_a_black_hole_leads_back_to_the_base_and_to_a_new_search_after_a_pause() -> None:
    """RFC 8899 4.3."""
    search = found(1472)
    search.on_packets_lost([1400] * SUSPICIOUS_LOSSES)
    for _ in range(MAX_PROBES):
        assert search.size == 1472
        (probe,) = due(search, 5.0)
        search.on_lost(probe, 5.0)
    assert search.size == BASE_OCTETS
    assert due(search, 5.0 + PAUSE_S / 2) == []
    run(search, 1400, 5.0 + PAUSE_S)
    assert 1400 - tolerance(1400) <= search.size <= 1400


def test_timeouts_end_the_use_of_large_datagrams_until_they_are_confirmed() -> None:
    search = found(8972)
    search.doubt()
    assert search.size == BASE_OCTETS
    (probe,) = due(search)
    assert probe.octets == 8952
    search.doubt()
    assert due(search) == []
    search.on_acked(probe)
    assert search.size == 8952


def test_a_refused_packet_that_was_no_probe_does_so_too() -> None:
    search = found(8972)
    assert search.on_too_large(8952, 1.0) is None
    assert search.size == BASE_OCTETS
    (probe,) = due(search, 1.0)
    assert search.on_too_large(8952, 1.0) == probe.octets == 8952
    assert due(search, 1.0) == []
    run(search, 1472, 1.0 + PAUSE_S)
    assert search.size == 1472


def test_a_batch_that_is_refused_says_nothing_of_probes_on_the_way() -> None:
    """Each of its datagrams may be reported: the first takes the size back, and no probe."""
    search = found(8972, limit=20_000)
    search.lower_limit(20_000)
    (probe, *_) = due(search, RAISE_S + 1.0)
    assert probe.octets > 8952
    for _ in range(64):
        assert search.on_too_large(8952, RAISE_S + 1.0) is None
        assert search.size == BASE_OCTETS
    search.on_acked(probe)
    assert search.size == probe.octets


def test_a_refused_probe_of_the_size_in_use_is_a_black_hole_at_once() -> None:
    search = found(1472)
    search.on_packets_lost([1400] * SUSPICIOUS_LOSSES)
    (probe,) = due(search)
    assert search.on_too_large(None, 0.0) == probe.octets == 1472
    assert search.size == BASE_OCTETS
    assert due(search) == []


def test_a_smaller_probe_confirms_nothing_larger() -> None:
    search = PathMtu(limit=65488)
    large, small = due(search)
    search.on_acked(large)
    search.doubt()
    search.on_acked(small)
    assert search.size == small.octets
    (probe,) = due(search)
    assert probe.octets == large.octets
    search.on_acked(probe)
    assert search.size == large.octets


def pause_after_a_black_hole(search: PathMtu, now: float) -> float:
    """Let it find a black hole, and then the size that it had; return the pause between."""
    mtu = search.size
    search.doubt()
    for _ in range(MAX_PROBES):
        (probe,) = due(search, now)
        search.on_lost(probe, now)
    assert search.size == BASE_OCTETS
    pause = PAUSE_S
    while not run(search, mtu, now + pause):
        pause *= 2
    assert search.size == mtu
    return pause


def test_pauses_grow_with_each_black_hole_and_are_forgotten_in_time() -> None:
    search = found(1472)
    assert pause_after_a_black_hole(search, 10.0) == PAUSE_S
    assert pause_after_a_black_hole(search, 20.0) == 2 * PAUSE_S
    assert pause_after_a_black_hole(search, 30.0) == 4 * PAUSE_S
    assert pause_after_a_black_hole(search, 40.0 + RAISE_S) == PAUSE_S


def test_what_was_sent_on_another_path_says_nothing() -> None:
    """RFC 9000 9.4: nothing that is known of one path holds for another."""
    search = PathMtu(limit=65527)
    old = due(search)
    search.reset()
    for probe in old:
        search.on_acked(probe)
        search.on_lost(probe, 0.0)
    assert search.size == BASE_OCTETS
    assert sizes(due(search)) == sizes(old)
