"""`connect`: one MOQT session over a QUIC connection of its own."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
import warnings
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from aioquic.tls import AlertDescription

from moqt import errors
from moqt.asyncio.binding import Driver
from moqt.asyncio.bulk.connection import make_connection
from moqt.asyncio.config import TransportConfig
from moqt.asyncio.connection import quic_configuration
from moqt.asyncio.endpoint import UdpEndpoint, udp_socket
from moqt.asyncio.info import ConnectProgress
from moqt.asyncio.session import MoqtSession
from moqt.codes import SessionErrorCode
from moqt.errors import ConnectProblem
from moqt.session.access.authorization import Admission, checked_tokens
from moqt.session.config import Role, SessionConfig
from moqt.session.core import Session
from moqt.tls import load_trust
from moqt.uri import MoqtUri
from moqt.wire.draft import ALPN

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence
    from contextlib import AbstractAsyncContextManager

    from aioquic.quic.configuration import QuicConfiguration

    from moqt.asyncio.ending import Loss
    from moqt.asyncio.endpoint import Address
    from moqt.session.access.authorization import AuthToken, TokenPolicy
    from moqt.session.publish.directory import TrackDirectory
    from moqt.tls import Pem

_CERTIFICATE_ALERTS = frozenset(
    {
        AlertDescription.bad_certificate,
        AlertDescription.certificate_expired,
        AlertDescription.certificate_unknown,
        AlertDescription.unsupported_certificate,
    }
)


class InsecureConnectionWarning(UserWarning):
    """The server's certificate isn't verified: anyone on the path can read and change all."""


def connect(
    url: str,
    *,
    config: SessionConfig | None = None,
    transport_config: TransportConfig | None = None,
    ca: Pem | None = None,
    insecure: bool = False,
    server_name: str | None = None,
    directory: TrackDirectory | None = None,
    takes_offers: bool = False,
    tokens: Sequence[AuthToken] = (),
    request_tokens: Sequence[AuthToken] = (),
    token_policy: TokenPolicy | None = None,
    progress: ConnectProgress | None = None,
) -> AbstractAsyncContextManager[MoqtSession]:
    """Connect to a moqt:// address; the context is the session, with both SETUPs done.

    `ca`: the certificates to trust, a path or PEM; None: the public ones. `insecure` trusts anyone,
    and warns. `server_name` replaces the URL's host in SNI and in the certificate's check.
    `directory`: the tracks and namespaces that the session answers from. `takes_offers`: the peer's
    PUBLISH and PUBLISH_NAMESPACE come by `MoqtSession.offers`, rather than being refused.
    `tokens` authorize the session, `request_tokens` each request that brings none of its own.
    `token_policy` judges what the peer asks for; None: it may have all. `progress` is told how far
    connecting has come.

    Leaving it closes the session with NO_ERROR. Cancelled anywhere: the connection is closed, and
    no socket, timer or task is left.

    Raises: ValueError for a malformed URL or certificate, OSError when its file can't be read; on
    entry ConnectFailed and TimedOut, both with host:port, and SessionClosed when the peer refused
    the session.
    """
    uri = MoqtUri.parse(url)
    if insecure:
        warnings.warn(
            f"the certificate of {uri.authority} is not verified (insecure=True)",
            InsecureConnectionWarning,
            stacklevel=2,
        )
    return _dialed(
        _Dialer(
            uri,
            config=config or SessionConfig(),
            transport_config=transport_config or TransportConfig(),
            ca=ca,
            insecure=insecure,
            server_name=server_name,
            directory=directory,
            takes_offers=takes_offers,
            tokens=tokens,
            request_tokens=request_tokens,
            token_policy=token_policy,
            progress=progress or ConnectProgress(),
        )
    )


@asynccontextmanager
async def _dialed(dialer: _Dialer) -> AsyncGenerator[MoqtSession, None]:
    session = await dialer.dial()
    try:
        yield session
    finally:
        try:
            await session.close()
        finally:
            session.abort()


class _SocketKeeper:
    """A client's session has its socket for itself."""

    def __init__(self, endpoint: UdpEndpoint) -> None:
        self._endpoint = endpoint

    def session_established(self, session: MoqtSession) -> None:
        """Nobody else needs to know."""

    def session_finished(self, session: MoqtSession) -> None:
        """Close the socket."""
        self._endpoint.close()


