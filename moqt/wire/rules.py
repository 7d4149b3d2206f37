"""Rules on a message that depend on more than its octets: its request, its receiver's role.

Each function raises RemoteProtocolError with the code that the session is closed with.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import TYPE_CHECKING

from moqt.codes import SessionErrorCode
from moqt.errors import RemoteProtocolError
from moqt.wire import messages as m
from moqt.wire.cursor import malformed
from moqt.wire.params import Scope, check_scope
from moqt.wire.tokens import AliasType

if TYPE_CHECKING:
    from moqt.types import Location
    from moqt.wire.messages import Message
    from moqt.wire.options import SetupOptions

__all__ = [
    "REQUEST_KINDS",
    "RequestKind",
    "request_kind",
    "validate_fetch_ok",
    "validate_goaway",
    "validate_request_error",
    "validate_request_ok",
    "validate_request_update",
    "validate_setup",
]


class RequestKind(Enum):
    """The seven openers of a request stream, and what else a REQUEST_OK answers (MOQT-22 6.4.2)."""

    SUBSCRIBE = "SUBSCRIBE"
    PUBLISH = "PUBLISH"
    FETCH = "FETCH"
    TRACK_STATUS = "TRACK_STATUS"
    PUBLISH_NAMESPACE = "PUBLISH_NAMESPACE"
    SUBSCRIBE_NAMESPACE = "SUBSCRIBE_NAMESPACE"
    SUBSCRIBE_TRACKS = "SUBSCRIBE_TRACKS"
    REQUEST_UPDATE = "REQUEST_UPDATE"

    @property
    def is_about_namespace(self) -> bool:
        """Whether the request names a namespace or prefix and no track."""
        return self in _ABOUT_NAMESPACE


_ABOUT_NAMESPACE = frozenset(
    {
        RequestKind.PUBLISH_NAMESPACE,
        RequestKind.SUBSCRIBE_NAMESPACE,
        RequestKind.SUBSCRIBE_TRACKS,
    }
)

REQUEST_KINDS: dict[type[Message], RequestKind] = {
    m.Subscribe: RequestKind.SUBSCRIBE,
    m.Publish: RequestKind.PUBLISH,
    m.Fetch: RequestKind.FETCH,
    m.TrackStatus: RequestKind.TRACK_STATUS,
    m.PublishNamespace: RequestKind.PUBLISH_NAMESPACE,
    m.SubscribeNamespace: RequestKind.SUBSCRIBE_NAMESPACE,
    m.SubscribeTracks: RequestKind.SUBSCRIBE_TRACKS,
}
"""The messages that may open a request stream (MOQT-22 6.4.2)."""

_OK_SCOPES = {
    RequestKind.PUBLISH: Scope.PUBLISH_OK,
    RequestKind.TRACK_STATUS: Scope.TRACK_STATUS_OK,
    RequestKind.PUBLISH_NAMESPACE: Scope.NAMESPACE_OK,
    RequestKind.SUBSCRIBE_NAMESPACE: Scope.NAMESPACE_OK,
    RequestKind.SUBSCRIBE_TRACKS: Scope.NAMESPACE_OK,
    RequestKind.REQUEST_UPDATE: Scope.REQUEST_UPDATE_OK,
}
"""Not SUBSCRIBE and FETCH: they have an OK of their own."""

_MAY_HAVE_PROPERTIES = frozenset({RequestKind.TRACK_STATUS, RequestKind.SUBSCRIBE_TRACKS})
"""Properties mean something in TRACK_STATUS_OK only; for SUBSCRIBE_TRACKS_OK nothing forbids them,
so they are ignored there (MOQT-22 9.3)."""

_UPDATE_SCOPES = {
    RequestKind.SUBSCRIBE: Scope.UPDATE_SUBSCRIPTION,
    RequestKind.PUBLISH: Scope.UPDATE_SUBSCRIPTION,
    RequestKind.FETCH: Scope.UPDATE_FETCH,
    RequestKind.PUBLISH_NAMESPACE: Scope.UPDATE_PUBLISH_NAMESPACE,
    RequestKind.SUBSCRIBE_NAMESPACE: Scope.UPDATE_SUBSCRIBE_NAMESPACE,
    RequestKind.SUBSCRIBE_TRACKS: Scope.UPDATE_SUBSCRIBE_TRACKS,
}
"""Not TRACK_STATUS: it cannot be updated."""

_PATH = re.compile(r"(?:/[^?#]*)?(?:\?[^#]*)?")
_AUTHORITY = re.compile(r"(?:[^@/?#]*@)?(?:\[[0-9A-Fa-f:.]+\]|[^:@/?#\[\]]+)(?::[0-9]*)?")
_VISIBLE = re.compile(r"[!-~]*")


def request_kind(message: Message) -> RequestKind:
    """Return which request `message` opens; RemoteProtocolError when it opens none."""
    kind = REQUEST_KINDS.get(type(message))
    if kind is None:
        raise malformed(f"{message.TYPE.name} cannot open a request stream")
    return kind


def validate_request_ok(message: m.RequestOk, answers: RequestKind) -> None:
    """Check a REQUEST_OK against the message that it answers (MOQT-22 9.3)."""
    scope = _OK_SCOPES.get(answers)
    if scope is None:
        raise malformed(f"REQUEST_OK cannot answer {answers.value}")
    fault = check_scope(message.parameters, scope)
    if fault is not None:
        raise malformed(f"REQUEST_OK to {answers.value}: {fault}")
    if message.properties.pairs and answers not in _MAY_HAVE_PROPERTIES:
        raise malformed(f"REQUEST_OK to {answers.value} has Track Properties")


def validate_request_update(message: m.RequestUpdate, updates: RequestKind) -> None:
    """Check a REQUEST_UPDATE against the request that it updates (MOQT-22 9.5)."""
    scope = _UPDATE_SCOPES.get(updates)
    if scope is None:
        raise malformed(f"REQUEST_UPDATE cannot update {updates.value}")
    fault = check_scope(message.parameters, scope)
    if fault is not None:
        raise malformed(f"REQUEST_UPDATE: {fault}")


def validate_request_error(
    message: m.RequestError, answers: RequestKind, *, receiver_is_server: bool
) -> None:
    """Check a REQUEST_ERROR's Redirect against its request and receiver (MOQT-22 9.4)."""
    redirect = message.redirect
    if redirect is None:
        return
    if receiver_is_server and redirect.connect_uri:
        raise malformed("REQUEST_ERROR: a client sent a Connect URI")
    if answers.is_about_namespace and redirect.target.name:
        raise malformed(f"REQUEST_ERROR to {answers.value}: Redirect has a Track Name")


