"""What a case is, and the ways it can end."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from interop.harness.stage import Stage

__all__ = [
    "Case",
    "CaseFailed",
    "Direction",
    "NotApplicable",
    "Outcome",
    "PeerLimit",
    "Registry",
    "Result",
    "check",
]

CASE_TIMEOUT_S = 40.0
"""The longest that a case may take unless it says otherwise; then its processes are killed."""


class Result(Enum):
    """How a case ended."""

    PASS = "pass"
    LIMIT = "limit"
    NOT_APPLICABLE = "n/a"
    FAIL = "fail"


class Direction(Enum):
    """Who publishes to whom."""

    TO_PEER = "ours publishes, the peer subscribes"
    FROM_PEER = "the peer publishes, ours subscribes"
    THROUGH_PEER = "ours publishes, the peer relays, ours subscribes"
    CONTROL = "the session itself"


class CaseFailed(AssertionError):
    """The case did not go as it must: it says what was expected and what came."""


class NotApplicable(Exception):
    """A test of the peer's asks for what ours is not; it says how that shows."""


class PeerLimit(Exception):
    """The peer does not do what the case asks.

    `observed` says how that shows, in words that are the same in each run; `evidence` are the
    octets that it sent (or, where it broke at ours, that we sent), None where silence is the proof.
    """

    def __init__(self, observed: str, evidence: bytes | None = None) -> None:
        super().__init__(observed)
        self.observed = observed
        self.evidence = evidence


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a case. `observed`: what went wrong; empty for a pass."""

    result: Result
    observed: str = ""
    evidence: str = ""
    """Octets in hex."""


@dataclass(frozen=True, slots=True)
class Case:
    """One thing that both implementations must do together.

    `source`: the sections that describe it.
    """

    name: str
    title: str
    direction: Direction
    source: str
    run: Callable[[Stage], Awaitable[None]]
    timeout_s: float = CASE_TIMEOUT_S


class Registry:
    """The cases of one peer, in the order of the matrix."""

    def __init__(self) -> None:
        self._cases: dict[str, Case] = {}

    @classmethod
    def joined(cls, *registries: Registry) -> Registry:
        """Return all cases of several, in order."""
        result = cls()
        for registry in registries:
            for case in registry.cases:
                result.add(case)
        return result

    @property
    def cases(self) -> tuple[Case, ...]:
        """All of them."""
        return tuple(self._cases.values())

    def find(self, name: str) -> Case:
        """Return the case of this name; KeyError when there is none."""
        return self._cases[name]

    def add(self, case: Case) -> None:
        """Add a case; ValueError when there is one of its name."""
        if case.name in self._cases:
            raise ValueError(f"two cases are called {case.name}")
        self._cases[case.name] = case

    def case(
        self,
        name: str,
        direction: Direction,
        source: str,
        *,
        timeout_s: float = CASE_TIMEOUT_S,
    ) -> Callable[[Callable[[Stage], Awaitable[None]]], Callable[[Stage], Awaitable[None]]]:
        """Decorate the function that runs it: it returns for a pass, or raises.

        Its docstring is the case's title.
        """

        def decorate(run: Callable[[Stage], Awaitable[None]]) -> Callable[[Stage], Awaitable[None]]:
            title = (run.__doc__ or name).rstrip(".")
            self.add(Case(name, title, direction, source, run, timeout_s))
            return run

        return decorate


def check(what: str, got: object, expected: object) -> None:
    """Raise CaseFailed unless both are equal."""
    if got != expected:
        raise CaseFailed(f"{what}: expected {expected!r}, got {got!r}")
