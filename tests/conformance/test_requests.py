"""Chapters 3 and 5: one answer a request, what is delivered, and in which order."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from moqt.codes import RangeStatus, RequestErrorCode
from moqt.session.config import Role, SessionConfig
from moqt.session.publish.directory import TrackDirectory
from moqt.session.publish.source import TrackSource
from moqt.testing import ScriptedPeer
from moqt.types import FullTrackName, Location, TrackNamespace
from moqt.wire.filters import IdRange, LocationFilter, RangeFilter, RangeFilterKind
from moqt.wire.messages import (
    FetchOk,
    Goaway,
    Publish,
    PublishDone,
    RequestError,
    RequestOk,
    RequestUpdate,
    Subscribe,
    SubscribeOk,
    TrackStatus,
)
from moqt.wire.object_reader import EndOfRangeRead
from moqt.wire.params import Parameters
from moqt.wire.properties import TrackProperties
from tests.session.receiving import established, one, subgroup
from tests.session.sending import JOIN, NAME, Sending, payload_of, places, publish

if TYPE_CHECKING:
    from collections.abc import Callable

ASKS = [Sending.subscribe, Sending.fetch]
TWICE = (RangeFilter(RangeFilterKind.OBJECT_ID, (IdRange(0, 5),)),) * 2
BACKWARDS = LocationFilter(LocationFilter.none().type.END_OBJECT, 5, 3, 5, 1)
BAD = [
    (Parameters(range_filters=TWICE), RequestErrorCode.INVALID_FILTER),
    (Parameters(location_filter=BACKWARDS), RequestErrorCode.INVALID_RANGE),
]


def named(name: str) -> FullTrackName:
    return FullTrackName(TrackNamespace.of("n"), name.encode())


@pytest.mark.parametrize("ask", ASKS)
def test_a_good_request_has_exactly_one_answer(ask: Callable[[Sending], int]) -> None:
    """3.1#1, 3.2#1, 6.4.2.2#2: through to the end of its stream."""
    side = Sending()
    track = side.track()
    publish(track, [0], 2)
    request = ask(side)
    publish(track, [1], 2)
    side.flush()
    track.end()
    side.flush()
    assert side.ended(request)
    answers = (SubscribeOk, FetchOk, RequestError)
    first, *rest = side.replies(request)
    assert isinstance(first, answers)
    assert not any(isinstance(message, answers) for message in rest)


@pytest.mark.parametrize("ask", ASKS)
@pytest.mark.parametrize(("parameters", "code"), BAD)
def test_a_rejected_request_has_one_answer_and_no_objects(
    ask: Callable[[Sending, Parameters], int], parameters: Parameters, code: RequestErrorCode
) -> None:
    """3.1#1, 3.2#1, 3.1.2#3, 6.4.2.3#2."""
    side = Sending()
    track = side.track()
    publish(track, [0], 2)
    request = ask(side, parameters)
    (error,) = side.replies(request)
    assert isinstance(error, RequestError)
    assert error.code is code
    assert side.ended(request)
    publish(track, [1, 5], 2)
    track.end()
    side.flush()
    assert not side.data_streams()
    assert len(side.replies(request)) == 1


def test_publish_done_waits_for_every_data_stream() -> None:
    """3.1.2#2, 6.4.2.2#1, 6.4.2.2#3: a fill, two Groups, and the End of Track."""
    side = Sending()
    track = side.track()
    publish(track, [0], 3)
    side.transport.room = 0
    request = side.subscribe(JOIN)
    publish(track, [1, 2], 3)
    track.end()
    seen_open = 0
    for _ in range(1000):
        if side.ended(request):
            break
        assert not any(isinstance(m, PublishDone) for m in side.replies(request))
        seen_open += any(written.is_open for written in side.data_streams().values())
        side.transport.room = 40
        side.flush()
    assert seen_open > 10
    assert not any(written.is_open for written in side.data_streams().values())
    last = side.replies(request)[-1]
    assert isinstance(last, PublishDone)
    assert last.stream_count == len(side.data_streams()) == 4


def test_an_alias_never_means_two_tracks() -> None:
    """3.1.3#1, 3.1.3#2: not at the same time, and not one after the other."""
    side = Sending()
    tracks = [side.track(named(name)) for name in "abc"]
    seen: set[int] = set()
    for _ in range(3):
        requests = [side.subscribe(name=track.name) for track in tracks]
        aliases = {side.alias(request) for request in requests}
        assert len(aliases) == len(tracks)
        assert not aliases & seen
        seen |= aliases
        for request in requests:
            side.cancel(request)


