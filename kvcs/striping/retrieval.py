"""A cache on its way by several worker processes."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from dataclasses import replace
from typing import TYPE_CHECKING, Self

from kvcs.assembly import UsableLayer
from kvcs.errors import IncompleteRetrieval, KvcsError, WorkerLost
from kvcs.stats import RetrievalStats
from kvcs.striping.messages import Ended, LayerDone
from kvcs.striping.process import JobLost
from moqt.errors import MoqtError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from types import TracebackType

    from kvcs.errors import MissingObject
    from kvcs.striping.found import Found
    from kvcs.striping.messages import Job
    from kvcs.striping.placing import Placing
    from kvcs.striping.process import WorkerProcess

__all__ = ["MAX_RESTARTS", "StripedRetrieval"]

MAX_RESTARTS = 2
"""How often a share of one retrieval is begun again after its worker process ended."""


class StripedRetrieval:
    """An async iterator of usable layers, in layer order; as `kvcs.Retrieval`.

    `job` is what each of `workers` workers gets but for its share; `worker` gives the one of an
    index, started anew if need be; `next_number` tells jobs apart.
    """

    def __init__(
        self,
        found: Found,
        job: Job,
        placing: Placing,
        *,
        worker: Callable[[int], Awaitable[WorkerProcess]],
        next_number: Callable[[], int],
        workers: int,
    ) -> None:
        self.blocks = found.blocks
        """Blocks that it brings, from the start of the context."""
        self.layers = job.layers
        """The layers asked for."""
        self.publication = found.namespace
        """The namespace of the publication, as it was found."""
        self.manifest = found.manifest
        """Its manifest then."""
        self.is_signed = found.is_signed
        """Whether the publication has a signed manifest (checked where there are trusted keys)."""
        self.key_id = found.key_id
        """The kid of the manifest's signature; None: it has none."""
        self.is_over = False
        """Whether nothing more will come; usable layers may still wait to be taken."""
        self.missing: tuple[MissingObject, ...] = ()
        """When it is over: every wanted Object that workers said they lack; nothing of a share that
        was closed or lost."""
        self.arrived_at: dict[int, float] = {}
        """By layer: `time.monotonic()` when the last of its Objects was verified, so far."""
        self.restarts = 0
        """Worker processes that ended meanwhile and were replaced."""
        self._job = job
        self._placing = placing
        self._worker = worker
        self._next_number = next_number
        self._shares_done: Counter[int] = Counter()
        self._workers = workers
        self._next = job.layers.start
        self._ready: deque[UsableLayer] = deque()
        self._handed_over = 0
        self._stats: dict[int, RetrievalStats] = {}
        self._problems: list[IncompleteRetrieval] = []
        self._error: Exception | None = None
        self._news = asyncio.Event()
        self.task = asyncio.create_task(self._run(), name="kvcs striped retrieval")
        """It collects by itself."""

    # Queries

    @property
    def tokens(self) -> int:
        """Tokens that it brings, from the start of the context: those of `blocks`."""
        return self.blocks * self._job.descriptor.block_tokens

    @property
    def stats(self) -> RetrievalStats:
        """Counters over all workers, as of the last layer that each reported."""
        total = RetrievalStats(layers=self._handed_over)
        for stats in self._stats.values():
            total.add(stats)
            total.manifest_versions += stats.manifest_versions
            total.buffered_octets += stats.buffered_octets
            total.open_requests += stats.open_requests
        if self.is_over:
            total.missing = len(self.missing)
        return total

    # Layers

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> UsableLayer:
        """Return the next usable layer. Cancelled: none is lost.

        Raises: IncompleteRetrieval after the last usable layer when Objects are missing,
        PublicationUnusable when the publication turned out to be so, WorkerLost.
        """
        while not self._ready:
            if self.is_over:
                if self._error is not None:
                    raise self._error
                raise StopAsyncIteration
            self._news.clear()
            await self._news.wait()
        return self._ready.popleft()

    async def finished(self) -> None:
        """Wait until everything came, without taking the layers; for `into`. Raises: as iterating.

        Cancelled: the retrieval goes on.
        """
        while not self.is_over:
            await asyncio.shield(self.task)
        if self._error is not None:
            raise self._error

    async def close(self) -> None:
        """End it: requests are cancelled, and nothing is written to `into` any more."""
        if not self.task.done():
            self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close it."""
        await self.close()

    # Its course

    async def _run(self) -> None:
        shares = [asyncio.create_task(self._share(index)) for index in range(self._workers)]
        try:
            await asyncio.wait(shares, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            for share in shares:
                share.cancel()
            results = await asyncio.gather(*shares, return_exceptions=True)
            self._finish([r for r in results if isinstance(r, Exception)])

    async def _share(self, index: int) -> None:
        """Have one worker take its share, and another in its place when it is lost."""
        left = self._job.layers
        for attempt in range(1 + MAX_RESTARTS):
            self.restarts += attempt > 0
            worker = await self._worker(index)
            number = self._next_number()
            job = replace(
                self._job,
                number=number,
                layers=left,
                striping=self._job.striping.of_process(index),
                places={layer: self._job.places[layer] for layer in left},
            )
            done: list[int] = []
            try:
                async with worker.job(job, [one.fd for one in self._placing.maps]) as reports:
                    async for report in reports:
                        if report.stats is not None:
                            self._stats[number] = report.stats
                        if isinstance(report, LayerDone):
                            done.append(report.layer)
                            self._arrived(report)
                        else:
                            self._ended(report)
                            return
            except JobLost:
                worker.kill()
                left = range(left.start + len(done), left.stop)
                if done != list(range(left.start - len(done), left.start)):
                    break  # behind missing ones some were handed over: not to be written again
        raise WorkerLost(
            f"worker process {index} ended, and {MAX_RESTARTS} that replaced it"
            if attempt == MAX_RESTARTS
            else f"worker process {index} ended"
        )

    def _arrived(self, report: LayerDone) -> None:
        layer = report.layer
        self._shares_done[layer] += 1
        self.arrived_at[layer] = max(self.arrived_at.get(layer, 0.0), report.arrived_at)
        while self._next in self._job.layers and self._is_whole(self._next):
            self._hand_over(self._next)
            self._next += 1

    def _is_whole(self, layer: int) -> bool:
        return self._shares_done[layer] == self._workers

    def _hand_over(self, layer: int) -> None:
        self._ready.append(UsableLayer(layer, *self._placing.arrays(layer)))
        self._handed_over += 1
        self._news.set()

    def _ended(self, report: Ended) -> None:
        """Take the end of a share. Raises: what ended it, unless Objects are missing alone."""
        if report.error is None:
            return
        error = report.error.rebuilt()
        if not isinstance(error, IncompleteRetrieval):
            raise error
        self._problems.append(error)

    def _finish(self, errors: list[Exception]) -> None:
        for layer in range(self._next, self._job.layers.stop):
            if self._is_whole(layer):
                self._hand_over(layer)
        self.missing = tuple(sorted({one for each in self._problems for one in each.missing}))
        known = [error for error in errors if isinstance(error, KvcsError | MoqtError)]
        if errors:
            self._error = (known or errors)[0]
        elif self._problems:
            texts = dict.fromkeys(each.problem for each in self._problems if each.problem)
            self._error = IncompleteRetrieval(self.missing, "; ".join(texts))
        elif self._handed_over < len(self._job.layers):
            self._error = KvcsError("it was closed before all layers came")
        self.is_over = True
        self._news.set()
