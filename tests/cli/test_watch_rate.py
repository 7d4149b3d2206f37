"""The rate that `kvcs watch` shows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kvcs.cli import watch
from kvcs.cli.watch import RATE_S, _Report

if TYPE_CHECKING:
    import pytest


@dataclass
class Stats:
    octets: int = 0
    layers: int = 0
    objects: int = 0
    missing: int = 0
    retries: int = 0
    rejected: dict[Any, int] = field(default_factory=dict)


@dataclass
class Retrieval:
    stats: Stats = field(default_factory=Stats)


def test_layers_that_become_usable_at_once_share_a_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(watch, "monotonic", lambda: now)
    retrieval: Any = Retrieval()
    report = _Report(retrieval)
    now += 1
    retrieval.stats.octets = 1000
    assert [report.record("layer")["octets_per_s"] for _ in range(3)] == [1000] * 3
    now += RATE_S / 2
    assert report.record("progress")["octets_per_s"] == 500
    now += RATE_S
    assert report.record("progress")["octets_per_s"] == 0  # nothing came for so long
    now += 1
    assert report.record("complete")["octets_per_s"] == 200


def test_the_times_that_are_kept_are_those_of_the_last_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0
    monkeypatch.setattr(watch, "monotonic", lambda: now)
    retrieval: Any = Retrieval()
    report = _Report(retrieval)
    for _ in range(100):
        now += RATE_S / 4
        report.record("progress")
    assert len(report._before) <= 6
