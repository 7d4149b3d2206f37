"""What of a subscription has come, so that it can go on elsewhere with each Object once."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from moqt.codes import ObjectStatus
from moqt.session.seen import SeenNumbers
from moqt.types import Location
from moqt.wire.filters import LocationFilter, LocationRange
from moqt.wire.vi64 import MAX_VI64

if TYPE_CHECKING:
    from moqt.types import ObjectHeader
    from moqt.wire.params import FillParameters

__all__ = ["Arrivals"]

_START = Location(0, 0)
_ENDS = (ObjectStatus.END_OF_GROUP, ObjectStatus.END_OF_TRACK)


@dataclass(slots=True)
class _Group:
    seen: SeenNumbers = field(default_factory=SeenNumbers)
    highest: int = -1
    end: int | None = None
    """Its last Object ID, once known."""

    def first_lacking(self, first: int) -> int | None:
        """Return the lowest Object ID from `first` on that may yet come; None: all have come."""
        first = self.seen.first_absent(first)
        return None if first > (MAX_VI64 if self.end is None else self.end) else first


class Arrivals:
    """Which Objects are due to a subscription, and which of them have come.

    Kept for the `max_groups` newest Groups; what lacks in older ones is given up by a move. An
    Object ID that the publisher left out looks like one that lacks, which costs a move some Objects
    that come twice and are dropped here.
    """

    def __init__(self, max_groups: int) -> None:
        self.count = 0
        """Objects that were new."""
        self._max_groups = max_groups
        self._due: list[LocationRange] = []
        self._groups: OrderedDict[int, _Group] = OrderedDict()
        self._floor: Location | None = None  # None: nothing is due
        self._end: Location | None = None

    # What is due

    def begin(
        self,
        largest: Location | None,
        *,
        location_filter: LocationFilter | None,
        fill: FillParameters | None,
        forward: bool,
    ) -> None:
        """The subscription was accepted, or goes on after a pause, at this Largest Object."""
        self._due = []
        self._floor = None
        if not forward:
            return
        live = _live_range(location_filter, largest)
        self._end = live.end
        self._due.append(live)
        if fill is not None and (filled := _fill_range(fill, location_filter, largest)) is not None:
            self._due.append(filled)
        self._floor = min(one.start for one in self._due)

    def expect_all(self) -> None:
        """Everything is due, until `begin` says better."""
        self._due = [LocationRange(_START)]
        self._floor = _START

    def pause(self) -> None:
        """Nothing is due any more, until `begin`."""
        self._due = []
        self._floor = None

    # What has come

    def take(self, header: ObjectHeader, *, is_moved: bool) -> bool:
        """Note an Object; return whether it's new and due. Before the first move each one is."""
        if is_moved and not self._is_due(header.location):
            return False
        object_id = header.object_id
        group = self._groups.get(header.group_id)
        if group is None:
            group = self._add_group(header.group_id)
        if not group.seen.add(object_id) and is_moved:
            return False
        self.count += 1
        group.highest = max(group.highest, object_id)
        if header.status in _ENDS:
            group.end = object_id
        return True

    def is_new(self, location: Location) -> bool:
        """Return whether an Object is due and has not come."""
        group = self._groups.get(location.group_id)
        return self._is_due(location) and (group is None or location.object_id not in group.seen)

    def end_group(self, group_id: int) -> None:
        """A stream ended that had the last Object of its Group; all that it carried has come."""
        group = self._groups.get(group_id)
        if group is not None and group.end is None:
            group.end = group.highest

    def _is_due(self, location: Location) -> bool:
        floor = self._floor
        return floor is not None and floor <= location and any(location in due for due in self._due)

    def _add_group(self, group_id: int) -> _Group:
        group = self._groups[group_id] = _Group()
        if len(self._groups) > self._max_groups:
            lowest = min(self._groups)
            del self._groups[lowest]
            if self._floor is not None:
                self._floor = max(self._floor, Location(lowest + 1, 0))
        return group

    # What lacks

    def remainder(self) -> tuple[LocationFilter, LocationFilter] | None:
        """Return the Location filters of subscription and fill for all that may yet come.

        None: nothing is due. Every Object that lacks is in one of the two, whatever the Largest
        Object is when they are processed (MOQT-22 3.4).
        """
        if self._floor is None:
            return None
        start = self._first_lacking(self._floor)
        if self._end is None:
            return LocationFilter.next_object(), LocationFilter.absolute(start)
        start = min(start, self._end)
        if self._end.object_id == MAX_VI64:
            both = LocationFilter.until_group(start, self._end.group_id)
        else:
            both = LocationFilter.range(start, self._end)
        return both, both

    def _first_lacking(self, floor: Location) -> Location:
        group_id, first = floor.group_id, floor.object_id
        while (group := self._groups.get(group_id)) is not None:
            lacking = group.first_lacking(first)
            if lacking is not None:
                return Location(group_id, lacking)
            group_id, first = group_id + 1, 0
        return Location(group_id, first)


def _live_range(location_filter: LocationFilter | None, largest: Location | None) -> LocationRange:
    wanted = LocationRange(_START)
    if location_filter is not None:
        wanted = location_filter.resolve_subscription(largest)
    if largest is None:
        return wanted
    after = Location(largest.group_id, largest.object_id + 1)
    return LocationRange(max(wanted.start, after), wanted.end)


def _fill_range(
    fill: FillParameters, location_filter: LocationFilter | None, largest: Location | None
) -> LocationRange | None:
    """Return what a fill covers; None: nothing (MOQT-22 3.4)."""
    wanted = fill.location_filter
    if wanted is None:
        wanted = LocationFilter.none() if location_filter is None else location_filter
    return wanted.resolve_fill(largest)
