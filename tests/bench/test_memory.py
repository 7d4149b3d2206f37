"""What a process has in memory by stage: each stage is there, and adds to the one before."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from tests.bench import memory
from tests.bench.__main__ import main
from tests.bench.case import CaseFailed, Metric, NotRun, Scale

if TYPE_CHECKING:
    from pathlib import Path

STATUS = "Name:\tpython\nVmRSS:\t    2048 kB\nRssFile:\t     512 kB\n"


def test_each_stage_has_more_in_memory_than_the_one_before(tmp_path: Path) -> None:
    assert main(["--only", "memory", "--rounds", "1", "--out", str(tmp_path)]) == 0

    cases = json.loads((tmp_path / "results.json").read_text())["cases"]
    assert list(cases) == [case.name for case in memory.cases(Scale())]
    rounds = [case["rounds"][0] for case in cases.values()]
    for metric in (Metric.SENDER_RESIDENT, Metric.RECEIVER_RESIDENT):
        resident = [figures[metric.value] for figures in rounds]
        assert all(before < after for before, after in pairwise(resident)), resident
    assert all(0 < one["producer files MiB"] < one["producer resident MiB"] for one in rounds)
    assert "## Resident memory" in (tmp_path / "README.md").read_text()


def test_the_tensors_are_not_counted() -> None:
    assert memory.figures(STATUS, STATUS, tensors=1 << 20) == {
        Metric.SENDER_RESIDENT: 1.0,
        Metric.SENDER_FILES: 0.5,
        Metric.RECEIVER_RESIDENT: 1.0,
        Metric.RECEIVER_FILES: 0.5,
    }


def test_a_status_without_what_is_wanted_fails_the_round() -> None:
    with pytest.raises(CaseFailed, match="has no VmRSS"):
        memory.figures("Name:\tpython\n", STATUS)


def test_a_process_that_fails_says_why() -> None:
    with pytest.raises(CaseFailed, match="ModuleNotFoundError: No module named 'no_such_module'"):
        memory.status_after(["import no_such_module"])


def test_a_system_that_does_not_tell_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(memory, "STATUS", tmp_path / "status")

    with pytest.raises(NotRun, match=f"there is no {tmp_path}/status here"):
        memory.status_after(["pass"])
