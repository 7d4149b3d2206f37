"""Answers SUBSCRIBE, FETCH and TRACK_STATUS from a TrackDirectory, and offers tracks by PUBLISH."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moqt.codes import (
    GroupOrder,
    PublishDoneCode,
    RequestErrorCode,
    StreamResetCode,
)
from moqt.errors import LocalProtocolError
from moqt.session.config import Role
from moqt.session.publish.deadlines import SubgroupDeadlines
from moqt.session.publish.publication import Publication
from moqt.session.publish.scheduler import Scheduler
from moqt.session.publish.served_fetch import ServedFetch
from moqt.session.publish.served_subscription import ServedSubscription
from moqt.session.publish.subscription_state import SubscriptionState
from moqt.session.request.request_goaway import ServedRequest
from moqt.session.request.requests import OVERLOAD_RETRY_MS
from moqt.types import Location
from moqt.wire.filters import FilterRejected, LocationFilter, RangeFilters
from moqt.wire.messages import (
    FetchOk,
    Publish,
    RequestError,
    RequestOk,
    SubscribeOk,
)
from moqt.wire.params import NO_PARAMETERS, Parameters
from moqt.wire.properties import DEFAULT_PRIORITY, TrackProperties
from moqt.wire.rules import RequestKind
from moqt.wire.vi64 import MAX_VI64

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moqt.session.access.authorization import AuthToken
    from moqt.session.context import SessionContext
    from moqt.session.publish.directory import TrackDirectory
    from moqt.session.publish.source import TrackSource
    from moqt.session.request.requests import Requests, RequestStream
    from moqt.types import FullTrackName
    from moqt.wire.filters import LocationRange
    from moqt.wire.messages import Fetch, Subscribe, TrackStatus

__all__ = ["Publisher"]


class Publisher:
    """The send side of one session.

    Tracks are written to outside of the session's inputs; then `SessionContext.wake` asks for
    `flush`. What a track holds is all there is: an Object is there, or was evicted and is reported
    as unknown at once, so that FILL_TIMEOUT has nothing to wait for.
    """

    def __init__(
        self, context: SessionContext, requests: Requests, directory: TrackDirectory | None
    ) -> None:
        self.context = context
        self.scheduler = Scheduler(context)
        self.deadlines = SubgroupDeadlines(context)
        self._requests = requests
        self._directory = directory
        self._served: dict[ServedSubscription | ServedFetch, None] = {}
        self._offered: dict[TrackSource, ServedSubscription] = {}
        """The newest offer of each track that is open."""
        self._noted: dict[ServedSubscription, None] = {}
        self._next_alias = 0

    # Queries

    @property
    def open_subscriptions(self) -> int:
        """How many subscriptions are served, offers included."""
        return sum(isinstance(served, ServedSubscription) for served in self._served)

    @property
    def open_fetches(self) -> int:
        """How many FETCHes are served."""
        return len(self._served) - self.open_subscriptions

    def is_offered(self, track: TrackSource) -> bool:
        """Return whether an offer of `track` by PUBLISH is open."""
        return track in self._offered

    def served_requests(self, name: FullTrackName | None) -> tuple[ServedRequest, ...]:
        """Return the subscriptions and fetches that are served, of one track or of all."""
        return tuple(
            ServedRequest(served.stream.request_id, served.stream.kind, served.track.name)
            for served in self._served
            if served.stream.kind is not None and name in (None, served.track.name)
        )

    # Inputs

    def on_subscribe(self, stream: RequestStream, message: Subscribe, now: float) -> None:
        """Answer a SUBSCRIBE of the peer's and begin to deliver."""
        track = self._find(stream, message)
        if track is None:
            return
        parameters = message.parameters
        state = SubscriptionState(
            forward=True,
            priority=DEFAULT_PRIORITY,
            group_order=parameters.group_order or track.properties.default_group_order,
        )
        try:
            state = state.updated(
                parameters,
                largest=track.largest,
                max_ranges=self.context.config.max_filter_ranges,
            )
        except FilterRejected as error:
            stream.refuse(error.code, error.reason)
            return
        subscription = ServedSubscription(self, track, track_alias=self._new_alias(), state=state)
        stream.handler = subscription
        self._served[subscription] = None
        stream.send(
            SubscribeOk(
                subscription.track_alias,
                Parameters(largest=track.largest),
                _properties(track, parameters),
            )
        )
        subscription.start(stream)
        if parameters.fill is not None:
            subscription.fill(parameters.fill, message.request_id)
        subscription.end_if_complete()
        if parameters.new_group_request is not None:
            track.request_new_group(parameters.new_group_request)

    def on_fetch(self, stream: RequestStream, message: Fetch, now: float) -> None:
        """Answer a FETCH of the peer's and begin to deliver."""
        track = self._find(stream, message)
        if track is None or self._refuse_fetch_too_many(stream):
            return
        parameters = message.parameters
        filters = RangeFilters(parameters.range_filters)
        location = parameters.location_filter or LocationFilter.none()
        try:
            filters.check(self.context.config.max_filter_ranges)
            wanted = location.resolve_fetch(track.largest)
        except FilterRejected as error:
            stream.refuse(error.code, error.reason)
            return
        fetch = ServedFetch(self, track, stream)
        if parameters.subscriber_priority is not None:
            fetch.subscriber_priority = parameters.subscriber_priority
        stream.handler = fetch
        self._served[fetch] = None
        end = _end_location(track, wanted)
        stream.send(
            FetchOk(track.is_ended and end == track.largest, end, _properties(track, parameters))
        )
        fetch.start(
            wanted,
            filters if filters.filters else None,
            parameters.group_order or GroupOrder.ASCENDING,
        )

    def _refuse_fetch_too_many(self, stream: RequestStream) -> bool:
        """Fetches count here: the stream of one may have ended both ways before it is served."""
        limit = self.context.config.max_requests
        if len(self._served) < limit or self.open_fetches < limit:
            return False
        stream.refuse_with(
            RequestError(
                code=RequestErrorCode.EXCESSIVE_LOAD,
                reason="too many open fetches",
                retry_interval_ms=OVERLOAD_RETRY_MS,
            )
        )
        return True

    def on_track_status(self, stream: RequestStream, message: TrackStatus, now: float) -> None:
        """Answer a TRACK_STATUS of the peer's; it leaves nothing behind (MOQT-22 9.13)."""
        track = self._find(stream, message)
        if track is not None:
            properties = _properties(track, message.parameters)
            stream.send(RequestOk(Parameters(largest=track.largest), properties))
            stream.finish()

    def on_data_stop(self, stream_id: int, raw_code: int, now: float) -> bool:
        """STOP_SENDING on a data stream; False when it is none of ours that is open."""
        cursor = self.scheduler.find(stream_id)
        if cursor is None:
            return False
        cursor.owner.stopped(cursor)
        return True

    def on_late_cancel(self, stream_id: int) -> None:
        """STOP_SENDING on a request stream that both sides ended by FIN: of a running FETCH."""
        for served in self._served:
            if isinstance(served, ServedFetch) and served.stream.stream_id == stream_id:
                served.release(StreamResetCode.CANCELLED)
                return

    # Commands

    def publish(
        self,
        track: TrackSource,
        *,
        forward: bool = True,
        wanted: Parameters = NO_PARAMETERS,
        tokens: Sequence[AuthToken] | None = None,
        now: float,
    ) -> int:
        """Offer `track` by PUBLISH and return the Request ID (MOQT-22 9.8).

        `wanted`: what a SUBSCRIBE_TRACKS of the peer's asked for; the subscription begins so, and
        what PUBLISH can say of it is said. FilterRejected is raised for what does not fit.
        With `forward` its Objects are sent from now on, without waiting for the answer; without,
        from the subscriber's REQUEST_UPDATE on, which may ask for a fill.
        Raises: LocalProtocolError for an aborted track, and as `Requests.open` does.
        """
        if track.abort_code is not None:
            raise LocalProtocolError(f"{track.name}: the track was aborted")
        if lacking := self.lacking(track):
            raise LocalProtocolError(f"{track.name}: the peer does not support {lacking}")
        largest = track.largest
        state = SubscriptionState(
            forward=forward,
            priority=DEFAULT_PRIORITY,
            group_order=wanted.group_order or track.properties.default_group_order,
            location_range=LocationFilter.next_object().resolve_subscription(largest),
            is_range_given=False,
        ).updated(wanted, largest=largest, max_ranges=self.context.config.max_filter_ranges)
        alias = self._new_alias()
        subscription = ServedSubscription(
            self, track, track_alias=alias, state=state, is_offer=True
        )
        publication = Publication(self.context, subscription)
        publication.bind(
            self._requests.open(
                RequestKind.PUBLISH,
                publication,
                lambda request_id: Publish(
                    request_id,
                    track.name,
                    alias,
                    Parameters(
                        largest=largest,
                        forward=None if state.forward else False,
                        subscriber_priority=wanted.subscriber_priority,
                        location_filter=wanted.location_filter,
                        group_order=wanted.group_order,
                        object_delivery_timeout_ms=wanted.object_delivery_timeout_ms,
                        subgroup_delivery_timeout_ms=wanted.subgroup_delivery_timeout_ms,
                    ),
                    _properties(track, wanted),
                ),
                now=now,
                tokens=tokens,
            )
        )
        self._served[subscription] = None
        self._offered[track] = subscription
        subscription.start(publication.stream)
        self.context.wake()
        return publication.request_id

    def flush(self, now: float) -> None:
        """Hand over to the transport what it can send soon."""
        if self.context.is_closed:
            return
        while self._noted:
            noted, self._noted = self._noted, {}
            for subscription in noted:
                subscription.attend()
        self.scheduler.flush(now)

    def close(self, now: float) -> None:
        """The session is over: let go of all tracks; no stream is touched."""
        for served in list(self._served):
            served.release(None)
        self._noted.clear()

    # For subscriptions and fetches

    def note(self, subscription: ServedSubscription) -> None:
        """Call `attend` in the next flush, and ask for one."""
        self._noted[subscription] = None
        self.context.wake()

    def forget(self, served: ServedSubscription | ServedFetch) -> None:
        """It is over."""
        self._served.pop(served, None)
        if isinstance(served, ServedSubscription):
            self._noted.pop(served, None)
            if self._offered.get(served.track) is served:
                del self._offered[served.track]

    def _new_alias(self) -> int:
        # Never used again, not even for the same track (MOQT-22 9.7): a subscriber can tell what
        # is late from what is new.
        alias = self._next_alias
        self._next_alias += 1
        return alias

    def _find(
        self, stream: RequestStream, message: Subscribe | Fetch | TrackStatus
    ) -> TrackSource | None:
        directory = self._directory
        track = directory.find(message.name) if directory is not None else None
        if track is None:
            error = directory.refusal(message.name) if directory is not None else None
            if error is not None and self._may_send(error):
                stream.refuse_with(error)
            else:
                stream.refuse(RequestErrorCode.DOES_NOT_EXIST, "no such track")
        elif track.abort_code is PublishDoneCode.MALFORMED_TRACK:
            stream.refuse(RequestErrorCode.MALFORMED_TRACK, track.abort_reason)
        elif track.abort_code is not None:
            stream.refuse(RequestErrorCode.DOES_NOT_EXIST, "the track was stopped")
        elif lacking := self.lacking(track):
            stream.refuse(RequestErrorCode.UNSUPPORTED_EXTENSION, lacking)
        else:
            return track
        return None

    def lacking(self, track: TrackSource) -> str:
        """Return why the peer is known not to be able to use a track (MOQT-22 3.7); "": it is."""
        lacks = self.context.config.peer_lacks.intersection(track.properties.mandatory_types)
        return ", ".join(f"Mandatory Track Property 0x{kind:x}" for kind in sorted(lacks))

    def _may_send(self, error: RequestError) -> bool:
        """Return False for a Connect URI from a client (MOQT-22 9.4)."""
        redirect = error.redirect
        return not (redirect and redirect.connect_uri and self.context.role is Role.CLIENT)


def _properties(track: TrackSource, parameters: Parameters) -> TrackProperties:
    return TrackProperties() if parameters.include_properties is False else track.properties


def _end_location(track: TrackSource, wanted: LocationRange) -> Location:
    """Return FETCH_OK's End Location: for a whole end Group its last Object (MOQT-22 9.12)."""
    start, end = wanted.start, wanted.end
    assert end is not None  # resolve_fetch sets it
    if end.object_id < MAX_VI64:
        return end
    last = track.last_object_of(end.group_id) or 0
    return max(start, Location(end.group_id, last))
