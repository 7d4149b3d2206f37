"""Delivery timeouts: what is too late is given up, and nothing else (MOQT-22 5.2)."""

from __future__ import annotations

import pytest

from moqt.codes import PublishDoneCode, RangeStatus, StreamResetCode
from moqt.session.config import Role
from moqt.session.events import ObjectReceived, SubgroupEnded
from moqt.session.publish.directory import TrackDirectory
from moqt.session.publish.source import TrackSource
from moqt.session.publish.timeouts import NO_TIMEOUTS, DeliveryTimeouts
from moqt.testing import LinkConditions, SessionPair
from moqt.types import Location
from moqt.wire.filters import LocationFilter
from moqt.wire.object_reader import EndOfRangeRead
from moqt.wire.params import FillParameters, Parameters
from moqt.wire.properties import ObjectProperties, TrackProperties
from tests.session.sending import JOIN, MANY, NAME, Sending, done, payload_of, places, publish

LATE = StreamResetCode.DELIVERY_TIMEOUT


def timed(object_ms: int | None = None, subgroup_ms: int | None = None) -> TrackProperties:
    return TrackProperties.of(
        object_delivery_timeout_ms=object_ms, subgroup_delivery_timeout_ms=subgroup_ms
    )


@pytest.mark.parametrize(
    ("ours", "theirs", "limit_ms"),
    [(100, None, 100), (None, 100, 100), (100, 300, 100), (300, 100, 100), (0, 100, 100)],
)
def test_the_smaller_object_timeout_counts(
    ours: int | None, theirs: int | None, limit_ms: int
) -> None:
    """5.2#1: an Object that is too old when its turn comes resets its stream."""
    for wait_ms, late in ((limit_ms - 1, False), (limit_ms + 1, True)):
        side = Sending()
        track = side.track(properties=timed(ours))
        side.subscribe(Parameters(object_delivery_timeout_ms=theirs))
        writer = track.open_group(0)
        writer.write(0, payload_of(0, 0))
        side.flush()
        writer.write(1, payload_of(0, 1))
        side.transport.room = 0
        side.flush()
        side.advance(wait_ms / 1000)
        side.transport.room = MANY
        side.flush()
        ((stream, written),) = side.data_streams().items()
        assert written.reset is (LATE if late else None)
        assert places(side.objects([stream])) == [(0, 0)] + [(0, 1)] * (not late)


def test_without_a_timeout_everything_is_delivered_however_late() -> None:
    side = Sending()
    track = side.track()
    side.subscribe(Parameters(object_delivery_timeout_ms=0))
    side.transport.room = 0
    publish(track, range(2), 2)
    side.flush()
    side.advance(1e6)
    side.transport.room = MANY
    side.flush()
    assert len(side.objects(side.subgroups())) == 4


def test_a_part_of_an_object_that_is_late_is_not_completed() -> None:
    """5.2#1: handed over means whole; the rest of a late Object stays here."""
    side = Sending()
    track = side.track(properties=timed(100))
    side.subscribe()
    track.open_group(0).write(0, bytes(1000))
    side.transport.room = 200
    side.flush()
    side.advance(0.101)
    side.transport.room = MANY
    side.flush()
    (written,) = side.data_streams().values()
    assert (written.reset, len(written.data)) == (LATE, 200)
    assert side.context.stats.objects_sent == 0
    assert side.context.stats.open_streams_sent == 0


def test_a_late_subgroup_is_not_opened_again() -> None:
    """5.2#2: neither for younger Objects of it, nor after a pause; other Groups go on."""
    side = Sending()
    track = side.track(properties=timed(100))
    request = side.subscribe()
    writer = track.open_group(0)
    writer.write(0, payload_of(0, 0))
    side.transport.room = 0
    side.flush()
    side.advance(0.2)
    side.transport.room = MANY
    side.flush()
    writer.write(1, payload_of(0, 1))
    side.flush()
    assert side.data_streams() == {}
    side.update(request, Parameters(forward=False))
    side.update(request, Parameters(forward=True))
    writer.write(2, payload_of(0, 2))
    track.open_group(1).write(0, payload_of(1, 0))
    side.flush()
    assert places(side.objects(side.data_streams())) == [(1, 0)]
    writer.close()
    side.flush()
    assert len(side.data_streams()) == 1


def test_a_stream_that_its_own_window_blocks_is_reset_too() -> None:
    """5.2#1: the check does not wait for flow control of the stream that is late."""
    side = Sending()
    track = side.track(properties=timed(100))
    side.subscribe()
    writer = track.open_group(0)
    writer.write(0, bytes(10))
    side.flush()
    (stream,) = side.subgroups()
    side.transport.streams[stream].room = 0
    writer.write(1, bytes(10))
    side.flush()
    side.advance(0.101)
    side.flush()
    assert side.transport.streams[stream].reset is LATE


