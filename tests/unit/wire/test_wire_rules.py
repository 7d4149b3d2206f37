"""moqt.wire.rules: what depends on the request and on who receives."""

from __future__ import annotations

import pytest

from moqt.codes import RequestErrorCode, SessionErrorCode
from moqt.errors import RemoteProtocolError
from moqt.types import FullTrackName, Location, TrackNamespace
from moqt.wire import messages as m
from moqt.wire.options import SetupOptions
from moqt.wire.params import NO_PARAMETERS, Parameters
from moqt.wire.properties import TrackProperties
from moqt.wire.rules import (
    REQUEST_KINDS,
    RequestKind,
    request_kind,
    validate_fetch_ok,
    validate_goaway,
    validate_request_error,
    validate_request_ok,
    validate_request_update,
    validate_setup,
)
from moqt.wire.tokens import AuthorizationToken

K = RequestKind
NAMESPACE_KINDS = {K.PUBLISH_NAMESPACE, K.SUBSCRIBE_NAMESPACE, K.SUBSCRIBE_TRACKS}
EXPIRES = Parameters(expires_ms=5)
LARGEST = Parameters(largest=Location(1, 1))
TRACK = FullTrackName(TrackNamespace.of("a"), b"t")


def accepts(check: object, *arguments: object, **named: object) -> bool:
    """Whether the rule holds; a broken one has to be PROTOCOL_VIOLATION."""
    assert callable(check)
    try:
        check(*arguments, **named)
    except RemoteProtocolError as error:
        if error.code is not SessionErrorCode.PROTOCOL_VIOLATION:
            raise
        return False
    return True


def test_seven_messages_open_a_request() -> None:
    """MOQT-22 6.4.2."""
    assert set(REQUEST_KINDS.values()) == set(K) - {K.REQUEST_UPDATE}
    assert request_kind(m.Fetch(0, TRACK)) is K.FETCH
    for message in (m.RequestOk(), m.Goaway(), m.Setup(), m.RequestUpdate(2)):
        assert not accepts(request_kind, message)


@pytest.mark.parametrize("kind", RequestKind)
def test_what_a_request_ok_may_carry(kind: RequestKind) -> None:
    """MOQT-22 9.3, 9.20; 9.3#1."""

    def ok(parameters: Parameters, properties: TrackProperties | None = None) -> bool:
        message = m.RequestOk(parameters, properties or TrackProperties())
        return accepts(validate_request_ok, message, kind)

    has_own_ok = kind in (K.SUBSCRIBE, K.FETCH)
    assert ok(NO_PARAMETERS) == (not has_own_ok)
    may_expire = {K.PUBLISH, K.REQUEST_UPDATE, K.TRACK_STATUS, *NAMESPACE_KINDS}
    assert ok(EXPIRES) == (kind in may_expire)
    assert ok(LARGEST) == (kind in {K.TRACK_STATUS, K.REQUEST_UPDATE})
    some = TrackProperties.of(dynamic_groups=True)
    assert ok(NO_PARAMETERS, some) == (kind in {K.TRACK_STATUS, K.SUBSCRIBE_TRACKS})


@pytest.mark.parametrize("kind", RequestKind)
def test_what_a_request_update_may_carry(kind: RequestKind) -> None:
    """MOQT-22 9.5, 9.20; 9.5#1: TRACK_STATUS cannot be updated at all."""

    def ok(parameters: Parameters) -> bool:
        return accepts(validate_request_update, m.RequestUpdate(2, parameters), kind)

    subscription = kind in {K.SUBSCRIBE, K.PUBLISH}
    assert ok(NO_PARAMETERS) == (kind not in {K.TRACK_STATUS, K.REQUEST_UPDATE})
    assert ok(Parameters(forward=True)) == (subscription or kind is K.SUBSCRIBE_TRACKS)
    assert ok(Parameters(subscriber_priority=1)) == (subscription or kind is K.FETCH)
    prefix = Parameters(namespace_prefix=TrackNamespace())
    assert ok(prefix) == (kind in {K.SUBSCRIBE_NAMESPACE, K.SUBSCRIBE_TRACKS})


