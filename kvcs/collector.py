"""One retrieval at work: manifests, track feeds and recovery, until all is usable or given up.

`Collector` runs on its event loop as one task with helpers that it owns and ends. What is missing
is tracked by track and layer: lost (no request under way will bring it), then recovered, or given
up when `Recovery` has no more attempts or time. Every wait has a bound: `stall_timeout_s` for
progress, `recovery_deadline_s` for recovery.
Source: KVCS 5.2 to 5.4.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections import deque
from typing import TYPE_CHECKING, TypeAlias

from kvcs.assembly import Assembly, UsableLayer
from kvcs.errors import (
    IncompleteRetrieval,
    KvcsError,
    ManifestInvalid,
    NotDeterministic,
    PublicationUnusable,
)
from kvcs.feeds import choose_tracks
from kvcs.kvsp.shapes import Component
from kvcs.losses import Losses
from kvcs.recovery import OtherPublication, Recovery, Step, StepKind, check_mix
from kvcs.standstill import Standstill
from kvcs.track_feed import TrackFeed, TrackSink
from kvcs.wanted import WantedTrack
from moqt.errors import MoqtError
from moqt.types import FullTrackName

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
    from concurrent.futures import Executor

    from kvcs.config import ConsumerConfig
    from kvcs.destinations import Destinations
    from kvcs.endpoints import Endpoints
    from kvcs.errors import MissingObject
    from kvcs.feeds import Feed
    from kvcs.kvsp.identity import Prefix
    from kvcs.kvsp.shapes import AnyArray
    from kvcs.manifest import Manifest, SegmentEntry
    from kvcs.names import DataTrackName
    from kvcs.recovery import Source
    from kvcs.stats import RetrievalStats
    from moqt.types import TrackNamespace

__all__ = ["Collector", "Recompute", "RecomputedBlock"]

_log = logging.getLogger(__name__)

RecomputedBlock: TypeAlias = "AnyArray | tuple[AnyArray, AnyArray | None]"
Recompute: TypeAlias = (
    "Callable[[tuple[MissingObject, ...]], Mapping[MissingObject, RecomputedBlock] "
    "| Awaitable[Mapping[MissingObject, RecomputedBlock]]]"
)
"""Gets missing Objects, returns those it could recompute: by Object the block's K or V array, for a
joint one both. A plain function runs in a worker thread."""

MAX_PROBLEMS = 8
"""Problems of one retrieval that its final error tells."""


class Collector:
    """Fills an assembly from a first feed, and from others when that one fails.

    `others` gives further sources whenever it is asked: publications that were found meanwhile.
    """

    def __init__(
        self,
        endpoints: Endpoints,
        *,
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
        self._endpoints = endpoints
        self._others = others
        self._prefix = prefix
        self._blocks = blocks
        self._has_v = any(
            prefix.descriptor.geometry(layer).has(Component.V) for layer in self.assembly.layers
        )
        self._require_listed = require_listed
        self._recompute = recompute
        self._config = config
        self._threads = threads
        self._recovery = Recovery(
            sources=sources,
            can_recompute=recompute is not None,
            deadline_s=recovery_deadline_s,
        )
        self._slots = asyncio.Semaphore(config.max_open_requests)
        self._segments: dict[int, tuple[SegmentEntry, list[int]]] = {}
        self._names: list[DataTrackName] = []
        self._wanted: list[WantedTrack] = []
        self._feed: Feed | None = None
        self._home: TrackNamespace | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._attempt: asyncio.Task[None] | None = None
        self._losses = Losses(self.assembly)
        self._standstill = Standstill(
            self.assembly,
            stall_timeout_s=config.stall_timeout_s,
            overtaken_timeout_s=config.overtaken_timeout_s,
        )
        self._manifest_lost = False
        self._manifest_given_up = False
        self._recovered = False
        self._failure: Exception | None = None
        self._problems: list[str] = []
        self._changed = asyncio.Event()
        self._news = asyncio.Event()

    # For the retrieval

    @property
    def feed(self) -> Feed:
        """The publication now in use."""
        assert self._feed is not None
        return self._feed

    async def news(self) -> None:
        """Wait until a layer is ready or the retrieval is over. Cancelling leaves no trace."""
        if not self.ready and not self.is_over:
            self._news.clear()
            await self._news.wait()

    def begin(self, feed: Feed) -> None:
        """Take the first feed. Raises: PublicationUnusable; nothing runs then."""
        self._home = feed.namespace
        self._feed = feed
        self._take_manifest(feed, feed.manifest, start=False)

    async def run(self) -> None:
        """Collect until everything is usable or given up. Cancelled: everything is ended."""
        try:
            self._adopt(self.feed)
            await self._supervise()
        except KvcsError as error:
            self._failure = error
        finally:
            await self._stop()
            self._finish()

    # Arrivals: what track feeds tell

    @property
    def is_stalled(self) -> bool:
        """Whether nothing has come for `stall_timeout_s`."""
        return self._standstill.is_stalled

    def progressed(self, track: int, layer: int, block: int) -> None:
        """An Object was verified."""
        if self._losses and self._losses.includes(track, layer, block):
            self._recovered = True
            self._changed.set()
        if self.assembly.has_all_objects(layer):
            self.arrived_at.setdefault(layer, time.monotonic())
            self._changed.set()

    def lose(self, track: int, layer: int, block: int | None = None) -> None:
        """An Object, or all of a layer that lack, will not come by the requests under way."""
        if self._losses.add(track, layer, block):
            self._changed.set()

    # Manifests and tracks

    def _take_manifest(self, feed: Feed, manifest: Manifest, *, start: bool) -> None:
        """Take a manifest version: new segments, digests. Raises: PublicationUnusable."""
        feed.manifest = manifest
        self.stats.manifest_versions += 1
        for entry in manifest.segments:
            if entry.span.first_block >= self._blocks:
                continue
            segment = entry.span.segment
            if segment not in self._segments:
                self._add_segment(entry)
            known, tracks = self._segments[segment]
            if known.span != entry.span or not {self._names[t] for t in tracks} <= set(
                entry.tracks
            ):
                raise NotDeterministic(
                    f"segment {segment} is cut or encoded otherwise than in the publication that "
                    "this retrieval began with"
                )
            if feed.namespace == self._home:
                self._list_digests(entry, tracks)
            if start:
                for track in tracks:
                    self._start_track(feed, track, is_complete=entry.complete)
        self._changed.set()

    def _add_segment(self, entry: SegmentEntry) -> None:
        span = entry.span
        path = f"$.segments[{span.segment}]"
        if span.stop_block <= self._prefix.blocks:
            keys = self._prefix.block_keys_sha256(span.first_block, span.blocks)
            if keys != entry.block_keys_sha256:
                raise ManifestInvalid(
                    f"{path}.block_keys_sha256", "is not that of this prompt's tokens (KVCS 3.6)"
                )
        tracks = []
        for name, codec in choose_tracks(entry, self._config, has_v=self._has_v):
            wanted = WantedTrack(
                name=name,
                codec=codec,
                span=span,
                blocks=min(span.blocks, self._blocks - span.first_block),
            )
            tracks.append(self.assembly.add_track(wanted))
            self._names.append(name)
            self._wanted.append(wanted)
        self.assembly.cover(span)
        self._segments[span.segment] = (entry, tracks)

    def _list_digests(self, entry: SegmentEntry, tracks: list[int]) -> None:
        for track in tracks:
            groups = entry.object_digests.get(self._names[track], ())
            for layer, digests in enumerate(groups[: self.assembly.layers.stop]):
                rejected = self.assembly.list_digests(track, layer, digests)
                for block in rejected:
                    self.lose(track, layer, block)

    def _start_track(self, feed: Feed, track: int, *, is_complete: bool) -> None:
        if track in feed.tracks or self.assembly.is_track_complete(track):
            return
        feed.tracks.add(track)
        feed.running += 1
        self._take_from(feed, self._run_track(feed, track, is_complete=is_complete))

    async def _run_track(self, feed: Feed, track: int, *, is_complete: bool) -> None:
        try:
            await self._track_feed(feed, track).run(is_complete=is_complete)
        except MoqtError as error:
            self._note(f"{self._names[track]}: {error}")
        finally:
            feed.running -= 1
            self._changed.set()
        for layer in self.assembly.incomplete_layers(track):
            self.lose(track, layer)

    def _track_feed(self, feed: Feed, track: int) -> TrackFeed:
        return TrackFeed(
            feed.session,
            FullTrackName(feed.namespace, str(self._names[track]).encode()),
            track=track,
            wanted=self._wanted[track],
            layers=self._prefix.descriptor.layers,
            assembly=self.assembly,
            arrivals=self,
            config=self._config,
            slots=self._slots,
            threads=self._threads,
            stats=self.stats,
            redirected=lambda error: self._endpoints.redirected(feed, error),
        )

    def _adopt(self, feed: Feed) -> None:
        """Take everything that lacks from `feed` from now on, and follow its manifest."""
        self._feed = feed
        self._losses.clear()
        self._manifest_lost = False
        feed.is_followed = True
        self._take_from(feed, self._follow(feed))
        self._spawn(self._move_with_session(feed))
        self._spawn(self._move_with_manifest(feed))
        for entry in feed.manifest.segments:
            if entry.span.segment in self._segments:
                for track in self._segments[entry.span.segment][1]:
                    self._start_track(feed, track, is_complete=entry.complete)

    async def _follow(self, feed: Feed) -> None:
        try:
            async for manifest in feed.manifests:
                self._take_manifest(feed, manifest, start=True)
        except MoqtError as error:
            self._note(f"manifest: {error}")
        except PublicationUnusable as error:
            self._failure = error
        except asyncio.CancelledError:
            feed.is_followed = False
            raise
        feed.is_followed = False
        self._manifest_lost = True
        self._changed.set()

    async def _move_with_session(self, feed: Feed) -> None:
        """Go on at the next session when the peer asks to leave this one (MOQT-22 9.2)."""
        if await feed.session.wait_goaway() is not None:
            await self._move(feed, "")

    async def _move_with_manifest(self, feed: Feed) -> None:
        """Go on elsewhere when the publisher asks that of the manifest's subscription alone."""
        goaway = await feed.manifests.wait_goaway()
        if goaway is not None and goaway.request_id is not None:
            await self._move(feed, goaway.new_session_uri)

    async def _move(self, feed: Feed, uri: str) -> None:
        """Take the rest from the same publication elsewhere; what fails goes on where it is."""
        if self._feed is not feed:
            return
        following: Feed | None = None
        try:
            following = await self._endpoints.next_feed(self._prefix, feed, uri)
            if self._feed is feed:
                await self._take_over(following)
                self.stats.moves += 1
        except (MoqtError, KvcsError) as error:
            self._note(f"moving: {error}")
        finally:
            if following is not None and self._feed is not following:
                await following.close()

    def _needs_manifest(self) -> bool:
        """Whether a later manifest version is waited for."""
        if not self.assembly.is_covered:
            return True
        return self._require_listed and any(
            self.assembly.has_all_objects(layer) and not self.assembly.is_usable(layer)
            for layer in self.assembly.layers
        )

    # The course of a retrieval

    async def _supervise(self) -> None:
        loop = asyncio.get_running_loop()
        while self._failure is None:
            self._changed.clear()
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
                    await self._changed.wait()
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
            self._note(f"no progress for {self._config.stall_timeout_s:g} s")
            self._manifest_lost = True
        for track, layer in found.layers:
            self.lose(track, layer)

    def _lost_now(self) -> bool:
        """Return whether anything is lost that was not given up."""
        self._losses.settle()
        self.stats.missing = self._losses.count
        return bool(self._losses) or (
            self._manifest_lost and not self._manifest_given_up and self._needs_manifest()
        )

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
        self._attempt = self._spawn(self._try(step, self._recovery.step_deadline(now)))

    def _give_up(self) -> None:
        self._losses.give_up()
        if self._manifest_lost and self._needs_manifest():
            self._manifest_given_up = True
        self._recovery.end()

    def _is_hopeless(self) -> bool:
        """Whether all that lacks was given up."""
        if self._needs_manifest() and not self._manifest_given_up:
            return False
        return self._losses.is_all_given_up()

    # Attempts

    async def _try(self, step: Step, deadline: float | None) -> None:
        """Make one attempt; what it does not bring stays lost."""
        _log.debug("recovery: %s", step.kind.value)
        try:
            async with asyncio.timeout_at(deadline):
                match step.kind:
                    case StepKind.AGAIN:
                        await self._fetch_lost(self.feed)
                    case StepKind.RECONNECT:
                        await self._reconnect()
                    case StepKind.SOURCE:
                        await self._ask(step.source)
                    case StepKind.RECOMPUTE:
                        await self._have_recomputed()
        except TimeoutError:
            self._note(f"{step.kind.value}: no success within its share of recovery_deadline_s")
        except (MoqtError, KvcsError) as error:
            self._note(f"{step.kind.value}: {error}")
        finally:
            self._changed.set()

    async def _fetch_lost(self, feed: Feed) -> None:
        async with asyncio.TaskGroup() as group:
            for track, missing in self._losses.by_track().items():
                group.create_task(self._fetch_some(feed, track, missing))

    async def _fetch_some(self, feed: Feed, track: int, missing: dict[int, list[int]]) -> None:
        await self._track_feed(feed, track).fetch_missing(missing)

    async def _reconnect(self) -> None:
        old = self.feed
        feed = await self._endpoints.next_feed(self._prefix, old)
        if self._feed is not old:  # a GOAWAY led there meanwhile
            await feed.close()
            return
        self.stats.reconnects += 1
        await self._take_over(feed)

    async def _ask(self, source: Source | None) -> None:
        assert source is not None
        ours = self.feed
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
            if not ours.is_alive and not self._is_all_published():
                await self._take_over(feed)
                return
            self._take_manifest(feed, feed.manifest, start=False)
            await self._fetch_lost(feed)
        finally:
            if self._feed is not feed:
                await feed.close()

    def _is_all_published(self) -> bool:
        """Whether the manifest says that everything wanted is there, to be fetched."""
        return not self._needs_manifest() and all(
            entry.complete
            for entry in self.feed.manifest.segments
            if entry.span.segment in self._segments
        )

    async def _take_over(self, feed: Feed) -> None:
        old = self.feed
        try:
            self._take_manifest(feed, feed.manifest, start=False)
        except PublicationUnusable:
            await feed.close()
            raise
        await old.end_tasks()
        self._adopt(feed)
        await old.close()

    async def _have_recomputed(self) -> None:
        if self._recompute is None:
            return
        lost = self._losses.by_track()
        missing = tuple(
            one
            for one in self.assembly.missing()
            if (track := self._track_of(one)) is not None
            and one.block in lost.get(track, {}).get(one.layer, ())
        )
        for track, layers in lost.items():
            for layer in layers:
                for holder in self.assembly.holders(track, layer):
                    if isinstance(holder, TrackSink):
                        await holder.stop()
        if inspect.iscoroutinefunction(self._recompute):
            found = await self._recompute(missing)
        else:
            loop = asyncio.get_running_loop()
            found = await loop.run_in_executor(self._threads, self._recompute, missing)
            if inspect.isawaitable(found):
                found = await found
        for one, arrays in found.items():
            k, v = _k_and_v(one, arrays)
            if self.assembly.recomputed(one, k, v):
                self._recovered = True

    def _track_of(self, missing: MissingObject) -> int | None:
        for track, name in enumerate(self._names):
            if name.segment == missing.segment and name.component is missing.component:
                return track
        return None

    # The end

    def _spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)
        return task

    def _take_from(self, feed: Feed, work: Coroutine[None, None, None]) -> None:
        task = self._spawn(work)
        feed.tasks.add(task)
        task.add_done_callback(feed.tasks.discard)

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and isinstance(error := task.exception(), Exception):
            self._failure = error
        self._changed.set()

    async def _stop(self) -> None:
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._feed is not None:
            await self._feed.close()

    def _finish(self) -> None:
        self._collect(self.assembly.next_usable)
        self._collect(self.assembly.next_remaining)
        missing = self.assembly.missing()
        self.stats.missing = len(missing)
        if self._failure is not None:
            self.error = self._failure
        elif missing:
            self.error = IncompleteRetrieval(missing, "; ".join(self._problems))
        elif not self.assembly.is_complete:
            self.error = PublicationUnusable(
                "all Objects are there, but the signed manifest lists no digests for some layers, "
                "so they are not authentic (KVCS 3.6)"
            )
        self.is_over = True
        self._news.set()

    def _note(self, problem: str) -> None:
        if problem not in self._problems and len(self._problems) < MAX_PROBLEMS:
            self._problems.append(problem)
        _log.info("retrieval: %s", problem)


def _k_and_v(
    missing: MissingObject, arrays: RecomputedBlock
) -> tuple[AnyArray | None, AnyArray | None]:
    if isinstance(arrays, tuple):
        return arrays
    return (None, arrays) if missing.component is Component.V else (arrays, None)
