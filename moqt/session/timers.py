"""Deadlines of a session: one heap for all of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Timer", "Timers"]

_SWEEP_FROM: Final = 64
"""Cancelled timers from which on they are looked for: fewer cost less than a sweep."""


@dataclass(slots=True, order=True)
class Timer:
    """A deadline in seconds and what to do then; `cancel` makes it never happen."""

    deadline: float
    serial: int
    action: Callable[[float], None] | None = field(compare=False)
    _queue: Timers = field(compare=False, repr=False)

    def cancel(self) -> None:
        """Forget it; harmless when it has run already."""
        if self.action is not None:
            self.action = None
            self._queue.forget_one()


class Timers:
    """All deadlines, soonest first. Cancelled ones are swept once they are the majority."""

    def __init__(self) -> None:
        self._heap: list[Timer] = []
        self._serial = 0
        self._cancelled = 0

    def __len__(self) -> int:
        return len(self._heap) - self._cancelled

    def at(self, deadline: float, action: Callable[[float], None]) -> Timer:
        """Call `action(now)` from the first `run` whose `now` reaches `deadline`."""
        self._serial += 1
        timer = Timer(deadline, self._serial, action, self)
        heappush(self._heap, timer)
        return timer

    @property
    def next_deadline(self) -> float | None:
        """The soonest deadline, None when there is none."""
        heap = self._heap
        while heap and heap[0].action is None:
            heappop(heap)
            self._cancelled -= 1
        return heap[0].deadline if heap else None

    def run(self, now: float) -> None:
        """Run every action whose deadline has come; those may add and cancel timers."""
        while (deadline := self.next_deadline) is not None and deadline <= now:
            timer = heappop(self._heap)
            action, timer.action = timer.action, None
            if action is not None:
                action(now)

    def clear(self) -> None:
        """Cancel all."""
        for timer in self._heap:
            timer.action = None
        self._heap.clear()
        self._cancelled = 0

    def forget_one(self) -> None:
        """Note a cancellation (called by `Timer.cancel`)."""
        self._cancelled += 1
        if self._cancelled > _SWEEP_FROM and self._cancelled * 2 > len(self._heap):
            self._heap = [timer for timer in self._heap if timer.action is not None]
            heapify(self._heap)
            self._cancelled = 0
