"""The send side against a recording transport: answers, streams, ends."""

from __future__ import annotations

import pytest

from moqt.codes import (
    GroupOrder,
    ObjectStatus,
    PublishDoneCode,
    RequestErrorCode,
    StreamResetCode,
)
from moqt.session.config import SessionConfig
from moqt.types import FullTrackName, Location, TrackNamespace
from moqt.wire.filters import IdRange, LocationFilter, RangeFilter, RangeFilterKind
from moqt.wire.messages import (
    PublishDone,
    RequestError,
    RequestOk,
    Subscribe,
    SubscribeOk,
    TrackStatus,
)
from moqt.wire.params import FillParameters, Parameters
from moqt.wire.properties import TrackProperties
from tests.session.sending import NAME, Got, Sending, payload_of, places, publish

NEXT = LocationFilter.next_object()
WHOLE_FILL = FillParameters(location_filter=LocationFilter.absolute(Location(0, 0)))
JOIN = Parameters(location_filter=NEXT, fill=WHOLE_FILL)


def ids(*ranges: tuple[int, int | None]) -> tuple[RangeFilter, ...]:
    return (RangeFilter(RangeFilterKind.OBJECT_ID, tuple(IdRange(a, b) for a, b in ranges)),)


def done(side: Sending, stream: int) -> PublishDone:
    last = side.replies(stream)[-1]
    assert isinstance(last, PublishDone)
    assert side.ended(stream)
    return last


def test_subscriber_before_the_first_object_gets_everything_once() -> None:
    side = Sending()
    track = side.track()
    request = side.subscribe()
    (ok,) = side.replies(request)
    assert isinstance(ok, SubscribeOk)
    assert ok.parameters.largest is None
    publish(track, range(3), 2)
    track.end(Location(3, 0))
    side.flush()
    headers = side.subgroups(ok.track_alias)
    assert [h.group_id for h in headers.values()] == [0, 1, 2, 3]
    assert all(h.is_first_object for h in headers.values())
    assert all(s.fin for s in side.data_streams().values())
    got = [item for stream in headers for item in side.read(stream)]
    assert [(g.location, g.status) for g in got if isinstance(g, Got)] == [
        (Location(0, 0), ObjectStatus.NORMAL),
        (Location(0, 1), ObjectStatus.NORMAL),
        (Location(0, 2), ObjectStatus.END_OF_GROUP),
        (Location(1, 0), ObjectStatus.NORMAL),
        (Location(1, 1), ObjectStatus.NORMAL),
        (Location(1, 2), ObjectStatus.END_OF_GROUP),
        (Location(2, 0), ObjectStatus.NORMAL),
        (Location(2, 1), ObjectStatus.NORMAL),
        (Location(2, 2), ObjectStatus.END_OF_GROUP),
        (Location(3, 0), ObjectStatus.END_OF_TRACK),
    ]
    end = done(side, request)
    assert (end.code, end.stream_count) == (PublishDoneCode.TRACK_ENDED, 4)
    assert side.context.stats.open_streams_sent == 0
    assert side.publisher.open_subscriptions == 0


def test_payloads_are_handed_over_by_reference() -> None:
    side = Sending()
    track = side.track()
    side.subscribe()
    handed: list[object] = []
    original = side.transport.write

    def write(stream_id: int, buffers: list[memoryview | bytes], fin: bool) -> None:
        handed.extend(b.obj for b in buffers if isinstance(b, memoryview))
        original(stream_id, buffers, fin)

    side.transport.write = write  # type: ignore[assignment, method-assign]
    head, body = b"h" * 68, bytearray(b"b" * 200_000)
    track.open_group(0).write(0, [head, body])
    side.flush()
    assert handed[0] is head
    assert len(handed) > 2
    assert all(one is body for one in handed[1:])


