"""The attempts to get what is missing, each as `Recovery` names it (KVCS 5.4)."""

from __future__ import annotations

import asyncio
import inspect
import logging
from typing import TYPE_CHECKING, TypeAlias

from kvcs.errors import KvcsError
from kvcs.kvsp.shapes import Component
from kvcs.recovery import OtherPublication, Step, StepKind, check_mix
from kvcs.track_feed import TrackSink
from moqt.errors import MoqtError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from kvcs.assembly import Assembly
    from kvcs.course import Course
    from kvcs.endpoints import Endpoints
    from kvcs.errors import MissingObject
    from kvcs.kvsp.identity import Prefix
    from kvcs.kvsp.shapes import AnyArray
    from kvcs.losses import Losses
    from kvcs.recovery import Source
    from kvcs.supply import Supply
    from kvcs.track_feed import Arrivals

__all__ = ["Attempts", "Recompute", "RecomputedBlock"]

_log = logging.getLogger(__name__)

RecomputedBlock: TypeAlias = "AnyArray | tuple[AnyArray, AnyArray | None]"
Recompute: TypeAlias = (
    "Callable[[tuple[MissingObject, ...]], Mapping[MissingObject, RecomputedBlock] "
    "| Awaitable[Mapping[MissingObject, RecomputedBlock]]]"
)
"""Gets missing Objects, returns those it could recompute: by Object the block's K or V array, for a
joint one both. A plain function runs in a worker thread."""


class Attempts:
    """Makes attempts; what one does not bring stays lost."""

    def __init__(
        self,
        supply: Supply,
        *,
        endpoints: Endpoints,
        prefix: Prefix,
        assembly: Assembly,
        losses: Losses,
        arrivals: Arrivals,
        course: Course,
        recompute: Recompute | None,
    ) -> None:
        self._supply = supply
        self._endpoints = endpoints
        self._prefix = prefix
        self._assembly = assembly
        self._losses = losses
        self._arrivals = arrivals
        self._course = course
        self._recompute = recompute

    async def make(self, step: Step, deadline: float | None) -> None:
        """Make one attempt, until `deadline` of the loop's clock. Why it failed is noted."""
        _log.debug("recovery: %s", step.kind.value)
        try:
            async with asyncio.timeout_at(deadline):
                match step.kind:
                    case StepKind.AGAIN:
                        await self._supply.fetch_lost(self._supply.feed)
                    case StepKind.RECONNECT:
                        await self._reconnect()
                    case StepKind.SOURCE:
                        await self._ask(step.source)
                    case StepKind.RECOMPUTE:
                        await self._have_recomputed()
        except TimeoutError:
            self._course.note(
                f"{step.kind.value}: no success within its share of recovery_deadline_s"
            )
        except (MoqtError, KvcsError) as error:
            self._course.note(f"{step.kind.value}: {error}")
        finally:
            self._course.changed.set()

    async def _reconnect(self) -> None:
        old = self._supply.feed
        feed = await self._endpoints.next_feed(self._prefix, old)
        if self._supply.feed is not old:  # a GOAWAY led there meanwhile
            await feed.close()
            return
        self._assembly.stats.reconnects += 1
        await self._supply.take_over(feed)

    async def _ask(self, source: Source | None) -> None:
        assert source is not None
        supply = self._supply
        ours = supply.feed
        is_other = isinstance(source, OtherPublication)
        namespace = source.namespace if isinstance(source, OtherPublication) else ours.namespace
        if namespace == ours.namespace and (source.url or ours.url) == ours.url:
            return
        feed = await self._endpoints.open_feed(self._prefix, namespace, source.url)
        try:
            if is_other:
                check_mix(
                    ours_deterministic=ours.manifest.deterministic,
                    theirs_deterministic=feed.manifest.deterministic,
                )
            if not ours.is_alive and not supply.is_all_published():
                await supply.take_over(feed)
                return
            supply.take_manifest(feed, feed.manifest)
            await supply.fetch_lost(feed)
        finally:
            if supply.feed is not feed:
                await feed.close()

    async def _have_recomputed(self) -> None:
        if self._recompute is None:
            return
        missing = self._lost_objects()
        for track, layers in self._losses.by_track().items():
            for layer in layers:
                for holder in self._assembly.holders(track, layer):
                    if isinstance(holder, TrackSink):
                        holder.stop()
        if inspect.iscoroutinefunction(self._recompute):
            found = await self._recompute(missing)
        else:
            # not one of the consumer's threads: other retrievals would wait for them
            found = await asyncio.to_thread(self._recompute, missing)
            if inspect.isawaitable(found):
                found = await found
        for one, arrays in found.items():
            at = self._supply.track_of(one)
            if self._assembly.recomputed(one, *_k_and_v(one, arrays)) and at is not None:
                self._arrivals.progressed(at, one.layer, one.block)

    def _lost_objects(self) -> tuple[MissingObject, ...]:
        lost = self._losses.by_track()
        return tuple(
            one
            for one in self._assembly.missing()
            if (track := self._supply.track_of(one)) is not None
            and one.block in lost.get(track, {}).get(one.layer, ())
        )


def _k_and_v(
    missing: MissingObject, arrays: RecomputedBlock
) -> tuple[AnyArray | None, AnyArray | None]:
    if isinstance(arrays, tuple):
        return arrays
    return (None, arrays) if missing.component is Component.V else (arrays, None)
