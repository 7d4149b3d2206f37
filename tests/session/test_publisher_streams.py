"""How a publisher uses data streams: which, from when, and how they end (MOQT-22 2.2, 11.3)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moqt.codes import (
    PublishDoneCode,
    StreamResetCode,
)
from moqt.session.config import SessionConfig
from moqt.session.publish.payloads import EqualPayloads
from moqt.types import Location
from moqt.wire.fetch_objects import FetchFlag
from moqt.wire.filters import LocationFilter
from moqt.wire.params import Parameters
from moqt.wire.streams import parse_stream_head
from tests.session.sending import (
    MANY,
    Sending,
    done,
    payload_of,
    places,
)

if TYPE_CHECKING:
    from moqt.session.publish.source import TrackSource


def test_one_subgroup_one_stream() -> None:
    """2.2#1, 11.3#2: two Subgroups of a Group, two streams, and no second one for either."""
    side = Sending()
    track = side.track()
    alias = side.alias(side.subscribe())
    writers = {i: track.open_group(0, subgroup_id=i) for i in range(2)}
    for object_id in range(6):
        writers[object_id % 2].write(object_id, payload_of(0, object_id))
        side.flush()
    heads = side.subgroups(alias)
    assert sorted((head.group_id, head.subgroup_id) for head in heads.values()) == [(0, 0), (0, 1)]
    for stream, head in heads.items():
        first = head.subgroup_id or 0
        assert places(side.objects([stream])) == [(0, first + 2 * i) for i in range(3)]


def test_who_waits_at_an_empty_subgroup_gets_all_that_is_written_in_one_call() -> None:
    side = Sending()
    track = side.track()
    alias = side.alias(side.subscribe())
    writer = track.open_group(0)
    side.flush()
    writer.write_all(EqualPayloads(3, [b"aabbcc"]))
    side.flush()
    (stream,) = side.subgroups(alias)
    assert [one.payload for one in side.objects([stream])] == [b"aa", b"bb", b"cc"]


def test_first_object_is_said_where_it_is_true() -> None:
    """2.2#2, 11.3.1#3: bit 0x40 for the first Object ever of a Subgroup; bit 4 always."""
    side = Sending()
    track = side.track()
    early = side.alias(side.subscribe())
    beyond = side.alias(
        side.subscribe(Parameters(location_filter=LocationFilter.absolute(Location(0, 1))))
    )
    writer = track.open_group(0)
    writer.write(0, b"x")
    late = side.alias(side.subscribe())
    writer.write(1, b"x")
    side.flush()
    first_octets = {
        head.track_alias: side.transport.streams[stream].data[0]
        for stream, head in side.subgroups().items()
    }
    assert {alias: flags & 0x40 for alias, flags in first_octets.items()} == {
        early: 0x40,
        beyond: 0,
        late: 0,
    }
    assert all(flags & 0x10 for flags in first_octets.values())


def test_a_reset_subgroup_goes_on_without_the_first_object_bit() -> None:
    """2.2#1, 11.3#2: after a reset a second stream may carry the rest, one open at a time."""
    side = Sending()
    track = side.track()
    request = side.subscribe()
    writer = track.open_group(0)
    writer.write(0, bytes(500))
    side.transport.room = 100
    side.flush()
    side.update(request, Parameters(forward=False))
    side.transport.room = MANY
    side.update(request, Parameters(forward=True))
    writer.write(1, b"x")
    side.flush()
    (one, first), (two, second) = side.subgroups().items()
    assert (first.is_first_object, second.is_first_object) == (True, False)
    assert side.transport.streams[one].reset is StreamResetCode.CANCELLED
    assert side.transport.streams[two].is_open


def test_streams_end_by_fin_with_the_last_object_and_not_before() -> None:
    """11.3.2#1, #6: at the end of the Subgroup, however long nothing comes."""
    side = Sending()
    track = side.track()
    side.subscribe()
    writer = track.open_group(0)
    writer.write(0, b"x")
    side.flush()
    side.advance(3600)
    side.flush()
    ((stream, written),) = side.data_streams().items()
    assert written.is_open
    writer.write(1, b"x")
    track.open_group(1).write(0, b"x")  # another Group ends nothing
    side.flush()
    assert written.is_open
    writer.end_of_group()
    writer.close()
    side.flush()
    assert written.fin
    assert len(side.read(stream)) == 3


def test_a_narrower_range_ends_streams_at_the_boundary_of_its_groups() -> None:
    """11.3.2#6: a Group that stays wholly wanted is sent to its end; one that does not is reset."""
    side = Sending()
    track = side.track()
    request = side.subscribe()
    writers = [track.open_group(group_id) for group_id in range(2)]
    for writer in writers:
        writer.write(0, b"x")
    side.flush()
    side.update(request, Parameters(location_filter=LocationFilter.groups(first=0, last=0)))
    for writer in writers:
        writer.write(1, b"x")
        writer.close()
    side.flush()
    ends = {h.group_id: side.transport.streams[s] for s, h in side.subgroups().items()}
    assert ends[0].fin
    assert ends[1].reset is StreamResetCode.CANCELLED


