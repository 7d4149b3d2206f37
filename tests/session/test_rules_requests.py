"""Rules of draft 22 on requests, found by reading the code against the text."""

from __future__ import annotations

import pytest

from moqt.codes import PublishDoneCode, RequestErrorCode, StreamResetCode
from moqt.errors import LocalProtocolError
from moqt.session.config import Role
from moqt.session.events import (
    FetchEnded,
    FillEnded,
    NamespaceOffered,
    ObjectReceived,
    PublicationOffered,
    RequestEnded,
    UpdateAccepted,
)
from moqt.session.publish.directory import TrackDirectory
from moqt.session.publish.source import TrackSource
from moqt.testing import ScriptedPeer
from moqt.types import Location
from moqt.wire.filters import LocationFilter, LocationFilterType
from moqt.wire.messages import (
    Fetch,
    FetchOk,
    Publish,
    PublishDone,
    PublishNamespace,
    RequestError,
    RequestOk,
    RequestUpdate,
    Subscribe,
    SubscribeNamespace,
    SubscribeOk,
)
from moqt.wire.params import FillParameters, Parameters
from moqt.wire.tokens import AliasType, AuthorizationToken
from tests.session.receiving import ALIAS, NAME, NAMESPACE, fetched, got, one

UNKNOWN_ALIAS = AuthorizationToken(AliasType.USE_ALIAS, alias=9)


def serving(objects: int = 2) -> tuple[ScriptedPeer, TrackSource]:
    """Return a server with one track, whose Group 0 is open."""
    directory = TrackDirectory()
    track = TrackSource(NAME)
    directory.add(track)
    writer = track.open_group(0)
    for object_id in range(objects):
        writer.write(object_id, b"content")
    return ScriptedPeer(Role.SERVER, directory=directory), track


# Fills


def test_fill_without_a_filter_covers_the_range_that_the_subscription_got() -> None:
    """A relative filter is resolved once (MOQT-22 9.20.9), also for a fill that comes later."""
    peer = ScriptedPeer()
    request_id = peer.session.subscribe(
        NAME, location_filter=LocationFilter.next_object(), now=peer.now
    )
    peer.send(0, SubscribeOk(ALIAS, Parameters(largest=Location(0, 1))))
    update_id = peer.session.update(request_id, fill=FillParameters())
    peer.send(0, RequestOk(Parameters(largest=Location(0, 3))))
    assert one(peer.take(UpdateAccepted)).update_id == update_id
    assert not peer.take(FillEnded)

    peer.send_octets(peer.open_uni(), fetched(update_id, [(0, 2), (0, 3)]), fin=True)
    assert got(peer.take(ObjectReceived)) == [(0, 2), (0, 3)]
    assert one(peer.take(FillEnded)) == FillEnded(request_id, update_id)


# Cancelling


def test_fetch_is_cancelled_by_stop_sending_after_the_requesters_fin() -> None:
    """After its own FIN a requester has STOP_SENDING alone to cancel (MOQT-22 6.4.2.3, 3.2.4)."""
    peer, _ = serving()
    peer.transport.room = 0
    stream = peer.open_bidi()
    peer.send(stream, Fetch(peer.next_request_id(), NAME), fin=True)
    assert isinstance(one(peer.messages(stream)), FetchOk)
    peer.transport.room = 4
    peer.after()
    data = one([s for s in peer.transport.sent if s % 4 == 3 and s != 3])

    peer.stop(stream)
    assert peer.transport.resets[data] is StreamResetCode.CANCELLED
    assert stream in peer.transport.resets or stream in peer.transport.finished
    assert peer.session.stats.open_streams_sent == 0
    assert peer.session.stats.open_requests == 0


