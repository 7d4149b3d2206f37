"""moqt.wire.filters: MOQT-22 3.3, 9.20.9 to 9.20.14."""

from __future__ import annotations

import pytest

from moqt.codes import RequestErrorCode
from moqt.errors import RemoteProtocolError
from moqt.types import Location, ObjectHeader
from moqt.wire.cursor import Reader, Writer
from moqt.wire.fields import KeyValue
from moqt.wire.filters import (
    FilterRejected,
    IdRange,
    LocationFilter,
    LocationRange,
    RangeFilter,
    RangeFilterKind,
    RangeFilters,
)
from moqt.wire.properties import ObjectProperties, TrackProperties, serialize_pairs
from moqt.wire.vi64 import MAX_VI64

LARGEST = Location(7, 4)
KIND = RangeFilterKind


def octets(one: LocationFilter) -> str:
    writer = Writer()
    one.write(writer)
    return bytes(writer).hex(" ")


@pytest.mark.parametrize(
    ("made", "wire"),
    [
        (LocationFilter.none(), "00"),
        (LocationFilter.relative(0), "01 00"),
        (LocationFilter.absolute(Location(0, 0)), "02 00 00"),
        (LocationFilter.until_group(Location(4, 2), 6), "03 04 02 02"),
        (LocationFilter.groups(first=4, last=4), "03 04 00 00"),
        (LocationFilter.range(Location(4, 2), Location(6, 9)), "04 04 02 02 09"),
        (LocationFilter.next_object(), "05"),
    ],
)
def test_each_constructor_has_its_form(made: LocationFilter, wire: str) -> None:
    assert octets(made) == wire
    assert LocationFilter.read(Reader(bytes.fromhex(wire), "p")) == made


def test_a_swapped_range_cannot_be_made() -> None:
    with pytest.raises(ValueError, match="before the start"):
        LocationFilter.groups(first=5, last=4)
    with pytest.raises(ValueError, match="before the start"):
        LocationFilter.range(Location(4, 2), Location(4, 1))


@pytest.mark.parametrize("wire", ["06", "ff" * 9, "01", "0201", "030000", "04000000"])
def test_unknown_types_and_missing_fields_close(wire: str) -> None:
    """9.20.9#2."""
    with pytest.raises(RemoteProtocolError):
        LocationFilter.read(Reader(bytes.fromhex(wire), "p"))


def test_relative_resolves_from_nothing_published_and_clamps() -> None:
    assert LocationFilter.relative(3).resolve_subscription(None).start == Location(0, 0)
    top = Location(MAX_VI64, 0)
    assert LocationFilter.relative(0).resolve_subscription(top).start == Location(MAX_VI64, 0)
    assert LocationFilter.relative(9).resolve_subscription(LARGEST).start == Location(0, 0)


def test_a_subscription_may_end_in_the_past_but_not_before_its_start() -> None:
    past = LocationFilter.groups(first=1, last=2).resolve_subscription(LARGEST)
    assert past == LocationRange(Location(1, 0), Location(2, MAX_VI64))
    wire = Reader(bytes.fromhex("0404050003"), "p")  # {4,5} to {4,3}
    with pytest.raises(FilterRejected) as caught:
        LocationFilter.read(wire).resolve_subscription(LARGEST)
    assert caught.value.code is RequestErrorCode.INVALID_RANGE


def test_a_fetch_never_passes_largest() -> None:
    whole = LocationFilter.none().resolve_fetch(LARGEST)
    assert whole == LocationRange(Location(0, 0), LARGEST)
    assert LocationFilter.groups(first=7, last=9).resolve_fetch(LARGEST).end == LARGEST
    assert LocationFilter.groups(first=2, last=3).resolve_fetch(LARGEST).end == Location(
        3, MAX_VI64
    )
    assert LocationFilter.absolute(LARGEST).resolve_fetch(LARGEST) == LocationRange(
        LARGEST, LARGEST
    )


@pytest.mark.parametrize(
    ("made", "largest"),
    [
        (LocationFilter.none(), None),
        (LocationFilter.next_object(), LARGEST),
        (LocationFilter.absolute(Location(7, 5)), LARGEST),
        (LocationFilter.groups(first=8, last=9), LARGEST),
    ],
)
def test_an_empty_fetch_is_refused_and_an_empty_fill_opens_nothing(
    made: LocationFilter, largest: Location | None
) -> None:
    """3.4#1."""
    with pytest.raises(FilterRejected) as caught:
        made.resolve_fetch(largest)
    assert caught.value.code is RequestErrorCode.INVALID_RANGE
    assert made.resolve_fill(largest) is None


