"""What a track's Objects have shown so far, to notice that it is malformed (MOQT-22 12.1).

Judged are ends (of a Subgroup, a Group, the track), priorities of a Subgroup, gaps that are
announced and then broken, and Objects that come twice and differ. All of it in bounded memory: what
was forgotten is not judged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from moqt.codes import ObjectStatus
from moqt.session.receive.duplicates import SeenObjects
from moqt.session.receive.malformed import MalformedTrack
from moqt.session.seen import SeenNumbers
from moqt.types import Location
from moqt.wire.properties import ObjectProperties, PropertyType

if TYPE_CHECKING:
    from moqt.types import FullTrackName, Object, ObjectHeader


__all__ = [
    "MAX_GAPS",
    "MAX_GROUPS",
    "MAX_SUBGROUPS",
    "GroupState",
    "SubgroupState",
    "TrackState",
]

MAX_GROUPS: Final = 1024
"""Groups of one track that are remembered; the one seen first is forgotten first."""

MAX_SUBGROUPS: Final = 4096
"""Subgroups over all Groups of one track that are remembered; the Group seen first is forgotten for
new ones, and what is too many for one Group alone is not judged."""

MAX_GAPS: Final = 256
"""Announced gaps of Object IDs over all Groups of one track; further ones are not judged."""

MAX_RUNS: Final = 32
"""Runs of neighbouring Object IDs of one Group that are told apart; in a Group with more, a gap is
not judged by what came before it."""


class SubgroupState:
    """One Subgroup: its priority, the largest Object ID seen, the last one once it ended by FIN."""

    __slots__ = ("largest", "last", "priority")

    def __init__(self, priority: int) -> None:
        self.priority = priority
        self.largest = -1
        self.last: int | None = None

    def see(self, header: ObjectHeader) -> None:
        """Take an Object of it."""
        object_id = header.object_id
        if self.last is not None and object_id > self.last:
            raise MalformedTrack(
                f"Object {header.location} in Subgroup {header.subgroup_id}, which ended with "
                f"Object {self.last}"
            )
        if object_id > self.largest:
            self.largest = object_id

    def finish(self, last: Location) -> None:
        """A stream with all of it ended by FIN behind Object `last`."""
        if self.largest > last.object_id or (self.last is not None and self.last != last.object_id):
            raise MalformedTrack(f"a Subgroup ended twice, once with Object {last}")
        self.last = last.object_id


class GroupState:
    """One Group: its Objects, its gaps, the first Object ID that cannot exist (None: unknown)."""

    __slots__ = ("absent", "end", "largest", "prior_gap", "received", "subgroups")

    def __init__(self) -> None:
        self.largest = -1
        self.end: int | None = None
        self.subgroups: dict[int, SubgroupState] = {}
        self.received = SeenNumbers(max_gaps=MAX_RUNS)
        self.absent: list[range] = []
        """Object IDs that PRIOR_OBJECT_ID_GAP said will never exist."""
        self.prior_gap: int | None = None
        """PRIOR_GROUP_ID_GAP, where an Object of the Group carries it."""

    def see_object_gap(self, object_id: int, gap: int) -> range | None:
        """Take a PRIOR_OBJECT_ID_GAP of an Object (MOQT-22 10.9); return it if it says news."""
        if not gap:
            return None
        absent = range(object_id - gap, object_id)
        if self.received.is_exact and self.received.has_any(absent[0], absent[-1]):
            raise MalformedTrack(
                f"Object {object_id} says that {absent[0]} to {absent[-1]} do not exist, but of "
                "these some came"
            )
        return None if absent in self.absent else absent


class TrackState:
    """One track, shared by all subscriptions and fetches of it in one session."""

    def __init__(self, name: FullTrackName) -> None:
        self.name = name
        self.end: Location | None = None
        """The first Location that cannot exist; None: not known."""
        self._groups: dict[int, GroupState] = {}
        self._subgroups = 0
        """Those of all Groups in `_groups`."""
        self._gaps = 0
        """The same of their `absent`."""
        self._group_gaps: dict[int, int] = {}
        """The `prior_gap` of each Group in `_groups` that has one, for Groups that are new."""
        self._objects = SeenObjects()

    def group(self, group_id: int) -> GroupState:
        """Return what is known of a Group."""
        group = self._groups.get(group_id)
        if group is None:
            for other_id, gap in self._group_gaps.items():
                if other_id - gap <= group_id < other_id:
                    raise MalformedTrack(
                        f"Group {group_id} came, and Group {other_id} says that it does not exist"
                    )
            group = self._groups[group_id] = GroupState()
            if len(self._groups) > MAX_GROUPS:
                self._forget_first_group()
        return group

    def _forget_first_group(self) -> None:
        group_id = next(iter(self._groups))
        group = self._groups.pop(group_id)
        self._subgroups -= len(group.subgroups)
        self._gaps -= len(group.absent)
        self._group_gaps.pop(group_id, None)

    def begin_subgroup(self, header: ObjectHeader) -> SubgroupState:
        """Take the first Object of a subgroup stream; return what is known of its Subgroup."""
        assert header.subgroup_id is not None  # a subgroup stream
        subgroups = self.group(header.group_id).subgroups
        subgroup = subgroups.get(header.subgroup_id)
        if subgroup is None:
            subgroup = SubgroupState(header.publisher_priority)
            while self._subgroups >= MAX_SUBGROUPS and next(iter(self._groups)) != header.group_id:
                self._forget_first_group()
            if self._subgroups < MAX_SUBGROUPS:
                subgroups[header.subgroup_id] = subgroup
                self._subgroups += 1
        elif subgroup.priority != header.publisher_priority:
            raise MalformedTrack(
                f"Group {header.group_id} Subgroup {header.subgroup_id} has priority "
                f"{header.publisher_priority}, and had {subgroup.priority}"
            )
        return subgroup

    def see(self, item: Object) -> None:
        """Take an Object from any stream or datagram."""
        header = item.header
        status = header.status
        if status:
            if status is ObjectStatus.END_OF_GROUP:
                self.end_group(header.group_id, header.object_id)
            else:
                self.end_track(header.location)
            return
        group = self._groups.get(header.group_id) or self.group(header.group_id)
        object_id = header.object_id
        if group.end is not None and object_id >= group.end:
            raise MalformedTrack(f"Object {header.location} is behind the end of its Group")
        if self.end is not None and header.location >= self.end:
            raise MalformedTrack(f"Object {header.location} is behind the end of the track")
        if group.absent and any(object_id in absent for absent in group.absent):
            raise MalformedTrack(f"Object {header.location} came, in a gap of its Group")
        immutable = self._see_properties(header, group) if header.properties else None
        group.received.add(object_id)
        self._objects.see(item, immutable)
        if object_id > group.largest:
            group.largest = object_id

    def _see_properties(self, header: ObjectHeader, group: GroupState) -> bytes | None:
        """Judge an Object's properties; return the immutable ones, encoded."""
        properties = ObjectProperties.parse(header.properties)
        fault = properties.malformation(header.group_id, header.object_id)
        if fault is not None:
            raise MalformedTrack(f"Object {header.location}: {fault}")
        absent = group.see_object_gap(header.object_id, properties.prior_object_id_gap)
        if absent is not None and self._gaps < MAX_GAPS:
            group.absent.append(absent)
            self._gaps += 1
        gaps = properties.integers(PropertyType.PRIOR_GROUP_ID_GAP)
        if gaps:
            self._see_group_gap(header.group_id, group, gaps[0])
        return properties.immutable

    def _see_group_gap(self, group_id: int, group: GroupState, gap: int) -> None:
        """Take a PRIOR_GROUP_ID_GAP: one value a Group, and no such Group comes (MOQT-22 10.8)."""
        if group.prior_gap is not None:
            if gap != group.prior_gap:
                raise MalformedTrack(
                    f"Group {group_id} has PRIOR_GROUP_ID_GAP {gap}, and had {group.prior_gap}"
                )
            return
        for other_id, other in self._groups.items():
            if group_id - gap <= other_id < group_id and other.largest >= 0:
                raise MalformedTrack(
                    f"Group {group_id} says that Group {other_id} does not exist, but it came"
                )
        group.prior_gap = gap
        if gap:
            self._group_gaps[group_id] = gap

    def end_group(self, group_id: int, end: int) -> None:
        """No Object with ID `end` or above exists in the Group."""
        group = self.group(group_id)
        if group.largest >= end:
            raise MalformedTrack(
                f"Group {group_id} ends before Object {end}, but Object {group.largest} came"
            )
        group.end = end if group.end is None else min(group.end, end)

    def end_track(self, end: Location) -> None:
        """No Object at `end` or behind exists."""
        if self.end is not None and end >= self.end:
            return  # it says nothing new, and may be said by each of a million Objects
        for group_id, group in self._groups.items():
            if group.largest >= 0 and Location(group_id, group.largest) >= end:
                raise MalformedTrack(
                    f"the track ends before {end}, but Object {Location(group_id, group.largest)} "
                    "came"
                )
        self.end = end
