"""What happened in a session, for its application. One frozen value each.

What there is of for each Object is a NamedTuple here and elsewhere: a frozen dataclass takes two to
three times as long to make.

`request_id` is always the Request ID of a request of ours, unless the class says otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from moqt.codes import (
        GroupOrder,
        PublishDoneCode,
        RangeStatus,
        RequestErrorCode,
        SessionErrorCode,
        StreamResetCode,
    )
    from moqt.types import FullTrackName, Location, Object, TrackNamespace
    from moqt.wire.filters import LocationFilter
    from moqt.wire.options import SetupOptions
    from moqt.wire.properties import TrackProperties


@dataclass(frozen=True, slots=True)
class SessionEstablished:
    """Both SETUPs are done; `peer_options` is what the peer announced."""

    peer_options: SetupOptions


@dataclass(frozen=True, slots=True)
class SessionEnded:
    """The session is over, and with it every open request. Always the last event."""

    code: SessionErrorCode
    reason: str
    by_peer: bool


@dataclass(frozen=True, slots=True)
class GoawayReceived:
    """The peer asks us to move (MOQT-22 6.6.1).

    `request_id` None: the whole session; else that request, ours or one of the peer's.
    """

    new_session_uri: str
    timeout_ms: int
    request_id: int | None = None


@dataclass(frozen=True, slots=True)
class RequestAccepted:
    """REQUEST_OK to a namespace request, a PUBLISH of ours, or a TRACK_STATUS.

    `largest` and `properties` are set for TRACK_STATUS only.
    """

    request_id: int
    expires_ms: int | None = None
    largest: Location | None = None
    properties: TrackProperties | None = None


@dataclass(frozen=True, slots=True)
class RequestRejected:
    """REQUEST_ERROR, a failed stream, or no answer in time: the request is over."""

    request_id: int
    code: RequestErrorCode
    reason: str
    retry_interval_ms: int | None = None
    redirect_uri: str | None = None
    redirect_name: FullTrackName | None = None
    timed_out: bool = False
    """True when it is our own verdict after `request_timeout_s`."""


@dataclass(frozen=True, slots=True)
class UpdateAccepted:
    """REQUEST_OK to REQUEST_UPDATE `update_id` on request `request_id`."""

    request_id: int
    update_id: int
    largest: Location | None = None
    expires_ms: int | None = None
    """EXPIRES: the request lives so long from now on; None: nothing was said of it."""


@dataclass(frozen=True, slots=True)
class UpdateRejected:
    """REQUEST_ERROR to one or more REQUEST_UPDATEs, up to and including `update_id`."""

    request_id: int
    update_id: int
    code: RequestErrorCode
    reason: str


@dataclass(frozen=True, slots=True)
class SubscriptionEstablished:
    """SUBSCRIBE_OK, or our acceptance of an offered Publication."""

    request_id: int
    track_alias: int
    largest: Location | None
    properties: TrackProperties
    expires_ms: int | None = None


@dataclass(frozen=True, slots=True)
class StateNotified:
    """PUBLISH_STATE_NOTIFY: news of a subscription's track that needs no action (MOQT-22 9.10).

    `largest`: its Largest Object, if there is any. `forward` and `location_filter`: what the
    publisher says has changed; None: nothing. What we asked for holds all the same.
    """

    request_id: int
    largest: Location | None
    forward: bool | None = None
    location_filter: LocationFilter | None = None


class ObjectReceived(NamedTuple):
    """One Object, whole. The session withholds credit until `Session.consume` for its octets.

    `from_fill` tells the fill fetch stream from the subscription's own streams.
    """

    request_id: int
    object: Object
    from_fill: bool = False


@dataclass(frozen=True, slots=True)
class EndOfRangeReceived:
    """An End of Range marker on a fetch or fill stream (MOQT-22 11.4.1.2)."""

    request_id: int
    status: RangeStatus
    last: Location
    from_fill: bool = False


@dataclass(frozen=True, slots=True)
class SubgroupEnded:
    """A subgroup stream is over: FIN (`reset` None), or reset by the publisher.

    `ends_group`: FIN with END_OF_GROUP, so the last Object received is the last of its Group.
    `subgroup_id` None: it is the ID of the stream's first Object, and there was none.
    """

    request_id: int
    group_id: int
    subgroup_id: int | None
    ends_group: bool = False
    reset: StreamResetCode | None = None
    reset_code: int | None = None


@dataclass(frozen=True, slots=True)
class FillEnded:
    """A fill fetch stream is over; `fill_id` is the Request ID of the message that asked for it."""

    request_id: int
    fill_id: int
    reset: StreamResetCode | None = None
    reset_code: int | None = None


@dataclass(frozen=True, slots=True)
class SubscriptionEnded:
    """PUBLISH_DONE and all streams that it counted, or our verdict that they will not come.

    `streams_missing`: how many counted streams had not been seen after `done_timeout_s`, or were
    reset before they said whose they are.
    """

    request_id: int
    code: PublishDoneCode
    reason: str
    streams_missing: int = 0


@dataclass(frozen=True, slots=True)
class FetchEstablished:
    """FETCH_OK; it may come after Objects."""

    request_id: int
    end_of_track: bool
    end: Location
    properties: TrackProperties


@dataclass(frozen=True, slots=True)
class FetchEnded:
    """The fetch stream is over: FIN (`reset` None), or reset by the publisher."""

    request_id: int
    reset: StreamResetCode | None = None
    reset_code: int | None = None


@dataclass(frozen=True, slots=True)
class TrackMalformed:
    """The publisher broke the track's own rules (MOQT-22 12.1); its requests were cancelled."""

    request_id: int
    reason: str


