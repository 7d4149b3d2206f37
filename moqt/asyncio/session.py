"""`MoqtSession`: one MOQT session as an application sees it."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Protocol

from moqt import errors
from moqt.asyncio.desk import RequestDesk
from moqt.asyncio.info import (
    ConnectionInfo,
    ConnectionStats,
    connection_info,
    connection_stats,
)
from moqt.asyncio.namespaces import AcceptedNamespace
from moqt.asyncio.verbs import SessionVerbs
from moqt.codes import SessionErrorCode
from moqt.uri import MoqtUri

if TYPE_CHECKING:
    from moqt.asyncio.binding import Driver
    from moqt.session import events
    from moqt.session.access.authorization import AuthToken
    from moqt.session.config import SessionConfig
    from moqt.session.core import Session
    from moqt.session.request.request_goaway import ServedRequest
    from moqt.session.stats import SessionStats
    from moqt.types import FullTrackName, TrackNamespace
    from moqt.wire.options import SetupOptions

    class SessionKeeper(Protocol):
        """Who made a session and holds what it runs on."""

        def session_established(self, session: MoqtSession) -> None:
            """Both SETUPs are done."""

        def session_finished(self, session: MoqtSession) -> None:
            """Nothing more will be sent: its share of the socket is free."""


class MoqtSession(SessionVerbs):
    """A session of `connect` or `serve`. Everything runs on the thread of its event loop.

    Each request is an object of its own; losing the session ends them all with SessionClosed. No
    method but those marked `async` waits.
    """

    def __init__(
        self,
        session: Session,
        driver: Driver,
        *,
        config: SessionConfig,
        takes_offers: bool,
        keeper: SessionKeeper,
    ) -> None:
        self.config = config
        self._session = session
        self._driver = driver
        self._desk = RequestDesk(
            session,
            driver,
            config=config,
            takes_offers=takes_offers,
            established=partial(keeper.session_established, self),
            finished=partial(keeper.session_finished, self),
        )
        driver.attach(session, self._desk)

    def __repr__(self) -> str:
        state = "closed" if self.is_closed else "open" if self._desk.is_established else "opening"
        return f"<MoqtSession {self.remote_address} {state}>"

    # --- queries ---

    @property
    def is_established(self) -> bool:
        """Whether both SETUPs are done."""
        return self._desk.is_established

    @property
    def is_closed(self) -> bool:
        """Whether the session is over."""
        return self._desk.ended is not None

    @property
    def end(self) -> events.SessionEnded | None:
        """How the session ended; None while it lasts."""
        return self._desk.ended

    @property
    def peer_options(self) -> SetupOptions | None:
        """What the peer announced; None before its SETUP."""
        return self._session.peer_options

    @property
    def own_options(self) -> SetupOptions:
        """What we announced."""
        return self._session.own_options

    @property
    def stats(self) -> SessionStats:
        """Counters: cheap to read, shared with the session."""
        return self._session.stats

    @property
    def goaway_received(self) -> events.GoawayReceived | None:
        """Set when the peer asked to move the session elsewhere (MOQT-22 6.6.1)."""
        return self._desk.goaway

    @property
    def accepted_namespaces(self) -> frozenset[TrackNamespace]:
        """The peer's PUBLISH_NAMESPACE that we accepted and neither side has ended."""
        return frozenset(
            request.namespace
            for request in self._desk.requests.values()
            if isinstance(request, AcceptedNamespace)
        )

    @property
    def remote_address(self) -> str:
        """The peer's address as host:port, for messages."""
        address = self._driver.connection.get_peer_address()
        if address is None:
            return "unknown"
        host, port = address[0], address[1]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    @property
    def connection_info(self) -> ConnectionInfo:
        """What the QUIC and TLS handshakes settled."""
        return connection_info(self._driver)

    @property
    def connection_stats(self) -> ConnectionStats:
        """What QUIC sent, received and lost so far, and how it fares now: a new value each time."""
        return connection_stats(self._driver)

    # --- the end ---

    def goaway(
        self, uri: str = "", *, timeout_ms: int | None = None, request_id: int | None = None
    ) -> None:
        """Ask the peer to move to `uri` (empty: the same one) and to close (MOQT-22 6.6.1).

        `request_id`: only that request is to be made again there, one of ours or of
        `served_requests`; when the time is over it is reset with GOING_AWAY.

        Raises: LocalProtocolError for what is no moqt:// address: the scheme stays (MOQT-22 9.2).
        """
        self.raise_if_closed()
        if uri:
            try:
                MoqtUri.parse(uri)
            except ValueError as error:
                raise errors.LocalProtocolError(f"GOAWAY: New Session URI: {error}") from error
        self._session.goaway(uri, timeout_ms, request_id=request_id, now=time.monotonic())
        self._driver.wake()

    def served_requests(self, name: FullTrackName | None = None) -> tuple[ServedRequest, ...]:
        """Return the peer's subscriptions and fetches that we serve, of one track or of all."""
        return self._session.served_requests(name)

    async def close(
        self, code: SessionErrorCode = SessionErrorCode.NO_ERROR, reason: str = ""
    ) -> None:
        """Close the session and its connection.

        CONNECTION_CLOSE has left when this waits; it waits `close_linger_s` at most, to repeat it.
        Cancelled: the session is closed nevertheless.
        """
        self.close_now(code, reason)
        await self._driver.wait_finished()

    def close_now(
        self, code: SessionErrorCode = SessionErrorCode.NO_ERROR, reason: str = ""
    ) -> None:
        """Close without waiting: CONNECTION_CLOSE has left when this returns."""
        if not self._session.is_closed:
            self._session.close(code, reason, now=time.monotonic())
        self._driver.pump_now()

    def abort(self) -> None:
        """Drop session and connection at once: the peer isn't told, nothing of ours is left."""
        self._driver.abort()

    async def wait_finished(self) -> None:
        """Wait until the connection has nothing more to send, after its end."""
        await self._driver.wait_finished()

    async def wait_closed(self) -> events.SessionEnded:
        """Wait until the session is over and return how it ended. Cancelling leaves no trace."""
        while self._desk.ended is None:
            await self._desk.signal.wait()
        return self._desk.ended

    async def wait_goaway(self) -> events.GoawayReceived | None:
        """Wait until the peer asks to move the session; None: it is over, and that was not asked.

        Cancelling leaves no trace.
        """
        while self._desk.goaway is None and self._desk.ended is None:
            await self._desk.signal.wait()
        return self._desk.goaway

    async def wait_established(self) -> None:
        """Wait until both SETUPs are done. Raises: SessionClosed. Cancelling leaves no trace."""
        while not self._desk.is_established:
            self.raise_if_closed()
            await self._desk.signal.wait()

    def raise_if_closed(self) -> None:
        """Raise SessionClosed when the session is over."""
        self._desk.raise_if_closed()

    def drop_token(self, token: AuthToken) -> None:
        """The application is done with a token: the peer is asked to forget it, by and by."""
        self._session.drop_token(token)
