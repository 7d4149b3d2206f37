"""Subscriptions, fetches and namespace subscriptions that survive GOAWAY (MOQT-22 6.6.1, 9.2).

They have the verbs of `Subscription`, `Fetch` and `NamespaceSubscription`, follow redirects when
they are opened, and move by themselves, whether or not they are iterated.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from moqt import errors
from moqt.asyncio.arrivals import Arrivals
from moqt.asyncio.following import follow
from moqt.asyncio.migration import Leg, Roaming, gate_of
from moqt.asyncio.namespaces import NamespaceItem, NamespaceSubscription
from moqt.asyncio.tracks import Fetch, FetchItem, Subscription, SubscriptionItem
from moqt.codes import GroupOrder, StreamResetCode
from moqt.session import events
from moqt.types import FullTrackName, Location
from moqt.wire.filters import LocationFilter, LocationFilterType
from moqt.wire.params import FillParameters

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from moqt.asyncio.following import Place, Sessions
    from moqt.asyncio.session import MoqtSession
    from moqt.session.authorization import AuthToken
    from moqt.session.request_options import FetchOptions, SubscribeOptions
    from moqt.session.sink import ObjectSink
    from moqt.types import TrackNamespace
    from moqt.wire.properties import TrackProperties

__all__ = ["RoamingFetch", "RoamingNamespaces", "RoamingSubscription"]

FETCH_STAY_SHARE = 0.75
"""How much of a GOAWAY's Timeout a fetch may use to finish where it is."""


class RoamingSubscription(Roaming[Subscription, SubscriptionItem]):
    """A subscription to a track, wherever it goes: each Object once.

    When its session or the request itself gets GOAWAY, it subscribes at the next session from the
    Next Object on, with a fill of what has not come; when that is accepted it cancels the old one.
    What comes twice is dropped by its Location. If the next session refuses, the old one goes on as
    long as it lasts, and then that refusal is raised.

    A Subgroup stream that a move cut yields SubgroupEnded with GOING_AWAY once the move's fill is
    over; the rest of it came by the fill, or comes on a stream of its own. FillEnded comes once, if
    a fill was asked for, however many sessions it took. `largest` and `properties` are those of the
    beginning. Objects published while it is paused do not come later.
    """

    def __init__(
        self,
        sessions: Sessions,
        name: FullTrackName,
        options: SubscribeOptions,
        *,
        sink: ObjectSink | None = None,
        timeout_s: float | None = None,
    ) -> None:
        super().__init__(sessions, name, f"SUBSCRIBE {name}")
        self._options = options
        self._sink = sink
        self._timeout_s = timeout_s
        self._arrivals = Arrivals(sessions.config.max_tracked_groups)
        self._owes_fill = options.fill is not None
        self._held: deque[events.SubgroupEnded] = deque()
        self._lock = asyncio.Lock()
        self._first: Subscription | None = None

    @property
    def largest(self) -> Location | None:
        """The track's Largest Object when it was first accepted; None: nothing published yet."""
        return self._begun.largest

    @property
    def properties(self) -> TrackProperties:
        """The track's properties."""
        return self._begun.properties

    @property
    def _begun(self) -> Subscription:
        if self._first is None:
            raise errors.LocalProtocolError(f"{self._what}: not accepted yet")
        return self._first

    @property
    def done(self) -> events.SubscriptionEnded | None:
        """How the publisher ended it; None while it goes on."""
        return self._newest.request.done

    def consume(self, item: SubscriptionItem) -> None:
        """Say now, rather than with the next item, that the item's octets are done with."""
        self._legs[0].request.consume(item)

    async def update(self, *, priority: int) -> None:
        """Change the Subscriber Priority. Raises: as `Subscription.update`."""
        async with self._lock:
            self._options = replace(self._options, priority=priority)
            await self._newest.request.update(priority=priority)

    async def pause(self) -> None:
        """Ask for no Objects until `resume`; those published meanwhile aren't sent later."""
        async with self._lock:
            self._options = replace(self._options, forward=False)
            await self._newest.request.update(forward=False)
            self._arrivals.pause()

    async def resume(self) -> None:
        """Ask for Objects again."""
        async with self._lock:
            self._options = replace(self._options, forward=True)
            self._arrivals.expect_all()  # they may come before the answer does
            largest = await self._newest.request.update(forward=True)
            self._arrivals.begin(
                largest,
                location_filter=self._options.location_filter,
                fill=None,
                forward=True,
            )

    async def _open(
        self, start: Place | None, name: FullTrackName, *, is_moved: bool
    ) -> Leg[Subscription]:
        arrivals = self._arrivals
        is_new = arrivals.is_new if is_moved else None
        gate = gate_of(self._sink, is_new, is_open=not is_moved)
        streams: dict[tuple[int, int], int] = {}

        def admit(item: SubscriptionItem) -> bool:
            if isinstance(item, events.ObjectReceived):
                header = item.object.header
                if not item.from_fill and header.subgroup_id is not None:
                    streams[header.group_id, header.subgroup_id] = item.request_id
                is_wanted = arrivals.take(header, is_moved=is_moved)
                if not is_wanted and gate is not None:
                    gate.drop(item.object)
                return is_wanted
            if isinstance(item, events.SubgroupEnded):
                if item.subgroup_id is not None:
                    streams.pop((item.group_id, item.subgroup_id), None)
                if item.ends_group and item.reset is None:
                    arrivals.end_group(item.group_id)
            return True

        async def attempt(session: MoqtSession, target: FullTrackName) -> Subscription:
            options = self._remainder() if is_moved else self._options
            shown = self._sessions.tokens_for(session, options.tokens)
            request = session.subscribe_with(
                target, replace(options, tokens=shown), sink=gate, timeout_s=self._timeout_s
            )
            request.admit = admit
            return await request.__aenter__()

        async with self._lock:
            visit, name, request = await follow(
                self._sessions, start, name, attempt, what=self._what
            )
        if not is_moved:
            self._first = request
            arrivals.begin(
                request.largest,
                location_filter=self._options.location_filter,
                fill=self._options.fill,
                forward=self._options.forward,
            )
        is_filling = is_moved and self._options.forward
        return Leg(visit, name, request, gate, is_filling=is_filling, streams=streams)

    def _remainder(self) -> SubscribeOptions:
        """Return the request for all that may yet come; a new Group was asked for already."""
        asked = replace(self._options, new_group_request=None)
        filters = self._arrivals.remainder()
        if filters is None:  # paused
            return replace(asked, fill=None)
        live, filled = filters
        fill = replace(asked.fill or FillParameters(), location_filter=filled)
        return replace(asked, location_filter=live, fill=fill)

    def _progress(self) -> int:
        return self._arrivals.count

    def _deliver(self, leg: Leg[Subscription], item: SubscriptionItem) -> None:
        if not leg.is_filling:
            if isinstance(item, events.FillEnded):
                self._owes_fill = False
            self._ready.append(item)
            return
        largest = leg.request.largest
        if isinstance(item, events.FillEnded):
            leg.is_filling = False
            for (group_id, subgroup_id), request_id in sorted(leg.cut.items()):
                reset = StreamResetCode.GOING_AWAY
                self._ready.append(
                    events.SubgroupEnded(request_id, group_id, subgroup_id, reset=reset)
                )
            leg.cut.clear()
            self._ready.extend(self._held)
            self._held.clear()
            if self._owes_fill:
                self._owes_fill = False
                self._ready.append(item)
        elif (
            isinstance(item, events.SubgroupEnded)
            and largest is not None
            and item.group_id <= largest.group_id
        ):
            self._held.append(item)  # the fill may still bring the rest of it
        else:
            self._ready.append(item)