def test_join_in_the_middle_of_a_group_clears_first_object() -> None:
    """2.2#2, 3.4#3: fill up to Largest, subscription right behind it."""
    side = Sending()
    track = side.track()
    writer = track.open_group(0)
    writer.write(0, payload_of(0, 0))
    writer.write(1, payload_of(0, 1))
    request = side.subscribe(JOIN)
    writer.write(2, payload_of(0, 2))
    writer.close()
    track.end()
    side.flush()
    ok = side.replies(request)[0]
    assert isinstance(ok, SubscribeOk)
    assert ok.parameters.largest == Location(0, 1)
    (fill,) = side.fetches(0)
    assert places(side.objects([fill])) == [(0, 0), (0, 1)]
    live = side.subgroups(ok.track_alias)
    assert [(h.group_id, h.is_first_object) for h in live.values()] == [(0, False), (1, True)]
    assert places(side.objects(live)) == [(0, 2)]
    assert done(side, request).stream_count == 3


def test_subscription_without_fill_is_no_request_for_history() -> None:
    side = Sending()
    track = side.track()
    publish(track, range(2), 2)
    side.subscribe()
    side.subscribe(Parameters(location_filter=LocationFilter.absolute(Location(0, 0))))
    side.flush()
    assert not side.data_streams()
    publish(track, [2], 1)
    side.flush()
    assert places(side.objects(side.subgroups())) == [(2, 0), (2, 0)]


def test_unknown_track_and_reserved_names_do_not_exist() -> None:
    """2.4.3#2, 6.5#2."""
    side = Sending()
    names = [
        FullTrackName(TrackNamespace.of("x"), b"t"),
        FullTrackName(TrackNamespace.of("."), b"t"),
        FullTrackName(TrackNamespace.of(".session"), b""),
    ]
    for name in names:
        for stream in (side.subscribe(name=name), side.fetch(name=name)):
            (error,) = side.replies(stream)
            assert isinstance(error, RequestError)
            assert error.code is RequestErrorCode.DOES_NOT_EXIST
            assert side.ended(stream)
    side.flush()
    assert not side.data_streams()


def test_session_without_directory_has_no_tracks() -> None:
    side = Sending()
    side.publisher._directory = None
    (error,) = side.replies(side.subscribe())
    assert isinstance(error, RequestError)
    assert error.code is RequestErrorCode.DOES_NOT_EXIST


def test_track_status_answers_and_leaves_nothing() -> None:
    """9.13#1, 9.20.17#1."""
    side = Sending()
    track = side.track()
    publish(track, range(2), 3)
    request = side.ask(TrackStatus(side.next_id(), NAME))
    (ok,) = side.replies(request)
    assert isinstance(ok, RequestOk)
    assert ok.parameters.largest == Location(1, 2)
    assert side.ended(request)
    publish(track, [2], 1)
    side.flush()
    assert not side.data_streams()
    assert side.publisher.open_subscriptions == side.publisher.open_fetches == 0


def test_properties_are_left_out_on_demand() -> None:
    side = Sending()
    track = side.track()
    track.properties = TrackProperties.of(default_publisher_priority=7)
    wanted, unwanted = side.subscribe(), side.subscribe(Parameters(include_properties=False))
    answers = [side.replies(stream)[0] for stream in (wanted, unwanted)]
    assert [a.properties for a in answers if isinstance(a, SubscribeOk)] == [
        track.properties,
        TrackProperties(),
    ]
    track.open_group(0).write(0, b"x")
    side.flush()
    # Said on the stream in both cases: who left properties out does not know the default.
    assert [h.publisher_priority for h in side.subgroups().values()] == [7, 7]


def test_track_aliases_are_never_used_again() -> None:
    side = Sending()
    side.track()
    seen = set()
    for _ in range(5):
        request = side.subscribe()
        seen.add(side.alias(request))
        side.cancel(request)
    assert len(seen) == 5


