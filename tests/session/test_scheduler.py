"""The order of chapter 12, and what may hold whom up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moqt.codes import GroupOrder
from moqt.session.config import SessionConfig
from moqt.types import FullTrackName, Location, TrackNamespace
from moqt.wire.filters import LocationFilter
from moqt.wire.params import FillParameters, Parameters
from moqt.wire.streams import FetchHeader, SubgroupHeader
from tests.session.sending import Sending, payload_of, places, publish

if TYPE_CHECKING:
    from moqt.session.publish.source import TrackSource

PIECE = 1000
SMALL = SessionConfig(write_octets=PIECE, max_active_streams=4)
NEXT = LocationFilter.next_object()
EVERYTHING = FillParameters(location_filter=LocationFilter.none())


def named(side: Sending, name: str) -> TrackSource:
    return side.track(FullTrackName(TrackNamespace.of("n"), name.encode()))


def order_of_streams(side: Sending) -> list[int]:
    """Return the data streams in the order in which each was first written."""
    return list(dict.fromkeys(stream for stream, _ in side.transport.log))


def groups_in_order(side: Sending) -> list[int]:
    heads = [side.head(side.transport.streams[s]) for s in order_of_streams(side)]
    return [h.group_id for h in heads if isinstance(h, SubgroupHeader)]


def test_more_urgent_object_overtakes_after_one_piece() -> None:
    """5.1.2#1."""
    side = Sending(SMALL)
    slow, urgent = named(side, "slow"), named(side, "urgent")
    side.subscribe(name=slow.name)
    side.subscribe(name=urgent.name)
    slow.open_group(0, publisher_priority=100).write(0, bytes(10 * PIECE))
    side.transport.room = 2 * PIECE
    side.flush()
    urgent.open_group(0, publisher_priority=3).write(0, bytes(2 * PIECE))
    side.transport.room = 1 << 20
    side.flush()
    first, second = side.data_streams()
    assert [stream for stream, _ in side.transport.log[:6]] == [
        first,
        first,
        second,
        second,  # a little more than a piece, for the headers
        first,
        first,
    ]
    assert all(size <= PIECE + PIECE // 8 for _, size in side.transport.log)


def test_subscriber_priority_goes_before_publisher_priority() -> None:
    """5.1.2#1."""
    side = Sending(SMALL)
    a, b = named(side, "a"), named(side, "b")
    side.subscribe(Parameters(subscriber_priority=10), a.name)
    request = side.subscribe(Parameters(subscriber_priority=9), b.name)
    side.transport.room = 0
    a.open_group(0, publisher_priority=0).write(0, b"a")
    b.open_group(0, publisher_priority=255).write(0, b"b")
    a.open_group(1, publisher_priority=0).write(0, b"a")
    side.transport.room = 20
    side.flush()
    alias = side.alias(request)
    assert next(iter(side.subgroups().values())).track_alias == alias


def test_changed_priority_counts_for_what_waits() -> None:
    """5.1#1."""
    side = Sending(SMALL)
    a, b = named(side, "a"), named(side, "b")
    side.subscribe(Parameters(subscriber_priority=10), a.name)
    request = side.subscribe(Parameters(subscriber_priority=20), b.name)
    side.transport.room = PIECE
    for track in (a, b):
        track.open_group(0).write(0, bytes(5 * PIECE))
    side.flush()
    side.update(request, Parameters(subscriber_priority=1))
    side.transport.room = 1 << 20
    side.flush()
    streams = [stream for stream, _ in side.transport.log]
    first, second = side.data_streams()
    assert streams == [first] + [second] * 5 + [first] * 4


def test_lowered_priority_lets_others_pass() -> None:
    side = Sending(SMALL)
    a, b = named(side, "a"), named(side, "b")
    request = side.subscribe(Parameters(subscriber_priority=10), a.name)
    side.subscribe(Parameters(subscriber_priority=20), b.name)
    side.transport.room = PIECE
    for track in (a, b):
        track.open_group(0).write(0, bytes(5 * PIECE))
    side.flush()
    side.update(request, Parameters(subscriber_priority=200))
    side.transport.room = 1 << 20
    side.flush()
    streams = [stream for stream, _ in side.transport.log]
    first, second = side.data_streams()
    assert streams == [first] + [second] * 5 + [first] * 4


def test_groups_of_one_subscription_go_in_its_order() -> None:
    """5.1.2#1."""
    for order, expected in (
        (GroupOrder.ASCENDING, [1, 2, 3, 5]),
        (GroupOrder.DESCENDING, [5, 3, 2, 1]),
    ):
        side = Sending(SMALL)
        track = side.track()
        side.subscribe(Parameters(group_order=order))
        side.transport.room = 0
        for group_id in (3, 1, 5, 2):
            writer = track.open_group(group_id)
            writer.write(0, bytes(3 * PIECE))
            writer.close()
        side.transport.room = 1 << 20
        side.flush()
        assert groups_in_order(side) == expected
        # One after the other, not in turn: a Group is wanted whole.
        streams = [stream for stream, _ in side.transport.log]
        assert streams == sorted(streams)


def test_track_default_group_order_holds_without_a_parameter() -> None:
    side = Sending(SMALL)
    track = side.track()
    track.properties = track.properties.of(default_group_order=GroupOrder.DESCENDING)
    side.subscribe()
    side.transport.room = 0
    publish(track, [0, 1], 1)
    side.transport.room = 1 << 20
    side.flush()
    assert groups_in_order(side) == [1, 0]


def test_late_group_of_a_descending_subscription_overtakes() -> None:
    side = Sending(SMALL)
    track = side.track()
    side.subscribe(Parameters(group_order=GroupOrder.DESCENDING))
    side.transport.room = PIECE
    track.open_group(0).write(0, bytes(3 * PIECE))
    side.flush()
    track.open_group(1).write(0, bytes(PIECE))
    side.transport.room = 1 << 20
    side.flush()
    first, second = side.data_streams()
    assert [s for s, _ in side.transport.log] == [first, second, first, first]


def test_subgroups_of_a_group_go_by_id() -> None:
    """5.1.2#1."""
    side = Sending(SMALL)
    track = side.track()
    side.subscribe()
    side.transport.room = 0
    for subgroup_id in (4, 0, 2):
        track.open_group(0, subgroup_id=subgroup_id).write(subgroup_id, b"x")
    side.transport.room = 1 << 20
    side.flush()
    assert [h.subgroup_id for h in side.subgroups().values()] == [0, 2, 4]


def test_fill_goes_before_its_subscription_in_the_same_group() -> None:
    """5.1.2#2."""
    side = Sending(SMALL)
    track = side.track()
    writer = track.open_group(4)
    writer.write(0, bytes(3 * PIECE))
    side.subscribe(Parameters(location_filter=NEXT, fill=EVERYTHING))
    side.transport.room = 0
    writer.write(1, bytes(PIECE))
    side.transport.room = 1 << 20
    side.flush()
    heads = [side.head(side.transport.streams[s]) for s in order_of_streams(side)]
    assert [type(h) for h in heads] == [FetchHeader, SubgroupHeader]


def test_subscription_goes_before_a_fill_of_another_order() -> None:
    """5.1.2#2."""
    side = Sending(SMALL)
    track = side.track()
    publish(track, range(3), 1)
    fill = FillParameters(location_filter=LocationFilter.none(), group_order=GroupOrder.DESCENDING)
    side.transport.room = 0
    side.subscribe(Parameters(location_filter=NEXT, fill=fill))
    publish(track, [3], 1)
    side.transport.room = 1 << 20
    side.flush()
    heads = [side.head(side.transport.streams[s]) for s in order_of_streams(side)]
    assert [type(h) for h in heads] == [SubgroupHeader, FetchHeader]


def test_fill_has_its_own_priority_or_follows_the_subscription() -> None:
    side = Sending(SMALL)
    a, b = named(side, "a"), named(side, "b")
    for track in (a, b):
        publish(track, [0], 1)
    side.transport.room = 0
    own = FillParameters(location_filter=LocationFilter.none(), subscriber_priority=200)
    side.subscribe(Parameters(location_filter=NEXT, subscriber_priority=1, fill=own), a.name)
    side.subscribe(Parameters(location_filter=NEXT, subscriber_priority=9, fill=EVERYTHING), b.name)
    side.transport.room = 1 << 20
    side.flush()
    heads = [side.head(side.transport.streams[s]) for s in order_of_streams(side)]
    assert [h.request_id for h in heads if isinstance(h, FetchHeader)] == [2, 0]


def test_equal_requests_take_turns() -> None:
    side = Sending(SMALL)
    tracks = [named(side, name) for name in "abc"]
    side.transport.room = 0
    for track in tracks:
        publish(track, range(3), 2, 5 * PIECE)
        side.fetch(name=track.name)
    side.transport.room = 30 * PIECE
    side.flush()
    written = [len(s.data) for s in side.data_streams().values()]
    assert sum(written) == 30 * PIECE
    assert max(written) - min(written) < PIECE


def test_active_streams_are_limited_and_the_rest_waits_in_turn() -> None:
    side = Sending(SMALL)
    tracks = [named(side, str(i)) for i in range(10)]
    side.transport.room = 0
    for track in tracks:
        publish(track, [0], 1, 3 * PIECE)
        side.fetch(name=track.name)
    for _ in range(8):
        side.transport.room += PIECE
        side.flush()
    assert len(side.data_streams()) == SMALL.max_active_streams
    side.transport.room = 1 << 20
    side.flush()
    assert len(side.data_streams()) == 10
    assert all(s.fin for s in side.data_streams().values())
    # Nobody began before an earlier one was done.
    open_at_once, seen = 0, set[int]()
    left = {stream: len(w.data) for stream, w in side.data_streams().items()}
    for stream, size in side.transport.log:
        seen.add(stream)
        left[stream] -= size
        open_at_once = max(open_at_once, sum(left[s] > 0 for s in seen))
    assert open_at_once == SMALL.max_active_streams


def test_more_urgent_request_may_open_beyond_the_limit() -> None:
    side = Sending(SMALL)
    side.transport.room = 0
    for i in range(6):
        track = named(side, str(i))
        publish(track, [0], 1, 9 * PIECE)
        side.fetch(name=track.name)
    side.transport.room = 8 * PIECE
    side.flush()
    urgent = named(side, "urgent")
    publish(urgent, [0], 1, PIECE)
    side.fetch(Parameters(subscriber_priority=0), urgent.name)
    side.transport.room = 2 * PIECE
    side.flush()
    *_, last = side.data_streams()
    assert len(side.data_streams()) == 5
    assert side.objects([last])[0].payload == payload_of(0, 0, PIECE)


def test_urgent_requests_beyond_the_limit_are_limited_too() -> None:
    side = Sending(SMALL)
    for i in range(20):
        track = named(side, str(i))
        publish(track, [0], 1, 9 * PIECE)
        side.fetch(Parameters(subscriber_priority=100 - i), track.name)
        side.transport.room = PIECE
        side.flush()
        open_streams = sum(s.is_open for s in side.data_streams().values())
        assert open_streams <= 2 * SMALL.max_active_streams
    assert len(side.data_streams()) > SMALL.max_active_streams
    side.transport.room = 1 << 20
    side.flush()
    assert len(side.objects(side.fetches())) == 20
    # Those that had to wait were served by urgency, not by age.
    began = [side.head(side.transport.streams[s]) for s in order_of_streams(side)]
    waited = [h.request_id for h in began[9:] if isinstance(h, FetchHeader)]
    assert waited == sorted(waited, reverse=True)


def test_stream_without_room_blocks_nobody_and_goes_on_later() -> None:
    side = Sending(SMALL)
    a, b = named(side, "a"), named(side, "b")
    side.subscribe(Parameters(subscriber_priority=1), a.name)
    side.subscribe(Parameters(subscriber_priority=9), b.name)
    a.open_group(0).write(0, bytes(2 * PIECE))
    b.open_group(0).write(0, bytes(4 * PIECE))
    side.transport.room = PIECE
    side.flush()
    first = next(iter(side.data_streams()))
    side.transport.streams[first].room = 0
    side.transport.room = 1 << 20
    side.flush()
    _, second = side.data_streams()
    assert len(side.objects([second])) == 1
    side.flush()
    side.transport.streams[first].room = 1 << 20
    side.flush()
    assert len(side.objects([first])) == 1


def test_blocked_streams_free_their_places() -> None:
    side = Sending(SMALL)
    side.transport.room = 0
    for i in range(9):
        track = named(side, str(i))
        publish(track, [0], 1, 2 * PIECE)
        side.fetch(name=track.name)
    opened = side.transport.open

    def open_narrow(*, bidirectional: bool) -> int | None:
        stream_id = opened(bidirectional=bidirectional)
        if stream_id is not None:
            side.transport.streams[stream_id].room = 10
        return stream_id

    side.transport.open = open_narrow  # type: ignore[method-assign]
    side.transport.room = 1 << 20
    side.flush()
    assert [len(s.data) for s in side.data_streams().values()] == [10] * 9
    for written in side.data_streams().values():
        written.room = 1 << 20
    side.flush()
    assert len(side.objects(side.fetches())) == 9
    assert side.context.stats.open_streams_sent == 0


def test_open_streams_are_limited() -> None:
    side = Sending(SessionConfig(max_open_streams=3))
    tracks = [named(side, str(i)) for i in range(5)]
    for track in tracks:
        side.subscribe(name=track.name)
    writers = [track.open_group(0) for track in tracks]
    for writer in writers:
        writer.write(0, b"x")
    side.flush()
    assert len(side.data_streams()) == 3
    writers[0].close()
    side.flush()
    side.flush()
    assert len(side.data_streams()) == 4


def test_stream_limit_of_the_peer_is_waited_for() -> None:
    side = Sending(SMALL)
    track = side.track()
    side.subscribe()
    side.transport.uni_limit = 1
    open_one = track.open_group(0)
    open_one.write(0, bytes(10))
    side.flush()
    publish(track, [1, 2], 1)
    for _ in range(3):
        refused = side.transport.opens_refused
        side.flush()
        assert side.transport.opens_refused == refused + 1  # asked once, no spinning
    open_one.write(1, bytes(10))  # what is open goes on
    side.flush()
    assert places(side.objects(side.subgroups())) == [(0, 0), (0, 1)]
    side.transport.uni_limit = 2
    side.flush()
    assert groups_in_order(side) == [0, 1]
    side.transport.uni_limit = 9
    side.flush()
    assert groups_in_order(side) == [0, 1, 2]


def test_slow_subscriber_does_not_slow_another() -> None:
    slow, fast = Sending(), Sending()
    track = slow.track()
    fast.directory.add(track)
    slow.subscribe()
    fast.subscribe()
    slow.transport.room = 10
    writer = track.open_group(0)
    for object_id in range(50):
        writer.write(object_id, payload_of(0, object_id))
        slow.flush()
        fast.flush()
    assert len(fast.objects(fast.subgroups())) == 50
    slow.transport.room = 1 << 20
    slow.flush()
    assert [g.payload for g in slow.objects(slow.subgroups())] == [
        payload_of(0, o) for o in range(50)
    ]


def test_one_write_spans_many_small_objects() -> None:
    side = Sending()
    track = side.track()
    side.subscribe()
    writer = track.open_group(0)
    for object_id in range(100):
        writer.write(object_id, bytes(4096))
    side.flush()
    assert len(side.transport.log) == -(
        -len(next(iter(side.data_streams().values())).data) // SessionConfig().write_octets
    )


def test_wake_is_asked_for_when_a_track_got_objects() -> None:
    side = Sending()
    track = side.track()
    side.subscribe()
    before = side.wakes
    writer = track.open_group(0)
    writer.write(0, b"0")
    assert side.wakes == before + 1
    writer.write(1, b"1")  # it is awake already
    assert side.wakes == before + 1
    side.flush()
    writer.close()
    assert side.wakes == before + 2
    track.end(Location(1, 0))
    assert side.wakes > before + 2


def test_the_piece_that_ends_an_object_may_be_an_eighth_larger() -> None:
    side = Sending(SMALL)
    track = side.track()
    side.subscribe()
    writer = track.open_group(0)
    for object_id, octets in enumerate((PIECE, 2 * PIECE, PIECE + PIECE // 4)):
        writer.write(object_id, bytes(octets))
    side.flush()
    sizes = [size for _, size in side.transport.log]
    assert sizes[0] > PIECE  # the first Object whole, with its header and the stream's
    head = 3  # Object ID and length
    assert sizes[1:3] == [PIECE, PIECE + head]
    assert sizes[3:] == [PIECE, PIECE // 4 + head]  # no eighth for what does not end with it


def test_the_larger_piece_stays_within_the_transports_room() -> None:
    side = Sending(SMALL)
    track = side.track()
    side.subscribe()
    side.transport.room = PIECE + 1
    track.open_group(0).write(0, bytes(PIECE))
    side.flush()
    assert [size for _, size in side.transport.log] == [PIECE, 1]


def test_room_is_asked_once_a_flush_and_the_flow_control_of_a_stream_once_a_piece() -> None:
    """Both cost a transport more than an Object costs here."""
    side = Sending()
    track = side.track()
    side.subscribe()
    publish(track, range(3), 64, 4096)
    asked: list[int | None] = []
    send_room, stream_room = side.transport.send_room, side.transport.stream_room

    def count_send_room() -> int:
        asked.append(None)
        return send_room()

    def count_stream_room(stream_id: int) -> int:
        asked.append(stream_id)
        return stream_room(stream_id)

    side.transport.send_room = count_send_room  # type: ignore[method-assign]
    side.transport.stream_room = count_stream_room  # type: ignore[method-assign]
    side.flush()
    written = [stream_id for stream_id, octets in side.transport.log if octets]
    assert asked == [None, *written]
    assert len(written) <= 3 * (64 * 4096 // SessionConfig().write_octets + 1)
