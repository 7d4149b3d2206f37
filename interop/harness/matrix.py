"""The matrix: what was run against whom, and what came of it, as Markdown and as JSON.

Nothing in it changes from one run to the next unless a result does.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from interop.harness.cases import Direction, Result
from moqt.wire.draft import ALPN

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from interop.harness.cases import Case
    from interop.harness.expected import Expected

__all__ = ["PeerReport", "write"]


@dataclass(frozen=True, slots=True)
class PeerReport:
    """All results against one peer. `versions`: of its packages."""

    peer: str
    versions: Mapping[str, str]
    results: Sequence[tuple[Case, Expected]]
    """Each case and what came of it, which is what was expected: else no matrix is written."""


def write(folder: Path, reports: Sequence[PeerReport]) -> None:
    """Write matrix.json and matrix.md."""
    document = {
        "ours": {"kvcs": version("kvcs"), "moqt": ALPN, "path": "bulk"},
        "peers": [_peer(report) for report in reports],
    }
    (folder / "matrix.json").write_text(json.dumps(document, indent=1, sort_keys=True) + "\n")
    (folder / "matrix.md").write_text("".join(f"{line}\n" for line in _markdown(reports)))


def _peer(report: PeerReport) -> dict[str, Any]:
    return {
        "name": report.peer,
        "versions": dict(report.versions),
        "cases": [
            {
                "name": case.name,
                "title": case.title,
                "direction": case.direction.name.lower().replace("_", "-"),
                "source": case.source,
                "result": found.outcome.result.value,
                **{name: text for name, text in _details(found) if text},
            }
            for case, found in report.results
        ],
    }


def _details(found: Expected) -> Iterator[tuple[str, str]]:
    yield "observed", found.outcome.observed
    yield "evidence", found.outcome.evidence
    yield "evidence_kind", found.evidence_kind
    yield "evidence_from", found.evidence_from
    yield "reason", found.reason


def _markdown(reports: Sequence[PeerReport]) -> list[str]:
    lines = [
        "# Interoperability matrix",
        "",
        "Written by `make interop`; [README.md](README.md) says what the cases are.",
        f"Ours: kvcs {version('kvcs')}, ALPN `{ALPN}`, native QUIC over the"
        " [bulk path](../docs/architecture.md#the-bulk-path).",
        "",
        "| peer | cases | pass | limits of the peer | not applicable |",
        "|---|---|---|---|---|",
    ]
    for report in reports:
        results = [found.outcome.result for _, found in report.results]
        lines.append(
            f"| {_versions(report)} | {len(results)} | {results.count(Result.PASS)} "
            f"| {results.count(Result.LIMIT)} | {results.count(Result.NOT_APPLICABLE)} |"
        )
    for report in reports:
        lines += ["", f"## {_versions(report)}"]
        for direction in Direction:
            rows = [row for row in report.results if row[0].direction is direction]
            if not rows:
                continue
            title = direction.value[0].upper() + direction.value[1:]
            lines += [
                "",
                f"### {title}",
                "",
                "| case | what | source | result |",
                "|---|---|---|---|",
            ]
            for case, found in rows:
                result = found.outcome.result.value
                lines.append(f"| {case.name} | {_cell(case.title)} | {case.source} | {result} |")
        lines += _findings(report, Result.LIMIT, "Limits")
        lines += _findings(report, Result.NOT_APPLICABLE, "Not applicable")
    return lines


def _versions(report: PeerReport) -> str:
    return ", ".join(f"{name} {number}" for name, number in report.versions.items())


def _findings(report: PeerReport, result: Result, title: str) -> list[str]:
    rows = [row for row in report.results if row[1].outcome.result is result]
    lines = ["", f"### {title}"] if rows else []
    for case, found in rows:
        lines += ["", f"**{case.name}**: {found.reason}", "", f"- seen: {found.outcome.observed}"]
        if found.outcome.evidence:
            kind = f"`{found.evidence_kind}`, from {found.evidence_from}"
            lines.append(f"- octets ({kind}): `{found.outcome.evidence}`")
    return lines


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
