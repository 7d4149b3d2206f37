"""PUBLISH of the peer: an offer that becomes a subscription; aliases; GOAWAY."""

from __future__ import annotations

from typing import Any

import pytest

from moqt.codes import (
    GroupOrder,
    PublishDoneCode,
    RequestErrorCode,
    SessionErrorCode,
    StreamResetCode,
)
from moqt.errors import LocalProtocolError, SessionLeaving
from moqt.session.config import Role, SessionConfig
from moqt.session.events import (
    FillEnded,
    GoawayReceived,
    ObjectReceived,
    PublicationOffered,
    RequestEnded,
    SubscriptionEnded,
    SubscriptionEstablished,
    UpdateAccepted,
    UpdateRejected,
)
from moqt.testing import ScriptedPeer
from moqt.types import Location
from moqt.wire.datagrams import ObjectDatagram, encode_datagram
from moqt.wire.fields import KeyValue
from moqt.wire.filters import (
    IdRange,
    LocationFilter,
    LocationFilterType,
    RangeFilter,
    RangeFilterKind,
)
from moqt.wire.messages import (
    Goaway,
    Publish,
    PublishDone,
    PublishStateNotify,
    RequestError,
    RequestOk,
    RequestUpdate,
    SubscribeOk,
)
from moqt.wire.params import FillParameters, Parameters
from moqt.wire.properties import TrackProperties
from moqt.wire.vi64 import MAX_VI64
from tests.session.receiving import (
    ALIAS,
    NAME,
    OTHER,
    RecordingSink,
    established,
    fetched,
    got,
    one,
    subgroup,
)
from tests.session.test_setup import assert_closed, violation

BEYOND = LocationFilter.absolute(Location(MAX_VI64 + 1, 0))
DONE = PublishDone(code=PublishDoneCode.TRACK_ENDED, stream_count=1)


def offered(
    peer: ScriptedPeer,
    parameters: Parameters | None = None,
    properties: TrackProperties | None = None,
) -> int:
    """Let the peer (a server, Request ID 1) send PUBLISH; return its stream."""
    stream = peer.open_bidi()
    request_id = peer.next_request_id()
    peer.send(
        stream,
        Publish(
            request_id, NAME, ALIAS, parameters or Parameters(), properties or TrackProperties()
        ),
    )
    return stream


def test_offer() -> None:
    """3.1#2."""
    peer = ScriptedPeer()
    properties = TrackProperties.of(default_publisher_priority=3)
    parameters = Parameters(
        largest=Location(2, 1), forward=False, group_order=GroupOrder.DESCENDING
    )
    stream = offered(peer, parameters, properties)
    assert one(peer.take(PublicationOffered)) == PublicationOffered(
        1, NAME, ALIAS, Location(2, 1), False, GroupOrder.DESCENDING, properties
    )
    peer.session.accept(1, now=0.0)
    peer.after()
    assert peer.messages(stream) == [RequestOk()]  # 3.1#2
    assert one(peer.take(SubscriptionEstablished)) == SubscriptionEstablished(
        1, ALIAS, Location(2, 1), properties
    )
    with pytest.raises(LocalProtocolError, match="offer"):
        peer.session.accept(1, now=0.0)


def test_objects_before_the_answer_wait_for_it() -> None:
    peer = ScriptedPeer()
    sink = RecordingSink()
    stream = offered(peer)
    peer.send_octets(peer.open_uni(), subgroup(0, [0]), fin=True)
    assert peer.session.stats.stray_streams_held == 1
    peer.session.accept(1, sink=sink, now=0.0)
    peer.after()
    assert got(peer.take(ObjectReceived)) == [(0, 0)]
    assert len(sink.placed) == 1
    assert peer.transport.owed == 0
    peer.send(stream, DONE, fin=True)
    assert one(peer.take(SubscriptionEnded)).request_id == 1
    assert stream in peer.transport.finished
    assert peer.session.stats.open_requests == 0


def test_what_differs_from_the_offer_follows_in_an_update() -> None:
    """9.8: PUBLISH_OK cannot say it."""
    peer = ScriptedPeer()
    stream = offered(peer, Parameters(forward=False, largest=Location(1, 1)))
    fill = FillParameters(location_filter=LocationFilter.none(), group_order=GroupOrder.ASCENDING)
    peer.session.accept(1, forward=True, priority=5, fill=fill, now=0.0)
    wanted = Parameters(forward=True, subscriber_priority=5, fill=fill)
    assert peer.messages(stream) == [RequestOk(), RequestUpdate(0, wanted)]
    peer.send(stream, RequestOk(Parameters(largest=Location(1, 1))))
    assert one(peer.take(UpdateAccepted)) == UpdateAccepted(1, 0, Location(1, 1))
    peer.send_octets(peer.open_uni(), fetched(0, [(0, 0), (1, 1)]), fin=True)
    assert [event.from_fill for event in peer.take(ObjectReceived)] == [True, True]
    assert one(peer.take(FillEnded)) == FillEnded(1, 0)


