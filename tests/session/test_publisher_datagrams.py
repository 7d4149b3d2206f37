"""Objects in datagrams, as a publisher (MOQT-22 2.1.1, 5.1.2, 11.2)."""

from __future__ import annotations

import pytest

from moqt.codes import GroupOrder, PublishDoneCode, RangeStatus
from moqt.errors import LocalProtocolError
from moqt.session.config import Role, SessionConfig
from moqt.session.events import ObjectReceived, SubscriptionEnded
from moqt.session.publish.directory import TrackDirectory
from moqt.session.publish.source import MAX_DATAGRAM_OBJECT_OCTETS, TrackSource
from moqt.testing import LinkConditions, SessionPair
from moqt.types import Location, Object, ObjectHeader
from moqt.wire.datagrams import ObjectDatagram, encode_datagram, parse_datagram
from moqt.wire.fetch_objects import FetchFlag, FetchReader
from moqt.wire.filters import IdRange, LocationFilter, RangeFilter, RangeFilterKind
from moqt.wire.messages import PublishDone
from moqt.wire.object_reader import EndOfRangeRead
from moqt.wire.params import Parameters
from moqt.wire.properties import ObjectProperties, TrackProperties
from moqt.wire.streams import FetchHeader, parse_stream_head
from moqt.wire.vi64 import MAX_VI64, decode
from tests.session.sending import JOIN, MANY, NAME, Sending, done, payload_of, places


def read(octets: bytes) -> ObjectDatagram:
    found = parse_datagram(octets)
    assert isinstance(found, ObjectDatagram)
    return found


def sent(side: Sending) -> list[ObjectDatagram]:
    return [read(octets) for octets in side.transport.datagrams]


def where(datagrams: list[ObjectDatagram]) -> list[tuple[int, int]]:
    return [(one.group_id, one.object_id) for one in datagrams]


def headers(side: Sending, stream_id: int) -> list[ObjectHeader]:
    """Return the headers of the Objects on a fetch stream."""
    data = bytes(side.transport.streams[stream_id].data)
    parsed = parse_stream_head(data)
    assert parsed is not None
    head, start = parsed
    assert isinstance(head, FetchHeader)
    reader = FetchReader(
        head,
        start=start,
        place=lambda _: None,
        max_object_octets=MANY,
        group_order=GroupOrder.ASCENDING,
    )
    items = reader.receive(start, data[start:], True)
    return [item.header for item in items if isinstance(item, Object)]


def test_each_object_goes_by_its_delivery_mode() -> None:
    """2.1.1#1: Objects of one Group, some on a subgroup stream and some in datagrams."""
    side = Sending()
    track = side.track()
    alias = side.alias(side.subscribe())
    writer = track.open_group(0)
    writer.write(0, payload_of(0, 0))
    track.write_datagram(0, 1, payload_of(0, 1), publisher_priority=7)
    writer.write(2, payload_of(0, 2))
    track.write_datagram(0, 3, b"", ends_group=True)
    writer.close()
    side.flush()
    assert places(side.objects(side.subgroups(alias))) == [(0, 0), (0, 2)]
    first, last = sent(side)
    assert first == ObjectDatagram(
        track_alias=alias,
        group_id=0,
        object_id=1,
        publisher_priority=7,
        payload=payload_of(0, 1),
    )
    assert (last.object_id, last.ends_group, last.payload) == (3, True, b"")
    assert track.largest == Location(0, 3)
    stats = side.context.stats
    assert (stats.datagrams_sent, stats.datagrams_unsent, stats.objects_sent) == (2, 0, 4)
    assert stats.octets_sent == 300


def test_bit_4_of_the_type_is_clear() -> None:
    """11.2.1#2: whatever a datagram says."""
    side = Sending()
    track = side.track()
    side.subscribe()
    properties = ObjectProperties.of(prior_object_id_gap=1).serialize()
    track.write_datagram(0, 0, b"x")
    track.write_datagram(0, 5, b"x", properties)
    track.write_datagram(1, 9, b"", properties, ends_group=True)
    side.flush()
    kinds = [decode(memoryview(octets), 0) for octets in side.transport.datagrams]
    assert [found[0] for found in kinds if found] == [0x04, 0x01, 0x03]
    assert [one.properties for one in sent(side)] == [b"", properties, properties]