@dataclass(frozen=True, slots=True)
class PublicationOffered:
    """PUBLISH from the peer; `request_id` is the peer's. Answer by accept or reject."""

    request_id: int
    name: FullTrackName
    track_alias: int
    largest: Location | None
    forward: bool
    group_order: GroupOrder | None
    properties: TrackProperties
    tracks_id: int | None = None
    """The Request ID of the SUBSCRIBE_TRACKS of ours that covers it; None: there is none."""


@dataclass(frozen=True, slots=True)
class NamespaceOffered:
    """PUBLISH_NAMESPACE from the peer; `request_id` is the peer's. Answer by accept or reject."""

    request_id: int
    namespace: TrackNamespace


@dataclass(frozen=True, slots=True)
class NamespaceWithdrawn:
    """The peer's PUBLISH_NAMESPACE `request_id`, or our own accepted one, was ended by the peer."""

    request_id: int
    namespace: TrackNamespace


@dataclass(frozen=True, slots=True)
class NamespaceFound:
    """NAMESPACE on a SUBSCRIBE_NAMESPACE of ours; `namespace` is prefix and suffix."""

    request_id: int
    namespace: TrackNamespace


@dataclass(frozen=True, slots=True)
class NamespaceGone:
    """NAMESPACE_DONE, or the end of the stream that had reported it."""

    request_id: int
    namespace: TrackNamespace


@dataclass(frozen=True, slots=True)
class TrackSkipped:
    """PUBLISH_SKIPPED on a SUBSCRIBE_TRACKS of ours: `name` exists and is not offered.

    It may be subscribed to (MOQT-22 3.6.3).
    """

    request_id: int
    name: FullTrackName


@dataclass(frozen=True, slots=True)
class RequestEnded:
    """A namespace request or an accepted PUBLISH of ours was ended by the peer after its OK.

    Also for a PUBLISH of the peer's (and its Request ID) that is gone before we answered it.
    """

    request_id: int
    reset: StreamResetCode | None = None
    tracks_id: int | None = None
    """Of a PUBLISH of the peer's: as in its PublicationOffered."""


Event = (
    SessionEstablished
    | SessionEnded
    | GoawayReceived
    | RequestAccepted
    | RequestRejected
    | UpdateAccepted
    | UpdateRejected
    | SubscriptionEstablished
    | StateNotified
    | ObjectReceived
    | EndOfRangeReceived
    | SubgroupEnded
    | FillEnded
    | SubscriptionEnded
    | FetchEstablished
    | FetchEnded
    | TrackMalformed
    | PublicationOffered
    | NamespaceOffered
    | NamespaceWithdrawn
    | NamespaceFound
    | NamespaceGone
    | TrackSkipped
    | RequestEnded
)
