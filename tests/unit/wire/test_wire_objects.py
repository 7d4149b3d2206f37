"""Object readers and writers by example; tests/property/test_wire_streams.py has the rest."""

from __future__ import annotations

import random

import pytest

from moqt.codes import GroupOrder, ObjectStatus, RangeStatus
from moqt.errors import RemoteProtocolError
from moqt.types import Location, Object, ObjectHeader, Placement
from moqt.wire.fetch_objects import FetchReader, FetchWriter
from moqt.wire.object_reader import (
    MAX_PROPERTIES_OCTETS,
    EndOfRangeRead,
    ObjectReader,
    ObjectTooLarge,
    StreamFinished,
    StreamItem,
)
from moqt.wire.ranges import RangeSet, Stash
from moqt.wire.streams import FetchHeader, SubgroupHeader
from moqt.wire.subgroup_objects import SubgroupReader, SubgroupWriter
from moqt.wire.vi64 import MAX_VI64

HEAD = SubgroupHeader(track_alias=3, group_id=12)
WITH_PROPERTIES = SubgroupHeader(track_alias=3, group_id=12, has_properties=True)


def no_place(header: ObjectHeader) -> Placement | None:
    return None


def never(header: ObjectHeader) -> Placement | None:
    raise AssertionError(f"asked for a place for {header.location}")


def subgroup(head: SubgroupHeader = HEAD, *, limit: int = 1000) -> SubgroupReader:
    return SubgroupReader(head, start=0, place=no_place, max_object_octets=limit)


def fetch(order: GroupOrder = GroupOrder.ASCENDING) -> FetchReader:
    return FetchReader(
        FetchHeader(6), start=0, place=no_place, max_object_octets=1000, group_order=order
    )


def unhex(text: str) -> bytes:
    return bytes.fromhex(text)


def header(object_id: int, length: int = 0, **more: object) -> ObjectHeader:
    return ObjectHeader(12, object_id, 0, 128, length, **more)  # type: ignore[arg-type]


# The reader


def test_octets_go_to_the_place_across_the_borders_of_its_buffers() -> None:
    parts = tuple(memoryview(bytearray(size)) for size in (2, 0, 3, 1))
    place = Placement(parts)
    reader = SubgroupReader(HEAD, start=10, place=lambda _: place, max_object_octets=6)
    assert reader.receive(10, b"\x00\x06a", False) == []
    assert (reader.current, reader.current_place) == (header(0, 6), place)
    for at, octet in enumerate(b"bcde"):
        assert not reader.receive(13 + at, bytes([octet]), False)
        assert reader.next_offset == 14 + at
    assert reader.receive(17, b"f", False) == [Object(header(0, 6), None, place)]
    assert [bytes(part) for part in parts] == [b"ab", b"", b"cde", b"f"]
    assert (reader.current, reader.current_place) == (None, None)


@pytest.mark.parametrize("is_placed", [True, False])
@pytest.mark.parametrize("run", [1, 2, 5, 7, 11, 1000])
def test_a_run_with_whole_objects_gives_what_its_pieces_give(run: int, is_placed: bool) -> None:
    """An Object that lies whole in one run is copied apart from those that are cut."""
    sizes = (6, 0, 9, 1, 300, 7)
    writer = SubgroupWriter(HEAD)
    stream, payloads = bytearray(), []
    for object_id, size in enumerate(sizes):
        payloads.append(bytes((object_id + at) % 256 for at in range(size)))
        stream += writer.encode(header(object_id, size)) + payloads[-1]
    places: list[Placement] = []

    def place(of: ObjectHeader) -> Placement | None:
        if not is_placed:
            return None
        first = of.payload_length // 3
        parts = (first, 0, of.payload_length - first)
        places.append(Placement(tuple(memoryview(bytearray(part)) for part in parts)))
        return places[-1]

    reader = SubgroupReader(HEAD, start=0, place=place, max_object_octets=1000)
    items: list[StreamItem] = []
    for at in range(0, len(stream), run):
        items += reader.receive(at, stream[at : at + run], at + run >= len(stream))
    assert items.pop() == StreamFinished(Location(12, len(sizes) - 1))
    objects = [item for item in items if isinstance(item, Object)]
    assert [item.header for item in objects] == [header(i, size) for i, size in enumerate(sizes)]
    assert [item.placement for item in objects if item.header.payload_length] == (
        places if is_placed else [None] * 5
    )
    found = [
        item.payload or b"".join(item.placement.buffers if item.placement else ())
        for item in objects
    ]
    assert [bytes(one) for one in found] == payloads
    assert reader.octets_pending == 0
    assert reader.next_offset == len(stream)