def test_the_first_object_may_set_the_timeout_of_its_subgroup() -> None:
    """5.2#1: in place of the track's, longer or shorter or none; of later Objects it is no sign."""
    side = Sending()
    track = side.track(properties=timed(100))
    side.subscribe()
    side.transport.room = 0

    def says(timeout_ms: int) -> bytes:
        return ObjectProperties.of(object_delivery_timeout_ms=timeout_ms).serialize()

    for group_id, timeout_ms in enumerate((50, 500, 0, 100)):
        writer = track.open_group(group_id)
        writer.write(0, b"x", says(timeout_ms))
        writer.write(1, b"y", says(1))
    side.flush()
    side.advance(0.09)
    side.transport.room = MANY
    side.flush()
    assert {h.group_id for h in side.subgroups().values()} == {1, 2, 3}
    side.transport.room = 0
    track.open_group(4).write(0, b"x")
    side.advance(0.101)
    side.transport.room = MANY
    side.flush()
    assert {h.group_id for h in side.subgroups().values()} == {1, 2, 3}


def test_an_update_changes_the_timeout_of_what_waits() -> None:
    """5.2#1: OBJECT_DELIVERY_TIMEOUT in REQUEST_UPDATE holds from then on."""
    side = Sending()
    track = side.track()
    request = side.subscribe()
    side.transport.room = 0
    track.open_group(0).write(0, b"x")
    side.flush()
    side.advance(0.2)
    side.update(request, Parameters(object_delivery_timeout_ms=300))
    side.advance(0.101)
    side.transport.room = MANY
    side.flush()
    assert side.data_streams() == {}


def test_a_fill_and_a_fetch_know_no_delivery_timeout() -> None:
    side = Sending()
    track = side.track(properties=timed(10, 10))
    publish(track, range(2), 2)
    side.transport.room = 0
    side.subscribe(JOIN)
    side.fetch()
    side.flush()
    side.advance(100)
    side.transport.room = MANY
    side.flush()
    assert all(len(side.objects([stream])) == 4 for stream in side.fetches())


# SUBGROUP_DELIVERY_TIMEOUT


@pytest.mark.parametrize(("ours", "theirs"), [(100, None), (None, 100), (100, 500), (500, 100)])
def test_a_complete_subgroup_has_its_time_to_be_acknowledged(
    ours: int | None, theirs: int | None
) -> None:
    """5.2#4: from its completion on, whatever of it is sent."""
    side = Sending()
    track = side.track(properties=timed(None, ours))
    side.subscribe(Parameters(subgroup_delivery_timeout_ms=theirs))
    writers = [track.open_group(group_id) for group_id in range(3)]
    for writer in writers:
        writer.write(0, bytes(500))
    side.flush()
    side.advance(10)  # it does not run while a Subgroup may grow
    acknowledged, unacknowledged, unsent = side.subgroups()
    side.transport.unacknowledged = {unacknowledged}
    writers[0].close()
    writers[1].close()
    side.flush()
    side.transport.streams[unsent].room = 0
    writers[2].write(1, bytes(500))
    writers[2].close()
    side.flush()
    streams = side.transport.streams
    assert [streams[one].fin for one in side.subgroups()] == [True, True, False]
    side.advance(0.099)
    assert all(written.reset is None for written in streams.values())
    side.advance(0.002)
    assert streams[acknowledged].reset is None
    assert streams[unacknowledged].reset is LATE
    assert streams[unsent].reset is LATE
    assert side.context.stats.streams_reset_by_us == 2
    assert side.context.stats.open_streams_sent == 0
    side.advance(10)
    assert side.context.timers.next_deadline is None


def test_the_time_runs_on_behind_the_end_of_the_subscription() -> None:
    """5.2#4: PUBLISH_DONE waits for FIN, not for acknowledgements, and stops no timer."""
    side = Sending()
    track = side.track(properties=timed(None, 100))
    request = side.subscribe()
    publish(track, [0], 1)
    track.end()
    side.flush()
    assert done(side, request).code is PublishDoneCode.TRACK_ENDED
    side.transport.unacknowledged = set(side.data_streams())
    side.advance(0.1)
    assert [written.reset for written in side.data_streams().values()] == [LATE, LATE]


def test_an_update_sets_the_timer_of_a_subgroup_that_is_complete() -> None:
    """5.2#4: a subscriber may ask for it while the Subgroup waits; it counts from completion."""
    side = Sending()
    track = side.track()
    request = side.subscribe()
    side.transport.room = 0
    publish(track, [0], 1)
    side.flush()
    side.advance(0.2)
    side.update(request, Parameters(subgroup_delivery_timeout_ms=300))
    side.advance(0.099)
    assert side.context.stats.open_requests == 1
    assert len(side.publisher.deadlines) == 1
    side.advance(0.002)
    side.transport.room = MANY
    side.flush()
    assert side.data_streams() == {}


