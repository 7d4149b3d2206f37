"""A session without a network, whose publisher may refuse, cut and leave out what it likes."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from moqt.codes import ObjectStatus, RequestErrorCode, StreamResetCode
from moqt.errors import RequestRejected, StreamReset
from moqt.events import FillEnded, ObjectReceived, SubgroupEnded
from moqt.types import Location, Object, ObjectHeader
from moqt.wire.filters import LocationFilter, RangeFilters
from moqt.wire.options import SetupOptions

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from moqt.session.receive.sink import ObjectSink
    from moqt.types import FullTrackName

CUT = StreamReset(StreamResetCode.INTERNAL_ERROR, 0x52E4A40FA8DB)


@dataclass
class FakeTrack:
    """What is published of one track, and how requests for it are treated."""

    objects: dict[Location, bytes] = field(default_factory=dict)
    live: list[object] = field(default_factory=list)
    """What subscriptions bring after the fill: Locations of `objects`, or events."""
    largest: Location | None = None
    """As SUBSCRIBE_OK says; None: the largest of `objects` that is not in `live`."""
    resets_fill: bool = False
    refuses_subscribe: RequestErrorCode | None = None
    refuses_fill: RequestErrorCode | None = None
    refuses_filters: RequestErrorCode | None = None
    refuses_groups: RequestErrorCode | None = None
    """FETCH of several Groups."""
    refuses_fetch: RequestErrorCode | None = None
    cuts_fetch_after: int | None = None
    """Objects of a FETCH of several Groups before its stream is reset."""
    leaves_out: set[Location] = field(default_factory=set)
    """Objects that fills and FETCHes do not bring."""

    @property
    def edge(self) -> Location | None:
        if self.largest is not None:
            return self.largest
        return max((at for at in self.objects if at not in self.live), default=None)


class FakeSession:
    """Enough of `MoqtSession` for a `TrackFeed`; `log` has each request in words."""

    def __init__(
        self, track: FakeTrack, *, max_filter_ranges: int = 32, absent: bytes | None = None
    ) -> None:
        self.track = track
        self.absent = absent
        """The name of a track that does not exist; every other one is `track`."""
        self.log: list[str] = []
        self.peer_options = SetupOptions(max_filter_ranges=max_filter_ranges)
        self.is_closed = False

    def subscribe(self, name: FullTrackName, **options: Any) -> FakeRequest:
        if name.name == self.absent:
            absent = FakeTrack(refuses_subscribe=RequestErrorCode.DOES_NOT_EXIST)
            return FakeRequest(absent, options, _live(absent, options))
        fill = options["fill"]
        filtered = " filtered" if options.get("range_filters") else ""
        self.log.append(f"subscribe{filtered}{' with fill' if fill else ''}")
        return FakeRequest(self.track, options, _live(self.track, options))

    def fetch(self, name: FullTrackName, **options: Any) -> FakeRequest:
        where: LocationFilter = options["location_filter"]
        filtered = " filtered" if options.get("range_filters") else ""
        last = where.end_group if not where.end_object else f"{where.end_group}.{where.end_object}"
        self.log.append(f"fetch{filtered} {where.start_group}.{where.start_object}-{last}")
        return FakeRequest(self.track, options, _fetched(self.track, options))


def _refuse(code: RequestErrorCode | None) -> None:
    if code is not None:
        raise RequestRejected(code, "refused")


def _selected(
    track: FakeTrack, where: LocationFilter, options: dict[str, Any]
) -> Iterable[Location]:
    edge = track.edge
    if edge is None:
        return ()
    wanted = where.resolve_fill(edge)
    filters = RangeFilters(tuple(options.get("range_filters", ())))
    return [
        at
        for at in sorted(track.objects)
        if wanted is not None
        and at in wanted
        and at not in track.leaves_out
        and filters.passes(ObjectHeader(at.group_id, at.object_id, 0, 0, 1))
    ]


async def _live(track: FakeTrack, options: dict[str, Any]) -> AsyncIterator[object]:
    if options["fill"] is not None and track.edge is not None:
        if track.resets_fill:
            yield FillEnded(0, 0, StreamResetCode.INTERNAL_ERROR, 0x52E4A40FA8DB)
        else:
            for at in _selected(track, options["fill"].location_filter, options):
                yield at, True
            yield FillEnded(0, 0)
    for item in track.live:
        yield (item, False) if isinstance(item, Location) else item


async def _fetched(track: FakeTrack, options: dict[str, Any]) -> AsyncIterator[object]:
    where = options["location_filter"]
    several = where.end_group != where.start_group
    for count, at in enumerate(_selected(track, where, options)):
        if several and track.cuts_fetch_after == count:
            raise CUT
        yield at, False


class FakeRequest:
    """A subscription or fetch: async context and async iterator, as the real ones."""

    def __init__(
        self, track: FakeTrack, options: dict[str, Any], items: AsyncIterator[object]
    ) -> None:
        self._track = track
        self._options = options
        self._items = items
        self._sink: ObjectSink | None = options.get("sink")
        self.largest = track.edge
        self.is_over = False

    async def __aenter__(self) -> Self:
        track, options = self._track, self._options
        if options.get("range_filters"):
            _refuse(track.refuses_filters)
        if "fill" in options:
            _refuse(track.refuses_subscribe)
        if options.get("fill") is not None:
            _refuse(track.refuses_fill)
        if "fill" not in options:
            where = options["location_filter"]
            if where.end_group != where.start_group:
                _refuse(track.refuses_groups)
            _refuse(track.refuses_fetch)
        return self

    async def __aexit__(self, *exception: object) -> None:
        self.is_over = True

    def leave(self) -> None:
        self.is_over = True

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> object:
        await asyncio.sleep(0)
        if self.is_over:
            raise StopAsyncIteration
        item = await anext(self._items)
        if isinstance(item, Exception):
            raise item
        if type(item) is not tuple:  # events are named tuples
            return item
        at, from_fill = item
        return ObjectReceived(0, self._object(at, from_fill), from_fill)

    def _object(self, at: Location, from_fill: bool) -> Object:
        payload = self._track.objects[at]
        header = ObjectHeader(at.group_id, at.object_id, 0, 0, len(payload))
        placement = None
        if self._sink is not None:
            placement = self._sink.place(header, from_fill=from_fill)
        if placement is None:
            return Object(header, memoryview(payload))
        start = 0
        for buffer in placement.buffers:
            buffer[:] = payload[start : start + len(buffer)]
            start += len(buffer)
        return Object(header, None, placement)


def ended(group_id: int, *, reset: bool = False) -> SubgroupEnded:
    """A Group's stream is over."""
    return SubgroupEnded(0, group_id, 0, reset=StreamResetCode.CANCELLED if reset else None)


def end_of_group(group_id: int, object_id: int) -> ObjectReceived:
    """The End of Group status Object."""
    header = ObjectHeader(group_id, object_id, 0, 0, 0, ObjectStatus.END_OF_GROUP)
    return ObjectReceived(0, Object(header))
