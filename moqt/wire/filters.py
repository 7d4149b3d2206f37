"""Location and range filters: values, what they resolve to, what passes them (MOQT-22 3.3).

A decoded filter is kept as it came. What makes a receiver refuse its request (and not close the
session) is said by `LocationFilter.resolve_*` and `RangeFilters.check`: they raise FilterRejected.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Self

from moqt.codes import RequestErrorCode
from moqt.errors import MoqtError
from moqt.types import Location
from moqt.wire.cursor import Reader, Writer
from moqt.wire.properties import ObjectProperties, TrackProperties
from moqt.wire.vi64 import MAX_VI64

if TYPE_CHECKING:
    from collections.abc import Iterable

    from moqt.types import ObjectHeader

__all__ = [
    "FilterRejected",
    "IdRange",
    "LocationFilter",
    "LocationFilterType",
    "LocationRange",
    "RangeFilter",
    "RangeFilterKind",
    "RangeFilters",
]


class FilterRejected(MoqtError):
    """Ends the request: its filter is to be refused with `code` (INVALID_FILTER, INVALID_RANGE)."""

    def __init__(self, code: RequestErrorCode, reason: str) -> None:
        super().__init__(f"{code.name}: {reason}")
        self.code = code
        self.reason = reason


class LocationFilterType(IntEnum):
    """The forms of LOCATION_FILTER (MOQT-22 9.20.9)."""

    NONE = 0
    RELATIVE = 1
    ABSOLUTE = 2
    END_GROUP = 3
    END_OBJECT = 4
    NEXT_OBJECT = 5


@dataclass(frozen=True, slots=True)
class LocationRange:
    """Locations from `start` to `end`, both inclusive; `end` None is open."""

    start: Location
    end: Location | None = None

    def __contains__(self, location: Location) -> bool:
        return self.start <= location and (self.end is None or location <= self.end)


@dataclass(frozen=True, slots=True)
class LocationFilter:
    """Which Locations are wanted (MOQT-22 9.20.9). Use the named constructors.

    `start_group` is a distance for RELATIVE and a Group ID else. `end_group` is absolute and
    inclusive; the wire's delta does not show.
    """

    type: LocationFilterType
    start_group: int = 0
    start_object: int = 0
    end_group: int = 0
    end_object: int = 0

    @classmethod
    def none(cls) -> Self:
        """Return no filter: all Locations; in REQUEST_UPDATE it removes the filter."""
        return cls(LocationFilterType.NONE)

    @classmethod
    def next_object(cls) -> Self:
        """Return: from right after the Largest Object."""
        return cls(LocationFilterType.NEXT_OBJECT)

    @classmethod
    def relative(cls, start_group: int) -> Self:
        """Return: from Group Largest + 1 - `start_group`; 0 is the next Group, 1 the current."""
        return cls(LocationFilterType.RELATIVE, start_group)

    @classmethod
    def absolute(cls, start: Location) -> Self:
        """Return: from `start`, with no end."""
        return cls(LocationFilterType.ABSOLUTE, start.group_id, start.object_id)

    @classmethod
    def groups(cls, *, first: int, last: int) -> Self:
        """Return: whole Groups, both inclusive; ValueError when `last` is before `first`."""
        return cls.until_group(Location(first, 0), last)

    @classmethod
    def until_group(cls, start: Location, last_group: int) -> Self:
        """Return: from `start` to the end of `last_group`, inclusive."""
        if last_group < start.group_id:
            raise ValueError(f"last Group {last_group} is before the start {start}")
        return cls(LocationFilterType.END_GROUP, start.group_id, start.object_id, last_group)

    @classmethod
    def range(cls, start: Location, end: Location) -> Self:
        """Return: from `start` to `end`, both inclusive; ValueError when they are swapped."""
        if end < start:
            raise ValueError(f"end {end} is before the start {start}")
        return cls(
            LocationFilterType.END_OBJECT,
            start.group_id,
            start.object_id,
            end.group_id,
            end.object_id,
        )

    @classmethod
    def read(cls, reader: Reader) -> Self:
        """Read the parameter's value; RemoteProtocolError for an unknown type or an overflow."""
        number = reader.vi64("Location Filter Type")
        if number > LocationFilterType.NEXT_OBJECT:
            raise reader.error(f"Location Filter Type is {number}, expected 0 to 5")
        kind = LocationFilterType(number)
        if kind in (LocationFilterType.NONE, LocationFilterType.NEXT_OBJECT):
            return cls(kind)
        start_group = reader.vi64("StartGroup")
        if kind is LocationFilterType.RELATIVE:
            return cls(kind, start_group)
        start_object = reader.vi64("StartObject")
        if kind is LocationFilterType.ABSOLUTE:
            return cls(kind, start_group, start_object)
        end_group = start_group + reader.vi64("EndGroupDelta")
        if end_group > MAX_VI64:
            raise reader.error("LOCATION_FILTER: end group is above 2^64-1")
        if kind is LocationFilterType.END_GROUP:
            return cls(kind, start_group, start_object, end_group)
        return cls(kind, start_group, start_object, end_group, reader.vi64("EndObject"))

    def write(self, writer: Writer) -> None:
        """Append the parameter's value."""
        writer.vi64(self.type)
        if self.type in (LocationFilterType.NONE, LocationFilterType.NEXT_OBJECT):
            return
        writer.vi64(self.start_group)
        if self.type is LocationFilterType.RELATIVE:
            return
        writer.vi64(self.start_object)
        if self.type is LocationFilterType.ABSOLUTE:
            return
        writer.vi64(self.end_group - self.start_group)
        if self.type is LocationFilterType.END_OBJECT:
            writer.vi64(self.end_object)

    def _resolve(self, largest: Location | None) -> LocationRange:
        end: Location | None = None
        match self.type:
            case LocationFilterType.NONE:
                start = Location(0, 0)
            case LocationFilterType.NEXT_OBJECT:
                start = (
                    Location(largest.group_id, largest.object_id + 1) if largest else Location(0, 0)
                )
            case LocationFilterType.RELATIVE:
                group = largest.group_id + 1 - self.start_group if largest else 0
                start = Location(min(max(group, 0), MAX_VI64), 0)
            case _:
                start = Location(self.start_group, self.start_object)
        if self.type is LocationFilterType.END_GROUP:
            end = Location(self.end_group, MAX_VI64)
        elif self.type is LocationFilterType.END_OBJECT:
            end = Location(self.end_group, self.end_object)
        return LocationRange(start, end)

    def resolve_subscription(self, largest: Location | None) -> LocationRange:
        """Return the range for SUBSCRIBE, PUBLISH and REQUEST_UPDATE; no end is an open end.

        `largest` is the publisher's Largest Object when it processes the message; None: nothing is
        published. Raises: FilterRejected INVALID_RANGE when the end is before the start.
        Source: MOQT-22 3.3.1, 9.20.9.
        """
        resolved = self._resolve(largest)
        if resolved.end is not None and resolved.end < resolved.start:
            raise FilterRejected(
                RequestErrorCode.INVALID_RANGE,
                f"end {resolved.end} is before the start {resolved.start}",
            )
        return resolved

    def resolve_fetch(self, largest: Location | None) -> LocationRange:
        """Return the range for FETCH; its end is set and never above `largest`.

        Raises: FilterRejected INVALID_RANGE for a track without Objects, a start above `largest`,
        or an end before the start. Source: MOQT-22 3.2, 3.3.1.
        """
        if largest is None:
            raise FilterRejected(RequestErrorCode.INVALID_RANGE, "the track has no Object yet")
        resolved = self.resolve_subscription(largest)
        if resolved.start > largest:
            raise FilterRejected(
                RequestErrorCode.INVALID_RANGE, f"start {resolved.start} is above Largest {largest}"
            )
        end = largest if resolved.end is None else min(resolved.end, largest)
        return LocationRange(resolved.start, end)

    def resolve_fill(self, largest: Location | None) -> LocationRange | None:
        """Return the range for a fill fetch stream; None: no stream is opened (MOQT-22 3.4)."""
        try:
            return self.resolve_fetch(largest)
        except FilterRejected:
            return None