def test_running_fetch_of_ours_can_be_updated_until_its_data_has_come() -> None:
    """No FIN at FETCH_OK, since a REQUEST_UPDATE may follow (MOQT-22 9.5); FIN at the end."""
    peer = ScriptedPeer()
    request_id = peer.session.fetch(NAME, now=peer.now)
    peer.send(0, FetchOk(False, Location(0, 0)))
    update_id = peer.session.update(request_id, priority=3)
    assert peer.messages(0)[-1] == RequestUpdate(update_id, Parameters(subscriber_priority=3))
    peer.send(0, RequestOk())
    assert 0 not in peer.transport.finished
    peer.send_octets(peer.open_uni(), fetched(request_id, [(0, 0)]), fin=True)
    assert 0 in peer.transport.finished
    assert one(peer.take(FetchEnded)).reset is None


def test_fetch_of_ours_ends_its_direction_after_the_publishers_fin() -> None:
    """6.4.2.2#4: what the publisher cannot answer is not sent; the data still comes."""
    peer = ScriptedPeer()
    request_id = peer.session.fetch(NAME, now=peer.now)
    peer.send(0, FetchOk(False, Location(0, 0)), fin=True)
    assert 0 in peer.transport.finished
    with pytest.raises(LocalProtocolError):
        peer.session.update(request_id, priority=3)
    peer.send_octets(peer.open_uni(), fetched(request_id, [(0, 0)]), fin=True)
    assert got(peer.take(ObjectReceived)) == [(0, 0)]
    assert not peer.transport.resets


# PUBLISH


def test_fill_of_an_offered_track_without_any_filter_covers_all_of_it() -> None:
    """No filter anywhere: {0,0} to Largest, for a PUBLISH too (MOQT-22 9.5, 9.8)."""
    peer = ScriptedPeer(Role.CLIENT)
    track = TrackSource(NAME)
    writer = track.open_group(0)
    writer.write(0, b"old")
    peer.session.publish(track, forward=False, now=peer.now)
    writer.write(1, b"later")
    update_id = peer.next_request_id()
    peer.send(
        0, RequestOk(), RequestUpdate(update_id, Parameters(forward=True, fill=FillParameters()))
    )
    fill = one([s for s in peer.transport.sent if s % 4 == 2 and s != 2])
    assert fill in peer.transport.finished
    octets = bytes(peer.transport.sent[fill])
    assert octets.startswith(bytes((5, update_id)))
    assert octets.index(b"old") < octets.index(b"later")


def test_subscriber_may_end_its_direction_before_the_offered_track_ends() -> None:
    """FIN is no cancel (MOQT-22 6.4.2.2): Objects go on, and PUBLISH_DONE ends the offer."""
    peer = ScriptedPeer(Role.CLIENT)
    track = TrackSource(NAME)
    request_id = peer.session.publish(track, now=peer.now)
    peer.send(0, RequestOk(), fin=True)
    writer = track.open_group(0)
    writer.write(0, b"content")
    writer.close()
    track.end()
    peer.after()
    assert isinstance(peer.messages(0)[-1], PublishDone)
    assert 0 in peer.transport.finished
    assert peer.take(RequestEnded) == [RequestEnded(request_id)]
    assert peer.session.stats.open_requests == 0


def test_offer_of_the_most_urgent_priority_is_told_of_another() -> None:
    """SUBSCRIBER_PRIORITY 0 is a value, not an absent one (MOQT-22 9.20)."""
    peer = ScriptedPeer()
    stream = peer.open_bidi()
    peer.send(
        stream, Publish(peer.next_request_id(), NAME, ALIAS, Parameters(subscriber_priority=0))
    )
    offer = one(peer.take(PublicationOffered))
    peer.session.accept(offer.request_id, priority=128, now=peer.now)
    ok, update = peer.messages(stream)
    assert isinstance(ok, RequestOk)
    assert isinstance(update, RequestUpdate)
    assert update.parameters == Parameters(subscriber_priority=128)


def test_answer_that_cannot_be_sent_leaves_the_offer_open() -> None:
    """Our own mistake ends nothing: the offer is still there to be answered."""
    peer = ScriptedPeer()
    stream = peer.open_bidi()
    peer.send(stream, Publish(peer.next_request_id(), NAME, ALIAS))
    offer = one(peer.take(PublicationOffered)).request_id
    backwards = LocationFilter(LocationFilterType.END_OBJECT, 0, 5, 0, 4)
    with pytest.raises(LocalProtocolError):
        peer.session.accept(offer, location_filter=backwards, now=peer.now)
    with pytest.raises(LocalProtocolError):
        peer.session.reject(offer, RequestErrorCode.UNINTERESTED, "x" * 1025, now=peer.now)
    assert not peer.messages(stream)
    peer.session.reject(offer, RequestErrorCode.UNINTERESTED, now=peer.now)
    assert isinstance(one(peer.messages(stream)), RequestError)


