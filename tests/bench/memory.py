"""Resident memory by stage: what a process has after each thing it loads, then as it works.

Each stage is a process of its own that does all stages before it too, so a row less the row above
it is what its stage takes. What has nothing of KVCS yet is the same at both ends.
"""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tests.bench.case import MEBI, Case, CaseFailed, Metric, NotRun, Section
from tests.bench.kvcs_round import DISCOVERED, MODULE, Workload, transfer
from tests.bench.processes import ROOT, Round

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.bench.case import Figures, Scale

__all__ = ["cases", "figures", "status_after"]

MOVED_OCTETS = 64 * MEBI

STATUS = Path("/proc/self/status")

LOADED: dict[str, tuple[str, str]] = {
    "memory-python": ("Python", "pass"),
    "memory-uvloop": ("+ asyncio, uvloop", "import asyncio, uvloop"),
    "memory-numpy": ("+ numpy", "import numpy"),
    "memory-ml-dtypes": ("+ ml_dtypes, for bfloat16", "import ml_dtypes"),
    "memory-aioquic": ("+ aioquic, with cryptography", "import aioquic.quic.connection"),
}
"""By case: its title, and what a process does after all those before."""

ENDS = ("from kvcs import Producer", "from kvcs import Consumer")
"""What makes a process one of the two ends: the sender, the receiver."""


def cases(_scale: Scale) -> Sequence[Case]:
    """Return a case for each stage."""
    made: list[Case] = []
    lines: tuple[str, ...] = ()
    for name, (title, line) in LOADED.items():
        lines = (*lines, line)
        made.append(_case(name, title, partial(_before_kvcs, lines)))
    return [
        *made,
        _case("memory-kvcs", "+ kvcs.Producer, kvcs.Consumer", partial(_ends_loaded, lines)),
        _case(
            "memory-connected",
            "connected, beyond the tensors",
            partial(_ends_running, is_moved=False),
        ),
        _case(
            "memory-transferred",
            f"after a transfer of {MOVED_OCTETS // MEBI} MiB, beyond the tensors",
            partial(_ends_running, is_moved=True),
        ),
    ]


def _case(name: str, title: str, run: partial[Figures]) -> Case:
    return Case(name=name, title=title, section=Section.MEMORY, run=run)


def _before_kvcs(lines: Sequence[str]) -> Figures:
    status = status_after(lines)
    return figures(status, status)


def _ends_loaded(lines: Sequence[str]) -> Figures:
    sender, receiver = (status_after([*lines, end]) for end in ENDS)
    return figures(sender, receiver)


def status_after(lines: Sequence[str]) -> str:
    """Return what Linux says of a new process that has done `lines`.

    Raises: CaseFailed with the process's last line; NotRun where nothing is said of processes.
    """
    _check_linux()
    reading = ["import gc", "gc.collect()", f"print(open({str(STATUS)!r}).read())"]
    done = subprocess.run(
        [sys.executable, "-c", "\n".join([*lines, *reading])],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise CaseFailed(done.stderr.strip().rpartition("\n")[2])
    return done.stdout


def _ends_running(*, is_moved: bool) -> Figures:
    """Have two ends connect and perhaps move a cache; then look at them."""
    _check_linux()
    workload = Workload.of(
        "memory", octets=MOVED_OCTETS, object_octets=MEBI, datagram=DISCOVERED, repeats=1
    )
    plan = workload.plan()
    with Round() as round_:
        producer = round_.side(MODULE, "produce", plan, is_sender=True)
        plan["port"] = producer.expect("serving")["port"]
        consumer = round_.side(MODULE, "consume", plan, is_sender=False)
        consumer.expect("connected")
        if is_moved:
            transfer(producer, [consumer], 0)
        statuses = []
        for side in (producer, consumer):
            side.tell(do="status")
            statuses.append(side.expect("status")["text"])
        round_.kill()
    return figures(*statuses, tensors=workload.octets)


def figures(sender: str, receiver: str, *, tensors: int = 0) -> Figures:
    """Return what two statuses say, less the octets of `tensors`. Raises: CaseFailed."""
    return {
        Metric.SENDER_RESIDENT: _mebi(sender, "VmRSS") - tensors / MEBI,
        Metric.SENDER_FILES: _mebi(sender, "RssFile"),
        Metric.RECEIVER_RESIDENT: _mebi(receiver, "VmRSS") - tensors / MEBI,
        Metric.RECEIVER_FILES: _mebi(receiver, "RssFile"),
    }


def _mebi(status: str, field: str) -> float:
    """Return a field of /proc/self/status, which has KiB, in MiB."""
    for line in status.splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) / 1024
    raise CaseFailed(f"{STATUS} has no {field}")


def _check_linux() -> None:
    if not STATUS.exists():
        raise NotRun(f"there is no {STATUS} here")
