"""Pure jobs over several threads, by a thread that works along with those that help it."""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Executor

__all__ = ["SharedRun", "patient_threads", "processors", "run_here"]

T = TypeVar("T")

_PATIENCE = 5
"""Added to a thread's nice value: of a core that it shares with the loop's thread it gets a quarter
while that has work, and all else."""


def processors() -> int:
    """Return how many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


if TYPE_CHECKING:

    class Run(Protocol):
        """Runs jobs that do not depend on each other and returns their results in order."""

        def __call__(self, jobs: Sequence[Callable[[], T]]) -> list[T]:
            """Raises what a job raised; no job runs any more then."""
            ...


def run_here(jobs: Sequence[Callable[[], T]]) -> list[T]:
    """Run them one after the other."""
    return [job() for job in jobs]


class SharedRun:
    """Runs jobs in this thread and up to `helpers` threads of `pool` besides.

    It never waits for a thread of the pool to become free, so it may itself run in one of them.
    """

    def __init__(self, pool: Executor, helpers: int) -> None:
        self._pool = pool
        self._helpers = helpers

    def __call__(self, jobs: Sequence[Callable[[], T]]) -> list[T]:
        """Run them; raises what a job raised, once no job runs any more."""
        if len(jobs) < 2 or not self._helpers:
            return run_here(jobs)
        todo = deque(enumerate(jobs))
        results: dict[int, T] = {}

        def work() -> None:
            while todo:
                try:
                    number, job = todo.popleft()
                except IndexError:
                    return  # another thread took the last one
                try:
                    results[number] = job()
                except BaseException:
                    todo.clear()
                    raise

        helpers = [self._pool.submit(work) for _ in range(min(self._helpers, len(jobs) - 1))]
        try:
            work()
        finally:
            wait([helper for helper in helpers if not helper.cancel()])
        for helper in helpers:
            if not helper.cancelled():
                helper.result()
        return [results[number] for number in range(len(jobs))]


def patient_threads(count: int, name: str) -> ThreadPoolExecutor:
    """Return threads that prepare what the loop's thread is to send.

    Where both share a core, sending comes first: who prepares far ahead meanwhile leaves the
    receiver idle, and is no sooner done. Linux alone lets a thread have a nice value of its own.
    """
    if sys.platform != "linux":
        return ThreadPoolExecutor(count, name)
    nice = os.getpriority(os.PRIO_PROCESS, 0) + _PATIENCE  # threads may be started by each other
    return ThreadPoolExecutor(count, name, initializer=_be_nice, initargs=(nice,))


def _be_nice(nice: int) -> None:
    with suppress(OSError):  # a sandbox may forbid it: then threads share evenly
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), nice)
