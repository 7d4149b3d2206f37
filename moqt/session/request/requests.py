"""Request IDs, the table of request streams, and its limits (MOQT-22 6.4.2)."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from moqt.codes import RequestErrorCode, SessionErrorCode, StreamResetCode
from moqt.errors import LocalProtocolError, RemoteProtocolError, ResourceBusy, SessionLeaving
from moqt.session.access.gatekeeper import Gatekeeper
from moqt.session.access.token_sender import TokenSender
from moqt.session.config import Role
from moqt.session.events import GoawayReceived
from moqt.session.request.own_request import Updatable
from moqt.session.request.request_stream import RequestHandler, RequestStream
from moqt.session.request.states import Phase
from moqt.session.seen import SeenNumbers
from moqt.types import FullTrackName
from moqt.wire.framing import encode_message
from moqt.wire.messages import (
    Fetch,
    Goaway,
    Publish,
    PublishNamespace,
    RequestError,
    RequestOk,
    RequestUpdate,
    Subscribe,
    SubscribeNamespace,
    SubscribeTracks,
    TrackStatus,
)
from moqt.wire.rules import (
    RequestKind,
    request_kind,
    validate_goaway,
    validate_request_error,
    validate_request_ok,
    validate_request_update,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from moqt.session.access.authorization import AuthToken
    from moqt.session.access.token_sender import TokenPlan
    from moqt.session.context import SessionContext
    from moqt.session.request.request_stream import OwnHandler
    from moqt.types import TrackNamespace
    from moqt.wire.messages import Message
    from moqt.wire.params import Parameters

__all__ = ["OVERLOAD_RETRY_MS", "Opener", "RequestHandler", "RequestStream", "Requests"]

OVERLOAD_RETRY_MS: Final = 1000
"""Retry Interval that goes with EXCESSIVE_LOAD."""

Opener = (
    Subscribe
    | Fetch
    | TrackStatus
    | Publish
    | PublishNamespace
    | SubscribeNamespace
    | SubscribeTracks
)
"""The first message of a request stream."""


class Requests:
    """All request streams of one session that are open in some direction."""

    def __init__(
        self,
        context: SessionContext,
        route: Callable[[RequestStream, Opener, float], None],
        *,
        gate: Gatekeeper | None = None,
        tokens: TokenSender | None = None,
    ) -> None:
        """`route` gets each request of the peer that passed the general checks, once.

        `gate` judges the peer, None: lets it in; `tokens`: ours at the peer, None: none yet.
        """
        self.context = context
        self.gate = gate or Gatekeeper(context)
        self.tokens = tokens or TokenSender(context)
        self.streams: dict[int, RequestStream] = {}
        """By stream ID."""
        self.goaway_sent = False
        self.goaway_received = False
        self._route = route
        self._is_server = context.role is Role.SERVER
        self._next_id = 1 if self._is_server else 0
        self._peer_ids = SeenNumbers()
        self._seen_streams = SeenNumbers()
        self._ours = 0
        self._blocked: dict[int, RequestStream] = {}
        self._cut_short: list[tuple[RequestStream, RequestHandler, StreamResetCode]] = []

    # Our requests

    def open(
        self,
        kind: RequestKind,
        handler: OwnHandler,
        build: Callable[[int], Opener],
        *,
        now: float,
        timeout_s: float | None = None,
        tokens: Sequence[AuthToken] | None = None,
    ) -> RequestStream:
        """Open a request; `build` makes its message from the Request ID.

        `timeout_s` None: `request_timeout_s`. `tokens` go with it, None: the session's own for
        requests.
        Raises: SessionLeaving when the session is closed or moving away; LocalProtocolError when
        the message cannot be written; ResourceBusy at `max_pending_requests` and at the peer's
        limit of streams.
        """
        context = self.context
        if context.is_closed:
            raise SessionLeaving("the session is closed")
        if self.goaway_received or self.goaway_sent:
            raise SessionLeaving("no new requests after GOAWAY (MOQT-22 9.2)")
        if self._ours >= context.config.max_pending_requests:
            raise ResourceBusy(f"max_pending_requests is {context.config.max_pending_requests}")
        plan = self.tokens.plan(self.tokens.request_tokens if tokens is None else tokens, None)
        try:
            octets = encode_message(_with_tokens(build(self._next_id), plan))
        except ValueError as error:
            raise LocalProtocolError(f"{kind.value}: {error}") from error
        stream_id = context.transport.open(bidirectional=True)
        if stream_id is None:
            raise ResourceBusy("the peer's limit of bidirectional streams is reached")
        stream = RequestStream(self, stream_id, is_ours=True)
        stream.kind = kind
        stream.request_id = self.take_id()
        stream.handler = handler
        self.streams[stream_id] = stream
        self._ours += 1
        context.stats.open_requests += 1
        context.stats.requests_sent += 1
        deadline = now + (context.config.request_timeout_s if timeout_s is None else timeout_s)
        stream.answer_timer = context.timers.at(deadline, partial(self._time_out, stream, handler))
        self.tokens.sent(plan, stream.request_id, stream_id)
        stream.send_octets(octets)
        return stream

    def take_id(self) -> int:
        """Use up the next Request ID of ours (MOQT-22 6.4.2.1)."""
        request_id = self._next_id
        self._next_id += 2
        return request_id

    def update(
        self, request_id: int, parameters: Parameters, tokens: Sequence[AuthToken] = ()
    ) -> int:
        """Send a REQUEST_UPDATE for a request and return the Request ID of the update.

        Raises: ResourceBusy at the peer's MAX_REQUEST_UPDATES (MOQT-22 9.1.7); LocalProtocolError
        for a request or parameters that cannot be updated.
        """
        handle = self.context.handles.get(request_id)
        if not isinstance(handle, Updatable):
            raise LocalProtocolError(f"request {request_id} is no open one that we can update")
        parameters = handle.check_update(parameters)
        stream = handle.stream
        if not stream.is_send_open:
            raise LocalProtocolError(f"request {request_id} takes no more updates")
        options = self.context.peer_options
        limit = options.max_request_updates if options else 0
        if limit and len(stream.pending_updates) >= limit:
            raise ResourceBusy(f"the peer's MAX_REQUEST_UPDATES is {limit}")
        plan = self.tokens.plan(tokens, stream.stream_id)
        try:
            octets = encode_message(_with_tokens(RequestUpdate(self._next_id, parameters), plan))
        except ValueError as error:
            raise LocalProtocolError(f"REQUEST_UPDATE: {error}") from error
        update_id = self.take_id()
        stream.pending_updates.append(update_id)
        self.tokens.sent(plan, update_id, stream.stream_id)
        stream.send_octets(octets)
        handle.note_update(update_id, parameters)
        return update_id

    def _time_out(self, stream: RequestStream, handler: OwnHandler, now: float) -> None:
        stream.answer_timer = None
        stream.cancel(StreamResetCode.CANCELLED)
        handler.on_timeout(stream, now)

    def find(self, request_id: int) -> RequestStream | None:
        """Return the stream of an open request, ours or the peer's."""
        for stream in self.streams.values():
            if stream.request_id == request_id:
                return stream
        return None

    # The peer's requests

    def admit(self, stream_id: int) -> RequestStream | None:
        """Return the record of a bidirectional stream of the peer's; None when it is over."""
        if not self._seen_streams.add(stream_id >> 2):
            return None
        stream = RequestStream(self, stream_id, is_ours=False)
        self.streams[stream_id] = stream
        self.context.stats.open_requests += 1
        return stream

    def open_from_peer(self, stream: RequestStream, message: Message, now: float) -> None:
        """Take the first message of a stream of the peer's."""
        kind = request_kind(message)
        assert isinstance(message, Opener)  # request_kind raised otherwise
        self.register_peer_id(message.request_id)
        stream.kind = kind
        stream.request_id = message.request_id
        self.context.stats.requests_received += 1
        refusal = self._refusal(stream, message, now)
        if refusal is not None:
            stream.refuse_with(refusal)
            return
        self._route(stream, message, now)

    def _refusal(self, stream: RequestStream, message: Opener, now: float) -> RequestError | None:
        tokens = self.gate.read_tokens(message.parameters)
        if isinstance(tokens, RequestError):
            return tokens
        if is_out_of_reach(_namespace_of(message)):
            return RequestError(
                code=RequestErrorCode.DOES_NOT_EXIST, reason="reserved name (MOQT-22 2.4.3, 6.5)"
            )
        if len(self.streams) - self._ours > self.context.config.max_requests:
            return RequestError(
                code=RequestErrorCode.EXCESSIVE_LOAD,
                reason="too many open requests",
                retry_interval_ms=OVERLOAD_RETRY_MS,
            )
        return self.gate.admit_request(stream, _target_of(message), tokens, now)

    def register_peer_id(self, request_id: int) -> None:
        """Note a Request ID of the peer's; INVALID_REQUEST_ID for a wrong or repeated one."""
        expected = 0 if self._is_server else 1
        if request_id % 2 != expected:
            raise RemoteProtocolError(
                SessionErrorCode.INVALID_REQUEST_ID,
                f"Request ID {request_id} has the parity of the other side",
            )
        if not self._peer_ids.add(request_id >> 1):
            raise RemoteProtocolError(
                SessionErrorCode.INVALID_REQUEST_ID, f"Request ID {request_id} is used twice"
            )

    # Checks that need more than the message

    def check_update(
        self, stream: RequestStream, message: RequestUpdate, now: float
    ) -> RequestError | None:
        """Judge a REQUEST_UPDATE before it is acted on; return what refuses it, or None."""
        assert stream.kind is not None
        self.register_peer_id(message.request_id)
        validate_request_update(message, stream.kind)
        tokens = self.gate.read_tokens(message.parameters)
        if isinstance(tokens, RequestError):
            return tokens
        return self.gate.admit_update(stream, message.parameters, tokens, now)

    def check_answer(self, stream: RequestStream, message: Message) -> None:
        """Judge a REQUEST_OK or REQUEST_ERROR of the peer's before it is acted on."""
        if not isinstance(message, RequestOk | RequestError) or stream.kind is None:
            return
        answers = stream.kind
        if not stream.is_ours or stream.phase is not Phase.PENDING:
            if not stream.pending_updates:
                raise RemoteProtocolError(
                    SessionErrorCode.PROTOCOL_VIOLATION,
                    f"{stream!r}: {message.TYPE.name} answers nothing",
                )
            answers = RequestKind.REQUEST_UPDATE
        if isinstance(message, RequestOk):
            validate_request_ok(message, answers)
        else:
            validate_request_error(message, stream.kind, receiver_is_server=self._is_server)

    def note_answer(self, stream: RequestStream, message: Message) -> None:
        """The peer answered the oldest message of ours on a stream that awaits it."""
        if stream.is_ours and stream.phase is Phase.PENDING:
            self.tokens.answered(stream.request_id, message)
        elif stream.pending_updates:
            self.tokens.answered(stream.pending_updates[0], message)

    def receive_goaway(self, stream: RequestStream, message: Goaway) -> None:
        """Tell the application that one request should move (MOQT-22 6.6.1)."""
        validate_goaway(message, receiver_is_server=self._is_server)
        self.context.emit(
            GoawayReceived(message.new_session_uri, message.timeout_ms, stream.request_id)
        )

    # Upkeep

    def note_blocked(self, stream: RequestStream) -> None:
        """Remember that a stream has octets which flow control does not take yet."""
        self._blocked[stream.stream_id] = stream

    def defer_cancelled(
        self, stream: RequestStream, handler: RequestHandler, code: StreamResetCode
    ) -> None:
        """Tell `handler` of a cancel once nothing of it is running."""
        self._cut_short.append((stream, handler, code))

    def flush(self, now: float) -> None:
        """Hand over what waited for flow control, and report what was cut meanwhile."""
        for stream_id, stream in list(self._blocked.items()):
            if stream.flush():
                self._blocked.pop(stream_id, None)
        self.settle(now)

    def settle(self, now: float) -> None:
        """Report the requests that were cut because their backlog was full."""
        while self._cut_short:
            stream, handler, code = self._cut_short.pop()
            handler.on_cancelled(stream, code, now)

    def forget(self, stream: RequestStream) -> None:
        """Both directions of the stream are over."""
        if self.streams.pop(stream.stream_id, None) is not None:
            self._blocked.pop(stream.stream_id, None)
            self._ours -= stream.is_ours
            self.gate.forget(stream)
            for request_id in (stream.request_id, *stream.pending_updates):
                self.tokens.lost(request_id)
            self.context.stats.open_requests -= 1

    def close(self) -> None:
        """The session is over: forget every stream without telling its handler."""
        self.streams.clear()
        self._blocked.clear()
        self._cut_short.clear()
        self.gate.close()
        self._ours = 0
        self.context.stats.open_requests = 0


MessageT = TypeVar("MessageT", bound=Opener | RequestUpdate)


def _with_tokens(message: MessageT, plan: TokenPlan) -> MessageT:
    if not plan.wire:
        return message
    parameters = replace(message.parameters, authorization_tokens=plan.wire)
    return replace(message, parameters=parameters)


def _target_of(message: Opener) -> FullTrackName | TrackNamespace:
    if isinstance(message, PublishNamespace):
        return message.namespace
    if isinstance(message, SubscribeNamespace | SubscribeTracks):
        return message.prefix
    return message.name


def _namespace_of(message: Opener) -> TrackNamespace:
    target = _target_of(message)
    return target.namespace if isinstance(target, FullTrackName) else target


def is_out_of_reach(namespace: TrackNamespace) -> bool:
    """Return whether no request for `namespace` can succeed: "." and ".session" (MOQT-22 6.5)."""
    return bool(namespace.fields) and namespace.fields[0] in (b".", b".session")
