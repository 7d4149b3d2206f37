"""A FETCH of ours: FETCH_OK and the data stream come in any order."""

from __future__ import annotations

import pytest

from moqt.codes import (
    GroupOrder,
    RangeStatus,
    RequestErrorCode,
    SessionErrorCode,
    StreamResetCode,
)
from moqt.session.config import SessionConfig
from moqt.session.events import (
    EndOfRangeReceived,
    FetchEnded,
    FetchEstablished,
    ObjectReceived,
    RequestRejected,
    TrackMalformed,
)
from moqt.testing import ScriptedPeer
from moqt.types import Location
from moqt.wire.fetch_objects import FetchWriter
from moqt.wire.fields import KeyValue
from moqt.wire.filters import LocationFilter
from moqt.wire.messages import Fetch, FetchOk, RequestError, RequestOk
from moqt.wire.params import Parameters
from moqt.wire.properties import TrackProperties
from moqt.wire.streams import FetchHeader
from tests.session.receiving import NAME, RecordingSink, fetched, got, one
from tests.session.test_setup import assert_closed, violation

OK = FetchOk(False, Location(5, 3))


def start(peer: ScriptedPeer, location_filter: LocationFilter | None = None) -> int:
    return peer.session.fetch(NAME, location_filter=location_filter, now=0.0)


def test_defaults_are_not_written() -> None:
    peer = ScriptedPeer()
    start(peer)
    peer.session.fetch(
        NAME, priority=3, group_order=GroupOrder.DESCENDING, fill_timeout_ms=9, now=0.0
    )
    assert peer.messages(0) == [Fetch(0, NAME)]
    wanted = Parameters(subscriber_priority=3, group_order=GroupOrder.DESCENDING, fill_timeout_ms=9)
    assert peer.messages(4) == [Fetch(2, NAME, wanted)]


@pytest.mark.parametrize("ok_first", [True, False])
def test_ok_and_objects_in_either_order(ok_first: bool) -> None:
    peer = ScriptedPeer()
    request_id = start(peer)
    stream = peer.open_uni()
    if ok_first:
        peer.send(0, OK, fin=True)
    peer.send_octets(stream, fetched(request_id, [(0, 1), (0, 2), (5, 3)]), fin=True)
    if not ok_first:
        assert peer.take(FetchEnded) == []
        peer.send(0, OK, fin=True)
    assert got(peer.take(ObjectReceived)) == [(0, 1), (0, 2), (5, 3)]
    assert one(peer.take(FetchEstablished)) == FetchEstablished(
        request_id, False, Location(5, 3), TrackProperties()
    )
    assert one(peer.take(FetchEnded)) == FetchEnded(request_id)
    assert 0 in peer.transport.finished
    assert peer.session.stats.open_requests == 0
    assert peer.session.stats.open_streams_received == 0
    assert peer.session.next_deadline is None
    assert not peer.session.stats.octets_withheld


def test_no_object_in_the_range() -> None:
    peer = ScriptedPeer()
    request_id = start(peer)
    peer.send(0, OK, fin=True)
    peer.send_octets(peer.open_uni(), fetched(request_id, []), fin=True)
    assert one(peer.take(FetchEnded)) == FetchEnded(request_id)


def test_descending_order_is_read_as_asked() -> None:
    peer = ScriptedPeer()
    request_id = peer.session.fetch(NAME, group_order=GroupOrder.DESCENDING, now=0.0)
    octets = fetched(request_id, [(9, 0), (7, 0), (7, 1)], order=GroupOrder.DESCENDING)
    peer.send_octets(peer.open_uni(), octets)
    assert got(peer.take(ObjectReceived)) == [(9, 0), (7, 0), (7, 1)]


def test_markers() -> None:
    peer = ScriptedPeer()
    request_id = start(peer)
    writer = FetchWriter(FetchHeader(request_id), GroupOrder.ASCENDING)
    octets = writer.head + writer.end_of_range(RangeStatus.TIMED_OUT, Location(2, 5))
    peer.send_octets(peer.open_uni(), octets, fin=True)
    assert one(peer.take(EndOfRangeReceived)) == EndOfRangeReceived(
        request_id, RangeStatus.TIMED_OUT, Location(2, 5)
    )


def test_sink_is_told_that_it_is_no_fill() -> None:
    sink = RecordingSink()
    peer = ScriptedPeer()
    request_id = peer.session.fetch(NAME, sink=sink, now=0.0)
    peer.send_octets(peer.open_uni(), fetched(request_id, [(0, 1)]))
    assert sink.from_fill == [False]
    assert peer.transport.owed == 0


def test_rejected() -> None:
    peer = ScriptedPeer()
    request_id = start(peer)
    peer.send(0, RequestError(code=RequestErrorCode.INVALID_RANGE), fin=True)
    assert one(peer.take(RequestRejected)).request_id == request_id
    stream = peer.open_uni()
    peer.send_octets(stream, fetched(request_id, [(0, 1)]))
    assert stream in peer.transport.stops
    assert peer.take(ObjectReceived) == []