def test_filter_range_limit_counts_those_of_the_fill() -> None:
    """3.3.2#2."""
    side = Sending(SessionConfig(max_filter_ranges=3))
    side.track()
    two = ids((0, 1), (4, 5))
    fine = side.subscribe(
        Parameters(range_filters=two, fill=FillParameters(range_filters=ids((0, 0))))
    )
    assert isinstance(side.replies(fine)[0], SubscribeOk)
    over = side.subscribe(Parameters(range_filters=two, fill=FillParameters(range_filters=two)))
    for stream in (over, side.fetch(Parameters(range_filters=ids((0, 1), (3, 4), (6, 7), (9, 9))))):
        (error,) = side.replies(stream)
        assert isinstance(error, RequestError)
        assert error.code is RequestErrorCode.INVALID_FILTER
    side.update(fine, Parameters(fill=FillParameters(range_filters=two)))  # the kept ones count
    error, end = side.replies(fine)[1:]
    assert isinstance(error, RequestError)
    assert error.code is RequestErrorCode.INVALID_FILTER
    assert isinstance(end, PublishDone)


def test_range_whose_end_is_before_its_start_is_invalid() -> None:
    side = Sending()
    publish(side.track(), range(3), 2)
    backwards = LocationFilter(LocationFilter.none().type.END_OBJECT, 5, 3, 5, 1)
    for stream in (
        side.subscribe(Parameters(location_filter=backwards)),
        side.fetch(Parameters(location_filter=backwards)),
    ):
        (error,) = side.replies(stream)
        assert isinstance(error, RequestError)
        assert error.code is RequestErrorCode.INVALID_RANGE


def test_object_id_filter_selects_and_ends_with_fin() -> None:
    side = Sending()
    track = side.track()
    request = side.subscribe(Parameters(range_filters=ids((0, 1), (4, 4))))
    writer = track.open_group(0, ends_group=True)
    for object_id in range(6):
        writer.write(object_id, payload_of(0, object_id))
    writer.close()
    side.flush()
    (stream,) = side.subgroups(side.alias(request))
    assert places(side.objects([stream])) == [(0, 0), (0, 1), (0, 4)]
    written = side.transport.streams[stream]
    assert written.fin
    assert not side.subgroups()[stream].ends_group  # the last Object here is not the Group's last


def test_end_of_group_bit_where_it_is_known() -> None:
    side = Sending()
    track = side.track()
    side.subscribe()
    for group_id, ends_group in ((0, True), (1, False)):
        writer = track.open_group(group_id, ends_group=ends_group)
        writer.write(0, b"x")
        writer.close()
    side.flush()
    assert [h.ends_group for h in side.subgroups().values()] == [True, False]


def test_location_end_cuts_the_stream_by_fin_and_keeps_the_subscription() -> None:
    """3.3.1#1: nothing outside the range; its end is not the subscription's."""
    side = Sending()
    track = side.track()
    request = side.subscribe(
        Parameters(location_filter=LocationFilter.range(Location(1, 1), Location(2, 0)))
    )
    publish(track, range(4), 3)
    side.flush()
    alias = side.alias(request)
    assert places(side.objects(side.subgroups(alias))) == [(1, 1), (1, 2), (2, 0)]
    assert [h.is_first_object for h in side.subgroups(alias).values()] == [False, True]
    assert all(s.fin for s in side.data_streams().values())
    assert not side.ended(request)
    side.update(request, Parameters(location_filter=LocationFilter.none()))
    publish(track, [4], 1)
    side.flush()
    assert places(side.objects(side.subgroups(alias)))[-1] == (4, 0)


