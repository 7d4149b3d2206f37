"""The way of one request's Objects to the application: a place, an event, the credit for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moqt.session.events import ObjectReceived
from moqt.session.receive.budget import ReadBudget
from moqt.wire.object_reader import ObjectTooLarge

if TYPE_CHECKING:
    from moqt.codes import StreamResetCode
    from moqt.session.context import SessionContext
    from moqt.session.receive.data_stream import DataStream
    from moqt.session.receive.sink import ObjectSink
    from moqt.types import Object, ObjectHeader, Placement
    from moqt.wire.object_reader import ObjectReader

__all__ = ["Delivery"]


class Delivery:
    """Where the Objects of one subscription (its fills included) or fetch go."""

    __slots__ = ("_context", "_sink", "budget", "request_id", "streams")

    def __init__(self, context: SessionContext, request_id: int, sink: ObjectSink | None) -> None:
        self._context = context
        self._sink = sink
        self.request_id = request_id
        self.budget = context.budgets[request_id] = ReadBudget(context)
        self.streams: dict[int, DataStream] = {}
        """The data streams that have not ended, by stream ID."""

    def place(self, header: ObjectHeader, *, from_fill: bool) -> Placement | None:
        """Return the place for an Object that begins; None: memory of the session.

        Raises: ObjectTooLarge when the Objects in the making pass `max_object_octets` together,
        or those that lie unread pass `max_unread_octets`.
        """
        if self._sink is not None:
            placement = self._sink.place(header, from_fill=from_fill)
            if placement is not None:
                return placement
        if not self.budget.begin(header.payload_length):
            config = self._context.config
            if self.budget.unconsumed > config.max_unread_octets:
                raise ObjectTooLarge(
                    "what lies unread of the request",
                    self.budget.unconsumed,
                    config.max_unread_octets,
                    header,
                )
            limit = config.max_object_octets
            raise ObjectTooLarge(
                f"Object {header.location} together with other unfinished Objects",
                self.budget.unfinished + header.payload_length,
                limit,
                header,
            )
        return None

    def deliver(self, item: Object, *, from_fill: bool) -> None:
        """Hand over a whole Object."""
        header = item.header
        length = header.payload_length
        if length and item.placement is None:
            self.budget.complete(length)
        stats = self._context.stats
        stats.objects_received += 1
        stats.octets_received += length
        self._context.emit(ObjectReceived(self.request_id, item, from_fill))

    def refuse(self, item: Object) -> None:
        """Drop a whole Object: it is not handed over."""
        self._give_back(item.header, item.placement)

    def abandon(self, reader: ObjectReader) -> None:
        """Drop the unfinished Object of a stream; nothing more is written to its place."""
        if reader.current is not None:
            self._give_back(reader.current, reader.current_place)

    def _give_back(self, header: ObjectHeader, place: Placement | None) -> None:
        if not header.payload_length:
            return
        if place is not None:
            assert self._sink is not None  # it gave the place
            self._sink.abandoned(place)
        else:
            self.budget.drop_unfinished(header.payload_length)

    def stop_all(self, code: StreamResetCode) -> None:
        """Stop every stream that has not ended."""
        for stream in list(self.streams.values()):
            stream.stop(code)

    def close(self) -> None:
        """The request is over, its streams too."""
        self._context.budgets.pop(self.request_id, None)
        self.budget.close()