def test_rejected_behind_its_objects() -> None:
    peer = ScriptedPeer()
    request_id = start(peer)
    stream = peer.open_uni()
    peer.send_octets(stream, fetched(request_id, [(0, 1)]))
    peer.send(0, RequestError(code=RequestErrorCode.INTERNAL_ERROR), fin=True)
    assert len(peer.take(RequestRejected)) == 1
    assert stream in peer.transport.stops
    assert peer.transport.owed == 0


def test_reset_data_stream() -> None:
    peer = ScriptedPeer()
    request_id = start(peer)
    peer.send(0, OK, fin=True)
    stream = peer.open_uni()
    peer.send_octets(stream, fetched(request_id, [(0, 1), (0, 2)])[:-3])
    peer.reset(stream, StreamResetCode.UNKNOWN_OBJECT_STATUS)
    assert got(peer.take(ObjectReceived)) == [(0, 1)]
    assert one(peer.take(FetchEnded)) == FetchEnded(
        request_id, StreamResetCode.UNKNOWN_OBJECT_STATUS, 6
    )


def test_request_stream_reset_behind_ok() -> None:
    peer = ScriptedPeer()
    request_id = start(peer)
    stream = peer.open_uni()
    peer.send(0, OK)
    peer.send_octets(stream, fetched(request_id, [(0, 1)]))
    peer.reset(0, StreamResetCode.EXCESSIVE_LOAD)
    assert one(peer.take(FetchEnded)).reset is StreamResetCode.EXCESSIVE_LOAD
    assert stream in peer.transport.stops


def test_cancel_stops_request_and_data_stream() -> None:
    """3.2.4#1."""
    sink = RecordingSink()
    peer = ScriptedPeer()
    request_id = peer.session.fetch(NAME, sink=sink, now=0.0)
    stream = peer.open_uni()
    peer.send_octets(stream, fetched(request_id, [(0, 1), (0, 2)])[:-3])
    peer.session.cancel(request_id, now=0.0)
    assert set(peer.transport.stops) == {0, stream}
    assert set(peer.transport.resets) == {0}
    assert len(sink.given_back) == 1
    assert peer.transport.owed == 0
    assert peer.session.stats.open_requests == 0


def test_end_before_the_start() -> None:
    """9.12#1."""
    peer = ScriptedPeer()
    start(peer, LocationFilter.absolute(Location(6, 0)))
    peer.send(0, OK)
    violation(peer)


def test_unknown_mandatory_property() -> None:
    """3.7#5."""
    peer = ScriptedPeer()
    request_id = start(peer)
    properties = TrackProperties.of(other=[KeyValue(0x4001, b"x")])
    peer.send(0, FetchOk(False, Location(1, 1), properties))
    event = one(peer.take(RequestRejected))
    assert (event.request_id, event.code) == (request_id, RequestErrorCode.UNSUPPORTED_EXTENSION)
    assert 0 in peer.transport.stops
    assert peer.session.stats.open_requests == 0


def test_object_behind_the_last_of_the_track() -> None:
    """Chapter 14, sign 4."""
    peer = ScriptedPeer()
    request_id = start(peer)
    peer.send(0, FetchOk(True, Location(1, 1)))
    peer.send_octets(peer.open_uni(), fetched(request_id, [(1, 1), (1, 2)]))
    assert got(peer.take(ObjectReceived)) == [(1, 1)]
    assert "behind the end of the track" in one(peer.take(TrackMalformed)).reason


def test_end_of_track_before_an_object_that_came() -> None:
    peer = ScriptedPeer()
    request_id = start(peer)
    peer.send_octets(peer.open_uni(), fetched(request_id, [(1, 1), (1, 2)]))
    peer.send(0, FetchOk(True, Location(1, 1)))
    assert len(peer.take(TrackMalformed)) == 1
    assert not peer.session.is_closed


def test_data_stream_that_never_comes() -> None:
    peer = ScriptedPeer(config=SessionConfig(stream_header_timeout_s=5.0))
    request_id = start(peer)
    peer.send(0, OK, fin=True)
    peer.advance(4.0)
    other = peer.session.fetch(NAME, now=peer.now)
    peer.send_octets(peer.open_uni(), fetched(other, [(0, 0)]))
    peer.advance(2.0)
    assert peer.take(FetchEnded) == []  # something was under way
    peer.advance(5.0)
    assert one(peer.take(FetchEnded)) == FetchEnded(request_id, StreamResetCode.INTERNAL_ERROR)


def test_priority_may_be_updated() -> None:
    peer = ScriptedPeer()
    request_id = start(peer)
    assert peer.session.update(request_id, priority=3) == 2


def test_ok_twice() -> None:
    peer = ScriptedPeer()
    start(peer)
    peer.send(0, OK)
    peer.send(0, OK)
    violation(peer)


def test_request_ok_is_no_fetch_ok() -> None:
    peer = ScriptedPeer()
    start(peer)
    peer.send(0, RequestOk())
    assert_closed(peer, SessionErrorCode.PROTOCOL_VIOLATION)