def test_the_largest_object_counts_from_its_first_octet() -> None:
    """3.1.4#1: it is still being sent to one subscriber when another one asks."""
    side = Sending()
    track = side.track()
    side.subscribe()
    publish(track, [0], 1)
    side.flush()
    side.transport.room = 50
    track.open_group(1).write(0, bytes(10_000))
    side.flush()
    assert places(side.objects(side.subgroups())) == [(0, 0)]
    (ok,) = side.replies(side.subscribe())
    assert isinstance(ok, SubscribeOk)
    assert ok.parameters.largest == Location(1, 0)


def test_forward_location_and_ranges_decide_together() -> None:
    """3.3.3#1."""
    side = Sending()
    track = side.track()
    request = side.subscribe(
        Parameters(
            location_filter=LocationFilter.range(Location(1, 1), Location(6, 2)),
            range_filters=(
                RangeFilter(RangeFilterKind.OBJECT_ID, (IdRange(1, 2),)),
                RangeFilter(RangeFilterKind.PRIORITY, (IdRange(0, 10),)),
            ),
        )
    )

    def write(group_id: int, priority: int) -> None:
        writer = track.open_group(group_id, publisher_priority=priority)
        for object_id in range(4):
            writer.write(object_id, b"x")
        writer.close()
        side.flush()

    write(0, 5)  # before the range
    write(1, 5)
    write(2, 99)  # the wrong priority
    side.update(request, Parameters(forward=False))
    write(3, 5)  # paused
    side.update(request, Parameters(forward=True))
    write(4, 5)
    write(7, 5)  # behind the range
    assert places(side.objects(side.subgroups())) == [(1, 1), (1, 2), (4, 1), (4, 2)]


def test_gaps_of_a_fetch_need_no_marker() -> None:
    """3.2.2#1: no marker for what does not exist, UNKNOWN for what was evicted."""
    side = Sending()
    track = side.track()
    for group_id in (0, 3, 9):
        writer = track.open_group(group_id)
        for object_id in (0, 4, 7):
            writer.write(object_id, b"x")
        writer.close()
    side.fetch()
    side.flush()
    (stream,) = side.fetches()
    assert places(side.objects([stream])) == [(g, o) for g in (0, 3, 9) for o in (0, 4, 7)]
    assert len(side.read(stream)) == 9
    track.evict_before(Location(3, 4))
    side.fetch()
    side.flush()
    markers = [m for m in side.read(side.fetches()[1]) if isinstance(m, EndOfRangeRead)]
    assert markers
    assert {marker.status for marker in markers} == {RangeStatus.UNKNOWN}


def test_the_default_priority_is_in_the_middle() -> None:
    """5.1.3#1: of subscriptions and of tracks."""
    assert TrackProperties().default_publisher_priority == 128
    side = Sending()
    tracks = [side.track(named(name)) for name in "abc"]
    for track, priority in zip(tracks, (129, None, 127), strict=True):
        side.subscribe(Parameters(subscriber_priority=priority), track.name)
    side.transport.room = 0
    for track in tracks:
        track.open_group(0).write(0, track.name.name)
    side.transport.room = 1000
    side.flush()
    assert [got.payload for got in side.objects(side.subgroups())] == [b"c", b"b", b"a"]


def test_answers_go_out_while_objects_wait() -> None:
    """5.1.2#3, 3.1.3.1#2: no room for Objects holds up a control or request stream."""
    directory = TrackDirectory()
    track = TrackSource(NAME)
    directory.add(track)
    peer = ScriptedPeer(Role.SERVER, directory=directory)
    peer.transport.room = 0
    stream = peer.open_bidi()
    peer.send(stream, Subscribe(0, NAME))
    track.open_group(0).write(0, payload_of(0, 0, 100_000))
    peer.after()
    peer.send(stream, RequestUpdate(2, Parameters(subscriber_priority=3)))
    ok, updated = peer.messages(stream)
    assert isinstance(ok, SubscribeOk)
    assert updated == RequestOk(Parameters(largest=Location(0, 0)))
    peer.messages(3)
    peer.session.goaway(now=0.0)
    assert isinstance(one(peer.messages(3)), Goaway)
    assert not [s for s in peer.transport.sent if s % 4 == 3 and s != 3]  # and no Object


def test_control_octets_are_credited_while_objects_lie_unread() -> None:
    """3.1.3.1#2: what is withheld is withheld from data streams alone."""
    peer = ScriptedPeer(config=SessionConfig(max_buffered_octets=10))
    established(peer)
    peer.send_octets(peer.open_uni(), subgroup(0, range(1)), fin=True)
    peer.send_octets(peer.open_uni(), subgroup(1, range(3)))
    withheld = peer.transport.owed
    assert withheld
    peer.session.subscribe(named("other"), now=0.0)
    peer.send(4, SubscribeOk(9))
    peer.send(peer.control, Goaway())
    assert peer.transport.owed == withheld
    for stream in (0, 4, peer.control):
        assert peer.transport.credited[stream] == peer.transport.received[stream]