@pytest.mark.parametrize("wrong", [{"priority": 256}, {"location_filter": BEYOND}])
def test_an_offer_accepted_with_what_no_message_can_say_still_waits(wrong: Any) -> None:
    """Else the subscription would be there, and nobody to read it."""
    peer = ScriptedPeer()
    stream = offered(peer)
    with pytest.raises(LocalProtocolError, match="REQUEST_UPDATE"):
        peer.session.accept(1, now=0.0, **wrong)
    assert peer.messages(stream) == []
    peer.session.accept(1, now=0.0)
    assert peer.messages(stream) == [RequestOk()]


def test_what_the_offer_says_already_needs_no_update() -> None:
    peer = ScriptedPeer()
    stream = offered(peer)
    peer.session.accept(1, forward=True, priority=128, now=0.0)
    assert peer.messages(stream) == [RequestOk()]


def test_failed_update() -> None:
    peer = ScriptedPeer()
    stream = offered(peer)
    peer.session.accept(1, now=0.0)
    update = peer.session.update(1, priority=7)
    peer.send(stream, RequestError(code=RequestErrorCode.UNAUTHORIZED, reason="no"))
    peer.send(stream, PublishDone(code=PublishDoneCode.UPDATE_FAILED, stream_count=0), fin=True)
    assert one(peer.take(UpdateRejected)).update_id == update
    assert one(peer.take(SubscriptionEnded)).code is PublishDoneCode.UPDATE_FAILED


def test_refused_offer_stops_its_streams() -> None:
    """9.8#1."""
    peer = ScriptedPeer()
    stream = offered(peer)
    early = peer.open_uni()
    peer.send_octets(early, subgroup(0, [0]))
    peer.session.reject(1, RequestErrorCode.UNINTERESTED, now=0.0)
    late = peer.open_uni()
    peer.send_octets(late, subgroup(1, [0]))
    assert set(peer.transport.stops) == {early, late}
    assert peer.messages(stream) == [RequestError(code=RequestErrorCode.UNINTERESTED)]
    peer.send_octets(stream, b"", fin=True)
    assert peer.session.stats.open_requests == 0
    assert peer.transport.owed == 0


def test_offer_with_an_unknown_mandatory_property() -> None:
    """3.7#3."""
    peer = ScriptedPeer()
    properties = TrackProperties.of(other=[KeyValue(0x4000, 1)])
    stream = offered(peer, properties=properties)
    answer = one(peer.messages(stream))
    assert isinstance(answer, RequestError)
    assert answer.code is RequestErrorCode.UNSUPPORTED_EXTENSION
    assert peer.take(PublicationOffered) == []


@pytest.mark.parametrize("how", ["cancel", "fin"])
def test_offer_that_is_gone_before_its_answer(how: str) -> None:
    peer = ScriptedPeer()
    stream = offered(peer)
    if how == "cancel":
        peer.cancel(stream)
        assert one(peer.take(RequestEnded)) == RequestEnded(1, StreamResetCode.CANCELLED)
    else:
        peer.send_octets(stream, b"", fin=True)
        assert one(peer.take(RequestEnded)) == RequestEnded(1)
    with pytest.raises(LocalProtocolError, match="offer"):
        peer.session.accept(1, now=0.0)
    assert peer.session.stats.open_requests == 0


def test_track_that_ended_before_the_answer() -> None:
    peer = ScriptedPeer()
    stream = offered(peer)
    peer.send_octets(peer.open_uni(), subgroup(0, [0]), fin=True)
    peer.send(stream, DONE, fin=True)
    peer.session.accept(1, now=0.0)
    peer.after()
    assert peer.messages(stream) == [RequestOk()]
    assert got(peer.take(ObjectReceived)) == [(0, 0)]
    assert one(peer.take(SubscriptionEnded)).streams_missing == 0
    assert stream in peer.transport.finished
    assert peer.session.stats.open_requests == 0


def test_updates_of_the_publisher_are_answered() -> None:
    """9.5#2: the sender of PUBLISH may update it too."""
    peer = ScriptedPeer()
    stream = offered(peer)
    peer.send(stream, RequestUpdate(peer.next_request_id()))
    assert peer.messages(stream) == []
    peer.session.accept(1, now=0.0)
    assert peer.messages(stream) == [RequestOk()] * 2
    peer.send(stream, RequestUpdate(peer.next_request_id()))
    assert peer.messages(stream) == [RequestOk()]
    peer.send(stream, PublishStateNotify())
    assert peer.messages(stream) == []
    peer.send(stream, RequestOk())
    violation(peer)


