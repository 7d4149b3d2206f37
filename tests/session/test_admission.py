"""Whom an endpoint answers: path, authority, the policy's word on a request, and for how long."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from moqt.codes import PublishDoneCode, RequestErrorCode, SessionErrorCode, StreamResetCode
from moqt.session.access.authorization import (
    Admission,
    Allowed,
    AuthToken,
    Denial,
    Denied,
    KnownTokens,
    RequestAccess,
    SessionAccess,
)
from moqt.session.config import Role
from moqt.session.events import (
    NamespaceOffered,
    NamespaceWithdrawn,
    PublicationOffered,
    RequestAccepted,
    RequestRejected,
    SessionEnded,
    SubscriptionEnded,
    SubscriptionEstablished,
    UpdateAccepted,
    UpdateRejected,
)
from moqt.session.publish.directory import TrackDirectory
from moqt.session.publish.source import TrackSource
from moqt.testing import ScriptedPeer, SessionPair
from moqt.types import FullTrackName, TrackNamespace
from moqt.wire.messages import (
    Fetch,
    Publish,
    PublishNamespace,
    RequestError,
    RequestOk,
    RequestUpdate,
    Subscribe,
    SubscribeNamespace,
    SubscribeTracks,
    TrackStatus,
)
from moqt.wire.options import SetupOptions
from moqt.wire.params import NO_PARAMETERS, Parameters
from moqt.wire.rules import RequestKind
from moqt.wire.tokens import AuthorizationToken
from tests.session.receiving import NAME, NAMESPACE, OTHER, one
from tests.session.test_tokens import Recorder

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from moqt.session.request.requests import Opener

TOKEN = AuthToken(5, b"a secret")
WIRE = AuthorizationToken.use_value(5, b"a secret")


def directory() -> TrackDirectory:
    made = TrackDirectory()
    made.add(TrackSource(NAME))
    made.add(TrackSource(OTHER))
    return made


# Path and authority


def server(admission: Admission, options: SetupOptions) -> SessionErrorCode | None:
    """Return the code that a server closes a client with these options with."""
    peer = ScriptedPeer(Role.SERVER, options=options, admission=admission)
    assert peer.session.is_established is (peer.transport.closed is None)
    return peer.transport.closed[0] if peer.transport.closed is not None else None


@pytest.mark.parametrize(
    ("path", "paths", "code"),
    [
        ("/kv", None, None),
        ("/kv", {"/kv", "/other"}, None),
        ("/kv?a=b", {"/kv"}, None),
        ("/kv/", {"/kv"}, SessionErrorCode.INVALID_PATH),
        ("/k", {"/kv"}, SessionErrorCode.INVALID_PATH),
        ("", {"/kv"}, SessionErrorCode.INVALID_PATH),
        (None, {"/kv"}, SessionErrorCode.INVALID_PATH),
        (None, {""}, None),
        ("/kv?a=b", lambda path: path == "/kv?a=b", None),
        ("/kv", lambda path: path == "/kv?a=b", SessionErrorCode.INVALID_PATH),
        ("kv", {"kv"}, SessionErrorCode.MALFORMED_PATH),
        ("/k v", lambda path: True, SessionErrorCode.MALFORMED_PATH),
    ],
)
def test_path(
    path: str | None,
    paths: Collection[str] | Callable[[str], bool] | None,
    code: SessionErrorCode | None,
) -> None:
    """9.1.2#3, 9.1.2#4: syntax comes before what is served."""
    assert server(Admission(paths=paths), SetupOptions(path=path)) is code


@pytest.mark.parametrize(
    ("authority", "authorities", "code"),
    [
        ("host.example:4443", None, None),
        ("host.example:4443", {"Host.Example:4443"}, None),
        ("HOST.example:4443", {"host.example:4443"}, None),
        ("host.example", {"host.example:4443"}, SessionErrorCode.INVALID_AUTHORITY),
        (None, {"host.example"}, SessionErrorCode.INVALID_AUTHORITY),
        ("host.example", lambda authority: authority.startswith("host"), None),
        ("a b", lambda authority: True, SessionErrorCode.MALFORMED_AUTHORITY),
        ("host:x", {"host:x"}, SessionErrorCode.MALFORMED_AUTHORITY),
    ],
)
def test_authority(
    authority: str | None,
    authorities: Collection[str] | Callable[[str], bool] | None,
    code: SessionErrorCode | None,
) -> None:
    """9.1.1#3, 9.1.1#4."""
    options = SetupOptions(authority=authority)
    assert server(Admission(authorities=authorities), options) is code


