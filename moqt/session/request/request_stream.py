"""One request stream: framing both ways, FIN and cancel, the count of unanswered updates."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Protocol

from moqt.codes import SessionErrorCode, StreamResetCode
from moqt.errors import LocalProtocolError, RemoteProtocolError
from moqt.session.request.endings import cut_reason
from moqt.session.request.reassembly import Reassembly
from moqt.session.request.states import Phase, is_allowed, phase_after
from moqt.wire.framing import MessageReader, encode_message
from moqt.wire.messages import (
    FetchOk,
    Goaway,
    RequestError,
    RequestOk,
    RequestUpdate,
    SubscribeOk,
)

if TYPE_CHECKING:
    from moqt.codes import RequestErrorCode
    from moqt.session.request.requests import Requests
    from moqt.session.timers import Timer
    from moqt.wire.messages import Message
    from moqt.wire.rules import RequestKind

_ANSWERS = (RequestOk, RequestError, SubscribeOk, FetchOk)


class RequestHandler(Protocol):
    """What one part of the session does with one request. Inputs may raise RemoteProtocolError."""

    def on_message(self, stream: RequestStream, message: Message, now: float) -> None:
        """Take a message that the transition table allows."""

    def refuse_update(self, stream: RequestStream, error: RequestError, now: float) -> None:
        """A REQUEST_UPDATE that the table allows is refused by general checks (MOQT-22 9.5.1)."""

    def on_peer_fin(self, stream: RequestStream, now: float) -> None:
        """The peer sends no more messages; not a cancellation (MOQT-22 6.4.2.2)."""

    def on_cancelled(self, stream: RequestStream, raw_code: int, now: float) -> None:
        """The peer reset or stopped the stream; both directions are closed already."""


if TYPE_CHECKING:

    class OwnHandler(RequestHandler, Protocol):
        """The same for a request of ours."""

        def on_timeout(self, stream: RequestStream, now: float) -> None:
            """No first answer to our request within its time; it is cancelled already."""


class ServedHandler(RequestHandler):
    """The same for a request of the peer's, with what most kinds do alike."""

    def on_peer_fin(self, stream: RequestStream, now: float) -> None:
        """No more updates; what was asked for goes on (MOQT-22 6.4.2.2)."""

    def expire(self, stream: RequestStream, now: float) -> None:
        """The authorization has run out: end it as if the peer had cancelled (9.20.16)."""
        stream.cancel(StreamResetCode.EXPIRED_AUTH_TOKEN)
        self.on_cancelled(stream, StreamResetCode.EXPIRED_AUTH_TOKEN, now)


