"""What a track's Objects have shown so far, to notice that it is malformed (MOQT-22 12.1).

Judged are the signs that cost next to nothing: an Object behind the end of its Group, Subgroup or
track, and a Subgroup with two priorities. Objects that come twice are not compared.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from moqt.codes import ObjectStatus
from moqt.types import Location
from moqt.wire.properties import ObjectProperties

if TYPE_CHECKING:
    from moqt.types import FullTrackName, ObjectHeader

__all__ = [
    "MAX_GROUPS",
    "MAX_SUBGROUPS",
    "GroupState",
    "MalformedTrack",
    "SubgroupState",
    "TrackState",
]

MAX_GROUPS: Final = 1024
"""Groups of one track that are remembered; the one seen first is forgotten first."""

MAX_SUBGROUPS: Final = 1024
"""Subgroups of one Group that are remembered; further ones are not judged."""


class MalformedTrack(Exception):
    """The publisher broke the track's own rules."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


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
    """One Group: the largest Object ID seen, and the first that cannot exist (None: not known)."""

    __slots__ = ("end", "largest", "subgroups")

    def __init__(self) -> None:
        self.largest = -1
        self.end: int | None = None
        self.subgroups: dict[int, SubgroupState] = {}


class TrackState:
    """One track, shared by all subscriptions and fetches of it in one session."""

    def __init__(self, name: FullTrackName) -> None:
        self.name = name
        self.end: Location | None = None
        """The first Location that cannot exist; None: not known."""
        self._groups: dict[int, GroupState] = {}

    def group(self, group_id: int) -> GroupState:
        """Return what is known of a Group."""
        group = self._groups.get(group_id)
        if group is None:
            group = self._groups[group_id] = GroupState()
            if len(self._groups) > MAX_GROUPS:
                del self._groups[next(iter(self._groups))]
        return group

    def begin_subgroup(self, header: ObjectHeader) -> SubgroupState:
        """Take the first Object of a subgroup stream; return what is known of its Subgroup."""
        assert header.subgroup_id is not None  # a subgroup stream
        subgroups = self.group(header.group_id).subgroups
        subgroup = subgroups.get(header.subgroup_id)
        if subgroup is None:
            subgroup = SubgroupState(header.publisher_priority)
            if len(subgroups) < MAX_SUBGROUPS:
                subgroups[header.subgroup_id] = subgroup
        elif subgroup.priority != header.publisher_priority:
            raise MalformedTrack(
                f"Group {header.group_id} Subgroup {header.subgroup_id} has priority "
                f"{header.publisher_priority}, and had {subgroup.priority}"
            )
        return subgroup

    def see(self, header: ObjectHeader) -> None:
        """Take an Object from any stream."""
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
        if header.properties:
            properties = ObjectProperties.parse(header.properties)
            fault = properties.malformation(header.group_id, object_id)
            if fault is not None:
                raise MalformedTrack(f"Object {header.location}: {fault}")
        if object_id > group.largest:
            group.largest = object_id

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
