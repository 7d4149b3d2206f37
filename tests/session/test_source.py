"""TrackSource, its history and the directory, without any session."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moqt.codes import GroupOrder, ObjectStatus, PublishDoneCode
from moqt.errors import LocalProtocolError
from moqt.session.publish.directory import TrackDirectory
from moqt.session.publish.history import StoredObject, StoredSubgroup
from moqt.session.publish.payloads import EqualPayloads
from moqt.session.publish.source import TrackSource
from moqt.types import FullTrackName, Location, TrackNamespace
from moqt.wire.properties import TrackProperties
from moqt.wire.vi64 import MAX_VI64

NAME = FullTrackName(TrackNamespace.of("a", "b"), b"t")
FIRST, LAST = Location(0, 0), Location(1 << 40, 0)


def walked(
    track: TrackSource,
    start: Location = FIRST,
    end: Location = LAST,
    order: GroupOrder = GroupOrder.ASCENDING,
) -> list[tuple[int, int] | Location]:
    return [
        (item.header.group_id, item.header.object_id) if isinstance(item, StoredObject) else item
        for item in track.walk(start, end, order)
    ]


def filled(groups: int, objects: int, size: int = 10, retain: int | None = None) -> TrackSource:
    track = TrackSource(NAME, max_retained_octets=retain)
    for group_id in range(groups):
        writer = track.open_group(group_id)
        if group_id % 2:
            writer.write_all(EqualPayloads(objects, [bytes(objects * size)]))
        else:
            writer.write_all([bytes(size)] * objects)
        writer.end_of_group()
        writer.close()
    return track


def test_largest_follows_content_and_not_status() -> None:
    assert TrackSource(NAME).largest is None
    track = TrackSource(NAME)
    writer = track.open_group(2)
    writer.write(5, b"x")
    assert track.largest == Location(2, 5)
    track.open_group(1).write(9, b"late")
    assert track.largest == Location(2, 5)
    writer.end_of_group()
    assert track.largest == Location(2, 5)
    assert track.published_octets == track.retained_octets == 5


def test_payload_forms() -> None:
    track = TrackSource(NAME)
    writer = track.open_group(0)
    array = np.arange(6, dtype="<u2").reshape(2, 3)
    writer.write(0, b"ab")
    writer.write(1, [b"a", bytearray(b"bc"), memoryview(b"d"), b""])
    writer.write(2, array.data)
    writer.write(3, ())
    stored = [item for item in track.walk(FIRST, LAST, GroupOrder.ASCENDING)]
    assert [
        (s.header.payload_length, b"".join(s.payload))
        for s in stored
        if isinstance(s, StoredObject)
    ] == [(2, b"ab"), (4, b"abcd"), (12, array.tobytes()), (0, b"")]
    with pytest.raises(TypeError):
        writer.write(4, "text")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="contiguous"):
        writer.write(4, array.T.data)
    with pytest.raises(TypeError, match="contiguous"):
        writer.write(4, memoryview(b"abcd")[::2])
    writer.write(4, b"the failed ones took no ID")


def test_memory_is_free_when_evicted() -> None:
    track = TrackSource(NAME)
    array = np.zeros(100, dtype="u1")
    lent = array.view("u1")
    freed: list[bool] = []
    weakref.finalize(lent, freed.append, True)
    track.open_group(0).write(0, [b"head", memoryview(lent.data)])
    del lent
    gc.collect()
    assert not freed
    track.evict_all()
    gc.collect()
    assert freed


def test_a_whole_subgroup_in_one_call_is_what_its_objects_are_one_by_one() -> None:
    heads, data = bytes(range(12)), np.arange(24, dtype="<u2")
    payloads = [heads[3 * i : 3 * i + 3] + data[6 * i : 6 * i + 6].tobytes() for i in range(4)]
    equal = EqualPayloads(4, [heads, data.data])
    found = []
    for write in (
        lambda writer: [writer.write(i, one) for i, one in enumerate(payloads)],
        lambda writer: writer.write_all(payloads),
        lambda writer: writer.write_all(equal),
    ):
        track = TrackSource(NAME, clock=lambda: 5.0)
        writer = track.open_group(2)
        write(writer)
        writer.write(7, b"more")
        writer.end_of_group()
        writer.close()
        found.append(
            [
                (item.header, b"".join(item.payload), item.published_at)
                for item in track.walk(FIRST, LAST, GroupOrder.ASCENDING)
                if isinstance(item, StoredObject)
            ]
        )
        assert track.largest == Location(2, 7)
        assert track.published_octets == track.retained_octets == 4 * 15 + 4
    assert found[0] == found[1] == found[2]
    assert [payload for _, payload, _ in found[0]] == [*payloads, b"more"]


def test_a_whole_subgroup_is_refused_as_its_objects_would_be() -> None:
    track = TrackSource(NAME)
    equal = EqualPayloads(3, [b"abc"])
    writer, other = track.open_group(0), track.open_group(0, subgroup_id=1)
    other.write(2, b"z")
    with pytest.raises(LocalProtocolError, match="Object 2 is in another Subgroup already"):
        writer.write_all(equal)
    writer.write_all(EqualPayloads(2, [b"ab"]))
    with pytest.raises(LocalProtocolError, match="has Objects up to 1, expected none yet"):
        writer.write_all(equal)
    other.end_of_group(3)
    third = track.open_group(0, subgroup_id=2)
    with pytest.raises(LocalProtocolError, match="behind End of Group at 3"):
        third.write_all(EqualPayloads(4, [b"abcd"]))
    third.write_all(EqualPayloads(0, []))
    third.close()
    with pytest.raises(LocalProtocolError, match="closed"):
        third.write_all(equal)
    assert walked(track, end=Location(0, 3)) == [(0, 0), (0, 1), (0, 2)]
    assert track.retained_octets == 3


def test_a_whole_subgroup_lies_below_the_largest_object_too() -> None:
    track = TrackSource(NAME)
    track.open_group(1).write(1, b"x")
    track.open_group(0).write_all(EqualPayloads(5, [b"abcde"]))
    assert track.largest == Location(1, 1)
    track.open_group(1, subgroup_id=1)
    track.open_group(2).write_all(EqualPayloads(5, [b"abcde"]))
    assert track.largest == Location(2, 4)


def test_memory_of_a_whole_subgroup_is_free_when_all_of_it_is_evicted_and_sent() -> None:
    track = TrackSource(NAME)
    lent = np.zeros(100, dtype="u1").view("u1")
    freed: list[bool] = []
    weakref.finalize(lent, freed.append, True)
    track.open_group(0).write_all(EqualPayloads(10, [memoryview(lent.data)]))
    del lent
    track.evict_before(Location(0, 9))
    in_flight = [*track.walk(FIRST, Location(0, 9), GroupOrder.ASCENDING)]
    assert in_flight[0] == Location(0, 8)
    track.evict_all()
    gc.collect()
    assert not freed
    in_flight.clear()
    gc.collect()
    assert freed


@pytest.mark.parametrize(
    ("group_id", "subgroup_id", "priority"),
    [(-1, 0, 0), (MAX_VI64 + 1, 0, 0), (0, -1, 0), (0, 0, 256), (0, 0, -1)],
)
def test_numbers_out_of_range(group_id: int, subgroup_id: int, priority: int) -> None:
    with pytest.raises(ValueError, match="expected 0 to"):
        TrackSource(NAME).open_group(group_id, subgroup_id=subgroup_id, publisher_priority=priority)


def test_misuse_is_refused_and_changes_nothing() -> None:
    track = TrackSource(NAME)
    writer = track.open_group(0)
    writer.write(3, b"x")
    for object_id in (3, 2, -1, MAX_VI64 + 1):
        with pytest.raises(LocalProtocolError, match="Object ID is"):
            writer.write(object_id, b"y")
    with pytest.raises(LocalProtocolError, match="exists"):
        track.open_group(0)
    with pytest.raises(LocalProtocolError, match="still open"):
        track.end()
    with pytest.raises(LocalProtocolError, match="has properties"):
        writer.write(4, b"y", properties=b"\x78\x01")
    other = track.open_group(0, subgroup_id=1)
    other.write(8, b"z")
    with pytest.raises(LocalProtocolError, match="Object 8 exists"):
        writer.end_of_group()
    writer.end_of_group(9)
    with pytest.raises(LocalProtocolError, match="behind End of Group"):
        other.write(9, b"z")
    writer.close()
    writer.close()
    other.close()
    with pytest.raises(LocalProtocolError, match="closed"):
        writer.write(10, b"y")
    with pytest.raises(LocalProtocolError, match="but"):
        track.end(Location(0, 8))
    with pytest.raises(LocalProtocolError, match="next Group"):
        track.end(Location(0, 9))
    assert track.retained_octets == 2
    track.end()
    assert track.end_location == Location(1, 0)
    for again in (track.end, lambda: track.open_group(5)):
        with pytest.raises(LocalProtocolError, match="has ended"):
            again()


def test_end_of_track_is_a_status_object_in_a_group_of_its_own() -> None:
    track = filled(2, 2)
    seen: list[StoredSubgroup] = []

    class Listener:
        finished = 0

        def subgroup_opened(self, subgroup: StoredSubgroup) -> None:
            seen.append(subgroup)

        def subgroup_closed(self, subgroup: StoredSubgroup) -> None:
            pass

        def datagram_published(self, stored: StoredObject) -> None:
            pass

        def state_changed(self) -> None:
            pass

        def track_finished(self) -> None:
            self.finished += 1

        def measure_lag(self) -> int:
            return 1

    listener = Listener()
    assert track.subscriptions == 0
    track.add_listener(listener)
    assert track.subscriptions == 1
    track.end(Location(2, 0))
    (subgroup,) = seen
    assert (subgroup.group_id, subgroup.subgroup_id, subgroup.is_closed) == (2, 0, True)
    stored = subgroup.at(0)
    assert stored is not None
    assert stored.header.status is ObjectStatus.END_OF_TRACK
    assert listener.finished == 1
    assert track.is_ended
    assert not track.is_live
    assert track.largest == Location(1, 1)


def test_an_object_id_is_used_in_one_subgroup_alone() -> None:
    """A fetch has no way to say that there are two, and would end its session."""
    track = TrackSource(NAME)
    first, second = track.open_group(0), track.open_group(0, subgroup_id=1)
    first.write(3, b"x")
    with pytest.raises(LocalProtocolError, match="Object 3 is in another Subgroup already"):
        second.write(3, b"y")
    second.write(2, b"y")
    track.write_datagram(0, 5, b"z")
    with pytest.raises(LocalProtocolError, match="Object 5 is in another Subgroup already"):
        first.write(5, b"x")
    first.write(4, b"x")
    assert walked(track, end=Location(0, 5)) == [(0, 2), (0, 3), (0, 4), (0, 5)]


def test_no_end_of_track_where_no_group_can_be() -> None:
    """What no message can say is refused here, and not when a session sends it."""
    track = TrackSource(NAME)
    writer = track.open_group(MAX_VI64)
    writer.write(0, b"x")
    writer.close()
    with pytest.raises(ValueError, match="Group ID of End of Track is 18446744073709551616"):
        track.end()
    assert track.is_live
    track.end(Location(MAX_VI64, 1))
    assert track.is_ended


def test_end_of_an_empty_track() -> None:
    track = TrackSource(NAME)
    track.end()
    assert track.end_location == Location(0, 0)
    assert track.largest is None


def test_abort_releases_and_is_final() -> None:
    track = filled(1, 3)
    track.abort(PublishDoneCode.INTERNAL_ERROR, "first")
    track.abort(PublishDoneCode.EXPIRED, "second")
    assert (track.abort_code, track.abort_reason) == (PublishDoneCode.INTERNAL_ERROR, "first")
    assert track.retained_octets == 0
    with pytest.raises(LocalProtocolError):
        track.open_group(9)


def test_reserved_names_are_refused() -> None:
    """2.4.3#1, 6.5#1."""
    for first in (".", ".session", ".x"):
        with pytest.raises(LocalProtocolError, match="reserved"):
            TrackSource(FullTrackName(TrackNamespace.of(first), b"t"))
        with pytest.raises(LocalProtocolError, match="reserved"):
            TrackDirectory().advertise(TrackNamespace.of(first, "y"))


