"""FETCH and fills: ranges, orders, filters, evicted parts, ends."""

from __future__ import annotations

import pytest

from moqt.codes import (
    GroupOrder,
    PublishDoneCode,
    RangeStatus,
    RequestErrorCode,
    StreamResetCode,
)
from moqt.types import Location
from moqt.wire.filters import IdRange, LocationFilter, RangeFilter, RangeFilterKind
from moqt.wire.messages import Fetch, FetchOk, RequestError, RequestOk
from moqt.wire.object_reader import EndOfRangeRead
from moqt.wire.params import FillParameters, Parameters
from moqt.wire.vi64 import MAX_VI64
from tests.session.sending import NAME, Got, Sending, payload_of, places, publish

Place = tuple[int, int]


def fetched(side: Sending, filter_: LocationFilter | None) -> tuple[FetchOk, list[Place]]:
    """Fetch from a track of Groups 0..3 with Objects 0..2, and read all."""
    request = side.fetch(Parameters(location_filter=filter_))
    side.flush()
    (ok,) = side.replies(request)
    assert isinstance(ok, FetchOk)
    assert side.ended(request)
    (stream,) = side.fetches(side.requests.streams[request].request_id)
    assert side.transport.streams[stream].fin
    return ok, places(side.objects([stream]))


def all_of(*groups: int) -> list[Place]:
    return [(g, o) for g in groups for o in range(3)]


@pytest.mark.parametrize(
    ("filter_", "expected", "end"),
    [
        (None, all_of(0, 1, 2, 3), Location(3, 2)),
        (LocationFilter.none(), all_of(0, 1, 2, 3), Location(3, 2)),
        (LocationFilter.relative(1), all_of(3), Location(3, 2)),
        (LocationFilter.relative(2), all_of(2, 3), Location(3, 2)),
        (LocationFilter.relative(99), all_of(0, 1, 2, 3), Location(3, 2)),
        (LocationFilter.absolute(Location(2, 1)), all_of(2)[1:] + all_of(3), Location(3, 2)),
        (LocationFilter.absolute(Location(3, 2)), [(3, 2)], Location(3, 2)),
        (LocationFilter.groups(first=1, last=2), all_of(1, 2), Location(2, 2)),
        (LocationFilter.groups(first=2, last=9), all_of(2, 3), Location(3, 2)),
        (
            LocationFilter.range(Location(0, 2), Location(2, 0)),
            [(0, 2), *all_of(1), (2, 0)],
            Location(2, 0),
        ),
        (LocationFilter.range(Location(1, 1), Location(1, 1)), [(1, 1)], Location(1, 1)),
    ],
)
def test_ranges_are_inclusive(
    filter_: LocationFilter | None, expected: list[Place], end: Location
) -> None:
    """3.3.1#1, 9.12: End Location says where it ends; nothing outside."""
    side = Sending()
    track = side.track()
    publish(track, range(4), 3)
    ok, got = fetched(side, filter_)
    assert got == expected
    assert ok.end == end
    assert not ok.end_of_track
    track.end(Location(4, 0))
    ok, got = fetched(side, filter_)
    assert got == expected  # neither End of Group nor End of Track
    assert ok.end_of_track is (end == Location(3, 2))


@pytest.mark.parametrize(
    "filter_",
    [
        LocationFilter.next_object(),
        LocationFilter.relative(0),
        LocationFilter.absolute(Location(3, 3)),
        LocationFilter.groups(first=4, last=5),
    ],
)
def test_start_above_largest_is_an_invalid_range(filter_: LocationFilter) -> None:
    """3.2#4."""
    side = Sending()
    publish(side.track(), range(4), 3)
    request = side.fetch(Parameters(location_filter=filter_))
    side.flush()
    (error,) = side.replies(request)
    assert isinstance(error, RequestError)
    assert error.code is RequestErrorCode.INVALID_RANGE
    assert not side.data_streams()


def test_track_without_objects_is_an_invalid_range() -> None:
    """3.2#3."""
    side = Sending()
    side.track().open_group(0)
    (error,) = side.replies(side.fetch())
    assert isinstance(error, RequestError)
    assert error.code is RequestErrorCode.INVALID_RANGE