def test_a_bare_string_is_no_collection() -> None:
    """It would let its own parts in."""
    with pytest.raises(ValueError, match="paths is a str"):
        Admission(paths="/kv")
    with pytest.raises(ValueError, match="authorities is a str"):
        Admission(authorities="host")


# Sessions


@pytest.mark.parametrize("denial", Denial)
def test_a_session_that_is_refused(denial: Denial) -> None:
    policy = Recorder(session_answer=Denied(denial, "go away"))
    pair = SessionPair(server_admission=Admission(token_policy=policy))
    (ended,) = pair.take(Role.CLIENT, SessionEnded)
    assert (ended.code.name, ended.reason, ended.by_peer) == (denial.name, "go away", True)
    access = one(policy.sessions)
    assert (access.path, access.authority, access.tokens) == ("/kv", "host.example", ())


@pytest.mark.parametrize(
    ("tokens", "code"),
    [
        ((), SessionErrorCode.UNAUTHORIZED),
        ((AuthorizationToken.use_value(6, TOKEN.value),), SessionErrorCode.UNAUTHORIZED),
        ((AuthorizationToken.use_value(5, b"a secre"),), SessionErrorCode.UNAUTHORIZED),
        ((AuthorizationToken.use_value(5, b"x"), WIRE), None),
    ],
)
def test_known_tokens_for_the_session(
    tokens: tuple[AuthorizationToken, ...], code: SessionErrorCode | None
) -> None:
    """Requests of a session that was let in need no token of their own."""
    peer = ScriptedPeer(
        Role.SERVER,
        options=SetupOptions(authorization_tokens=tokens),
        admission=Admission(token_policy=KnownTokens([TOKEN], is_for_session=True)),
    )
    assert (peer.transport.closed or (None,))[0] is code
    if code is None:
        peer.send(peer.open_bidi(), PublishNamespace(0, NAMESPACE))
        assert len(peer.take(NamespaceOffered)) == 1


# Requests

OPENERS: list[tuple[RequestKind, FullTrackName | TrackNamespace, Callable[..., Opener]]] = [
    (RequestKind.SUBSCRIBE, NAME, lambda p: Subscribe(0, NAME, p)),
    (RequestKind.FETCH, NAME, lambda p: Fetch(0, NAME, p)),
    (RequestKind.TRACK_STATUS, NAME, lambda p: TrackStatus(0, NAME, p)),
    (RequestKind.PUBLISH, NAME, lambda p: Publish(0, NAME, 1, p)),
    (RequestKind.PUBLISH_NAMESPACE, NAMESPACE, lambda p: PublishNamespace(0, NAMESPACE, p)),
    (RequestKind.SUBSCRIBE_NAMESPACE, NAMESPACE, lambda p: SubscribeNamespace(0, NAMESPACE, p)),
    (RequestKind.SUBSCRIBE_TRACKS, NAMESPACE, lambda p: SubscribeTracks(0, NAMESPACE, p)),
]


@pytest.mark.parametrize(("kind", "target", "build"), OPENERS)
def test_every_request_is_judged_once(
    kind: RequestKind, target: FullTrackName | TrackNamespace, build: Callable[..., Opener]
) -> None:
    """3.6#3, 4.2#5: all seven, SUBSCRIBE_TRACKS and SUBSCRIBE_NAMESPACE among them."""
    policy = Recorder(Denied(Denial.UNAUTHORIZED, "not yours"))
    peer = ScriptedPeer(
        Role.SERVER, directory=directory(), admission=Admission(token_policy=policy)
    )
    stream = peer.open_bidi()
    peer.send(stream, build(Parameters(authorization_tokens=(WIRE,))))
    answer = one(peer.messages(stream))
    assert isinstance(answer, RequestError)
    assert (answer.code, answer.reason) == (RequestErrorCode.UNAUTHORIZED, "not yours")
    assert answer.retry_interval_ms is None
    assert stream in peer.transport.finished
    assert peer.take(PublicationOffered) == []
    assert peer.take(NamespaceOffered) == []
    expected = RequestAccess(kind=kind, target=target, tokens=(TOKEN,), session_tokens=())
    assert policy.requests == [expected]