def test_retention_keeps_the_newest() -> None:
    track = filled(3, 4, size=10, retain=45)
    assert track.retained_octets == 40
    assert track.evicted_through == Location(1, 3)
    assert walked(track) == [Location(1, 3), (2, 0), (2, 1), (2, 2), (2, 3)]
    writer = track.open_group(3)
    writer.write(0, bytes(1000))  # larger than the limit, and still kept
    assert track.retained_octets == 1000
    assert walked(track, end=Location(3, 0))[-1] == (3, 0)


def test_retention_with_open_groups_below() -> None:
    track = TrackSource(NAME, max_retained_octets=25)
    low, high = track.open_group(0), track.open_group(1)
    for object_id in range(4):
        low.write(object_id, bytes(10))
        high.write(object_id, bytes(10))
    assert track.retained_octets == 20
    assert walked(track, end=Location(1, 3)) == [Location(1, 1), (1, 2), (1, 3)]
    low.write(4, bytes(10))
    assert track.retained_octets == 20


def test_walk_in_both_orders() -> None:
    track = filled(3, 2)
    assert walked(track, Location(0, 1), Location(2, 0)) == [(0, 1), (1, 0), (1, 1), (2, 0)]
    assert walked(track, Location(0, 1), Location(2, 0), GroupOrder.DESCENDING) == [
        (2, 0),
        (1, 0),
        (1, 1),
        (0, 1),
    ]


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 2)), max_size=40),
    st.tuples(st.integers(0, 5), st.integers(0, 12)),
    st.lists(st.tuples(st.integers(0, 45), st.integers(0, 5), st.integers(0, 12)), max_size=3),
    st.sampled_from(GroupOrder),
    st.booleans(),
)
def test_walk_tells_the_truth_while_objects_are_evicted(
    writes: list[tuple[int, int]],
    bounds: tuple[int, int],
    evictions: list[tuple[int, int, int]],
    order: GroupOrder,
    from_start: bool,
) -> None:
    """Every Object of the range is delivered once or lies in an unknown stretch."""
    track = TrackSource(NAME)
    written: set[tuple[int, int]] = set()
    next_id: dict[int, int] = {}
    writers = {}
    for group_id, subgroup_id in writes:
        if (group_id, subgroup_id) not in writers:
            writers[group_id, subgroup_id] = track.open_group(group_id, subgroup_id=subgroup_id)
        object_id = next_id.get(group_id, 0)
        next_id[group_id] = object_id + 1
        writers[group_id, subgroup_id].write(object_id, b"x")
        written.add((group_id, object_id))
    for writer in writers.values():
        writer.close()
    start, end = (FIRST, Location(*bounds)) if from_start else (Location(*bounds), Location(5, 12))
    due = sorted(evictions)
    delivered: list[tuple[int, int]] = []
    unknown: set[tuple[int, int]] = set()
    position: tuple[int, int] | None = None  # the last item, in the order of the walk

    def rank(place: tuple[int, int]) -> tuple[int, int]:
        return (place[0] if order is GroupOrder.ASCENDING else -place[0], place[1])

    for step, item in enumerate(track.walk(start, end, order)):
        if isinstance(item, StoredObject):
            place = item.header.group_id, item.header.object_id
            delivered.append(place)
        else:
            place = item.group_id, item.object_id
            unknown |= {
                p
                for p in written
                if (position is None or rank(position) < rank(p)) and rank(p) <= rank(place)
            }
        assert position is None or rank(position) < rank(place)
        assert (start.group_id, start.object_id) <= place
        assert place[0] <= end.group_id
        position = place
        while due and due[0][0] <= step:
            track.evict_before(Location(*due.pop(0)[1:]))
    wanted = {
        p
        for p in written
        if (start.group_id, start.object_id) <= p <= (end.group_id, end.object_id)
    }
    assert len(delivered) == len(set(delivered))
    assert set(delivered) <= wanted
    assert wanted <= set(delivered) | unknown
    if not evictions:
        assert set(delivered) == wanted