# Token aliases: none is registered, since no cache is announced


def test_update_of_a_subscription_with_an_unknown_token_alias_fails() -> None:
    """UNKNOWN_AUTH_TOKEN_ALIAS, and the session goes on (MOQT-22 8.9, 9.5.1)."""
    peer, track = serving()
    stream = peer.open_bidi()
    peer.send(stream, Subscribe(peer.next_request_id(), NAME))
    assert isinstance(one(peer.messages(stream)), SubscribeOk)
    peer.send(
        stream,
        RequestUpdate(
            peer.next_request_id(), Parameters(forward=False, authorization_tokens=(UNKNOWN_ALIAS,))
        ),
    )
    error, done = peer.messages(stream)
    assert isinstance(error, RequestError)
    assert error.code is RequestErrorCode.UNKNOWN_AUTH_TOKEN_ALIAS
    assert isinstance(done, PublishDone)
    assert done.code is PublishDoneCode.UPDATE_FAILED
    assert stream in peer.transport.finished
    assert not peer.session.is_closed
    assert track.largest == Location(0, 1)


def test_update_of_a_fetch_with_an_unknown_token_alias_resets_its_data() -> None:
    """A failed update of a FETCH resets the data stream (MOQT-22 9.5.1)."""
    peer, _ = serving()
    peer.transport.room = 4
    stream = peer.open_bidi()
    peer.send(stream, Fetch(peer.next_request_id(), NAME))
    peer.transport.room = 4
    peer.after()
    peer.messages(stream)
    data = one([s for s in peer.transport.sent if s % 4 == 3 and s != 3])
    peer.send(
        stream,
        RequestUpdate(peer.next_request_id(), Parameters(authorization_tokens=(UNKNOWN_ALIAS,))),
    )
    error = one(peer.messages(stream))
    assert isinstance(error, RequestError)
    assert error.code is RequestErrorCode.UNKNOWN_AUTH_TOKEN_ALIAS
    assert data in peer.transport.resets
    assert stream in peer.transport.finished
    assert not peer.session.is_closed


@pytest.mark.parametrize("is_subscribe", [False, True])
def test_update_of_a_namespace_request_with_an_unknown_token_alias_ends_it(
    is_subscribe: bool,
) -> None:
    """A failed update of a namespace request ends its stream (MOQT-22 9.5.1)."""
    peer, _ = serving()
    stream = peer.open_bidi()
    request_id = peer.next_request_id()
    if is_subscribe:
        peer.send(stream, SubscribeNamespace(request_id, NAMESPACE))
    else:
        peer.send(stream, PublishNamespace(request_id, NAMESPACE))
        peer.session.accept(one(peer.take(NamespaceOffered)).request_id, now=peer.now)
    peer.messages(stream)
    peer.send(
        stream,
        RequestUpdate(peer.next_request_id(), Parameters(authorization_tokens=(UNKNOWN_ALIAS,))),
    )
    error = one(peer.messages(stream))
    assert isinstance(error, RequestError)
    assert error.code is RequestErrorCode.UNKNOWN_AUTH_TOKEN_ALIAS
    assert stream in peer.transport.finished
    assert not peer.session.is_closed


# GOAWAY


def test_goaway_with_a_uri_beyond_the_limit_is_refused_here() -> None:
    """At most 8192 octets (MOQT-22 9.2); nothing is sent, and a shorter one still can be."""
    peer, _ = serving()
    with pytest.raises(LocalProtocolError):
        peer.session.goaway("moqt://" + "a" * 8192, now=peer.now)
    peer.session.goaway("moqt://host.example/", now=peer.now)