def test_octets_ahead_in_the_payload_are_placed_at_once_and_those_behind_it_wait() -> None:
    memory = memoryview(bytearray(4))
    places = iter([Placement((memory,)), None])
    reader = SubgroupReader(HEAD, start=0, place=lambda _: next(places), max_object_octets=4)
    reader.receive(0, b"\x00\x04", False)
    reader.receive(4, b"cd\x00\x01", False)
    assert bytes(memory) == b"\0\0cd"
    assert reader.octets_pending == 2
    assert len(reader.receive(2, b"ab", False)) == 1
    assert bytes(memory) == b"abcd"
    assert reader.octets_pending == 0  # the next header has been read


def test_what_runs_ahead_of_a_header_is_placed_when_the_header_comes() -> None:
    reader = subgroup()
    assert not reader.receive(3, b"bc\x00\x01", False)
    assert reader.octets_pending == 4
    assert not reader.receive(0, b"\x00\x03", False)
    assert reader.octets_pending == 2
    (item,) = reader.receive(2, b"a", False)
    assert isinstance(item, Object)
    assert bytes(item.payload or b"") == b"abc"
    assert reader.receive(7, b"z", True) == [
        Object(header(1, 1), memoryview(b"z")),
        StreamFinished(Location(12, 1)),
    ]


def test_a_payload_that_is_too_large_takes_no_memory_and_no_place() -> None:
    reader = SubgroupReader(HEAD, start=0, place=never, max_object_octets=10)
    with pytest.raises(ObjectTooLarge, match="has 18446744073709551615 octets, at most 10") as e:
        reader.receive(0, b"\x00" + b"\xff" * 9 + b"x", False)
    assert e.value.header == header(0, MAX_VI64)
    assert (e.value.octets, e.value.limit) == (MAX_VI64, 10)


def test_what_was_whole_before_an_error_is_not_lost() -> None:
    reader = subgroup(limit=2)
    with pytest.raises(ObjectTooLarge):
        reader.receive(0, b"\x00\x01a\x00\x03", False)
    assert reader.take_items() == [Object(header(0, 1), memoryview(b"a"))]
    assert reader.take_items() == []


def test_properties_that_are_too_long_are_refused_before_they_come() -> None:
    length = b"\xc1\x00\x00"  # 65536
    with pytest.raises(ObjectTooLarge, match=r"Properties of Object \{12,4\} has 65536") as caught:
        subgroup(WITH_PROPERTIES).receive(0, b"\x04" + length, False)
    assert caught.value.header is None
    with pytest.raises(ObjectTooLarge, match="Properties"):
        fetch().receive(0, b"\x3c\x01\x00\x80" + length, False)


def test_the_longest_properties_are_read_however_they_are_cut() -> None:
    value = bytes(MAX_PROPERTIES_OCTETS - 4)
    block = b"\x79\xc0\xff\xfb" + value  # one pair that fills the block
    assert len(block) == MAX_PROPERTIES_OCTETS
    octets = b"\x00\xc0\xff\xff" + block + b"\x01a"
    for step in (1000, len(octets)):
        reader = subgroup(WITH_PROPERTIES)
        found = [
            item
            for at in range(0, len(octets), step)
            for item in reader.receive(at, octets[at : at + step], False)
        ]
        assert found == [Object(header(0, 1, properties=block), memoryview(b"a"))]


