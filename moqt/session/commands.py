"""The verbs of a session, apart from `core`, which routes what arrives."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moqt.codes import GroupOrder, RequestErrorCode, StreamResetCode
from moqt.session.receive.request_options import FetchOptions, SubscribeOptions
from moqt.session.receive.subscribe_request import PublicationOffer, SubscribeRequest
from moqt.session.request.request_goaway import ServedRequest, send_goaway
from moqt.wire.params import NO_PARAMETERS, Parameters
from moqt.wire.properties import DEFAULT_PRIORITY

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moqt.session.access.authorization import AuthToken
    from moqt.session.context import SessionContext
    from moqt.session.control import Control
    from moqt.session.discover.namespaces import Namespaces
    from moqt.session.publish.publisher import Publisher
    from moqt.session.publish.source import TrackSource
    from moqt.session.receive.offers import Offers
    from moqt.session.receive.sink import ObjectSink
    from moqt.session.receive.subscriber import Subscriber
    from moqt.session.request.requests import Requests
    from moqt.types import FullTrackName, Object, TrackNamespace
    from moqt.wire.filters import LocationFilter, RangeFilter, RangeFilterKind
    from moqt.wire.params import FillParameters

__all__ = ["SessionCommands"]


class SessionCommands:
    """The commands of `Session`, which makes the parts that do them.

    `tokens` of a request go with it (MOQT-22 8.9); None: the session's own `request_tokens`.

    They raise LocalProtocolError for what is wrong with the call or not possible in the session's
    state, and ResourceBusy at a limit.
    """

    _context: SessionContext
    _control: Control
    _namespaces: Namespaces
    _offers: Offers
    _publisher: Publisher
    _requests: Requests
    _subscriber: Subscriber

    def _settle(self, now: float) -> None:
        """Finish a command as an input is finished."""
        raise NotImplementedError

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
        new_group_request: int | None = None,
        tokens: Sequence[AuthToken] | None = None,
        sink: ObjectSink | None = None,
        now: float,
    ) -> int:
        """Send SUBSCRIBE and return its Request ID (MOQT-22 9.6); see `SubscribeOptions`.

        `request_timeout_s` and `rendezvous_timeout_ms` together are the time for the answer.
        """
        options = SubscribeOptions(
            location_filter=location_filter,
            range_filters=range_filters,
            fill=fill,
            priority=priority,
            group_order=group_order,
            forward=forward,
            rendezvous_timeout_ms=rendezvous_timeout_ms,
            object_delivery_timeout_ms=object_delivery_timeout_ms,
            subgroup_delivery_timeout_ms=subgroup_delivery_timeout_ms,
            new_group_request=new_group_request,
            tokens=tokens,
        )
        return self.subscribe_with(name, options, sink=sink, now=now)

    def subscribe_with(
        self,
        name: FullTrackName,
        options: SubscribeOptions,
        *,
        sink: ObjectSink | None = None,
        now: float,
    ) -> int:
        """Do as `subscribe` does."""
        return self._subscriber.subscribe(
            name, options.parameters(), tokens=options.tokens, sink=sink, now=now
        )

    def fetch(
        self,
        name: FullTrackName,
        *,
        location_filter: LocationFilter | None = None,
        range_filters: Sequence[RangeFilter] = (),
        priority: int = DEFAULT_PRIORITY,
        group_order: GroupOrder = GroupOrder.ASCENDING,
        fill_timeout_ms: int | None = None,
        tokens: Sequence[AuthToken] | None = None,
        sink: ObjectSink | None = None,
        now: float,
    ) -> int:
        """Send FETCH and return its Request ID; no filter: all that is published (MOQT-22 9.11)."""
        options = FetchOptions(
            location_filter=location_filter,
            range_filters=range_filters,
            priority=priority,
            group_order=group_order,
            fill_timeout_ms=fill_timeout_ms,
            tokens=tokens,
        )
        return self.fetch_with(name, options, sink=sink, now=now)

    def fetch_with(
        self,
        name: FullTrackName,
        options: FetchOptions,
        *,
        sink: ObjectSink | None = None,
        now: float,
    ) -> int:
        """Do as `fetch` does."""
        return self._subscriber.fetch(
            name, options.parameters(), tokens=options.tokens, sink=sink, now=now
        )

    def track_status(
        self, name: FullTrackName, *, tokens: Sequence[AuthToken] | None = None, now: float
    ) -> int:
        """Send TRACK_STATUS and return its Request ID (MOQT-22 9.13)."""
        return self._subscriber.track_status(name, tokens=tokens, now=now)

    def subscribe_namespace(
        self, prefix: TrackNamespace, *, tokens: Sequence[AuthToken] | None = None, now: float
    ) -> int:
        """Send SUBSCRIBE_NAMESPACE and return its Request ID (MOQT-22 4.2)."""
        return self._namespaces.subscribe_namespace(prefix, tokens=tokens, now=now)

    def subscribe_tracks(
        self,
        prefix: TrackNamespace,
        *,
        forward: bool = True,
        group_order: GroupOrder | None = None,
        range_filters: Sequence[RangeFilter] = (),
        include_properties: bool = True,
        tokens: Sequence[AuthToken] | None = None,
        now: float,
    ) -> int:
        """Send SUBSCRIBE_TRACKS and return its Request ID (MOQT-22 3.6).

        The tracks are offered with what is given here, as `subscribe` has it; a TRACK_PROPERTY
        filter chooses among them. Offers come as PublicationOffered with its `tracks_id`.
        """
        parameters = Parameters(
            forward=None if forward else False,
            group_order=group_order,
            range_filters=tuple(range_filters),
            include_properties=None if include_properties else False,
        )
        return self._namespaces.subscribe_tracks(prefix, parameters, tokens=tokens, now=now)

    def update_prefix(
        self,
        request_id: int,
        prefix: TrackNamespace | None = None,
        *,
        forward: bool | None = None,
        tokens: Sequence[AuthToken] = (),
    ) -> int:
        """Send REQUEST_UPDATE for a SUBSCRIBE_NAMESPACE or SUBSCRIBE_TRACKS; return its Request ID.

        `prefix` moves it, once accepted: a namespace that was reported and lies outside is reported
        gone then, since nothing could withdraw it later; offers of tracks are not touched. None
        keeps what is. `forward` is for the offers that a SUBSCRIBE_TRACKS brings from then on.
        When it is refused, the request is over (MOQT-22 9.5.1, 9.5.2).

        Raises: LocalProtocolError for a prefix that is reserved or overlaps another one of ours of
        the same kind; ResourceBusy while another move of the request is not answered.
        """
        parameters = Parameters(namespace_prefix=prefix, forward=forward)
        return self._requests.update(request_id, parameters, tokens)

    def publish_namespace(
        self, namespace: TrackNamespace, *, tokens: Sequence[AuthToken] | None = None, now: float
    ) -> int:
        """Send PUBLISH_NAMESPACE and return its Request ID (MOQT-22 4.1)."""
        return self._namespaces.publish_namespace(namespace, tokens=tokens, now=now)

    def publish(
        self,
        track: TrackSource,
        *,
        forward: bool = True,
        tokens: Sequence[AuthToken] | None = None,
        now: float,
    ) -> int:
        """Offer `track` by PUBLISH and return the Request ID (MOQT-22 9.8)."""
        return self._publisher.publish(track, forward=forward, tokens=tokens, now=now)

    def update(
        self,
        request_id: int,
        *,
        forward: bool | None = None,
        priority: int | None = None,
        location_filter: LocationFilter | None = None,
        range_filters: Sequence[RangeFilter] | None = None,
        fill: FillParameters | None = None,
        object_delivery_timeout_ms: int | None = None,
        subgroup_delivery_timeout_ms: int | None = None,
        new_group_request: int | None = None,
        tokens: Sequence[AuthToken] = (),
    ) -> int:
        """Send REQUEST_UPDATE for a subscription or fetch of ours; return its Request ID (9.5).

        None keeps a value. `range_filters` replace all that there are, none given removes them;
        `LocationFilter.none()` removes the location filter. Of a FETCH only `priority` changes.
        `new_group_request` is for a track with DYNAMIC_GROUPS alone (MOQT-22 9.20.19).
        `tokens` renew the authorization of a request that expires (MOQT-22 9.20.16).
        """
        filters = () if range_filters is None else tuple(range_filters)
        removed: frozenset[RangeFilterKind] = frozenset()
        if range_filters is not None:
            removed = self._subscriber.filter_kinds(request_id) - {one.kind for one in filters}
        return self._requests.update(
            request_id,
            Parameters(
                forward=forward,
                subscriber_priority=priority,
                location_filter=location_filter,
                range_filters=filters,
                removed_range_filters=removed,
                fill=fill,
                object_delivery_timeout_ms=object_delivery_timeout_ms,
                subgroup_delivery_timeout_ms=subgroup_delivery_timeout_ms,
                new_group_request=new_group_request,
            ),
            tokens,
        )

    def refresh(self, request_id: int, tokens: Sequence[AuthToken]) -> int:
        """Send a REQUEST_UPDATE that brings `tokens` alone; return its Request ID (9.20.16).

        For every request of ours that is open and accepted, about namespaces and PUBLISH too.
        """
        return self._requests.update(request_id, NO_PARAMETERS, tokens)

    def drop_token(self, token: AuthToken) -> None:
        """The application is done with a token: nothing is sent with it by default any more.

        If it is registered at the peer, the next request or update takes a DELETE for it along, at
        the earliest once every message that uses it is answered (MOQT-22 8.9).
        """
        self._requests.tokens.drop(token)

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
        code: StreamResetCode = StreamResetCode.CANCELLED,
        *,
        now: float,
    ) -> None:
        """End a request, ours or an offer of the peer's; no event follows.

        It takes everything with it: streams, places (given back before this returns), fills. A
        request that is over already is left alone.
        """
        handle = self._context.handles.get(request_id)
        if handle is not None:
            handle.cancel(code)
            self._settle(now)

    def stop_fill(self, request_id: int, fill_id: int, *, now: float) -> None:
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

    def goaway(
        self,
        uri: str = "",
        timeout_ms: int | None = None,
        *,
        request_id: int | None = None,
        now: float,
    ) -> None:
        """Ask the peer to move; no new requests of ours after that (MOQT-22 9.2).

        None: `goaway_timeout_ms`; 0: no fixed time. When the time is over and subscriptions or
        fetches are open, the session is closed with GOAWAY_TIMEOUT.
        `request_id`: only that request is to move, ours or one that `served_requests` names; it is
        reset with GOING_AWAY when the time is over.
        """
        if timeout_ms is None:
            timeout_ms = self._context.config.goaway_timeout_ms
        if request_id is None:
            self._control.send_goaway(uri, timeout_ms, now)
        else:
            send_goaway(self._requests, request_id, uri, timeout_ms, now=now)

    def served_requests(self, name: FullTrackName | None = None) -> tuple[ServedRequest, ...]:
        """Return the subscriptions and fetches that we serve, of one track or of all."""
        return self._publisher.served_requests(name)
