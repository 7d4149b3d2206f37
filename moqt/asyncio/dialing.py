"""How an application's sessions are made, and who among its peers is trusted with what."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from moqt.asyncio.client import connect
from moqt.asyncio.config import TransportConfig
from moqt.asyncio.token_scope import TokenScope
from moqt.tls import load_trust

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from contextlib import AbstractAsyncContextManager

    from moqt.asyncio.session import MoqtSession
    from moqt.session.access.authorization import AuthToken
    from moqt.session.config import SessionConfig
    from moqt.session.publish.directory import TrackDirectory
    from moqt.tls import Pem
    from moqt.uri import MoqtUri

__all__ = ["dialer"]


def dialer(
    home: MoqtUri,
    *,
    config: SessionConfig | None = None,
    transport_config: TransportConfig | None = None,
    ca: Pem | None = None,
    insecure: bool = False,
    server_name: str | None = None,
    directory: TrackDirectory | None = None,
    tokens: Sequence[AuthToken] = (),
    request_tokens: Sequence[AuthToken] = (),
    token_scope: TokenScope | None = None,
    trusted_hosts: Collection[str] = (),
    later_timeout_s: float | None = None,
) -> Callable[[MoqtUri], AbstractAsyncContextManager[MoqtSession]]:
    """Return how the sessions of one application are made, wherever a peer sends it.

    Trust is that of `connect`, with three exceptions. `insecure` holds for the host of `home` and
    for `trusted_hosts` alone: those in lower case that the application named itself; they are read
    at each call, so there may come more. A peer that nobody verified must not be able to name
    another host that nobody verifies; there, the certificate has to hold against `ca`, or the
    public ones. `server_name` is for the host of `home`, tokens are for `token_scope`; None: for
    the authority of `home` alone, host and port.

    `later_timeout_s` replaces `handshake_timeout_s` for all sessions but the first.
    Raises: ValueError and OSError for `ca`, as `connect`; ValueError for a timeout of 0.
    """
    home_host = home.host.lower()
    scope = token_scope or TokenScope(home)
    trust = None if ca is None else load_trust(ca)  # once: the file may change meanwhile
    timing = later = transport_config or TransportConfig()
    if later_timeout_s is not None:
        later = replace(later, handshake_timeout_s=later_timeout_s)

    def dial(uri: MoqtUri) -> AbstractAsyncContextManager[MoqtSession]:
        nonlocal timing
        host = uri.host.lower()
        sees_tokens = scope.covers(uri)
        session = connect(
            str(uri),
            config=config,
            transport_config=timing,
            ca=trust,
            insecure=insecure and (host == home_host or host in trusted_hosts),
            server_name=server_name if host == home_host else None,
            directory=directory,
            tokens=tokens if sees_tokens else (),
            request_tokens=request_tokens if sees_tokens else (),
        )
        timing = later
        return session

    return dial