class RangeFilterKind(IntEnum):
    """What a range filter compares; the number is its parameter type (MOQT-22 9.20.10-14)."""

    SUBGROUP = 0x25
    OBJECT_ID = 0x26
    PRIORITY = 0x27
    OBJECT_PROPERTY = 0x28
    TRACK_PROPERTY = 0x29


_OF_PROPERTY = frozenset({RangeFilterKind.OBJECT_PROPERTY, RangeFilterKind.TRACK_PROPERTY})


@dataclass(frozen=True, slots=True)
class IdRange:
    """Numbers from `first` to `last`, both inclusive; `last` None is open."""

    first: int
    last: int | None = None

    def __contains__(self, value: int) -> bool:
        return self.first <= value and (self.last is None or value <= self.last)


@dataclass(frozen=True, slots=True)
class RangeFilter:
    """One range filter: passes what is in any of `ranges`, which rise (MOQT-22 9.20.10).

    `property_type` (even) is given for the two property kinds and for no other.
    """

    kind: RangeFilterKind
    ranges: tuple[IdRange, ...]
    set_id: int = 0
    property_type: int | None = None

    def __post_init__(self) -> None:
        if (self.property_type is not None) != (self.kind in _OF_PROPERTY):
            raise ValueError(f"property_type does not fit a {self.kind.name} filter")

    def matches(self, value: int) -> bool:
        """Return whether `value` is in one of the ranges."""
        return any(value in id_range for id_range in self.ranges)

    @property
    def fault(self) -> str | None:
        """Why a receiver refuses this filter with INVALID_FILTER, or None."""
        if self.property_type is not None and self.property_type % 2:
            return f"property type 0x{self.property_type:x} is odd"
        limit = 0xFF if self.kind is RangeFilterKind.PRIORITY else MAX_VI64
        for id_range in self.ranges:
            if max(id_range.first, id_range.last or 0) > limit:
                return f"a range passes {limit}"
        return None

    @classmethod
    def parse(cls, kind: RangeFilterKind, octets: bytes) -> Self:
        """Read a value of one octet or more; RemoteProtocolError when it is cut off."""
        reader = Reader(octets, f"{kind.name} filter")
        set_id = reader.uint8("SetID")
        property_type = reader.vi64("Property Type") if kind in _OF_PROPERTY else None
        ranges: list[IdRange] = []
        prior = 0
        while reader.remaining:
            first = prior + reader.vi64("Start delta")
            if not reader.remaining:
                ranges.append(IdRange(first))
                break
            prior = first + reader.vi64("End delta")
            ranges.append(IdRange(first, prior))
        return cls(kind, tuple(ranges), set_id, property_type)

    def serialize(self) -> bytes:
        """Return the value's octets.

        Raises: ValueError when a receiver would refuse it, for ranges that do not rise, and for
        none: nothing would pass, and the draft does not clearly say so.
        """
        if self.fault is not None:
            raise ValueError(f"{self.kind.name} filter: {self.fault}")
        if not self.ranges:
            raise ValueError(f"{self.kind.name} filter: no range, nothing would pass")
        writer = Writer()
        writer.uint8(self.set_id, "SetID")
        if self.property_type is not None:
            writer.vi64(self.property_type)
        prior: int | None = 0
        for id_range in self.ranges:
            if prior is None or id_range.first < prior:
                raise ValueError(f"{self.kind.name} filter: ranges do not rise")
            writer.vi64(id_range.first - prior)
            prior = id_range.last
            if prior is not None:
                writer.vi64(prior - id_range.first)
        return bytes(writer)


