"""What a publisher must and must not do, row by row: answers, content, fills, ends."""

from __future__ import annotations

import pytest

from moqt.codes import (
    PublishDoneCode,
    RangeStatus,
    RequestErrorCode,
    StreamResetCode,
)
from moqt.errors import LocalProtocolError
from moqt.session.config import SessionConfig
from moqt.session.publish.source import TrackSource
from moqt.types import FullTrackName, Location
from moqt.wire.fields import KeyValue
from moqt.wire.filters import IdRange, LocationFilter, RangeFilter, RangeFilterKind
from moqt.wire.messages import (
    FetchOk,
    PublishDone,
    RequestError,
    RequestOk,
    SubscribeOk,
    TrackStatus,
)
from moqt.wire.params import FillParameters, Parameters
from moqt.wire.properties import ObjectProperties, PropertyType, TrackProperties
from tests.session.sending import (
    JOIN,
    NAME,
    WHOLE_FILL,
    Got,
    Sending,
    done,
    payload_of,
    publish,
)

OTHER = FullTrackName(NAME.namespace, b"other")
LACKED = 0x4001
UNKNOWN_TRACK = FullTrackName(NAME.namespace, b"nowhere")
INNER_MANDATORY = ObjectProperties((KeyValue(0x4000, 1),)).serialize()


# Answers


def test_subscribe_has_one_answer() -> None:
    """3.1#1, 3.1.2#3: SUBSCRIBE_OK or REQUEST_ERROR, and no stream and no datagram after that."""
    side = Sending()
    track = side.track()
    publish(track, [0], 1)
    accepted = side.subscribe(JOIN)
    unknown = side.subscribe(JOIN, UNKNOWN_TRACK)
    ranges = tuple(IdRange(2 * n, 2 * n) for n in range(40))
    too_many = RangeFilter(RangeFilterKind.OBJECT_ID, ranges)
    invalid = side.subscribe(Parameters(range_filters=(too_many,), fill=WHOLE_FILL))
    side.flush()
    assert len(side.data_streams()) == 1  # the fill of the accepted one
    track.write_datagram(1, 0, b"x")
    publish(track, [2], 1)
    side.flush()
    assert [type(one) for one in side.replies(accepted)] == [SubscribeOk]
    for request in (unknown, invalid):
        (answer,) = side.replies(request)
        assert isinstance(answer, RequestError)
        assert side.ended(request)
    assert len(side.transport.datagrams) == 1
    alias = side.alias(accepted)
    assert all(head.track_alias == alias for head in side.subgroups().values())
    assert len(side.data_streams()) == 2


def test_fetch_has_one_answer() -> None:
    """3.2#1, 3.1.2#3: FETCH_OK or REQUEST_ERROR; a refused one gets no stream."""
    side = Sending()
    track = side.track()
    publish(track, [0], 1)
    accepted = side.fetch()
    unknown = side.fetch(name=UNKNOWN_TRACK)
    above = side.fetch(Parameters(location_filter=LocationFilter.absolute(Location(5, 0))))
    side.flush()
    assert [type(one) for one in side.replies(accepted)] == [FetchOk]
    for request, code in (
        (unknown, RequestErrorCode.DOES_NOT_EXIST),
        (above, RequestErrorCode.INVALID_RANGE),
    ):
        (answer,) = side.replies(request)
        assert isinstance(answer, RequestError)
        assert answer.code is code
    assert len(side.data_streams()) == 1


def test_track_properties_are_left_out_on_demand() -> None:
    """9.20.21#1: SUBSCRIBE, FETCH and TRACK_STATUS with INCLUDE_PROPERTIES 0, 1 and without."""
    properties = TrackProperties.of(default_publisher_priority=5)
    side = Sending()
    track = side.track(properties=properties)
    publish(track, [0], 1)
    for include, expected in ((False, TrackProperties()), (True, properties), (None, properties)):
        parameters = Parameters(include_properties=include)
        for request in (
            side.subscribe(parameters),
            side.fetch(parameters),
            side.ask(TrackStatus(side.next_id(), NAME, parameters)),
        ):
            (answer,) = side.replies(request)
            assert isinstance(answer, SubscribeOk | FetchOk | RequestOk)
            assert answer.properties == expected