def test_pause_and_resume() -> None:
    """3.1.1#1, 3.1.1#2: nothing while paused; the update's OK says where it goes on."""
    side = Sending()
    track = side.track()
    request = side.subscribe()
    writer = track.open_group(0)
    writer.write(0, b"0")
    side.flush()
    side.update(request, Parameters(forward=False))
    side.flush()
    (first,) = side.data_streams().values()
    assert first.is_open  # nothing was left out yet
    writer.write(1, b"1")
    publish(track, [1], 2)
    side.flush()
    assert first.reset is StreamResetCode.CANCELLED
    assert len(side.data_streams()) == 1
    side.update(request, Parameters(forward=True))
    resumed = side.replies(request)[-1]
    assert isinstance(resumed, RequestOk)
    assert resumed.parameters.largest == Location(1, 1)
    writer.write(2, b"2")
    writer.close()
    publish(track, [2], 1)
    side.flush()
    assert places(side.objects(side.subgroups(side.alias(request)))) == [(0, 0), (0, 2), (2, 0)]
    headers = list(side.subgroups().values())
    assert [h.is_first_object for h in headers] == [True, False, True]


def test_pause_in_the_middle_of_an_object_resets_its_stream() -> None:
    side = Sending()
    track = side.track()
    request = side.subscribe()
    side.transport.room = 500
    track.open_group(0).write(0, bytes(1000))
    side.flush()
    side.update(request, Parameters(forward=False))
    (written,) = side.data_streams().values()
    assert written.reset is StreamResetCode.CANCELLED
    side.transport.room = 10_000
    side.flush()
    assert len(side.data_streams()) == 1


def test_paused_stream_goes_on_when_nothing_was_left_out() -> None:
    side = Sending()
    track = side.track()
    request = side.subscribe()
    writer = track.open_group(0)
    writer.write(0, b"0")
    side.flush()
    side.update(request, Parameters(forward=False))
    side.update(request, Parameters(forward=True))
    writer.write(1, b"1")
    writer.close()
    side.flush()
    (stream,) = side.data_streams()
    assert places(side.objects([stream])) == [(0, 0), (0, 1)]
    assert side.transport.streams[stream].fin


def test_pause_holds_a_fill_back_and_resume_lets_it_go_on() -> None:
    side = Sending()
    track = side.track()
    publish(track, range(2), 10)
    request = side.subscribe(JOIN)
    side.transport.room = 450
    side.flush()
    side.update(request, Parameters(forward=False))
    side.transport.room = 10_000
    before = side.transport.room
    side.flush()
    assert side.transport.room == before
    side.update(request, Parameters(forward=True))
    side.flush()
    assert len(side.objects(side.fetches(0))) == 20


def test_no_fill_for_paused_empty_or_future() -> None:
    """3.4#1, 9.20.15#2."""
    side = Sending()
    track = side.track()
    paused = side.subscribe(Parameters(forward=False, fill=WHOLE_FILL))
    side.subscribe(JOIN)  # nothing is published
    publish(track, [0], 2)
    side.subscribe(
        Parameters(fill=FillParameters(location_filter=LocationFilter.absolute(Location(0, 2))))
    )
    side.subscribe(Parameters(location_filter=NEXT, fill=FillParameters()))  # inherits Next Object
    side.subscribe(Parameters(fill=FillParameters(location_filter=NEXT)))
    side.update(paused, Parameters(forward=True))  # opens none afterwards either
    side.flush()
    assert not side.fetches()


def test_fill_by_update_has_the_id_of_the_update() -> None:
    """3.4#2."""
    side = Sending()
    track = side.track()
    publish(track, range(3), 2)
    request = side.subscribe(Parameters(location_filter=NEXT))
    update_id = side.update(
        request,
        Parameters(
            fill=FillParameters(
                location_filter=LocationFilter.relative(2),
                range_filters=ids((1, 1)),
                group_order=GroupOrder.DESCENDING,
            )
        ),
    )
    side.flush()
    (stream,) = side.fetches(update_id)
    got = side.read(stream, GroupOrder.DESCENDING)
    assert places(g for g in got if isinstance(g, Got)) == [(2, 1), (1, 1)]
    track.end()
    side.flush()
    assert done(side, request).stream_count == 2  # the fill, and the End of Track stream


