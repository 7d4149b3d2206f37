"""The endpoints of a consumer: its own, those it names, and where their peers send it (KVCS 5)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from kvcs.feeds import Feed
from kvcs.manifest_feed import ManifestFeed
from kvcs.names import MANIFEST
from kvcs.watch import Watches
from moqt.asyncio.dialing import dialer
from moqt.asyncio.following import FollowConfig, Sessions, follow
from moqt.asyncio.following_client import Client
from moqt.asyncio.token_scope import TokenScope
from moqt.types import FullTrackName
from moqt.uri import MoqtUri

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from kvcs.config import ConsumerConfig
    from kvcs.discovery import Discovery
    from kvcs.kvsp.identity import Prefix
    from kvcs.manifest import Manifest
    from kvcs.trust import Trust
    from kvcs.watch import Watching
    from moqt.asyncio.config import TransportConfig
    from moqt.asyncio.following import Place
    from moqt.asyncio.session import MoqtSession
    from moqt.errors import RequestRejected
    from moqt.session.access.authorization import AuthToken
    from moqt.session.config import SessionConfig
    from moqt.tls import Pem
    from moqt.types import TrackNamespace

__all__ = ["Endpoints"]


class Endpoints:
    """All sessions of a consumer, and what is opened there: publications and namespace watches.

    `url` is the consumer's own endpoint, the only one that gets `auth_tokens`, beside those of
    `trusted_authorities`. `insecure` holds for it and for those that the consumer names (`place`),
    not for whom a peer names.
    """

    def __init__(
        self,
        url: str,
        *,
        config: ConsumerConfig,
        trust: Trust,
        ca: Pem | None,
        insecure: bool,
        session_config: SessionConfig | None,
        transport_config: TransportConfig | None,
        auth_tokens: Sequence[AuthToken],
        trusted_authorities: Collection[str] = (),
    ) -> None:
        self.trust = trust
        self._url = url
        self._config = config
        self._named_hosts: set[str] = set()
        home = MoqtUri.parse(url)
        scope = TokenScope(home, trusted_authorities)
        dial = dialer(
            home,
            ca=ca,
            insecure=insecure,
            config=session_config,
            transport_config=transport_config,
            tokens=auth_tokens,
            request_tokens=auth_tokens,
            token_scope=scope,
            trusted_hosts=self._named_hosts,
            later_timeout_s=config.connect_timeout_s,
        )
        following = FollowConfig(
            max_redirects=config.max_redirects,
            max_sessions=config.max_endpoints + 2,  # the own one, and one that is being left
            follow_timeout_s=2 * config.request_timeout_s
            + config.manifest_timeout_s
            + config.connect_timeout_s,
        )

        def make_sessions() -> Sessions:
            return Sessions(home, dial, following, token_scope=scope)

        self._make_sessions = make_sessions
        self._sessions = make_sessions()
        self._lanes: dict[int, Sessions] = {}
        self._client = Client(self._sessions)
        self._watches = Watches()

    @property
    def session(self) -> MoqtSession:
        """The session with the own endpoint, the last one if it is lost."""
        return self._client.session

    def raise_if_lost(self) -> None:
        """Raise SessionClosed when that session is lost; one that was left is not."""
        if self.session.goaway_received is None:
            self.session.raise_if_closed()

    async def place(self, url: str | None = None) -> Place:
        """Return the session with an endpoint, or the one that follows it; None: with the own one.

        A session that is lost is made again. Raises: MoqtError.
        """
        if url is None or url == self._url:
            return await self._sessions.home()
        uri = MoqtUri.parse(url)
        self._named_hosts.add(uri.host.lower())
        return await self._sessions.at(uri)

    async def watching(self, discovery: Discovery) -> Watching:
        """Return a watching at the own endpoint, which feeds `discovery`. Raises: MoqtError."""
        await self.place()
        return self._watches.watching(self._client, discovery)

    async def open_feed(
        self, prefix: Prefix, namespace: TrackNamespace, url: str | None = None
    ) -> Feed:
        """Return a publication of `prefix` with a first manifest that holds, connecting if need be.

        Raises: PublicationUnusable, MoqtError.
        """
        return await self._feed(prefix, namespace, await self.place(url), url)

    async def next_feed(self, prefix: Prefix, feed: Feed, uri: str = "") -> Feed:
        """Return the same publication at `uri`, or at the session that follows that of `feed`.

        That is where its GOAWAY leads, a new one when it is lost, else the same. Raises: as
        `open_feed`; FollowFailed.
        """
        place = feed.visit.place
        if uri:
            place = await self._sessions.at(self._sessions.target(place, uri))
        return await self._feed(prefix, feed.namespace, place, feed.url)

    async def lane(self, lane: int, beside: Place) -> Place:
        """Return a session with where `beside` is, on a connection of its own for each `lane`.

        `lane` is 1 or more. It is kept for later retrievals. Raises: as `place`.
        """
        return await self._lane_sessions(lane).at(beside.uri)

    async def redirected(
        self, feed: Feed, error: RequestRejected, place: Place, lane: int = 0
    ) -> tuple[MoqtSession, FullTrackName]:
        """Return where a REDIRECT of a track of `feed`, asked for at `place`, leads.

        Raises: MoqtError.
        """
        assert error.redirect_name is not None
        sessions = self._lane_sessions(lane)
        target = await sessions.at(sessions.target(place, error.redirect_uri or ""))
        feed.stay(target.visit())
        return target.session, error.redirect_name

    def _lane_sessions(self, lane: int) -> Sessions:
        if lane == 0:
            return self._sessions
        if lane not in self._lanes:
            self._lanes[lane] = self._make_sessions()
        return self._lanes[lane]

    async def close(self) -> None:
        """End all watches, and close all sessions."""
        await self._watches.close()
        await asyncio.gather(self._sessions.close(), *(s.close() for s in self._lanes.values()))

    async def _feed(
        self, prefix: Prefix, namespace: TrackNamespace, place: Place, url: str | None
    ) -> Feed:
        """Return a publication at `place` or where that leads."""

        async def attempt(
            session: MoqtSession, target: FullTrackName
        ) -> tuple[ManifestFeed, Manifest]:
            manifests = ManifestFeed(
                session,
                target.namespace,
                compatibility_id=prefix.compatibility_id,
                trust=self.trust,
                config=self._config,
            )
            try:
                await manifests.__aenter__()
                return manifests, await manifests.first()
            except BaseException:
                await manifests.__aexit__(None, None, None)
                raise

        visit, target, (manifests, manifest) = await follow(
            self._sessions,
            place,
            FullTrackName(namespace, MANIFEST),
            attempt,
            what=f"manifest of {namespace}",
        )
        return Feed(visit, target.namespace, manifests, manifest, url)