def test_descending_groups_have_ascending_objects() -> None:
    """3.2.1#1."""
    side = Sending()
    publish(side.track(), [0, 2, 5], 2)
    side.fetch(Parameters(group_order=GroupOrder.DESCENDING))
    side.flush()
    (stream,) = side.fetches()
    got = side.read(stream, GroupOrder.DESCENDING)
    assert places(g for g in got if isinstance(g, Got)) == [
        (5, 0),
        (5, 1),
        (2, 0),
        (2, 1),
        (0, 0),
        (0, 1),
    ]


def test_object_id_filter_of_first_blocks() -> None:
    side = Sending()
    publish(side.track(), range(3), 10)
    first_two = RangeFilter(RangeFilterKind.OBJECT_ID, (IdRange(0, 1),))
    side.fetch(Parameters(range_filters=(first_two,)))
    side.flush()
    assert places(side.objects(side.fetches())) == [
        (0, 0),
        (0, 1),
        (1, 0),
        (1, 1),
        (2, 0),
        (2, 1),
    ]


def test_subgroups_of_a_group_are_merged_by_object_id() -> None:
    side = Sending()
    track = side.track()
    even = track.open_group(0, subgroup_id=0, publisher_priority=3)
    odd = track.open_group(0, subgroup_id=7, publisher_priority=9)
    for object_id in range(6):
        (odd if object_id % 2 else even).write(object_id, payload_of(0, object_id))
    side.fetch()
    side.flush()
    got = side.objects(side.fetches())
    assert places(got) == [(0, o) for o in range(6)]
    assert [g.priority for g in got] == [3, 9] * 3
    assert all(g.payload == payload_of(0, g.location.object_id) for g in got)


def test_evicted_part_is_reported_as_unknown() -> None:
    side = Sending()
    track = side.track()
    publish(track, range(4), 3)
    track.evict_before(Location(1, 2))
    ascending = side.fetch()
    descending = side.fetch(Parameters(group_order=GroupOrder.DESCENDING))
    side.flush()
    up, down = (
        side.fetches(side.requests.streams[request].request_id)[0]
        for request in (ascending, descending)
    )
    first, *rest = side.read(up)
    assert first == EndOfRangeRead(RangeStatus.UNKNOWN, Location(1, 1))
    assert places(g for g in rest if isinstance(g, Got)) == [(1, 2), *all_of(2, 3)]
    got = side.read(down, GroupOrder.DESCENDING)
    assert [
        (g.location.group_id, g.location.object_id) if isinstance(g, Got) else g.last for g in got
    ] == [*all_of(3, 2), Location(1, 1), (1, 2), Location(0, MAX_VI64)]


def test_wholly_evicted_range_is_one_marker() -> None:
    side = Sending()
    track = side.track()
    publish(track, range(4), 3)
    track.evict_all()
    assert track.largest == Location(3, 2)
    request = side.fetch(Parameters(location_filter=LocationFilter.groups(first=1, last=2)))
    side.flush()
    (stream,) = side.fetches()
    (marker,) = side.read(stream)
    assert isinstance(marker, EndOfRangeRead)
    assert marker.last.group_id == 2
    assert isinstance(side.replies(request)[0], FetchOk)
    assert side.transport.streams[stream].fin


def test_eviction_in_the_middle_of_an_object_sends_it_whole() -> None:
    side = Sending()
    track = side.track()
    publish(track, range(2), 3, 1000)
    side.fetch()
    side.transport.room = 1500
    side.flush()
    track.evict_before(Location(1, 1))
    side.transport.room = 10_000
    side.flush()
    (stream,) = side.fetches()
    got = side.read(stream)
    assert [g.payload for g in got if isinstance(g, Got)] == [
        payload_of(g, o, 1000) for g, o in [(0, 0), (0, 1), (1, 1), (1, 2)]
    ]
    assert got[2] == EndOfRangeRead(RangeStatus.UNKNOWN, Location(1, 0))


