"""The send side: pausing, resuming, fills, and streams that the subscriber stops."""

from __future__ import annotations

from moqt.codes import (
    GroupOrder,
    StreamResetCode,
)
from moqt.types import Location
from moqt.wire.filters import IdRange, LocationFilter, RangeFilter, RangeFilterKind
from moqt.wire.messages import (
    RequestOk,
)
from moqt.wire.params import FillParameters, Parameters
from tests.session.sending import JOIN, NEXT, WHOLE_FILL, Got, Sending, done, places, publish


def ids(*ranges: tuple[int, int | None]) -> tuple[RangeFilter, ...]:
    return (RangeFilter(RangeFilterKind.OBJECT_ID, tuple(IdRange(a, b) for a, b in ranges)),)


def test_pause_and_resume() -> None:
    """11.3.2#2, 3.1.1#1, 3.1.1#2: nothing while paused; the update's OK says where it goes on."""
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
    """11.3.2#2."""
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
