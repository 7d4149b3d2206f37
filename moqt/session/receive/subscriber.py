"""The subscriber's side: our SUBSCRIBE, FETCH and TRACK_STATUS, and PUBLISH offers of the peer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from moqt.codes import GroupOrder, RequestErrorCode, StreamResetCode
from moqt.errors import LocalProtocolError
from moqt.session.receive.aliases import Aliases
from moqt.session.receive.feeds import FetchTarget
from moqt.session.receive.fetch_request import FetchRequest, StatusRequest
from moqt.session.receive.subscribe_request import PublicationOffer, SubscribeRequest, refusal
from moqt.session.receive.subscription import Subscription
from moqt.session.receive.track_state import TrackState
from moqt.wire.filters import FilterRejected, RangeFilters
from moqt.wire.messages import Fetch, Subscribe, TrackStatus
from moqt.wire.params import Parameters
from moqt.wire.rules import RequestKind

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from moqt.session.access.authorization import AuthToken
    from moqt.session.context import SessionContext
    from moqt.session.receive.inbound import Inbound
    from moqt.session.receive.sink import ObjectSink
    from moqt.session.receive.track_request import TrackRequest
    from moqt.session.request.requests import Requests, RequestStream
    from moqt.session.timers import Timer
    from moqt.types import FullTrackName, TrackNamespace
    from moqt.wire.filters import RangeFilterKind
    from moqt.wire.messages import Publish

__all__ = ["Subscriber"]


@dataclass(slots=True)
class _Track:
    """A track that requests of ours are about."""

    state: TrackState
    requests: dict[TrackRequest, None]


class Subscriber:
    """All requests of one session by which the peer sends us Objects."""

    def __init__(self, context: SessionContext, requests: Requests) -> None:
        self.aliases = Aliases()
        self.fetch_targets: dict[int, FetchTarget] = {}
        """By the Request ID that FETCH_HEADER names."""
        self.awaited_fills: dict[int, Subscription] = {}
        """Fills that were asked for and whose stream has not come, by their Request ID."""
        self.ending: dict[Subscription, None] = {}
        """Those that have PUBLISH_DONE and wait for streams."""
        self._lost_fill_timer: Timer | None = None
        self.inbound: Inbound
        """Set right after construction; the two know each other."""
        self.tracks_subscription_of: Callable[[TrackNamespace], int | None] = lambda _: None
        """Which SUBSCRIBE_TRACKS of ours a PUBLISH belongs to. `Session` sets it."""
        self._context = context
        self._requests = requests
        self._tracks: dict[FullTrackName, _Track] = {}

    @property
    def is_busy(self) -> bool:
        """True while a subscription or fetch is open."""
        return bool(self._tracks)

    # Commands

    def subscribe(
        self,
        name: FullTrackName,
        parameters: Parameters,
        *,
        tokens: Sequence[AuthToken] | None = None,
        sink: ObjectSink | None,
        now: float,
    ) -> int:
        """Send SUBSCRIBE; return its Request ID."""
        parameters = self.checked(name, parameters)
        request = SubscribeRequest(self._context)
        stream = self._requests.open(
            RequestKind.SUBSCRIBE,
            request,
            lambda request_id: Subscribe(request_id, name, parameters),
            now=now,
            tokens=tokens,
            timeout_s=self._context.config.request_timeout_s
            + (parameters.rendezvous_timeout_ms or 0) / 1000,
        )
        request.subscription = self.create(stream, name, sink)
        request.bind(stream)
        request.subscription.apply(parameters)
        if parameters.fill is not None:
            request.subscription.expect_fill(stream.request_id, parameters.fill)
        return stream.request_id

    def create(
        self, stream: RequestStream, name: FullTrackName, sink: ObjectSink | None
    ) -> Subscription:
        """Return a new subscription on a request stream."""
        track = self._track(name)
        subscription = Subscription(self, self._context, stream, track.state, sink)
        track.requests[subscription] = None
        return subscription

    def fetch(
        self,
        name: FullTrackName,
        parameters: Parameters,
        *,
        tokens: Sequence[AuthToken] | None = None,
        sink: ObjectSink | None,
        now: float,
    ) -> int:
        """Send FETCH; return its Request ID."""
        parameters = self.checked(name, parameters)
        track = self._track(name)
        request = FetchRequest(self, self._context, track.state, parameters.location_filter)
        track.requests[request] = None
        try:
            stream = self._requests.open(
                RequestKind.FETCH,
                request,
                lambda request_id: Fetch(request_id, name, parameters),
                now=now,
                tokens=tokens,
            )
        except BaseException:
            self.leave_track(track.state, request)
            raise
        request.bind(stream)
        request.target = FetchTarget(
            stream.request_id,
            request,
            delivery=request.prepare(sink),
            track=track.state,
            group_order=parameters.group_order or GroupOrder.ASCENDING,
            is_fill=False,
        )
        self.fetch_targets[stream.request_id] = request.target
        return stream.request_id

    def track_status(
        self, name: FullTrackName, *, tokens: Sequence[AuthToken] | None = None, now: float
    ) -> int:
        """Send TRACK_STATUS; return its Request ID."""
        self.checked(name, Parameters())
        request = StatusRequest(self._context)
        request.bind(
            self._requests.open(
                RequestKind.TRACK_STATUS,
                request,
                lambda request_id: TrackStatus(request_id, name),
                now=now,
                tokens=tokens,
            )
        )
        return request.request_id

    def filter_kinds(self, request_id: int) -> frozenset[RangeFilterKind]:
        """Return which kinds of range filter a subscription of ours has."""
        handle = self._context.handles.get(request_id)
        if isinstance(handle, SubscribeRequest | PublicationOffer) and handle.subscription:
            return frozenset(one.kind for one in handle.subscription.range_filters.filters)
        return frozenset()

    def checked(
        self,
        name: FullTrackName,
        parameters: Parameters,
        subscription: Subscription | None = None,
    ) -> Parameters:
        """Refuse what the peer would have to refuse; return the parameters to send."""
        if name.namespace.is_reserved:
            raise LocalProtocolError(f"{name} is reserved: it begins with '.' (MOQT-22 2.4.3)")
        options = self._context.peer_options
        max_ranges = options.max_filter_ranges if options else 0
        fill = parameters.fill
        try:
            parameters.check_filters(max_ranges)
            if subscription is not None:
                kept = subscription.range_filters.updated(
                    parameters.range_filters, parameters.removed_range_filters
                )
                also = RangeFilters(fill.range_filters if fill else ()).range_count
                kept.check(max_ranges, also=also)
            if parameters.location_filter is not None:
                parameters.location_filter.resolve_subscription(None)
        except FilterRejected as error:
            raise LocalProtocolError(str(error)) from error
        order = subscription.group_order if subscription else parameters.group_order
        if fill is not None and fill.group_order is None and order is None:
            # The deltas on the fill's stream follow its order, and the track's own is not known
            # before SUBSCRIBE_OK, which the stream may overtake.
            return replace(parameters, fill=replace(fill, group_order=GroupOrder.ASCENDING))
        return parameters

    # PUBLISH of the peer

    def on_publish(self, stream: RequestStream, message: Publish) -> None:
        """Offer a PUBLISH to the application."""
        self.aliases.reserve(message.track_alias, message.name)
        reason = refusal(message.properties)
        fault = _filter_fault(message.parameters)
        if reason is not None:
            stream.refuse(RequestErrorCode.UNSUPPORTED_EXTENSION, reason)
        elif fault is not None:
            stream.refuse(fault.code, fault.reason)
        elif message.properties.malformation is not None:
            stream.refuse(RequestErrorCode.MALFORMED_TRACK, message.properties.malformation)
        else:
            stream.handler = PublicationOffer(self, self._context, stream, message)
            return
        self.drop_alias(message.track_alias)

    def drop_alias(self, alias: int) -> None:
        """Nothing came of an alias that the peer named: its streams are stopped, early or late."""
        self.aliases.cancel_reserved(alias)
        if self.aliases.find(alias) is None:
            self.aliases.retire(alias)
            self.inbound.stop_strays(alias)

    # Tracks

    def _track(self, name: FullTrackName) -> _Track:
        track = self._tracks.get(name)
        if track is None:
            track = self._tracks[name] = _Track(TrackState(name), {})
        return track

    def leave_track(self, state: TrackState, request: TrackRequest) -> None:
        """A request is over; with its last one a track is forgotten."""
        track = self._tracks.get(state.name)
        if track is not None:
            track.requests.pop(request, None)
            if not track.requests:
                del self._tracks[state.name]

    def cancel_track(self, state: TrackState, reason: str) -> None:
        """The track is malformed: cancel all its requests and say so (MOQT-22 12.1)."""
        track = self._tracks.get(state.name)
        if track is not None:
            for request in list(track.requests):
                request.cancel_malformed(reason, StreamResetCode.MALFORMED_TRACK)

    def forget(self, subscription: Subscription) -> None:
        """A subscription is over."""
        self._context.handles.pop(subscription.request_id, None)
        self.ending.pop(subscription, None)
        self.leave_track(subscription.track, subscription)

    def on_nameless_reset(self, now: float) -> None:
        """A stream was reset that has not said whose it is: a subscription may wait for it."""
        self.settle_lost_fills(now)
        if self.awaited_fills and self._lost_fill_timer is None:
            suspects = list(self.awaited_fills.items())
            self._lost_fill_timer = self._context.timers.at(
                now + self._context.config.lost_fill_timeout_s,
                lambda later: self._lose_suspects(suspects, later),
            )
        for subscription in list(self.ending):
            subscription.on_stream_over(now)

    def stop_awaiting(self, fill_id: int) -> None:
        """A fill's stream is there, or not awaited any more."""
        self.awaited_fills.pop(fill_id, None)
        if not self.awaited_fills and self._lost_fill_timer is not None:
            self._lost_fill_timer.cancel()
            self._lost_fill_timer = None

    def settle_lost_fills(self, now: float) -> None:
        """Give up the fills that are awaited, when as many streams were reset before their header.

        MOQT-22 3.4.1 has a fill's stream reset behind its header; but a reset may overtake the
        header, and some publishers send none. A fill that is given up in error costs a FETCH.
        """
        awaited = self.awaited_fills
        if (
            awaited
            and all(one.is_fill_accepted(fill_id) for fill_id, one in awaited.items())
            and self.inbound.take_nameless_resets(len(awaited))
        ):
            self._lose_fills(list(awaited.items()), now)

    def _lose_suspects(self, suspects: list[tuple[int, Subscription]], now: float) -> None:
        self._lost_fill_timer = None
        self.inbound.take_nameless_resets(1)
        self._lose_fills(suspects, now)

    def _lose_fills(self, suspects: list[tuple[int, Subscription]], now: float) -> None:
        for fill_id, subscription in suspects:
            if fill_id in self.awaited_fills and subscription.is_fill_accepted(fill_id):
                subscription.lose_fill(fill_id, now)

    def take_nameless_resets(self, count: int) -> bool:
        """See `Inbound.take_nameless_resets`."""
        return self.inbound.take_nameless_resets(count)

    def bind_strays(self, alias: int, now: float) -> None:
        """Streams that came before their alias was known may be read."""
        self.inbound.bind_strays(alias, now)


def _filter_fault(parameters: Parameters) -> FilterRejected | None:
    """Return why the LOCATION_FILTER of a PUBLISH cannot be used (MOQT-22 3.3.1), or None."""
    try:
        if parameters.location_filter is not None:
            parameters.location_filter.resolve_subscription(parameters.largest)
    except FilterRejected as error:
        return error
    return None
