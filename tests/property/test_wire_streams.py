"""Object readers: any cut, order and repetition of a stream's octets gives the same Objects."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from moqt.codes import GroupOrder, ObjectStatus, RangeStatus
from moqt.errors import RemoteProtocolError
from moqt.types import Location, Object, ObjectHeader, Placement
from moqt.wire.fetch_objects import FetchReader, FetchWriter
from moqt.wire.fields import KeyValue
from moqt.wire.object_reader import EndOfRangeRead, ObjectTooLarge, StreamFinished, StreamItem
from moqt.wire.properties import serialize_pairs
from moqt.wire.ranges import RangeSet, Stash
from moqt.wire.streams import (
    MAX_HEAD_OCTETS,
    FetchHeader,
    StreamHead,
    SubgroupHeader,
    encode_fetch_header,
    encode_subgroup_header,
    parse_stream_head,
)
from moqt.wire.subgroup_objects import SubgroupReader, SubgroupWriter
from moqt.wire.vi64 import MAX_VI64

VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "moqt22.json").read_text())["vectors"]

MAX_OBJECT_OCTETS = 1000

small = st.integers(0, 300)
numbers = st.one_of(small, st.integers(0, MAX_VI64))
properties = st.lists(numbers, max_size=3).map(
    lambda values: serialize_pairs(KeyValue(0x78 + 2 * at, v) for at, v in enumerate(values))
)
payloads = st.builds(
    lambda seed, length: bytes((seed + at) % 256 for at in range(length)),
    st.integers(0, 255),
    st.one_of(st.integers(0, 4), st.integers(0, 200)),
)

subgroup_headers = st.builds(
    SubgroupHeader,
    track_alias=numbers,
    group_id=numbers,
    subgroup_id=st.one_of(st.none(), st.just(0), numbers),
    publisher_priority=st.one_of(st.none(), st.integers(0, 255)),
    has_properties=st.booleans(),
    ends_group=st.booleans(),
    is_first_object=st.booleans(),
)


@dataclass
class Sample:
    """A stream, and what a reader has to find on it."""

    head: SubgroupHeader | FetchHeader
    order: GroupOrder
    octets: bytes
    start: int
    items: list[StreamItem]


def whole(header: ObjectHeader, payload: bytes) -> Object:
    return Object(header, memoryview(payload))


@st.composite
def subgroup_streams(draw: st.DrawFn) -> Sample:
    head = draw(subgroup_headers)
    writer = SubgroupWriter(head)
    octets = bytearray(writer.head)
    start = len(octets)
    items: list[StreamItem] = []
    object_id = -1
    subgroup_id = head.subgroup_id
    priority = 128 if head.publisher_priority is None else head.publisher_priority
    for _ in range(draw(st.integers(0, 5))):
        object_id += 1 + draw(st.one_of(st.just(0), small))
        payload = draw(payloads)
        kept = draw(properties) if head.has_properties else b""
        status = ObjectStatus.NORMAL
        if not payload and not kept:
            status = draw(st.sampled_from(ObjectStatus))
        subgroup_id = object_id if subgroup_id is None else subgroup_id
        header = ObjectHeader(
            head.group_id, object_id, subgroup_id, priority, len(payload), status, kept
        )
        octets += writer.encode(header) + payload
        items.append(whole(header, payload))
    last = Location(head.group_id, object_id) if items else None
    items.append(StreamFinished(last, head.ends_group and bool(last)))
    return Sample(head, GroupOrder.ASCENDING, bytes(octets), start, items)


@st.composite
def fetch_streams(draw: st.DrawFn) -> Sample:
    head = FetchHeader(draw(numbers))
    order = draw(st.sampled_from(GroupOrder))
    writer = FetchWriter(head, order)
    octets = bytearray(writer.head)
    start = len(octets)
    items: list[StreamItem] = []
    at = Location(draw(st.integers(2000, 1 << 40)), draw(small))
    for _ in range(draw(st.integers(0, 6))):
        if draw(st.integers(0, 5)) == 0:
            status = draw(st.sampled_from(RangeStatus))
            octets += writer.end_of_range(status, at)
            items.append(EndOfRangeRead(status, at))
        else:
            payload = draw(payloads)
            header = ObjectHeader(
                at.group_id,
                at.object_id,
                draw(st.one_of(st.none(), st.integers(0, 3), numbers)),
                draw(st.sampled_from([0, 128, 200])),
                len(payload),
                properties=draw(st.one_of(st.just(b""), properties)),
            )
            octets += writer.encode(header, write_object_id=draw(st.booleans())) + payload
            items.append(whole(header, payload))
        if draw(st.booleans()):
            at = Location(at.group_id, at.object_id + 1 + draw(st.one_of(st.just(0), small)))
        else:
            step = 1 + draw(st.one_of(st.just(0), small))
            forward = order is GroupOrder.ASCENDING
            at = Location(at.group_id + (step if forward else -step), draw(small))
    last = None
    if items:
        final = items[-1]
        last = final.last if isinstance(final, EndOfRangeRead) else Location(0, 0)
        if isinstance(final, Object):
            last = final.header.location
    items.append(StreamFinished(last))
    return Sample(head, order, bytes(octets), start, items)


streams = st.one_of(subgroup_streams(), fetch_streams())


class Places:
    """Gives a place for every other Object, cut at `cuts`, and counts the questions."""

    def __init__(self, cuts: list[int], *, offer: bool) -> None:
        self.cuts = cuts
        self.offer = offer
        self.asked: list[ObjectHeader] = []

    def __call__(self, header: ObjectHeader) -> Placement | None:
        self.asked.append(header)
        if not self.offer or len(self.asked) % 2:
            return None
        edges = sorted(cut % (header.payload_length + 1) for cut in self.cuts)
        edges = [0, *edges, header.payload_length]
        sizes = [b - a for a, b in pairwise(edges)]
        return Placement(tuple(memoryview(bytearray(size)) for size in sizes), header)


def reader_for(sample: Sample, places: Places) -> SubgroupReader | FetchReader:
    if isinstance(sample.head, SubgroupHeader):
        return SubgroupReader(
            sample.head, start=sample.start, place=places, max_object_octets=MAX_OBJECT_OCTETS
        )
    return FetchReader(
        sample.head,
        start=sample.start,
        place=places,
        max_object_octets=MAX_OBJECT_OCTETS,
        group_order=sample.order,
    )


def plain(items: list[StreamItem]) -> list[StreamItem]:
    """Bring placed payloads to the form of unplaced ones."""
    out: list[StreamItem] = []
    for item in items:
        if isinstance(item, Object):
            if item.placement is None:
                assert item.payload is not None
                payload = bytes(item.payload)
            else:
                assert item.payload is None
                assert item.placement is not None
                assert item.placement.token == item.header
                payload = b"".join(item.placement.buffers)
            out.append(whole(item.header, payload))
        else:
            out.append(item)
    return out


@st.composite
def deliveries(draw: st.DrawFn, first: int, total: int) -> list[tuple[int, int]]:
    """Ranges that cover the stream, in any order, with some that overlap them."""
    cuts = draw(st.lists(st.integers(first, total), max_size=8))
    edges = sorted({first, total, *cuts})
    ranges = list(pairwise(edges))
    for _ in range(draw(st.integers(0, 3))):
        a, b = sorted((draw(st.integers(first, total)), draw(st.integers(first, total))))
        ranges.append((a, b))
    if draw(st.booleans()):
        return sorted(ranges)
    return draw(st.permutations(ranges))


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_any_delivery_gives_the_same_items(data: st.DataObject) -> None:
    """Each octet is taken once, from whoever brings it first: repeated ones are falsified here."""
    sample = data.draw(streams)
    total = len(sample.octets)
    places = Places(data.draw(st.lists(small, max_size=3)), offer=data.draw(st.booleans()))
    reader = reader_for(sample, places)
    seen = bytearray(total)
    found: list[StreamItem] = []
    fin_with = data.draw(st.booleans())
    for start, stop in data.draw(deliveries(sample.start, total)):
        piece = bytearray(sample.octets[start:stop])
        for at in range(start, stop):
            if seen[at]:
                piece[at - start] ^= 0xFF
            seen[at] = 1
        found += reader.receive(start, piece, fin_with and stop == total)
        assert reader.octets_pending <= sum(seen)
        piece[:] = bytes(len(piece))  # the reader must not have kept it
    if not reader.is_finished:
        assert not fin_with or total == sample.start
        found += reader.receive(total, b"", True)
    assert plain(found) == sample.items
    assert reader.is_finished
    assert reader.current is None
    assert reader.octets_pending == 0
    assert reader.next_offset == total
    expected = [i.header for i in sample.items if isinstance(i, Object)]
    assert places.asked == [header for header in expected if header.payload_length]
    assert list(reader.receive(sample.start, sample.octets[sample.start :], True)) == []


@settings(max_examples=100, deadline=None)
@given(streams)
def test_octet_by_octet_gives_the_same_items(sample: Sample) -> None:
    reader = reader_for(sample, Places([3], offer=True))
    found: list[StreamItem] = []
    for at in range(sample.start, len(sample.octets)):
        found += reader.receive(at, sample.octets[at : at + 1], False)
    found += reader.receive(len(sample.octets), b"", True)
    assert plain(found) == sample.items


@settings(max_examples=100, deadline=None)
@given(streams)
def test_heads_come_back(sample: Sample) -> None:
    assert parse_stream_head(sample.octets) == (sample.head, sample.start)
    assert sample.start <= MAX_HEAD_OCTETS
    assert all(parse_stream_head(sample.octets[:cut]) is None for cut in range(sample.start))
    encoded = (
        encode_subgroup_header(sample.head)
        if isinstance(sample.head, SubgroupHeader)
        else encode_fetch_header(sample.head)
    )
    assert encoded == sample.octets[: sample.start]


def outcome(
    head: StreamHead, start: int, pieces: list[bytes], order: GroupOrder
) -> tuple[list[StreamItem], str]:
    """Items and error of a delivery in order; the error of a bad stream is part of the result."""
    sample_reader: SubgroupReader | FetchReader
    places = Places([], offer=False)
    if isinstance(head, SubgroupHeader):
        sample_reader = SubgroupReader(
            head, start=start, place=places, max_object_octets=MAX_OBJECT_OCTETS
        )
    else:
        assert isinstance(head, FetchHeader)
        sample_reader = FetchReader(
            head,
            start=start,
            place=places,
            max_object_octets=MAX_OBJECT_OCTETS,
            group_order=order,
        )
    found: list[StreamItem] = []
    at = start
    try:
        for index, piece in enumerate(pieces):
            found += sample_reader.receive(at, piece, index == len(pieces) - 1)
            at += len(piece)
    except (RemoteProtocolError, ObjectTooLarge) as error:
        found += sample_reader.take_items()
        return plain(found), str(error)
    assert sample_reader.is_finished
    return plain(found), ""


@st.composite
def broken_streams(draw: st.DrawFn) -> bytes:
    """Damaged vectors, damaged samples, or a sound head with noise behind it."""
    match draw(st.integers(0, 2)):
        case 0:
            hexes = [v["hex"] for v in VECTORS if v["kind"] in ("subgroup-stream", "fetch-stream")]
            octets = bytearray.fromhex(draw(st.sampled_from(hexes)))
        case 1:
            octets = bytearray(draw(streams).octets)
        case _:
            return draw(st.sampled_from([b"\x11\x01\x02\x03", b"\x05\x01"])) + draw(
                st.binary(max_size=60)
            )
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(octets)))
        octets[at : at + draw(st.integers(0, 2))] = draw(st.binary(max_size=3))
    return bytes(octets)


@settings(max_examples=400, deadline=None)
@given(broken_streams(), st.sampled_from(GroupOrder), st.data())
def test_broken_streams_give_documented_errors_however_cut(
    octets: bytes, order: GroupOrder, data: st.DataObject
) -> None:
    try:
        parsed = parse_stream_head(octets)
    except RemoteProtocolError:
        return
    if parsed is None or not isinstance(parsed[0], SubgroupHeader | FetchHeader):
        return
    head, start = parsed
    rest = octets[start:]
    edges = sorted({0, len(rest), *data.draw(st.lists(st.integers(0, len(rest)), max_size=5))})
    pieces = [rest[a:b] for a, b in pairwise(edges)] or [b""]
    once = outcome(head, start, [rest], order)
    assert outcome(head, start, pieces, order) == once


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=12))
def test_range_set_and_stash_agree_with_a_set_of_numbers(ranges: list[tuple[int, int]]) -> None:
    model: set[int] = set()
    known = RangeSet()
    stash = Stash()
    for a, b in ranges:
        start, stop = min(a, b), max(a, b)
        new = set(range(start, stop)) - model
        got = known.add(start, stop)
        assert [at for first, last in got for at in range(first, last)] == sorted(new)
        assert got == sorted(got)
        stash.put(start, memoryview(bytes(range(start, stop))))
        model |= new
        assert stash.octets == len(model)
    assert bool(known) == bool(model)
    taken: list[int] = []
    while (held := stash.take_below(30)) is not None:
        assert list(held[1]) == list(range(held[0], held[0] + len(held[1])))
        taken += held[1]
    while (held := stash.take_at(60)) is not None:
        taken += held[1]
    assert taken == sorted(model)
    assert not stash
    assert stash.octets == 0
    reach = 20
    while reach in model:
        reach += 1
    assert known.drop_through(20) == reach
