"""What the project wants to reach, and whether this run did: ratios of figures of the same run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.bench.case import Metric
from tests.bench.records import Spread

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.bench.records import Records

__all__ = ["TARGETS", "Verdict", "verdicts"]

MEMORY_MIB = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One line of the table. `measure` returns None where a case it needs wasn't run."""

    what: str
    bound: float
    is_floor: bool
    """Whether `bound` is the least wanted; else it is the most."""
    measure: Callable[[Records], Spread | None]
    unit: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A target beside what was measured."""

    target: Target
    measured: Spread | None

    @property
    def is_met(self) -> bool | None:
        """Whether the median is within the bound; None: it was not measured."""
        if self.measured is None:
            return None
        if self.target.is_floor:
            return self.measured.median >= self.target.bound
        return self.measured.median <= self.target.bound


def _ratio(name: str, to: str) -> Callable[[Records], Spread | None]:
    return lambda records: records.ratio(name, to)


def _latency(size: str) -> Callable[[Records], Spread | None]:
    """By round: p99 of the paced producer over what it may be, by the layer time at full speed."""

    def measure(records: Records) -> Spread | None:
        paced = records.by_name.get(f"latency-{size}-paced")
        full = records.by_name.get(f"latency-{size}-full")
        if paced is None or full is None:
            return None
        pairs = zip(paced.values(Metric.P99), full.values(Metric.LAYER_TIME), strict=False)
        return Spread.of([p99 / (3 * took + 5) for p99, took in pairs if p99 and took])

    return measure


def _eighth_consumer(records: Records) -> Spread | None:
    """By round: what the 5th to 8th consumer cost each, over what the first one did."""
    rows = []
    for count in (0, 1, 4, 8):
        record = records.by_name.get(f"consumers-{count}")
        if record is None:
            return None
        rows.append(record.values(Metric.SENDER_TOTAL_CPU))
    ratios = []
    for none, one, four, eight in zip(*rows, strict=False):
        if none is None or one is None or four is None or eight is None:
            continue
        ratios.append((eight - four) / 4 / (one - none))
    return Spread.of(ratios)


def _peak(metric: Metric) -> Callable[[Records], Spread | None]:
    """Return the largest of the bulk cases' spreads over the fast path."""

    def measure(records: Records) -> Spread | None:
        names = ("kvcs-1452", "kvcs-8900", "kvcs-discovered")
        spreads = [
            spread
            for name in names
            if (record := records.by_name.get(name)) and (spread := record.spread(metric))
        ]
        return max(spreads, key=lambda spread: spread.median, default=None)

    return measure


def _figure(name: str, metric: Metric) -> Callable[[Records], Spread | None]:
    def measure(records: Records) -> Spread | None:
        record = records.by_name.get(name)
        return None if record is None else record.spread(metric)

    return measure


def _growth(
    kind: str, small: int, large: int, metric: Metric
) -> Callable[[Records], Spread | None]:
    return lambda records: records.ratio(f"growth-{kind}-{large}", f"growth-{kind}-{small}", metric)


FLAT = 1.5
"""A cost per unit that grows by less, over a factor of 8 and more in size, counts as flat."""

