"""One incoming unidirectional stream: its head, then its Objects, and the credit for both."""

from __future__ import annotations

from enum import Enum
from operator import itemgetter
from typing import TYPE_CHECKING, Final, Protocol

from moqt.codes import SessionErrorCode, StreamResetCode
from moqt.errors import RemoteProtocolError
from moqt.session.receive.held import HeldOctets
from moqt.session.receive.malformed import MalformedTrack
from moqt.types import Object
from moqt.wire.object_reader import EndOfRangeRead, ObjectTooLarge
from moqt.wire.streams import MAX_HEAD_OCTETS, parse_stream_head

if TYPE_CHECKING:
    from collections.abc import Iterable

    from moqt.session.receive.budget import ReadBudget
    from moqt.session.receive.inbound import Inbound
    from moqt.session.timers import Timer
    from moqt.wire.object_reader import ObjectReader, StreamFinished, StreamItem
    from moqt.wire.streams import StreamHead

__all__ = ["DataStream"]


if TYPE_CHECKING:

    class Feed(Protocol):
        """What the request of a stream does with what the stream brings."""

        budget: ReadBudget

        def deliver(self, item: Object, now: float) -> None:
            """Take a whole Object; raises MalformedTrack."""

        def mark(self, item: EndOfRangeRead, now: float) -> None:
            """Take an End of Range marker."""

        def finish(self, item: StreamFinished, now: float) -> None:
            """The stream ended by FIN and is forgotten; raises MalformedTrack."""

        def cut(self, code: StreamResetCode, raw_code: int, now: float) -> None:
            """The peer reset the stream; it is forgotten."""

        def refuse(self, item: Object) -> None:
            """Drop a whole Object: it is not handed over."""

        def abandon(self, reader: ObjectReader) -> None:
            """Drop the unfinished Object of the stream, and its entry in the request."""

        def fault(self, reason: str, code: StreamResetCode, now: float) -> None:
            """The stream showed that the track (MALFORMED_TRACK) or an Object is not acceptable."""


class _Stage(Enum):
    HEAD = "its head is not whole"
    HELD = "waits for its request to be known"
    READING = "brings Objects"
    PADDING = "is discarded"
    OVER = "ended, stopped or handed on"


_OVER: Final = _Stage.OVER  # asked for after each Object; looking up a member takes its time