def test_a_datagram_that_no_path_carries_is_refused_with_the_maximum() -> None:
    side = Sending()
    track = side.track()
    properties = ObjectProperties.of(prior_object_id_gap=1).serialize()
    room = MAX_DATAGRAM_OBJECT_OCTETS - len(properties)
    track.write_datagram(0, 3, bytes(room), properties)
    with pytest.raises(LocalProtocolError, match=f"at most {MAX_DATAGRAM_OBJECT_OCTETS} together"):
        track.write_datagram(0, 4, bytes(room + 1), properties)
    assert track.largest == Location(0, 3)
    largest = encode_datagram(
        ObjectDatagram(
            track_alias=MAX_VI64,
            group_id=MAX_VI64,
            object_id=MAX_VI64,
            publisher_priority=255,
            properties=properties,
            payload=bytes(room),
        )
    )
    # 1200 octets less a short header with the longest Connection ID, its tag, and the frame's type
    # and length.
    assert len(largest) <= 1200 - (1 + 20 + 2 + 16) - (1 + 2)


def test_misuse_is_refused() -> None:
    track = TrackSource(NAME)
    track.write_datagram(0, 4, b"x")
    writer = track.open_group(0)
    writer.write(6, b"x")
    for object_id, why in ((4, "does not come after Object 4"), (6, "published in a Subgroup")):
        with pytest.raises(LocalProtocolError, match=why):
            track.write_datagram(0, object_id, b"x")
    with pytest.raises(LocalProtocolError, match="does not come after Object 6"):
        track.write_datagram(0, 5, b"x", ends_group=True)
    track.write_datagram(0, 7, b"x", ends_group=True)
    with pytest.raises(LocalProtocolError, match="lies behind End of Group at 8"):
        track.write_datagram(0, 8, b"x")
    with pytest.raises(LocalProtocolError, match="lies behind End of Group at 8"):
        writer.write(8, b"x")
    with pytest.raises(ValueError, match="Publisher Priority is 256"):
        track.write_datagram(1, 0, b"x", publisher_priority=256)
    with pytest.raises(ValueError, match="Object ID is -1"):
        track.write_datagram(1, -1, b"x")
    writer.close()
    track.end()
    with pytest.raises(LocalProtocolError, match="has ended"):
        track.write_datagram(9, 0, b"x")


def test_filters_and_pause_hold_for_datagrams() -> None:
    side = Sending()
    track = side.track()
    ids = RangeFilter(RangeFilterKind.OBJECT_ID, (IdRange(2, 5),))
    request = side.subscribe(
        Parameters(
            location_filter=LocationFilter.range(Location(0, 1), Location(0, 4)),
            range_filters=(ids,),
        )
    )
    for object_id in range(6):
        track.write_datagram(0, object_id, b"x")
    track.write_datagram(1, 2, b"x")
    side.flush()
    assert where(sent(side)) == [(0, 2), (0, 3), (0, 4)]
    side.update(request, Parameters(forward=False, location_filter=LocationFilter.none()))
    track.write_datagram(2, 2, b"x")
    side.update(request, Parameters(forward=True))
    track.write_datagram(2, 3, b"x")
    side.flush()
    assert where(sent(side))[3:] == [(2, 3)]
    assert side.context.stats.datagrams_unsent == 0


def test_what_waits_obeys_an_update() -> None:
    """A datagram that waits is dropped when a pause or a narrower range leaves it out."""
    side = Sending()
    track = side.track()
    request = side.subscribe()
    side.transport.room = 0
    for object_id in range(4):
        track.write_datagram(0, object_id, b"x")
    narrow = LocationFilter.absolute(Location(0, 2))
    side.update(request, Parameters(location_filter=narrow))
    side.transport.room = MANY
    side.flush()
    assert where(sent(side)) == [(0, 2), (0, 3)]
    side.transport.room = 0
    track.write_datagram(0, 4, b"x")
    side.update(request, Parameters(forward=False))
    side.update(request, Parameters(forward=True))
    track.write_datagram(0, 5, b"x")
    side.transport.room = MANY
    side.flush()
    assert where(sent(side)) == [(0, 2), (0, 3), (0, 5)]
    assert side.context.stats.datagrams_unsent == 3


def test_priority_then_group_order_then_object_id() -> None:
    """5.1.2#1: among datagrams, and before the Subgroups of the same Group."""
    for order, groups in ((GroupOrder.ASCENDING, [0, 1]), (GroupOrder.DESCENDING, [1, 0])):
        side = Sending()
        track = side.track()
        side.subscribe(Parameters(group_order=order))
        side.transport.room = 0
        side.transport.datagram_slots = 0
        for group_id in range(2):
            track.open_group(group_id).write(9, b"x")
            track.write_datagram(group_id, 0, b"x")
            track.write_datagram(group_id, 1, b"x")
        track.write_datagram(2, 0, b"x", publisher_priority=1)
        side.transport.room = MANY
        side.transport.datagram_slots = MANY
        side.flush()
        first, second = groups
        streams = {head.group_id: stream for stream, head in side.subgroups().items()}
        assert [
            one if isinstance(one, int) else where([read(one)])[0]
            for one in side.transport.sequence
        ] == [
            (2, 0),
            (first, 0),
            (first, 1),
            streams[first],
            (second, 0),
            (second, 1),
            streams[second],
        ]


