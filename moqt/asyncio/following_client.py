"""`Client`: requests that follow redirects and GOAWAY, whichever sessions that takes."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Self

from moqt import errors
from moqt.asyncio.dialing import dialer
from moqt.asyncio.following import FollowConfig, Place, Sessions, follow
from moqt.asyncio.roaming_fetch import RoamingFetch
from moqt.asyncio.roaming_namespaces import RoamingNamespaces
from moqt.asyncio.roaming_subscription import RoamingSubscription
from moqt.asyncio.token_scope import TokenScope
from moqt.codes import GroupOrder
from moqt.session.receive.request_options import FetchOptions, SubscribeOptions
from moqt.uri import MoqtUri
from moqt.wire.properties import DEFAULT_PRIORITY

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection, Sequence

    from moqt.asyncio.config import TransportConfig
    from moqt.asyncio.session import MoqtSession
    from moqt.asyncio.tracks import TrackStatus
    from moqt.session.access.authorization import AuthToken
    from moqt.session.config import SessionConfig
    from moqt.session.receive.sink import ObjectSink
    from moqt.tls import Pem
    from moqt.types import FullTrackName, TrackNamespace
    from moqt.wire.filters import LocationFilter, RangeFilter
    from moqt.wire.params import FillParameters

__all__ = ["Client"]


class Client:
    """What `MoqtSession` is for one session, for an address and wherever its peers send us.

    A request goes to the session with the address that we began with; REDIRECT takes it to another
    target or session, a Retry Interval makes it wait and come again, GOAWAY moves new requests and
    running ones to the next session. What bounds all that stands in `FollowConfig`. A session that
    is lost without GOAWAY ends its requests with SessionClosed, and new ones make a new session.
    Requests that it has no verb for (SUBSCRIBE_TRACKS, PUBLISH, PUBLISH_NAMESPACE) are made on its
    `session`, do not follow, and end with it.

    `tokens` of a request are shown where those of `connect` are: at the host and port of its `url`,
    and at `trusted_authorities`. A request that is refused elsewhere says where.
    """

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    @classmethod
    @asynccontextmanager
    async def connect(
        cls,
        url: str,
        *,
        follow_config: FollowConfig | None = None,
        config: SessionConfig | None = None,
        transport_config: TransportConfig | None = None,
        ca: Pem | None = None,
        insecure: bool = False,
        server_name: str | None = None,
        tokens: Sequence[AuthToken] = (),
        request_tokens: Sequence[AuthToken] = (),
        trusted_authorities: Collection[str] = (),
    ) -> AsyncIterator[Self]:
        """Connect to a moqt:// address; leaving it closes all sessions with NO_ERROR.

        Arguments and errors: as `moqt.connect`; `insecure` and `server_name` hold for the host of
        `url` alone, and tokens for its host and port, not for others that a peer names, but for
        those of `trusted_authorities`, each "host:port" (or "host", for the default port).
        """
        home = MoqtUri.parse(url)
        scope = TokenScope(home, trusted_authorities)
        dial = dialer(
            home,
            config=config,
            transport_config=transport_config,
            ca=ca,
            insecure=insecure,
            server_name=server_name,
            tokens=tokens,
            request_tokens=request_tokens,
            token_scope=scope,
        )
        sessions = Sessions(home, dial, follow_config or FollowConfig(), token_scope=scope)
        try:
            await sessions.home()
            yield cls(sessions)
        finally:
            await sessions.close()

    # --- queries ---

    @property
    def session(self) -> MoqtSession:
        """The session that new requests go to, or the last one if that is lost."""
        place = self._home
        return place.session

    @property
    def uri(self) -> MoqtUri:
        """The address of `session`."""
        return self._home.uri

    @property
    def session_count(self) -> int:
        """Sessions that are held, those included that are being left."""
        return self._sessions.count

    @property
    def _home(self) -> Place:
        place = self._sessions.last_home
        if place is None:
            raise errors.LocalProtocolError("not connected; use `async with Client.connect(...)`")
        return place

    # --- requests ---

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
    ) -> RoamingSubscription:
        """Return a subscription; `async with` opens it. See `MoqtSession.subscribe`."""
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
        return RoamingSubscription(self._sessions, name, options, sink=sink, timeout_s=timeout_s)

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
    ) -> RoamingFetch:
        """Return a fetch; `async with` opens it and waits for FETCH_OK. See `MoqtSession.fetch`."""
        options = FetchOptions(
            location_filter=location_filter,
            range_filters=range_filters,
            priority=priority,
            group_order=group_order,
            fill_timeout_ms=fill_timeout_ms,
            tokens=tokens,
        )
        return RoamingFetch(self._sessions, name, options, sink=sink)

    def subscribe_namespace(
        self,
        prefix: TrackNamespace,
        *,
        tokens: Sequence[AuthToken] | None = None,
        timeout_s: float | None = None,
    ) -> RoamingNamespaces:
        """Return a subscription to the namespaces under `prefix`; `async with` opens it."""
        return RoamingNamespaces(self._sessions, prefix, tokens=tokens, timeout_s=timeout_s)

    async def track_status(
        self,
        name: FullTrackName,
        *,
        tokens: Sequence[AuthToken] | None = None,
        timeout_s: float | None = None,
    ) -> TrackStatus:
        """Ask what the track's Largest Object is. Raises: as opening any other request."""

        async def attempt(session: MoqtSession, target: FullTrackName) -> TrackStatus:
            shown = self._sessions.tokens_for(session, tokens)
            return await session.track_status(target, tokens=shown, timeout_s=timeout_s)

        what = f"TRACK_STATUS {name}"
        visit, _, status = await follow(self._sessions, None, name, attempt, what=what)
        visit.leave()
        return status

    def __repr__(self) -> str:
        return f"<Client {self._home.uri.shown} sessions={self.session_count}>"