def test_publisher_cancels() -> None:
    peer = ScriptedPeer()
    stream = offered(peer)
    peer.session.accept(1, now=0.0)
    peer.reset(stream, StreamResetCode.GOING_AWAY)
    assert one(peer.take(SubscriptionEnded)).code is PublishDoneCode.GOING_AWAY


def test_cancel_an_offer_and_a_subscription_made_of_one() -> None:
    for accepted in (False, True):
        peer = ScriptedPeer()
        stream = offered(peer)
        if accepted:
            peer.session.accept(1, now=0.0)
        peer.session.cancel(1, now=0.0)
        assert set(peer.transport.resets) == set(peer.transport.stops) == {stream}
        late = peer.open_uni()
        peer.send_octets(late, subgroup(0, [0]))
        assert late in peer.transport.stops


def test_offer_whose_filter_ends_before_it_begins() -> None:
    """It is refused as any other request's, and the application never asked."""
    peer = ScriptedPeer()
    swapped = LocationFilter(
        LocationFilterType.END_OBJECT, start_group=3, start_object=5, end_group=3, end_object=2
    )
    stream = offered(peer, Parameters(location_filter=swapped))
    answer = one(peer.messages(stream))
    assert isinstance(answer, RequestError)
    assert answer.code is RequestErrorCode.INVALID_RANGE
    assert not peer.take(PublicationOffered)
    data = peer.open_uni()
    peer.send_octets(data, subgroup(3, [5]))
    assert data in peer.transport.stops
    assert peer.transport.closed is None


# Aliases


def test_offer_with_the_alias_of_another_track() -> None:
    """3.1.3#3."""
    peer = ScriptedPeer()
    established(peer, name=OTHER)
    offered(peer)
    assert_closed(peer, SessionErrorCode.DUPLICATE_TRACK_ALIAS)


def test_two_offers_with_one_alias_for_two_tracks() -> None:
    peer = ScriptedPeer()
    offered(peer)
    peer.send(peer.open_bidi(), Publish(3, OTHER, ALIAS))
    assert_closed(peer, SessionErrorCode.DUPLICATE_TRACK_ALIAS)


def shared(peer: ScriptedPeer) -> tuple[int, int]:
    """Two subscriptions that share an alias: all of it, and Objects up to 1 only."""
    whole = established(peer)
    part = peer.session.subscribe(
        NAME,
        range_filters=[RangeFilter(RangeFilterKind.OBJECT_ID, (IdRange(0, 1),))],
        now=0.0,
    )
    peer.send(4, SubscribeOk(ALIAS))
    peer.take(SubscriptionEstablished)
    return whole, part


@pytest.mark.parametrize("whole_first", [True, False])
def test_copies_on_a_shared_alias_are_told_apart(whole_first: bool) -> None:
    """3.1#4, 3.1#5: each gets what passes its filter, each Object once."""
    peer = ScriptedPeer()
    whole, part = shared(peer)
    streams = [subgroup(0, [0, 1, 2, 3]), subgroup(0, [0, 1])]
    for octets in streams if whole_first else reversed(streams):
        peer.send_octets(peer.open_uni(), octets, fin=True)
    found: dict[int, list[int]] = {whole: [], part: []}
    for event in peer.take(ObjectReceived):
        found[event.request_id].append(event.object.location.object_id)
    assert sorted(found[whole]) == [0, 1, 2, 3]
    assert sorted(found[part]) == [0, 1]
    peer.send_octets(peer.open_uni(), subgroup(0, [0, 1]), fin=True)
    assert peer.take(ObjectReceived) == []
    assert peer.session.stats.octets_unread == 6 * 40


def test_one_of_two_on_a_shared_alias_is_cancelled() -> None:
    peer = ScriptedPeer()
    whole, part = shared(peer)
    first, second = peer.open_uni(), peer.open_uni()
    peer.send_octets(first, subgroup(0, [0]))
    peer.send_octets(second, subgroup(1, [0, 1]))
    peer.session.cancel(part, now=0.0)
    assert first not in peer.transport.stops
    assert second not in peer.transport.stops
    peer.send_octets(peer.open_uni(), subgroup(2, [0, 1, 2]), fin=True)
    events = [e for e in peer.take(ObjectReceived) if e.object.location.group_id == 2]
    assert [event.request_id for event in events] == [whole] * 3
    peer.session.cancel(whole, now=0.0)
    assert {first, second} <= set(peer.transport.stops)
    assert peer.transport.owed == 0