TARGETS = (
    Target(
        what="KVCS verified, 1,452 / aioquic raw stream (uvloop, no pacer), 1,452",
        bound=4.0,
        is_floor=True,
        measure=_ratio("kvcs-1452", "aioquic-1452"),
    ),
    Target(
        what="KVCS verified, 1,452 / TLS 1.3 + SHA-256 over TCP (asyncio)",
        bound=0.22,
        is_floor=True,
        measure=_ratio("kvcs-1452", "tls-sha-asyncio"),
    ),
    Target(
        what="KVCS verified, 8,900 / TLS 1.3 + SHA-256 over TCP (asyncio)",
        bound=0.80,
        is_floor=True,
        measure=_ratio("kvcs-8900", "tls-sha-asyncio"),
    ),
    Target(
        what="KVCS verified, discovered size / TLS 1.3 + SHA-256 over TCP (asyncio)",
        bound=1.1,
        is_floor=True,
        measure=_ratio("kvcs-discovered", "tls-sha-asyncio"),
    ),
    Target(
        what="KVCS verified, 1,452 / aiomoqt over draft 22, 1 MiB Objects, hashed",
        bound=1.3,
        is_floor=True,
        measure=_ratio("kvcs-1452", "aiomoqt"),
    ),
    Target(
        what="KVCS verified / moq-rs, 1 MiB Objects, hashed, each at its default datagram size",
        bound=1.0,
        is_floor=True,
        measure=_ratio("kvcs-default", "moq-rs"),
    ),
    Target(
        what="KVCS verified, 64 KiB Objects / 1 MiB Objects",
        bound=0.8,
        is_floor=True,
        measure=_ratio("objects-64k", "objects-1024k"),
    ),
    Target(
        what="layer p99 from put_layer to usable, paced, 1,452"
        " / (3 x layer time at full speed + 5 ms)",
        bound=1.0,
        is_floor=False,
        measure=_latency("1452"),
    ),
    Target(
        what="layer p99 from put_layer to usable, paced, default datagram size"
        " / (3 x layer time at full speed + 5 ms)",
        bound=1.0,
        is_floor=False,
        measure=_latency("default"),
    ),
    Target(
        what="producer CPU for the 8th consumer / for the 1st",
        bound=1.0,
        is_floor=False,
        measure=_eighth_consumer,
        note="(CPU with 8 - with 4) / 4, over CPU with 1 - with none: no digest in either",
    ),
    Target(
        what="producer peak memory beyond the caller's tensors",
        bound=MEMORY_MIB,
        is_floor=False,
        unit=" MiB",
        measure=_peak(Metric.SENDER_PEAK),
        note="the whole process, interpreter and modules included",
    ),
    Target(
        what="consumer peak memory beyond its destination",
        bound=MEMORY_MIB,
        is_floor=False,
        unit=" MiB",
        measure=_peak(Metric.RECEIVER_PEAK),
        note="the whole process, interpreter and modules included",
    ),
    *(
        Target(
            what=f"{side} peak memory on asyncio's own loop",
            bound=MEMORY_MIB,
            is_floor=False,
            unit=" MiB",
            measure=_figure("kvcs-default-asyncio", metric),
            note="as above; the lines before are on uvloop",
        )
        for side, metric in (
            ("producer", Metric.SENDER_PEAK),
            ("consumer", Metric.RECEIVER_PEAK),
        )
    ),
    Target(
        what="1 Gbit/s, 20 ms: share of the link",
        bound=0.90,
        is_floor=True,
        measure=_figure("link-1g-20ms-kvcs", Metric.UTILISATION),
    ),
    Target(
        what="100 Mbit/s, 50 ms, 1 % loss: KVCS / TCP Cubic with TLS on the same link",
        bound=1.0,
        is_floor=True,
        measure=_ratio("link-100m-50ms-loss-kvcs", "link-100m-50ms-loss-tls"),
    ),
    *(
        Target(
            what=f"{side} CPU per {unit}, {large:,} / {small:,} {kind}",
            bound=FLAT,
            is_floor=False,
            measure=_growth(kind, small, large, metric),
        )
        for kind, unit, small, large in (
            ("layers", "layer", 8, 128),
            ("blocks", "Object", 128, 8192),
            ("publications", "retrieval", 1, 10_000),
        )
        for side, metric in (
            ("producer", Metric.SENDER_UNIT_CPU),
            ("consumer", Metric.RECEIVER_UNIT_CPU),
        )
    ),
    Target(
        what="CPU per publish, 10,000 / 100 publications",
        bound=FLAT,
        is_floor=False,
        measure=_growth("publications", 100, 10_000, Metric.PUBLISH_CPU),
    ),
    Target(
        what="CPU per listed name, 10,000 / 100 publications",
        bound=FLAT,
        is_floor=False,
        measure=_growth("publications", 100, 10_000, Metric.LISTED_CPU),
    ),
)


def verdicts(records: Records) -> list[Verdict]:
    """Return each target with what this run measured."""
    return [Verdict(target, target.measure(records)) for target in TARGETS]
