"""The search for the datagram size: on any path it ends just below what the path carries."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain, repeat

from hypothesis import given, settings
from hypothesis import strategies as st

from moqt.asyncio.path_mtu import BASE_OCTETS, RAISE_S, PathMtu, Probe, tolerance

ROUND_S = 0.1
ROUNDS = 400
"""Enough for a search in which each size is tried three times, and for the pause before it."""

PACKETS_A_ROUND = 4
TIMEOUTS_UNTIL_SUSPICION = 2


@dataclass(frozen=True)
class Phase:
    """For a while, the path is like this."""

    mtu: int
    interface: int
    """The socket refuses what is larger."""
    has_small_packets: bool
    """Something always gets through, so there are no timeouts."""
    bad_luck: list[bool]
    """Rounds in which everything is lost."""


class Traffic:
    """A sender that fills its packets, round by round, with the search at its side."""

    def __init__(self, limit: int) -> None:
        self.search = PathMtu(limit=limit)
        self.now = 0.0
        self.timeouts = 0
        self.confirmed = {BASE_OCTETS}

    def run(self, phase: Phase) -> None:
        luck = chain(phase.bad_luck, repeat(False))
        for _ in range(ROUNDS):
            self.round(phase, is_lost=next(luck))
            self.now += ROUND_S

    def round(self, phase: Phase, *, is_lost: bool) -> None:
        search = self.search
        carried = 0 if is_lost else min(phase.mtu, phase.interface)
        if self.timeouts >= TIMEOUTS_UNTIL_SUSPICION:
            search.doubt()
        probes = [] if self.timeouts else self.probes(phase)
        assert search.size in self.confirmed
        data = search.size
        if data > phase.interface:
            search.on_too_large(data, self.now)
        elif data > carried and data > BASE_OCTETS:
            search.on_packets_lost([data] * PACKETS_A_ROUND)
        else:
            search.on_packet_acked(data)
        arrives = data <= carried or (phase.has_small_packets and not is_lost)
        self.timeouts = 0 if arrives else self.timeouts + 1
        for probe in probes:
            if probe.octets <= carried:
                self.confirmed.add(probe.octets)
                search.on_acked(probe)
            else:
                search.on_lost(probe, self.now)

    def probes(self, phase: Phase) -> list[Probe]:
        probes = []
        while (probe := self.search.next_probe(self.now)) is not None:
            assert probe.octets > BASE_OCTETS
            if probe.octets > phase.interface:
                assert self.search.on_too_large(probe.octets, self.now) == probe.octets
            else:
                probes.append(probe)
            assert len(probes) <= 2
        return probes


sizes = st.one_of(
    st.integers(BASE_OCTETS, 1600), st.integers(BASE_OCTETS, 65527), st.just(65527), st.just(1472)
)
phases = st.builds(
    Phase,
    mtu=sizes,
    interface=sizes,
    has_small_packets=st.booleans(),
    bad_luck=st.lists(st.booleans(), max_size=30),
)


@settings(deadline=None)
@given(limit=sizes, path=st.lists(phases, min_size=1, max_size=4))
def test_any_path_is_found_however_it_changes(limit: int, path: list[Phase]) -> None:
    traffic = Traffic(limit)
    search = traffic.search
    for phase in path:
        traffic.run(phase)
        traffic.now += RAISE_S  # what has become larger is found then
        traffic.run(Phase(phase.mtu, phase.interface, phase.has_small_packets, []))
        carried = min(phase.mtu, phase.interface, limit)
        assert search.is_settled or search.size == BASE_OCTETS == carried
        assert carried - tolerance(search.size) <= search.size <= carried


@settings(deadline=None)
@given(
    limit=sizes,
    news=st.lists(
        st.one_of(
            st.tuples(st.sampled_from(["acked", "lost"]), st.integers(0, 3)),
            st.tuples(st.sampled_from(["refused", "doubt", "packets", "arrived", "reset", "wait"])),
        ),
        max_size=200,
    ),
)
def test_no_order_of_news_makes_it_use_what_was_not_confirmed(
    limit: int, news: list[tuple[str, int] | tuple[str]]
) -> None:
    search = PathMtu(limit=limit)
    now = 0.0
    out: list[Probe] = []
    confirmed = {BASE_OCTETS}
    for kind, *which in news:
        while (probe := search.next_probe(now)) is not None:
            assert BASE_OCTETS < probe.octets <= limit
            out.append(probe)
        if kind in ("acked", "lost") and out:
            probe = out.pop(which[0] % len(out))
            if kind == "acked":
                confirmed.add(probe.octets)
                search.on_acked(probe)
            else:
                search.on_lost(probe, now)
        elif kind == "refused":
            search.on_too_large(None, now)
        elif kind == "doubt":
            search.doubt()
        elif kind == "packets":
            search.on_packets_lost([search.size] * 7)
        elif kind == "arrived":
            search.on_packet_acked(search.size)
        elif kind == "reset":
            search.reset()
            confirmed = {BASE_OCTETS}
            assert search.size == BASE_OCTETS
        else:
            now += RAISE_S / 3
        assert search.size in confirmed
