"""The plots of a run: which figures, in which picture."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.bench.case import Metric, Section
from tests.bench.consumers import COUNTS
from tests.bench.growth import BLOCKS, LAYERS, PUBLICATIONS
from tests.bench.objects import SIZES_KIB
from tests.bench.svg import Bar, Line, bars, lines

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tests.bench.records import Record, Records

__all__ = ["draw"]


def draw(records: Records) -> dict[str, str]:
    """Return SVG by file name; a name begins with the section that it belongs to."""
    drawn = {}
    for section in (Section.BULK, Section.LINKS):
        rows = [
            Bar(record.title, spread, "kvcs" in name)
            for name, record in records.section(section).items()
            if (spread := record.spread(Metric.SPEED))
        ]
        if rows:
            rows.sort(key=lambda row: -row.value.median)
            drawn[f"{section.name.lower()}.svg"] = bars(section.value, "MB/s", rows)
    objects = _line(records.by_name, "verified", "objects-{}k", SIZES_KIB, Metric.SPEED)
    if objects.points:
        drawn["objects.svg"] = lines("Object sizes", "KiB an Object", "MB/s", [objects])
    counts = [count for count in COUNTS if count]
    consumers = [
        _line(records.by_name, label, "consumers-{}", counts, metric)
        for label, metric in (
            ("producer", Metric.SENDER_TOTAL_CPU),
            ("all consumers", Metric.RECEIVER_TOTAL_CPU),
        )
    ]
    if consumers[0].points:
        drawn["consumers.svg"] = lines(
            "Several consumers", "consumers", "CPU ms a transfer", consumers
        )
    for kind, sizes, unit in (
        ("layers", LAYERS, "CPU us a layer"),
        ("blocks", BLOCKS, "CPU us an Object"),
        ("publications", PUBLICATIONS, "CPU us a retrieval"),
    ):
        growth = [
            _line(records.by_name, label, f"growth-{kind}-{{}}", sizes, metric)
            for label, metric in (
                ("producer", Metric.SENDER_UNIT_CPU),
                ("consumer", Metric.RECEIVER_UNIT_CPU),
            )
        ]
        if growth[0].points:
            drawn[f"growth-{kind}.svg"] = lines(f"Growth: {kind}", kind, unit, growth)
    return drawn


def _line(
    by_name: Mapping[str, Record],
    label: str,
    name: str,
    sizes: Sequence[int],
    metric: Metric,
) -> Line:
    points = [
        (float(size), spread)
        for size in sizes
        if (record := by_name.get(name.format(size))) and (spread := record.spread(metric))
    ]
    return Line(label, points)
