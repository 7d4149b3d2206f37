"""The send side: how subscriptions end, and what is left then."""

from __future__ import annotations

import pytest

from moqt.codes import (
    PublishDoneCode,
    RequestErrorCode,
    StreamResetCode,
)
from moqt.session.config import SessionConfig
from moqt.types import Location
from moqt.wire.fields import MAX_REASON_OCTETS
from moqt.wire.filters import IdRange, LocationFilter, RangeFilter, RangeFilterKind
from moqt.wire.messages import (
    PublishDone,
    RequestError,
    Subscribe,
    SubscribeOk,
)
from moqt.wire.params import Parameters
from tests.session.sending import JOIN, NAME, Got, Sending, done, payload_of, places, publish


def test_cancel_resets_every_stream_of_the_subscription_alone() -> None:
    """11.3.2#2, 3.1.2#1, 3.4.1#1."""
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
    """12.4#1, 9.5.1#1."""
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
    """11.3.2#2."""
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
    """12.4#1, 12.5#1."""
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
    """9.9#1."""
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
    """12.4#1, 12.5#1, 5.2#6: the slow one is cut off, the other is not."""
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


def test_a_reason_too_long_to_send_is_cut() -> None:
    """8.5: what an application says of a track may be longer than a Reason Phrase can be."""
    side = Sending()
    track = side.track()
    before = side.subscribe()
    track.abort(PublishDoneCode.MALFORMED_TRACK, "\U0001f3b5" * 2000)
    side.flush()
    after = side.subscribe()
    ended, refused = done(side, before), side.replies(after)[-1]
    assert isinstance(refused, RequestError)
    assert ended.reason == refused.reason == "\U0001f3b5" * 256
    assert len(refused.reason.encode()) == MAX_REASON_OCTETS
