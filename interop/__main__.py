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
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from interop.harness.bulk_count import BulkPackets
from interop.harness.cases import Case, Outcome, Result
from interop.harness.expected import Expected, load
from interop.harness.matrix import PeerReport, write
from interop.harness.one import registry
from interop.harness.stage import ROOT
from moqt.asyncio.config import FAST_PATH_VARIABLE, TransportConfig

if TYPE_CHECKING:
    from collections.abc import Sequence

PEERS = ("aiomoqt", "moq_rs")
LOGS = ROOT.parent / "build" / "interop"
PARALLEL = 2
"""Cases at a time."""

NO_PACKETS = BulkPackets()

PACKETS_LEFT = 20
"""Left to aioquic in a case, they tell nothing."""

MOST_AGAIN = 3
"""So many cases that gave something else than expected are run again, alone: two cases on a busy
machine may make a peer late. More are no accident."""

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
    bulk: BulkPackets = NO_PACKETS
    is_second: bool = False
    """Whether it gave something else before, beside other cases."""

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


def logs(peer: str, case: Case, is_second: bool) -> Path:
    """Return where a run's logs go: those of the first stay beside those of the second."""
    return LOGS / peer / (f"{case.name}.again" if is_second else case.name)


def new_log(folder: Path) -> BinaryIO:
    """Open a case's log in a folder that does not exist yet."""
    folder.mkdir(parents=True)
    return (folder / "case.log").open("wb")


async def run_case(
    peer: str, case: Case, python: Path, folder: Path
) -> tuple[Outcome, BulkPackets]:
    """Run a case in a process group of its own, logging to a new `folder`; nothing else is left.

    Returns its outcome, and the packets of the bulk path of its own process.
    """
    with new_log(folder) as log:
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
            outcome = Outcome(Result.FAIL, f"killed after {case.timeout_s + GRACE_S:g} s")
            return outcome, NO_PACKETS
        finally:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass  # all have ended
            await process.wait()
    try:
        said = json.loads((folder / "outcome.json").read_text())
    except FileNotFoundError:
        how = f"its process ended with {process.returncode}, see case.log"
        return Outcome(Result.FAIL, how), NO_PACKETS
    outcome = Outcome(Result(said["result"]), said["observed"], said["evidence"])
    return outcome, BulkPackets(**said["bulk"])


async def run_all(todo: list[tuple[str, Case, Expected]], python: Path, verbose: bool) -> list[Run]:
    """Run cases, `PARALLEL` at a time, and print each result; they return in the order given.

    What gives something else than expected is run once more, up to `MOST_AGAIN` cases.
    """
    slots = asyncio.Semaphore(PARALLEL)

    async def one(peer: str, case: Case, expected: Expected, *, is_second: bool = False) -> Run:
        async with slots:
            start = time.monotonic()
            outcome, bulk = await run_case(peer, case, python, logs(peer, case, is_second))
        run = Run(peer, case, expected, outcome, time.monotonic() - start, bulk, is_second)
        tell(run, verbose=verbose)
        return run

    runs = await asyncio.gather(*(one(*case) for case in todo))
    again = [number for number, run in enumerate(runs) if not run.is_expected]
    if len(again) <= MOST_AGAIN:
        for number in again:
            print("once more, alone:")
            runs[number] = await one(*todo[number], is_second=True)
    return runs


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
        folder = logs(run.peer, run.case, run.is_second)
        print(f"        logs: {folder.relative_to(LOGS.parent.parent)}")


def summary(runs: Sequence[Run]) -> str:
    """Return how many cases gave what, and whether that was expected."""
    results = Counter(run.outcome.result for run in runs)
    words = {
        Result.PASS: "pass",
        Result.LIMIT: "limit" if results[Result.LIMIT] == 1 else "limits",
        Result.NOT_APPLICABLE: "not applicable",
        Result.FAIL: "fail",
    }
    counts = [f"{results[result]} {word}" for result, word in words.items() if results[result]]
    unexpected = sum(not run.is_expected for run in runs)
    how = f"{unexpected} otherwise than expected" if unexpected else "all as expected"
    second = [f"{run.peer}/{run.case.name}" for run in runs if run.is_second and run.is_expected]
    if second:
        how += f", at the second try {', '.join(second)}"
    return f"{len(runs)} cases: {', '.join(counts)}; {how}"


def bulk_summary(runs: Sequence[Run]) -> str:
    """Return how much of it the bulk path did."""
    total = sum((run.bulk for run in runs), NO_PACKETS)
    return (
        f"the bulk path: {total.written} packets written, {total.opened} opened,"
        f" {total.left} left to aioquic"
    )


def beside_bulk(runs: Sequence[Run]) -> list[str]:
    """Return the peers with which it wrote nothing or opened nothing, and the cases in which it
    left more than it opened; a few packets, as of the handshake, may be left."""
    totals = dict.fromkeys(PEERS, NO_PACKETS)
    for run in runs:
        totals[run.peer] += run.bulk
    return [peer for peer, total in totals.items() if not (total.written and total.opened)] + [
        f"{run.peer}/{run.case.name}"
        for run in runs
        if run.bulk.left > max(run.bulk.opened, PACKETS_LEFT)
    ]


def chosen(peers: Sequence[str], parts: Sequence[str]) -> list[tuple[str, Case, Expected]]:
    """Return the cases of `peers` whose names contain one of `parts`, all if there are none.

    Raises: ValueError for a part that is in no name, and for a bad expected.toml.
    """
    found: list[tuple[str, Case, Expected]] = []
    for peer in peers:
        cases = registry(peer).cases
        expected = load(peer, (case.name for case in cases))
        found += [(peer, case, expected[case.name]) for case in cases]
    for part in parts:
        if not any(part in case.name for _, case, _ in found):
            raise ValueError(
                f"--case {part}: no case of {', '.join(peers)} has that in its name; --list tells"
                " the names"
            )
    return [each for each in found if not parts or any(part in each[1].name for part in parts)]


def clear_logs(folders: Sequence[Path]) -> None:
    """Remove the logs of the cases that are about to run; those of others stay."""
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


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
    peers = options.peer or PEERS
    todo = chosen(peers, options.case)
    if options.list:
        print(*(f"{peer}/{case.name}" for peer, case, _ in todo), sep="\n")
        return 0
    versions = {peer: pinned_versions(peer, options.python) for peer in peers}
    is_whole = not options.peer and not options.case
    both = [logs(peer, case, second) for peer, case, _ in todo for second in (False, True)]
    clear_logs([LOGS] if is_whole else both)
    runs = asyncio.run(run_all(todo, options.python.absolute(), options.verbose))
    unexpected = [run for run in runs if not run.is_expected]
    print(summary(runs))
    print(bulk_summary(runs))
    if unexpected:
        return 1
    if is_whole and not TransportConfig().is_fast_path:
        print(f"{FAST_PATH_VARIABLE}=0: the matrix is that of the bulk path, and stays as it is")
    elif is_whole and (beside := beside_bulk(runs)):
        print(f"no matrix: the bulk path was not at work in {', '.join(beside)}")
        return 1
    elif is_whole:
        reports = [
            PeerReport(
                peer,
                versions[peer],
                [(run.case, run.expected) for run in runs if run.peer == peer],
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
