"""A subscription of ours from SUBSCRIBE to PUBLISH_DONE, and its fills."""

from __future__ import annotations

import pytest

from moqt.codes import (
    GroupOrder,
    ObjectStatus,
    PublishDoneCode,
    RequestErrorCode,
    SessionErrorCode,
    StreamResetCode,
)
from moqt.errors import LocalProtocolError
from moqt.session.config import SessionConfig
from moqt.session.events import (
    ObjectReceived,
    RequestRejected,
    SubgroupEnded,
    SubscriptionEnded,
    SubscriptionEstablished,
    TrackMalformed,
)
from moqt.testing import ScriptedPeer
from moqt.types import Location
from moqt.wire.fields import KeyValue
from moqt.wire.filters import IdRange, LocationFilter, RangeFilter, RangeFilterKind
from moqt.wire.messages import (
    PublishDone,
    Subscribe,
    SubscribeOk,
)
from moqt.wire.options import SetupOptions
from moqt.wire.params import FillParameters, Parameters
from moqt.wire.properties import TrackProperties
from tests.session.receiving import (
    ALIAS,
    NAME,
    OTHER,
    RecordingSink,
    established,
    got,
    one,
    payload_of,
    subgroup,
)
from tests.session.test_setup import assert_closed, violation


def done(count: int | None, code: PublishDoneCode = PublishDoneCode.TRACK_ENDED) -> PublishDone:
    return PublishDone(code=code, stream_count=count, reason="over")


# The messages


def test_defaults_are_not_written() -> None:
    peer = ScriptedPeer()
    peer.session.subscribe(NAME, now=0.0)
    assert peer.messages(0) == [Subscribe(0, NAME)]


def test_everything_that_can_be_asked_for() -> None:
    peer = ScriptedPeer()
    filters = (RangeFilter(RangeFilterKind.OBJECT_ID, (IdRange(0, 3),)),)
    fill = FillParameters(location_filter=LocationFilter.none())
    peer.session.subscribe(
        NAME,
        location_filter=LocationFilter.next_object(),
        range_filters=filters,
        fill=fill,
        priority=3,
        group_order=GroupOrder.DESCENDING,
        forward=False,
        rendezvous_timeout_ms=5,
        object_delivery_timeout_ms=6,
        subgroup_delivery_timeout_ms=7,
        now=0.0,
    )
    assert one(peer.messages(0)) == Subscribe(
        0,
        NAME,
        Parameters(
            location_filter=LocationFilter.next_object(),
            range_filters=filters,
            fill=fill,
            subscriber_priority=3,
            group_order=GroupOrder.DESCENDING,
            forward=False,
            rendezvous_timeout_ms=5,
            object_delivery_timeout_ms=6,
            subgroup_delivery_timeout_ms=7,
        ),
    )


def test_established() -> None:
    peer = ScriptedPeer()
    request_id = peer.session.subscribe(NAME, now=0.0)
    properties = TrackProperties.of(default_publisher_priority=9)
    parameters = Parameters(largest=Location(3, 1), expires_ms=50)
    peer.send(0, SubscribeOk(ALIAS, parameters, properties))
    assert one(peer.take(SubscriptionEstablished)) == SubscriptionEstablished(
        request_id, ALIAS, Location(3, 1), properties, 50
    )


def test_range_filters_need_the_peers_leave() -> None:
    """9.1.6#1, 6.3#6."""
    filters = (RangeFilter(RangeFilterKind.OBJECT_ID, (IdRange(0, 3), IdRange(5, 6))),)
    for options in (SetupOptions(), SetupOptions(max_filter_ranges=1)):
        peer = ScriptedPeer(options=options)
        with pytest.raises(LocalProtocolError, match="filter"):
            peer.session.subscribe(NAME, range_filters=filters, now=0.0)
        with pytest.raises(LocalProtocolError, match="filter"):
            peer.session.fetch(NAME, range_filters=filters, now=0.0)
        assert peer.messages(0) == []
    peer = ScriptedPeer(setup=False)
    peer.session.start(0.0)
    with pytest.raises(LocalProtocolError, match="filter"):
        peer.session.subscribe(NAME, range_filters=filters, now=0.0)


