"""Runs cases interleaved: round 1 of each case of a section, then round 2 of each."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from tests.bench.case import CaseFailed, Metric, NotRun, Section
from tests.bench.records import Records

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.bench.case import Case, Figures
    from tests.bench.records import Record

__all__ = ["run"]

MAX_FAILURES = 2
"""A case that failed so often is not tried again."""


def run(cases: Sequence[Case], *, rounds: int, tell: Callable[[str], None]) -> Records:
    """Run all rounds of all cases, section by section; `tell` is given a line for each.

    Every round begins with another case than the one before, so that none always comes first.
    """
    records = Records()
    for case in cases:
        records.record(case)
    for section in Section:
        there = [case for case in cases if case.section is section]
        for number in range(rounds if there else 0):
            tell(f"{section.value}, round {number + 1} of {rounds}")
            shift = number % len(there)
            for case in there[shift:] + there[:shift]:
                record = records.record(case)
                if number < (case.rounds or rounds) and _is_worthwhile(record):
                    _run_round(case, record, number, tell)
    return records


def _is_worthwhile(record: Record) -> bool:
    return record.not_run is None and len(record.failures) < MAX_FAILURES


def _run_round(case: Case, record: Record, number: int, tell: Callable[[str], None]) -> None:
    begun_at = time.monotonic()
    figures: Figures | None = None
    try:
        figures = case.run()
        told = _in_short(figures)
    except NotRun as reason:
        record.not_run = told = f"not run: {reason}"
    except CaseFailed as failure:
        record.failures.append(f"round {number + 1}: {failure}")
        told = f"FAILED: {failure}"
    # By its number, so that figures of one round are found together whatever failed.
    record.rounds.extend([None] * (number + 1 - len(record.rounds)))
    record.rounds[number] = figures
    tell(f"  {case.name:28s} {time.monotonic() - begun_at:5.1f} s  {told}")


def _in_short(figures: Figures) -> str:
    shown = [
        f"{figures[metric]:.4g} {metric.value}"
        for metric in (
            Metric.SPEED,
            Metric.OBJECTS,
            Metric.SENDER_CPU,
            Metric.RECEIVER_CPU,
            Metric.P99,
            Metric.SENDER_UNIT_CPU,
            Metric.RECEIVER_UNIT_CPU,
            Metric.SENDER_TOTAL_CPU,
            Metric.UTILISATION,
        )
        if metric in figures
    ]
    return ", ".join(shown)
