"""What is sent, piece by piece: cursors into tracks, one for each data stream.

A cursor costs a few integers. It holds one Object at a time, the one it is writing, so eviction
never tears an Object; everything else stays in the track.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, Protocol

from moqt.codes import GroupOrder, RangeStatus
from moqt.session.publish.cursor import Cursor, CursorState
from moqt.session.publish.history import StoredObject
from moqt.session.publish.timeouts import NO_TIMEOUTS, smaller_ms
from moqt.types import Location
from moqt.wire.fetch_objects import FetchWriter
from moqt.wire.streams import FetchHeader, SubgroupHeader
from moqt.wire.subgroup_objects import SubgroupWriter
from moqt.wire.vi64 import MAX_VI64

if TYPE_CHECKING:
    from moqt.session.publish.cursor import CursorOwner, Flow
    from moqt.session.publish.history import StoredSubgroup
    from moqt.session.publish.source import TrackSource
    from moqt.session.stats import SessionStats
    from moqt.wire.filters import LocationRange, RangeFilters

__all__ = ["FetchCursor", "StreamCursor", "SubgroupCursor"]

_READY: Final = CursorState.READY  # asked for with each Object; looking up a member takes its time


if TYPE_CHECKING:

    class SubgroupOwner(CursorOwner, Protocol):
        """The subscription that a SubgroupCursor writes for."""

        def cursor_grew(self, cursor: SubgroupCursor) -> None:
            """The Subgroup of an idle cursor grew or was closed. Notes what to do, no more."""

        def cursor_expired(self, cursor: SubgroupCursor) -> None:
            """SUBGROUP_DELIVERY_TIMEOUT is over: reset the stream unless it is acknowledged."""


class StreamCursor(Cursor):
    """Writes one data stream for one request."""

    __slots__ = ("_current", "_pending", "_rest", "_stats", "rest_octets")

    def __init__(self, flow: Flow, owner: CursorOwner, stats: SessionStats) -> None:
        super().__init__(flow, owner)
        self._stats = stats
        self._pending: StoredObject | Location | None = None
        self._current: StoredObject | None = None
        self._rest: deque[memoryview | bytes] = deque()
        self.rest_octets = 0
        """Octets of the current Object, or of a header, that are not handed over yet."""

    def prepare(self) -> CursorState:
        """Find out what is next; READY means that `take` will give at least one octet."""
        if self._rest or self._pending is not None:
            return _READY
        return self._load()

    def opened(self, stream_id: int) -> None:
        """Its stream is open; the stream's header goes first."""
        self.stream_id = stream_id
        self.is_open = True
        self._put(self._stream_header())

    def take_header(self) -> list[memoryview | bytes]:
        """Return the stream's header of a stream that was just opened."""
        header = self._rest.popleft()
        self.rest_octets -= len(header)
        return [header]

    def is_late(self, now: float) -> bool:
        """Whether what is next has waited too long (MOQT-22 5.2); only of a subscription."""
        return False

    def take(self, limit: int, most: int) -> tuple[list[memoryview | bytes], int]:
        """Return the next octets of the stream, over as many Objects as fit, and their number.

        At most `limit`, but up to `most` where that ends an Object. The buffers are the payloads
        themselves or slices of them, with the Objects' headers in between.
        """
        out: list[memoryview | bytes] = []
        left = most
        reserve = most - limit
        while left > reserve:
            if self._rest:
                left -= self._take_rest(out, left if self.rest_octets <= left else left - reserve)
                continue
            if self._pending is None and self._load() is not _READY:
                break
            item, self._pending = self._pending, None
            assert item is not None  # READY
            head = self._encode(item)
            if isinstance(item, Location):
                self._put(head)
                continue
            size = len(head) + item.octets
            if size <= left:
                out.append(head)
                out += item.payload
                left -= size
                self._count(item)
            else:
                self._put(head)
                self._rest += item.payload
                self.rest_octets = size
                self._current = item
        return out, most - left

    def _put(self, octets: bytes) -> None:
        self._rest.append(octets)
        self.rest_octets += len(octets)

    def _take_rest(self, out: list[memoryview | bytes], limit: int) -> int:
        rest = self._rest
        room = limit
        while rest and room:
            buffer = rest[0]
            size = len(buffer)
            if size <= room:
                out.append(rest.popleft())
                room -= size
            else:
                out.append(buffer[:room])
                rest[0] = buffer[room:]
                room = 0
        self.rest_octets -= limit - room
        if not rest and self._current is not None:
            self._count(self._current)
            self._current = None
        return limit - room

    def _count(self, stored: StoredObject) -> None:
        self._stats.objects_sent += 1
        self._stats.octets_sent += stored.octets

    def _load(self) -> CursorState:
        """Set `_pending` and return READY, or say why there is nothing."""
        raise NotImplementedError

    def _stream_header(self) -> bytes:
        raise NotImplementedError

    def _encode(self, item: StoredObject | Location) -> bytes:
        raise NotImplementedError