def test_the_largest_object_is_said_wherever_it_may_be() -> None:
    """9.20.17#1: in SUBSCRIBE_OK, REQUEST_UPDATE_OK, TRACK_STATUS_OK and PUBLISH."""
    directory = TrackDirectory()
    track = TrackSource(NAME)
    directory.add(track)
    for expected in (None, Location(3, 1)):
        if expected is not None:
            publish(track, [3], 2)
        peer = ScriptedPeer(Role.SERVER, directory=directory)
        subscription, status = peer.open_bidi(), peer.open_bidi()
        peer.send(subscription, Subscribe(0, NAME), RequestUpdate(2, Parameters(forward=False)))
        peer.send(status, TrackStatus(4, NAME))
        peer.session.publish(track, forward=False, now=0.0)
        said = [*peer.messages(subscription), *peer.messages(status), *peer.messages(1)]
        assert [type(message) for message in said] == [SubscribeOk, RequestOk, RequestOk, Publish]
        for message in said:
            assert isinstance(message, SubscribeOk | RequestOk | Publish)
            assert message.parameters.largest == expected


@pytest.mark.parametrize(
    ("filters", "passes"),
    [
        ([(0, "object", [(1, 1), (3, 4)])], {(0, 1), (0, 3), (0, 4), (1, 1), (1, 3), (1, 4)}),
        ([(0, "object", [(0, 2)]), (0, "priority", [(7, 7)])], {(1, 0), (1, 1), (1, 2)}),
        (
            [(0, "object", [(0, 0)]), (1, "object", [(4, None)]), (1, "priority", [(7, 7)])],
            {(0, 0), (1, 0), (1, 4), (1, 5)},
        ),
        ([(0, "subgroup", [(1, 9)])], set()),
    ],
)
def test_ranges_are_alternatives_sets_are_alternatives_and_a_set_must_pass_whole(
    filters: list[tuple[int, str, list[tuple[int, int | None]]]], passes: set[tuple[int, int]]
) -> None:
    """3.3.2#3, 3.3.2#2: by subscription and by FETCH; one Range too many is refused."""
    kinds = {
        "object": RangeFilterKind.OBJECT_ID,
        "priority": RangeFilterKind.PRIORITY,
        "subgroup": RangeFilterKind.SUBGROUP,
    }
    wanted = tuple(
        RangeFilter(kinds[kind], tuple(IdRange(*one) for one in ranges), set_id=set_id)
        for set_id, kind, ranges in filters
    )
    count = sum(len(ranges) for _, _, ranges in filters)
    side = Sending(SessionConfig(max_filter_ranges=count))
    track = side.track()
    request = side.subscribe(Parameters(range_filters=wanted))
    for group_id, priority in ((0, 3), (1, 7)):
        writer = track.open_group(group_id, publisher_priority=priority)
        for object_id in range(6):
            writer.write(object_id, b"x")
        writer.close()
    side.fetch(Parameters(range_filters=wanted))
    side.flush()
    live = side.objects(side.subgroups(side.alias(request)))
    assert sorted(places(live)) == sorted(passes)
    assert sorted(places(side.objects(side.fetches()))) == sorted(passes)
    one_more = RangeFilter(RangeFilterKind.OBJECT_ID, (IdRange(0, 1),), set_id=99)
    for ask in ASKS:
        (error,) = side.replies(ask(side, Parameters(range_filters=(*wanted, one_more))))
        assert isinstance(error, RequestError)
        assert error.code is RequestErrorCode.INVALID_FILTER


def test_subscriptions_of_one_peer_are_limited() -> None:
    """15.1#1: the one too many is refused, the others go on, and an ended one makes room."""
    directory = TrackDirectory()
    track = TrackSource(NAME)
    directory.add(track)
    peer = ScriptedPeer(Role.SERVER, directory=directory, config=SessionConfig(max_requests=3))
    streams = [peer.open_bidi() for _ in range(4)]
    for number, stream in enumerate(streams):
        peer.send(stream, Subscribe(2 * number, NAME))
    answers = [one(peer.messages(stream)) for stream in streams]
    assert [type(answer) for answer in answers] == [SubscribeOk] * 3 + [RequestError]
    assert isinstance(answers[3], RequestError)
    assert answers[3].code is RequestErrorCode.EXCESSIVE_LOAD
    publish(track, [0], 1)
    peer.after()
    assert peer.session.stats.objects_sent == 3 * 2  # End of Group among them
    peer.cancel(streams[0])
    peer.send_octets(streams[3], b"", fin=True)
    stream = peer.open_bidi()
    peer.send(stream, Subscribe(8, NAME))
    assert isinstance(one(peer.messages(stream)), SubscribeOk)