@pytest.mark.parametrize(("kind", "target", "build"), OPENERS)
def test_with_a_token_requests_are_let_in_and_without_one_refused(
    kind: RequestKind, target: FullTrackName | TrackNamespace, build: Callable[..., Opener]
) -> None:
    """3.6#3, 4.2#5."""
    for parameters, is_let_in in (
        (NO_PARAMETERS, False),
        (Parameters(authorization_tokens=(WIRE,)), True),
    ):
        peer = ScriptedPeer(
            Role.SERVER,
            directory=directory(),
            admission=Admission(token_policy=KnownTokens([TOKEN])),
        )
        stream = peer.open_bidi()
        peer.send(stream, build(parameters))
        codes = [m.code for m in peer.messages(stream) if isinstance(m, RequestError)]
        assert (RequestErrorCode.UNAUTHORIZED not in codes) is is_let_in


def test_an_update_is_judged_when_it_brings_a_token_or_moves_a_prefix() -> None:
    """What is asked for is then what the request would become, with the tokens that it has."""
    policy = Recorder()
    peer = ScriptedPeer(
        Role.SERVER, directory=directory(), admission=Admission(token_policy=policy)
    )
    stream = peer.open_bidi()
    peer.send(stream, SubscribeNamespace(0, NAMESPACE, Parameters(authorization_tokens=(WIRE,))))
    new = AuthorizationToken.use_value(1, b"new")
    peer.send(stream, RequestUpdate(2, Parameters(authorization_tokens=(new,))))
    assert [(a.target, a.tokens, a.is_update) for a in policy.requests] == [
        (NAMESPACE, (TOKEN,), False),
        (NAMESPACE, (AuthToken(1, b"new"),), True),
    ]
    prefix = TrackNamespace((NAMESPACE.fields[0],))
    peer.send(stream, RequestUpdate(4, Parameters(namespace_prefix=prefix)))
    moved = policy.requests[-1]
    assert (moved.kind, moved.target) == (RequestKind.SUBSCRIBE_NAMESPACE, prefix)
    assert moved.tokens == (AuthToken(1, b"new"),)
    assert len(policy.requests) == 3
    peer.send(stream, RequestUpdate(6, NO_PARAMETERS))
    assert len(policy.requests) == 3
    policy.answer = Denied()
    peer.send(stream, RequestUpdate(8, Parameters(namespace_prefix=NAMESPACE)))
    last = peer.messages(stream)[-1]
    assert isinstance(last, RequestError)
    assert last.code is RequestErrorCode.UNAUTHORIZED


def test_an_update_that_is_refused_ends_the_subscription() -> None:
    policy = Recorder()
    pair = SessionPair(
        server_directory=directory(), server_admission=Admission(token_policy=policy)
    )
    request_id = pair.client.subscribe(NAME, now=pair.now)
    pair.run()
    policy.answer = Denied(Denial.EXPIRED_AUTH_TOKEN)
    pair.client.refresh(request_id, [TOKEN])
    pair.run()
    assert one(pair.take(Role.CLIENT, UpdateRejected)).code is RequestErrorCode.EXPIRED_AUTH_TOKEN
    ended = one(pair.take(Role.CLIENT, SubscriptionEnded))
    assert ended.code is PublishDoneCode.UPDATE_FAILED


class Broken(KnownTokens):
    """A policy with a fault, and what it does instead of an answer."""

    def __init__(self, fault: Callable[[], object]) -> None:
        super().__init__([])
        self.fault = fault

    def judge_request(self, access: RequestAccess) -> Allowed | Denied:
        return self.fault()  # type: ignore[return-value]


def raising() -> object:
    raise KeyError("tenant")


