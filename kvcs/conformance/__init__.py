"""KVCS checks of any publisher: `find` publications, `collect` evidence, `judge` it.

Collecting speaks to a session that is handed in; the checks are pure functions of what was
collected, one for each requirement, with the profile's sections.
"""

from __future__ import annotations

from kvcs.conformance.check import Check, Finding, Verdict
from kvcs.conformance.collect import Limits, collect, find
from kvcs.conformance.evidence import PublicationEvidence
from kvcs.conformance.report import CHECKS, CheckResult, PublicationReport, judge

__all__ = [
    "CHECKS",
    "Check",
    "CheckResult",
    "Finding",
    "Limits",
    "PublicationEvidence",
    "PublicationReport",
    "Verdict",
    "collect",
    "find",
    "judge",
]
