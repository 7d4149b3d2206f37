"""Run the benchmarks: `python -m tests.bench [--only NAME ...] [--rounds N] [--quick]`."""

from __future__ import annotations

import argparse
import compileall
import shlex
import sys
import time
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path

from tests.bench import machine, report, runner
from tests.bench.case import CACHE_OCTETS, MEBI, Scale
from tests.bench.catalogue import all_cases
from tests.bench.processes import ROOT
from tests.bench.targets import verdicts

PUBLISHED = ROOT / "docs" / "benchmarks"
"""Where a whole run is written."""

PARTIAL = ROOT / "build" / "benchmarks"
"""Where any other run is, so that a whole one is only replaced by a whole one."""

QUICK_OCTETS = 32 * MEBI

WHOLE_ROUNDS = 5
"""Rounds of a whole run, at least."""


def arguments() -> argparse.ArgumentParser:
    """Return what can be asked for."""
    parser = argparse.ArgumentParser(prog="make bench BENCH_ARGS=...", description=__doc__)
    parser.add_argument(
        "--only",
        nargs="+",
        default=[],
        metavar="NAME",
        help="these cases: names, sections, or patterns such as 'kvcs-*'",
    )
    parser.add_argument("--rounds", type=int, help="default: 5, or 1 with --quick")
    parser.add_argument("--mebioctets", type=int, help="of one bulk transfer; default: 512")
    parser.add_argument("--quick", action="store_true", help="small sizes, one round")
    parser.add_argument("--list", action="store_true", help="name the cases and end")
    parser.add_argument("--out", type=Path, help="the folder to write to")
    parser.add_argument("--peers-python", help="Python with aiomoqt and moq-rs")
    parser.add_argument(
        "--profile", action="store_true", help="leave profiles of kvcs; all figures are slower"
    )
    parser.add_argument(
        "--render", action="store_true", help="write the report of the last whole run again"
    )
    return parser


def main(argv: list[str]) -> int:
    """Run, print, write. Returns 1 when a case failed."""
    given = arguments().parse_args(argv)
    if given.render:
        folder = given.out or PUBLISHED
        report.write(report.load(folder), folder)
        return 0
    folder = given.out or (PARTIAL if _unusual(given) else PUBLISHED)
    folder.mkdir(parents=True, exist_ok=True)
    octets = QUICK_OCTETS if given.quick else CACHE_OCTETS
    scale = Scale(
        octets=given.mebioctets * MEBI if given.mebioctets else octets,
        peers_python=given.peers_python,
        is_quick=given.quick,
        profile_dir=str(folder) if given.profile else None,
    )
    cases = [
        case
        for case in all_cases(scale)
        if not given.only
        or any(
            fnmatchcase(case.name, pattern) or pattern.upper() == case.section.name
            for pattern in given.only
        )
    ]
    if given.list or not cases:
        for case in all_cases(scale):
            print(f"{case.section.name.lower():10s} {case.name:28s} {case.title}")
        return 0 if given.list else 2
    _compile()
    facts = machine.describe()
    print("\n".join(f"{name}: {fact}" for name, fact in facts.items()))
    begun, clock = datetime.now(UTC), time.monotonic()
    records = runner.run(
        cases,
        rounds=given.rounds or (1 if given.quick else WHOLE_ROUNDS),
        tell=lambda line: print(line, flush=True),
    )
    run = report.Run(
        f"{begun:%Y-%m-%d %H:%M}",
        time.monotonic() - clock,
        _unusual(given),
        facts,
        records,
    )
    print()
    print(report.markdown_of_targets([one for one in verdicts(records) if one.measured]))
    print()
    for path in report.write(run, folder):
        print(f"written: {path.relative_to(ROOT) if path.is_relative_to(ROOT) else path}")
    return 1 if any(record.failures for record in records.by_name.values()) else 0


def _compile() -> None:
    """Write byte code, as an installation does: else each process compiles the sources, whatever
    PYTHONDONTWRITEBYTECODE says of it, and has a MiB more from then on."""
    for package in ("moqt", "kvcs", "tests/bench"):
        compileall.compile_dir(ROOT / package, quiet=1)


def _unusual(given: argparse.Namespace) -> str:
    """Return the arguments unless they are those of a whole run."""
    is_whole = not (given.only or given.quick or given.mebioctets or given.profile)
    if is_whole and (given.rounds is None or given.rounds >= WHOLE_ROUNDS):
        return ""
    told = {
        name: value
        for name, value in vars(given).items()
        if value and name not in ("out", "peers_python")
    }
    return " ".join(
        f"--{name}" if value is True else f"--{name} {_joined(value)}"
        for name, value in told.items()
    )


def _joined(value: object) -> str:
    return shlex.join(value) if isinstance(value, list) else str(value)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
