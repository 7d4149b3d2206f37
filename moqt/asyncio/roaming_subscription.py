"""A subscription to a track that survives GOAWAY (MOQT-22 6.6.1, 9.2)."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING

from moqt import errors
from moqt.asyncio.following import follow
from moqt.asyncio.roaming import Leg, Roaming, gate_of
from moqt.asyncio.tracks import Subscription, SubscriptionItem
from moqt.codes import StreamResetCode
from moqt.session import events
from moqt.session.receive.arrivals import Arrivals
from moqt.wire.params import FillParameters

if TYPE_CHECKING:
    from moqt.asyncio.following import Place, Sessions
    from moqt.asyncio.session import MoqtSession
    from moqt.session.receive.request_options import SubscribeOptions
    from moqt.session.receive.sink import ObjectSink
    from moqt.types import FullTrackName, Location
    from moqt.wire.properties import TrackProperties

__all__ = ["RoamingSubscription"]


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
            if len(self._held) > self._sessions.config.max_tracked_groups:
                self._ready.append(self._held.popleft())
        else:
            self._ready.append(item)
