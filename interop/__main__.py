"""`python -m interop`: run the cases, compare with what is expected, write the matrix."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from interop.harness.cases import Case, Outcome, Result
from interop.harness.expected import Expected, load
from interop.harness.matrix import PeerReport, write
from interop.harness.one import registry
from interop.harness.stage import ROOT

PEERS = ("aiomoqt", "moq_rs")
LOGS = ROOT.parent / "build" / "interop"
PARALLEL = 2
"""Cases at a time."""

GRACE_S = 10.0
"""Beyond its own limit, a case's process gets so long to say its outcome and end."""


@dataclass(frozen=True, slots=True)
class Run:
    """A case, what it must give, and what it gave."""

    peer: str
    case: Case
    expected: Expected
    outcome: Outcome
    duration_s: float

    @property
    def is_expected(self) -> bool:
        """Whether it gave what it must."""
        return self.outcome == self.expected.outcome


def pinned_versions(peer: str, python: Path) -> dict[str, str]:
    """Return the peer's packages with their versions, checked against those installed.

    Raises: ValueError when another version is installed, or none.
    """
    pinned: dict[str, str] = {}
    for line in (ROOT / peer / "requirements.txt").read_text().splitlines():
        name, _, number = line.partition("==")
        if number:
            pinned[name.strip()] = number.strip()
    code = "import importlib.metadata as m, sys; print(*map(m.version, sys.argv[1:]))"
    answer = subprocess.run(
        [python, "-c", code, *pinned], capture_output=True, text=True, check=False, timeout=30
    )
    found = dict(zip(pinned, answer.stdout.split(), strict=False))
    if found != pinned:
        raise ValueError(f"{peer}: {python} has {found or 'none of its packages'}, needs {pinned}")
    return pinned


async def run_case(peer: str, case: Case, python: Path) -> Outcome:
    """Run a case in a process group of its own and return its outcome; nothing of it is left."""
    folder = LOGS / peer / case.name
    folder.mkdir(parents=True)
    with (folder / "case.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "interop.harness.one"),
            *(peer, case.name, python, folder),
            cwd=ROOT.parent,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(case.timeout_s + GRACE_S):
                await process.wait()
        except TimeoutError:
            return Outcome(Result.FAIL, f"killed after {case.timeout_s + GRACE_S:g} s")
        finally:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass  # all have ended
            await process.wait()
    try:
        said = json.loads((folder / "outcome.json").read_text())
    except FileNotFoundError:
        return Outcome(Result.FAIL, f"its process ended with {process.returncode}, see case.log")
    return Outcome(Result(said["result"]), said["observed"], said["evidence"])


async def run_all(todo: list[tuple[str, Case, Expected]], python: Path, verbose: bool) -> list[Run]:
    """Run cases, `PARALLEL` at a time, and print each result; they return in the order given."""
    slots = asyncio.Semaphore(PARALLEL)

    async def one(peer: str, case: Case, expected: Expected) -> Run:
        async with slots:
            start = time.monotonic()
            outcome = await run_case(peer, case, python)
        run = Run(peer, case, expected, outcome, time.monotonic() - start)
        tell(run, verbose=verbose)
        return run

    return await asyncio.gather(*(one(*case) for case in todo))


def tell(run: Run, *, verbose: bool) -> None:
    """Print one result."""
    mark = "  " if run.is_expected else "! "
    result = run.outcome.result.value
    print(f"{mark}{result:5} {run.peer}/{run.case.name} ({run.duration_s:.1f} s)", flush=True)
    if run.is_expected and not verbose:
        return
    if run.outcome.observed:
        print(f"        got: {run.outcome.observed}")
        if run.outcome.evidence:
            print(f"        octets: {run.outcome.evidence}")
    if not run.is_expected:
        wanted = run.expected.outcome
        print(
            f"        expected: {wanted.result.value} {wanted.observed} {wanted.evidence}".rstrip()
        )
        print(f"        logs: {(LOGS / run.peer / run.case.name).relative_to(ROOT.parent)}")


def parse_arguments(arguments: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m interop", description=__doc__)
    parser.add_argument("--python", type=Path, required=True, help="the peers' Python")
    parser.add_argument("--peer", action="append", choices=PEERS, help="only this one")
    parser.add_argument("--case", action="append", default=[], help="only names that contain this")
    parser.add_argument("-v", "--verbose", action="store_true", help="tell limits in full")
    parser.add_argument("-l", "--list", action="store_true", help="only tell the cases' names")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    """Run; return the exit code: 0 when every case gave what is expected."""
    options = parse_arguments(arguments)
    todo: list[tuple[str, Case, Expected]] = []
    versions = {}
    for peer in options.peer or PEERS:
        cases = registry(peer).cases
        expected = load(peer, (case.name for case in cases))
        versions[peer] = pinned_versions(peer, options.python)
        todo += [
            (peer, case, expected[case.name])
            for case in cases
            if not options.case or any(part in case.name for part in options.case)
        ]
    if not todo:
        print("error: no case has such a name", file=sys.stderr)
        return 2
    if options.list:
        print(*(f"{peer}/{case.name}" for peer, case, _ in todo), sep="\n")
        return 0
    shutil.rmtree(LOGS, ignore_errors=True)
    runs = asyncio.run(run_all(todo, options.python.absolute(), options.verbose))
    unexpected = [run for run in runs if not run.is_expected]
    passed = sum(run.outcome.result is Result.PASS for run in runs)
    print(f"{len(runs)} cases: {passed} pass, {len(unexpected)} otherwise than expected")
    if unexpected:
        return 1
    if not options.peer and not options.case:
        reports = [
            PeerReport(
                peer,
                versions[peer],
                [(run.case, run.outcome, run.expected.reason) for run in runs if run.peer == peer],
            )
            for peer in PEERS
        ]
        write(ROOT, reports)
        print("interop/matrix.md and interop/matrix.json written")
    return 0


if __name__ == "__main__":
    # Cases are in process groups of their own: ended by a signal, we still have to end them.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        sys.exit(main(sys.argv[1:]))
    except ValueError as problem:
        sys.exit(f"error: {problem}")
    except KeyboardInterrupt:
        sys.exit("interrupted")
