"""A fetch that survives GOAWAY (MOQT-22 6.6.1, 9.2)."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from moqt import errors
from moqt.asyncio.following import follow
from moqt.asyncio.roaming import Leg, Roaming, gate_of
from moqt.asyncio.tracks import Fetch, FetchItem
from moqt.codes import GroupOrder
from moqt.session import events
from moqt.types import FullTrackName, Location
from moqt.wire.filters import LocationFilter, LocationFilterType

if TYPE_CHECKING:
    from moqt.asyncio.following import Place, Sessions
    from moqt.asyncio.session import MoqtSession
    from moqt.session.receive.request_options import FetchOptions
    from moqt.session.receive.sink import ObjectSink

__all__ = ["RoamingFetch"]

FETCH_STAY_SHARE = 0.75
"""How much of a GOAWAY's Timeout a fetch may use to finish where it is."""


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