def test_unknown_mandatory_property() -> None:
    """3.7#2, 3.7#4."""
    peer = ScriptedPeer()
    properties = TrackProperties.of(other=[KeyValue(0x4002, 1)])
    request_id = established(peer, properties=properties)
    event = one(peer.take(RequestRejected))
    assert (event.request_id, event.code) == (request_id, RequestErrorCode.UNSUPPORTED_EXTENSION)
    assert "0x4002" in event.reason
    assert 0 in peer.transport.stops
    peer.send_octets(peer.open_uni(), subgroup(0, [0]))
    assert peer.take(ObjectReceived) == []
    assert not peer.session.is_closed


# Objects


def test_objects_and_the_end_of_their_stream() -> None:
    peer = ScriptedPeer()
    request_id = established(peer)
    peer.send_octets(peer.open_uni(), subgroup(4, [0, 1, 5], ends_group=True), fin=True)
    events = peer.take(ObjectReceived)
    assert got(events) == [(4, 0), (4, 1), (4, 5)]
    assert not any(event.from_fill for event in events)
    assert one(peer.take(SubgroupEnded)) == SubgroupEnded(request_id, 4, 0, ends_group=True)
    for event in events:
        peer.session.consume(request_id, event.object)
    assert peer.transport.owed == 0
    assert peer.session.stats.octets_unread == 0
    assert peer.session.stats.open_streams_received == 0
    assert peer.session.stats.objects_received == 3
    assert peer.session.stats.octets_received == 120


def test_default_priority_is_the_tracks() -> None:
    peer = ScriptedPeer()
    established(peer, properties=TrackProperties.of(default_publisher_priority=9))
    peer.send_octets(peer.open_uni(), subgroup(0, [0]))
    peer.send_octets(peer.open_uni(), subgroup(1, [0], priority=3))
    priorities = [e.object.header.publisher_priority for e in peer.take(ObjectReceived)]
    assert priorities == [9, 3]


def test_status_objects() -> None:
    peer = ScriptedPeer()
    established(peer)
    end = (3, ObjectStatus.END_OF_GROUP)
    peer.send_octets(peer.open_uni(), subgroup(0, [0, 2], end_status=end), fin=True)
    events = peer.take(ObjectReceived)
    assert events[-1].object.status is ObjectStatus.END_OF_GROUP
    assert events[-1].object.location == Location(0, 3)


def test_reset_stream_tells_its_code_and_spares_the_subscription() -> None:
    peer = ScriptedPeer()
    request_id = established(peer)
    stream = peer.open_uni()
    peer.send_octets(stream, subgroup(1, [0, 1])[:-5])
    peer.reset(stream, 0x52E4A40FA8DB)
    assert got(peer.take(ObjectReceived)) == [(1, 0)]
    assert one(peer.take(SubgroupEnded)) == SubgroupEnded(
        request_id,
        1,
        0,
        reset=StreamResetCode.INTERNAL_ERROR,
        reset_code=0x52E4A40FA8DB,
    )
    peer.send_octets(peer.open_uni(), subgroup(1, [1]), fin=True)
    assert got(peer.take(ObjectReceived)) == [(1, 1)]


def test_fin_inside_an_object() -> None:
    """11.3#1."""
    peer = ScriptedPeer()
    established(peer)
    peer.send_octets(peer.open_uni(), subgroup(1, [0, 1])[:-5], fin=True)
    violation(peer)


def test_sink_gets_every_octet_in_its_place() -> None:
    sink = RecordingSink()
    peer = ScriptedPeer()
    request_id = established(peer, sink=sink)
    octets = subgroup(4, [0, 1], size=100)
    stream = peer.open_uni()
    for start in range(0, len(octets), 13):
        peer.send_octets(stream, octets[start : start + 13])
    peer.send_octets(stream, b"", fin=True)
    events = peer.take(ObjectReceived)
    assert [event.object.payload for event in events] == [None, None]
    assert [getattr(event.object.placement, "token", None) for event in events] == [1, 2]
    assert sink.memory == {
        (4, 0): bytearray(payload_of(4, 0, 100)),
        (4, 1): bytearray(payload_of(4, 1, 100)),
    }
    assert sink.given_back == []
    peer.session.consume(request_id, events[0].object)
    assert peer.transport.owed == 0


