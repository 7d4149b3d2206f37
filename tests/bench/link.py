"""KVCS over emulated links, and a copy by TCP Cubic with TLS 1.3 and SHA-256 over the same.

The link of a round loses the same packets, by their number, for both. Its queue holds one
bandwidth x delay. `link_forward` says what a link is.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

from tests.bench.case import MEBI, Case, CaseFailed, Figures, Metric, Scale, Section
from tests.bench.identity import certificate_files
from tests.bench.kvcs_round import Workload, figures, kvcs_round
from tests.bench.link_forward import LinkSpec
from tests.bench.link_path import Link, emulated
from tests.bench.one_way import WARM_OCTETS, one_way_round
from tests.bench.processes import Round

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["cases", "share_of_udp"]

TCP = "tests.bench.side.tcp_main"

GIGABIT = 1e9
FAST = 100e6

LARGE_OCTETS = 512 * MEBI
"""What a cache of 4,096 tokens takes; for links of 1 Gbit/s."""

LOSSY_OCTETS = 4 * MEBI
"""At 1 % loss a round trip carries some ten packets."""

SHARED_OCTETS = 40 * MEBI
COMPETITOR_OCTETS = 120 * MEBI
"""Of the TCP flow that KVCS joins: it outlasts it, at its fair share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Path:
    """A link, and how much is moved over it."""

    name: str
    title: str
    rate_bits: float
    round_trip_s: float
    octets: int
    loss: float = 0.0
    warm_octets: int = WARM_OCTETS

    def spec(self, seed: int) -> LinkSpec:
        """Return the link of a round."""
        return LinkSpec(
            rate_bits=self.rate_bits,
            delay_s=self.round_trip_s / 2,
            queue_octets=int(self.rate_bits / 8 * self.round_trip_s),
            loss=self.loss,
            seed=seed,
        )


PATHS = (
    Path(
        name="1g-20ms",
        title="1 Gbit/s, 20 ms",
        rate_bits=GIGABIT,
        round_trip_s=0.020,
        octets=LARGE_OCTETS,
    ),
    Path(
        name="1g-100ms",
        title="1 Gbit/s, 100 ms",
        rate_bits=GIGABIT,
        round_trip_s=0.100,
        octets=LARGE_OCTETS,
    ),
    Path(
        name="100m-50ms-loss",
        title="100 Mbit/s, 50 ms, 1 % loss",
        rate_bits=FAST,
        round_trip_s=0.050,
        octets=LOSSY_OCTETS,
        loss=0.01,
        warm_octets=MEBI,  # some losses: when the first one comes is luck
    ),
)

SHARED = Path(
    name="100m-50ms-both",
    title="100 Mbit/s, 50 ms, beside a TCP Cubic flow",
    rate_bits=FAST,
    round_trip_s=0.050,
    octets=SHARED_OCTETS,
    warm_octets=MEBI,
)


def cases(scale: Scale) -> Sequence[Case]:
    """Return KVCS and TLS over each link, and KVCS beside TCP over one."""
    made: list[Case] = []

    def add(name: str, title: str, run: partial[Figures]) -> None:
        made.append(Case(name=f"link-{name}", title=title, section=Section.LINKS, run=run))

    for path in PATHS:
        if scale.is_quick:
            path = replace(path, octets=path.octets // 4)
        add(f"{path.name}-kvcs", f"KVCS verified: {path.title}", partial(_kvcs, path, count(1)))
        add(
            f"{path.name}-tls",
            f"TLS 1.3 + SHA-256 over TCP Cubic: {path.title}",
            partial(_tls, path, count(1)),
        )
    add(SHARED.name, f"KVCS verified: {SHARED.title}", partial(_both, SHARED, count(1)))
    return made


def share_of_udp(samples: Sequence[Sequence[float]], begun_at: float, ended_at: float) -> float:
    """Return UDP's part of the octets between two times; samples are (clock, TCP, UDP)."""
    clocks = [sample[0] for sample in samples]
    first = samples[min(bisect_left(clocks, begun_at), len(samples) - 1)]
    last = samples[min(bisect_left(clocks, ended_at), len(samples) - 1)]
    tcp, udp = last[1] - first[1], last[2] - first[2]
    if tcp + udp <= 0:
        raise CaseFailed("nothing passed the link in the time that was measured")
    return udp / (tcp + udp)


def _workload(path: Path) -> Workload:
    return Workload.of(
        f"link-{path.name}",
        octets=path.octets,
        object_octets=min(MEBI, path.octets // 16),
        warm_octets=path.warm_octets,
    )


def _with_utilisation(path: Path, measured: Figures, link: Link) -> Figures:
    passed = link.figures()
    return {
        **measured,
        Metric.UTILISATION: measured[Metric.SPEED] * 8e6 / path.rate_bits,
        Metric.QUEUE_DROPS: 100 * passed["dropped"] / (passed["segments"] + passed["dropped"]),
    }


def _kvcs(path: Path, seeds: Iterator[int]) -> Figures:
    workload = _workload(path)
    with emulated(path.spec(next(seeds))) as link:
        return _with_utilisation(path, figures(workload, kvcs_round(workload, link=link)), link)


def _tls_plan(path: Path, *, hashed: bool) -> dict[str, Any]:
    return {
        "octets": path.octets,
        "piece_octets": MEBI,
        "warm_octets": min(path.warm_octets, path.octets),
        "congestion": "cubic",
        "tls": True,
        "blocking": True,
        "hashed": hashed,
    }


def _tls(path: Path, seeds: Iterator[int]) -> Figures:
    with emulated(path.spec(next(seeds))) as link:
        measured = one_way_round(TCP, _tls_plan(path, hashed=True), link=link)
        return _with_utilisation(path, measured, link)


def _both(path: Path, seeds: Iterator[int]) -> Figures:
    """KVCS joins a TCP flow that fills the link, and both go on until KVCS is done."""
    workload = _workload(path)
    plan = {**_tls_plan(replace(path, octets=COMPETITOR_OCTETS), hashed=False)}
    with emulated(path.spec(next(seeds))) as link, Round(namespaces=link.namespaces) as other:
        plan |= {**certificate_files(), "host": link.addresses[1]}
        receiver = other.side(TCP, "receive", plan, is_sender=False)
        plan["port"] = receiver.expect("serving")["port"]
        sender = other.side(TCP, "send", plan, is_sender=True)
        receiver.expect("warm")
        sender.tell(do="go")
        outcome = kvcs_round(workload, link=link)
        samples = link.figures()["samples"]
        begun_at, ended_at = outcome.put_at[0], outcome.usable_at[0][-1]
        share = share_of_udp(samples, begun_at, ended_at)
        measured = _with_utilisation(path, figures(workload, outcome), link)
        other.kill()
    return {**measured, Metric.TCP_SHARE: share}