class RoamingFetch(Roaming[Fetch, FetchItem]):
    """A fetch that ends where it began if there is time, or brings the rest from elsewhere.

    It may use three quarters of a GOAWAY's Timeout to finish; with a Timeout of 0, and when the
    request itself is asked to move, it moves at once. Items come in the order asked for, each once.
    """

    _overlaps = False

    def __init__(
        self,
        sessions: Sessions,
        name: FullTrackName,
        options: FetchOptions,
        *,
        sink: ObjectSink | None = None,
    ) -> None:
        super().__init__(sessions, name, f"FETCH {name}")
        self._options = options
        self._sink = sink
        self._last: Location | None = None
        self._count = 0
        self._end: events.FetchEstablished | None = None

    @property
    def established(self) -> events.FetchEstablished:
        """FETCH_OK as it first came: where the track ends, its properties."""
        if self._end is None:
            raise errors.LocalProtocolError(f"{self._what}: not accepted yet")
        return self._end

    def consume(self, item: FetchItem) -> None:
        """Say now, rather than with the next item, that the item's octets are done with."""
        self._legs[0].request.consume(item)

    async def _open(
        self, start: Place | None, name: FullTrackName, *, is_moved: bool
    ) -> Leg[Fetch]:
        gate = gate_of(self._sink, self._is_ahead if is_moved else None, is_open=True)

        def admit(item: FetchItem) -> bool:
            location = (
                item.last if isinstance(item, events.EndOfRangeReceived) else item.object.location
            )
            if is_moved and not self._is_ahead(location):
                if isinstance(item, events.ObjectReceived) and gate is not None:
                    gate.drop(item.object)
                return False
            self._last = location
            self._count += 1
            return True

        async def attempt(session: MoqtSession, target: FullTrackName) -> Fetch:
            shown = self._sessions.tokens_for(session, self._options.tokens)
            options = replace(self._options, location_filter=self._remainder(), tokens=shown)
            request = session.fetch_with(target, options, sink=gate)
            request.admit = admit
            try:
                await request.__aenter__()
                established = await request.established()
            except BaseException:
                await request.__aexit__(None, None, None)
                raise
            self._end = self._end or established
            return request

        visit, name, request = await follow(self._sessions, start, name, attempt, what=self._what)
        return Leg(visit, name, request, gate)

    def _is_ahead(self, location: Location) -> bool:
        """Return whether an item is behind all that have come, in the order asked for."""
        last = self._last
        if last is None:
            return True
        if self._options.group_order is GroupOrder.DESCENDING:
            return location.group_id < last.group_id or (
                location.group_id == last.group_id and location.object_id > last.object_id
            )
        return location > last

    def _remainder(self) -> LocationFilter | None:
        """Return what is still to be asked for: all of it before the first item."""
        wanted, last, end = self._options.location_filter, self._last, self._end
        if last is None or end is None:
            return wanted
        if self._options.group_order is not GroupOrder.DESCENDING:
            start = Location(last.group_id, last.object_id + 1)
            return LocationFilter.range(start, end.end) if start <= end.end else wanted
        if wanted is not None and wanted.type is LocationFilterType.RELATIVE:
            return wanted  # what it began with can't be said otherwise
        start = Location(0, 0)
        if wanted is not None:
            start = Location(wanted.start_group, wanted.start_object)
        if last.group_id == end.end.group_id:
            return LocationFilter.range(start, end.end)
        return LocationFilter.until_group(start, last.group_id)

    def _progress(self) -> int:
        return self._count

    async def _should_move(self, leg: Leg[Fetch], goaway: events.GoawayReceived) -> bool:
        request = leg.request
        if goaway.request_id is None and goaway.timeout_ms:
            stay_s = goaway.timeout_ms / 1000 * FETCH_STAY_SHARE
            with suppress(TimeoutError):
                async with asyncio.timeout(stay_s):
                    await request.wait_over()
        is_ascending = self._options.group_order is not GroupOrder.DESCENDING
        if is_ascending and self._end is not None and self._last == self._end.end:
            request.leave()  # all of it has come
            return False
        return await super()._should_move(leg, goaway)