def test_largest_moves_with_the_first_octet() -> None:
    """3.1.4#1: an Object of which only a part has left is the Largest Object already."""
    side = Sending()
    track = side.track()
    side.subscribe()
    writer = track.open_group(3)
    writer.write(0, payload_of(3, 0))
    side.flush()
    writer.write(7, bytes(1000))
    assert track.largest == Location(3, 7)  # before any octet of it is handed over
    side.transport.room = 10
    side.flush()
    assert side.context.stats.objects_sent == 1
    (answer,) = side.replies(side.subscribe())
    assert isinstance(answer, SubscribeOk)
    assert answer.parameters.largest == Location(3, 7)


# Content


def test_content_is_the_same_however_it_is_asked_for() -> None:
    """2.1#1, 9.20#6, 10.7#1: payloads and properties, octet by octet, whatever the parameters."""
    inner = ObjectProperties.of(other=[KeyValue(0x3A, 9), KeyValue(0x79, b"raw")]).serialize()
    # Not the shortest encoding of the inner list: it has to stay as it is.
    immutable = KeyValue(PropertyType.IMMUTABLE_PROPERTIES, b"\x80\x3a" + inner[1:])
    properties = ObjectProperties.of(
        prior_object_id_gap=2, other=[immutable, KeyValue(0x78, 4)]
    ).serialize()
    side = Sending()
    track = side.track()
    ways = [
        Parameters(),
        Parameters(subscriber_priority=1, object_delivery_timeout_ms=9000),
        Parameters(
            range_filters=(RangeFilter(RangeFilterKind.OBJECT_ID, (IdRange(2, 5),)),),
            include_properties=False,
            location_filter=LocationFilter.absolute(Location(0, 1)),
        ),
    ]
    subscriptions = [side.subscribe(parameters) for parameters in ways]
    writer = track.open_group(0, publisher_priority=9)
    writer.write(2, payload_of(0, 2), properties)
    writer.write(5, b"", properties)
    writer.close()
    side.flush()
    first = [
        Got(Location(0, 2), payload_of(0, 2), 9, properties=properties),
        Got(Location(0, 5), b"", 9, properties=properties),
    ]
    for request in subscriptions:
        assert side.objects(side.subgroups(side.alias(request))) == first
    for parameters in ways[::2]:
        side.fetch(
            Parameters(
                range_filters=parameters.range_filters,
                include_properties=parameters.include_properties,
            )
        )
    side.subscribe(JOIN)
    side.flush()
    assert len(side.fetches()) == 3
    for stream in side.fetches():
        assert side.objects([stream]) == first


def test_an_object_cannot_be_changed() -> None:
    """2.1#1: its ID cannot be written again; what was evicted becomes unknown, nothing else."""
    side = Sending()
    track = side.track()
    writer = track.open_group(0)
    writer.write(0, b"one")
    writer.write(1, b"two")
    with pytest.raises(LocalProtocolError, match="Object ID is 1, expected more than 1"):
        writer.write(1, b"other")
    with pytest.raises(LocalProtocolError, match="Subgroup 0 of Group 0 exists"):
        track.open_group(0)
    track.evict_before(Location(0, 1))
    side.fetch()
    side.flush()
    (stream,) = side.fetches()
    gone, kept = side.read(stream)
    assert not isinstance(gone, Got)
    assert (gone.status, gone.last) == (RangeStatus.UNKNOWN, Location(0, 0))
    assert isinstance(kept, Got)
    assert kept.payload == b"two"


@pytest.mark.parametrize(
    ("pairs", "why"),
    [
        ([KeyValue(0x4000, 1)], "Mandatory Track Property 0x4000 on an Object"),
        ([KeyValue(0x7FFF, b"x")], "Mandatory Track Property 0x7fff on an Object"),
        ([KeyValue(0x0B, INNER_MANDATORY)], "Mandatory Track Property 0x4000 on an Object"),
        ([KeyValue(0x0B, b""), KeyValue(0x0B, b"")], "Immutable Properties occur twice"),
        ([KeyValue(0x0B, b"\x0b\x00")], "Immutable Properties are nested"),
    ],
)
def test_properties_that_no_object_may_have(pairs: list[KeyValue], why: str) -> None:
    """3.7#1, 10.7#3: refused where Objects are written, for streams and for datagrams."""
    octets = ObjectProperties(tuple(pairs)).serialize()
    track = TrackSource(NAME)
    writer = track.open_group(0)
    with pytest.raises(LocalProtocolError, match=why):
        writer.write(0, b"x", octets)
    with pytest.raises(LocalProtocolError, match=why):
        track.write_datagram(0, 0, b"x", octets)
    with pytest.raises(ValueError, match=why):
        ObjectProperties.of(other=pairs)
    assert track.largest is None


# Tracks that a peer cannot use


