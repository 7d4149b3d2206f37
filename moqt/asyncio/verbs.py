"""The verbs of `MoqtSession`: each makes the object of one request, and answers offers."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING

from moqt import errors
from moqt.asyncio.namespaces import (
    AcceptedNamespace,
    NamespacePublication,
    NamespaceSubscription,
    Offer,
    Offers,
    TracksSubscription,
)
from moqt.asyncio.tracks import (
    Fetch,
    Subscription,
    TrackPublication,
    TrackStatus,
    TrackStatusRequest,
)
from moqt.codes import GroupOrder, RequestErrorCode
from moqt.session.receive.request_options import FetchOptions, SubscribeOptions
from moqt.wire.properties import DEFAULT_PRIORITY

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from moqt.asyncio.binding import Driver
    from moqt.asyncio.desk import RequestDesk
    from moqt.session import events
    from moqt.session.access.authorization import AuthToken
    from moqt.session.core import Session
    from moqt.session.publish.source import TrackSource
    from moqt.session.receive.sink import ObjectSink
    from moqt.types import FullTrackName, TrackNamespace
    from moqt.wire.filters import LocationFilter, RangeFilter
    from moqt.wire.params import FillParameters


class SessionVerbs:
    """What an application asks of a session. `MoqtSession` holds what they work on.

    `tokens` authorize one request (MOQT-22 8.9); None: those that `connect` was given for requests.
    """

    _session: Session
    _driver: Driver
    _desk: RequestDesk

    # --- tracks ---

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
        timeout_s: float | None = None,
    ) -> Subscription:
        """Return a subscription; `async with` sends it.

        `timeout_s`: for its answer, on top of `SessionConfig.request_timeout_s`. The smaller of a
        delivery timeout here and the publisher's own counts, 0 is none (MOQT-22 5.2).
        `new_group_request` asks for a new Group with at least this ID, 0: any.
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
        return self.subscribe_with(name, options, sink=sink, timeout_s=timeout_s)

    def subscribe_with(
        self,
        name: FullTrackName,
        options: SubscribeOptions,
        *,
        sink: ObjectSink | None = None,
        timeout_s: float | None = None,
    ) -> Subscription:
        """Do as `subscribe` does."""

        def command() -> int:
            return self._session.subscribe_with(name, options, sink=sink, now=time.monotonic())

        return Subscription(self._desk, f"SUBSCRIBE {name}", timeout_s, self._waking(command))

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
    ) -> Fetch:
        """Return a fetch; `async with` sends it."""
        options = FetchOptions(
            location_filter=location_filter,
            range_filters=range_filters,
            priority=priority,
            group_order=group_order,
            fill_timeout_ms=fill_timeout_ms,
            tokens=tokens,
        )
        return self.fetch_with(name, options, sink=sink)

    def fetch_with(
        self, name: FullTrackName, options: FetchOptions, *, sink: ObjectSink | None = None
    ) -> Fetch:
        """Do as `fetch` does."""

        def command() -> int:
            return self._session.fetch_with(name, options, sink=sink, now=time.monotonic())

        return Fetch(self._desk, f"FETCH {name}", None, self._waking(command))

    async def track_status(
        self,
        name: FullTrackName,
        *,
        tokens: Sequence[AuthToken] | None = None,
        timeout_s: float | None = None,
    ) -> TrackStatus:
        """Ask what the track's Largest Object is.

        Raises: RequestRejected, TimedOut, SessionClosed. Cancelled: the request is cancelled.
        """

        def command() -> int:
            return self._session.track_status(name, now=time.monotonic(), tokens=tokens)

        what = f"TRACK_STATUS {name}"
        return await TrackStatusRequest(self._desk, what, timeout_s, self._waking(command)).run()

    def publish(
        self,
        track: TrackSource,
        *,
        forward: bool = True,
        tokens: Sequence[AuthToken] | None = None,
        timeout_s: float | None = None,
    ) -> TrackPublication:
        """Return an offer of `track` to the peer; `async with` sends it."""

        def command() -> int:
            return self._session.publish(
                track, forward=forward, tokens=tokens, now=time.monotonic()
            )

        return TrackPublication(
            self._desk, f"PUBLISH {track.name}", timeout_s, self._waking(command)
        )

    # --- namespaces ---

    def publish_namespace(
        self,
        namespace: TrackNamespace,
        *,
        tokens: Sequence[AuthToken] | None = None,
        timeout_s: float | None = None,
    ) -> NamespacePublication:
        """Return a PUBLISH_NAMESPACE for `namespace`; `async with` sends it."""

        def command() -> int:
            return self._session.publish_namespace(namespace, now=time.monotonic(), tokens=tokens)

        what = f"PUBLISH_NAMESPACE {namespace}"
        return NamespacePublication(self._desk, what, timeout_s, self._waking(command))

    def subscribe_namespace(
        self,
        prefix: TrackNamespace,
        *,
        tokens: Sequence[AuthToken] | None = None,
        timeout_s: float | None = None,
    ) -> NamespaceSubscription:
        """Return a subscription to the namespaces under `prefix`; `async with` sends it."""

        def command() -> int:
            return self._session.subscribe_namespace(prefix, now=time.monotonic(), tokens=tokens)

        what = f"SUBSCRIBE_NAMESPACE {prefix.as_prefix}"
        return NamespaceSubscription(self._desk, what, timeout_s, self._waking(command))

    def subscribe_tracks(
        self,
        prefix: TrackNamespace,
        *,
        forward: bool = True,
        group_order: GroupOrder | None = None,
        range_filters: Sequence[RangeFilter] = (),
        include_properties: bool = True,
        tokens: Sequence[AuthToken] | None = None,
        timeout_s: float | None = None,
    ) -> TracksSubscription:
        """Return a request for an offer of each track under `prefix`; `async with` sends it.

        The tracks are offered with what is given here, as `subscribe` has it; a TRACK_PROPERTY
        filter chooses among them. With `forward` Objects come before an offer is accepted.
        """

        def command() -> int:
            return self._session.subscribe_tracks(
                prefix,
                forward=forward,
                group_order=group_order,
                range_filters=range_filters,
                include_properties=include_properties,
                tokens=tokens,
                now=time.monotonic(),
            )

        what = f"SUBSCRIBE_TRACKS {prefix.as_prefix}"
        return TracksSubscription(
            self._desk, what, timeout_s, command=self._waking(command), decline=self._decline
        )

    def _decline(self, offer: events.PublicationOffered) -> None:
        with suppress(errors.LocalProtocolError):  # it was taken back meanwhile
            self.reject(offer, RequestErrorCode.UNINTERESTED, "not taken")

    # --- the peer's offers ---

    def offers(self) -> Offers:
        """Return the peer's PUBLISH and PUBLISH_NAMESPACE as an async iterator.

        Raises: LocalProtocolError when the endpoint was made without `takes_offers`; offers are
        then refused with UNINTERESTED.
        """
        if self._desk.offers is None:
            raise errors.LocalProtocolError("this endpoint takes no offers: use takes_offers=True")
        return self._desk.offers

    def accept(
        self,
        offer: events.PublicationOffered,
        *,
        forward: bool = True,
        priority: int = DEFAULT_PRIORITY,
        location_filter: LocationFilter | None = None,
        fill: FillParameters | None = None,
        sink: ObjectSink | None = None,
    ) -> Subscription:
        """Return a subscription to an offered track; `async with` accepts it.

        For its history too, each Object once: an offer that does not forward yet, and a `fill`.
        """

        def command() -> int:
            self._session.accept(
                offer.request_id,
                forward=forward,
                priority=priority,
                location_filter=location_filter,
                fill=fill,
                sink=sink,
                now=time.monotonic(),
            )
            return offer.request_id

        return Subscription(self._desk, f"PUBLISH {offer.name}", None, self._waking(command))

    def accept_namespace(self, offer: events.NamespaceOffered) -> AcceptedNamespace:
        """Accept an offered namespace. Raises: SessionClosed."""
        self._desk.raise_if_closed()
        accepted = AcceptedNamespace(self._desk, offer)
        self._desk.register(offer.request_id, accepted)
        self._session.accept(offer.request_id, now=time.monotonic())
        self._driver.wake()
        return accepted

    def reject(
        self,
        offer: Offer,
        code: RequestErrorCode,
        reason: str = "",
        *,
        retry_interval_ms: int | None = None,
        redirect_uri: str = "",
        redirect_name: FullTrackName | None = None,
    ) -> None:
        """Refuse an offer; nothing happens when the session is over.

        `redirect_name` goes with REDIRECT alone; a client gives no `redirect_uri` (MOQT-22 9.4).
        """
        if not self._desk.is_closed:
            self._session.reject(
                offer.request_id,
                code,
                reason,
                retry_interval_ms=retry_interval_ms,
                redirect_uri=redirect_uri,
                redirect_name=redirect_name,
                now=time.monotonic(),
            )
            self._driver.wake()

    def _waking(self, command: Callable[[], int]) -> Callable[[], int]:
        def run() -> int:
            request_id = command()
            self._driver.wake()
            return request_id

        return run
