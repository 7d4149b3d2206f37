"""Our FETCH and TRACK_STATUS (MOQT-22 9.11 to 9.13)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moqt.codes import RequestErrorCode, StreamResetCode
from moqt.errors import LocalProtocolError
from moqt.session.events import (
    FetchEnded,
    FetchEstablished,
    RequestAccepted,
    RequestRejected,
)
from moqt.session.receive.delivery import Delivery
from moqt.session.receive.malformed import MalformedTrack
from moqt.session.receive.stream_wait import StreamWait
from moqt.session.receive.subscribe_request import refusal
from moqt.session.receive.track_request import TrackRequest
from moqt.session.request.own_request import OwnRequest
from moqt.types import Location
from moqt.wire.filters import LocationFilterType
from moqt.wire.messages import FetchOk, RequestOk
from moqt.wire.params import Parameters
from moqt.wire.rules import validate_fetch_ok

if TYPE_CHECKING:
    from moqt.session.context import SessionContext
    from moqt.session.receive.feeds import FetchTarget
    from moqt.session.receive.sink import ObjectSink
    from moqt.session.receive.subscriber import Subscriber
    from moqt.session.receive.track_state import TrackState
    from moqt.wire.filters import LocationFilter
    from moqt.wire.messages import Message

__all__ = ["FetchRequest", "StatusRequest"]

_ABSOLUTE = (
    LocationFilterType.ABSOLUTE,
    LocationFilterType.END_GROUP,
    LocationFilterType.END_OBJECT,
)


class StatusRequest(OwnRequest):
    """A TRACK_STATUS of ours: over with its answer."""

    def on_accepted(self, message: Message, now: float) -> None:
        """TRACK_STATUS_OK."""
        assert isinstance(message, RequestOk)
        self.stream.finish()
        self.release()
        self.context.emit(
            RequestAccepted(
                self.request_id,
                largest=message.parameters.largest,
                properties=message.properties,
            )
        )


class FetchRequest(TrackRequest, OwnRequest):
    """A FETCH of ours; it ends when its data stream is over and it has its answer."""

    def __init__(
        self,
        subscriber: Subscriber,
        context: SessionContext,
        track: TrackState,
        location_filter: LocationFilter | None,
    ) -> None:
        super().__init__(context)
        self.track = track
        self.delivery: Delivery
        self.target: FetchTarget
        self._subscriber = subscriber
        self._filter = location_filter
        self._end: FetchEnded | None = None
        self._wait: StreamWait | None = None
        self._is_over = False

    def prepare(self, sink: ObjectSink | None) -> Delivery:
        """Make the way for its Objects."""
        self.delivery = Delivery(self.context, self.request_id, sink)
        return self.delivery

    def check_update(self, parameters: Parameters) -> Parameters:
        """Let its priority pass, and tokens (MOQT-22 9.5)."""
        if parameters != Parameters(subscriber_priority=parameters.subscriber_priority):
            raise LocalProtocolError("a FETCH has only its priority updated (MOQT-22 9.5)")
        return parameters

    def on_accepted(self, message: Message, now: float) -> None:
        """FETCH_OK; its Objects may have come before it."""
        assert isinstance(message, FetchOk)
        if self._filter is not None and self._filter.type in _ABSOLUTE:
            start = Location(self._filter.start_group, self._filter.start_object)
            validate_fetch_ok(message, start)
        reason = refusal(message.properties)
        if reason is not None:
            self.cancel(StreamResetCode.CANCELLED)
            self.context.emit(
                RequestRejected(self.request_id, RequestErrorCode.UNSUPPORTED_EXTENSION, reason)
            )
            return
        self.context.emit(
            FetchEstablished(self.request_id, message.end_of_track, message.end, message.properties)
        )
        try:
            if message.end_of_track:
                end = message.end
                self.track.end_track(Location(end.group_id, end.object_id + 1))
        except MalformedTrack as error:
            self._subscriber.cancel_track(self.track, error.reason)
            return
        if self._end is not None:
            self._finish(self._end)
        elif self.target.stream is None:
            self._wait = StreamWait(self.context, self._give_up, now=now)

    def _give_up(self, now: float) -> None:
        """The data stream does not come although nothing else is under way."""
        self.stream.cancel(StreamResetCode.CANCELLED)
        self._finish(FetchEnded(self.request_id, StreamResetCode.INTERNAL_ERROR))

    def on_fin(self, now: float) -> None:
        """The publisher answers no update any more, so none is sent; Objects may still come."""
        self.stream.finish()

    def on_ended(self, raw_code: int, now: float) -> None:
        """The publisher cancelled behind FETCH_OK."""
        self._finish(FetchEnded(self.request_id, StreamResetCode.from_wire(raw_code), raw_code))

    def on_fetch_stream(self, target: FetchTarget) -> None:
        """The data stream is there."""
        self._stop_waiting()

    def on_fetch_over(
        self,
        target: FetchTarget,
        reset: StreamResetCode | None,
        raw_code: int | None,
        now: float,
    ) -> None:
        """The data stream is over."""
        self._end = FetchEnded(self.request_id, reset, raw_code)
        if self.is_answered:
            self._finish(self._end)

    def _finish(self, event: FetchEnded) -> None:
        if not self._is_over:
            self.stream.finish()
            self.release()
            self.context.emit(event)

    def release(self, code: StreamResetCode = StreamResetCode.CANCELLED) -> None:
        """Drop what it holds."""
        if self._is_over:
            return
        self._is_over = True
        self._stop_waiting()
        OwnRequest.release(self)
        self._subscriber.fetch_targets.pop(self.request_id, None)
        self.delivery.stop_all(code)
        self.delivery.close()
        self._subscriber.leave_track(self.track, self)

    def _stop_waiting(self) -> None:
        if self._wait is not None:
            self._wait.cancel()
            self._wait = None

    def session_over(self) -> None:
        """The session is over."""
        self._is_over = True
        self.delivery.close()