class SubgroupCursor(StreamCursor):
    """The stream of one Subgroup in one subscription.

    `index` counts from the first Object ever published in the Subgroup. `first_object_id` and
    `last_object_id` are what the subscription's Location range leaves of the Group, inclusive.
    """

    __slots__ = (
        "_encoder",
        "_left_out",
        "_subscription",
        "_track_alias",
        "first_object_id",
        "index",
        "is_cut",
        "is_finished",
        "is_over",
        "last_object_id",
        "octets_passed",
        "range_filters",
        "reverse",
        "subgroup",
        "timeouts",
    )

    def __init__(
        self,
        flow: Flow,
        owner: SubgroupOwner,
        stats: SessionStats,
        subgroup: StoredSubgroup,
        *,
        track_alias: int,
        group_order: GroupOrder,
    ) -> None:
        super().__init__(flow, owner, stats)
        self._subscription = owner
        self.subgroup = subgroup
        self.publisher_priority = subgroup.publisher_priority
        self.index = subgroup.end_index
        self.octets_passed = subgroup.octets
        self.first_object_id = 0
        self.last_object_id = MAX_VI64
        self.range_filters: RangeFilters | None = None
        self.timeouts = NO_TIMEOUTS
        """What the subscriber asks for."""
        self.is_finished = False
        """Its stream was ended by FIN."""
        self.reverse = group_order is GroupOrder.DESCENDING
        self.is_over = False
        """The Location range ends here, whatever else the Subgroup holds."""
        self.is_cut = False
        """The range was shrunk while the stream was open, so its end leaves something out."""
        self._track_alias = track_alias
        self._encoder: SubgroupWriter | None = None
        self._left_out = False
        """An Object was left out behind the stream's header."""

    @property
    def order(self) -> tuple[int, int, int, int]:
        """By Group Order, after fills and datagrams of the same Group, then by Subgroup ID."""
        group_id = self.subgroup.group_id
        return 0, -group_id if self.reverse else group_id, 2, self.subgroup.subgroup_id

    @property
    def lag(self) -> int:
        """Payload octets published and not yet handed to QUIC."""
        return self.subgroup.octets - self.octets_passed + self.rest_octets

    def limit(
        self, first_object_id: int, last_object_id: int, range_filters: RangeFilters | None
    ) -> None:
        """Deliver only these from now on, both IDs inclusive."""
        if last_object_id < self.last_object_id and self.stream_id is not None:
            self.is_cut = True
        self.first_object_id = first_object_id
        self.last_object_id = last_object_id
        self.range_filters = range_filters
        pending = self._pending
        if isinstance(pending, StoredObject) and not self._is_wanted(pending):
            self._pending = None

    def _is_wanted(self, stored: StoredObject) -> bool:
        return self.first_object_id <= stored.object_id <= self.last_object_id and (
            self.range_filters is None or self.range_filters.passes(stored.header)
        )

    def is_late(self, now: float) -> bool:
        """Whether the first Object that is not handed over whole is too old to be."""
        theirs, ours = self.timeouts, self.subgroup.timeouts
        if theirs is NO_TIMEOUTS and ours is NO_TIMEOUTS:
            return False
        limit_ms = smaller_ms(theirs.object_ms, ours.object_ms)
        stored = self._current or self._pending
        return (
            limit_ms > 0
            and isinstance(stored, StoredObject)
            and now - stored.published_at > limit_ms / 1000
        )

    def expire(self) -> None:
        """Tell the subscription that SUBGROUP_DELIVERY_TIMEOUT is over."""
        self._subscription.cursor_expired(self)

    def subgroup_grew(self) -> None:
        """Pass it on to the subscription."""
        self._subscription.cursor_grew(self)

    def _load(self) -> CursorState:
        subgroup = self.subgroup
        while not self.is_over:
            if self.index < subgroup.first_index:
                return CursorState.BEHIND
            stored = subgroup.at(self.index)
            if stored is None:
                return self._at_end()
            self.index += 1
            self.octets_passed += stored.octets
            self.is_over = stored.object_id >= self.last_object_id
            if self._is_wanted(stored):
                self._pending = stored
                return _READY
            self._left_out |= self._encoder is not None
        return CursorState.CUT if self.is_cut else CursorState.FINISHED

    def _at_end(self) -> CursorState:
        if not self.subgroup.is_closed:
            return CursorState.IDLE
        encoder = self._encoder
        if self._left_out and encoder is not None and encoder.header.ends_group:
            return CursorState.CUT  # FIN would call the last Object sent the last of the Group
        return CursorState.FINISHED

    def _stream_header(self) -> bytes:
        subgroup = self.subgroup
        header = SubgroupHeader(
            track_alias=self._track_alias,
            group_id=subgroup.group_id,
            subgroup_id=subgroup.subgroup_id,
            # Always said: a subscriber without Track Properties does not know the default.
            publisher_priority=subgroup.publisher_priority,
            has_properties=subgroup.has_properties,
            ends_group=subgroup.ends_group
            and self.range_filters is None
            and self.last_object_id == MAX_VI64,
            is_first_object=self.index == 1,  # the one that is pending
        )
        self._encoder = SubgroupWriter(header)
        return self._encoder.head

    def _encode(self, item: StoredObject | Location) -> bytes:
        assert self._encoder is not None  # opened
        assert isinstance(item, StoredObject)  # a subscription has no markers
        if item.special_header is not None:
            return self._encoder.encode(item.special_header)
        return self._encoder.encode_plain(item.object_id, item.octets)