def test_a_track_that_the_peer_cannot_use_is_kept_from_it() -> None:
    """3.7#6: SUBSCRIBE and FETCH are refused with UNSUPPORTED_EXTENSION; no PUBLISH is sent."""
    side = Sending(SessionConfig(peer_lacks=frozenset({LACKED, 0x5000})))
    track = side.track(properties=TrackProperties.of(other=[KeyValue(LACKED, b"x")]))
    usable = side.track(OTHER, properties=TrackProperties.of(other=[KeyValue(0x4003, b"x")]))
    publish(track, [0], 1)
    publish(usable, [0], 1)
    for request in (side.subscribe(), side.fetch()):
        (answer,) = side.replies(request)
        assert isinstance(answer, RequestError)
        assert answer.code is RequestErrorCode.UNSUPPORTED_EXTENSION
        assert answer.reason == "Mandatory Track Property 0x4001"
        assert side.ended(request)
    with pytest.raises(LocalProtocolError, match="does not support Mandatory Track Property"):
        side.publisher.publish(track, now=0.0)
    (answer,) = side.replies(side.subscribe(name=OTHER))
    assert isinstance(answer, SubscribeOk)
    side.publisher.publish(usable, now=0.0)


# Fills and updates that fail


def test_a_fill_that_fails_says_so_on_its_stream() -> None:
    """3.4.1#2: reset, and opened for that if it was not yet, the header first."""
    side = Sending(SessionConfig(max_active_streams=1))
    track = side.track()
    publish(track, range(3), 2, size=500)
    request = side.subscribe(JOIN)
    second = side.update(request, Parameters(fill=WHOLE_FILL))
    side.transport.room = 200
    side.flush()
    assert len(side.fetches()) == 1
    track.abort(PublishDoneCode.INTERNAL_ERROR, "the store is gone")
    side.flush()
    begun, opened = side.fetches()
    assert [side.transport.streams[s].reset for s in (begun, opened)] == [
        StreamResetCode.INTERNAL_ERROR
    ] * 2
    assert side.fetches(second) == [opened]
    assert side.read(opened) == []
    end = done(side, request)
    assert (end.code, end.stream_count) == (PublishDoneCode.INTERNAL_ERROR, 2)


# The end


def test_done_counts_every_stream_and_comes_last() -> None:
    """9.9#1, 3.1.2#2: fills and empty streams too; not before the last stream has ended."""
    side = Sending()
    track = side.track()
    publish(track, [0], 1)
    request = side.subscribe(JOIN)
    nothing = RangeFilter(RangeFilterKind.OBJECT_ID, (IdRange(77, 77),))
    fill = FillParameters(location_filter=LocationFilter.none(), range_filters=(nothing,))
    side.update(request, Parameters(fill=fill))
    publish(track, [1, 2], 1)
    track.end()
    side.transport.room = 1000
    streams_at_done = []
    write = side.transport.write

    def watch(stream_id: int, buffers: list[memoryview | bytes], fin: bool) -> None:
        if stream_id == request:
            streams_at_done.append([one.is_open for one in side.data_streams().values()])
        write(stream_id, buffers, fin)

    side.transport.write = watch  # type: ignore[assignment, method-assign]
    for _ in range(100):
        side.transport.room = 30
        side.flush()
    end = done(side, request)
    assert (end.code, end.stream_count) == (PublishDoneCode.TRACK_ENDED, 5)
    assert len(side.data_streams()) == 5  # two fills, of which one is empty, and three Groups
    assert not any(streams_at_done[-1])
    assert sum(isinstance(one, PublishDone) for one in side.replies(request)) == 1


def test_done_of_a_subscription_without_streams_counts_none() -> None:
    """9.9#1: 0."""
    side = Sending()
    track = side.track()
    request = side.subscribe(Parameters(forward=False))
    track.abort(PublishDoneCode.INTERNAL_ERROR)
    side.flush()
    assert done(side, request).stream_count == 0


def test_each_end_of_a_subscription_has_its_code() -> None:
    """12.4#1: end of track, failed update; see above for what the publisher breaks off."""
    side = Sending()
    ended, failing = side.track(), side.track(OTHER)
    first, second = side.subscribe(), side.subscribe(name=OTHER)
    publish(failing, [0], 1)
    ended.end()
    too_many = (RangeFilter(RangeFilterKind.OBJECT_ID, tuple(IdRange(i, i) for i in range(99))),)
    side.update(second, Parameters(range_filters=too_many))
    side.flush()
    assert done(side, first).code is PublishDoneCode.TRACK_ENDED
    assert done(side, second).code is PublishDoneCode.UPDATE_FAILED
