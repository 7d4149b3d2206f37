"""Request streams: IDs, first messages, answers, time."""

from __future__ import annotations

import pytest

from moqt.codes import RequestErrorCode, SessionErrorCode
from moqt.session.config import Role, SessionConfig
from moqt.session.events import (
    NamespaceOffered,
    RequestAccepted,
    RequestRejected,
)
from moqt.session.publish.directory import TrackDirectory
from moqt.testing import ScriptedPeer
from moqt.types import FullTrackName, Location, TrackNamespace
from moqt.wire.framing import encode_message
from moqt.wire.messages import (
    Fetch,
    Namespace,
    Publish,
    PublishNamespace,
    PublishStateNotify,
    Redirect,
    RequestError,
    RequestOk,
    RequestUpdate,
    Setup,
    Subscribe,
    SubscribeNamespace,
    SubscribeOk,
    TrackStatus,
)
from moqt.wire.params import Parameters
from moqt.wire.properties import TrackProperties
from moqt.wire.tokens import AuthorizationToken
from tests.session.receiving import NAME, NAMESPACE, established, one
from tests.session.test_setup import assert_closed, violation


def server(config: SessionConfig | None = None) -> ScriptedPeer:
    return ScriptedPeer(Role.SERVER, config=config, directory=TrackDirectory())


# Request IDs


def test_our_ids_are_even_for_a_client_and_never_come_twice() -> None:
    """6.4.2.1#1, for updates as well."""
    peer = ScriptedPeer()
    first = established(peer)
    update = peer.session.update(first, forward=False)
    second = peer.session.track_status(NAME, now=0.0)
    assert (first, update, second) == (0, 2, 4)


def test_our_ids_are_odd_for_a_server() -> None:
    peer = ScriptedPeer(Role.SERVER)
    assert [peer.session.track_status(NAME, now=0.0) for _ in range(2)] == [1, 3]


def test_wrong_parity() -> None:
    """6.4.2.1#2."""
    peer = server()
    peer.send(peer.open_bidi(), Subscribe(1, NAME))
    assert_closed(peer, SessionErrorCode.INVALID_REQUEST_ID)


def test_ids_in_any_order_but_once() -> None:
    """6.4.2.1#3."""
    peer = server()
    for request_id in (4, 0, 2, 100):
        peer.send(peer.open_bidi(), TrackStatus(request_id, NAME))
    assert not peer.session.is_closed
    peer.send(peer.open_bidi(), Fetch(4, NAME))
    assert_closed(peer, SessionErrorCode.INVALID_REQUEST_ID)


def test_update_with_an_id_seen_before() -> None:
    """6.4.2.1#3."""
    peer = server()
    stream = peer.open_bidi()
    peer.send(stream, PublishNamespace(0, NAMESPACE))
    peer.send(stream, RequestUpdate(0))
    assert_closed(peer, SessionErrorCode.INVALID_REQUEST_ID)


# The first message


@pytest.mark.parametrize("message", [RequestOk(), Setup(), SubscribeOk(1), Namespace(NAMESPACE)])
def test_stream_that_begins_with_no_request(
    message: RequestOk | Setup | SubscribeOk | Namespace,
) -> None:
    """6.3#2."""
    peer = server()
    peer.send(peer.open_bidi(), message)
    violation(peer)


def test_fin_before_and_inside_a_request() -> None:
    for octets in (b"", encode_message(Subscribe(0, NAME))[:5]):
        peer = server()
        peer.send_octets(peer.open_bidi(), octets, fin=True)
        violation(peer)