def test_empty_fill_and_fetch_have_a_header_and_fin() -> None:
    """9.11#1."""
    side = Sending()
    track = side.track()
    publish(track, [0, 9], 2)
    gap = LocationFilter.groups(first=3, last=5)
    side.fetch(Parameters(location_filter=gap))
    side.subscribe(Parameters(location_filter=NEXT, fill=FillParameters(location_filter=gap)))
    side.flush()
    streams = side.fetches()
    assert len(streams) == 2
    for stream in streams:
        assert side.read(stream) == []
        assert side.transport.streams[stream].fin


def test_stopped_subgroup_is_not_opened_again_until_a_resume() -> None:
    """11.3.2#3, 11.3.2#4."""
    side = Sending()
    track = side.track()
    request = side.subscribe()
    writer = track.open_group(0)
    writer.write(0, b"0")
    side.flush()
    (stream,) = side.data_streams()
    assert side.publisher.on_data_stop(stream, 1, 0.0)
    assert side.transport.streams[stream].reset is StreamResetCode.CANCELLED
    assert not side.publisher.on_data_stop(stream, 1, 0.0)
    writer.write(1, b"1")
    side.update(request, Parameters(location_filter=LocationFilter.none()))
    writer.write(2, b"2")
    publish(track, [1], 1)
    side.flush()
    assert [h.group_id for h in side.subgroups().values()] == [0, 1]
    side.update(request, Parameters(forward=False))
    side.update(request, Parameters(forward=True))
    writer.write(3, b"3")
    side.flush()
    assert places(side.objects(side.subgroups())) == [(0, 0), (1, 0), (0, 3)]


def test_stopped_fill_keeps_the_subscription() -> None:
    """3.4.1#3."""
    side = Sending()
    track = side.track()
    publish(track, range(3), 2)
    request = side.subscribe(JOIN)
    side.transport.room = 50
    side.flush()
    (fill,) = side.fetches()
    side.publisher.on_data_stop(fill, 1, 0.0)
    side.transport.room = 10_000
    publish(track, [3], 1)
    track.end()
    side.flush()
    assert places(side.objects(side.subgroups())) == [(3, 0)]
    assert done(side, request).stream_count == 3


def test_cancel_resets_every_stream_of_the_subscription_alone() -> None:
    """3.1.2#1, 3.4.1#1."""
    side = Sending()
    track = side.track()
    publish(track, range(2), 2, 1000)
    other = side.subscribe()
    request = side.subscribe(JOIN)
    live = [track.open_group(g) for g in (2, 3)]
    side.transport.room = 600
    for writer in live:
        writer.write(0, bytes(1000))
    side.flush()
    mine = [s for s, h in side.subgroups().items() if h.track_alias == side.alias(request)]
    mine += side.fetches()
    assert mine
    side.cancel(request)
    assert all(side.transport.streams[s].reset is StreamResetCode.CANCELLED for s in mine)
    side.transport.room = 1 << 20
    for writer in live:
        writer.write(1, bytes(1000))
        writer.close()
    side.flush()
    assert len(side.objects(side.subgroups(side.alias(other)))) == 4
    assert len(side.replies(request)) == 1  # no PUBLISH_DONE
    assert not any(w.waiters for w in track.open_subgroups())
    assert side.publisher.open_subscriptions == 1


def test_churn_of_subscribers_leaves_nothing_behind() -> None:
    side = Sending()
    track = side.track()
    writer = track.open_group(0)
    writer.write(0, b"x")
    side.transport.room = 0
    for _ in range(300):
        request = side.subscribe(JOIN)
        writer.write(writer._subgroup.last_object_id + 1, b"y")
        side.cancel(request)
    assert not writer._subgroup.waiters
    assert not track._listeners
    assert len(side.publisher.scheduler._ready) <= 65
    assert side.publisher.open_subscriptions == 0


