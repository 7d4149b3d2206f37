"""Which streams of a subscription were counted, when a fill's may have been lost (MOQT-22 9.9)."""

from __future__ import annotations

import pytest

from moqt.codes import PublishDoneCode, StreamResetCode
from moqt.session.events import FillEnded, ObjectReceived, SubscriptionEnded
from moqt.session.receive.subscription import MAX_DONE_WAIT_S
from moqt.testing import ScriptedPeer
from moqt.types import Location
from moqt.wire.filters import LocationFilter
from moqt.wire.messages import PublishDone, RequestOk, SubscribeOk
from moqt.wire.params import FillParameters, Parameters
from moqt.wire.properties import TrackProperties
from moqt.wire.vi64 import MAX_VI64
from tests.session.receiving import ALIAS, NAME, established, fetched, got, one, subgroup

FILL = FillParameters(location_filter=LocationFilter.absolute(Location(0, 0)))
LARGEST = Parameters(largest=Location(3, 3))


def filling() -> tuple[ScriptedPeer, int]:
    """Return a subscription whose fill was accepted."""
    peer = ScriptedPeer()
    request_id = peer.session.subscribe(NAME, fill=FILL, now=peer.now)
    peer.send(0, SubscribeOk(ALIAS, LARGEST, TrackProperties()))
    return peer, request_id


def done(stream_count: int) -> PublishDone:
    return PublishDone(code=PublishDoneCode.TRACK_ENDED, stream_count=stream_count, reason="")


def test_the_stream_of_a_fill_that_was_given_up_is_counted_once() -> None:
    """9.9#2: else the last stream of the subscription would not be waited for."""
    peer, request_id = filling()
    peer.reset(peer.open_uni())  # of whatever: it may have been the fill's
    peer.advance(2)
    assert one(peer.take(FillEnded)).reset is StreamResetCode.INTERNAL_ERROR
    peer.send_octets(peer.open_uni(), fetched(request_id, [(0, 0)]), fin=True)  # it was not
    peer.send(0, done(2), fin=True)
    assert not peer.take(SubscriptionEnded)
    peer.send_octets(peer.open_uni(), subgroup(4, [0]), fin=True)
    assert got(peer.take(ObjectReceived)) == [(4, 0)]
    assert one(peer.take(SubscriptionEnded)).streams_missing == 0
    assert peer.transport.closed is None


def test_a_fill_that_is_given_up_is_no_breach_of_the_stream_count() -> None:
    """9.9#2: that its stream was lost is a guess of ours, and not to be held against the peer."""
    peer, _ = filling()
    live = peer.open_uni()
    peer.send_octets(live, subgroup(4, [0]))
    peer.reset(peer.open_uni())
    peer.send(0, done(1), fin=True)
    peer.advance(2)
    assert one(peer.take(FillEnded)).reset is StreamResetCode.INTERNAL_ERROR
    assert peer.transport.closed is None
    peer.send_octets(live, b"", fin=True)
    assert one(peer.take(SubscriptionEnded)).streams_missing == 0


def test_a_fill_is_not_cut_by_another_one_that_is_given_up_as_it_comes() -> None:
    """9.9#2: the subscription goes on until what has come is read."""
    peer, request_id = filling()
    update_id = peer.session.update(request_id, fill=FILL)
    peer.send(0, RequestOk(LARGEST))
    peer.reset(peer.open_uni())
    peer.send(0, done(2), fin=True)
    stream = peer.open_uni()
    octets = fetched(request_id, [(0, 0), (0, 1)])
    peer.send_octets(stream, octets[:-1])
    assert one(peer.take(FillEnded)).fill_id == update_id
    assert not peer.take(SubscriptionEnded)
    peer.send_octets(stream, octets[-1:], fin=True)
    assert got(peer.take(ObjectReceived)) == [(0, 0), (0, 1)]
    assert isinstance(peer.events[-1], SubscriptionEnded)


@pytest.mark.parametrize("largest", [Location(3, 3), None])
def test_a_fill_stopped_before_its_answer_stays_stopped(largest: Location | None) -> None:
    """3.4.1#3: no event follows, whether or not the publisher has something to fill."""
    peer = ScriptedPeer()
    request_id = peer.session.subscribe(NAME, fill=FILL, now=peer.now)
    peer.session.stop_fill(request_id, request_id, now=peer.now)
    peer.send(0, SubscribeOk(ALIAS, Parameters(largest=largest), TrackProperties()))
    peer.advance(100)
    assert not peer.take(FillEnded)
    assert peer.session.next_deadline is None
    stream = peer.open_uni()
    peer.send_octets(stream, fetched(request_id, [(0, 0)]))
    assert stream in peer.transport.stops


def test_streams_that_lack_are_not_waited_for_for_ever() -> None:
    """9.9#4: the timeout of a track may be half a billion years."""
    peer = ScriptedPeer()
    never = TrackProperties.of(object_delivery_timeout_ms=MAX_VI64)
    request_id = established(peer, properties=never)
    peer.send(0, done(1), fin=True)
    peer.advance(MAX_DONE_WAIT_S - 1)
    assert not peer.take(SubscriptionEnded)
    peer.advance(2)
    ended = one(peer.take(SubscriptionEnded))
    assert (ended.request_id, ended.streams_missing) == (request_id, 1)