@pytest.mark.parametrize("first", [b".", b".session"])
def test_names_that_no_request_can_ask_for(first: bytes) -> None:
    """2.4.3#2, 6.5#2."""
    peer = server()
    namespace = TrackNamespace((first, b"x"))
    name = FullTrackName(namespace, b"")
    requests = (
        Subscribe(0, name),
        Fetch(2, name),
        TrackStatus(4, name),
        Publish(6, name, 1),
        PublishNamespace(8, namespace),
        SubscribeNamespace(10, namespace),
    )
    for message in requests:
        stream = peer.open_bidi()
        peer.send(stream, message)
        answer = one(peer.messages(stream))
        assert isinstance(answer, RequestError)
        assert answer.code is RequestErrorCode.DOES_NOT_EXIST
        assert stream in peer.transport.finished
    assert peer.session.stats.requests_refused == len(requests)


def test_tokens_without_a_cache() -> None:
    """8.9#4, 8.9#8."""
    peer = server(SessionConfig(max_auth_token_cache_octets=0))
    stream = peer.open_bidi()
    used = Parameters(authorization_tokens=(AuthorizationToken.use_alias(3),))
    peer.send(stream, PublishNamespace(0, NAMESPACE, used))
    answer = one(peer.messages(stream))
    assert isinstance(answer, RequestError)
    assert answer.code is RequestErrorCode.UNKNOWN_AUTH_TOKEN_ALIAS
    value = Parameters(authorization_tokens=(AuthorizationToken.use_value(0, b"secret"),))
    peer.send(peer.open_bidi(), PublishNamespace(2, NAMESPACE, value))
    assert one(peer.take(NamespaceOffered)).request_id == 2
    register = Parameters(authorization_tokens=(AuthorizationToken.register(3, 0, b"secret"),))
    peer.send(peer.open_bidi(), PublishNamespace(4, NAMESPACE, register))
    assert_closed(peer, SessionErrorCode.AUTH_TOKEN_CACHE_OVERFLOW)


def test_too_many_open_requests() -> None:
    """15.1#1, 15.5#1, 12.3#2: the last one is refused with a Retry Interval, the others live."""
    peer = server(SessionConfig(max_requests=2))
    streams = [peer.open_bidi() for _ in range(3)]
    for count, stream in enumerate(streams):
        peer.send(stream, PublishNamespace(2 * count, NAMESPACE))
    answer = one(peer.messages(streams[2]))
    assert isinstance(answer, RequestError)
    assert answer.code is RequestErrorCode.EXCESSIVE_LOAD
    assert answer.retry_interval_ms == 1000
    assert len(peer.take(NamespaceOffered)) == 2
    peer.cancel(streams[0])
    peer.send_octets(streams[2], b"", fin=True)
    peer.send(peer.open_bidi(), PublishNamespace(6, NAMESPACE))
    assert len(peer.take(NamespaceOffered)) == 1


# Answers


def test_rejection_ends_the_request() -> None:
    peer = ScriptedPeer()
    request_id = peer.session.subscribe(NAME, now=0.0)
    error = RequestError(
        code=RequestErrorCode.DOES_NOT_EXIST, reason="no such track", retry_interval_ms=0
    )
    peer.send(0, error, fin=True)
    event = one(peer.take(RequestRejected))
    assert event == RequestRejected(
        request_id, RequestErrorCode.DOES_NOT_EXIST, "no such track", retry_interval_ms=0
    )
    assert 0 in peer.transport.finished
    assert peer.session.stats.open_requests == 0


def test_redirect_is_told() -> None:
    peer = ScriptedPeer()
    peer.session.subscribe(NAME, now=0.0)
    target = FullTrackName(NAMESPACE, b"elsewhere")
    redirect = Redirect("moqt://other/", target)
    peer.send(0, RequestError(code=RequestErrorCode.REDIRECT, redirect=redirect))
    event = one(peer.take(RequestRejected))
    assert (event.redirect_uri, event.redirect_name) == ("moqt://other/", target)


