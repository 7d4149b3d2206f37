"""The checks of one retrieval's Objects that take time, in worker threads while the loop receives.

SHA-256 of a large buffer runs without the GIL; of a small one a thread would spend more on getting
the GIL back than the loop on hashing it, so those are verified where they are received.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Executor

    from kvcs.assembly import Assembly, Outcome
    from kvcs.config import ConsumerConfig
    from kvcs.wanted import Verification

    Judge = Callable[[Outcome], None]

__all__ = ["Checks"]


class _Check(NamedTuple):
    verification: Verification
    judge: Judge
    held_octets: int
    """Of memory that is neither the tensors' nor the session's any more."""


class Checks:
    """Runs verifications in up to `worker_threads` threads and finishes them on the loop.

    `failed` is told of an error that is no verdict on an Object, as of a codec that broke down.
    A thread takes what waits one after the other, and wakes the loop once for all that it has done
    since the loop looked last.
    """

    def __init__(
        self,
        assembly: Assembly,
        threads: Executor,
        config: ConsumerConfig,
        failed: Callable[[BaseException], None],
    ) -> None:
        self.thread_octets = config.thread_octets
        """Data of so many octets or more is worth a thread."""
        self._assembly = assembly
        self._threads = threads
        self._most_threads = config.worker_threads
        self._most = config.max_queued_checks
        self._most_octets = config.max_queued_check_octets
        self._failed = failed
        self._todo: deque[_Check] = deque()
        self._done: deque[_Check] = deque()
        self._is_told = False
        self._jobs: set[asyncio.Future[None]] = set()
        self._open = 0
        self._held_octets = 0
        self._open_of: Counter[int] = Counter()
        self._news = asyncio.Event()

    @property
    def is_full(self) -> bool:
        """Whether as much waits as may; who adds more should `wait_room` first."""
        return self._open >= self._most or self._held_octets >= self._most_octets

    def put(self, verification: Verification, judge: Judge) -> None:
        """Have an Object verified; `judge` gets the outcome, on the loop."""
        self._open += 1
        self._open_of[verification.where[0]] += 1
        held = 0 if verification.is_placed else verification.octets
        self._held_octets += held
        self._todo.append(_Check(verification, judge, held))
        if len(self._jobs) < min(self._most_threads, self._open):
            self._start()

    async def wait_room(self) -> None:
        """Wait until it is not full. Cancelled: nothing is lost."""
        while self.is_full:
            self._news.clear()
            await self._news.wait()

    async def wait_track(self, track: int) -> None:
        """Wait until no Object of a track is being verified. Cancelled: nothing is lost."""
        while self._open_of[track]:
            self._news.clear()
            await self._news.wait()

    async def wait_all(self) -> None:
        """Wait until no Object is being verified. Cancelled: nothing is lost."""
        while self._open:
            self._news.clear()
            await self._news.wait()

    async def close(self) -> None:
        """Give up what waits, and wait for what is being verified: its place is used until then."""
        with suppress(IndexError):
            while True:  # one by one: a thread may take one at any time, and each has one end
                self._done.append(self._todo.popleft())
        if self._jobs:
            await asyncio.wait(self._jobs)
        self._collect()

    # In the loop's thread

    def _start(self) -> None:
        loop = asyncio.get_running_loop()
        job = loop.run_in_executor(self._threads, self._work, loop)
        self._jobs.add(job)
        job.add_done_callback(self._ended)

    def _ended(self, job: asyncio.Future[None]) -> None:
        self._jobs.discard(job)
        self._collect()
        if not job.cancelled() and (error := job.exception()) is not None:
            self._failed(error)
        if self._todo and len(self._jobs) < self._most_threads:
            self._start()  # it ended just before the last one was put

    def _collect(self) -> None:
        self._is_told = False
        while self._done:
            check = self._done.popleft()
            self._open -= 1
            self._open_of[check.verification.where[0]] -= 1
            self._held_octets -= check.held_octets
            check.judge(self._assembly.finish(check.verification))
        self._news.set()

    # In a worker thread

    def _work(self, loop: asyncio.AbstractEventLoop) -> None:
        while self._todo:
            try:
                check = self._todo.popleft()
            except IndexError:
                return  # another thread took the last one
            try:
                check.verification.run()
            finally:
                self._done.append(check)
            if not self._is_told:  # else the loop has yet to look
                self._is_told = True
                loop.call_soon_threadsafe(self._collect)