def redirect(uri: str, name: bytes) -> m.RequestError:
    target = FullTrackName(TRACK.namespace, name)
    return m.RequestError(code=RequestErrorCode.REDIRECT, redirect=m.Redirect(uri, target))


@pytest.mark.parametrize("kind", RequestKind)
def test_redirects(kind: RequestKind) -> None:
    """9.4.1#1, 9.4.1#2."""

    def ok(message: m.RequestError, *, server: bool) -> bool:
        return accepts(validate_request_error, message, kind, receiver_is_server=server)

    plain = m.RequestError(code=RequestErrorCode.TIMEOUT)
    assert ok(plain, server=True)
    assert ok(redirect("moqt://b", b""), server=False)
    assert not ok(redirect("moqt://b", b""), server=True)
    assert ok(redirect("", b""), server=True)
    assert ok(redirect("", b"t"), server=False) == (kind not in NAMESPACE_KINDS)
    assert kind.is_about_namespace == (kind in NAMESPACE_KINDS)


def test_a_server_gets_no_uri_in_goaway() -> None:
    """9.2#2."""
    assert accepts(validate_goaway, m.Goaway("moqt://b"), receiver_is_server=False)
    assert accepts(validate_goaway, m.Goaway(""), receiver_is_server=True)
    assert not accepts(validate_goaway, m.Goaway("moqt://b"), receiver_is_server=True)


def test_a_fetch_does_not_end_before_it_starts() -> None:
    """9.12#1."""
    ends = m.FetchOk(end_of_track=False, end=Location(3, 3))
    assert accepts(validate_fetch_ok, ends, Location(3, 3))
    assert not accepts(validate_fetch_ok, ends, Location(3, 4))


def setup_error(options: SetupOptions, *, server: bool) -> str | None:
    try:
        validate_setup(options, receiver_is_server=server)
    except RemoteProtocolError as error:
        return error.code.name
    return None


def test_a_server_sends_neither_path_nor_authority() -> None:
    """9.1.1#3, 9.1.2#3."""
    assert setup_error(SetupOptions(path=""), server=False) == "INVALID_PATH"
    assert setup_error(SetupOptions(authority="h"), server=False) == "INVALID_AUTHORITY"
    assert setup_error(SetupOptions(implementation="x"), server=False) is None
    assert setup_error(SetupOptions(), server=True) is None


@pytest.mark.parametrize("path", ["", "/", "/kv", "/kv?site=a", "?", "/a/b?x", "/a?b?c"])
def test_sound_paths(path: str) -> None:
    assert setup_error(SetupOptions(path=path), server=True) is None


@pytest.mark.parametrize("path", ["kv", "/k v", "/kv#f", "/é", "/a\n"])
def test_malformed_paths(path: str) -> None:
    """9.1.2#4."""
    assert setup_error(SetupOptions(path=path), server=True) == "MALFORMED_PATH"


@pytest.mark.parametrize("authority", ["h", "h:443", "h:", "[::1]:4433", "u@h", "1.2.3.4"])
def test_sound_authorities(authority: str) -> None:
    assert setup_error(SetupOptions(authority=authority), server=True) is None


@pytest.mark.parametrize("authority", ["", ":443", "a b", "host:x", "h/p", "[::1", "a:1:2", "h\n"])
def test_malformed_authorities(authority: str) -> None:
    """9.1.1#4."""
    assert setup_error(SetupOptions(authority=authority), server=True) == "MALFORMED_AUTHORITY"


def test_tokens_in_setup() -> None:
    """9.1.4#3: the draft makes a server close for them, and says nothing of a client."""
    for token, code in (
        (AuthorizationToken.delete(1), "PROTOCOL_VIOLATION"),
        (AuthorizationToken.use_alias(1), "PROTOCOL_VIOLATION"),
        (AuthorizationToken.register(1, 0, b"x"), None),
        (AuthorizationToken.use_value(0, b"x"), None),
    ):
        options = SetupOptions(authorization_tokens=(token,))
        assert setup_error(options, server=True) == code
        assert setup_error(options, server=False) is None