class DataStream:
    """An incoming stream that is not (yet known to be) the control stream."""

    __slots__ = (
        "_final_size",
        "_held",
        "_inbound",
        "_pending",
        "_read_at_wait",
        "_reader",
        "_stage",
        "_timer",
        "feed",
        "head",
        "head_octets",
        "held_octets",
        "stream_id",
    )

    def __init__(self, inbound: Inbound, stream_id: int) -> None:
        self.stream_id = stream_id
        self.head: StreamHead | None = None
        self.head_octets = 0
        self.feed: Feed | None = None
        self.held_octets = 0
        self._inbound = inbound
        self._stage = _Stage.HEAD
        self._held = HeldOctets()
        self._reader: ObjectReader | None = None
        self._final_size = -1
        self._pending = 0
        self._read_at_wait = 0
        self._timer: Timer | None = None

    @property
    def is_over(self) -> bool:
        """True when nothing more is taken from it."""
        return self._stage is _OVER

    @property
    def is_nameless(self) -> bool:
        """True while its request is not known."""
        return self._stage in (_Stage.HEAD, _Stage.HELD)

    @property
    def octets_read(self) -> int:
        """How many octets have been read in order."""
        return self._reader.next_offset if self._reader is not None else 0

    @property
    def is_inside_object(self) -> bool:
        """True while the payload of an Object has not come whole."""
        return self._reader is not None and self._reader.current is not None

    # Inputs

    def receive(self, offset: int, data: memoryview | bytes, fin: bool, now: float) -> None:
        """Take octets; each once, in any order. Raises RemoteProtocolError."""
        reader = self._reader
        if reader is None:
            self._receive_early(offset, data, fin, now)
            return
        fault: RemoteProtocolError | ObjectTooLarge | None = None
        items: Iterable[StreamItem]
        try:
            items = reader.receive(offset, data, fin)
        except (RemoteProtocolError, ObjectTooLarge) as error:
            fault = error
            items = reader.take_items()
        pending = reader.octets_pending
        octets = len(data) + self._pending - pending
        self._pending = pending
        feed = self.feed
        assert feed is not None
        is_taken = not items or self._deliver(items, now)
        if octets:  # those that fill the budget are the first that are withheld
            if is_taken and feed.budget.is_full and self._needs_memory(items, reader):
                feed.budget.withhold(self.stream_id, octets)
            else:
                self._inbound.context.transport.credit(self.stream_id, octets)
        if pending or self._timer is not None:
            self._watch_header(reader, now)
        if fault is not None and not self.is_over:
            if isinstance(fault, RemoteProtocolError):
                raise fault
            self._fault(str(fault), StreamResetCode.EXCESSIVE_LOAD, now)

    def _needs_memory(self, items: Iterable[StreamItem], reader: ObjectReader) -> bool:
        """Whether an Object of these, or the unfinished one, is in memory of the session."""
        return (reader.current is not None and reader.current_place is None) or any(
            isinstance(item, Object) and item.placement is None and item.header.payload_length
            for item in items
        )

    def _deliver(self, items: Iterable[StreamItem], now: float) -> bool:
        """Hand them over; False: the stream was stopped meanwhile."""
        feed = self.feed
        assert feed is not None
        for position, item in enumerate(items):
            try:
                if isinstance(item, Object):
                    feed.deliver(item, now)
                elif isinstance(item, EndOfRangeRead):
                    feed.mark(item, now)
                else:  # the last one
                    self._leave()
                    feed.finish(item, now)
                    return True
            except MalformedTrack as error:
                self._refuse(items, position)
                self._fault(error.reason, StreamResetCode.MALFORMED_TRACK, now)
                return False
            if self._stage is _OVER:
                self._refuse(items, position + 1)
                return False
        return True

    def _refuse(self, items: Iterable[StreamItem], start: int) -> None:
        """Give back the places of the Objects that are not handed over any more."""
        assert self.feed is not None
        for position, item in enumerate(items):
            if position >= start and isinstance(item, Object):
                self.feed.refuse(item)

    def _fault(self, reason: str, code: StreamResetCode, now: float) -> None:
        feed = self.feed
        assert feed is not None
        self.stop(code)
        feed.fault(reason, code, now)

    def receive_reset(self, raw_code: int, now: float) -> None:
        """The peer gave the stream up."""
        feed = self.feed
        self._drop()
        if feed is not None:
            feed.budget.forget_stream(self.stream_id)
            feed.cut(StreamResetCode.from_wire(raw_code), raw_code, now)

    def stop(self, code: StreamResetCode) -> None:
        """Give the stream up: STOP_SENDING. Its feed learns of it by `abandon` alone."""
        if self.is_over:
            return
        feed = self.feed
        self._drop()
        self._inbound.context.stats.streams_stopped += 1
        self._inbound.context.transport.stop(self.stream_id, code)
        if feed is not None:
            feed.budget.forget_stream(self.stream_id)

    def session_over(self) -> None:
        """Drop what it holds; the transport is gone."""
        self._drop()

    def _drop(self) -> None:
        reader, feed = self._reader, self.feed
        self._leave()
        if reader is not None and feed is not None:
            feed.abandon(reader)

    def _leave(self) -> None:
        self._stage = _Stage.OVER
        self._reader = None
        self._let_go()
        self._inbound.forget(self)

    # Before its request is known

    def _receive_early(self, offset: int, data: memoryview | bytes, fin: bool, now: float) -> None:
        if self._stage is _Stage.PADDING:
            self._discard(offset, len(data), fin)
            return
        if self._stage is _Stage.HEAD and not self._held and not offset:
            found = parse_stream_head(data)
            if found is not None:
                self.head, self.head_octets = found
                self._held.lend(offset, data, fin)
                self._inbound.route(self, now)
                self._held.own()  # where it waits
                return
        self._hold(offset, data, fin)
        if self._stage is _Stage.HEAD and offset < MAX_HEAD_OCTETS:
            self._look_for_head(now)
        if self._stage is _Stage.HEAD and self._timer is None:
            self.wait(self._inbound.context.config.stream_header_timeout_s, now)

    def _look_for_head(self, now: float) -> None:
        prefix = bytearray()
        final_size: int | None = None
        for offset, data, fin in sorted(self._held, key=itemgetter(0)):
            if fin:
                final_size = offset + len(data)
            if offset == len(prefix):
                prefix += data
        found = parse_stream_head(prefix)
        if found is not None:
            self.head, self.head_octets = found
            self._inbound.route(self, now)
        elif final_size == len(prefix):
            raise RemoteProtocolError(
                SessionErrorCode.PROTOCOL_VIOLATION,
                f"stream {self.stream_id}: FIN inside its header",
            )

    def _hold(self, offset: int, data: memoryview | bytes, fin: bool) -> None:
        is_kept = self._held.add(offset, data, fin)
        self.held_octets += len(data)
        if not self._inbound.note_held(len(data)) or not is_kept:
            self.stop(StreamResetCode.EXCESSIVE_LOAD)

    def hold(self) -> None:
        """Its request is not known yet: keep what comes, uncredited, until it is."""
        self._stage = _Stage.HELD
        fresh = self._held.octets - self.held_octets
        self.held_octets += fresh
        if not self._inbound.note_held(fresh):
            self.stop(StreamResetCode.EXCESSIVE_LOAD)

    def wait(self, seconds: float, now: float) -> None:
        """Stop the stream unless it gets on within `seconds`."""
        self._cancel_timer()
        self._timer = self._inbound.context.timers.at(now + seconds, self._time_out)

    def _time_out(self, now: float) -> None:
        self._timer = None
        self.stop(StreamResetCode.CANCELLED)

    def _watch_header(self, reader: ObjectReader, now: float) -> None:
        """Give the rest of an Object header that has begun `stream_header_timeout_s`."""
        if self.is_over:
            return
        if not reader.octets_pending or reader.current is not None:
            self._cancel_timer()
        elif self._timer is None:
            self._await_header(now)

    def _await_header(self, now: float) -> None:
        self._read_at_wait = self.octets_read
        seconds = self._inbound.context.config.stream_header_timeout_s
        self._timer = self._inbound.context.timers.at(now + seconds, self._check_header)

    def _check_header(self, now: float) -> None:
        """Stop a stream whose Object header does not come; that takes DATA_STREAM_TIMEOUT's place.

        Source: MOQT-22 12.2.
        """
        self._timer = None
        reader, feed = self._reader, self.feed
        if reader is None or feed is None or not reader.octets_pending or reader.current:
            return
        if self.octets_read != self._read_at_wait:
            self._await_header(now)
            return
        self.stop(StreamResetCode.CANCELLED)
        feed.cut(StreamResetCode.CANCELLED, StreamResetCode.CANCELLED, now)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _let_go(self) -> HeldOctets:
        """Hold nothing any more; return what was held."""
        self._cancel_timer()
        self._inbound.note_held(-self.held_octets)
        self.held_octets = 0
        held, self._held = self._held, HeldOctets()
        return held

    # Once it is known

    def read(self, reader: ObjectReader, feed: Feed, now: float) -> None:
        """Read Objects for `feed` from now on, beginning with what was held."""
        self._reader = reader
        self.feed = feed
        self._stage = _Stage.READING
        held = self._let_go()
        self._inbound.context.transport.credit(self.stream_id, self.head_octets)
        for offset, data, fin in sorted(held, key=itemgetter(0)):  # so none is set aside again
            if self.is_over:
                return
            skip = min(max(self.head_octets - offset, 0), len(data))
            self.receive(offset + skip, memoryview(data)[skip:], fin, now)

    def hand_on(self) -> HeldOctets:
        """It is the control stream: return what it has brought, uncredited."""
        self._stage = _Stage.OVER
        return self._let_go()

    def discard(self) -> None:
        """It is padding: credit what comes and look at nothing (MOQT-22 11.5)."""
        self._stage = _Stage.PADDING
        for offset, data, fin in self._let_go():
            self._discard(offset, len(data), fin)

    def _discard(self, offset: int, octets: int, fin: bool) -> None:
        self._inbound.context.transport.credit(self.stream_id, octets)
        self._pending += octets
        if fin:
            self._final_size = offset + octets
        if self._pending == self._final_size:
            self._leave()