class RoamingNamespaces(Roaming[NamespaceSubscription, NamespaceItem]):
    """The namespaces under a prefix, from whichever session reports them now.

    A move reports only what changes. What the next session has not reported within
    `namespace_settle_s` counts as gone, since nothing says where its first list ends.
    """

    def __init__(
        self,
        sessions: Sessions,
        prefix: TrackNamespace,
        *,
        tokens: Sequence[AuthToken] | None = None,
        timeout_s: float | None = None,
    ) -> None:
        super().__init__(sessions, FullTrackName(prefix, b""), f"SUBSCRIBE_NAMESPACE {prefix}")
        self._tokens = tokens
        self._timeout_s = timeout_s
        self._known: dict[TrackNamespace, None] = {}
        self._count = 0
        self._settling: asyncio.TimerHandle | None = None

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Cancel it if it's open."""
        await super().__aexit__(kind, error, trace)
        self._stop_settling()

    async def _open(
        self, start: Place | None, name: FullTrackName, *, is_moved: bool
    ) -> Leg[NamespaceSubscription]:
        reported: set[TrackNamespace] = set()

        def admit(item: NamespaceItem) -> bool:
            self._count += 1
            if isinstance(item, events.NamespaceGone):
                reported.discard(item.namespace)
                if item.namespace not in self._known:
                    return False
                del self._known[item.namespace]
                return True
            reported.add(item.namespace)
            if item.namespace in self._known:
                return False
            self._known[item.namespace] = None
            return True

        async def attempt(session: MoqtSession, target: FullTrackName) -> NamespaceSubscription:
            shown = self._sessions.tokens_for(session, self._tokens)
            request = session.subscribe_namespace(
                target.namespace, tokens=shown, timeout_s=self._timeout_s
            )
            request.admit = admit
            return await request.__aenter__()

        self._stop_settling()
        visit, name, request = await follow(self._sessions, start, name, attempt, what=self._what)
        if is_moved:
            self._settling = asyncio.get_running_loop().call_later(
                self._sessions.config.namespace_settle_s, self._settle, request, reported
            )
        return Leg(visit, name, request)

    def _settle(self, request: NamespaceSubscription, reported: set[TrackNamespace]) -> None:
        """What was known before the move and has not been reported again is gone."""
        self._settling = None
        for namespace in [known for known in self._known if known not in reported]:
            request.receive(events.NamespaceGone(request.request_id, namespace))

    def _stop_settling(self) -> None:
        if self._settling is not None:
            self._settling.cancel()
            self._settling = None

    def _progress(self) -> int:
        return self._count