def test_a_fill_and_next_object_meet_without_gap_or_overlap() -> None:
    """9.4 of the reference: exactly once."""
    fill = LocationFilter.relative(1).resolve_fill(LARGEST)
    live = LocationFilter.next_object().resolve_subscription(LARGEST)
    assert fill is not None
    assert LARGEST in fill
    assert LARGEST not in live
    assert Location(7, 5) in live
    assert Location(7, 5) not in fill


def test_location_range_is_inclusive_at_both_edges() -> None:
    """3.3.1#1."""
    found = LocationRange(Location(4, 2), Location(6, 9))
    inside = [Location(4, 2), Location(5, MAX_VI64), Location(6, 9)]
    outside = [Location(4, 1), Location(3, 9), Location(6, 10), Location(7, 0)]
    assert all(at in found for at in inside)
    assert not any(at in found for at in outside)


def made(kind: KIND, *ranges: tuple[int, int | None], set_id: int = 0) -> RangeFilter:
    return RangeFilter(kind, tuple(IdRange(*one) for one in ranges), set_id)


def of_object(octets: str) -> RangeFilter:
    return RangeFilter.parse(KIND.OBJECT_ID, bytes.fromhex(octets))


def test_ranges_are_deltas_on_the_wire() -> None:
    one = made(KIND.OBJECT_ID, (3, 5), (10, 15))
    assert one.serialize().hex() == "0003020505"
    assert of_object("0003020505") == one
    assert of_object("010000" + "04") == made(KIND.OBJECT_ID, (0, 0), (4, None), set_id=1)
    assert [n for n in range(20) if one.matches(n)] == [3, 4, 5, *range(10, 16)]


def test_a_filter_without_ranges_passes_nothing() -> None:
    assert of_object("00") == made(KIND.OBJECT_ID)
    assert not of_object("00").matches(0)


@pytest.mark.parametrize("wire", ["", "0080", "000180"])
def test_a_cut_range_filter_closes(wire: str) -> None:
    with pytest.raises(RemoteProtocolError):
        of_object(wire)


def rejected(*filters: RangeFilter, limit: int = 32, also: int = 0) -> str:
    with pytest.raises(FilterRejected) as caught:
        RangeFilters(filters).check(limit, also=also)
    assert caught.value.code is RequestErrorCode.INVALID_FILTER
    return caught.value.reason


def test_sums_above_64_bits_are_rejected_and_not_sent() -> None:
    """8.6#1."""
    start = of_object("00" + "ff" * 9 + "01")
    assert "a range passes" in rejected(start)
    beyond = of_object("00" + "ff" * 9 + "00" + "01")
    assert "a range passes" in rejected(beyond)
    with pytest.raises(ValueError, match="a range passes"):
        start.serialize()


@pytest.mark.parametrize("wire", ["00810000", "00008100", "008100"])
def test_a_priority_above_255_is_rejected(wire: str) -> None:
    """9.20.12#1: as start, as end, and with an open end."""
    assert "passes 255" in rejected(RangeFilter.parse(KIND.PRIORITY, bytes.fromhex(wire)))


@pytest.mark.parametrize("kind", [KIND.OBJECT_PROPERTY, KIND.TRACK_PROPERTY])
def test_an_odd_property_type_is_rejected_and_not_sent(kind: KIND) -> None:
    """9.20.13#1, #2, 9.20.14#1, #2."""
    one = RangeFilter(kind, (IdRange(0),), property_type=7)
    assert "0x7 is odd" in rejected(one)
    with pytest.raises(ValueError, match="is odd"):
        one.serialize()


def test_a_property_type_belongs_to_property_filters_only() -> None:
    with pytest.raises(ValueError, match="does not fit"):
        RangeFilter(KIND.OBJECT_ID, (), property_type=2)
    with pytest.raises(ValueError, match="does not fit"):
        RangeFilter(KIND.OBJECT_PROPERTY, ())