def test_cancelled_subscriptions_leave_no_timer() -> None:
    side = Sending()
    track = side.track(properties=timed(None, 1000))
    request = side.subscribe()
    side.transport.room = 0
    publish(track, [0], 1)
    side.flush()
    assert len(side.publisher.deadlines) == 1
    side.cancel(request)
    assert len(side.publisher.deadlines) == 0
    assert side.context.timers.next_deadline is None


def test_timers_of_acknowledged_streams_do_not_pile_up() -> None:
    """5.2#4: a long timeout on many short Subgroups holds no more than lie unacknowledged."""
    side = Sending()
    track = side.track(properties=timed(None, 3_600_000))
    side.subscribe()
    for group_id in range(1000):
        track.open_group(group_id).close()
        publish(track, [1000 + group_id], 1)
        side.flush()
    assert len(side.publisher.deadlines) <= 130


def test_no_timer_without_a_timeout() -> None:
    side = Sending()
    track = side.track()
    side.subscribe()
    publish(track, range(3), 1)
    side.flush()
    assert side.context.timers.next_deadline is None


# Over a link


def test_a_stalled_link_drops_the_late_and_brings_the_fresh() -> None:
    """5.2#1: the subscriber sees resets with DELIVERY_TIMEOUT, and what was in time."""
    directory = TrackDirectory()
    track = TrackSource(NAME, properties=timed(100))
    directory.add(track)
    conditions = LinkConditions(send_buffer=2000, piece=500)
    pair = SessionPair(server_directory=directory, conditions=conditions)
    pair.client.subscribe(NAME, now=pair.now)
    pair.run()
    conditions.stalled.add(Role.SERVER)
    for group_id in range(4):
        publish(track, [group_id], 2, size=1500)
        pair.run()
        pair.advance(0.06)
    conditions.stalled.clear()
    pair.run()
    ends = pair.take(Role.CLIENT, SubgroupEnded)
    assert [(end.group_id, end.reset) for end in ends] == [(0, LATE), (3, None)]
    got = [event.object.location for event in pair.take(Role.CLIENT, ObjectReceived)]
    assert [place for place in got if place.group_id] == [Location(3, i) for i in range(3)]
    pair.link.assert_at_rest()


def test_what_lies_in_the_transport_is_little() -> None:
    """5.2#5: Objects wait in their track; QUIC holds what `send_room` allows, never more."""
    directory = TrackDirectory()
    track = TrackSource(NAME)
    directory.add(track)
    conditions = LinkConditions(send_buffer=5000)
    pair = SessionPair(server_directory=directory, conditions=conditions)
    pair.client.subscribe(NAME, now=pair.now)
    pair.run()
    conditions.stalled.add(Role.SERVER)
    publish(track, range(4), 4, size=100_000)
    pair.run()
    assert 0 < pair.link.server.under_way <= 5000
    conditions.stalled.clear()
    pair.run()
    assert pair.server.stats.objects_sent == 4 * (4 + 1)


# FILL_TIMEOUT


def test_a_fetch_has_nothing_to_wait_for() -> None:
    """FILL_TIMEOUT changes nothing: what is not here is unknown at once, never timed out."""
    side = Sending()
    track = side.track()
    publish(track, range(2), 2)
    track.evict_before(Location(0, 1))
    track.open_group(2).write(0, b"x")
    track.open_group(3).write(0, b"x")
    fill = FillParameters(location_filter=LocationFilter.none(), fill_timeout_ms=0)
    side.fetch(Parameters(fill_timeout_ms=0))
    side.subscribe(Parameters(fill=fill))
    side.flush()
    fetch, filled = side.fetches()
    assert side.read(fetch) == side.read(filled)
    markers = [item for item in side.read(fetch) if isinstance(item, EndOfRangeRead)]
    assert [marker.status for marker in markers] == [RangeStatus.UNKNOWN] * 2
    assert all(side.transport.streams[stream].fin for stream in (fetch, filled))


def test_values() -> None:
    assert DeliveryTimeouts.of_track(TrackProperties()) is NO_TIMEOUTS
    assert DeliveryTimeouts(5, 0).updated(0, None) is NO_TIMEOUTS
    assert DeliveryTimeouts(5, 9).updated(None, 7) == DeliveryTimeouts(5, 7)
    assert DeliveryTimeouts(5, 9).datagram_ms(DeliveryTimeouts(0, 4)) == 4
    assert DeliveryTimeouts(5, 9).datagram_ms(NO_TIMEOUTS) == 5
