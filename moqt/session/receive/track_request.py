"""What a subscription and a FETCH of ours do alike when their Objects show a fault."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moqt.codes import StreamResetCode
from moqt.session.events import TrackMalformed

if TYPE_CHECKING:
    from moqt.session.context import SessionContext
    from moqt.session.receive.subscriber import Subscriber
    from moqt.session.receive.track_state import TrackState
    from moqt.session.request.requests import RequestStream

__all__ = ["TrackRequest"]


class TrackRequest:
    """A request of ours by which the Objects of one track come."""

    context: SessionContext
    stream: RequestStream
    request_id: int
    track: TrackState
    _subscriber: Subscriber
    _is_over: bool

    def release(self, code: StreamResetCode) -> None:
        """Drop everything that belongs to it; streams that are still open are stopped."""
        raise NotImplementedError

    def on_fault(self, reason: str, code: StreamResetCode) -> None:
        """The track is malformed (all its requests end), or one of our limits is passed."""
        if code is StreamResetCode.MALFORMED_TRACK:
            self._subscriber.cancel_track(self.track, reason)
        else:
            self.cancel_malformed(reason, code)

    def cancel_malformed(self, reason: str, code: StreamResetCode) -> None:
        """Cancel and say why."""
        if not self._is_over:
            self.cancel(code)
            self.context.emit(TrackMalformed(self.request_id, reason))

    def cancel(self, code: StreamResetCode) -> None:
        """Stop the request stream and the data streams; no event (MOQT-22 3.2.4)."""
        self.stream.cancel(code)
        self.release(code)