@pytest.mark.parametrize(
    ("fault", "logged"),
    [
        (raising, "KeyError: 'tenant'"),
        (lambda: True, "TypeError: judge_request returned a bool, expected Allowed or Denied"),
        (lambda: None, "TypeError: judge_request returned a NoneType, expected Allowed or Denied"),
    ],
)
def test_a_policy_that_fails_costs_the_request_alone_and_is_logged_once(
    fault: Callable[[], object], logged: str, caplog: pytest.LogCaptureFixture
) -> None:
    peer = ScriptedPeer(
        Role.SERVER, directory=directory(), admission=Admission(token_policy=Broken(fault))
    )
    for request_id in (0, 2):
        stream = peer.open_bidi()
        peer.send(stream, Subscribe(request_id, NAME, Parameters(authorization_tokens=(WIRE,))))
        answer = one(peer.messages(stream))
        assert isinstance(answer, RequestError)
        assert answer.code is RequestErrorCode.INTERNAL_ERROR
    assert peer.transport.closed is None
    record = one(caplog.records)
    assert record.levelname == "ERROR"
    assert logged in caplog.text
    assert "a secret" not in caplog.text


def test_a_policy_that_fails_on_setup_closes_the_session(caplog: pytest.LogCaptureFixture) -> None:
    class Mute(KnownTokens):
        def judge_session(self, access: SessionAccess) -> Allowed | Denied:
            return False  # type: ignore[return-value]

    peer = ScriptedPeer(Role.SERVER, admission=Admission(token_policy=Mute([])))
    assert peer.transport.closed is not None
    assert peer.transport.closed[0] is SessionErrorCode.INTERNAL_ERROR
    assert "judge_session returned a bool, expected Allowed or Denied" in caplog.text


def test_a_client_judges_its_server_too() -> None:
    policy = Recorder(Denied())
    peer = ScriptedPeer(directory=directory(), admission=Admission(token_policy=policy))
    stream = peer.open_bidi()
    peer.send(stream, Subscribe(1, NAME))
    assert isinstance(one(peer.messages(stream)), RequestError)


def test_what_is_refused_anyway_is_not_judged() -> None:
    policy = Recorder()
    peer = ScriptedPeer(
        Role.SERVER, directory=directory(), admission=Admission(token_policy=policy)
    )
    reserved = TrackNamespace((b".session",))
    peer.send(peer.open_bidi(), PublishNamespace(0, reserved))
    assert policy.requests == []


# Lifetimes


@pytest.fixture
def limited() -> tuple[SessionPair, Recorder]:
    """Return a pair whose server allows everything for 1000 ms."""
    policy = Recorder(Allowed(lifetime_ms=1000))
    admission = Admission(token_policy=policy)
    return SessionPair(server_directory=directory(), server_admission=admission), policy


def test_a_subscription_that_expires(limited: tuple[SessionPair, Recorder]) -> None:
    """9.20.16: EXPIRES in SUBSCRIBE_OK, and PUBLISH_DONE with EXPIRED when the time is over."""
    pair, _ = limited
    pair.client.subscribe(NAME, now=pair.now)
    pair.run()
    assert one(pair.take(Role.CLIENT, SubscriptionEstablished)).expires_ms == 1000
    pair.advance(0.9)
    assert pair.take(Role.CLIENT, SubscriptionEnded) == []
    pair.advance(0.2)
    assert one(pair.take(Role.CLIENT, SubscriptionEnded)).code is PublishDoneCode.EXPIRED


def test_refreshed_tokens_extend_a_subscription(limited: tuple[SessionPair, Recorder]) -> None:
    """9.20.16#1: the update carries them, its answer the new lifetime."""
    pair, policy = limited
    request_id = pair.client.subscribe(NAME, now=pair.now)
    pair.run()
    pair.advance(0.9)
    policy.answer = Allowed(lifetime_ms=5000)
    pair.client.update(request_id, tokens=[TOKEN])
    pair.run()
    assert policy.shown == [(TOKEN.token_type, TOKEN.value)]
    assert one(pair.take(Role.CLIENT, UpdateAccepted)).expires_ms == 5000
    pair.client.update(request_id, priority=3)
    pair.run()
    assert one(pair.take(Role.CLIENT, UpdateAccepted)).expires_ms is None
    pair.advance(4.9)
    assert pair.take(Role.CLIENT, SubscriptionEnded) == []
    pair.advance(0.2)
    assert one(pair.take(Role.CLIENT, SubscriptionEnded)).code is PublishDoneCode.EXPIRED


