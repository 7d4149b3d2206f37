"""A PUBLISH of ours (MOQT-22 9.8)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moqt.codes import StreamResetCode
from moqt.session.events import RequestAccepted, RequestEnded
from moqt.session.request.own_request import OwnRequest
from moqt.wire.messages import RequestError, RequestOk, RequestUpdate

if TYPE_CHECKING:
    from moqt.session.context import SessionContext
    from moqt.session.events import RequestRejected
    from moqt.session.publish.served_subscription import ServedSubscription
    from moqt.session.request.requests import RequestStream
    from moqt.wire.messages import Message

__all__ = ["Publication"]


class Publication(OwnRequest):
    """A PUBLISH of ours: the request, beside the subscription that it offers."""

    def __init__(self, context: SessionContext, subscription: ServedSubscription) -> None:
        super().__init__(context)
        self._subscription = subscription
        self._is_peer_done = False
        subscription.on_done = self._end_if_over

    def on_accepted(self, message: Message, now: float) -> None:
        """PUBLISH_OK."""
        assert isinstance(message, RequestOk)  # by the transition table
        self.context.emit(RequestAccepted(self.request_id, message.parameters.expires_ms))
        self._subscription.accepted()

    def on_more(self, message: Message, now: float) -> None:
        """Take a REQUEST_UPDATE of the subscriber's."""
        if isinstance(message, RequestUpdate):
            self._subscription.on_message(self.stream, message, now)
        else:
            super().on_more(message, now)

    def refuse_update(self, stream: RequestStream, error: RequestError, now: float) -> None:
        """End the subscription."""
        self._subscription.refuse_update(stream, error, now)

    def on_fin(self, now: float) -> None:
        """The subscriber has taken note of PUBLISH_DONE, or will send no update before it."""
        self._is_peer_done = True
        if self._subscription.is_over:
            self._end_if_over()

    def _end_if_over(self) -> None:
        if self._is_peer_done:
            self.release()
            self.context.emit(RequestEnded(self.request_id))

    def on_ended(self, raw_code: int, now: float) -> None:
        """The subscriber has enough."""
        self._subscription.release(StreamResetCode.CANCELLED)
        self.release()
        self.context.emit(RequestEnded(self.request_id, StreamResetCode.from_wire(raw_code)))

    def fail(self, event: RequestRejected) -> None:
        """The offer was refused: no Object of it is sent any more."""
        self._subscription.release(StreamResetCode.CANCELLED)
        super().fail(event)

    def cancel(self, code: StreamResetCode) -> None:
        """End the offer or the subscription from our side, at once and without PUBLISH_DONE."""
        self._subscription.release(StreamResetCode.CANCELLED)
        super().cancel(code)
