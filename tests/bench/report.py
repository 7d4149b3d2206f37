"""Writes what came of a run: results.json, README.md and plots; and reads results.json again."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.bench import plots
from tests.bench.case import Metric, Section
from tests.bench.objects import MAX_OBJECTS
from tests.bench.records import Record, Records, Spread
from tests.bench.targets import verdicts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from tests.bench.targets import Verdict

__all__ = ["Run", "load", "markdown_of_targets", "write"]

RESULTS = "results.json"

METHOD = """\
Each side of a transfer is a process of its own on a core of its own (see "cores" above: threads
share it). The cases of a table run interleaved: round 1 of each, then round 2 of each, every round
beginning with another case. Tables show the median of the rounds and, in brackets, least and most.
Ratios are taken within a round, and their median is shown, so that a machine that is slow for a
minute slows both sides of a ratio. MB and GB are decimal, MiB is not. A datagram size is the UDP
payload.

*KVCS verified* is a live production, from tensor to tensor: the consumer has found the publication
and waits; the clock runs from the producer's first `put_layer(borrow=True)` until the consumer has
the last layer in arrays that it made before (`into=`). In that time every octet is hashed at both
ends, and every digest is compared. A bulk transfer is the cache of 4,096 tokens of Llama 3 8B: 512
MiB in 32 layers, in Objects of 1 MiB. The other transfers move the same number of octets: from the
sender's first octet to the receiver's last one, copied to its place in memory that was made before;
"+ SHA-256" is hashed on both sides while it moves. A transfer of up to 8 MiB on the same connection
comes first and is not measured. After the clock, all octets received are compared with those sent.

CPU seconds are what `getrusage` says of the whole process for the measured time, all threads. Peak
memory is of the whole process, interpreter and modules included, less the octets that are sent or
received (a pattern and the warm-up, 8 MiB each, count); growth is what of it came during the
transfer. Before the clock each process tells its garbage collector to leave alone what is there
(`gc.freeze()`), as a server does after its set-up.

