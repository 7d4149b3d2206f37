"""All checks run on evidence, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvcs.conformance import manifests, naming, objects, order, retrieving
from kvcs.conformance.check import Check, Finding, Verdict

if TYPE_CHECKING:
    from kvcs.conformance.evidence import PublicationEvidence
    from moqt.types import TrackNamespace

__all__ = ["CHECKS", "CheckResult", "PublicationReport", "judge"]

CHECKS: tuple[Check, ...] = tuple(
    sorted(
        (
            *naming.CHECKS,
            *manifests.CHECKS,
            *order.CHECKS,
            *objects.CHECKS,
            *retrieving.CHECKS,
        ),
        key=lambda check: check.section,
    )
)
"""By section; within one as their modules list them."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One check and what it found."""

    check: Check
    finding: Finding


@dataclass(frozen=True, slots=True)
class PublicationReport:
    """What all checks found of one publication. `cut`: which limit ended its observation early."""

    namespace: TrackNamespace
    results: tuple[CheckResult, ...]
    cut: str = ""

    def failed(self) -> tuple[str, ...]:
        """Return the IDs of the checks that failed."""
        return self.ids(Verdict.FAIL)

    def ids(self, verdict: Verdict) -> tuple[str, ...]:
        """Return the IDs of the checks that ended so."""
        return tuple(
            result.check.id for result in self.results if result.finding.verdict is verdict
        )


def judge(evidence: PublicationEvidence) -> PublicationReport:
    """Run all checks. Pure."""
    results = tuple(CheckResult(check, check.look(evidence)) for check in CHECKS)
    return PublicationReport(evidence.namespace, results, evidence.cut)