def validate_goaway(message: m.Goaway, *, receiver_is_server: bool) -> None:
    """Check GOAWAY against its receiver: a server is sent no URI (MOQT-22 9.2)."""
    if receiver_is_server and message.new_session_uri:
        raise malformed("GOAWAY: a client sent a New Session URI")


def validate_fetch_ok(message: m.FetchOk, start: Location) -> None:
    """Check FETCH_OK against where the fetch starts (MOQT-22 9.12)."""
    if message.end < start:
        raise malformed(f"FETCH_OK ends at {message.end}, before the start {start}")


def validate_setup(options: SetupOptions, *, receiver_is_server: bool) -> None:
    """Check SETUP against its receiver's role (MOQT-22 9.1).

    An absent PATH or AUTHORITY passes: the draft gives no reaction for it. Whether the server
    serves the path and the authority is not judged here.
    """
    if not receiver_is_server:
        if options.path is not None:
            raise RemoteProtocolError(SessionErrorCode.INVALID_PATH, "a server sent PATH")
        if options.authority is not None:
            raise RemoteProtocolError(SessionErrorCode.INVALID_AUTHORITY, "a server sent AUTHORITY")
        return
    path, authority = options.path, options.authority
    if path is not None and not (_PATH.fullmatch(path) and _VISIBLE.fullmatch(path)):
        raise RemoteProtocolError(
            SessionErrorCode.MALFORMED_PATH, "PATH is not a URI path with an optional query"
        )
    if authority is not None and not (
        _AUTHORITY.fullmatch(authority) and _VISIBLE.fullmatch(authority)
    ):
        raise RemoteProtocolError(
            SessionErrorCode.MALFORMED_AUTHORITY, "AUTHORITY is not a URI authority with a host"
        )
    for token in options.authorization_tokens:
        if token.alias_type in (AliasType.DELETE, AliasType.USE_ALIAS):
            raise malformed(f"SETUP: token {token.alias_type.name} sent to a server")
