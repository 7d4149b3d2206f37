"""What all requests of ours have in common, up to their first answer (MOQT-22 6.4.2)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moqt.codes import RequestErrorCode, SessionErrorCode, StreamResetCode
from moqt.errors import LocalProtocolError, RemoteProtocolError
from moqt.session.context import Handle
from moqt.session.events import RequestRejected, UpdateAccepted, UpdateRejected
from moqt.wire.messages import RequestError, RequestOk
from moqt.wire.params import NO_PARAMETERS

if TYPE_CHECKING:
    from moqt.session.context import SessionContext
    from moqt.session.request.requests import RequestStream
    from moqt.wire.messages import Message
    from moqt.wire.params import Parameters

__all__ = ["OwnRequest", "Updatable", "rejection"]


class Updatable(Handle):
    """A request, ours or an offer that we took, for which we may send REQUEST_UPDATE (9.5)."""

    stream: RequestStream

    def check_update(self, parameters: Parameters) -> Parameters:
        """Return what to send for what is wanted.

        Raises: LocalProtocolError for what the peer would have to refuse; ResourceBusy for what it
        must answer before.
        """
        raise NotImplementedError

    def note_update(self, update_id: int, parameters: Parameters) -> None:
        """It was sent with this Request ID."""


class OwnRequest(Updatable):
    """Handles the stream of one request of ours.

    A subclass says what an OK means, and what happens behind it. A request that fails before its
    OK ends with the event RequestRejected, whatever the cause.
    """

    def __init__(self, context: SessionContext) -> None:
        self.context = context
        self.is_answered = False
        self.request_id = -1

    def bind(self, stream: RequestStream) -> None:
        """Take the stream that the request was sent on; the application knows it from now on."""
        self.stream = stream
        self.request_id = stream.request_id
        self.context.handles[self.request_id] = self

    def check_update(self, parameters: Parameters) -> Parameters:
        """Let tokens pass, once it is accepted; nothing else can be updated (MOQT-22 9.20.16)."""
        if not self.is_answered:
            raise LocalProtocolError(f"request {self.request_id} is not accepted yet")
        if parameters != NO_PARAMETERS:
            raise LocalProtocolError(f"of request {self.request_id} only tokens can be updated")
        return parameters

    # What a subclass adds

    def on_accepted(self, message: Message, now: float) -> None:
        """Take the OK."""
        raise NotImplementedError

    def on_more(self, message: Message, now: float) -> None:
        """Take a message behind the OK; answers to updates are dealt with already."""
        raise RemoteProtocolError(
            SessionErrorCode.PROTOCOL_VIOLATION, f"unexpected {message.TYPE.name}"
        )

    def on_fin(self, now: float) -> None:
        """The peer sends nothing more, after its OK."""

    def on_ended(self, raw_code: int, now: float) -> None:
        """The peer cancelled the request, after its OK."""

    def on_update_answered(
        self, update_id: int, message: RequestOk | RequestError, now: float
    ) -> None:
        """Take the answer to a REQUEST_UPDATE of ours; the event follows."""

    def after_update(self, update_id: int, message: RequestOk, now: float) -> None:
        """The event of an accepted update is out."""

    def release(self) -> None:
        """The request is over: drop what it holds."""
        self.context.handles.pop(self.request_id, None)

    # RequestHandler

    def on_message(self, stream: RequestStream, message: Message, now: float) -> None:
        """Take a message that may come now."""
        if self.is_answered:
            if isinstance(message, RequestOk | RequestError):
                self._answer_update(message, now)
            else:
                self.on_more(message, now)
            return
        self.is_answered = True
        if isinstance(message, RequestError):
            stream.finish()
            self.fail(rejection(self.request_id, message))
        else:
            self.on_accepted(message, now)

    def refuse_update(self, stream: RequestStream, error: RequestError, now: float) -> None:
        """Only a PUBLISH of ours is updated by the peer, see there."""
        raise RemoteProtocolError(SessionErrorCode.PROTOCOL_VIOLATION, "unexpected REQUEST_UPDATE")

    def _answer_update(self, message: RequestOk | RequestError, now: float) -> None:
        update_id = self.stream.pending_updates.popleft()
        self.on_update_answered(update_id, message, now)
        if isinstance(message, RequestOk):
            largest, expires_ms = message.parameters.largest, message.parameters.expires_ms
            self.context.emit(UpdateAccepted(self.request_id, update_id, largest, expires_ms))
            self.after_update(update_id, message, now)
        else:
            self.context.emit(
                UpdateRejected(self.request_id, update_id, message.code, message.reason)
            )

    def on_peer_fin(self, stream: RequestStream, now: float) -> None:
        """A FIN before the answer is a failure, behind it none (MOQT-22 6.4.2.2)."""
        if self.is_answered:
            self.on_fin(now)
        else:
            stream.cancel(StreamResetCode.CANCELLED)
            self._fail_unanswered("the peer ended the stream without an answer")

    def on_cancelled(self, stream: RequestStream, raw_code: int, now: float) -> None:
        """The peer cancelled."""
        if self.is_answered:
            self.on_ended(raw_code, now)
        else:
            self._fail_unanswered(f"the peer cancelled the request (0x{raw_code:x})")

    def on_timeout(self, stream: RequestStream, now: float) -> None:
        """No answer in time."""
        self.fail(
            RequestRejected(
                self.request_id, RequestErrorCode.TIMEOUT, "no answer in time", timed_out=True
            )
        )

    def _fail_unanswered(self, reason: str) -> None:
        self.fail(RequestRejected(self.request_id, RequestErrorCode.INTERNAL_ERROR, reason))

    def fail(self, event: RequestRejected) -> None:
        """End the request before its OK has been told to the application."""
        self.release()
        self.context.emit(event)

    # Handle

    def cancel(self, code: StreamResetCode) -> None:
        """End the request from our side; no event."""
        self.stream.cancel(code)
        self.release()

    def session_over(self) -> None:
        """The session is over."""


def rejection(request_id: int, message: RequestError) -> RequestRejected:
    """Return the event for a REQUEST_ERROR to `request_id`."""
    redirect = message.redirect
    return RequestRejected(
        request_id,
        message.code,
        message.reason,
        retry_interval_ms=message.retry_interval_ms,
        redirect_uri=redirect.connect_uri if redirect else None,
        redirect_name=redirect.target if redirect else None,
    )
