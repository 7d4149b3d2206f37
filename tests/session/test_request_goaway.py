"""GOAWAY on the stream of one request, as sender and receiver (MOQT-22 6.6.1, 9.2)."""

from __future__ import annotations

import pytest

from moqt.codes import RequestErrorCode, StreamResetCode
from moqt.errors import LocalProtocolError
from moqt.session.config import Role, SessionConfig
from moqt.session.events import (
    GoawayReceived,
    NamespaceGone,
    NamespaceOffered,
    NamespaceWithdrawn,
    ObjectReceived,
    RequestEnded,
    SubscriptionEnded,
)
from moqt.session.publish.directory import TrackDirectory
from moqt.session.publish.source import TrackSource
from moqt.session.request.request_goaway import ServedRequest
from moqt.testing import ScriptedPeer, SessionPair
from moqt.wire.messages import (
    Fetch,
    Goaway,
    Namespace,
    Publish,
    PublishNamespace,
    RequestOk,
    Subscribe,
)
from moqt.wire.params import NO_PARAMETERS
from moqt.wire.properties import TrackProperties
from moqt.wire.rules import RequestKind
from tests.session.receiving import NAME, NAMESPACE, OTHER, established, one, subgroup
from tests.session.test_setup import violation

URI = "moqt://other.example/kv"


def serving(config: SessionConfig | None = None) -> tuple[ScriptedPeer, TrackSource]:
    track = TrackSource(NAME)
    directory = TrackDirectory()
    directory.add(track)
    return ScriptedPeer(Role.SERVER, directory=directory, config=config), track


def subscribed(peer: ScriptedPeer) -> tuple[int, int]:
    """Let the peer subscribe; return stream and Request ID."""
    stream, request_id = peer.open_bidi(), peer.next_request_id()
    peer.send(stream, Subscribe(request_id, NAME))
    peer.messages(stream)
    return stream, request_id


# We ask


def test_one_subscription_is_asked_to_move_and_reset_when_its_time_is_over() -> None:
    """9.2#8: GOING_AWAY on its stream and its data; another one goes on."""
    peer, track = serving()
    stream, request_id = subscribed(peer)
    other, _ = subscribed(peer)
    peer.session.goaway(URI, 2000, request_id=request_id, now=peer.now)
    assert peer.messages(stream) == [Goaway(URI, 2000)]
    assert peer.messages(other) == []
    writer = track.open_group(0)
    writer.write(0, b"still served")
    peer.after()
    data = [i for i, sent in peer.transport.sent.items() if b"still served" in bytes(sent)]
    assert len(data) == 2
    peer.advance(1.9)
    assert not peer.transport.resets
    peer.advance(0.2)
    assert peer.transport.resets[stream] is StreamResetCode.GOING_AWAY
    assert peer.transport.stops == {stream: StreamResetCode.GOING_AWAY}
    assert len([i for i in data if i in peer.transport.resets]) == 1
    assert other not in peer.transport.resets
    assert len(peer.session.served_requests()) == 1
    assert not peer.session.is_closed
    peer.session.subscribe(OTHER, now=peer.now)  # the session itself goes on


def test_a_fetch_is_asked_to_move() -> None:
    """9.2#8: a fetch is reset with its data stream."""
    peer, track = serving()
    track.open_group(0).write(0, b"x" * 100)
    peer.transport.room = 4
    stream, request_id = peer.open_bidi(), peer.next_request_id()
    peer.send(stream, Fetch(request_id, NAME))
    peer.messages(stream)
    peer.transport.room = 4
    peer.after()
    data = one([i for i in peer.transport.sent if i % 4 == 3 and i != 3])
    peer.session.goaway(timeout_ms=500, request_id=request_id, now=peer.now)
    assert peer.messages(stream) == [Goaway("", 500)]
    peer.advance(1.0)
    assert peer.transport.resets[stream] is StreamResetCode.GOING_AWAY
    assert data in peer.transport.resets
    assert peer.session.served_requests() == ()
    assert peer.session.stats.open_requests == 0


@pytest.mark.parametrize("how", ["cancel", "no time"])
def test_nothing_is_reset_when_it_has_moved_or_no_time_is_set(how: str) -> None:
    peer, _ = serving(SessionConfig(goaway_timeout_ms=1000))
    stream, request_id = subscribed(peer)
    timeout_ms = 0 if how == "no time" else None
    peer.session.goaway(timeout_ms=timeout_ms, request_id=request_id, now=peer.now)
    assert peer.messages(stream) == [Goaway("", 0 if how == "no time" else 1000)]
    if how == "cancel":
        peer.cancel(stream)
        assert peer.session.next_deadline is None
    peer.advance(100.0)
    assert StreamResetCode.GOING_AWAY not in peer.transport.resets.values()


def test_what_is_served_is_listed() -> None:
    peer, _ = serving()
    stream, request_id = subscribed(peer)
    served = ServedRequest(request_id, RequestKind.SUBSCRIBE, NAME)
    assert peer.session.served_requests() == peer.session.served_requests(NAME) == (served,)
    assert peer.session.served_requests(OTHER) == ()
    peer.cancel(stream)
    assert peer.session.served_requests() == ()