class RequestStream:
    """A bidirectional stream that carries one request (MOQT-22 6.4.2).

    Two booleans, `is_send_open` and `is_receive_open`, say which directions are open. `send` and
    `finish` do nothing after a cancel by either side, since what they would say has no reader.
    """

    def __init__(self, table: Requests, stream_id: int, *, is_ours: bool) -> None:
        self.stream_id = stream_id
        self.is_ours = is_ours
        self.request_id = -1
        """-1 until the first message of a stream of the peer's is read."""
        self.kind: RequestKind | None = None
        self.phase = Phase.PENDING
        self.is_send_open = True
        self.is_receive_open = True
        self.unanswered_updates = 0
        """REQUEST_UPDATEs of the peer that we owe an answer."""
        self.pending_updates: deque[int] = deque()
        """Request IDs of our updates that the peer owes an answer, oldest first."""
        self.handler: RequestHandler | None = None
        self.answer_timer: Timer | None = None
        self._table = table
        self._context = table.context
        self._reassembly = Reassembly()
        self._reader = MessageReader()
        self.goaway_sent = False
        self.goaway_timer: Timer | None = None
        """Resets the request when the time of our GOAWAY is over."""
        self._got_goaway = False
        self._backlog: deque[bytes] = deque()
        self._backlog_octets = 0
        self._fin_queued = False

    def __repr__(self) -> str:
        kind = self.kind.name if self.kind else "new"
        return f"<RequestStream {self.stream_id} {kind} id={self.request_id} {self.phase.name}>"

    # Sending

    def send(self, message: Message) -> None:
        """Send a message, after those sent before.

        What the peer's flow control does not take yet waits here, up to
        `max_request_stream_octets`; beyond it the request is cancelled with EXCESSIVE_LOAD.
        Raises: LocalProtocolError after `finish`, or for an answer that nothing asked for.
        """
        if self._fin_queued:
            raise LocalProtocolError(f"{self!r}: {type(message).__name__} after FIN")
        if not self.is_send_open or self._context.is_closed:
            return
        if isinstance(message, _ANSWERS):
            self._note_answer(message)
            message = self._table.gate.with_expiry(self, message)
        self.send_octets(encode_message(message))

    def refuse(self, code: RequestErrorCode, reason: str) -> None:
        """Answer REQUEST_ERROR and FIN (MOQT-22 6.4.2.3); a long reason is cut."""
        self.refuse_with(RequestError(code=code, reason=cut_reason(reason)))

    def refuse_with(self, error: RequestError) -> None:
        """The same with an error that is made already."""
        self.send(error)
        self.finish()

    def _note_answer(self, message: Message) -> None:
        if not self.is_ours and self.phase is Phase.PENDING:
            self.phase = phase_after(message)
            if isinstance(message, RequestError):
                self._context.stats.requests_refused += 1
        elif self.unanswered_updates:
            self.unanswered_updates -= 1
        else:
            raise LocalProtocolError(f"{self!r}: {type(message).__name__} answers nothing")

    def send_octets(self, octets: bytes) -> None:
        """Send a message that is encoded and accounted for; see `send`."""
        if not self._backlog and self._context.transport.stream_room(self.stream_id) >= len(octets):
            self._context.transport.write(self.stream_id, [octets], False)
            return
        self._backlog.append(octets)
        self._backlog_octets += len(octets)
        self._table.note_blocked(self)
        if self._backlog_octets > self._context.config.max_request_stream_octets:
            handler = self.handler
            self.cancel(StreamResetCode.EXCESSIVE_LOAD)
            if handler is not None:
                self._table.defer_cancelled(self, handler, StreamResetCode.EXCESSIVE_LOAD)

    def flush(self) -> bool:
        """Hand over what waited for flow control; return whether all is handed over."""
        transport = self._context.transport
        while self._backlog:
            octets = self._backlog[0]
            if transport.stream_room(self.stream_id) < len(octets):
                return False
            self._backlog.popleft()
            self._backlog_octets -= len(octets)
            transport.write(self.stream_id, [octets], self._fin_queued and not self._backlog)
        self._leave_if_over()
        return True

    def finish(self) -> None:
        """Send FIN after everything sent before; doing it again changes nothing."""
        if self._fin_queued or not self.is_send_open:
            return
        self._fin_queued = True
        self.is_send_open = False
        if not self._backlog and not self._context.is_closed:
            self._context.transport.write(self.stream_id, [], True)
        self._leave_if_over()

    def cancel(self, code: StreamResetCode) -> None:
        """RESET_STREAM and STOP_SENDING, whichever direction is open (MOQT-22 6.4.2.3).

        The handler is not told: who cancels knows. Doing it again changes nothing.
        """
        transport = self._context.transport
        if self.is_send_open or self._backlog:
            self.is_send_open = False
            self._backlog.clear()
            self._backlog_octets = 0
            transport.reset(self.stream_id, code)
        if self.is_receive_open:
            self.is_receive_open = False
            transport.stop(self.stream_id, code)
        self.phase = Phase.ENDED
        self._leave_if_over()

    def _leave_if_over(self) -> None:
        if not self.is_send_open and not self.is_receive_open and not self._backlog:
            self.settle()
            if self.goaway_timer is not None:
                self.goaway_timer.cancel()
            self._table.forget(self)

    def settle(self) -> None:
        """The first answer is there, or not awaited any more: stop its timer."""
        if self.answer_timer is not None:
            self.answer_timer.cancel()
            self.answer_timer = None

    # Receiving

    def receive(self, offset: int, data: memoryview | bytes, fin: bool, now: float) -> None:
        """Take octets of the stream; raises RemoteProtocolError for what breaks the protocol."""
        octets = self._reassembly.push(offset, data, fin)
        if len(octets):
            self._context.transport.credit(self.stream_id, len(octets))
            for message in self._reader.feed(octets):
                if not self.is_receive_open:
                    return
                self._dispatch(message, now)
        if self._reassembly.is_complete and self.is_receive_open:
            self._receive_fin(now)

    def _receive_fin(self, now: float) -> None:
        self._reader.finish()
        if self.kind is None:
            raise RemoteProtocolError(
                SessionErrorCode.PROTOCOL_VIOLATION, f"{self!r}: FIN before a request"
            )
        self.is_receive_open = False
        if self.handler is not None:
            self.handler.on_peer_fin(self, now)
        self._leave_if_over()

    def _dispatch(self, message: Message, now: float) -> None:
        if isinstance(message, Goaway) and self.kind is not None:
            if self._got_goaway:
                raise RemoteProtocolError(
                    SessionErrorCode.PROTOCOL_VIOLATION, f"{self!r}: second GOAWAY"
                )
            self._got_goaway = True
            self._table.receive_goaway(self, message)
            return
        if self.kind is None:
            self._table.open_from_peer(self, message, now)
            return
        refusal: RequestError | None = None
        if isinstance(message, RequestUpdate):
            refusal = self._count_update(message, now)
        elif self.is_ours or isinstance(message, RequestOk | RequestError):
            self._table.check_answer(self, message)
        if not self.is_ours and self.phase is Phase.ENDED:
            return  # rejected or over: what was on its way has no meaning any more
        if not is_allowed(self.kind, is_ours=self.is_ours, phase=self.phase, message=message):
            raise RemoteProtocolError(
                SessionErrorCode.PROTOCOL_VIOLATION,
                f"{self!r}: {type(message).__name__} is not allowed here",
            )
        if isinstance(message, _ANSWERS):
            self._table.note_answer(self, message)
        if self.is_ours and self.phase is Phase.PENDING and isinstance(message, _ANSWERS):
            self.settle()
            self.phase = phase_after(message)
        if self.handler is None:
            return
        if refusal is not None:
            self.handler.refuse_update(self, refusal, now)
        else:
            self.handler.on_message(self, message, now)

    def _count_update(self, message: RequestUpdate, now: float) -> RequestError | None:
        refusal = self._table.check_update(self, message, now)
        self.unanswered_updates += 1
        limit = self._context.config.max_request_updates
        if limit and self.unanswered_updates > limit:
            raise RemoteProtocolError(
                SessionErrorCode.TOO_MANY_REQUEST_UPDATES,
                f"{self!r}: more than {limit} unanswered REQUEST_UPDATEs",
            )
        return refusal

    def receive_cancel(self, raw_code: int, now: float) -> None:
        """The peer reset or stopped a direction: the request is cancelled."""
        handler, phase = self.handler, self.phase
        self.cancel(StreamResetCode.CANCELLED)
        if handler is not None and (self.is_ours or phase is not Phase.ENDED):
            handler.on_cancelled(self, raw_code, now)
