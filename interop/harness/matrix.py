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
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from interop.harness.cases import Case, Outcome

__all__ = ["PeerReport", "write"]


@dataclass(frozen=True, slots=True)
class PeerReport:
    """All results against one peer. `versions`: of its packages."""

    peer: str
    versions: Mapping[str, str]
    results: Sequence[tuple[Case, Outcome, str]]
    """Case, outcome, and the reason for a limit."""


def write(folder: Path, reports: Sequence[PeerReport]) -> None:
    """Write matrix.json and matrix.md."""
    document = {
        "ours": {"kvcs": version("kvcs"), "moqt": ALPN},
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
                "result": outcome.result.value,
                **({"observed": outcome.observed} if outcome.observed else {}),
                **({"evidence": outcome.evidence} if outcome.evidence else {}),
                **({"reason": reason} if reason else {}),
            }
            for case, outcome, reason in report.results
        ],
    }


def _markdown(reports: Sequence[PeerReport]) -> list[str]:
    lines = [
        "# Interoperability matrix",
        "",
        "Written by `make interop`; [README.md](README.md) says what the cases are.",
        f"Ours: kvcs {version('kvcs')}, ALPN `{ALPN}`, native QUIC.",
        "",
        "| peer | cases | pass | limits of the peer | not applicable |",
        "|---|---|---|---|---|",
    ]
    for report in reports:
        results = [outcome.result for _, outcome, _ in report.results]
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
            lines += [
                f"| {case.name} | {_cell(case.title)} | {case.source} | {outcome.result.value} |"
                for case, outcome, _ in rows
            ]
        lines += _findings(report, Result.LIMIT, "Limits")
        lines += _findings(report, Result.NOT_APPLICABLE, "Not applicable")
    return lines


def _versions(report: PeerReport) -> str:
    return ", ".join(f"{name} {number}" for name, number in report.versions.items())


def _findings(report: PeerReport, result: Result, title: str) -> list[str]:
    found = [row for row in report.results if row[1].result is result]
    lines = ["", f"### {title}"] if found else []
    for case, outcome, reason in found:
        lines += ["", f"**{case.name}**: {reason}", "", f"- seen: {outcome.observed}"]
        if outcome.evidence:
            lines.append(f"- octets: `{outcome.evidence}`")
    return lines


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
