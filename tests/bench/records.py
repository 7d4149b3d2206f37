"""What came of all rounds: medians, spreads, and ratios of figures that were taken together."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any

from tests.bench.case import Metric, Section

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.bench.case import Case, Figures

__all__ = ["Record", "Records", "Spread"]


@dataclass(frozen=True, slots=True)
class Spread:
    """A figure over the rounds."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: list[float]) -> Spread | None:
        """Return the spread of values; None: there are none."""
        return cls(median(values), min(values), max(values)) if values else None


@dataclass(slots=True)
class Record:
    """One case in all rounds."""

    title: str
    section: Section
    rounds: list[Figures | None] = field(default_factory=list)
    """None for a round that failed."""
    not_run: str | None = None
    """Why the case was not run."""
    failures: list[str] = field(default_factory=list)

    def values(self, metric: Metric) -> list[float | None]:
        """Return a figure by round."""
        return [None if figures is None else figures.get(metric) for figures in self.rounds]

    def spread(self, metric: Metric) -> Spread | None:
        """Return a figure over the rounds that have it."""
        return Spread.of([value for value in self.values(metric) if value is not None])

    @property
    def metrics(self) -> set[Metric]:
        """What was measured."""
        return {metric for figures in self.rounds if figures for metric in figures}


class Records:
    """All cases of a run by name."""

    def __init__(self) -> None:
        self.by_name: dict[str, Record] = {}

    def record(self, case: Case) -> Record:
        """Return the record of a case, made if need be."""
        return self.by_name.setdefault(case.name, Record(case.title, case.section))

    def section(self, section: Section) -> dict[str, Record]:
        """Return the records of a section."""
        return {name: one for name, one in self.by_name.items() if one.section is section}

    def median(self, name: str, metric: Metric) -> float | None:
        """Return a figure's median; None: it was not measured."""
        record = self.by_name.get(name)
        spread = None if record is None else record.spread(metric)
        return None if spread is None else spread.median

    def ratio(self, name: str, to: str, metric: Metric = Metric.SPEED) -> Spread | None:
        """Return the spread of the ratios `name` / `to`, each of one round; None without any."""
        one, other = self.by_name.get(name), self.by_name.get(to)
        if one is None or other is None:
            return None
        pairs = zip(one.values(metric), other.values(metric), strict=False)
        return Spread.of([a / b for a, b in pairs if a is not None and b])

    def dump(self) -> dict[str, Any]:
        """Return everything in JSON's types."""
        return {
            name: {
                "title": record.title,
                "section": record.section.value,
                "rounds": [
                    None if figures is None else {m.value: v for m, v in figures.items()}
                    for figures in record.rounds
                ],
                "not_run": record.not_run,
                "failures": record.failures,
            }
            for name, record in self.by_name.items()
        }

    @classmethod
    def load(cls, dumped: Mapping[str, Any]) -> Records:
        """Return what `dump` gave."""
        records = cls()
        for name, one in dumped.items():
            records.by_name[name] = Record(
                one["title"],
                Section(one["section"]),
                [
                    None if f is None else {Metric(m): v for m, v in f.items()}
                    for f in one["rounds"]
                ],
                one["not_run"],
                one["failures"],
            )
        return records