def test_the_same_key_twice_is_rejected() -> None:
    """3.3.2#1: the ranges do not matter, the SetID and the property type do."""
    one = made(KIND.OBJECT_ID, (0, 1))
    assert "repeated" in rejected(one, made(KIND.OBJECT_ID, (5, 6)))
    RangeFilters((one, made(KIND.OBJECT_ID, (0, 1), set_id=1))).check(2)
    types = [RangeFilter(KIND.OBJECT_PROPERTY, (IdRange(0),), property_type=t) for t in (2, 4)]
    RangeFilters((*types, one)).check(3)


def test_more_ranges_than_announced_are_rejected() -> None:
    """3.3.2#2."""
    one = made(KIND.OBJECT_ID, (0, 1), (3, 4))
    RangeFilters((one,)).check(2)
    assert "2 filter ranges, at most 1" in rejected(one, limit=1)
    assert "3 filter ranges, at most 2" in rejected(one, limit=2, also=1)
    assert "at most 0" in rejected(made(KIND.OBJECT_ID), limit=0)
    RangeFilters().check(0)


def test_ranges_that_do_not_rise_are_not_sent() -> None:
    for ranges in ([(5, 6), (3, 4)], [(0, None), (7, 8)]):
        with pytest.raises(ValueError, match="do not rise"):
            made(KIND.OBJECT_ID, *ranges).serialize()
    with pytest.raises(ValueError, match="not in 0"):
        made(KIND.OBJECT_ID, (5, 4)).serialize()


def header(object_id: int, subgroup_id: int | None = 0, priority: int = 128) -> ObjectHeader:
    properties = ObjectProperties.of(
        other=[KeyValue(0x78, object_id), KeyValue(0x0B, serialize_pairs([KeyValue(0x7A, 9)]))]
    )
    return ObjectHeader(1, object_id, subgroup_id, priority, 0, properties=properties.serialize())


def test_and_within_a_set_or_between_sets() -> None:
    """3.3.2#3."""
    filters = RangeFilters(
        (
            made(KIND.OBJECT_ID, (0, 3)),
            made(KIND.SUBGROUP, (1, 1)),
            made(KIND.OBJECT_ID, (7, 7), set_id=5),
        )
    )
    assert filters.passes(header(2, subgroup_id=1))
    assert not filters.passes(header(2, subgroup_id=0))
    assert not filters.passes(header(4, subgroup_id=1))
    assert filters.passes(header(7, subgroup_id=0))
    assert RangeFilters().passes(header(99))
    assert filters.range_count == 3


def test_each_kind_compares_its_own_number() -> None:
    assert RangeFilters((made(KIND.PRIORITY, (0, 10)),)).passes(header(0, priority=10))
    assert not RangeFilters((made(KIND.PRIORITY, (0, 10)),)).passes(header(0, priority=11))
    # A Datagram Object has no Subgroup ID that could be in a range.
    assert not RangeFilters((made(KIND.SUBGROUP, (0, None)),)).passes(header(0, None))


def test_property_filters_look_at_mutable_and_immutable_ones_and_want_one() -> None:
    """10.7#2; an absent property does not pass."""

    def passes(kind: KIND, property_type: int, track: TrackProperties | None = None) -> bool:
        one = RangeFilter(kind, (IdRange(5, 9),), property_type=property_type)
        return RangeFilters((one,)).passes(header(6), track)

    assert passes(KIND.OBJECT_PROPERTY, 0x78)
    assert passes(KIND.OBJECT_PROPERTY, 0x7A)
    assert not passes(KIND.OBJECT_PROPERTY, 0x7C)
    assert not passes(KIND.TRACK_PROPERTY, 0x0E)
    assert passes(KIND.TRACK_PROPERTY, 0x0E, TrackProperties.of(default_publisher_priority=7))


def test_an_update_replaces_a_kind_as_a_whole() -> None:
    """MOQT-22 3.3.2."""
    old = RangeFilters((made(KIND.OBJECT_ID, (0, 1)), made(KIND.SUBGROUP, (0, 0))))
    new = made(KIND.OBJECT_ID, (5, 5), set_id=3)
    assert old.updated([new]).filters == (old.filters[1], new)
    assert old.updated([], [KIND.SUBGROUP]).filters == (old.filters[0],)
    assert old.updated([]) == old