@pytest.mark.parametrize("how", ["reset", "cancel", "request reset", "close", "lost"])
def test_an_unfinished_place_is_given_back_at_once(how: str) -> None:
    sink = RecordingSink()
    peer = ScriptedPeer()
    request_id = established(peer, sink=sink)
    stream = peer.open_uni()
    octets = subgroup(4, [0, 1], size=100)
    peer.send_octets(stream, octets[:-10])
    memory = bytes(sink.memory[4, 1])
    if how == "reset":
        peer.reset(stream)
    elif how == "cancel":
        peer.session.cancel(request_id, now=0.0)
    elif how == "request reset":
        peer.reset(0)
    elif how == "close":
        peer.session.close(now=0.0)
    else:
        peer.session.connection_lost(SessionErrorCode.NO_ERROR, "", by_peer=True, now=0.0)
    assert [placement.token for placement in sink.given_back] == [2]
    peer.send_octets(stream, octets[-10:])
    assert bytes(sink.memory[4, 1]) == memory
    assert len(sink.given_back) == 1


def test_cancel_stops_all_streams_and_late_ones() -> None:
    """3.1.3#4."""
    peer = ScriptedPeer()
    request_id = established(peer)
    streams = [peer.open_uni() for _ in range(2)]
    for number, stream in enumerate(streams):
        peer.send_octets(stream, subgroup(number, [0]))
    peer.session.cancel(request_id, now=0.0)
    assert set(streams) <= set(peer.transport.stops)
    late = peer.open_uni()
    peer.send_octets(late, subgroup(5, [0]), fin=True)
    assert late in peer.transport.stops
    assert peer.session.stats.stray_streams_held == 0
    assert len(peer.take(ObjectReceived)) == 2
    assert peer.transport.owed == 0
    assert peer.session.stats.open_streams_received == 0


# PUBLISH_DONE


def test_done_without_streams() -> None:
    peer = ScriptedPeer()
    request_id = established(peer)
    peer.send(0, done(0), fin=True)
    assert one(peer.take(SubscriptionEnded)) == SubscriptionEnded(
        request_id, PublishDoneCode.TRACK_ENDED, "over"
    )
    assert 0 in peer.transport.finished
    assert peer.session.stats.open_requests == 0
    assert peer.session.next_deadline is None


def test_done_waits_for_the_streams_it_counts() -> None:
    peer = ScriptedPeer()
    established(peer)
    first, second = peer.open_uni(), peer.open_uni()
    peer.send_octets(first, subgroup(0, [0]), fin=True)
    peer.send(0, done(3), fin=True)
    peer.send_octets(second, subgroup(1, [0]), fin=True)
    assert peer.take(SubscriptionEnded) == []
    third = peer.open_uni()
    peer.send_octets(third, subgroup(2, [0])[:6])
    peer.reset(third)
    assert one(peer.take(SubscriptionEnded)).streams_missing == 0
    assert got(peer.take(ObjectReceived)) == [(0, 0), (1, 0)]


def test_streams_that_do_not_come_are_missing() -> None:
    """9.9#2, 9.9#4."""
    peer = ScriptedPeer(config=SessionConfig(done_timeout_s=4.0))
    established(peer)
    peer.send(0, done(3))
    peer.advance(3.9)
    assert peer.take(SubscriptionEnded) == []
    peer.advance(0.2)
    assert one(peer.take(SubscriptionEnded)).streams_missing == 3
    late = peer.open_uni()
    peer.send_octets(late, subgroup(2, [0]))
    assert late in peer.transport.stops


def test_an_unknown_count_ends_by_time() -> None:
    """9.9#4."""
    peer = ScriptedPeer(config=SessionConfig(done_timeout_s=4.0))
    established(peer)
    peer.send(0, done(None))
    peer.send_octets(peer.open_uni(), subgroup(2, [0]), fin=True)
    peer.advance(4.1)
    assert one(peer.take(SubscriptionEnded)).streams_missing == 0
    assert got(peer.take(ObjectReceived)) == [(2, 0)]


def test_the_wait_is_as_long_as_a_delivery_timeout() -> None:
    """9.9#2."""
    peer = ScriptedPeer(config=SessionConfig(done_timeout_s=4.0))
    established(peer, properties=TrackProperties.of(object_delivery_timeout_ms=9000))
    peer.send(0, done(1))
    peer.advance(8.9)
    assert peer.take(SubscriptionEnded) == []
    peer.advance(0.2)
    assert len(peer.take(SubscriptionEnded)) == 1


