"""The send side against a recording transport: answers, streams, ends."""

from __future__ import annotations

import pytest

from moqt.codes import (
    ObjectStatus,
    PublishDoneCode,
    RequestErrorCode,
)
from moqt.errors import LocalProtocolError, RequestRejected
from moqt.session.config import Role, SessionConfig
from moqt.types import FullTrackName, Location, TrackNamespace
from moqt.wire.filters import IdRange, LocationFilter, RangeFilter, RangeFilterKind
from moqt.wire.messages import (
    PublishDone,
    RequestError,
    RequestOk,
    SubscribeOk,
    TrackStatus,
)
from moqt.wire.params import FillParameters, Parameters
from moqt.wire.properties import TrackProperties
from tests.session.sending import JOIN, NAME, Got, Sending, done, payload_of, places, publish


def ids(*ranges: tuple[int, int | None]) -> tuple[RangeFilter, ...]:
    return (RangeFilter(RangeFilterKind.OBJECT_ID, tuple(IdRange(a, b) for a, b in ranges)),)


def test_subscriber_before_the_first_object_gets_everything_once() -> None:
    """9.6#1, 9.9#1, 11.3.2#1."""
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
        handed.extend(b.obj if isinstance(b, memoryview) else b for b in buffers)
        original(stream_id, buffers, fin)

    side.transport.write = write  # type: ignore[assignment, method-assign]
    head, body = b"h" * 68, bytearray(b"b" * (2 * SessionConfig().write_octets))
    track.open_group(0).write(0, [head, body])
    side.flush()
    payload = handed[2:]  # behind the headers of stream and Object
    assert payload[0] is head
    assert len(payload) > 2
    assert all(one is body for one in payload[1:])


def test_join_in_the_middle_of_a_group_clears_first_object() -> None:
    """3.1.1#1, 9.20.17#1, 9.9#1, 2.2#2, 3.4#3: fill up to Largest, subscription right behind it."""
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


@pytest.mark.parametrize("uri", ["", "moqt://elsewhere.example/"])
@pytest.mark.parametrize("role", list(Role))
def test_refusals_of_the_application_are_sent(uri: str, role: Role) -> None:
    """A track that went elsewhere, or that is to be asked for later."""
    side = Sending()
    side.context.role = role
    moved = FullTrackName(TrackNamespace.of("moved"), b"t")
    later = FullTrackName(TrackNamespace.of("later"), b"t")
    side.directory.refuse(
        moved,
        RequestRejected(RequestErrorCode.REDIRECT, "moved", redirect_uri=uri, redirect_name=NAME),
    )
    side.directory.refuse(
        later, RequestRejected(RequestErrorCode.EXCESSIVE_LOAD, "later", retry_interval_ms=50)
    )
    (error,) = side.replies(side.subscribe(name=moved))
    assert isinstance(error, RequestError)
    if uri and role is Role.CLIENT:
        assert error.code is RequestErrorCode.DOES_NOT_EXIST
    else:
        assert error.redirect is not None
        assert (error.redirect.connect_uri, error.redirect.target) == (uri, NAME)
    (error,) = side.replies(side.fetch(name=later))
    assert isinstance(error, RequestError)
    assert (error.code, error.retry_interval_ms) == (RequestErrorCode.EXCESSIVE_LOAD, 50)
    side.directory.refuse(later, None)
    (error,) = side.replies(side.fetch(name=later))
    assert isinstance(error, RequestError)
    assert error.code is RequestErrorCode.DOES_NOT_EXIST
    with pytest.raises(LocalProtocolError, match="redirect_name"):
        side.directory.refuse(moved, RequestRejected(RequestErrorCode.REDIRECT, "where?"))


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
    """9.20.21#1."""
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
    """AMB#15."""
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
    """AMB#15, 3.3.1#1: nothing outside the range; its end is not the subscription's."""
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