@dataclass(frozen=True, slots=True)
class RangeFilters:
    """All range filters of one request: AND within a SetID, OR between SetIDs (MOQT-22 3.3.2)."""

    filters: tuple[RangeFilter, ...] = ()

    @property
    def range_count(self) -> int:
        """How many Ranges count against MAX_FILTER_RANGES."""
        return sum(len(one.ranges) for one in self.filters)

    def check(self, max_ranges: int, also: int = 0) -> None:
        """Raise FilterRejected INVALID_FILTER for what a receiver has to refuse (MOQT-22 3.3.2).

        `max_ranges` is our MAX_FILTER_RANGES; `also` counts Ranges that share it (a fill's).
        """
        invalid = RequestErrorCode.INVALID_FILTER
        seen: set[tuple[RangeFilterKind, int, int | None]] = set()
        for one in self.filters:
            if one.fault is not None:
                raise FilterRejected(invalid, f"{one.kind.name} filter: {one.fault}")
            key = (one.kind, one.set_id, one.property_type)
            if key in seen:
                raise FilterRejected(
                    invalid, f"{one.kind.name} filter of set {one.set_id} is repeated"
                )
            seen.add(key)
        total = self.range_count + also
        if total > max_ranges or (self.filters and not max_ranges):
            raise FilterRejected(invalid, f"{total} filter ranges, at most {max_ranges}")

    def updated(
        self, new: Iterable[RangeFilter], removed: Iterable[RangeFilterKind] = ()
    ) -> RangeFilters:
        """Return the filters after REQUEST_UPDATE: any instance of a kind replaces all of it."""
        added = tuple(new)
        gone = {*removed, *(one.kind for one in added)}
        return RangeFilters((*(one for one in self.filters if one.kind not in gone), *added))

    def passes(self, header: ObjectHeader, track: TrackProperties | None = None) -> bool:
        """Return whether an Object passes. An absent property does not; `track` None has none."""
        if not self.filters:
            return True
        failed: set[int] = set()
        for one in self.filters:
            if one.set_id not in failed and not _passes(one, header, track):
                failed.add(one.set_id)
        return any(one.set_id not in failed for one in self.filters)


def _passes(one: RangeFilter, header: ObjectHeader, track: TrackProperties | None) -> bool:
    match one.kind:
        case RangeFilterKind.OBJECT_ID:
            return one.matches(header.object_id)
        case RangeFilterKind.SUBGROUP:
            return header.subgroup_id is not None and one.matches(header.subgroup_id)
        case RangeFilterKind.PRIORITY:
            return one.matches(header.publisher_priority)
        case RangeFilterKind.OBJECT_PROPERTY:
            view: ObjectProperties | TrackProperties = ObjectProperties.parse(header.properties)
        case _:  # TRACK_PROPERTY
            view = track or TrackProperties()
    assert one.property_type is not None  # __post_init__: both kinds left here have one
    return any(one.matches(value) for value in view.integers(one.property_type))