def test_whatever_leaves_something_out_resets_with_its_code() -> None:
    """11.3.2#2, 12.5#1: cancel, pause, narrow, too late, too far behind, abort."""

    def cancel(side: Sending, track: TrackSource, request: int) -> None:
        side.cancel(request)

    def pause(side: Sending, track: TrackSource, request: int) -> None:
        side.update(request, Parameters(forward=False))

    def narrow(side: Sending, track: TrackSource, request: int) -> None:
        only = LocationFilter.groups(first=9, last=9)
        side.update(request, Parameters(location_filter=only))

    def wait(side: Sending, track: TrackSource, request: int) -> None:
        side.advance(5)

    def fall_behind(side: Sending, track: TrackSource, request: int) -> None:
        track.open_group(1).write(0, bytes(2000))

    def evict(side: Sending, track: TrackSource, request: int) -> None:
        track.evict_before(Location(1, 0))

    def abort(side: Sending, track: TrackSource, request: int) -> None:
        track.abort(PublishDoneCode.MALFORMED_TRACK)

    def leave(side: Sending, track: TrackSource, request: int) -> None:
        track.abort(PublishDoneCode.GOING_AWAY)

    def fail(side: Sending, track: TrackSource, request: int) -> None:
        track.abort(PublishDoneCode.INTERNAL_ERROR)

    code = StreamResetCode
    for cause, expected, end in (
        (cancel, code.CANCELLED, None),
        (pause, code.CANCELLED, None),
        (narrow, code.CANCELLED, None),
        (wait, code.DELIVERY_TIMEOUT, None),
        (fall_behind, code.TOO_FAR_BEHIND, PublishDoneCode.TOO_FAR_BEHIND),
        (evict, code.TOO_FAR_BEHIND, PublishDoneCode.TOO_FAR_BEHIND),
        (abort, code.MALFORMED_TRACK, PublishDoneCode.MALFORMED_TRACK),
        (leave, code.GOING_AWAY, PublishDoneCode.GOING_AWAY),
        (fail, code.INTERNAL_ERROR, PublishDoneCode.INTERNAL_ERROR),
    ):
        side = Sending(SessionConfig(max_lag_octets=1000))
        track = side.track()
        request = side.subscribe(Parameters(object_delivery_timeout_ms=4000))
        writer = track.open_group(0)
        writer.write(0, bytes(100))
        side.flush()
        side.transport.room = 0
        writer.write(1, bytes(100))
        cause(side, track, request)
        side.transport.room = MANY
        side.flush()
        (written,) = list(side.data_streams().values())[:1]
        assert (cause.__name__, written.reset) == (cause.__name__, expected)
        assert not written.fin
        if end is not None:
            assert done(side, request).code is end


def test_stop_sending_is_answered_with_a_reset_and_heeded() -> None:
    """11.3.2#3, #4: the stream is reset, the Subgroup not opened again, the rest goes on."""
    side = Sending()
    track = side.track()
    side.subscribe()
    writer = track.open_group(0)
    writer.write(0, b"x")
    side.flush()
    (stream,) = side.subgroups()
    assert side.publisher.on_data_stop(stream, 1, 0.0)
    assert side.transport.streams[stream].reset is StreamResetCode.CANCELLED
    writer.write(1, b"x")
    track.open_group(1).write(0, b"x")
    side.flush()
    assert places(side.objects(set(side.subgroups()) - {stream})) == [(1, 0)]


def test_the_first_object_of_a_fetch_refers_to_none() -> None:
    """11.4.1.1#1: Group and Object ID absolute, the priority said, no prior Subgroup."""
    side = Sending()
    track = side.track()
    for subgroup_id in (0, 4):
        writer = track.open_group(6, subgroup_id=subgroup_id, publisher_priority=128)
        writer.write(subgroup_id, b"x")
        writer.close()
    for start in (0, 4):
        side.fetch(Parameters(location_filter=LocationFilter.absolute(Location(6, start))))
    side.flush()
    heads = []
    for stream in side.fetches():
        data = memoryview(bytes(side.transport.streams[stream].data))
        parsed = parse_stream_head(bytes(data))
        assert parsed is not None
        heads.append(bytes(data[parsed[1] :])[:5])
    base = FetchFlag.GROUP_ID_DELTA | FetchFlag.OBJECT_ID_DELTA | FetchFlag.PRIORITY
    assert heads == [bytes((base, 6, 0, 128, 1)), bytes((base | 3, 6, 4, 4, 128))]
