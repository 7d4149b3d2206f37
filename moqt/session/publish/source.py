"""One track of this endpoint: written by the application, read by every session that serves it.

Payloads are kept by reference and shared by all subscriptions and fetches; the writer must never
change an octet that it handed over. Memory lent here is free again when its last reference goes:
after its Objects were evicted and no session has one of them in flight.

One thread: writers, sessions and eviction all run on the loop that runs the sessions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from moqt.codes import ObjectStatus, PublishDoneCode
from moqt.errors import LocalProtocolError
from moqt.session.publish.history import History, StoredGroup, StoredObject, StoredSubgroup
from moqt.session.publish.payloads import payload_views
from moqt.session.publish.subgroup_writer import SubgroupWriter, check_properties
from moqt.session.publish.timeouts import NEVER, DeliveryTimeouts
from moqt.types import Location, ObjectHeader
from moqt.wire.properties import TrackProperties
from moqt.wire.vi64 import MAX_VI64

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from typing_extensions import Buffer

    from moqt.codes import GroupOrder
    from moqt.session.publish.payloads import EqualPayloads
    from moqt.types import FullTrackName

__all__ = ["MAX_DATAGRAM_OBJECT_OCTETS", "SubgroupWriter", "TrackSource"]

MAX_DATAGRAM_OBJECT_OCTETS: Final = 1120
"""Payload and properties of an Object for datagrams: what a QUIC packet of 1200 octets has room for
beside the longest headers, so that any path carries it."""


if TYPE_CHECKING:

    class TrackListener(Protocol):
        """A subscription that wants to hear of a track. Calls only note what to do."""

        def subgroup_opened(self, subgroup: StoredSubgroup) -> None:
            """A Subgroup was opened; it holds no Object yet."""

        def subgroup_closed(self, subgroup: StoredSubgroup) -> None:
            """A Subgroup is complete."""

        def datagram_published(self, stored: StoredObject) -> None:
            """An Object of Delivery Mode Datagram was published."""

        def state_changed(self) -> None:
            """The subscribers are to be told the state of the track."""

        def track_finished(self) -> None:
            """The track was ended or aborted."""

        def measure_lag(self) -> int:
            """Return how many octets may still be published before it has to be asked again."""


class TrackSource:
    """A track that this endpoint publishes: its live edge and what it retains.

    `max_retained_octets`: payload octets kept for late joiners; the first Objects go first, the
    newest one always stays. None: nothing is evicted unless asked for. Memory of `EqualPayloads` is
    free when the last of theirs is evicted. A subscription that has not been handed an Object
    before it was evicted ends with TOO_FAR_BEHIND.
    Delivery timeouts in `properties` are told to subscribers and heeded; the subscriber's own holds
    where it is smaller, that of a Subgroup's first Object in place of the track's (MOQT-22 5.2).
    `clock`: seconds, as the sessions that serve it count them; None: the first one brings its own.
    IDs of evicted Groups are not remembered: never use one again for other content (MOQT-22 2.1).
    """

    def __init__(
        self,
        name: FullTrackName,
        *,
        properties: TrackProperties | None = None,
        max_retained_octets: int | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        if name.namespace.is_reserved:
            raise LocalProtocolError(
                f"{name}: a first namespace field that begins with '.' is reserved (MOQT-22 2.4.3)"
            )
        self.name = name
        self.properties = TrackProperties() if properties is None else properties
        self.max_retained_octets = max_retained_octets
        self.clock = clock
        self.on_new_group_request: Callable[[int], None] | None = None
        """Called when a subscriber asks for a new Group, if DYNAMIC_GROUPS is 1, with the smallest
        Group ID that it wants, 0 for any. The owner ends its Group and begins the next soon, at
        once if it likes (MOQT-22 9.20.19). Called again only when the Group has changed. It must
        not raise. A subscriber may want any ID up to 2^64-1, behind which there is no further
        Group: an owner does well to bound what it follows."""
        self.published_octets = 0
        """Payload octets ever published."""
        self.end_location: Location | None = None
        """Where End of Track stands; None before `end`."""
        self.abort_code: PublishDoneCode | None = None
        self.abort_reason = ""
        self._history = History()
        self._largest_group = -1
        self._largest_object = -1
        self._listeners: dict[TrackListener, None] = {}
        self._lag_alarm: int | None = None
        self._timeouts = DeliveryTimeouts.of_track(self.properties)
        self._asked_in_group: int | None = None

    # Queries

    @property
    def largest(self) -> Location | None:
        """The largest Location published (LARGEST_OBJECT); None: nothing yet."""
        if self._largest_group < 0:
            return None
        return Location(self._largest_group, self._largest_object)

    @property
    def is_ended(self) -> bool:
        """Whether all was published and `end` called."""
        return self.end_location is not None

    @property
    def is_live(self) -> bool:
        """Whether more may be published."""
        return self.end_location is None and self.abort_code is None

    @property
    def subscriptions(self) -> int:
        """Subscriptions that follow it now, over all sessions; fetches are not counted."""
        return len(self._listeners)

    @property
    def retained_octets(self) -> int:
        """Payload octets held for late joiners."""
        return self._history.octets

    @property
    def evicted_through(self) -> Location | None:
        """Objects up to this Location may have been evicted; None: none was."""
        return self._history.evicted_through

    def __repr__(self) -> str:
        return f"TrackSource({self.name}, largest={self.largest})"

    # Publishing

    def open_group(
        self,
        group_id: int,
        *,
        subgroup_id: int = 0,
        publisher_priority: int | None = None,
        ends_group: bool = False,
    ) -> SubgroupWriter:
        """Open a Subgroup, and its Group if it is new.

        `publisher_priority`: 0 to 255, lower is more urgent; None: the track's default.
        `ends_group`: the last Object of this Subgroup will be the last of the Group, which its
        stream then says (END_OF_GROUP), without a status Object.
        Raises: LocalProtocolError when the Subgroup exists, or the Group or the track has ended;
        ValueError for a number out of range.
        """
        if publisher_priority is None:
            publisher_priority = self.properties.default_publisher_priority
        self._check_numbers(
            (group_id, "Group ID", MAX_VI64),
            (subgroup_id, "Subgroup ID", MAX_VI64),
            (publisher_priority, "Publisher Priority", 255),
        )
        if not self.is_live:
            raise LocalProtocolError(f"{self.name}: the track has ended")
        group = self._history.add_group(group_id)
        if subgroup_id in group.subgroups:
            raise LocalProtocolError(
                f"{self.name}: Subgroup {subgroup_id} of Group {group_id} exists"
            )
        return self._open(
            group,
            StoredSubgroup(
                group_id,
                subgroup_id,
                publisher_priority=publisher_priority,
                ends_group=ends_group,
                timeouts=self._timeouts,
            ),
        )

    def _check_numbers(self, *numbers: tuple[int, str, int]) -> None:
        for value, what, limit in numbers:
            if not 0 <= value <= limit:
                raise ValueError(f"{self.name}: {what} is {value}, expected 0 to {limit}")

    def _open(self, group: StoredGroup, subgroup: StoredSubgroup) -> SubgroupWriter:
        group.subgroups[subgroup.subgroup_id] = subgroup
        for listener in tuple(self._listeners):
            listener.subgroup_opened(subgroup)
        return SubgroupWriter(self, group, subgroup)

    def write_datagram(
        self,
        group_id: int,
        object_id: int,
        payload: Buffer,
        properties: bytes = b"",
        *,
        publisher_priority: int | None = None,
        ends_group: bool = False,
    ) -> None:
        """Publish one Object of Delivery Mode Datagram; Object IDs rise in each Group.

        It goes to subscriptions in a datagram, which may be lost, and to fetches and fills on their
        streams. `ends_group`: it is the last Object of its Group. `payload` is kept by reference.
        Raises: LocalProtocolError for more than MAX_DATAGRAM_OBJECT_OCTETS of payload and
        properties, an Object ID that does not rise or is used in a Subgroup, one behind End of
        Group, properties that would make the track malformed, or a track that has ended; ValueError
        for a number out of range.
        """
        if publisher_priority is None:
            publisher_priority = self.properties.default_publisher_priority
        self._check_numbers(
            (group_id, "Group ID", MAX_VI64),
            (object_id, "Object ID", MAX_VI64),
            (publisher_priority, "Publisher Priority", 255),
        )
        what = f"{self.name}: Object {Location(group_id, object_id)}"
        views = payload_views(payload)
        length = sum(map(len, views))
        if length + len(properties) > MAX_DATAGRAM_OBJECT_OCTETS:
            raise LocalProtocolError(
                f"{what} has {length} octets of payload and {len(properties)} of properties, "
                f"expected at most {MAX_DATAGRAM_OBJECT_OCTETS} together for a datagram"
            )
        if properties:
            check_properties(what, group_id, object_id, properties)
        if not self.is_live:
            raise LocalProtocolError(f"{self.name}: the track has ended")
        group = self._history.add_group(group_id)
        if group.end_of_group is not None and object_id >= group.end_of_group:
            raise LocalProtocolError(f"{what} lies behind End of Group at {group.end_of_group}")
        last = group.last_object_id if ends_group else group.datagrams().last_object_id
        if object_id <= last:
            raise LocalProtocolError(f"{what} does not come after Object {last}")
        if group.holds(object_id):
            raise LocalProtocolError(f"{what} was published in a Subgroup")
        header = ObjectHeader(
            group_id,
            object_id,
            None,
            publisher_priority,
            length,
            ObjectStatus.NORMAL,
            properties,
        )
        subgroup = group.datagrams()
        stored = StoredObject(subgroup, object_id, length, views, self.now(), header, ends_group)
        self.store(*stored[:5], special=stored)
        if ends_group:
            group.end_of_group = object_id + 1
        for listener in tuple(self._listeners):
            listener.datagram_published(stored)

    def notify_state(self) -> None:
        """Tell every subscriber the Largest Object, the paused ones above all (MOQT-22 9.10).

        PUBLISH_STATE_NOTIFY says nothing else: what more it can carry is the subscriber's.
        """
        for listener in tuple(self._listeners):
            listener.state_changed()

    def end(self, location: Location | None = None) -> None:
        """End the track: no Object at or behind `location` exists.

        None: Object 0 of the Group after the largest. An End of Track status Object goes there, on
        a stream of its own; each subscription ends with TRACK_ENDED when it was sent all.
        Raises: LocalProtocolError while a Subgroup is open, or for a `location` that is not behind
        every Object; ValueError for one that no message can say.
        """
        if not self.is_live:
            raise LocalProtocolError(f"{self.name}: the track has ended")
        for subgroup in self._history.open_subgroups():
            raise LocalProtocolError(
                f"{self.name}: Subgroup {subgroup.subgroup_id} of Group {subgroup.group_id} "
                "is still open"
            )
        if location is None:
            location = Location(self._largest_group + 1, 0)
        self._check_numbers(
            (location.group_id, "Group ID of End of Track", MAX_VI64),
            (location.object_id, "Object ID of End of Track", MAX_VI64),
        )
        if self.largest is not None and location <= self.largest:
            raise LocalProtocolError(
                f"{self.name}: End of Track at {location}, but {self.largest} exists"
            )
        group = self._history.add_group(location.group_id)
        if group.end_of_group is not None and location.object_id >= group.end_of_group:
            raise LocalProtocolError(
                f"{self.name}: End of Track at {location} lies behind End of Group at "
                f"{group.end_of_group}; use the next Group"
            )
        subgroup_id = max(group.subgroups, default=-1) + 1
        writer = self._open(
            group,
            StoredSubgroup(
                location.group_id,
                subgroup_id,
                publisher_priority=self.properties.default_publisher_priority,
                ends_group=False,
                timeouts=self._timeouts,
            ),
        )
        writer._store_status(location.object_id, ObjectStatus.END_OF_TRACK)
        writer.close()
        self.end_location = location
        self._history.is_ended = True
        self._tell_finished()

    def abort(self, code: PublishDoneCode, reason: str = "") -> None:
        """Stop the track: subscriptions end with `code`, fetches and fills are reset.

        What it holds is released, except Objects in flight. Harmless on an aborted track.
        """
        if self.abort_code is not None:
            return
        self.abort_code = code
        self.abort_reason = reason
        self._tell_finished()
        self.evict_all()

    def _tell_finished(self) -> None:
        for listener in tuple(self._listeners):
            listener.track_finished()

    # Eviction

    def evict_before(self, location: Location) -> None:
        """Give up every Object before `location`; those in flight are still sent whole."""
        self._history.evict_before(location)

    def evict_all(self) -> None:
        """Give up every Object."""
        self._history.evict_before(Location(MAX_VI64, MAX_VI64))

    # For the send side of sessions

    def add_listener(self, listener: TrackListener) -> None:
        """Call `listener` from now on."""
        self._listeners[listener] = None
        alarm = self.published_octets + listener.measure_lag()
        if self._lag_alarm is None or alarm < self._lag_alarm:
            self._lag_alarm = alarm

    def remove_listener(self, listener: TrackListener) -> None:
        """Call `listener` no more."""
        self._listeners.pop(listener, None)

    def now(self) -> float:
        """Return the time for what is published now; without a clock nothing ever gets old."""
        return NEVER if self.clock is None else self.clock()

    def open_subgroups(self) -> Iterator[StoredSubgroup]:
        """Yield the Subgroups that may still grow."""
        return self._history.open_subgroups()

    def last_object_of(self, group_id: int) -> int | None:
        """Return the largest Object ID that is retained of a Group, status Objects left out."""
        group = self._history.group(group_id)
        if group is None:
            return None
        found = [
            stored.object_id
            for subgroup in group.subgroups.values()
            for stored in map(subgroup.at, range(subgroup.first_index, subgroup.end_index)[-2:])
            if stored is not None and stored.is_normal
        ]
        return max(found, default=None)

    def walk(
        self, start: Location, end: Location, order: GroupOrder
    ) -> Iterator[StoredObject | Location]:
        """Yield a range for a fetch or fill: see `History.walk`."""
        return self._history.walk(start, end, order)

    def store(
        self,
        subgroup: StoredSubgroup,
        object_id: int,
        octets: int,
        payload: tuple[memoryview | bytes, ...],
        published_at: float,
        *,
        special: StoredObject | None = None,
    ) -> None:
        """Take an Object that was checked; `special`: see `StoredSubgroup.append`."""
        group_id = subgroup.group_id
        if (special is None or special.is_normal) and (
            group_id > self._largest_group
            or (group_id == self._largest_group and object_id > self._largest_object)
        ):
            self._largest_group = group_id
            self._largest_object = object_id
        self._count(octets)
        subgroup.append(object_id, octets, payload, published_at, special)
        self._keep_limits(subgroup)

    def store_all(self, subgroup: StoredSubgroup, payloads: EqualPayloads) -> None:
        """Take the first Objects of a Subgroup, which were checked."""
        largest = subgroup.group_id, len(payloads) - 1
        if largest > (self._largest_group, self._largest_object):
            self._largest_group, self._largest_object = largest
        self._count(len(payloads) * payloads.octets)
        subgroup.append_all(payloads, self.now())
        self._keep_limits(subgroup)

    def _count(self, octets: int) -> None:
        self.published_octets += octets
        self._history.octets += octets

    def _keep_limits(self, subgroup: StoredSubgroup) -> None:
        limit = self.max_retained_octets
        if limit is not None and self._history.octets > limit:
            self._history.evict_down_to(limit, keep=subgroup)
        if self._lag_alarm is not None and self.published_octets > self._lag_alarm:
            self._measure_lag()

    def subgroup_closed(self, subgroup: StoredSubgroup) -> None:
        """Take note that a SubgroupWriter was closed."""
        subgroup.closed_at = self.now()
        for listener in tuple(self._listeners):
            listener.subgroup_closed(subgroup)
        subgroup.tell_waiters()

    def request_new_group(self, group_id: int) -> None:
        """Take NEW_GROUP_REQUEST of a subscriber: pass it on to the owner, or ignore it."""
        current = self._largest_group
        ask = self.on_new_group_request
        if (
            ask is None
            or not self.properties.dynamic_groups
            or not self.is_live
            or 0 < group_id <= current
            or self._asked_in_group == current
        ):
            return
        self._asked_in_group = current
        ask(group_id)

    def _measure_lag(self) -> None:
        # Each says how much may be published before it must be asked again, so the scan over the
        # subscriptions is not made for every Object.
        allowed = [listener.measure_lag() for listener in tuple(self._listeners)]
        self._lag_alarm = self.published_octets + min(allowed) if allowed else None
