"""`Session`: one MOQT session without I/O, both roles. It routes; its parts do the work.

What an application asks for stands in `commands`, its base class.

Four kinds of method: queries (properties), inputs (`start`, `receive_*`, `handle_timeout`,
`connection_lost`), commands (verbs), outputs (`next_event`). Inputs never raise for what a peer
sent: they close the session and say so by an event. After any input or command the binding takes
the events, sends what the transport noted, and sets a timer for `next_deadline`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moqt.codes import SessionErrorCode, StreamResetCode
from moqt.errors import LocalProtocolError, RemoteProtocolError
from moqt.session.access.gatekeeper import Gatekeeper
from moqt.session.access.token_sender import TokenSender
from moqt.session.commands import SessionCommands
from moqt.session.config import Role
from moqt.session.context import Ending, SessionContext
from moqt.session.control import Control
from moqt.session.discover.namespaces import Namespaces
from moqt.session.events import SessionEnded
from moqt.session.publish.publisher import Publisher
from moqt.session.receive.datagrams import Datagrams
from moqt.session.receive.inbound import Inbound
from moqt.session.receive.offers import Offers
from moqt.session.receive.subscriber import Subscriber
from moqt.session.request.early import EarlyStreams
from moqt.session.request.requests import Requests
from moqt.wire.messages import (
    Fetch,
    Publish,
    PublishNamespace,
    Subscribe,
    SubscribeNamespace,
    SubscribeTracks,
    TrackStatus,
)
from moqt.wire.options import SetupOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from moqt.session.access.authorization import Admission, AuthToken
    from moqt.session.config import SessionConfig
    from moqt.session.events import Event
    from moqt.session.publish.directory import TrackDirectory
    from moqt.session.request.requests import Opener, RequestStream
    from moqt.session.stats import SessionStats
    from moqt.session.transport import Transport

__all__ = ["Session"]

_SERVER_INITIATED = 0x1
_UNIDIRECTIONAL = 0x2


class Session(SessionCommands):
    """One session over one QUIC connection.

    `directory`: the tracks and namespaces that it serves; None: it serves nothing. `path` and
    `authority` (client only) go into SETUP (MOQT-22 9.1). `admission`: whom it answers; None:
    everyone. `session_tokens` go into SETUP, `request_tokens` into each request that is given none
    of its own. All times are seconds of one monotonic clock. `clock` reads it, for the delivery
    timeouts of what is published between two inputs; None: they never run out. Not thread-safe;
    nothing here blocks.
    """

    def __init__(
        self,
        *,
        role: Role,
        transport: Transport,
        config: SessionConfig,
        directory: TrackDirectory | None = None,
        path: str = "",
        authority: str = "",
        admission: Admission | None = None,
        session_tokens: Sequence[AuthToken] = (),
        request_tokens: Sequence[AuthToken] = (),
        clock: Callable[[], float] | None = None,
    ) -> None:
        is_client = role is Role.CLIENT
        if not is_client and (path or authority):
            raise LocalProtocolError("a server sends neither PATH nor AUTHORITY (MOQT-22 9.1)")
        self._context = context = SessionContext(role=role, transport=transport, config=config)
        context.clock = clock
        gate = Gatekeeper(context, admission)
        tokens = TokenSender(context, session_tokens, request_tokens)
        self._requests = Requests(context, self._route, gate=gate, tokens=tokens)
        self._subscriber = Subscriber(context, self._requests)
        self._publisher = Publisher(context, self._requests, directory)
        self._namespaces = Namespaces(context, self._requests, directory, self._publisher)
        self._subscriber.tracks_subscription_of = self._namespaces.tracks_subscription_of
        self._control = Control(
            context,
            self._requests,
            options=SetupOptions(
                path=path if is_client else None,
                authority=authority if is_client else None,
                authorization_tokens=tokens.setup_tokens(),
                max_auth_token_cache_size=config.max_auth_token_cache_octets,
                max_filter_ranges=config.max_filter_ranges,
                implementation=config.implementation or None,
                max_request_updates=config.max_request_updates,
            ),
            is_busy=self._is_busy,
        )
        self._inbound = Inbound(context, self._control, self._subscriber)
        self._subscriber.inbound = self._inbound
        self._offers = Offers(context, self._requests, self._subscriber)
        self._datagrams = Datagrams(context, self._subscriber.aliases)
        self._early = EarlyStreams(context)
        self._peer_bit = _SERVER_INITIATED if is_client else 0
        self._is_torn_down = False

    def __repr__(self) -> str:
        state = "closed" if self.is_closed else "open" if self.is_established else "setting up"
        return f"<Session {self._context.role.value} {state}>"

    # Queries

    @property
    def is_established(self) -> bool:
        """True once both SETUPs are done, until the session is closed."""
        return self._context.peer_options is not None and not self._context.is_closed

    @property
    def is_closed(self) -> bool:
        """True once the session is over; SessionEnded is or was the last event."""
        return self._context.is_closed

    @property
    def peer_options(self) -> SetupOptions | None:
        """What the peer's SETUP said; None before it came."""
        return self._context.peer_options

    @property
    def own_options(self) -> SetupOptions:
        """What our SETUP says."""
        return self._control.options

    @property
    def next_deadline(self) -> float | None:
        """When to call `handle_timeout`; None: not needed."""
        return self._context.timers.next_deadline

    @property
    def stats(self) -> SessionStats:
        """Counters; the same object all the time."""
        return self._context.stats

    @property
    def wake(self) -> Callable[[], None]:
        """What the session calls when it wants a `flush` soon, outside of its inputs."""
        return self._context.wake

    @wake.setter
    def wake(self, wake: Callable[[], None]) -> None:
        self._context.wake = wake

    def _is_busy(self) -> bool:
        publisher = self._publisher
        return (
            self._subscriber.is_busy
            or publisher.open_subscriptions > 0
            or publisher.open_fetches > 0
        )

    # Outputs

    def next_event(self) -> Event | None:
        """Take the oldest event; None when there is none."""
        return self._context.next_event()

    # Inputs

    def start(self, now: float) -> None:
        """The connection is ready: send SETUP."""
        self._control.start(now)

    def receive_stream_data(
        self, stream_id: int, offset: int, data: memoryview | bytes, fin: bool, now: float
    ) -> None:
        """Take octets of a stream, each once, in any order; `data` is not kept.

        `fin`: the stream's final size is `offset` + len(data).
        """
        if self._context.ending is not None:
            return
        try:
            if stream_id & _UNIDIRECTIONAL:
                self._inbound.receive(stream_id, offset, data, fin, now)
                if self._early.streams and self._context.peer_options is not None:
                    self._early.release(self._receive_request, now)
            elif self._context.peer_options is None:
                self._hold_early(stream_id, offset, data, fin, now)
            else:
                self._receive_request(stream_id, offset, data, fin, now)
        except RemoteProtocolError as error:
            self._context.fatal(error.code, error.reason)
        self._settle(now)

    def _receive_request(
        self, stream_id: int, offset: int, data: memoryview | bytes, fin: bool, now: float
    ) -> None:
        stream = self._request_stream(stream_id)
        if stream is not None:
            stream.receive(offset, data, fin, now)

    def _request_stream(self, stream_id: int) -> RequestStream | None:
        stream = self._requests.streams.get(stream_id)
        if stream is None and stream_id & _SERVER_INITIATED == self._peer_bit:
            return self._requests.admit(stream_id)
        return stream

    def _hold_early(
        self, stream_id: int, offset: int, data: memoryview | bytes, fin: bool, now: float
    ) -> None:
        stream = self._request_stream(stream_id)
        if stream is not None and not self._early.hold(stream_id, offset, data, fin):
            stream.receive_cancel(StreamResetCode.EXCESSIVE_LOAD, now)

    def receive_reset(self, stream_id: int, raw_code: int, now: float) -> None:
        """Take a RESET_STREAM of the peer's, with whatever code (62 bits)."""
        if self._context.ending is not None:
            return
        try:
            if stream_id & _UNIDIRECTIONAL:
                self._inbound.receive_reset(stream_id, raw_code, now)
            else:
                self._cancel_request(stream_id, raw_code, now)
        except RemoteProtocolError as error:
            self._context.fatal(error.code, error.reason)
        self._settle(now)

    def receive_stop(self, stream_id: int, raw_code: int, now: float) -> None:
        """Take a STOP_SENDING of the peer's."""
        if self._context.ending is not None:
            return
        try:
            if not stream_id & _UNIDIRECTIONAL:
                self._cancel_request(stream_id, raw_code, now)
            elif self._control.is_stream(stream_id):
                self._context.fatal(
                    SessionErrorCode.PROTOCOL_VIOLATION, "the peer stopped our control stream"
                )
            else:
                self._publisher.on_data_stop(stream_id, raw_code, now)
        except RemoteProtocolError as error:
            self._context.fatal(error.code, error.reason)
        self._settle(now)

    def _cancel_request(self, stream_id: int, raw_code: int, now: float) -> None:
        self._early.drop(stream_id)
        stream = self._request_stream(stream_id)
        if stream is not None:
            stream.receive_cancel(raw_code, now)
        else:
            self._publisher.on_late_cancel(stream_id)

    def receive_datagram(self, data: memoryview | bytes, now: float) -> None:
        """Take a datagram."""
        if self._context.ending is not None:
            return
        try:
            self._datagrams.receive(data)
        except RemoteProtocolError as error:
            self._context.fatal(error.code, error.reason)
        self._settle(now)

    def handle_timeout(self, now: float) -> None:
        """Do what is due; harmless when nothing is."""
        if self._context.ending is None:
            try:
                self._context.timers.run(now)
            except RemoteProtocolError as error:
                self._context.fatal(error.code, error.reason)
            self._settle(now)

    def connection_lost(
        self, code: SessionErrorCode, reason: str, *, by_peer: bool, now: float
    ) -> None:
        """The connection is gone: closed by the peer, timed out, or broken."""
        self._context.end(Ending(code, reason, by_peer))
        self._settle(now)

    def _settle(self, now: float) -> None:
        """Finish an input or command: report requests that were cut, take the session down."""
        self._requests.settle(now)
        if self._context.ending is not None and not self._is_torn_down:
            self._tear_down(self._context.ending, now)

    def _tear_down(self, ending: Ending, now: float) -> None:
        self._is_torn_down = True
        self._publisher.close(now)
        self._context.stats.open_streams_sent = 0
        self._namespaces.close()
        self._inbound.close()
        for handle in list(self._context.handles.values()):
            handle.session_over()
        self._context.handles.clear()
        self._requests.close()
        self._context.timers.clear()
        if not ending.by_peer:
            self._context.transport.close(ending.code, ending.reason)
        self._context.emit(SessionEnded(ending.code, ending.reason, ending.by_peer))

    def _route(self, stream: RequestStream, message: Opener, now: float) -> None:
        match message:
            case Subscribe():
                self._publisher.on_subscribe(stream, message, now)
            case Fetch():
                self._publisher.on_fetch(stream, message, now)
            case TrackStatus():
                self._publisher.on_track_status(stream, message, now)
            case Publish():
                self._subscriber.on_publish(stream, message)
            case PublishNamespace():
                self._namespaces.on_publish_namespace(stream, message)
            case SubscribeNamespace():
                self._namespaces.on_subscribe_namespace(stream, message, now)
            case SubscribeTracks():
                self._namespaces.on_subscribe_tracks(stream, message, now)

    def close(
        self,
        code: SessionErrorCode = SessionErrorCode.NO_ERROR,
        reason: str = "",
        *,
        now: float,
    ) -> None:
        """Close the session; harmless when it is closed already."""
        self._context.fatal(code, reason)
        self._settle(now)

    def flush(self, now: float) -> None:
        """Send what can be sent soon: what flow control held back, then Objects by priority."""
        if self._context.ending is not None:
            self._settle(now)
            return
        self._control.flush()
        self._requests.flush(now)
        self._publisher.flush(now)
        self._settle(now)