*Without digests* is the same program, in which the benchmark replaces SHA-256 by one that reads 64
octets of each buffer ([without_digest.py](../../tests/bench/side/without_digest.py)); the product
has no such option. *aioquic raw* is one stream of the library as it is, at its best: uvloop, no
pacer, windows of 64 MiB, large socket buffers. moq-rs with itself speaks moq-lite, not draft 22; it
is the same library under the same load.
"""

RATIO_TO = "tls-sha-asyncio"
"""What bulk transfers are compared with in the table."""

COLUMNS: dict[Section, tuple[Metric, ...]] = {
    Section.BULK: (
        Metric.SPEED,
        Metric.SENDER_CPU,
        Metric.RECEIVER_CPU,
        Metric.SENDER_PEAK,
        Metric.SENDER_GROWTH,
        Metric.RECEIVER_PEAK,
        Metric.RECEIVER_GROWTH,
        Metric.DATAGRAM,
        Metric.RETRIES,
    ),
    Section.OBJECTS: (
        Metric.SPEED,
        Metric.OBJECTS,
        Metric.SENDER_CPU,
        Metric.RECEIVER_CPU,
        Metric.SENDER_GROWTH,
        Metric.RECEIVER_GROWTH,
        Metric.DATAGRAM,
        Metric.RETRIES,
    ),
    Section.CONSUMERS: (
        Metric.SENDER_TOTAL_CPU,
        Metric.RECEIVER_TOTAL_CPU,
        Metric.SPEED,
        Metric.SENDER_GROWTH,
        Metric.DATAGRAMS_SENT,
        Metric.PACKETS_LOST,
        Metric.DATAGRAMS_RECEIVED,
        Metric.WAKEUPS,
    ),
    Section.LATENCY: (
        Metric.P50,
        Metric.P99,
        Metric.LAYER_TIME,
        Metric.SPEED,
        Metric.SENDER_CPU,
        Metric.RECEIVER_CPU,
        Metric.DATAGRAM,
        Metric.RETRIES,
    ),
    Section.GROWTH: (
        Metric.UNITS,
        Metric.SENDER_UNIT_CPU,
        Metric.RECEIVER_UNIT_CPU,
        Metric.PUBLISH_CPU,
        Metric.LISTED_CPU,
        Metric.SENDER_PEAK,
        Metric.RECEIVER_PEAK,
    ),
    Section.LINKS: (
        Metric.UTILISATION,
        Metric.SPEED,
        Metric.TCP_SHARE,
        Metric.QUEUE_DROPS,
        Metric.SENDER_CPU,
        Metric.RECEIVER_CPU,
        Metric.DATAGRAM,
        Metric.RETRIES,
    ),
    Section.MEMORY: (
        Metric.SENDER_RESIDENT,
        Metric.SENDER_FILES,
        Metric.RECEIVER_RESIDENT,
        Metric.RECEIVER_FILES,
    ),
}

NOTES: dict[Section, str] = {
    Section.OBJECTS: "Discovered datagram size. An Object is one block of K or of V. A transfer has"
    f" {MAX_OBJECTS:,} Objects or half a cache, whichever is less.",
    Section.CONSUMERS: "All consumers share the receiver's core. MB/s is the sum over them."
    " Datagrams, losses and wake-ups: by the `connection_stats` of the producer's sessions, for the"
    " measured time.",
    Section.LATENCY: "From the call of `put_layer` until the consumer's iteration yields it.",
    Section.GROWTH: "A unit is a layer, an Object, or the retrieval of one small cache that is"
    " found among others; publishing and discovery are counted with it.",
    Section.MEMORY: "Whole process, at rest (the peaks of a transfer: see Bulk transfer). Each row"
    " has all of the row above it, in a new process. Files are pages of libraries and other files:"
    " part of what is resident, and shared by all processes that use them.",
    Section.LINKS: "A copy on the same emulated link is what KVCS is compared with.",
}

WITH_SPREAD = {Metric.SPEED, Metric.P99, Metric.SENDER_TOTAL_CPU, Metric.UTILISATION}


@dataclass(frozen=True, slots=True)
class Run:
    """A whole run, as results.json has it."""

    begun: str
    """Date and time, UTC."""
    took_s: float
    arguments: str
    """Other than those of a whole run; none: it was one."""
    machine: Mapping[str, str]
    records: Records


def write(run: Run, folder: Path) -> list[Path]:
    """Write everything into `folder`; return the files."""
    folder.mkdir(parents=True, exist_ok=True)
    told = {
        "begun": run.begun,
        "took_s": round(run.took_s),
        "arguments": run.arguments,
        "machine": run.machine,
        "targets": [
            {
                "what": verdict.target.what,
                "at_least" if verdict.target.is_floor else "at_most": verdict.target.bound,
                "measured": verdict.measured and verdict.measured.median,
                "is_met": verdict.is_met,
            }
            for verdict in verdicts(run.records)
        ],
        "cases": run.records.dump(),
    }
    files = {RESULTS: json.dumps(_rounded(told), indent=1) + "\n"}
    drawn = plots.draw(run.records)
    files.update(drawn)
    files["README.md"] = _markdown(run, list(drawn), sorted(folder.glob("profile-*.txt")))
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    return [folder / name for name in files]


def load(folder: Path) -> Run:
    """Read what `write` wrote."""
    told = json.loads((folder / RESULTS).read_text(encoding="utf-8"))
    return Run(
        told["begun"],
        told["took_s"],
        told["arguments"],
        told["machine"],
        Records.load(told["cases"]),
    )


def markdown_of_targets(found: Sequence[Verdict]) -> str:
    """Return the table of targets."""
    rows = []
    for verdict in found:
        target, measured = verdict.target, verdict.measured
        bound = f"{'at least' if target.is_floor else 'at most'} {target.bound:g}{target.unit}"
        note = f" ({target.note})" if target.note else ""
        met = {True: "met", False: "**not met**", None: "not measured"}[verdict.is_met]
        rows.append((f"{target.what}{note}", bound, _spread(measured), met))
    return _table(("what", "target", "measured (min-max)", ""), rows)


def _markdown(run: Run, drawn: Sequence[str], profiles: Sequence[Path]) -> str:
    records = run.records
    parts = [
        "# Benchmarks",
        f"Written by `make bench` on {run.begun} (UTC), in {run.took_s / 60:.0f} minutes;"
        " every figure comes from that run. To run it again: `make bench`; a part of it:"
        " `make bench BENCH_ARGS='--only kvcs-1452 --rounds 5'`; on a small machine:"
        " `make bench BENCH_ARGS=--quick`. All figures by round: [results.json](results.json).",
        *(
            [f"**This was no whole run on a quiet machine:** `{run.arguments}`."]
            if run.arguments
            else []
        ),
        "\n".join(f"- {name}: {fact}" for name, fact in run.machine.items()),
        "## Targets",
        markdown_of_targets(verdicts(records)),
        "## Method",
        METHOD.strip(),
    ]
    for section in Section:
        there = records.section(section)
        if there:
            parts += [f"## {section.value}", *_section(section, there, records)]
            parts += [
                f"![{section.value}]({name})"
                for name in drawn
                if name.startswith(section.name.lower())
            ]
    if profiles:
        parts += [
            "## Profiles",
            "Taken by `--profile` in runs of their own (profiling slows what it measures), the"
            " event loop's thread alone:",
            "\n".join(f"- [{path.name}]({path.name})" for path in profiles),
        ]
    return "\n\n".join(parts) + "\n"


def _section(section: Section, there: Mapping[str, Record], records: Records) -> list[str]:
    measured = {metric for record in there.values() for metric in record.metrics}
    wanted = COLUMNS.get(section, tuple(Metric))
    metrics = [metric for metric in wanted if metric in measured]
    has_ratio = section is Section.BULK and RATIO_TO in there
    titles = ["case", "", *(metric.value for metric in metrics)]
    if has_ratio:
        titles.insert(3, "/ TLS + SHA-256")
    rows = []
    for name, record in there.items():
        cells = [
            _spread(record.spread(metric), with_range=metric in WITH_SPREAD) for metric in metrics
        ]
        if has_ratio:
            cells.insert(1, _spread(records.ratio(name, RATIO_TO)))
        rows.append((f"`{name}`", record.title, *cells))
    parts = [NOTES[section]] if section in NOTES else []
    parts.append(_table(titles, rows))
    remarks = [
        f"- `{name}`: {text}"
        for name, record in there.items()
        for text in ([record.not_run] if record.not_run else [])
        + [f"failed in {failure}" for failure in record.failures]
    ]
    return parts + (["\n".join(remarks)] if remarks else [])


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    rule = ["---", "---", *("---:" for _ in titles[2:])]
    return "\n".join(f"| {' | '.join(row)} |" for row in (titles, rule, *rows))


def _spread(spread: Spread | None, *, with_range: bool = True) -> str:
    if spread is None:
        return "-"
    shown = _number(spread.median)
    if with_range and spread.low != spread.high:
        shown += f" ({_number(spread.low)}-{_number(spread.high)})"
    return shown


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _rounded(told: object) -> object:
    """Return the same with six significant digits."""
    if isinstance(told, dict):
        return {key: _rounded(value) for key, value in told.items()}
    if isinstance(told, list):
        return [_rounded(value) for value in told]
    return float(f"{told:.6g}") if isinstance(told, float) else told