def test_redirect_that_breaks_the_draft() -> None:
    """9.4.1#1, 9.4.1#2."""
    redirect = Redirect("moqt://other/", NAME)
    peer = ScriptedPeer(Role.SERVER)
    peer.session.subscribe(NAME, now=0.0)
    peer.send(1, RequestError(code=RequestErrorCode.REDIRECT, redirect=redirect))
    violation(peer)
    peer = ScriptedPeer()
    peer.session.subscribe_namespace(NAMESPACE, now=0.0)
    peer.send(0, RequestError(code=RequestErrorCode.REDIRECT, redirect=redirect))
    violation(peer)


@pytest.mark.parametrize(
    "second",
    [
        SubscribeOk(9),
        RequestOk(),
        RequestError(code=RequestErrorCode.INTERNAL_ERROR),
    ],
)
def test_second_answer(second: SubscribeOk | RequestOk | RequestError) -> None:
    """3.1#3."""
    peer = ScriptedPeer()
    established(peer)
    peer.send(0, second)
    violation(peer)


def test_answer_behind_a_rejection() -> None:
    peer = ScriptedPeer()
    peer.session.subscribe(NAME, now=0.0)
    peer.send(0, RequestError(code=RequestErrorCode.TIMEOUT))
    peer.send(0, SubscribeOk(1))
    violation(peer)


def test_ok_with_properties_where_none_may_be() -> None:
    """9.3#1."""
    properties = TrackProperties.of(default_publisher_priority=3)
    peer = ScriptedPeer()
    peer.session.publish_namespace(NAMESPACE, now=0.0)
    peer.send(0, RequestOk(properties=properties))
    violation(peer)


def test_ok_of_the_wrong_kind() -> None:
    peer = ScriptedPeer()
    peer.session.fetch(NAME, now=0.0)
    peer.send(0, SubscribeOk(1))
    violation(peer)


def test_track_status() -> None:
    """9.13."""
    peer = ScriptedPeer()
    request_id = peer.session.track_status(NAME, now=0.0)
    properties = TrackProperties.of(default_publisher_priority=3)
    peer.send(0, RequestOk(Parameters(largest=Location(3, 4)), properties), fin=True)
    assert one(peer.take(RequestAccepted)) == RequestAccepted(
        request_id, None, Location(3, 4), properties
    )
    assert 0 in peer.transport.finished
    assert peer.session.stats.open_requests == 0


def test_state_notify_from_the_wrong_side_or_on_a_fetch() -> None:
    """9.10#1."""
    peer = ScriptedPeer()
    peer.session.fetch(NAME, now=0.0)
    peer.send(0, PublishStateNotify())
    violation(peer)
    peer = server()
    stream = peer.open_bidi()
    peer.send(stream, PublishNamespace(0, NAMESPACE))
    peer.send(stream, PublishStateNotify())
    violation(peer)


def test_state_notify_needs_no_answer() -> None:
    peer = ScriptedPeer()
    established(peer)
    peer.messages(0)
    peer.send(0, PublishStateNotify(Parameters(largest=Location(1, 1))))
    assert peer.messages(0) == []
    assert not peer.session.is_closed


# Time


def test_no_answer_in_time() -> None:
    peer = ScriptedPeer(config=SessionConfig(request_timeout_s=5.0))
    request_id = peer.session.subscribe(NAME, now=0.0)
    late = peer.session.subscribe(NAME, rendezvous_timeout_ms=2000, now=0.0)
    peer.advance(5.5)
    event = one(peer.take(RequestRejected))
    assert (event.request_id, event.code) == (request_id, RequestErrorCode.TIMEOUT)
    assert event.timed_out
    assert 0 in peer.transport.stops
    assert 0 in peer.transport.resets
    peer.advance(2.0)
    assert one(peer.take(RequestRejected)).request_id == late
    assert not peer.session.is_closed
    assert peer.session.next_deadline is None


def test_an_answer_stops_the_clock() -> None:
    peer = ScriptedPeer(config=SessionConfig(request_timeout_s=5.0))
    established(peer)
    peer.advance(100.0)
    assert peer.take(RequestRejected) == []
