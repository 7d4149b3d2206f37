"""One FETCH of the peer's that was accepted: its data stream and its request stream."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moqt.codes import StreamResetCode
from moqt.session.publish.cursor import CursorState, Flow
from moqt.session.publish.outbound import FetchCursor
from moqt.session.request.endings import reset_code_for
from moqt.session.request.request_stream import ServedHandler
from moqt.wire.messages import RequestOk, RequestUpdate
from moqt.wire.params import Parameters
from moqt.wire.properties import DEFAULT_PRIORITY

if TYPE_CHECKING:
    from moqt.codes import GroupOrder
    from moqt.session.publish.cursor import Cursor
    from moqt.session.publish.publisher import Publisher
    from moqt.session.publish.source import TrackSource
    from moqt.session.request.requests import RequestStream
    from moqt.wire.filters import LocationRange, RangeFilters
    from moqt.wire.messages import Message, RequestError

__all__ = ["ServedFetch"]


class ServedFetch(ServedHandler):
    """Sends a range of a track on one stream. FETCH_OK has been sent before it starts.

    The request stream is ended by FIN when no REQUEST_UPDATE can be answered any more: after the
    data stream, or with the peer's FIN.
    """

    def __init__(self, publisher: Publisher, track: TrackSource, stream: RequestStream) -> None:
        self.track = track
        self.flow = Flow()
        self.stream = stream
        self.subscriber_priority = DEFAULT_PRIORITY
        self._publisher = publisher
        self._cursor: FetchCursor | None = None

    def start(
        self, wanted: LocationRange, range_filters: RangeFilters | None, group_order: GroupOrder
    ) -> None:
        """Deliver the range."""
        self._cursor = FetchCursor(
            self.flow,
            self,
            self._publisher.context.stats,
            self.track,
            request_id=self.stream.request_id,
            wanted=wanted,
            range_filters=range_filters,
            group_order=group_order,
        )
        self._publisher.scheduler.add(self._cursor)

    # CursorOwner

    def cursor_left(self, cursor: Cursor, state: CursorState) -> None:
        """All is written, or the track was aborted."""
        self._cursor = None
        if state is CursorState.FINISHED:
            self.stream.finish()
        else:
            abort_code = self.track.abort_code
            code = reset_code_for(abort_code) if abort_code else StreamResetCode.INTERNAL_ERROR
            self._publisher.scheduler.reset(cursor, code)
            self.stream.cancel(code)
        self._publisher.forget(self)

    def stopped(self, cursor: Cursor) -> None:
        """The peer stopped the data stream alone; nothing is left to do for the request."""
        self.release(StreamResetCode.CANCELLED)
        self.stream.finish()

    # RequestHandler

    def on_message(self, stream: RequestStream, message: Message, now: float) -> None:
        """Take a REQUEST_UPDATE: the Subscriber Priority may change."""
        assert isinstance(message, RequestUpdate)  # by the transition table
        if self._cursor is None:
            return  # it crossed our FIN
        priority = message.parameters.subscriber_priority
        if priority is not None:
            self.subscriber_priority = priority
            self._publisher.scheduler.reprioritize(self.flow)
        stream.send(RequestOk(Parameters(largest=self.track.largest)))

    def refuse_update(self, stream: RequestStream, error: RequestError, now: float) -> None:
        """Answer so, and reset the data stream (MOQT-22 9.5.1)."""
        if self._cursor is not None:
            stream.refuse_with(error)
            self.release(StreamResetCode.CANCELLED)

    def on_peer_fin(self, stream: RequestStream, now: float) -> None:
        """No more updates, so nothing more to say."""
        stream.finish()

    def on_cancelled(self, stream: RequestStream, raw_code: int, now: float) -> None:
        """The subscriber has enough (MOQT-22 3.2.4)."""
        self.release(StreamResetCode.CANCELLED)

    # End

    def release(self, code: StreamResetCode | None) -> None:
        """Let go of the track; reset the data stream, with None leave it alone."""
        cursor, self._cursor = self._cursor, None
        if cursor is not None:
            self._publisher.scheduler.discard([cursor])
            if code is not None:
                self._publisher.scheduler.reset(cursor, code)
        self._publisher.forget(self)
