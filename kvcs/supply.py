"""The publication that a retrieval takes from: its manifests, and a feed for each wanted track.

It changes when a session or a request is asked to move (GOAWAY), and when recovery goes elsewhere;
the segments and tracks that were chosen stay the same, so whatever comes next must match them.
Source: KVCS 5.2, 5.3, MOQT-22 9.2.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from kvcs.errors import KvcsError, ManifestInvalid, NotDeterministic, PublicationUnusable
from kvcs.feeds import choose_tracks
from kvcs.kvsp.shapes import Component
from kvcs.striping.shares import WHOLE
from kvcs.track_feed import TrackFeed
from kvcs.wanted import WantedTrack
from moqt.errors import MoqtError
from moqt.types import FullTrackName

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine

    from kvcs.assembly import Assembly
    from kvcs.checks import Checks
    from kvcs.config import ConsumerConfig
    from kvcs.course import Course
    from kvcs.endpoints import Endpoints
    from kvcs.errors import MissingObject
    from kvcs.feeds import Feed
    from kvcs.kvsp.identity import Prefix
    from kvcs.losses import Losses
    from kvcs.manifest import Manifest, SegmentEntry
    from kvcs.striping.shares import Striping
    from kvcs.track_feed import Arrivals
    from moqt.asyncio.following import Place

__all__ = ["Supply"]


class Supply:
    """What an assembly is filled from. `first` is the first feed; `begin` takes its manifest."""

    def __init__(
        self,
        first: Feed,
        *,
        endpoints: Endpoints,
        prefix: Prefix,
        assembly: Assembly,
        losses: Losses,
        arrivals: Arrivals,
        course: Course,
        config: ConsumerConfig,
        checks: Checks,
        striping: Striping = WHOLE,
    ) -> None:
        self.feed = first
        """The publication now in use."""
        self.is_manifest_lost = False
        """Whether no further manifest version will come by itself."""
        self._home = first.namespace
        self._endpoints = endpoints
        self._prefix = prefix
        self._assembly = assembly
        self._losses = losses
        self._arrivals = arrivals
        self._course = course
        self._config = config
        self._checks = checks
        self._has_v = any(
            prefix.descriptor.geometry(layer).has(Component.V) for layer in assembly.layers
        )
        self._slots = [asyncio.Semaphore(config.max_open_requests) for _ in range(striping.lanes)]
        self._segments: dict[int, tuple[SegmentEntry, list[int]]] = {}
        self._wanted: list[WantedTrack] = []
        self._striping = striping
        self._lane_of: list[int] = []

    # Queries

    def is_all_published(self) -> bool:
        """Whether the manifest says that everything wanted is there, to be fetched."""
        return not self._assembly.needs_manifest and all(
            entry.complete
            for entry in self.feed.manifest.segments
            if entry.span.segment in self._segments
        )

    def track_of(self, missing: MissingObject) -> int | None:
        """Return the number of the track that an Object is missing in; None: it has none yet."""
        for track, wanted in enumerate(self._wanted):
            name = wanted.name
            if (
                name.segment == missing.segment
                and name.component is missing.component
                and missing.block in wanted
            ):
                return track
        return None

    # Commands

    def begin(self) -> None:
        """Take the first manifest; nothing runs yet. Raises: PublicationUnusable."""
        self.take_manifest(self.feed, self.feed.manifest)

    def start(self) -> None:
        """Take everything that lacks from `feed` from now on, and follow its manifest."""
        feed = self.feed
        self._losses.clear()
        self.is_manifest_lost = False
        feed.is_followed = True
        self._take_from(feed, self._follow(feed))
        self._course.spawn(self._move_with_session(feed))
        self._course.spawn(self._move_with_manifest(feed))
        self._start_tracks(feed, feed.manifest)

    async def take_over(self, feed: Feed) -> None:
        """Go on with `feed`, and close the one before. Raises: PublicationUnusable; it's closed."""
        old = self.feed
        try:
            self.take_manifest(feed, feed.manifest)
        except PublicationUnusable:
            await feed.close()
            raise
        await old.end_tasks()
        self.feed = feed
        self.start()
        await old.close()

    async def fetch_lost(self, feed: Feed) -> None:
        """FETCH from `feed` what is lost; what it does not bring stays lost."""
        async with asyncio.TaskGroup() as group:
            for track, missing in self._losses.by_track().items():
                group.create_task(self._fetch_some(feed, track, missing))

    async def close(self) -> None:
        """Close the feed; the tasks that take from it have ended."""
        await self.feed.close()

    # Manifests

    def take_manifest(self, feed: Feed, manifest: Manifest) -> None:
        """Take a manifest version: new segments, digests. Raises: PublicationUnusable."""
        feed.manifest = manifest
        self._assembly.stats.manifest_versions += 1
        for entry in manifest.segments:
            if entry.span.first_block >= self._assembly.blocks:
                continue
            segment = entry.span.segment
            if segment not in self._segments:
                self._add_segment(entry)
            known, tracks = self._segments[segment]
            names = {self._wanted[track].name for track in tracks}
            if known.span != entry.span or not names <= set(entry.tracks):
                raise NotDeterministic(
                    f"segment {segment} is cut or encoded otherwise than in the publication that "
                    "this retrieval began with"
                )
            if feed.namespace == self._home:
                self._list_digests(entry, tracks)
        self._course.changed.set()

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
            blocks = min(span.blocks, self._assembly.blocks - span.first_block)
            for share in self._striping.shares(name, blocks):
                wanted = WantedTrack(
                    name=name,
                    codec=codec,
                    span=span,
                    blocks=share.blocks.stop,
                    skip=share.blocks.start,
                    is_part=len(share.blocks) < blocks,
                )
                tracks.append(self._assembly.add_track(wanted))
                self._wanted.append(wanted)
                self._lane_of.append(share.lane)
        self._assembly.cover(span)
        self._segments[span.segment] = (entry, tracks)

    def _list_digests(self, entry: SegmentEntry, tracks: list[int]) -> None:
        for track in tracks:
            groups = entry.object_digests.get(self._wanted[track].name, ())
            for layer, digests in enumerate(groups[: self._assembly.layers.stop]):
                for block in self._assembly.list_digests(track, layer, digests):
                    self._arrivals.lose(track, layer, block)

    async def _follow(self, feed: Feed) -> None:
        try:
            async for manifest in feed.manifests:
                self.take_manifest(feed, manifest)
                self._start_tracks(feed, manifest)
        except MoqtError as error:
            self._course.note(f"manifest: {error}")
        except PublicationUnusable as error:
            self._course.failure = error
        except asyncio.CancelledError:
            feed.is_followed = False
            raise
        feed.is_followed = False
        self.is_manifest_lost = True
        self._course.changed.set()

    # Tracks

    def _start_tracks(self, feed: Feed, manifest: Manifest) -> None:
        for entry in manifest.segments:
            if entry.span.segment in self._segments:
                for track in self._segments[entry.span.segment][1]:
                    self._start_track(feed, track, is_complete=entry.complete)

    def _start_track(self, feed: Feed, track: int, *, is_complete: bool) -> None:
        if track in feed.tracks or self._assembly.is_track_complete(track):
            return
        feed.tracks.add(track)
        feed.running += 1
        self._take_from(feed, self._run_track(feed, track, is_complete=is_complete))

    async def _run_track(self, feed: Feed, track: int, *, is_complete: bool) -> None:
        try:
            for turn in range(self._striping.lanes):
                lane = (self._lane_of[track] + turn) % self._striping.lanes
                if await self._run_at(feed, lane, track, is_complete=is_complete):
                    break
        finally:
            feed.running -= 1
            self._course.changed.set()
        for layer in self._assembly.incomplete_layers(track):
            self._arrivals.lose(track, layer)

    async def _run_at(self, feed: Feed, lane: int, track: int, *, is_complete: bool) -> bool:
        """Take a share by one session; False: that one is lost, and another may bring the rest."""
        try:
            async with self._lane(feed, lane) as place:
                try:
                    await self._track_feed(feed, track, place, lane).run(is_complete=is_complete)
                finally:
                    is_lost = place.is_left
        except MoqtError as error:
            self._course.note(f"{self._wanted[track].name}: {error}")
            is_lost = lane > 0 or feed.is_left
        return not is_lost or self._assembly.is_track_complete(track)

    @asynccontextmanager
    async def _lane(self, feed: Feed, lane: int) -> AsyncIterator[Place]:
        """Enter the session for the shares of a lane; the first is the feed's own."""
        if lane == 0:
            yield feed.visit.place
            return
        place = await self._endpoints.lane(lane, feed.visit.place)
        async with place.visit():
            yield place

    async def _fetch_some(self, feed: Feed, track: int, missing: dict[int, list[int]]) -> None:
        await self._track_feed(feed, track, feed.visit.place).fetch_missing(missing)

    def _track_feed(self, feed: Feed, track: int, place: Place, lane: int = 0) -> TrackFeed:
        wanted = self._wanted[track]
        return TrackFeed(
            place.session,
            FullTrackName(feed.namespace, str(wanted.name).encode()),
            track=track,
            wanted=wanted,
            layers=self._prefix.descriptor.layers,
            assembly=self._assembly,
            arrivals=self._arrivals,
            config=self._config,
            slots=self._slots[lane],
            checks=self._checks,
            stats=self._assembly.stats,
            redirected=lambda error: self._endpoints.redirected(feed, error, place, lane),
        )

    def _take_from(self, feed: Feed, work: Coroutine[None, None, None]) -> None:
        task = self._course.spawn(work)
        feed.tasks.add(task)
        task.add_done_callback(feed.tasks.discard)

    # Moves

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
        if self.feed is not feed:
            return
        following: Feed | None = None
        try:
            following = await self._endpoints.next_feed(self._prefix, feed, uri)
            if self.feed is feed:
                await self.take_over(following)
                self._assembly.stats.moves += 1
        except (MoqtError, KvcsError) as error:
            self._course.note(f"moving: {error}")
        finally:
            if following is not None and self.feed is not following:
                await following.close()
