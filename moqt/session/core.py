"""`Session`: one MOQT session without I/O, both roles. It routes; its parts do the work.

Four kinds of method: queries (properties), inputs (`start`, `receive_*`, `handle_timeout`,
`connection_lost`), commands (verbs), outputs (`next_event`). Inputs never raise for what a peer
sent: they close the session and say so by an event. After any input or command the binding takes
the events, sends what the transport noted, and sets a timer for `next_deadline`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moqt.codes import GroupOrder, RequestErrorCode, SessionErrorCode, StreamResetCode
from moqt.errors import LocalProtocolError, RemoteProtocolError
from moqt.session.config import Role
from moqt.session.context import Ending, SessionContext
from moqt.session.control import Control
from moqt.session.datagrams import Datagrams
from moqt.session.early import EarlyStreams
from moqt.session.events import SessionEnded
from moqt.session.inbound import Inbound
from moqt.session.namespaces import Namespaces, refuse
from moqt.session.offers import Offers
from moqt.session.publisher import Publisher
from moqt.session.requests import Requests
from moqt.session.subscribe_request import PublicationOffer, SubscribeRequest
from moqt.session.subscriber import Subscriber
from moqt.wire.messages import (
    Fetch,
    Publish,
    PublishNamespace,
    Subscribe,
    SubscribeNamespace,
    TrackStatus,
)
from moqt.wire.options import SetupOptions
from moqt.wire.params import Parameters
from moqt.wire.properties import DEFAULT_PRIORITY

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from moqt.session.config import SessionConfig
    from moqt.session.directory import TrackDirectory
    from moqt.session.events import Event
    from moqt.session.requests import Opener, RequestStream
    from moqt.session.sink import ObjectSink
    from moqt.session.source import TrackSource
    from moqt.session.stats import SessionStats
    from moqt.session.transport import Transport
    from moqt.types import FullTrackName, Object, TrackNamespace
    from moqt.wire.filters import LocationFilter, RangeFilter, RangeFilterKind
    from moqt.wire.params import FillParameters

__all__ = ["Session"]

_SERVER_INITIATED = 0x1
_UNIDIRECTIONAL = 0x2


class Session:
    """One session over one QUIC connection.

    `directory`: the tracks and namespaces that it serves; None: it serves nothing. `path` and
    `authority` (client only) go into SETUP (MOQT-22 9.1). All times are seconds of one monotonic
    clock. Not thread-safe; nothing here blocks.
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
    ) -> None:
        is_client = role is Role.CLIENT
        if not is_client and (path or authority):
            raise LocalProtocolError("a server sends neither PATH nor AUTHORITY (MOQT-22 9.1)")
        self._context = context = SessionContext(role=role, transport=transport, config=config)
        self._requests = Requests(context, self._route)
        self._subscriber = Subscriber(context, self._requests)
        self._publisher = Publisher(context, self._requests, directory)
        self._namespaces = Namespaces(context, self._requests, directory)
        self._control = Control(
            context,
            self._requests,
            options=SetupOptions(
                path=path if is_client else None,
                authority=authority if is_client else None,
                max_filter_ranges=config.max_filter_ranges,
                implementation=config.implementation or None,
                max_request_updates=config.max_request_updates,
            ),
            is_busy=self._is_busy,
        )
        self._inbound = Inbound(context, self._control, self._subscriber)
        self._subscriber.inbound = self._inbound
        self._offers = Offers(context, self._subscriber)
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
                if self._early and self._context.peer_options is not None:
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
            self._context.timers.run(now)
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
                self._namespaces.on_subscribe_namespace(stream, message)
            case _:
                refuse(stream, RequestErrorCode.NOT_SUPPORTED, "SUBSCRIBE_TRACKS is not supported")

    # Commands. They raise LocalProtocolError for what is wrong with the call or not possible in the
    # session's state, and ResourceBusy at a limit.

    def subscribe(
        self,
        name: FullTrackName,
        *,
        location_filter: LocationFilter | None = None,
        range_filters: Sequence[RangeFilter] = (),
        fill: FillParameters | None = None,
        priority: int = DEFAULT_PRIORITY,
        group_order: GroupOrder | None = None,
        forward: bool = True,
        rendezvous_timeout_ms: int | None = None,
        object_delivery_timeout_ms: int | None = None,
        subgroup_delivery_timeout_ms: int | None = None,
        sink: ObjectSink | None = None,
        now: float,
    ) -> int:
        """Send SUBSCRIBE and return its Request ID (MOQT-22 9.6).

        A fill whose order is named nowhere is asked for in ascending order. `request_timeout_s` and
        `rendezvous_timeout_ms` together are the time for the answer. Whether a delivery timeout is
        heeded is the publisher's; one of this package does not yet (see `Publisher`).
        """
        parameters = Parameters(
            location_filter=location_filter,
            range_filters=tuple(range_filters),
            fill=fill,
            subscriber_priority=_unless_default(priority),
            group_order=group_order,
            forward=None if forward else False,
            rendezvous_timeout_ms=rendezvous_timeout_ms,
            object_delivery_timeout_ms=object_delivery_timeout_ms,
            subgroup_delivery_timeout_ms=subgroup_delivery_timeout_ms,
        )
        return self._subscriber.subscribe(name, parameters, sink=sink, now=now)

    def fetch(
        self,
        name: FullTrackName,
        *,
        location_filter: LocationFilter | None = None,
        range_filters: Sequence[RangeFilter] = (),
        priority: int = DEFAULT_PRIORITY,
        group_order: GroupOrder = GroupOrder.ASCENDING,
        fill_timeout_ms: int | None = None,
        sink: ObjectSink | None = None,
        now: float,
    ) -> int:
        """Send FETCH and return its Request ID; no filter: all that is published (MOQT-22 9.11)."""
        parameters = Parameters(
            location_filter=location_filter,
            range_filters=tuple(range_filters),
            subscriber_priority=_unless_default(priority),
            group_order=None if group_order is GroupOrder.ASCENDING else group_order,
            fill_timeout_ms=fill_timeout_ms,
        )
        return self._subscriber.fetch(name, parameters, sink=sink, now=now)

    def track_status(self, name: FullTrackName, now: float) -> int:
        """Send TRACK_STATUS and return its Request ID (MOQT-22 9.13)."""
        return self._subscriber.track_status(name, now)

    def subscribe_namespace(self, prefix: TrackNamespace, now: float) -> int:
        """Send SUBSCRIBE_NAMESPACE and return its Request ID (MOQT-22 4.2)."""
        return self._namespaces.subscribe_namespace(prefix, now)

    def publish_namespace(self, namespace: TrackNamespace, now: float) -> int:
        """Send PUBLISH_NAMESPACE and return its Request ID (MOQT-22 4.1)."""
        return self._namespaces.publish_namespace(namespace, now)

    def publish(self, track: TrackSource, *, forward: bool = True, now: float) -> int:
        """Offer `track` by PUBLISH and return the Request ID (MOQT-22 9.8)."""
        return self._publisher.publish(track, forward=forward, now=now)

    def update(
        self,
        request_id: int,
        *,
        forward: bool | None = None,
        priority: int | None = None,
        location_filter: LocationFilter | None = None,
        range_filters: Sequence[RangeFilter] | None = None,
        fill: FillParameters | None = None,
        now: float,
    ) -> int:
        """Send REQUEST_UPDATE for a subscription or fetch of ours; return its Request ID (9.5).

        None keeps a value. `range_filters` replace all that there are, none given removes them;
        `LocationFilter.none()` removes the location filter. Of a FETCH only `priority` changes.
        """
        filters = () if range_filters is None else tuple(range_filters)
        removed: frozenset[RangeFilterKind] = frozenset()
        if range_filters is not None:
            removed = self._subscriber.filter_kinds(request_id) - {one.kind for one in filters}
        return self._subscriber.update(
            request_id,
            Parameters(
                forward=forward,
                subscriber_priority=priority,
                location_filter=location_filter,
                range_filters=filters,
                removed_range_filters=removed,
                fill=fill,
            ),
        )

    def accept(
        self,
        request_id: int,
        *,
        forward: bool | None = None,
        priority: int | None = None,
        location_filter: LocationFilter | None = None,
        fill: FillParameters | None = None,
        sink: ObjectSink | None = None,
        now: float,
    ) -> None:
        """Accept a PUBLISH or PUBLISH_NAMESPACE of the peer's.

        A PUBLISH becomes a subscription with the Request ID of the offer. What differs from the
        offer follows in a REQUEST_UPDATE, since PUBLISH_OK cannot say it (MOQT-22 9.8).
        """
        wanted = Parameters(
            forward=forward,
            subscriber_priority=priority,
            location_filter=location_filter,
            fill=fill,
        )
        self._offers.accept(request_id, wanted, sink=sink, now=now)
        self._settle(now)

    def reject(
        self,
        request_id: int,
        code: RequestErrorCode,
        reason: str = "",
        *,
        retry_interval_ms: int | None = None,
        redirect_uri: str = "",
        redirect_name: FullTrackName | None = None,
        now: float,
    ) -> None:
        """Refuse a PUBLISH or PUBLISH_NAMESPACE of the peer's.

        `redirect_name` is given for REDIRECT and for no other code; its name is empty for a
        namespace, and a client gives no `redirect_uri` (MOQT-22 9.4).
        """
        self._offers.reject(
            request_id,
            code,
            reason,
            retry_interval_ms=retry_interval_ms,
            redirect_uri=redirect_uri,
            redirect_name=redirect_name,
        )
        self._settle(now)

    def cancel(
        self,
        request_id: int,
        now: float,
        code: StreamResetCode = StreamResetCode.CANCELLED,
    ) -> None:
        """End a request, ours or an offer of the peer's; no event follows.

        It takes everything with it: streams, places (given back before this returns), fills. A
        request that is over already is left alone.
        """
        handle = self._context.handles.get(request_id)
        if handle is not None:
            handle.cancel(code)
            self._settle(now)

    def stop_fill(self, request_id: int, fill_id: int, now: float) -> None:
        """Stop one fill of a subscription, which goes on; no event follows (MOQT-22 3.4.1).

        `fill_id` is the Request ID of the message that asked for it. A fill that is over already is
        left alone.
        """
        handle = self._context.handles.get(request_id)
        if isinstance(handle, SubscribeRequest | PublicationOffer):
            if handle.subscription is not None:
                handle.subscription.stop_fill(fill_id, now)
            self._settle(now)

    def consume(self, request_id: int, obj: Object) -> None:
        """The application is done with the octets of an Object: credit that was withheld returns.

        Each Object is consumed once. For one in a sink's place, or of a request that is over, it
        does nothing.
        """
        budget = self._context.budgets.get(request_id)
        if budget is not None and obj.payload is not None:
            budget.consumed(len(obj.payload))

    def goaway(self, uri: str = "", timeout_ms: int | None = None, *, now: float) -> None:
        """Ask the peer to move; no new requests of ours after that (MOQT-22 9.2).

        None: `goaway_timeout_ms`; 0: no fixed time. When the time is over and subscriptions or
        fetches are open, the session is closed with GOAWAY_TIMEOUT.
        """
        if timeout_ms is None:
            timeout_ms = self._context.config.goaway_timeout_ms
        self._control.send_goaway(uri, timeout_ms, now)

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


def _unless_default(priority: int) -> int | None:
    if not 0 <= priority <= 0xFF:
        raise LocalProtocolError(f"priority is {priority}, expected 0 to 255")
    return None if priority == DEFAULT_PRIORITY else priority