def test_a_stream_that_goes_on_is_waited_for() -> None:
    peer = ScriptedPeer(config=SessionConfig(done_timeout_s=4.0))
    established(peer)
    stream = peer.open_uni()
    octets = subgroup(0, [0], size=1000)
    peer.send_octets(stream, octets[:100])
    peer.send(0, done(1))
    for start in range(100, len(octets), 300):
        peer.advance(3.0)
        peer.send_octets(stream, octets[start : start + 300])
    assert peer.take(SubscriptionEnded) == []
    peer.send_octets(stream, b"", fin=True)
    assert one(peer.take(SubscriptionEnded)).streams_missing == 0


def test_a_stream_that_stops_short_is_given_up() -> None:
    peer = ScriptedPeer(config=SessionConfig(done_timeout_s=4.0))
    established(peer)
    stream = peer.open_uni()
    peer.send_octets(stream, subgroup(0, [0], size=1000)[:100])
    peer.send(0, done(1))
    peer.advance(9.0)
    assert one(peer.take(SubscriptionEnded)).streams_missing == 1
    assert stream in peer.transport.stops


def test_more_streams_than_counted() -> None:
    peer = ScriptedPeer()
    established(peer)
    stream = peer.open_uni()
    peer.send_octets(stream, subgroup(0, [0]))
    peer.send(0, done(1))
    peer.send_octets(peer.open_uni(), subgroup(1, [0]))
    violation(peer)


# Malformed tracks and aliases


def test_a_malformed_track_takes_all_its_requests_along() -> None:
    """12.1#1, 12.1#2, 12.1#3."""
    peer = ScriptedPeer()
    first = established(peer)
    second = peer.session.fetch(NAME, now=0.0)
    third = peer.session.subscribe(OTHER, now=0.0)
    peer.send(8, SubscribeOk(ALIAS + 1))
    stream = peer.open_uni()
    end = (2, ObjectStatus.END_OF_GROUP)
    peer.send_octets(stream, subgroup(0, [0, 1], end_status=end))
    peer.send_octets(peer.open_uni(), subgroup(0, [2], subgroup_id=1))
    events = peer.take(TrackMalformed)
    assert {event.request_id for event in events} == {first, second}
    assert "behind the end of its Group" in events[0].reason
    assert got(peer.take(ObjectReceived)) == [(0, 0), (0, 1), (0, 2)]  # the last is the status
    for stopped in (0, 4, stream):
        assert peer.transport.stops[stopped] is StreamResetCode.MALFORMED_TRACK
    peer.send_octets(peer.open_uni(), subgroup(0, [0], alias=ALIAS + 1), fin=True)
    assert one(peer.take(ObjectReceived)).request_id == third


def test_alias_of_an_established_subscription_for_another_track() -> None:
    """3.1.3#3."""
    peer = ScriptedPeer()
    established(peer)
    peer.session.subscribe(OTHER, now=0.0)
    peer.send(4, SubscribeOk(ALIAS))
    assert_closed(peer, SessionErrorCode.DUPLICATE_TRACK_ALIAS)


def test_alias_may_be_used_again_once_it_is_free() -> None:
    peer = ScriptedPeer()
    request_id = established(peer)
    peer.session.cancel(request_id, now=0.0)
    other = established(peer, name=OTHER, stream_id=4)
    peer.send_octets(peer.open_uni(), subgroup(0, [0]))
    assert one(peer.take(ObjectReceived)).request_id == other


def test_too_large_an_object_cancels_its_request_before_memory_is_taken() -> None:
    peer = ScriptedPeer(config=SessionConfig(max_object_octets=1000))
    request_id = established(peer)
    stream = peer.open_uni()
    peer.send_octets(stream, subgroup(0, [0], size=1000) + subgroup(0, [1], size=1001)[3:24])
    assert got(peer.take(ObjectReceived)) == [(0, 0)]
    event = one(peer.take(TrackMalformed))
    assert event.request_id == request_id
    assert "1001" in event.reason
    assert peer.transport.stops[stream] is StreamResetCode.EXCESSIVE_LOAD
    assert peer.transport.stops[0] is StreamResetCode.EXCESSIVE_LOAD
    assert peer.transport.owed == 0