def test_the_queue_is_short_and_drops_what_would_go_last() -> None:
    """5.2#8: `max_waiting_datagrams` bounds each subscription; QUIC is given few at once."""
    side = Sending(SessionConfig(max_waiting_datagrams=3))
    track = side.track()
    side.subscribe()
    side.transport.datagram_slots = 2
    for object_id in range(4):
        track.write_datagram(1, object_id, b"x")
    side.flush()
    assert where(sent(side)) == [(1, 0), (1, 1)]
    for object_id in range(4, 6):
        track.write_datagram(1, object_id, b"x")
    track.write_datagram(0, 0, b"x")  # in ascending order it goes before those that wait
    side.transport.datagram_slots = MANY
    side.flush()
    assert where(sent(side))[2:] == [(0, 0), (1, 2), (1, 4)]
    assert side.context.stats.datagrams_unsent == 2  # {1,3} and {1,5}


def test_a_full_quic_queue_blocks_datagrams_alone() -> None:
    side = Sending()
    track = side.track()
    side.subscribe()
    side.transport.datagram_slots = 0
    track.write_datagram(0, 0, b"x")
    track.open_group(1).write(0, b"x")
    side.flush()
    assert places(side.objects(side.subgroups())) == [(1, 0)]
    assert sent(side) == []
    side.transport.datagram_slots = 1
    side.flush()
    assert where(sent(side)) == [(0, 0)]


def test_what_quic_does_not_take_is_counted() -> None:
    """A peer may take only small datagrams, or the path may have shrunk."""
    side = Sending()
    track = side.track()
    side.subscribe()
    side.transport.takes_datagrams = False
    track.write_datagram(0, 0, b"x")
    side.flush()
    assert (side.context.stats.datagrams_sent, side.context.stats.datagrams_unsent) == (0, 1)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (TrackProperties.of(object_delivery_timeout_ms=100), Parameters()),
        (TrackProperties.of(subgroup_delivery_timeout_ms=100), Parameters()),
        (TrackProperties(), Parameters(object_delivery_timeout_ms=100)),
        (TrackProperties(), Parameters(subgroup_delivery_timeout_ms=100)),
        (
            TrackProperties.of(object_delivery_timeout_ms=900, subgroup_delivery_timeout_ms=100),
            Parameters(object_delivery_timeout_ms=500),
        ),
    ],
)
def test_late_datagrams_are_dropped(ours: TrackProperties, theirs: Parameters) -> None:
    """5.2#3: by the smallest timeout that anyone has set."""
    side = Sending()
    track = side.track(properties=ours)
    side.subscribe(theirs)
    side.transport.room = 0
    track.write_datagram(0, 0, b"x")
    side.advance(0.06)
    track.write_datagram(0, 1, b"x")
    side.advance(0.06)
    side.transport.room = MANY
    side.flush()
    assert where(sent(side)) == [(0, 1)]
    assert side.context.stats.datagrams_unsent == 1


def test_the_objects_own_timeout_counts_in_place_of_the_tracks() -> None:
    """5.2#3: as the property says, longer or shorter."""
    side = Sending()
    track = side.track(properties=TrackProperties.of(object_delivery_timeout_ms=100))
    side.subscribe()
    side.transport.room = 0
    for object_id, timeout_ms in enumerate((50, 500)):
        properties = ObjectProperties.of(object_delivery_timeout_ms=timeout_ms).serialize()
        track.write_datagram(0, object_id, b"x", properties)
    side.advance(0.2)
    side.transport.room = MANY
    side.flush()
    assert where(sent(side)) == [(0, 1)]


