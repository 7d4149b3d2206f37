"""What the Objects of a subgroup stream and of a fetch stream are checked for and given to."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Protocol

from moqt.session.events import EndOfRangeReceived, SubgroupEnded

if TYPE_CHECKING:
    from moqt.codes import GroupOrder, StreamResetCode
    from moqt.session.context import SessionContext
    from moqt.session.receive.aliases import TrackAlias
    from moqt.session.receive.data_stream import DataStream
    from moqt.session.receive.delivery import Delivery
    from moqt.session.receive.subscription import Subscription
    from moqt.session.receive.track_state import SubgroupState, TrackState
    from moqt.types import Object, ObjectHeader, Placement
    from moqt.wire.object_reader import EndOfRangeRead, ObjectReader, StreamFinished
    from moqt.wire.streams import SubgroupHeader

__all__ = ["FetchFeed", "FetchTarget", "SubgroupFeed"]


class SubgroupFeed:
    """A subgroup stream of one subscription."""

    def __init__(
        self,
        context: SessionContext,
        stream: DataStream,
        head: SubgroupHeader,
        alias: TrackAlias,
        owner: Subscription,
    ) -> None:
        self._context = context
        self._stream_id = stream.stream_id
        self._head = head
        self._alias = alias
        self._owner = owner
        self._track = alias.track
        self._subgroup: SubgroupState | None = None
        self._subgroup_id = head.subgroup_id
        self._is_shared = alias.is_shared
        self._chosen: deque[Subscription | None] = deque()
        """On a shared alias: whom the Objects that were given a place are for."""
        self.budget = owner.delivery.budget
        owner.delivery.streams[self._stream_id] = stream

    def place(self, header: ObjectHeader) -> Placement | None:
        """Return where the payload of an Object goes."""
        if not self._is_shared:
            return self._owner.delivery.place(header, from_fill=False)
        chosen = self._alias.choose(self._owner, header)
        self._chosen.append(chosen)
        return chosen.delivery.place(header, from_fill=False) if chosen else None

    def _whose(self, header: ObjectHeader) -> Subscription | None:
        if not self._is_shared:
            return self._owner
        if header.payload_length:
            return self._chosen.popleft()
        return self._alias.choose(self._owner, header)

    def deliver(self, item: Object, now: float) -> None:
        """Judge an Object and hand it over."""
        header = item.header
        if self._subgroup is None:
            self._subgroup_id = header.subgroup_id
            self._subgroup = self._track.begin_subgroup(header)
        self._track.see(item)
        self._subgroup.see(header)
        whose = self._whose(header)
        if whose is not None:
            whose.delivery.deliver(item, from_fill=False)

    def refuse(self, item: Object) -> None:
        """Drop a whole Object."""
        if item.header.payload_length:
            whose = self._whose(item.header)
            if whose is not None:
                whose.delivery.refuse(item)

    def mark(self, item: EndOfRangeRead, now: float) -> None:
        """Not on a subgroup stream."""

    def finish(self, item: StreamFinished, now: float) -> None:
        """The Subgroup is complete, as far as this subscription wants it."""
        self._owner.delivery.streams.pop(self._stream_id, None)
        if item.last is not None and self._subgroup is not None:
            # Whose copy it is on a shared alias is unknown, and with filters all need not be there.
            if all(one.is_unfiltered for one in (self._owner, *self._alias.subscriptions)):
                self._subgroup.finish(item.last)
            if item.ends_group:
                self._track.end_group(item.last.group_id, item.last.object_id + 1)
        self._emit_end(ends_group=item.ends_group)
        self._owner.on_stream_over(now)

    def cut(self, code: StreamResetCode, raw_code: int, now: float) -> None:
        """The publisher left something out."""
        self._emit_end(reset=code, reset_code=raw_code)
        self._owner.on_stream_over(now)

    def _emit_end(
        self,
        *,
        ends_group: bool = False,
        reset: StreamResetCode | None = None,
        reset_code: int | None = None,
    ) -> None:
        self._context.emit(
            SubgroupEnded(
                self._owner.request_id,
                self._head.group_id,
                self._subgroup_id,
                ends_group=ends_group,
                reset=reset,
                reset_code=reset_code,
            )
        )

    def abandon(self, reader: ObjectReader) -> None:
        """Drop the unfinished Object."""
        self._owner.delivery.streams.pop(self._stream_id, None)
        if reader.current is not None:
            whose = self._whose(reader.current)
            if whose is not None:
                whose.delivery.abandon(reader)

    def fault(self, reason: str, code: StreamResetCode, now: float) -> None:
        """The track is malformed, or an Object too large."""
        self._owner.on_fault(reason, code)

    def hand_over(self, other: Subscription) -> bool:
        """Go on for another subscription of the shared alias; False in the middle of an Object.

        Its memory is of the subscription that was there when it began, also before it was shared.
        """
        if self._chosen or self._owner.delivery.streams[self._stream_id].is_inside_object:
            return False
        stream = self._owner.delivery.streams.pop(self._stream_id)
        self._owner = other
        self.budget = other.delivery.budget
        other.delivery.streams[self._stream_id] = stream
        return True


if TYPE_CHECKING:

    class FetchOwner(Protocol):
        """The request that a fetch stream belongs to."""

        def on_fetch_stream(self, target: FetchTarget) -> None:
            """The stream is there."""

        def on_fetch_over(
            self,
            target: FetchTarget,
            reset: StreamResetCode | None,
            raw_code: int | None,
            now: float,
        ) -> None:
            """The stream is over: FIN (None), or reset by the publisher."""

        def on_fault(self, reason: str, code: StreamResetCode) -> None:
            """The track is malformed, or an Object too large."""


class FetchTarget:
    """A FETCH or a fill that awaits its stream; `request_id` is what FETCH_HEADER names."""

    def __init__(
        self,
        request_id: int,
        owner: FetchOwner,
        *,
        delivery: Delivery,
        track: TrackState,
        group_order: GroupOrder,
        is_fill: bool,
    ) -> None:
        self.request_id = request_id
        self.owner = owner
        self.delivery = delivery
        self.track = track
        self.group_order = group_order
        self.is_fill = is_fill
        self.stream: DataStream | None = None
        self.is_stopped = False
        """True when its stream is to be stopped on arrival."""


class FetchFeed:
    """The stream of a FETCH or a fill."""

    def __init__(self, context: SessionContext, stream: DataStream, target: FetchTarget) -> None:
        self._context = context
        self._stream_id = stream.stream_id
        self._target = target
        self._delivery = target.delivery
        self._track = target.track
        self._is_fill = target.is_fill
        self.budget = target.delivery.budget
        target.stream = stream
        target.delivery.streams[self._stream_id] = stream

    def place(self, header: ObjectHeader) -> Placement | None:
        """Return where the payload of an Object goes."""
        return self._delivery.place(header, from_fill=self._is_fill)

    def deliver(self, item: Object, now: float) -> None:
        """Judge an Object and hand it over."""
        self._track.see(item)
        self._delivery.deliver(item, from_fill=self._is_fill)

    def refuse(self, item: Object) -> None:
        """Drop a whole Object."""
        self._delivery.refuse(item)

    def mark(self, item: EndOfRangeRead, now: float) -> None:
        """Tell of a part that will not come."""
        self._context.emit(
            EndOfRangeReceived(self._delivery.request_id, item.status, item.last, self._is_fill)
        )

    def finish(self, item: StreamFinished, now: float) -> None:
        """All of the range is there."""
        self._delivery.streams.pop(self._stream_id, None)
        self._target.owner.on_fetch_over(self._target, None, None, now)

    def cut(self, code: StreamResetCode, raw_code: int, now: float) -> None:
        """The publisher failed."""
        self._target.owner.on_fetch_over(self._target, code, raw_code, now)

    def abandon(self, reader: ObjectReader) -> None:
        """Drop the unfinished Object."""
        self._delivery.streams.pop(self._stream_id, None)
        self._delivery.abandon(reader)

    def fault(self, reason: str, code: StreamResetCode, now: float) -> None:
        """The track is malformed, or an Object too large."""
        self._target.owner.on_fault(reason, code)