class FetchCursor(StreamCursor):
    """The stream of one FETCH or of one fill.

    `fill_of`: the Group Order of the subscription that a fill belongs to; None for a FETCH.
    """

    __slots__ = (
        "_encoder",
        "_follows_other_order",
        "_group_id",
        "_items",
        "_reverse",
        "_track",
        "range_filters",
    )

    def __init__(
        self,
        flow: Flow,
        owner: CursorOwner,
        stats: SessionStats,
        track: TrackSource,
        *,
        request_id: int,
        wanted: LocationRange,
        range_filters: RangeFilters | None,
        group_order: GroupOrder,
        fill_of: GroupOrder | None = None,
    ) -> None:
        super().__init__(flow, owner, stats)
        assert wanted.end is not None  # resolved
        self.range_filters = range_filters
        self._track = track
        self._items = track.walk(wanted.start, wanted.end, group_order)
        self._encoder = FetchWriter(FetchHeader(request_id), group_order)
        self._reverse = group_order is GroupOrder.DESCENDING
        self._follows_other_order = fill_of is not None and fill_of is not group_order
        self._group_id = wanted.start.group_id
        self.prepare()

    @property
    def order(self) -> tuple[int, int, int, int]:
        """Before its subscription in the same Group; after it when their Group Orders differ."""
        group_id = -self._group_id if self._reverse else self._group_id
        return int(self._follows_other_order), group_id, 0, 0

    def prepare(self) -> CursorState:
        """Find out what is next; an aborted track has nothing more to give."""
        if self._track.abort_code is not None:
            return CursorState.CUT
        return super().prepare()

    def _load(self) -> CursorState:
        for item in self._items:
            if isinstance(item, StoredObject):
                filters = self.range_filters
                if filters is not None and not filters.passes(item.header):
                    continue
                self.publisher_priority = item.publisher_priority
                self._group_id = item.subgroup.group_id
            self._pending = item
            return _READY
        # A stream is opened even if nothing is in the range (MOQT-22 9.11).
        return _READY if self.stream_id is None else CursorState.FINISHED

    def _stream_header(self) -> bytes:
        return self._encoder.head

    def _encode(self, item: StoredObject | Location) -> bytes:
        if isinstance(item, Location):
            return self._encoder.end_of_range(RangeStatus.UNKNOWN, item)
        if item.special_header is not None:
            return self._encoder.encode(item.special_header)
        subgroup = item.subgroup
        return self._encoder.encode_plain(
            subgroup.group_id,
            item.object_id,
            item.octets,
            subgroup_id=subgroup.subgroup_id,
            publisher_priority=subgroup.publisher_priority,
        )