def test_properties_that_are_no_list_close() -> None:
    """8.3#1: an Object's list is judged when it is read, and not before it is whole."""
    reader = subgroup(WITH_PROPERTIES)
    assert not reader.receive(0, unhex("000201"), False)
    with pytest.raises(RemoteProtocolError, match=r"Properties of Object \{12,0\}"):
        reader.receive(3, unhex("ff00" + "00"), False)
    with pytest.raises(RemoteProtocolError, match=r"Properties of Object \{1,0\}"):
        fetch().receive(0, unhex("3c010080" + "0201ff" + "00"), False)


def test_a_place_of_the_wrong_size_is_our_mistake() -> None:
    place = Placement((memoryview(bytearray(3)),))
    reader = SubgroupReader(HEAD, start=0, place=lambda _: place, max_object_octets=9)
    with pytest.raises(ValueError, match="has 3 octets, expected 4"):
        reader.receive(0, b"\x00\x04ab", False)


def test_no_place_is_asked_for_an_object_without_payload() -> None:
    reader = SubgroupReader(HEAD, start=0, place=never, max_object_octets=9)
    (normal, status) = reader.receive(0, unhex("000000" + "000003"), False)
    assert normal == Object(header(0), memoryview(b""))
    assert status == Object(header(1, status=ObjectStatus.END_OF_GROUP), memoryview(b""))


def test_a_large_payload_is_written_like_a_small_one() -> None:
    """It is allocated so that memory is taken as octets come."""
    size = 1 << 20
    reader = subgroup(limit=size)
    octets = SubgroupWriter(HEAD).encode(header(0, size))
    assert not reader.receive(0, octets, False)
    assert not reader.receive(len(octets) + size - 4, b"tail", False)
    assert not reader.receive(len(octets), b"head", False)
    (item,) = reader.receive(len(octets) + 4, bytes(size - 8), False)
    assert isinstance(item, Object)
    assert item.payload is not None
    assert len(item.payload) == size
    assert bytes(item.payload[:4]) + bytes(item.payload[-4:]) == b"headtail"


