"""One data track from one session into an assembly: the requests of a `TrackPlan`, made."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING, Protocol

from kvcs.assembly import Outcome
from kvcs.geometry import layer_of
from kvcs.retrieval import FetchRequest, LiveRequest, TrackPlan
from kvcs.wanted import Lease, Verification
from moqt.errors import MoqtError, RequestRejected, StreamReset, TimedOut
from moqt.events import FillEnded, ObjectReceived, SubgroupEnded
from moqt.types import Placement
from moqt.wire.filters import LocationFilter
from moqt.wire.params import FillParameters

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from kvcs.assembly import Assembly
    from kvcs.checks import Checks
    from kvcs.config import ConsumerConfig
    from kvcs.stats import RetrievalStats
    from kvcs.wanted import WantedTrack
    from moqt.asyncio.session import MoqtSession
    from moqt.asyncio.tracks import Fetch, Subscription
    from moqt.types import FullTrackName, Location, ObjectHeader

    Redirected = Callable[[RequestRejected], Awaitable[tuple[MoqtSession, FullTrackName]]]

__all__ = ["Arrivals", "TrackFeed", "TrackSink"]

_log = logging.getLogger(__name__)

PART_GROUPS_AT_ONCE = 4
"""FETCHes of single Groups that are open at once for a part of a track. All parts together then
work on the same few layers; without it, one part's late layers would take the slots of another's
early ones."""


class Arrivals(Protocol):
    """Who is told what became of a track's Objects. Calls note it and do nothing else."""

    @property
    def is_stalled(self) -> bool:
        """Whether nothing has come for so long that requests under way are not trusted."""

    def progressed(self, track: int, layer: int, block: int) -> None:
        """An Object was verified."""

    def lose(self, track: int, layer: int, block: int | None = None) -> None:
        """An Object will not come by the requests under way; None: all of the layer that lack."""


class TrackSink:
    """Gives the octets of one request their places, and can end that request."""

    def __init__(self, assembly: Assembly, track: int) -> None:
        self._assembly = assembly
        self._track = track
        self.request: Subscription | Fetch | None = None
        self.is_stopped = False

    def place(self, header: ObjectHeader, *, from_fill: bool) -> Placement | None:
        """Return the place in the tensors, or one to throw away; None: memory of its own."""
        lease = self._assembly.lease(self._track, header, self)
        if lease is not None:
            return Placement(lease.buffers, lease)
        scratch = self._assembly.scratch(self._track, header)
        return None if scratch is None else Placement(scratch)

    def abandoned(self, placement: Placement) -> None:
        """Take the place back."""
        if isinstance(placement.token, Lease):
            self._assembly.abandoned(placement.token)

    def stop(self) -> None:
        """End the request: what it has not brought yet is to be had elsewhere."""
        self.is_stopped = True
        if self.request is not None:
            self.request.leave()


