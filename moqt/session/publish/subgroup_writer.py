"""Writes the Objects of one Subgroup of a track, and checks what an Object is made of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moqt.codes import ObjectStatus
from moqt.errors import LocalProtocolError, RemoteProtocolError
from moqt.session.publish.history import StoredGroup, StoredObject, StoredSubgroup
from moqt.session.publish.payloads import EqualPayloads, payload_views
from moqt.session.publish.timeouts import NEVER
from moqt.types import ObjectHeader
from moqt.wire.properties import ObjectProperties
from moqt.wire.vi64 import MAX_VI64

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Buffer

    from moqt.session.publish.source import TrackSource

__all__ = ["SubgroupWriter", "check_properties"]


class SubgroupWriter:
    """Writes the Objects of one Subgroup, in rising order of Object ID."""

    __slots__ = ("_group", "_subgroup", "_track")

    def __init__(self, track: TrackSource, group: StoredGroup, subgroup: StoredSubgroup) -> None:
        self._track = track
        self._group = group
        self._subgroup = subgroup

    @property
    def group_id(self) -> int:
        """The Group it writes to."""
        return self._subgroup.group_id

    @property
    def subgroup_id(self) -> int:
        """The Subgroup it writes to."""
        return self._subgroup.subgroup_id

    @property
    def is_closed(self) -> bool:
        """Whether nothing more can be written."""
        return self._subgroup.is_closed

    def write(
        self, object_id: int, payload: Buffer | Sequence[Buffer], properties: bytes = b""
    ) -> None:
        """Publish one Object; `payload` may be several buffers that make up one payload.

        Any C-contiguous buffer will do, a numpy array too. It is kept, not copied, and must not
        change until the Object was evicted and sent. `properties` is an encoded list
        (`ObjectProperties.serialize`); the first Object of a Subgroup decides whether its stream
        has room for properties.
        Raises: LocalProtocolError for an Object ID that does not rise, lies behind End of Group or
        is in use in another Subgroup, for a closed Subgroup or track, or for properties that would
        make the track malformed; TypeError or ValueError for what is no contiguous buffer.
        """
        views = payload_views(payload)
        octets = sum(map(len, views))
        self._check(object_id)
        if len(self._group.subgroups) > 1:
            self._check_unused(object_id)
        subgroup = self._subgroup
        clock = self._track.clock  # `TrackSource.now`, without a call on the way of each Object
        at = NEVER if clock is None else clock()
        special = None
        if properties:
            self._check_properties(object_id, properties)
            header = ObjectHeader(
                subgroup.group_id,
                object_id,
                subgroup.subgroup_id,
                subgroup.publisher_priority,
                octets,
                properties=properties,
            )
            special = StoredObject(subgroup, object_id, octets, views, at, header)
        self._track.store(subgroup, object_id, octets, views, at, special=special)

    def write_all(self, payloads: Sequence[Buffer | Sequence[Buffer]]) -> None:
        """Publish the first Objects of the Subgroup, one a payload, from Object ID 0 on.

        As so many calls of `write`, but `EqualPayloads` are kept as they are, and published whole
        or not at all.
        Raises: what `write` raises; LocalProtocolError when the Subgroup has Objects.
        """
        if self._subgroup.last_object_id >= 0:
            raise LocalProtocolError(
                f"{self}: it has Objects up to {self._subgroup.last_object_id}, expected none yet"
            )
        if not isinstance(payloads, EqualPayloads):
            for object_id, payload in enumerate(payloads):
                self.write(object_id, payload)
            return
        if not payloads:
            return
        self._check(len(payloads) - 1)
        if len(self._group.subgroups) > 1:
            for object_id in range(len(payloads)):
                self._check_unused(object_id)
        self._track.store_all(self._subgroup, payloads)

    def _check_unused(self, object_id: int) -> None:
        if self._group.holds(object_id):
            raise LocalProtocolError(f"{self}: Object {object_id} is in another Subgroup already")

    def _check_properties(self, object_id: int, properties: bytes) -> None:
        subgroup = self._subgroup
        check_properties(f"{self}: Object {object_id}", subgroup.group_id, object_id, properties)
        if subgroup.last_object_id < 0:
            subgroup.has_properties = True
            subgroup.timeouts = subgroup.timeouts.overridden(properties)
        elif not subgroup.has_properties:
            raise LocalProtocolError(
                f"{self}: Object {object_id} has properties but the first Object had none, "
                "which settled the form of the stream"
            )

    def end_of_group(self, object_id: int | None = None) -> None:
        """Publish the End of Group status Object: no Object at or behind `object_id` exists.

        None: right behind this Subgroup's last Object. `close` the Subgroup all the same.
        """
        if object_id is None:
            object_id = self._subgroup.last_object_id + 1
        self._check(object_id)
        for other in self._group.subgroups.values():
            if other.last_object_id >= object_id:
                raise LocalProtocolError(
                    f"{self}: End of Group at {object_id}, but Object {other.last_object_id} exists"
                )
        self._group.end_of_group = object_id
        self._store_status(object_id, ObjectStatus.END_OF_GROUP)

    def close(self) -> None:
        """End the Subgroup: its streams are ended by FIN once all is written. Harmless twice."""
        if not self._subgroup.is_closed:
            self._subgroup.is_closed = True
            self._track.subgroup_closed(self._subgroup)

    def _store_status(self, object_id: int, status: ObjectStatus) -> None:
        subgroup = self._subgroup
        header = ObjectHeader(
            subgroup.group_id,
            object_id,
            subgroup.subgroup_id,
            subgroup.publisher_priority,
            0,
            status,
        )
        stored = StoredObject(subgroup, object_id, 0, (), self._track.now(), header)
        self._track.store(*stored[:5], special=stored)

    def _check(self, object_id: int) -> None:
        subgroup = self._subgroup
        if subgroup.is_closed or not self._track.is_live:
            raise LocalProtocolError(f"{self}: closed")
        if not subgroup.last_object_id < object_id <= MAX_VI64:
            raise LocalProtocolError(
                f"{self}: Object ID is {object_id}, expected more than {subgroup.last_object_id} "
                "and at most 2^64-1"
            )
        end = self._group.end_of_group
        if end is not None and object_id >= end:
            raise LocalProtocolError(
                f"{self}: Object {object_id} lies behind End of Group at {end}"
            )

    def __str__(self) -> str:
        return f"{self._track.name} Group {self.group_id} Subgroup {self.subgroup_id}"


def check_properties(what: str, group_id: int, object_id: int, properties: bytes) -> None:
    """Refuse what would make a receiver call the track malformed (MOQT-22 3.7, 10.7, 12.1)."""
    try:
        fault = ObjectProperties.parse(properties).malformation(group_id, object_id)
    except RemoteProtocolError as error:
        fault = error.reason
    if fault is not None:
        raise LocalProtocolError(f"{what}: {fault}")
