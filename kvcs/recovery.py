"""Where missing Objects are looked for again, in which order, and when to stop (KVCS 5.4).

No I/O and no clock: the caller makes the attempts that `Recovery.next_step` names.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from kvcs.errors import NotDeterministic

if TYPE_CHECKING:
    from collections.abc import Iterable

    from moqt.types import TrackNamespace

__all__ = ["Endpoint", "OtherPublication", "Recovery", "Source", "Step", "StepKind", "check_mix"]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A source: the same publication at another relay or server."""

    url: str


@dataclass(frozen=True, slots=True)
class OtherPublication:
    """A source: another publication of the same content, at the same or another endpoint.

    Used only when the manifests of both say that they are deterministic (KVCS 5.4).
    """

    namespace: TrackNamespace
    url: str | None = None


Source = Endpoint | OtherPublication


class StepKind(Enum):
    """What an attempt does."""

    AGAIN = "ask the same publication again"
    RECONNECT = "connect to the same endpoint again"
    SOURCE = "ask another source"
    RECOMPUTE = "have the caller recompute"


@dataclass(frozen=True, slots=True)
class Step:
    """One attempt; `source` is set for SOURCE."""

    kind: StepKind
    source: Source | None = None


class Recovery:
    """The attempts left for what is missing now, and their deadline.

    An episode begins when Objects are found missing. It pauses while an attempt's requests are
    under way again and nothing counts as missing, and its clock with it; it ends when anything was
    recovered, so that the next one has all attempts again: each such episode brings at least one
    Object, so there are finitely many. It is over when attempts or time run out.
    """

    def __init__(
        self, *, sources: Iterable[Source] = (), can_recompute: bool, deadline_s: float
    ) -> None:
        self._sources = list(sources)
        self._can_recompute = can_recompute
        self._deadline_s = deadline_s
        self._steps: deque[Step] = deque()
        self._left_s: float | None = None  # when paused; None: no episode
        self._deadline: float | None = None  # when running

    @property
    def is_running(self) -> bool:
        """Whether an episode runs and is not paused."""
        return self._deadline is not None

    @property
    def deadline(self) -> float | None:
        """When the running episode ends at the latest; None when none runs."""
        return self._deadline

    def add_sources(self, sources: Iterable[Source]) -> None:
        """Put further sources behind the others; those known already are left out."""
        for source in sources:
            if source in self._sources:
                continue
            self._sources.append(source)
            if self._deadline is None and self._left_s is None:
                continue
            at = len(self._steps)
            if self._steps and self._steps[-1].kind is StepKind.RECOMPUTE:
                at -= 1
            self._steps.insert(at, Step(StepKind.SOURCE, source))

    def begin(self, now: float) -> None:
        """Begin an episode, or go on with the paused one; nothing happens while one runs."""
        if self._deadline is not None:
            return
        if self._left_s is not None:
            self._deadline = now + self._left_s
            return
        self._deadline = now + self._deadline_s
        self._steps = deque((Step(StepKind.AGAIN), Step(StepKind.RECONNECT)))
        self._steps.extend(Step(StepKind.SOURCE, source) for source in self._sources)
        if self._can_recompute:
            self._steps.append(Step(StepKind.RECOMPUTE))

    def pause(self, now: float) -> None:
        """Stop the clock: nothing counts as missing at present."""
        if self._deadline is not None:
            self._left_s = max(self._deadline - now, 0.0)
            self._deadline = None

    def end(self) -> None:
        """End the episode: something was recovered, or all was given up."""
        self._deadline = self._left_s = None
        self._steps.clear()

    def step_deadline(self, now: float) -> float | None:
        """Return when the attempt that begins now must end, so that those behind it have time too.

        Each gets an equal share of the time left, the last one all of it.
        """
        if self._deadline is None:
            return None
        return now + max(self._deadline - now, 0.0) / (len(self._steps) + 1)

    def next_step(self, now: float, *, is_connected: bool) -> Step | None:
        """Return the next attempt; None when attempts or time have run out.

        `is_connected` decides between asking the same session again and connecting again.
        """
        if self._deadline is None or now >= self._deadline:
            return None
        while self._steps:
            step = self._steps.popleft()
            if step.kind is StepKind.AGAIN and not is_connected:
                continue
            if step.kind is StepKind.RECONNECT and is_connected:
                continue
            return step
        return None


def check_mix(*, ours_deterministic: bool, theirs_deterministic: bool) -> None:
    """Raise NotDeterministic unless Objects of both publications may be mixed (KVCS 5.4)."""
    if not (ours_deterministic and theirs_deterministic):
        which = "this" if not ours_deterministic else "the other"
        raise NotDeterministic(
            f"{which} publication is not deterministic: Objects of two publications are mixed only "
            "when both manifests say that they are (KVCS 5.4)"
        )
