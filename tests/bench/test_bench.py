"""The benchmarks run and report. Nothing here looks at how long anything takes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import pytest

from moqt.asyncio.config import LARGEST_DATAGRAM_OCTETS
from tests.bench import report, runner
from tests.bench.__main__ import main
from tests.bench.case import MEBI, Case, CaseFailed, Figures, Metric, NotRun, Scale, Section
from tests.bench.catalogue import all_cases
from tests.bench.consumers import COUNTERS
from tests.bench.records import Records
from tests.bench.targets import TARGETS, verdicts

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def test_two_cases_of_one_round_end_up_in_table_json_and_plot(tmp_path: Path) -> None:
    names = ["kvcs-1452", "tls-sha-asyncio"]
    only = ["--only", *names, "--rounds", "1", "--mebioctets", "1", "--out", str(tmp_path)]

    assert main(only) == 0

    told = json.loads((tmp_path / "results.json").read_text())
    assert list(told["cases"]) == names
    for name in names:
        (figures,) = told["cases"][name]["rounds"]
        assert figures["MB/s"] > 0
        assert figures["sender CPU s/GB"] > 0
    table = (tmp_path / "README.md").read_text()
    assert all(f"| `{name}` |" in table for name in names)
    assert "KVCS verified, 1,452 / TLS 1.3 + SHA-256 over TCP (asyncio) | at least 0.22 |" in table
    assert ElementTree.parse(tmp_path / "bulk.svg").getroot().tag.endswith("svg")


def test_what_a_consumer_costs_the_producer_is_counted_by_consumer(tmp_path: Path) -> None:
    names = ["consumers-0", "consumers-2"]
    only = ["--only", *names, "--rounds", "1", "--mebioctets", "8", "--out", str(tmp_path)]

    assert main(only) == 0

    told = json.loads((tmp_path / "results.json").read_text())["cases"]
    (alone,), (counted,) = (told[name]["rounds"] for name in names)
    assert not {metric.value for metric in COUNTERS} & alone.keys()
    assert counted[Metric.DATAGRAMS_SENT.value] >= MEBI / LARGEST_DATAGRAM_OCTETS
    assert 0 <= counted[Metric.PACKETS_LOST.value] < counted[Metric.DATAGRAMS_SENT.value]
    assert counted[Metric.DATAGRAMS_RECEIVED.value] > 0
    assert counted[Metric.WAKEUPS.value] > 0
    table = (tmp_path / "README.md").read_text()
    assert all(f"| {metric.value} |" in table for metric in COUNTERS)


def test_the_report_is_written_again_from_what_was_stored(tmp_path: Path) -> None:
    records = runner.run([_case("one", lambda: {Metric.SPEED: 2.0})], rounds=2, tell=_silent)
    written = report.Run("2026-01-01 00:00", 3.0, "", {"cores": "two"}, records)
    report.write(written, tmp_path)
    first = (tmp_path / "README.md").read_text()

    assert main(["--render", "--out", str(tmp_path)]) == 0

    assert (tmp_path / "README.md").read_text() == first


def test_a_case_that_fails_or_cannot_be_run_leaves_the_others_alone() -> None:
    def fail() -> Figures:
        raise CaseFailed("broken")

    def refuse() -> Figures:
        raise NotRun("nothing to run it with")

    cases = [
        _case("failing", fail),
        _case("refusing", refuse),
        _case("working", lambda: {Metric.SPEED: 1.0}),
    ]

    records = runner.run(cases, rounds=3, tell=_silent)

    assert records.median("working", Metric.SPEED) == 1.0
    assert records.by_name["refusing"].not_run == "not run: nothing to run it with"
    assert len(records.by_name["failing"].failures) == runner.MAX_FAILURES


def test_rounds_are_interleaved_and_begin_with_another_case_each() -> None:
    order: list[str] = []

    def note(name: str) -> Callable[[], Figures]:
        def run() -> Figures:
            order.append(name)
            return {Metric.SPEED: 1.0}

        return run

    runner.run([_case(name, note(name)) for name in "abc"], rounds=3, tell=_silent)

    assert "".join(order) == "abcbcacab"


def test_ratios_are_of_figures_of_one_round() -> None:
    speeds = {"fast": iter([4.0, 30.0, 8.0]), "slow": iter([2.0, 10.0, 2.0])}
    cases = [
        _case(name, lambda name=name: {Metric.SPEED: next(speeds[name])})  # type: ignore[misc]
        for name in speeds
    ]

    records = runner.run(cases, rounds=3, tell=_silent)

    ratio = records.ratio("fast", "slow")
    assert ratio is not None
    assert (ratio.low, ratio.median, ratio.high) == (2.0, 3.0, 4.0)


def test_a_round_that_failed_has_no_ratio_but_leaves_those_of_other_rounds() -> None:
    failures = iter([CaseFailed("once")])

    def run() -> Figures:
        for failure in failures:
            raise failure
        return {Metric.SPEED: 6.0}

    records = runner.run(
        [_case("shaky", run), _case("steady", lambda: {Metric.SPEED: 2.0})], rounds=2, tell=_silent
    )

    ratio = records.ratio("shaky", "steady")
    assert ratio is not None
    assert (ratio.low, ratio.high) == (3.0, 3.0)


@pytest.mark.parametrize(("ratio", "is_met"), [(4.0, True), (3.9, False)])
def test_a_target_is_judged_by_its_bound(ratio: float, is_met: bool) -> None:
    records = runner.run(
        [
            _case("kvcs-1452", lambda: {Metric.SPEED: ratio}),
            _case("aioquic-1452", lambda: {Metric.SPEED: 1.0}),
        ],
        rounds=1,
        tell=_silent,
    )

    judged = verdicts(records)[0]

    assert judged.target is TARGETS[0]
    assert judged.is_met is is_met
    assert {verdict.is_met for verdict in verdicts(Records())} == {None}


def test_each_target_is_measured_by_a_whole_run() -> None:
    """A case that a target names but nobody runs would leave it unmeasured for ever."""
    records = Records()
    for case in all_cases(Scale()):
        record = records.record(case)
        record.rounds = [dict.fromkeys(Metric, float(number)) for number in (2, 3)]
    ones = records.by_name["consumers-1"]
    ones.rounds = [{Metric.SENDER_TOTAL_CPU: 9.0}] * 2  # more than with none

    assert [one.target.what for one in verdicts(records) if one.measured is None] == []


def test_names_of_cases_are_unique() -> None:
    names = [case.name for case in all_cases(Scale())]

    assert len(set(names)) == len(names)


def _case(name: str, run: Callable[[], Figures]) -> Case:
    return Case(name=name, title=f"the {name} one", section=Section.BULK, run=run)


def _silent(line: str) -> None:
    """Take a line and say nothing."""