class TrackFeed:
    """Runs requests for the Objects of one track until they end; it does not judge what lacks.

    `slots` bounds open FETCHes over all tracks of a retrieval; subscriptions are one a track.
    `redirected` is asked where a REDIRECT leads; the track is there from then on.
    """

    def __init__(
        self,
        session: MoqtSession,
        name: FullTrackName,
        *,
        track: int,
        wanted: WantedTrack,
        layers: int,
        assembly: Assembly,
        arrivals: Arrivals,
        config: ConsumerConfig,
        slots: asyncio.Semaphore,
        checks: Checks,
        stats: RetrievalStats,
        redirected: Redirected | None = None,
    ) -> None:
        self._redirected = redirected
        self._redirects_left = config.max_redirects
        self._session = session
        self._name = name
        self._track = track
        self._layers = layers
        self._blocks = wanted.blocks
        self._assembly = assembly
        self._arrivals = arrivals
        self._config = config
        self._slots = slots
        self._checks = checks
        self._stats = stats
        options = session.peer_options
        max_filter_ranges = 0 if options is None else options.max_filter_ranges
        self._plan = TrackPlan(
            first_layer=assembly.layers.start,
            last_layer=assembly.layers.stop - 1,
            layers=layers,
            blocks=wanted.blocks,
            span_blocks=wanted.span.blocks,
            max_filter_ranges=max_filter_ranges,
            first_block=wanted.skip,
            is_part=wanted.is_part,
        )
        self._is_unfiltered_part = wanted.is_part and not max_filter_ranges
        self._window = asyncio.Semaphore(
            PART_GROUPS_AT_ONCE if wanted.is_part else config.max_open_requests
        )

    async def run(self, *, is_complete: bool) -> None:
        """Ask for all that lacks: a complete track by FETCH, one in production by SUBSCRIBE.

        Returns when the requests have ended or nothing lacks. Raises: MoqtError.
        """
        await self._checks.wait_track(self._track)
        incomplete = self._incomplete
        if not incomplete:
            return
        if not is_complete:
            await self._live(self._plan.live(first_layer=incomplete[0]))
        elif self._assembly.is_untouched(self._track) and not self._is_unfiltered_part:
            await self._fetch(self._plan.completed())
        else:
            await self.fetch_missing(
                {layer: self._assembly.missing_blocks(self._track, layer) for layer in incomplete}
            )

    async def fetch_missing(self, blocks_by_layer: dict[int, list[int]]) -> None:
        """FETCH what is named, a request a layer; what fails still lacks afterwards."""
        await self._fetch_all(self._plan.missing(blocks_by_layer))

    @property
    def _incomplete(self) -> list[int]:
        return self._assembly.incomplete_layers(self._track)

    # SUBSCRIBE with fill

    async def _live(self, request: LiveRequest) -> None:
        while True:
            sink = TrackSink(self._assembly, self._track)
            fill = None
            if request.fill is not None:
                fill = FillParameters(location_filter=request.fill)
            self._stats.open_requests += 1
            try:
                subscription = self._session.subscribe(
                    self._name,
                    location_filter=LocationFilter.next_object(),
                    range_filters=request.filters,
                    fill=fill,
                    sink=sink,
                    timeout_s=self._config.request_timeout_s,
                )
                sink.request = subscription
                async with subscription:
                    await self._follow(subscription, has_fill=fill is not None)
                await self._checks.wait_track(self._track)
                incomplete = self._incomplete
                if not sink.is_stopped or not incomplete:
                    return
                request = self._plan.live(first_layer=incomplete[0])
            except RequestRejected as error:
                if await self._follow_redirect(error):
                    continue
                next_request = self._plan.live_refused(request, error.code)
                if next_request is None:
                    raise
                request = next_request
            finally:
                self._stats.open_requests -= 1
                self._assembly.release(sink)

    async def _follow(self, subscription: Subscription, *, has_fill: bool) -> None:
        """Take what a subscription and its fill bring, until the track is over or nothing lacks."""
        largest = subscription.largest
        fill = _Fill(largest, is_open=has_fill and largest is not None)
        repairs: set[asyncio.Task[None]] = set()
        try:
            if not has_fill:
                self._repair(repairs, largest)
            async for item in subscription:
                if isinstance(item, ObjectReceived):
                    if item.from_fill:
                        fill.next_layer = self._lose_before(fill.next_layer, item)
                    self._receive(item, subscription)
                    if not (self._assembly.is_all_here(self._track) or self._checks.is_full):
                        continue
                    await self._wait_checks()
                elif isinstance(item, SubgroupEnded):
                    layer = layer_of(item.group_id, self._layers)
                    if layer is None:
                        continue
                    if fill.is_open and largest is not None and layer <= largest.group_id:
                        fill.ended_layers.add(layer)  # the fill may still bring the rest
                    else:
                        self._arrivals.lose(self._track, layer)
                elif isinstance(item, FillEnded):
                    fill.is_open = False
                    if item.reset is not None:
                        await self._checks.wait_track(self._track)
                        self._repair(repairs, largest)
                    else:
                        self._lose_filled(fill)
                if self._assembly.is_track_complete(self._track):
                    return
            if repairs:
                await asyncio.gather(*repairs)
        finally:
            for task in repairs:
                task.cancel()
            await asyncio.gather(*repairs, return_exceptions=True)

    def _lose_filled(self, fill: _Fill) -> None:
        """The fill ended: what it should have brought and did not is missing."""
        if fill.largest is None:
            return
        for layer in self._incomplete:
            is_whole = layer in fill.ended_layers or fill.largest.object_id >= self._blocks - 1
            if layer < fill.largest.group_id or (layer == fill.largest.group_id and is_whole):
                self._arrivals.lose(self._track, layer)

    def _lose_before(self, next_layer: int, item: ObjectReceived) -> int:
        """A later layer comes on a stream in order: earlier ones that lack will not come on it.

        Returns the layer that is now to come.
        """
        layer = item.object.header.group_id
        if layer <= next_layer:
            return next_layer
        for earlier in range(max(next_layer, self._assembly.layers.start), layer):
            self._arrivals.lose(self._track, earlier)
        return layer

    def _repair(self, repairs: set[asyncio.Task[None]], largest: Location | None) -> None:
        """FETCH, Group by Group, what a fill did not bring."""
        requests = self._plan.fill_failed(largest, self._incomplete)
        if requests and largest is not None:
            last_layer = largest.group_id

            async def repair() -> None:
                await self._fetch_all(requests)
                for layer in self._incomplete:
                    if layer < last_layer:
                        self._arrivals.lose(self._track, layer)

            repairs.add(asyncio.create_task(repair(), name=f"repair {self._name}"))

    async def _follow_redirect(self, error: RequestRejected) -> bool:
        """Go where a REDIRECT leads; False: it was none, or one too many. Raises: MoqtError."""
        if error.redirect_name is None or self._redirected is None or not self._redirects_left:
            return False
        self._redirects_left -= 1
        self._session, self._name = await self._redirected(error)
        return True

    # FETCH

    async def _fetch_all(self, requests: Iterable[FetchRequest]) -> None:
        async with asyncio.TaskGroup() as group:
            for request in requests:
                group.create_task(self._fetch_quietly(request))

    async def _fetch_quietly(self, request: FetchRequest) -> None:
        """As `_fetch`; whoever looks at what lacks finds out that it failed."""
        try:
            await self._fetch(request)
        except MoqtError as error:
            _log.debug("%s: %s", self._name, error)

    async def _fetch(self, request: FetchRequest) -> None:
        """Run a FETCH, and what the plan says to try after its failure. Raises: MoqtError."""
        waiting = [request]
        while waiting:
            request = waiting.pop(0)
            failure = await self._fetch_once(request)
            if failure is None:
                continue
            if isinstance(failure, RequestRejected) and await self._follow_redirect(failure):
                waiting.insert(0, request)
                continue
            await self._checks.wait_track(self._track)
            code = failure.code if isinstance(failure, RequestRejected) else None
            further = self._plan.fetch_failed(request, code, self._incomplete)
            if not further and not waiting:
                raise failure
            waiting += further

    async def _fetch_once(self, request: FetchRequest) -> MoqtError | None:
        sink = TrackSink(self._assembly, self._track)
        next_layer = request.first_layer
        async with self._window, self._slots:
            self._stats.open_requests += 1
            try:
                fetch = self._session.fetch(
                    self._name,
                    location_filter=request.location,
                    range_filters=request.filters,
                    sink=sink,
                )
                sink.request = fetch
                async with fetch:
                    async for item in fetch:
                        if not isinstance(item, ObjectReceived):
                            continue
                        next_layer = self._lose_before(next_layer, item)
                        self._receive(item, fetch)
                        if self._assembly.is_all_here(self._track) or self._checks.is_full:
                            await self._wait_checks()
                            if self._assembly.is_track_complete(self._track):
                                return None
            except (RequestRejected, StreamReset, TimedOut) as error:
                return error
            finally:
                self._stats.open_requests -= 1
                self._assembly.release(sink)
        await self._checks.wait_track(self._track)  # what is being verified is not missing
        return None

    # Objects

    def _receive(self, item: ObjectReceived, request: Subscription | Fetch) -> None:
        """Judge one Object, now or when a thread has verified it."""
        header = item.object.header
        placement = item.object.placement
        lease = None if placement is None else placement.token
        outcome = self._assembly.receive(
            self._track,
            header,
            lease=lease if isinstance(lease, Lease) else None,
            payload=item.object.payload,
            at_once=header.payload_length < self._checks.thread_octets,
        )
        if isinstance(outcome, Verification):
            self._checks.put(outcome, partial(self._judge, header, request))
        else:
            self._judge(header, request, outcome)

    async def _wait_checks(self) -> None:
        """Wait until more may come, or, when nothing more is to come, until all is verified."""
        if self._assembly.is_all_here(self._track):
            await self._checks.wait_track(self._track)
        else:
            await self._checks.wait_room()

    def _judge(self, header: ObjectHeader, request: Subscription | Fetch, outcome: Outcome) -> None:
        layer, block = header.group_id, header.object_id
        if outcome is Outcome.VERIFIED:
            self._arrivals.progressed(self._track, layer, block)
        elif outcome is Outcome.REJECTED:
            self._arrivals.lose(self._track, layer, block)
        elif outcome is Outcome.SPARE and self._arrivals.is_stalled:
            # Another request began this Object before us and stands still: ours is there already.
            for holder in self._assembly.holders(self._track, layer, block):
                if isinstance(holder, TrackSink) and holder.request is not request:
                    holder.stop()
            if not self._assembly.is_missing(self._track, layer, block):
                self._arrivals.progressed(self._track, layer, block)


class _Fill:
    """How far the fill of a subscription has come."""

    def __init__(self, largest: Location | None, *, is_open: bool) -> None:
        self.largest = largest
        self.is_open = is_open
        self.next_layer = 0
        self.ended_layers: set[int] = set()
        """Layers whose own stream ended while the fill was open."""
