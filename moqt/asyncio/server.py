"""`serve`: MOQT sessions of many clients over one UDP socket."""

from __future__ import annotations

import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from moqt.asyncio.config import TransportConfig
from moqt.asyncio.connection import quic_configuration
from moqt.asyncio.listener import Listener
from moqt.asyncio.requests import Signal
from moqt.asyncio.session import MoqtSession
from moqt.codes import SessionErrorCode
from moqt.session.access.authorization import Admission
from moqt.session.config import Role, SessionConfig
from moqt.session.core import Session
from moqt.tls import load_identity

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection

    from aioquic.quic.configuration import QuicConfiguration

    from moqt.asyncio.binding import Driver
    from moqt.session.access.authorization import TokenPolicy
    from moqt.session.publish.directory import TrackDirectory
    from moqt.tls import Pem


@asynccontextmanager
async def serve(
    host: str,
    port: int,
    *,
    certificate: Pem,
    private_key: Pem,
    directory: TrackDirectory | None = None,
    config: SessionConfig | None = None,
    transport_config: TransportConfig | None = None,
    takes_offers: bool = False,
    token_policy: TokenPolicy | None = None,
    paths: Collection[str] | Callable[[str], bool] | None = None,
    authorities: Collection[str] | Callable[[str], bool] | None = None,
) -> AsyncGenerator[Server, None]:
    """Listen on `host` (a name, an address, or "" for all) and `port` (0: any free one).

    `certificate` (with its chain) and `private_key`: paths or PEM. `directory`: the tracks and
    namespaces that all sessions answer from. `takes_offers`: as in `connect`.
    `token_policy` judges sessions and what they ask for; None: everyone may have all. `paths` and
    `authorities`: what this server answers for, others are closed with INVALID_PATH or
    INVALID_AUTHORITY; see `Admission`.

    Leaving it closes all sessions with NO_ERROR. Cancelled anywhere: the same, without waiting.
    Raises: OSError when the address can't be had, ValueError for a bad certificate or key.
    """
    server = Server(
        config=config or SessionConfig(),
        transport_config=transport_config or TransportConfig(),
        certificate=certificate,
        private_key=private_key,
        directory=directory,
        takes_offers=takes_offers,
        admission=Admission(paths=paths, authorities=authorities, token_policy=token_policy),
    )
    await server._listen(host, port)
    try:
        yield server
    finally:
        try:
            await server.close()
        finally:
            server.abort()


class Server:
    """What `serve` yields. `async for session in server` yields each session that comes to be."""

    def __init__(
        self,
        *,
        config: SessionConfig,
        transport_config: TransportConfig,
        certificate: Pem,
        private_key: Pem,
        directory: TrackDirectory | None,
        takes_offers: bool,
        admission: Admission,
    ) -> None:
        identity = load_identity(certificate, private_key)
        configuration = quic_configuration(transport_config, is_client=False)
        configuration.certificate = identity.certificate
        configuration.certificate_chain = list(identity.chain)
        configuration.private_key = identity.private_key
        self._reception = _Reception(
            configuration,
            transport_config,
            config=config,
            directory=directory,
            takes_offers=takes_offers,
            admission=admission,
        )
        self._is_closed = False

    # --- queries ---

    @property
    def address(self) -> tuple[str, int]:
        """The host and port listened on."""
        return self._reception.listener.address

    @property
    def port(self) -> int:
        """The port listened on."""
        return self.address[1]

    @property
    def sessions(self) -> tuple[MoqtSession, ...]:
        """The sessions that are established and not over, oldest first."""
        return tuple(s for s in self._reception.established if not s.is_closed)

    async def __aiter__(self) -> AsyncIterator[MoqtSession]:
        """Yield the sessions there are, then each new one; one that is over by then is left out."""
        seen: set[MoqtSession] = set()
        while not self._is_closed:
            seen.intersection_update(self._reception.established)
            fresh = [s for s in self.sessions if s not in seen]
            for session in fresh:
                seen.add(session)
                yield session
            if not fresh:
                await self._reception.signal.wait()

    # --- life ---

    async def _listen(self, host: str, port: int) -> None:
        await self._reception.listener.listen(host, port)

    def goaway(self, uri: str = "", *, timeout_ms: int | None = None) -> None:
        """Ask all clients to move to `uri` (MOQT-22 6.6.1); new ones are still answered."""
        for session in self.sessions:
            session.goaway(uri, timeout_ms=timeout_ms)

    async def close(
        self, code: SessionErrorCode = SessionErrorCode.NO_ERROR, reason: str = ""
    ) -> None:
        """Close all sessions, then the socket; it takes `close_linger_s` at most.

        Cancelled: the sessions are closed; `abort` frees the socket.
        """
        self._is_closed = True
        # A client that comes now would be dropped unheard.
        self._reception.listener.stop_accepting()
        self._reception.signal.fire()
        sessions = list(self._reception.driver_of)
        for session in sessions:
            session.close_now(code, reason)
        for session in sessions:
            await session.wait_finished()
        self.abort()

    def abort(self) -> None:
        """Drop everything at once; clients that were not told find out by their timers."""
        self._is_closed = True
        self._reception.signal.fire()
        self._reception.listener.close()


class _Reception:
    """Gives each connection its session, and knows the sessions that there are."""

    def __init__(
        self,
        configuration: QuicConfiguration,
        transport_config: TransportConfig,
        *,
        config: SessionConfig,
        directory: TrackDirectory | None,
        takes_offers: bool,
        admission: Admission,
    ) -> None:
        self.listener = Listener(configuration, transport_config, self)
        self.driver_of: dict[MoqtSession, Driver] = {}
        self.established: dict[MoqtSession, None] = {}
        self.signal = Signal()
        """Fires when a session is established, and when the server closes."""
        self._config = config
        self._directory = directory
        self._takes_offers = takes_offers
        self._admission = admission

    def on_connection(self, driver: Driver) -> None:
        """Give a new connection its session."""
        session = Session(
            role=Role.SERVER,
            transport=driver.transport,
            config=self._config,
            directory=self._directory,
            admission=self._admission,
            clock=time.monotonic,
        )
        moqt_session = MoqtSession(
            session, driver, config=self._config, takes_offers=self._takes_offers, keeper=self
        )
        self.driver_of[moqt_session] = driver

    def session_established(self, session: MoqtSession) -> None:
        """Both SETUPs are done."""
        self.established[session] = None
        self.signal.fire()

    def session_finished(self, session: MoqtSession) -> None:
        """Forget the connection."""
        self.established.pop(session, None)
        self.listener.forget(self.driver_of.pop(session))
