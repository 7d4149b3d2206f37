"""One retrieval at work: taking, finding out what is missing, recovery, until all is usable or not.

`Collector` runs on its event loop as one task with helpers that it owns and ends. What is missing
is tracked by track and layer: lost (no request under way will bring it), then recovered, or given
up when `Recovery` has no more attempts or time. Every wait has a bound: `stall_timeout_s` for
progress, `recovery_deadline_s` for recovery.
Source: KVCS 5.2 to 5.4.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import TYPE_CHECKING

from kvcs.assembly import Assembly, UsableLayer
from kvcs.attempts import Attempts
from kvcs.checks import Checks
from kvcs.course import Course
from kvcs.errors import IncompleteRetrieval, KvcsError, PublicationUnusable
from kvcs.losses import Losses
from kvcs.recovery import Recovery
from kvcs.standstill import Standstill
from kvcs.striping.shares import WHOLE
from kvcs.supply import Supply

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from concurrent.futures import Executor

    from kvcs.attempts import Recompute
    from kvcs.config import ConsumerConfig
    from kvcs.destinations import Destinations
    from kvcs.endpoints import Endpoints
    from kvcs.feeds import Feed
    from kvcs.kvsp.identity import Prefix
    from kvcs.recovery import Source
    from kvcs.stats import RetrievalStats
    from kvcs.striping.shares import Striping

__all__ = ["Collector"]


class Collector:
    """Fills an assembly from the feed `first`, and from others when that one fails.

    `others` gives further sources whenever it is asked: publications that were found meanwhile.
    Raises: PublicationUnusable for the first manifest; nothing runs then.
    """

    def __init__(
        self,
        first: Feed,
        *,
        endpoints: Endpoints,
        prefix: Prefix,
        first_layer: int,
        last_layer: int,
        blocks: int,
        destinations: Destinations,
        require_listed: bool,
        sources: Iterable[Source],
        others: Callable[[], Iterable[Source]],
        recompute: Recompute | None,
        recovery_deadline_s: float,
        config: ConsumerConfig,
        threads: Executor,
        stats: RetrievalStats,
        striping: Striping = WHOLE,
    ) -> None:
        self.stats = stats
        self.ready: deque[UsableLayer] = deque()
        """Usable layers not taken yet; bounded by the layers that were asked for."""
        self.error: Exception | None = None
        """Why the retrieval did not bring everything; set when it is over."""
        self.is_over = False
        self.arrived_at: dict[int, float] = {}
        """By layer: `time.monotonic()` when the last of its Objects was first verified."""
        self.assembly = Assembly(
            prefix.descriptor,
            destinations,
            first_layer=first_layer,
            last_layer=last_layer,
            blocks=blocks,
            require_listed=require_listed,
            stats=stats,
        )
        self._config = config
        self._course = Course()
        self._losses = Losses(self.assembly)
        self._destinations = destinations
        self._checks = Checks(self.assembly, threads, config, self._course.fail)
        self._supply = Supply(
            first,
            endpoints=endpoints,
            prefix=prefix,
            assembly=self.assembly,
            losses=self._losses,
            arrivals=self,
            course=self._course,
            config=config,
            checks=self._checks,
            striping=striping,
        )
        self._attempts = Attempts(
            self._supply,
            endpoints=endpoints,
            prefix=prefix,
            assembly=self.assembly,
            losses=self._losses,
            arrivals=self,
            course=self._course,
            recompute=recompute,
        )
        self._attempt: asyncio.Task[None] | None = None
        self._recovery = Recovery(
            sources=sources,
            can_recompute=recompute is not None,
            deadline_s=recovery_deadline_s,
        )
        self._others = others
        self._standstill = Standstill(
            self.assembly,
            stall_timeout_s=config.stall_timeout_s,
            overtaken_timeout_s=config.overtaken_timeout_s,
        )
        self._manifest_given_up = False
        self._recovered = False
        self._news = asyncio.Event()
        self._supply.begin()

    # For the retrieval

    @property
    def feed(self) -> Feed:
        """The publication now in use."""
        return self._supply.feed

    async def news(self) -> None:
        """Wait until a layer is ready or the retrieval is over. Cancelling leaves no trace."""
        if not self.ready and not self.is_over:
            self._news.clear()
            await self._news.wait()

    async def run(self) -> None:
        """Collect until everything is usable or given up. Cancelled: everything is ended."""
        try:
            self._destinations.prepare(self.assembly.layers.start)
            self._supply.start()
            await self._supervise()
            await self._checks.wait_all()
        except KvcsError as error:
            self._course.failure = error
        finally:
            await self._course.stop()
            await self._checks.close()
            await self._supply.close()
            self._destinations.close()
            self._finish()

    # Arrivals: what track feeds tell

    @property
    def is_stalled(self) -> bool:
        """Whether nothing has come of the layer that is waited for within `stall_timeout_s`."""
        return self._standstill.is_stalled

    def progressed(self, track: int, layer: int, block: int) -> None:
        """An Object was verified, or recomputed."""
        if self._losses.includes(track, layer, block):
            self._recovered = True
            self._course.changed.set()
        if self.assembly.has_all_objects(layer):
            self.arrived_at.setdefault(layer, time.monotonic())
            self._course.changed.set()

    def lose(self, track: int, layer: int, block: int | None = None) -> None:
        """An Object, or all of a layer that lack, will not come by the requests under way."""
        if self._losses.add(track, layer, block):
            self._course.changed.set()

    # The course of a retrieval

    async def _supervise(self) -> None:
        loop = asyncio.get_running_loop()
        while self._course.failure is None:
            self._course.changed.clear()
            self._collect(self.assembly.next_usable)
            if self.assembly.is_complete:
                return
            now = loop.time()
            self._look(now)
            self._recover(now)
            if self._is_hopeless():
                return
            try:
                async with asyncio.timeout_at(max(self._standstill.next_look, now)):
                    await self._course.changed.wait()
            except TimeoutError:
                pass

    def _collect(self, take: Callable[[], UsableLayer | None]) -> None:
        while (layer := take()) is not None:
            self.arrived_at.setdefault(layer.index, time.monotonic())
            self.ready.append(layer)
            self._news.set()

    def _look(self, now: float) -> None:
        """Count as lost what stands still."""
        found = self._standstill.look(now)
        if found.is_stall:
            self._course.note(f"no progress for {self._config.stall_timeout_s:g} s")
            self._supply.is_manifest_lost = True
        for track, layer in found.layers:
            self.lose(track, layer)

    def _recover(self, now: float) -> None:
        """Begin, go on with, or end recovery."""
        if self._recovered:
            self._recovered = False
            self._recovery.end()
        is_attempting = self._attempt is not None and not self._attempt.done()
        if not self._lost_now():
            if not is_attempting:
                self._recovery.pause(now)
            return
        self._recovery.add_sources(self._others())
        self._recovery.begin(now)
        if is_attempting:
            return  # it ends within its share of the time
        step = self._recovery.next_step(now, is_connected=not self.feed.is_left)
        if step is None:
            self._give_up()
            return
        self.stats.retries += 1
        deadline = self._recovery.step_deadline(now)
        self._attempt = self._course.spawn(self._attempts.make(step, deadline))

    def _lost_now(self) -> bool:
        """Return whether anything is lost that was not given up."""
        self._losses.settle()
        self.stats.missing = self._losses.count
        return bool(self._losses) or (self._lacks_manifest() and not self._manifest_given_up)

    def _lacks_manifest(self) -> bool:
        """Return whether a manifest version is needed that will not come by itself."""
        return self._supply.is_manifest_lost and self.assembly.needs_manifest

    def _give_up(self) -> None:
        self._losses.give_up()
        if self._lacks_manifest():
            self._manifest_given_up = True
        self._recovery.end()

    def _is_hopeless(self) -> bool:
        """Whether all that lacks was given up."""
        if self.assembly.needs_manifest and not self._manifest_given_up:
            return False
        return self._losses.is_all_given_up()

    # The end

    def _finish(self) -> None:
        self._collect(self.assembly.next_usable)
        self._collect(self.assembly.next_remaining)
        missing = self.assembly.missing()
        self.stats.missing = len(missing)
        if self._course.failure is not None:
            self.error = self._course.failure
        elif missing:
            self.error = IncompleteRetrieval(missing, "; ".join(self._course.problems))
        elif not self.assembly.is_complete:
            self.error = PublicationUnusable(
                "all Objects are there, but the signed manifest lists no digests for some layers, "
                "so they are not authentic (KVCS 3.6)"
            )
        self.is_over = True
        self._news.set()
