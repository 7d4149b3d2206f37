"""What a track has published and still holds: Groups, Subgroups, Objects by reference.

Objects are appended to a Subgroup and evicted from its front; a reader knows its place by an
index that counts from the first Object ever published in the Subgroup, so eviction moves nobody.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right, insort
from heapq import heapify, heappop, heapreplace
from itertools import repeat
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from moqt.codes import GroupOrder
from moqt.session.publish.timeouts import NEVER, NO_TIMEOUTS
from moqt.types import Location, ObjectHeader
from moqt.wire.vi64 import MAX_VI64

if TYPE_CHECKING:
    from collections.abc import Iterator

    from moqt.session.publish.payloads import EqualPayloads
    from moqt.session.publish.timeouts import DeliveryTimeouts

__all__ = [
    "DATAGRAMS",
    "History",
    "StoredGroup",
    "StoredObject",
    "StoredSubgroup",
]

DATAGRAMS: Final = -1
"""Stands for the Subgroup ID where a Group's Objects of Delivery Mode Datagram are kept."""


_CUT_FROM: Final = 64
"""Rows of evicted Objects from which on they are cut off: fewer cost less than that."""


class StoredObject(NamedTuple):
    """An Object of a track, with all references to the publisher's memory that it needs."""

    subgroup: StoredSubgroup
    object_id: int
    octets: int
    """Of its payload."""
    payload: tuple[memoryview | bytes, ...]
    published_at: float = NEVER
    """When, by the clock of its track."""
    special_header: ObjectHeader | None = None
    """Where it says more: of a status Object, one with properties, or one for datagrams."""
    ends_group: bool = False
    """Of an Object for datagrams: it is the last one of its Group."""

    @property
    def header(self) -> ObjectHeader:
        """All but the payload."""
        if self.special_header is not None:
            return self.special_header
        subgroup = self.subgroup
        return ObjectHeader(
            subgroup.group_id,
            self.object_id,
            subgroup.subgroup_id,
            subgroup.publisher_priority,
            self.octets,
        )

    @property
    def publisher_priority(self) -> int:
        """0 to 255; of its own for datagrams, else that of its Subgroup."""
        return (self.special_header or self.subgroup).publisher_priority

    @property
    def is_normal(self) -> bool:
        """Whether it is no status Object."""
        return self.special_header is None or not self.special_header.status


if TYPE_CHECKING:

    class SubgroupWaiter(Protocol):
        """Who has sent all that a Subgroup holds and wants to hear of more."""

        def subgroup_grew(self) -> None:
            """An Object was appended, or the Subgroup was closed. Called once, then forgotten."""