def test_streams_on_a_shared_alias_go_on_for_the_other() -> None:
    """Whose copy a stream is nobody knows: the one that is left takes it over."""
    peer = ScriptedPeer()
    whole, part = shared(peer)
    at_rest, inside = peer.open_uni(), peer.open_uni()
    octets = subgroup(0, [0, 1])
    peer.send_octets(at_rest, subgroup(1, [0]))
    peer.send_octets(inside, octets[:-3])
    peer.take(ObjectReceived)
    peer.session.cancel(whole, now=0.0)
    assert at_rest not in peer.transport.stops
    assert inside in peer.transport.stops  # it was in the middle of an Object of the other's
    peer.send_octets(at_rest, subgroup(1, [0, 1])[-42:])
    event = one(peer.take(ObjectReceived))
    assert (event.request_id, event.object.location) == (part, Location(1, 1))
    assert peer.transport.owed == 0


@pytest.mark.parametrize("is_placed", [True, False])
def test_an_object_that_began_before_the_alias_was_shared(is_placed: bool) -> None:
    """Its place goes back to the sink that gave it, and nobody else's account is charged."""
    peer = ScriptedPeer()
    sink = RecordingSink()
    first = established(peer, sink=sink if is_placed else None)
    stream = peer.open_uni()
    peer.send_octets(stream, subgroup(0, [0])[:-3])
    second = established(peer, stream_id=4)
    peer.session.cancel(first, now=0.0)
    assert stream in peer.transport.stops
    assert len(sink.given_back) == is_placed
    peer.send_octets(peer.open_uni(), subgroup(1, [0]), fin=True)
    assert one(peer.take(ObjectReceived)).request_id == second
    peer.session.cancel(second, now=0.0)
    assert peer.session.stats.octets_unread == 0
    assert peer.transport.owed == 0


def test_datagrams_on_a_shared_alias() -> None:
    peer = ScriptedPeer()
    whole, part = shared(peer)
    for object_id in (1, 1, 1, 2, 2):
        peer.datagram(
            encode_datagram(ObjectDatagram(track_alias=ALIAS, group_id=0, object_id=object_id))
        )
    found = [(e.request_id, e.object.location.object_id) for e in peer.take(ObjectReceived)]
    assert found == [(whole, 1), (part, 1), (whole, 2)]


# GOAWAY


def test_goaway_from_the_peer() -> None:
    """9.2#6."""
    peer = ScriptedPeer()
    request_id = established(peer)
    peer.send(peer.control, Goaway("moqt://other/", 2000))
    assert one(peer.take(GoawayReceived)) == GoawayReceived("moqt://other/", 2000)
    with pytest.raises(SessionLeaving, match="GOAWAY"):
        peer.session.fetch(NAME, now=0.0)
    peer.session.update(request_id, forward=False)
    peer.send_octets(peer.open_uni(), subgroup(0, [0]), fin=True)
    assert len(peer.take(ObjectReceived)) == 1


def test_goaway_twice() -> None:
    """9.2#3."""
    peer = ScriptedPeer()
    peer.send(peer.control, Goaway())
    peer.send(peer.control, Goaway())
    violation(peer)


def test_goaway_with_a_uri_to_a_server() -> None:
    """9.2#2."""
    peer = ScriptedPeer(Role.SERVER)
    peer.send(peer.control, Goaway("moqt://other/"))
    violation(peer)


def test_goaway_for_one_request() -> None:
    peer = ScriptedPeer()
    request_id = established(peer)
    peer.send(0, Goaway("", 5))
    assert one(peer.take(GoawayReceived)) == GoawayReceived("", 5, request_id)
    assert peer.session.track_status(NAME, now=0.0) == 2
    peer.send(0, Goaway("", 5))
    violation(peer)


def test_our_goaway() -> None:
    """9.2#1, 9.2#9."""
    peer = ScriptedPeer(config=SessionConfig(goaway_timeout_ms=3000))
    with pytest.raises(LocalProtocolError, match="URI"):
        peer.session.goaway("moqt://other/", now=0.0)
    peer.messages(2)
    peer.session.goaway(now=0.0)
    assert peer.messages(2) == [Goaway("", 3000)]
    with pytest.raises(LocalProtocolError, match="already"):
        peer.session.goaway(now=0.0)
    with pytest.raises(SessionLeaving, match="GOAWAY"):
        peer.session.subscribe(NAME, now=0.0)
    peer.advance(4.0)
    assert not peer.session.is_closed  # nothing was open


def test_a_peer_that_does_not_go() -> None:
    """6.6.1#1."""
    peer = ScriptedPeer()
    established(peer)
    peer.session.goaway(timeout_ms=1000, now=0.0)
    peer.advance(0.9)
    assert not peer.session.is_closed
    peer.advance(0.2)
    assert_closed(peer, SessionErrorCode.GOAWAY_TIMEOUT)


def test_goaway_without_a_time() -> None:
    peer = ScriptedPeer(Role.SERVER)
    peer.session.subscribe(NAME, now=0.0)
    peer.session.goaway("moqt://other/", 0, now=0.0)
    peer.send(1, SubscribeOk(ALIAS))
    peer.advance(100.0)
    assert not peer.session.is_closed