def test_what_cannot_be_asked() -> None:
    """9.2#3, 9.2#1: at most one on a stream, and none with a URI from a client."""
    peer, _ = serving()
    _, request_id = subscribed(peer)
    with pytest.raises(LocalProtocolError, match="GOAWAY: "):
        peer.session.goaway("moqt://" + "a" * 8192, request_id=request_id, now=0.0)
    peer.session.goaway(request_id=request_id, now=0.0)
    with pytest.raises(LocalProtocolError, match="already"):
        peer.session.goaway(request_id=request_id, now=0.0)
    with pytest.raises(LocalProtocolError, match="over"):
        peer.session.goaway(request_id=99, now=0.0)
    client = ScriptedPeer()
    own = established(client)
    with pytest.raises(LocalProtocolError, match="client"):
        client.session.goaway(URI, request_id=own, now=0.0)


def test_a_subscriber_may_ask_too() -> None:
    """Either side sends it; the application hears of the reset."""
    peer = ScriptedPeer()
    request_id = established(peer)
    peer.messages(0)
    peer.session.goaway(timeout_ms=1000, request_id=request_id, now=0.0)
    assert peer.messages(0) == [Goaway("", 1000)]
    peer.advance(2.0)
    assert peer.transport.resets == {0: StreamResetCode.GOING_AWAY}
    assert one(peer.take(SubscriptionEnded)).request_id == request_id


def test_an_accepted_namespace_is_given_up_when_its_time_is_over() -> None:
    """9.2#8: a request of the peer's that the application answered."""
    peer = ScriptedPeer(Role.SERVER)
    stream = peer.open_bidi()
    peer.send(stream, PublishNamespace(0, NAMESPACE))
    request_id = one(peer.take(NamespaceOffered)).request_id
    peer.session.accept(request_id, now=0.0)
    peer.session.goaway(URI, 1000, request_id=request_id, now=0.0)
    assert peer.messages(stream) == [RequestOk(), Goaway(URI, 1000)]
    peer.advance(2.0)
    assert peer.transport.resets[stream] is StreamResetCode.GOING_AWAY
    assert one(peer.take(NamespaceWithdrawn)).request_id == request_id


# We are asked


def test_a_request_that_is_asked_to_move_goes_on_until_it_is_made_again() -> None:
    """9.2#7: on the same session, since only the request is to move; then the old one is closed."""
    peer = ScriptedPeer()
    request_id = established(peer)
    peer.send(0, Goaway("", 5))
    assert one(peer.take(GoawayReceived)) == GoawayReceived("", 5, request_id)
    peer.send_octets(peer.open_uni(), subgroup(0, [0]), fin=True)
    assert len(peer.take(ObjectReceived)) == 1
    peer.session.subscribe(NAME, now=0.0)
    peer.session.cancel(request_id, now=0.0)
    assert set(peer.transport.resets) == set(peer.transport.stops) == {0}


def test_a_watch_that_is_asked_to_move_and_reset() -> None:
    peer = ScriptedPeer()
    request_id = peer.session.subscribe_namespace(NAMESPACE, now=0.0)
    peer.send(0, RequestOk(), Namespace(NAMESPACE), Goaway(URI, 5))
    assert one(peer.take(GoawayReceived)) == GoawayReceived(URI, 5, request_id)
    peer.reset(0, StreamResetCode.GOING_AWAY)
    assert len(peer.take(NamespaceGone)) == 1
    ended = RequestEnded(request_id, StreamResetCode.GOING_AWAY)
    assert one(peer.take(RequestEnded)) == ended


def test_a_request_of_the_peers_may_be_asked_to_move_by_the_peer() -> None:
    """The event names the peer's Request ID; a second GOAWAY on the stream closes (9.2#3)."""
    peer = ScriptedPeer()
    stream = peer.open_bidi()
    peer.send(stream, PublishNamespace(1, NAMESPACE), Goaway(URI, 5))
    assert one(peer.take(GoawayReceived)) == GoawayReceived(URI, 5, 1)
    peer.send(stream, Goaway(URI, 5))
    violation(peer)


def test_both_ends() -> None:
    """The subscriber hears of it, and of the reset when it does nothing."""
    track = TrackSource(NAME)
    directory = TrackDirectory()
    directory.add(track)
    pair = SessionPair(server_directory=directory)
    request_id = pair.client.subscribe(NAME, now=pair.now)
    pair.run()
    served = one(list(pair.server.served_requests(NAME)))
    assert served.request_id == request_id
    pair.server.goaway(URI, 1000, request_id=request_id, now=pair.now)
    pair.run()
    asked = GoawayReceived(URI, 1000, request_id)
    assert one(pair.take(Role.CLIENT, GoawayReceived)) == asked
    pair.advance(2.0)
    assert one(pair.take(Role.CLIENT, SubscriptionEnded)).request_id == request_id
    assert not pair.client.is_closed


@pytest.mark.parametrize("opener", ["PUBLISH", "PUBLISH_NAMESPACE"])
def test_an_offer_that_was_rejected_does_not_end_again_with_its_goaway(opener: str) -> None:
    peer = ScriptedPeer(Role.SERVER)
    stream, request_id = peer.open_bidi(), peer.next_request_id()
    if opener == "PUBLISH":
        peer.send(stream, Publish(request_id, NAME, 7, NO_PARAMETERS, TrackProperties()))
    else:
        peer.send(stream, PublishNamespace(request_id, NAMESPACE))
    peer.session.goaway(request_id=request_id, timeout_ms=100, now=peer.now)
    peer.session.reject(request_id, RequestErrorCode.UNINTERESTED, now=peer.now)
    peer.advance(1)
    assert stream in peer.transport.stops  # the peer had its time
    assert not peer.take(RequestEnded)
    assert not peer.take(NamespaceWithdrawn)
