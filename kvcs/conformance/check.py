"""What a check is, and what it can come to."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from kvcs.conformance.evidence import PublicationEvidence

__all__ = ["MAX_PROBLEMS", "Check", "Finding", "Verdict"]

MAX_PROBLEMS = 8
"""Problems of one check that are told; the rest is counted."""


class Verdict(Enum):
    """How a check ended."""

    PASS = "pass"
    FAIL = "fail"
    NOT_APPLICABLE = "not applicable"
    """There was nothing to look at."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check found: how many things it looked at, and how many of them were wrong."""

    looked_at: int
    wrong: int = 0
    problems: tuple[str, ...] = ()
    """The first `MAX_PROBLEMS` of them."""
    note: str = ""
    """Why there was nothing to look at."""

    @classmethod
    def of(cls, results: Iterable[str | None], *, if_none: str) -> Self:
        """Count results: None is one thing that is right, a text says what is wrong with one.

        `if_none`: why there may be none at all.
        """
        looked_at = wrong = 0
        problems: list[str] = []
        for problem in results:
            looked_at += 1
            if problem is not None:
                wrong += 1
                if len(problems) < MAX_PROBLEMS:
                    problems.append(problem)
        return cls(looked_at, wrong, tuple(problems), "" if looked_at else if_none)

    @property
    def verdict(self) -> Verdict:
        """PASS, FAIL or NOT_APPLICABLE."""
        if self.wrong:
            return Verdict.FAIL
        return Verdict.PASS if self.looked_at else Verdict.NOT_APPLICABLE


@dataclass(frozen=True, slots=True)
class Check:
    """One requirement of the profile. `look` is pure: evidence in, finding out."""

    id: str
    section: str
    """As in "KVCS 3.5"."""
    title: str
    look: Callable[[PublicationEvidence], Finding]