@pytest.mark.parametrize("octets", ["00", "0002", "000261"])
def test_fin_inside_an_object_closes(octets: str) -> None:
    """11.3#1."""
    with pytest.raises(RemoteProtocolError, match="FIN inside an Object"):
        subgroup().receive(0, unhex(octets), True)
    reader = subgroup()
    assert not reader.receive(len(octets) // 2, b"", True)  # FIN first, its octets later
    with pytest.raises(RemoteProtocolError, match="FIN inside an Object"):
        reader.receive(0, unhex(octets), False)


def test_a_stream_without_objects_ends_without_a_last_one() -> None:
    reader = subgroup(SubgroupHeader(track_alias=1, group_id=1, ends_group=True))
    assert reader.receive(0, b"", True) == [StreamFinished(None, ends_group=False)]
    assert reader.is_finished
    assert list(reader.receive(0, b"", True)) == []


def test_end_of_group_is_told_with_the_last_object() -> None:
    reader = subgroup(SubgroupHeader(track_alias=1, group_id=12, ends_group=True))
    items = reader.receive(0, b"\x05\x01a", True)
    assert items[-1] == StreamFinished(Location(12, 5), ends_group=True)


def test_the_base_reader_knows_no_header() -> None:
    reader = ObjectReader(start=0, place=no_place, max_object_octets=9)
    with pytest.raises(NotImplementedError):
        reader.receive(0, b"x", False)


# Subgroup streams


def test_subgroup_id_and_priority_come_from_the_stream() -> None:
    head = SubgroupHeader(track_alias=1, group_id=12, subgroup_id=None)
    reader = SubgroupReader(head, start=0, place=no_place, max_object_octets=9, default_priority=77)
    assert reader.subgroup_id is None
    items = reader.receive(0, unhex("050161" + "000162"), False)
    assert [item.header for item in items if isinstance(item, Object)] == [
        ObjectHeader(12, 5, 5, 77, 1),
        ObjectHeader(12, 6, 5, 77, 1),
    ]
    assert reader.subgroup_id == 5


def test_an_object_id_above_64_bits_closes() -> None:
    """11.3.1#2."""
    octets = SubgroupWriter(HEAD).encode(header(MAX_VI64, 1)) + b"a"
    assert len(subgroup().receive(0, octets, False)) == 1
    with pytest.raises(RemoteProtocolError, match="above 2\\^64-1"):
        subgroup().receive(0, octets + b"\x00", False)


@pytest.mark.parametrize("status", [1, 2, 5])
def test_an_unknown_status_closes(status: int) -> None:
    """11.1.1#2."""
    with pytest.raises(RemoteProtocolError, match=f"unknown Object Status 0x{status}"):
        subgroup().receive(0, bytes([0, 0, status]), False)


def test_properties_on_a_status_close() -> None:
    """11.1.2#1; an empty block is no property."""
    with pytest.raises(RemoteProtocolError, match="properties on status END_OF_TRACK"):
        subgroup(WITH_PROPERTIES).receive(0, unhex("00023c010004"), False)
    (item,) = subgroup(WITH_PROPERTIES).receive(0, unhex("00000004"), False)
    assert item == Object(header(0, status=ObjectStatus.END_OF_TRACK), memoryview(b""))


def test_a_subgroup_writer_refuses_what_a_reader_would() -> None:
    """11.1.1#1."""
    end = ObjectStatus.END_OF_GROUP
    writer = SubgroupWriter(HEAD)
    writer.encode(header(4, 1))
    for wrong, why in (
        (header(4, 1), "does not come after 4"),
        (header(5, 1, properties=b"\x3c\x01"), "has properties"),
        (header(5, 1, status=end), "of status END_OF_GROUP"),
        (header(MAX_VI64 + 9, 1), "not in 0"),
    ):
        with pytest.raises(ValueError, match=why):
            writer.encode(wrong)
    assert writer.encode(header(5, 1)) == b"\x00\x01"  # nothing of the above left a trace
    writer = SubgroupWriter(WITH_PROPERTIES)
    with pytest.raises(ValueError, match="of status END_OF_GROUP"):
        writer.encode(header(0, status=end, properties=b"\x3c\x01"))
    with pytest.raises(ValueError, match="65536 property octets"):
        writer.encode(header(0, 1, properties=bytes(65536)))
    assert writer.encode(header(0, status=end)) == b"\x00\x00\x00\x03"


# Fetch streams


def placed(group_id: int, object_id: int, subgroup_id: int | None = 0) -> ObjectHeader:
    return ObjectHeader(group_id, object_id, subgroup_id, 128, 0)


def test_the_reference_example() -> None:
    items = fetch().receive(0, unhex("1c01008001a0" + "0001a1" + "0c000001a0"), True)
    objects = [item.header.location for item in items if isinstance(item, Object)]
    assert objects == [Location(1, 0), Location(1, 1), Location(2, 0)]
    assert items[-1] == StreamFinished(Location(2, 0))


@pytest.mark.parametrize(
    ("octets", "why"),
    [
        ("14008000", "of the first Object refer to another"),
        ("18008000", "of the first Object refer to another"),
        ("0c000000", "there was none"),
        ("1d00008000", "there was none"),
        ("1e00008000", "there was none"),
        ("810c0003" + "0000", "there was none"),
        ("810c0003" + "118000", "there was none"),
        ("8080", "invalid Serialization Flags 0x80"),
        ("810d", "invalid Serialization Flags 0x10d"),
        ("1c" + "ff" * 9 + "008000" + "0800", "Group ID 18446744073709551616"),
        ("1c00" + "ff" * 9 + "8000" + "0000", "an ID is above"),
        ("1c00058000" + "04" + "ff" * 9 + "00", "an ID is above"),
        ("1f00" + "ff" * 9 + "008000" + "0200", "an ID is above"),
    ],
)
def test_what_closes_the_session(octets: str, why: str) -> None:
    """11.4.1.1#2, #3, #4, 11.4.1.2#1."""
    with pytest.raises(RemoteProtocolError, match=why):
        fetch().receive(0, unhex(octets), False)


def test_descending_groups_end_at_0() -> None:
    reader = fetch(GroupOrder.DESCENDING)
    assert len(reader.receive(0, unhex("1c02008000" + "080100"), False)) == 2
    with pytest.raises(RemoteProtocolError, match="Group ID -1"):
        reader.receive(8, unhex("080000"), False)


def test_datagram_objects_ignore_the_subgroup_bits() -> None:
    """11.4.1.1#5."""
    items = fetch().receive(0, unhex("5f00008000" + "4300"), False)
    found = [item.header for item in items if isinstance(item, Object)]
    assert found == [placed(0, 0, None), placed(0, 1, None)]


def test_after_a_datagram_object_the_writer_names_the_subgroup() -> None:
    """AMB#14: what "prior Subgroup" would mean there is not clear, so it is not referred to."""
    writer = FetchWriter(FetchHeader(0), GroupOrder.ASCENDING)
    writer.encode(placed(0, 0, 1))
    writer.encode(placed(0, 1, None))
    assert writer.encode(placed(0, 2, 1)).hex() == "030100"
    assert writer.encode(placed(0, 3, 1)).hex() == "0100"
    assert writer.encode(placed(0, 4, 2)).hex() == "0200"
    assert writer.encode(placed(0, 5, 0)).hex() == "0000"


def test_a_marker_moves_group_and_object_but_not_subgroup_and_priority() -> None:
    writer = FetchWriter(FetchHeader(0), GroupOrder.ASCENDING)
    octets = writer.encode(placed(0, 0, 5))
    octets += writer.end_of_range(RangeStatus.UNKNOWN, Location(2, 5))
    octets += writer.encode(placed(2, 6, 5))
    assert octets.hex() == "1f0005008000" + "810c0205" + "0100"
    items = fetch().receive(0, octets, False)
    assert items[1] == EndOfRangeRead(RangeStatus.UNKNOWN, Location(2, 5))
    assert items[2] == Object(placed(2, 6, 5), memoryview(b""))


def test_a_fetch_writer_refuses_what_is_out_of_order() -> None:
    for order, wrong in ((GroupOrder.ASCENDING, 4), (GroupOrder.DESCENDING, 6)):
        writer = FetchWriter(FetchHeader(0), order)
        writer.encode(placed(5, 5))
        with pytest.raises(ValueError, match=f"Group {wrong} is out of {order.name} order"):
            writer.encode(placed(wrong, 0))
        with pytest.raises(ValueError, match="does not come after 5"):
            writer.encode(placed(5, 5))
        assert writer.encode(placed(5, 6)).hex() == "0000"


def test_a_fetch_writer_refuses_status_objects_and_what_does_not_fit() -> None:
    writer = FetchWriter(FetchHeader(0), GroupOrder.ASCENDING)
    for wrong, why in (
        (ObjectHeader(0, 0, 0, 128, 0, ObjectStatus.END_OF_TRACK), "END_OF_TRACK in a fetch"),
        (ObjectHeader(0, 0, 0, 256, 0), "range"),
        (ObjectHeader(0, 0, 0, 0, 0, properties=bytes(65536)), "65536 property octets"),
    ):
        with pytest.raises(ValueError, match=why):
            writer.encode(wrong)


def test_every_field_may_be_cut() -> None:
    """All headers octet by octet, each integer in two octets or more."""
    two = ObjectHeader(300, 300, 300, 200, 300, properties=b"\x3c\x81\x2c")
    writer = FetchWriter(FetchHeader(0), GroupOrder.ASCENDING)
    octets = writer.encode(two) + bytes(300)
    octets += writer.end_of_range(RangeStatus.TIMED_OUT, Location(600, 600))
    wanted = [two.location, Location(600, 600)]
    readers: list[tuple[ObjectReader, bytes]] = [(fetch(), octets)]
    head = SubgroupHeader(track_alias=3, group_id=300, has_properties=True)
    subgroup_writer = SubgroupWriter(head)
    octets = subgroup_writer.encode(two) + bytes(300)
    octets += subgroup_writer.encode(ObjectHeader(600, 601, 0, 0, 0, ObjectStatus.END_OF_TRACK))
    readers.append((subgroup(head), octets))
    for reader, stream in readers:
        found: list[StreamItem] = []
        for at in range(len(stream)):
            found += reader.receive(at, stream[at : at + 1], False)
        assert len(found) == len(wanted)
        assert isinstance(found[0], Object)
        assert found[0].header.location == two.location
        assert found[0].header.properties == two.properties


# Ranges


def test_range_set_merges_what_touches() -> None:
    known = RangeSet()
    assert known.add(5, 5) == []
    assert known.add(5, 7) == [(5, 7)]
    assert known.add(9, 12) == [(9, 12)]
    assert known.add(7, 9) == [(7, 9)]
    assert known.add(0, 20) == [(0, 5), (12, 20)]
    assert known.drop_through(3) == 20
    assert not known
    assert known.drop_through(4) == 4


def test_range_set_is_taken_from_its_start() -> None:
    known = RangeSet()
    known.add(20, 30)
    known.add(5, 8)
    assert [known.take_first(4) for _ in range(4)] == [(5, 8), (20, 24), (24, 28), (28, 30)]
    assert not known
    assert known.add(0, 40) == [(0, 40)]


def test_stash_copies_and_cuts() -> None:
    data = bytearray(b"abcdef")
    stash = Stash()
    stash.put(10, memoryview(data))
    data[:] = bytes(6)
    assert stash.first == 10
    assert stash.take_at(9) is None
    assert stash.take_below(10) is None
    assert stash.take_below(12) == (10, memoryview(b"ab"))
    assert (stash.first, stash.octets) == (12, 4)
    assert stash.take_at(12) == (12, memoryview(b"cdef"))
    assert not stash
    assert stash.first > 1 << 61
    stash.put(3, memoryview(b"x"))
    assert stash.take_below(9) == (3, memoryview(b"x"))
    stash.put(0, memoryview(b"ab"))
    stash.put(4, memoryview(b"ef"))
    stash.put(1, memoryview(b"bcde"))
    assert stash.octets == 6
    assert [stash.take_at(9) for _ in range(4)] == [
        (0, memoryview(b"ab")),
        (2, memoryview(b"cd")),
        (4, memoryview(b"ef")),
        None,
    ]


@pytest.mark.parametrize("order", ["rising", "falling", "any"])
def test_stash_of_single_octets_takes_little_more_than_they(order: str) -> None:
    """RFC 9000 21.7: a peer chooses how its stream is cut, so that may not cost much memory."""
    count = 20_000
    octets = random.Random(1).randbytes(count)
    offsets = list(range(count))
    if order == "falling":
        offsets.reverse()
    elif order == "any":
        random.Random(2).shuffle(offsets)
    stash = Stash()
    most = 0
    for offset in offsets:
        stash.put(5 + offset, memoryview(octets)[offset : offset + 1])
        most = max(most, len(stash._chunks))
    assert most < (12_000 if order == "any" else 1_200)  # as many as there are gaps, and some
    stash.put(5, memoryview(bytes(count)))
    assert stash.octets == count
    taken = bytearray()
    while (held := stash.take_below(5 + min(count, len(taken) + 700))) is not None:
        assert held[0] == 5 + len(taken)
        taken += held[1]
    assert taken == octets
    assert not stash