class _Dialer:
    """Tries the addresses of one URL in turn."""

    def __init__(
        self,
        uri: MoqtUri,
        *,
        config: SessionConfig,
        transport_config: TransportConfig,
        ca: Pem | None,
        insecure: bool,
        server_name: str | None,
        directory: TrackDirectory | None,
        takes_offers: bool,
        tokens: Sequence[AuthToken],
        request_tokens: Sequence[AuthToken],
        token_policy: TokenPolicy | None,
        progress: ConnectProgress,
    ) -> None:
        self._uri = uri
        self._address = f"[{uri.host}]:{uri.port}" if ":" in uri.host else f"{uri.host}:{uri.port}"
        setup_timeout_s = min(config.setup_timeout_s, transport_config.handshake_timeout_s)
        self._config = replace(config, setup_timeout_s=setup_timeout_s)
        self._transport_config = transport_config
        self._trust = load_trust(ca) if ca is not None and not insecure else None
        self._insecure = insecure
        self._server_name = server_name or uri.host
        self._directory = directory
        self._takes_offers = takes_offers
        self._tokens = checked_tokens(tokens)
        self._request_tokens = checked_tokens(request_tokens)
        self._admission = Admission(token_policy=token_policy)
        self._progress = progress

    async def dial(self) -> MoqtSession:
        deadline = time.monotonic() + self._transport_config.handshake_timeout_s
        candidates = await self._resolve()
        failure: errors.MoqtError = errors.ConnectFailed(
            self._address, "the name has no address", ConnectProblem.NAME
        )
        for position, (family, address) in enumerate(candidates):
            share_s = (deadline - time.monotonic()) / (len(candidates) - position)
            try:
                return await self._dial_one(family, address, max(share_s, 0.001))
            except _Unreachable as error:  # the next address may do
                failure = errors.ConnectFailed(error.address, error.reason, error.problem)
            except _NoAnswer as error:
                failure = errors.TimedOut(f"connecting to {self._address}", error.after_s)
        raise failure

    async def _resolve(self) -> list[tuple[int, Address]]:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._transport_config.handshake_timeout_s):
                found = await loop.getaddrinfo(
                    self._uri.host, self._uri.port, type=socket.SOCK_DGRAM
                )
        except TimeoutError:
            raise errors.TimedOut(
                f"resolving {self._uri.host}", self._transport_config.handshake_timeout_s
            ) from None
        except OSError as error:
            reason = error.strerror or str(error)
            raise errors.ConnectFailed(self._address, reason, ConnectProblem.NAME) from error
        except UnicodeError as error:  # such as "a..b": IDNA cannot write it
            reason = f"not a host name: {error}"
            raise errors.ConnectFailed(self._address, reason, ConnectProblem.NAME) from error
        return list(dict.fromkeys((family, address) for family, _, _, _, address in found))

    async def _dial_one(self, family: int, address: Address, timeout_s: float) -> MoqtSession:
        connection = make_connection(
            configuration=self._quic_configuration(), transport_config=self._transport_config
        )
        endpoint = UdpEndpoint(self._connected_socket(family, address), remote=address)
        driver = Driver(connection, endpoint)
        try:
            session = self._session(driver)
        except BaseException:
            endpoint.close()
            raise
        moqt_session = MoqtSession(
            session,
            driver,
            config=self._config,
            takes_offers=self._takes_offers,
            keeper=_SocketKeeper(endpoint),
        )
        self._progress.connection_id = connection.original_destination_connection_id
        is_open = False
        try:
            await endpoint.start(driver)
            driver.connect(address, timeout_s=timeout_s)
            await moqt_session.wait_established()
            is_open = True
        except errors.SessionClosed as error:
            if driver.loss is not None and not driver.is_ready:
                raise self._explain(driver.loss, timeout_s) from error
            if error.code is SessionErrorCode.CONTROL_MESSAGE_TIMEOUT and not error.by_peer:
                what = f"SETUP of {self._address}, whose QUIC handshake was done"
                raise errors.TimedOut(what, self._config.setup_timeout_s) from error
            raise  # not the connection failed, but the session
        finally:
            self._progress.is_quic_ready = driver.is_ready
            if not is_open:
                moqt_session.close_now()
                moqt_session.abort()
                endpoint.close()
        return moqt_session

    def _session(self, driver: Driver) -> Session:
        return Session(
            role=Role.CLIENT,
            transport=driver.transport,
            config=self._config,
            directory=self._directory,
            path=self._uri.path_and_query,
            authority=self._uri.authority,
            admission=self._admission,
            session_tokens=self._tokens,
            request_tokens=self._request_tokens,
            clock=time.monotonic,
        )

    def _connected_socket(self, family: int, address: Address) -> socket.socket:
        sock = udp_socket(family, self._transport_config.socket_buffer_octets)
        try:
            sock.connect(address)
        except OSError as error:
            sock.close()
            raise _Unreachable(self._address, error.strerror or str(error)) from error
        return sock

    def _quic_configuration(self) -> QuicConfiguration:
        configuration = quic_configuration(self._transport_config, is_client=True)
        configuration.server_name = self._server_name
        configuration.cadata = self._trust
        configuration.verify_mode = ssl.CERT_NONE if self._insecure else ssl.CERT_REQUIRED
        return configuration

    def _explain(self, loss: Loss, timeout_s: float) -> errors.MoqtError:
        if loss.timed_out:
            return _NoAnswer(f"connecting to {self._address}", timeout_s)
        if loss.alert is AlertDescription.no_application_protocol:
            reason = f"the server does not speak {ALPN}"
            return errors.ConnectFailed(self._address, reason, ConnectProblem.PROTOCOL)
        if loss.alert in _CERTIFICATE_ALERTS and not loss.by_peer:
            problem = ConnectProblem.CERTIFICATE
            if "match" in loss.reason:
                text = f"is not for {self._server_name!r}: connect by a name that it has"
            elif loss.alert is AlertDescription.certificate_expired:
                text = "is for another time"
            else:
                known = "the public CAs" if self._trust is None else "what `ca` names"
                text = f"is not trusted by {known}"
                problem = ConnectProblem.UNTRUSTED
            reason = f"the server's certificate {text} ({loss.reason})"
            return errors.ConnectFailed(self._address, reason, problem)
        if loss.alert is not None:
            return errors.ConnectFailed(self._address, loss.reason, ConnectProblem.HANDSHAKE)
        if loss.is_answered:
            return _Unreachable(self._address, loss.reason, ConnectProblem.HANDSHAKE)
        return _Unreachable(self._address, loss.reason)


class _NoAnswer(errors.TimedOut):
    """This address is silent; another one of the same name might not be."""


class _Unreachable(errors.ConnectFailed):
    """This address doesn't answer; another one of the same name might."""