def test_directory_finds_tracks_and_counts_namespaces() -> None:
    directory = TrackDirectory()
    first, second = TrackSource(NAME), TrackSource(FullTrackName(NAME.namespace, b"u"))
    told: list[tuple[str, TrackNamespace]] = []

    class Listener:
        def namespace_added(self, namespace: TrackNamespace) -> None:
            told.append(("+", namespace))

        def namespace_removed(self, namespace: TrackNamespace) -> None:
            told.append(("-", namespace))

    near, far = Listener(), Listener()
    directory.listen(TrackNamespace.of("a"), near)
    directory.listen(TrackNamespace.of("z"), far)
    directory.add(first)
    directory.add(second)
    directory.advertise(NAME.namespace)
    directory.advertise(NAME.namespace)
    with pytest.raises(LocalProtocolError, match="served already"):
        directory.add(TrackSource(NAME))
    assert directory.find(NAME) is first
    assert directory.find(FullTrackName(NAME.namespace, b"v")) is None
    assert directory.tracks() == (first, second)
    assert len(directory) == 2
    assert (
        directory.namespaces() == directory.namespaces(TrackNamespace.of("a")) == (NAME.namespace,)
    )
    assert directory.namespaces(TrackNamespace.of("b")) == ()
    directory.remove(first)
    directory.remove(first)
    directory.remove(second)
    assert told == [("+", NAME.namespace)]
    directory.withdraw(NAME.namespace)
    directory.withdraw(NAME.namespace)
    assert told == [("+", NAME.namespace), ("-", NAME.namespace)]
    assert directory.namespaces() == ()
    directory.unlisten(TrackNamespace.of("a"), near)
    directory.unlisten(TrackNamespace.of("a"), near)
    directory.advertise(TrackNamespace.of("a"))
    assert len(told) == 2
    assert not any((directory._reasons[n] != 1) for n in directory.namespaces())


def test_priority_defaults_to_the_track() -> None:
    track = TrackSource(NAME, properties=TrackProperties.of(default_publisher_priority=9))
    track.open_group(0).write(0, b"x")
    (item,) = track.walk(FIRST, FIRST, GroupOrder.ASCENDING)
    assert isinstance(item, StoredObject)
    assert item.header.publisher_priority == 9