class StoredSubgroup:
    """The retained Objects of one Subgroup, by rising Object ID.

    They are kept in columns and made anew for who sends them: a million Objects that last would
    each be visited by every full garbage collection, several times over.
    """

    __slots__ = (
        "_cut",
        "_equal",
        "_equal_stop",
        "_ids",
        "_octets",
        "_part_ends",
        "_parts",
        "_parts_cut",
        "_special",
        "_times",
        "closed_at",
        "ends_group",
        "first_index",
        "group_id",
        "has_properties",
        "is_closed",
        "last_object_id",
        "octets",
        "publisher_priority",
        "subgroup_id",
        "timeouts",
        "waiters",
    )

    def __init__(
        self,
        group_id: int,
        subgroup_id: int,
        *,
        publisher_priority: int,
        ends_group: bool,
        timeouts: DeliveryTimeouts = NO_TIMEOUTS,
    ) -> None:
        self.group_id = group_id
        self.subgroup_id = subgroup_id
        self.publisher_priority = publisher_priority
        self.ends_group = ends_group
        """Its last Object is known to be the last one of the Group."""
        self.has_properties = False
        """Whether its streams carry Properties blocks; the first Object decides."""
        self.first_index = 0
        """The index of the first Object that is retained: how many were evicted."""
        self.octets = 0
        """Payload octets ever published here."""
        self.last_object_id = -1
        self.is_closed = False
        self.closed_at = NEVER
        """When it was closed, by the clock of its track."""
        self.timeouts = timeouts
        """The publisher's: those of the track, unless the first Object says otherwise."""
        self.waiters: dict[SubgroupWaiter, None] = {}
        self._ids = array("Q")
        self._octets = array("Q")
        self._times = array("d")
        self._parts: list[memoryview | bytes] = []
        """Of all payloads, one after the other."""
        self._part_ends = array("Q")
        """Where in `_parts` those of each Object end, `_parts_cut` included."""
        self._equal: EqualPayloads | None = None
        self._equal_stop = 0
        """The first so many Objects have theirs there, not in `_parts`."""
        self._special: dict[int, StoredObject] = {}
        """By index: Objects with a `special_header`."""
        self._cut = 0
        """The index of the first row: evicted ones are cut off when they are the majority."""
        self._parts_cut = 0

    @property
    def count(self) -> int:
        """How many Objects are retained."""
        return self._cut + len(self._ids) - self.first_index

    @property
    def end_index(self) -> int:
        """The index that the next Object will have."""
        return self._cut + len(self._ids)

    def index_of(self, object_id: int) -> int:
        """Return the index of the first retained Object with this or a larger Object ID."""
        return self._cut + bisect_left(self._ids, object_id, self.first_index - self._cut)

    def object_id_at(self, index: int) -> int:
        """Return the Object ID of a retained Object."""
        return self._ids[index - self._cut]

    def peek(self, index: int) -> int | None:
        """Return the Object ID of an index that is not evicted; None: there is none yet."""
        row = index - self._cut
        return self._ids[row] if row < len(self._ids) else None

    def at(self, index: int) -> StoredObject | None:
        """Return the Object of an index that is not evicted; None: there is none yet."""
        row = index - self._cut
        if row >= len(self._ids):
            return None
        if self._special and (special := self._special.get(index)) is not None:
            return special
        if index < self._equal_stop:
            assert self._equal is not None  # until all of them are evicted
            payload = self._equal.cut(index)
        else:
            cut = self._parts_cut
            ends = self._part_ends
            payload = tuple(self._parts[ends[row - 1] - cut if row else 0 : ends[row] - cut])
        return StoredObject(self, self._ids[row], self._octets[row], payload, self._times[row])

    def append(
        self,
        object_id: int,
        octets: int,
        payload: tuple[memoryview | bytes, ...],
        published_at: float,
        special: StoredObject | None = None,
    ) -> None:
        """Store an Object and tell those who wait; `special`: the same with a `special_header`."""
        if special is not None:
            self._special[self.end_index] = special
        self._ids.append(object_id)
        self._octets.append(octets)
        self._times.append(published_at)
        self._parts += payload
        self._part_ends.append(self._parts_cut + len(self._parts))
        self.octets += octets
        self.last_object_id = object_id
        if self.waiters:
            self.tell_waiters()

    def append_all(self, payloads: EqualPayloads, published_at: float) -> None:
        """Store the first Objects, one a payload, from Object ID 0 on, and tell those who wait."""
        assert not self._ids  # so that the number of a payload is the index of its Object
        assert not self._cut
        count = len(payloads)
        self._equal, self._equal_stop = payloads, count
        self._ids.extend(range(count))
        self._octets.extend(repeat(payloads.octets, count))
        self._times.extend(repeat(published_at, count))
        self._part_ends.extend(repeat(0, count))
        self.octets += count * payloads.octets
        self.last_object_id = count - 1
        self.tell_waiters()

    def evict(self, count: int) -> int:
        """Forget the first `count` Objects; return the octets of their payloads.

        What `EqualPayloads` refer to is free when all of theirs are evicted.
        """
        first = self.first_index - self._cut
        stop = first + count
        octets = sum(self._octets[first:stop])
        start = self._part_ends[first - 1] - self._parts_cut if first else 0
        for part in range(start, self._part_ends[stop - 1] - self._parts_cut):
            self._parts[part] = b""
        for index in range(self.first_index, self.first_index + count if self._special else 0):
            self._special.pop(index, None)
        self.first_index += count
        if self.first_index >= self._equal_stop:
            self._equal, self._equal_stop = None, 0
        if stop > max(_CUT_FROM, len(self._ids) // 2) or stop == len(self._ids):
            self._cut_off(stop)
        return octets

    def _cut_off(self, rows: int) -> None:
        parts = self._part_ends[rows - 1]
        del self._parts[: parts - self._parts_cut]
        self._parts_cut = parts
        for column in (self._ids, self._octets, self._times, self._part_ends):
            del column[:rows]
        self._cut += rows

    def tell_waiters(self) -> None:
        """Call every waiter once and forget them."""
        waiters, self.waiters = self.waiters, {}
        for waiter in waiters:
            waiter.subgroup_grew()


class StoredGroup:
    """The Subgroups of one Group."""

    __slots__ = ("end_of_group", "group_id", "subgroups")

    def __init__(self, group_id: int) -> None:
        self.group_id = group_id
        self.subgroups: dict[int, StoredSubgroup] = {}
        self.end_of_group: int | None = None
        """The Object ID of its End of Group status Object, once published."""

    def datagrams(self) -> StoredSubgroup:
        """Return where its Objects for datagrams are kept; no stream is ever opened for them."""
        found = self.subgroups.get(DATAGRAMS)
        if found is None:
            found = StoredSubgroup(self.group_id, DATAGRAMS, publisher_priority=0, ends_group=False)
            found.is_closed = True
            self.subgroups[DATAGRAMS] = found
        return found

    @property
    def last_object_id(self) -> int:
        """The largest Object ID that was published in it, -1: none."""
        return max((one.last_object_id for one in self.subgroups.values()), default=-1)

    def holds(self, object_id: int) -> bool:
        """Return whether an Object of this ID is retained."""
        return any(
            one.last_object_id >= object_id
            and (at := one.index_of(object_id)) < one.end_index
            and one.object_id_at(at) == object_id
            for one in self.subgroups.values()
        )

    @property
    def is_growing(self) -> bool:
        """Whether more Objects may be published in it."""
        return self.end_of_group is None and any(
            not subgroup.is_closed or subgroup.subgroup_id == DATAGRAMS
            for subgroup in self.subgroups.values()
        )


class History:
    """The retained part of one track."""

    def __init__(self) -> None:
        self._groups: dict[int, StoredGroup] = {}
        self._group_ids: list[int] = []
        self.octets = 0
        """Payload octets retained."""
        self.is_ended = False
        """Nothing will be published any more."""
        self.evicted_through: Location | None = None
        """What was published at or below this Location may have been evicted."""

    def group(self, group_id: int) -> StoredGroup | None:
        """Return a Group that is not wholly evicted."""
        return self._groups.get(group_id)

    def add_group(self, group_id: int) -> StoredGroup:
        """Return the Group, new or not."""
        group = self._groups.get(group_id)
        if group is None:
            group = self._groups[group_id] = StoredGroup(group_id)
            if self._group_ids and group_id < self._group_ids[-1]:
                insort(self._group_ids, group_id)
            else:
                self._group_ids.append(group_id)
        return group

    def open_subgroups(self) -> Iterator[StoredSubgroup]:
        """Yield every Subgroup that may still grow."""
        for group in self._groups.values():
            for subgroup in group.subgroups.values():
                if not subgroup.is_closed:
                    yield subgroup

    # Eviction

    def evict_before(self, stop: Location) -> None:
        """Evict every Object before `stop`; Objects in flight keep themselves alive."""
        for group_id in self._group_ids[: bisect_right(self._group_ids, stop.group_id)]:
            group = self._groups[group_id]
            limit = stop.object_id if group_id == stop.group_id else MAX_VI64 + 1
            for subgroup in group.subgroups.values():
                self._evict(subgroup, subgroup.index_of(limit) - subgroup.first_index)
            self._forget_if_done(group)

    def evict_down_to(self, octets: int, *, keep: StoredSubgroup) -> None:
        """Evict the first Objects until `octets` are retained; the last one of `keep` stays.

        Costs one step an Object and Subgroup of its Group.
        """
        at = 0
        while self.octets > octets and at < len(self._group_ids):
            group = self._groups[self._group_ids[at]]
            spare = (s for s in group.subgroups.values() if s.count > (s is keep))
            first = min(spare, key=lambda s: s.object_id_at(s.first_index), default=None)
            if first is not None:
                self._evict(first, 1)
            elif not self._forget_if_done(group):
                at += 1  # nothing left in it, but it may still grow

    def _evict(self, subgroup: StoredSubgroup, count: int) -> None:
        if not count:
            return
        last = Location(subgroup.group_id, subgroup.object_id_at(subgroup.first_index + count - 1))
        self.octets -= subgroup.evict(count)
        if self.evicted_through is None or last > self.evicted_through:
            self.evicted_through = last

    def _forget_if_done(self, group: StoredGroup) -> bool:
        for subgroup in tuple(group.subgroups.values()):
            if subgroup.is_closed and not subgroup.count:
                del group.subgroups[subgroup.subgroup_id]
        if group.subgroups:
            return False
        del self._groups[group.group_id]
        del self._group_ids[bisect_left(self._group_ids, group.group_id)]
        return True

    # Reading a range

    def walk(
        self, start: Location, end: Location, order: GroupOrder
    ) -> Iterator[StoredObject | Location]:
        """Yield the Objects from `start` to `end`, both inclusive, Groups in `order`.

        A bare Location says: from after the last item up to and including it the state is unknown,
        since Objects were evicted or may still be published there. Status Objects are left out
        (MOQT-22 11.4.1). Eviction and publishing may go on between two steps.
        """
        ascending = order is GroupOrder.ASCENDING
        group_id = start.group_id if ascending else end.group_id
        while start.group_id <= group_id <= end.group_id:
            gone = -1 if self.evicted_through is None else self.evicted_through.group_id
            if ascending:
                at = bisect_left(self._group_ids, group_id)
                if gone >= group_id:
                    group_id = gone
                elif at < len(self._group_ids):
                    group_id = self._group_ids[at]
                else:
                    return
                if group_id > end.group_id:
                    if gone > end.group_id:
                        yield end
                    return
            else:
                at = bisect_right(self._group_ids, group_id) - 1
                if gone > group_id:  # and so is all that is left
                    first_group_end = end if start.group_id == end.group_id else None
                    yield first_group_end or Location(start.group_id, MAX_VI64)
                    return
                group_id = max(gone, self._group_ids[at] if at >= 0 else -1)
                if group_id < start.group_id:
                    return
            first = start.object_id if group_id == start.group_id else 0
            last = end.object_id if group_id == end.group_id else MAX_VI64
            leaves_rest = ascending and group_id != end.group_id
            yield from self._walk_group(group_id, first, last, leaves_rest=leaves_rest)
            group = self._groups.get(group_id)
            if (
                group is not None
                and group_id != end.group_id
                and group.is_growing
                and not self.is_ended
            ):
                yield Location(group_id, MAX_VI64)
            group_id += 1 if ascending else -1

    def _walk_group(
        self, group_id: int, first: int, last: int, *, leaves_rest: bool
    ) -> Iterator[StoredObject | Location]:
        """Yield what one Group holds; `leaves_rest`: the caller reports more Groups as evicted."""
        while first <= last:
            gone = self.evicted_through
            if leaves_rest and gone is not None and gone.group_id > group_id:
                return
            if gone is not None and gone >= Location(group_id, first):
                through = min(gone, Location(group_id, last))
                yield through
                first = through.object_id + 1
            group = self._groups.get(group_id)
            if group is None or first > last:
                return
            # Merge the Subgroups by Object ID; almost always there is one.
            heads = [
                (subgroup.object_id_at(index), key, index)
                for key, subgroup in group.subgroups.items()
                if (index := subgroup.index_of(first)) < subgroup.end_index
            ]
            heapify(heads)
            while heads:
                object_id, key, index = heads[0]
                if object_id > last:
                    return
                found = group.subgroups.get(key)
                if found is None or index < found.first_index:
                    first = object_id
                    break  # evicted meanwhile
                stored = found.at(index)
                assert stored is not None  # the heap has retained ones
                if stored.is_normal:
                    yield stored
                first = object_id + 1
                index += 1
                if index < found.first_index:
                    break  # evicted meanwhile, and perhaps more behind it
                following = found.peek(index)
                if following is not None:
                    heapreplace(heads, (following, key, index))
                else:
                    heappop(heads)
            else:
                return
