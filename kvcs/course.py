"""What the parts of one retrieval share: its tasks, its problems, and the news that one has."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Coroutine

__all__ = ["Course"]

_log = logging.getLogger(__name__)

MAX_PROBLEMS = 8
"""Problems of one retrieval that its final error tells."""


class Course:
    """The tasks of a retrieval, which end with it, and what they report to whoever supervises."""

    def __init__(self) -> None:
        self.changed = asyncio.Event()
        """Set when there is something to look at again; the supervisor clears it."""
        self.failure: Exception | None = None
        """What ended the retrieval, rather than a request of it."""
        self.problems: list[str] = []
        self._tasks: set[asyncio.Task[None]] = set()

    def note(self, problem: str) -> None:
        """Keep a problem for the final error."""
        if problem not in self.problems and len(self.problems) < MAX_PROBLEMS:
            self.problems.append(problem)
        _log.info("retrieval: %s", problem)

    def fail(self, error: BaseException) -> None:
        """End the retrieval by an error that no request can be blamed for."""
        if isinstance(error, Exception):
            self.failure = error
        self.changed.set()

    def spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Run a part of the retrieval; its exception is the retrieval's failure."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    async def stop(self) -> None:
        """End all tasks."""
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.fail(error)
        self.changed.set()