def test_failed_update_ends_the_subscription() -> None:
    """9.5.1#1."""
    side = Sending()
    track = side.track()
    request = side.subscribe()
    writer = track.open_group(0)
    writer.write(0, b"x")
    side.flush()
    bad = (RangeFilter(RangeFilterKind.PRIORITY, (IdRange(0, 5),)),) * 2
    side.update(request, Parameters(range_filters=bad))
    error, end = side.replies(request)[1:]
    assert isinstance(error, RequestError)
    assert error.code is RequestErrorCode.INVALID_FILTER
    assert isinstance(end, PublishDone)
    assert (end.code, end.stream_count) == (PublishDoneCode.UPDATE_FAILED, 1)
    writer.write(1, b"y")
    side.flush()
    (written,) = side.data_streams().values()
    assert written.reset is StreamResetCode.CANCELLED


def test_narrowed_range_resets_what_it_leaves_out() -> None:
    side = Sending()
    track = side.track()
    request = side.subscribe()
    inside, outside = track.open_group(0), track.open_group(1)
    for writer in (inside, outside):
        writer.write(0, b"0")
    side.flush()
    side.update(
        request,
        Parameters(location_filter=LocationFilter.range(Location(0, 0), Location(0, 1))),
    )
    for object_id in (1, 2):
        for writer in (inside, outside):
            writer.write(object_id, b"x")
    side.flush()
    streams = list(side.data_streams().values())
    assert [s.reset for s in streams] == [StreamResetCode.CANCELLED] * 2
    assert places(side.objects(side.subgroups())) == [(0, 0), (0, 1), (1, 0)]


def test_aborted_track_resets_streams_and_says_why() -> None:
    side = Sending()
    track = side.track()
    publish(track, [0], 3, 1000)
    subscription, fetch = side.subscribe(JOIN), side.fetch()
    side.transport.room = 700
    track.open_group(1).write(0, bytes(1000))
    side.flush()
    track.abort(PublishDoneCode.INTERNAL_ERROR, "disk is gone")
    side.transport.room = 10_000
    side.flush()
    end = done(side, subscription)
    assert (end.code, end.reason) == (PublishDoneCode.INTERNAL_ERROR, "disk is gone")
    assert end.stream_count == len(side.fetches(0)) + len(side.subgroups())
    assert not any(s.is_open for s in side.data_streams().values())
    assert side.transport.streams[fetch].reset is StreamResetCode.INTERNAL_ERROR
    (error,) = side.replies(side.subscribe())
    assert isinstance(error, RequestError)
    assert error.code is RequestErrorCode.DOES_NOT_EXIST
    assert track.retained_octets == 0


def test_late_subscriber_of_an_ended_track_gets_the_fill_and_done() -> None:
    side = Sending()
    track = side.track()
    publish(track, range(3), 2)
    track.end(Location(3, 0))
    request = side.subscribe(JOIN)
    assert isinstance(side.replies(request)[-1], SubscribeOk)  # not done before the fill is sent
    side.flush()
    assert len(side.objects(side.fetches(0))) == 6
    end = done(side, request)
    assert (end.code, end.stream_count) == (PublishDoneCode.TRACK_ENDED, 1)
    side.update(request, Parameters(forward=False))  # crossed PUBLISH_DONE: no answer, no harm
    plain = side.subscribe()
    assert done(side, plain).stream_count == 0


def test_too_far_behind_by_lag() -> None:
    """5.2#6: the slow one is cut off, the other is not."""
    side, fast = Sending(SessionConfig(max_lag_octets=10_000)), Sending()
    track = side.track()
    fast.directory.add(track)
    slow = side.subscribe()
    fast.subscribe()
    side.transport.room = 1500
    writer = track.open_group(0)
    for object_id in range(13):
        writer.write(object_id, bytes(1000))
        side.flush()
        fast.flush()
    end = done(side, slow)
    assert (end.code, end.stream_count) == (PublishDoneCode.TOO_FAR_BEHIND, 1)
    (written,) = side.data_streams().values()
    assert written.reset is StreamResetCode.TOO_FAR_BEHIND
    assert len(fast.objects(fast.subgroups())) == 13