def test_an_update_may_lift_the_limit(limited: tuple[SessionPair, Recorder]) -> None:
    pair, policy = limited
    request_id = pair.client.subscribe(NAME, now=pair.now)
    pair.run()
    policy.answer = Allowed()
    pair.client.refresh(request_id, [TOKEN])
    pair.run()
    pair.advance(100.0)
    assert pair.take(Role.CLIENT, SubscriptionEnded) == []


def test_a_namespace_subscription_that_expires(limited: tuple[SessionPair, Recorder]) -> None:
    pair, _ = limited
    pair.client.subscribe_namespace(NAMESPACE, now=pair.now)
    pair.run()
    assert one(pair.take(Role.CLIENT, RequestAccepted)).expires_ms == 1000
    assert pair.server.stats.open_requests == 1
    pair.advance(1.1)
    assert pair.server.stats.open_requests == 0
    assert pair.client.stats.open_requests == 0


def test_a_namespace_that_expires(limited: tuple[SessionPair, Recorder]) -> None:
    pair, _ = limited
    pair.client.publish_namespace(NAMESPACE, now=pair.now)
    pair.run()
    pair.server.accept(one(pair.take(Role.SERVER, NamespaceOffered)).request_id, now=pair.now)
    pair.run()
    assert one(pair.take(Role.CLIENT, RequestAccepted)).expires_ms == 1000
    pair.advance(1.1)
    assert one(pair.take(Role.SERVER, NamespaceWithdrawn)).namespace == NAMESPACE
    assert pair.client.stats.open_requests == 0


@pytest.mark.parametrize("is_accepted", [True, False])
def test_an_offer_that_expires(limited: tuple[SessionPair, Recorder], *, is_accepted: bool) -> None:
    pair, _ = limited
    pair.client.publish(TrackSource(NAME), now=pair.now)
    pair.run()
    offer = one(pair.take(Role.SERVER, PublicationOffered))
    if is_accepted:
        pair.server.accept(offer.request_id, now=pair.now)
        pair.run()
        assert one(pair.take(Role.CLIENT, RequestAccepted)).expires_ms == 1000
    pair.advance(1.1)
    assert pair.client.stats.open_requests == 0
    assert pair.server.stats.open_requests == 0
    assert not pair.server.is_closed


def test_fetch_and_track_status_have_no_lifetime(limited: tuple[SessionPair, Recorder]) -> None:
    """Their OK has no EXPIRES; a session that is told one would have to close."""
    pair, _ = limited
    pair.client.fetch(NAME, now=pair.now)
    pair.client.track_status(NAME, now=pair.now)
    pair.run()
    assert not pair.client.is_closed
    assert pair.server.next_deadline is None


@pytest.mark.parametrize(
    "message", [SubscribeNamespace(0, NAMESPACE), SubscribeTracks(0, NAMESPACE)]
)
def test_the_reset_code_says_that_the_authorization_expired(
    message: SubscribeNamespace | SubscribeTracks,
) -> None:
    policy = Recorder(Allowed(lifetime_ms=1000))
    peer = ScriptedPeer(
        Role.SERVER, directory=directory(), admission=Admission(token_policy=policy)
    )
    stream = peer.open_bidi()
    peer.send(stream, message)
    answer = peer.messages(stream)[0]
    assert isinstance(answer, RequestOk)
    assert answer.parameters.expires_ms == 1000
    peer.advance(1.1)
    assert peer.transport.resets[stream] is StreamResetCode.EXPIRED_AUTH_TOKEN
    assert peer.transport.stops[stream] is StreamResetCode.EXPIRED_AUTH_TOKEN


def test_what_ended_before_has_no_timer(limited: tuple[SessionPair, Recorder]) -> None:
    pair, _ = limited
    first = pair.client.subscribe(NAME, now=pair.now)
    pair.client.subscribe(FullTrackName(NAMESPACE, b"unknown"), now=pair.now)
    pair.run()
    assert len(pair.take(Role.CLIENT, RequestRejected)) == 1
    pair.client.cancel(first, now=pair.now)
    pair.run()
    assert pair.server.next_deadline is None


@pytest.mark.parametrize("lifetime_ms", [0, -1, 1 << 64])
def test_a_lifetime_that_means_nothing(lifetime_ms: int) -> None:
    """0 would say "for ever" on the wire."""
    with pytest.raises(ValueError, match="lifetime_ms"):
        Allowed(lifetime_ms)