def test_fetches_and_fills_bring_them_on_their_stream() -> None:
    """11.4.1.1#5: with flag 0x40, and the low bits clear."""
    side = Sending()
    track = side.track()
    writer = track.open_group(0, subgroup_id=3, publisher_priority=5)
    writer.write(0, b"a")
    track.write_datagram(0, 1, b"b", publisher_priority=5)
    writer.write(2, b"c")
    writer.close()
    track.write_datagram(1, 0, b"d", ends_group=True)
    track.end()
    side.fetch()
    side.subscribe(JOIN)
    side.flush()
    fetch, fill = side.fetches()
    assert [one.subgroup_id for one in headers(side, fetch)] == [3, None, 3, None]
    assert headers(side, fetch) == headers(side, fill)
    assert [one.payload for one in side.objects([fetch])] == [b"a", b"b", b"c", b"d"]
    only = side.fetch(
        Parameters(location_filter=LocationFilter.range(Location(0, 1), Location(0, 1)))
    )
    side.flush()
    assert side.ended(only)
    data = bytes(side.transport.streams[side.fetches()[-1]].data)
    parsed = parse_stream_head(data)
    assert parsed is not None
    flags = decode(memoryview(data), parsed[1])
    assert flags is not None
    assert flags[0] == (
        FetchFlag.DATAGRAM | FetchFlag.OBJECT_ID_DELTA | FetchFlag.GROUP_ID_DELTA
        | FetchFlag.PRIORITY
    )  # fmt: skip


def test_a_group_of_datagrams_ends_when_it_is_said() -> None:
    """A fetch calls the rest of a Group unknown while more datagrams may come in it."""
    side = Sending()
    track = side.track()
    track.write_datagram(0, 0, b"x")
    track.write_datagram(1, 0, b"x", ends_group=True)
    track.write_datagram(2, 0, b"x")
    side.fetch()
    side.flush()
    (stream,) = side.fetches()
    marks = [item for item in side.read(stream) if isinstance(item, EndOfRangeRead)]
    assert marks == [EndOfRangeRead(RangeStatus.UNKNOWN, Location(0, MAX_VI64))]
    track.end()
    side.fetch()
    side.flush()
    assert all(not isinstance(item, EndOfRangeRead) for item in side.read(side.fetches()[1]))


def test_datagrams_are_evicted_like_others() -> None:
    side = Sending()
    track = side.track(retain=2)
    for group_id in range(3):
        track.write_datagram(group_id, 0, b"x", ends_group=True)
    assert track.retained_octets == 2
    side.fetch()
    side.flush()
    assert places(side.objects(side.fetches())) == [(1, 0), (2, 0)]
    track.abort(PublishDoneCode.INTERNAL_ERROR)
    assert track.retained_octets == 0


def test_done_comes_after_the_last_datagram() -> None:
    """3.1.2#2: PUBLISH_DONE waits for datagrams as for streams, and counts streams alone."""
    side = Sending()
    track = side.track()
    request = side.subscribe()
    side.transport.datagram_slots = 0
    track.write_datagram(0, 0, b"x", ends_group=True)
    track.end()
    side.flush()
    assert not any(isinstance(one, PublishDone) for one in side.replies(request))
    side.transport.datagram_slots = 1
    side.flush()
    assert where(sent(side)) == [(0, 0)]
    end = done(side, request)
    assert (end.code, end.stream_count) == (PublishDoneCode.TRACK_ENDED, 1)  # End of Track's


def test_an_aborted_track_sends_no_more_datagrams() -> None:
    side = Sending()
    track = side.track()
    request = side.subscribe()
    side.transport.room = 0
    track.write_datagram(0, 0, b"x")
    track.abort(PublishDoneCode.INTERNAL_ERROR, "over")
    side.transport.room = MANY
    side.flush()
    assert sent(side) == []
    assert done(side, request).code is PublishDoneCode.INTERNAL_ERROR


def test_both_ends_over_a_link() -> None:
    """2.1.1#1: a subscriber gets them as Objects without a Subgroup, in datagrams."""
    directory = TrackDirectory()
    track = TrackSource(NAME)
    directory.add(track)
    pair = SessionPair(
        server_directory=directory, conditions=LinkConditions(max_waiting_datagrams=2)
    )
    pair.client.subscribe(NAME, now=pair.now)
    pair.run()
    for object_id in range(10):
        track.write_datagram(0, object_id, payload_of(0, object_id), ends_group=object_id == 9)
    track.end()
    pair.run()
    got = pair.take(Role.CLIENT, ObjectReceived)
    datagrams = [event.object for event in got if event.object.header.subgroup_id is None]
    assert [one.location for one in datagrams] == [Location(0, i) for i in range(10)]
    assert [bytes(one.payload or b"") for one in datagrams] == [payload_of(0, i) for i in range(10)]
    assert len(pair.take(Role.CLIENT, SubscriptionEnded)) == 1
    assert pair.client.stats.datagrams_received == pair.server.stats.datagrams_sent == 10