def test_group_that_still_grows_has_an_unknown_end() -> None:
    side = Sending()
    track = side.track()
    slow = track.open_group(0)
    slow.write(0, b"0")
    publish(track, [1], 1)
    side.fetch()
    side.flush()
    (stream,) = side.fetches()
    got = side.read(stream)
    assert got[1] == EndOfRangeRead(RangeStatus.UNKNOWN, Location(0, MAX_VI64))
    assert places(g for g in got if isinstance(g, Got)) == [(0, 0), (1, 0)]


def test_fetch_ends_at_the_largest_of_its_moment() -> None:
    """3.2#2."""
    side = Sending()
    track = side.track()
    publish(track, [0], 2)
    request = side.fetch()
    publish(track, [1], 2)
    side.flush()
    (ok,) = side.replies(request)
    assert isinstance(ok, FetchOk)
    assert ok.end == Location(0, 1)
    assert places(side.objects(side.fetches())) == [(0, 0), (0, 1)]


def test_cancelled_fetch_resets_its_data_stream() -> None:
    """3.2.4#2."""
    side = Sending()
    publish(side.track(), [0], 3, 1000)
    request = side.fetch()
    side.transport.room = 1500
    side.flush()
    side.cancel(request)
    (written,) = side.data_streams().values()
    assert written.reset is StreamResetCode.CANCELLED
    assert side.transport.streams[request].reset is StreamResetCode.CANCELLED
    side.transport.room = 10_000
    side.flush()
    assert len(side.data_streams()) == 1
    assert side.publisher.open_fetches == 0


def test_stopped_data_stream_ends_the_fetch() -> None:
    side = Sending()
    publish(side.track(), [0], 3, 1000)
    request = side.fetch()
    side.transport.room = 1500
    side.flush()
    (stream,) = side.fetches()
    assert side.publisher.on_data_stop(stream, 1, 0.0)
    assert side.transport.streams[stream].reset is StreamResetCode.CANCELLED
    assert side.ended(request)
    assert side.publisher.open_fetches == 0


def test_request_stream_stays_open_for_updates_while_data_flows() -> None:
    side = Sending()
    publish(side.track(), [0], 3, 1000)
    request = side.fetch()
    side.transport.room = 1500
    side.flush()
    assert not side.ended(request)
    side.update(request, Parameters(subscriber_priority=3))
    assert isinstance(side.replies(request)[-1], RequestOk)
    side.transport.room = 10_000
    side.flush()
    assert side.ended(request)


def test_request_stream_ends_early_when_no_update_can_come() -> None:
    side = Sending()
    publish(side.track(), [0], 3, 1000)
    side.transport.room = 0
    request = side.ask(Fetch(side.next_id(), NAME), fin=True)
    assert side.ended(request)
    side.transport.room = 10_000
    side.flush()
    assert len(side.objects(side.fetches())) == 3


def test_fetch_that_was_not_begun_when_its_track_was_aborted() -> None:
    side = Sending()
    track = side.track()
    publish(track, [0], 1)
    side.transport.room = 0
    request = side.fetch()
    track.abort(PublishDoneCode.MALFORMED_TRACK)
    side.transport.room = 1000
    side.flush()
    assert side.transport.streams[request].reset is StreamResetCode.MALFORMED_TRACK
    assert not side.data_streams()
    (error,) = side.replies(side.fetch())
    assert isinstance(error, RequestError)
    assert error.code is RequestErrorCode.MALFORMED_TRACK


def test_two_fills_and_a_fetch_run_side_by_side() -> None:
    side = Sending()
    track = side.track()
    publish(track, range(3), 2, 1000)
    fill = FillParameters(location_filter=LocationFilter.none())
    request = side.subscribe(Parameters(location_filter=LocationFilter.next_object(), fill=fill))
    update_id = side.update(request, Parameters(fill=fill))
    side.fetch()
    for _ in range(40):
        side.transport.room = 500
        side.flush()
    assert [places(side.objects([s])) for s in side.fetches()] == [
        [(g, o) for g in range(3) for o in range(2)]
    ] * 3
    assert len(side.fetches(update_id)) == 1