def test_lag_within_the_limit_is_tolerated() -> None:
    side = Sending(SessionConfig(max_lag_octets=10_000))
    track = side.track()
    request = side.subscribe()
    writer = track.open_group(0)
    for object_id in range(200):
        writer.write(object_id, bytes(1000))
        if object_id % 9 == 8:
            side.flush()
    side.flush()
    assert len(side.objects(side.subgroups())) == 200
    assert not side.ended(request)


def test_too_far_behind_by_eviction() -> None:
    side = Sending()
    track = side.track()
    request = side.subscribe()
    side.transport.room = 1500
    writer = track.open_group(0)
    for object_id in range(4):
        writer.write(object_id, payload_of(0, object_id, 1000))
    side.flush()
    track.evict_before(Location(0, 3))
    side.transport.room = 10_000
    side.flush()
    end = done(side, request)
    assert (end.code, end.stream_count) == (PublishDoneCode.TOO_FAR_BEHIND, 1)
    (stream,) = side.subgroups()
    # The Object in flight was sent whole before the loss was noticed.
    assert [g.payload for g in side.objects([stream])] == [
        payload_of(0, 0, 1000),
        payload_of(0, 1, 1000),
    ]


def test_eviction_of_a_group_that_was_never_begun() -> None:
    side = Sending()
    track = side.track(retain=500)
    request = side.subscribe()
    side.transport.room = 0
    publish(track, range(4), 2, 200)
    side.transport.room = 10_000
    side.flush()
    assert done(side, request).code is PublishDoneCode.TOO_FAR_BEHIND
    assert done(side, request).stream_count == 0


def test_close_lets_go_of_the_track() -> None:
    side = Sending()
    track = side.track()
    writer = track.open_group(0)
    side.subscribe()
    side.fetch()
    writer.write(0, b"x")
    side.subscribe(JOIN)
    side.publisher.close(0.0)
    assert not track._listeners
    assert not writer._subgroup.waiters
    writes = len(side.transport.log)
    writer.write(1, b"y")
    side.flush()
    assert len(side.transport.log) == writes


def test_properties_of_objects_travel() -> None:
    side = Sending()
    track = side.track()
    side.subscribe()
    writer = track.open_group(0)
    writer.write(0, b"a", properties=b"\x78\x05")
    writer.write(1, b"b")
    writer.end_of_group()
    writer.close()
    side.flush()
    (stream,) = side.subgroups()
    got = side.read(stream)
    assert [g.properties for g in got if isinstance(g, Got)] == [b"\x78\x05", b"", b""]
    side.fetch()
    side.flush()
    assert [g.properties for g in side.objects(side.fetches())] == [b"\x78\x05", b""]


def test_fin_of_the_request_is_no_cancel() -> None:
    """6.4.2.2#6."""
    side = Sending()
    track = side.track()
    request = side.ask(Subscribe(side.next_id(), NAME), fin=True)
    publish(track, [0], 2)
    track.end()
    side.flush()
    assert done(side, request).code is PublishDoneCode.TRACK_ENDED


@pytest.mark.parametrize("room", [1, 7, 100, 1 << 20])
def test_any_room_gives_the_same_streams(room: int) -> None:
    side = Sending()
    track = side.track()
    side.subscribe()
    publish(track, range(2), 5, 37)
    track.end()
    reference = Sending()
    reference.track()
    reference.subscribe()
    other = reference.directory.find(NAME)
    assert other is not None
    publish(other, range(2), 5, 37)
    other.end()
    reference.flush()
    for _ in range(2000):
        side.transport.room = room
        side.flush()
    assert [s.data for s in side.data_streams().values()] == [
        s.data for s in reference.data_streams().values()
    ]
