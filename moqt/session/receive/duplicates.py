"""Notices that an Object comes a second time and is another one (MOQT-22 7.1)."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final
from zlib import crc32

from moqt.session.receive.malformed import MalformedTrack
from moqt.session.receive.sink import COMPARED_OCTETS

if TYPE_CHECKING:
    from moqt.types import Location, Object

__all__ = ["MAX_OBJECTS", "SeenObjects"]

MAX_OBJECTS: Final = 16384
"""Objects of one track that are remembered, a run at a time: what the run that nothing was seen of
for longest has is forgotten first."""

MAX_OBJECT_RUNS: Final = MAX_OBJECTS // 2
"""Runs of one track: where each has an Object or two, it takes more memory than they do."""

_RUN_BITS: Final = 10
"""Object IDs that differ in these bits alone are remembered as one run."""

_Likeness = tuple[int | None, int, int, int | None, bool]
"""Subgroup ID (None: Delivery Mode Datagram), priority, octets of payload, CRC-32 of the immutable
properties, and whether its checksum is of the payload's beginning alone. Equal ones are kept once:
those of one Subgroup mostly are."""

_Record = tuple[_Likeness, int]
"""What must be the same in each copy of an Object, with the CRC-32 of its payload. A plain tuple,
which is quick to make and to collect."""

_COMPARED: Final = ("Subgroup ID", "priority", "payload length", "immutable properties")
"""What the first parts of a `_Likeness` are called."""


class SeenObjects:
    """The last Objects of one track.

    A payload is told from another by CRC-32: it finds a publisher's mistake, not an attack. A place
    belongs to the application, whose own format tells best whether it holds what it should, so only
    its beginning is read here: `COMPARED_OCTETS`, where a format has its header.
    """

    __slots__ = ("_count", "_key", "_likeness", "_run", "_runs")

    def __init__(self) -> None:
        self._runs: OrderedDict[tuple[int, int], dict[int, _Record]] = OrderedDict()
        """By Group ID and the upper bits of the Object ID, then by Object ID."""
        self._count = 0
        self._key: tuple[int, int] | None = None
        self._run: dict[int, _Record] = {}
        """The run of `_key`, where the last Object was."""
        self._likeness: _Likeness | None = None
        """The last Object's."""

    def see(self, item: Object, immutable_properties: bytes | None) -> None:
        """Take an Object; raises MalformedTrack when it was another one before."""
        header = item.header
        likeness = (
            header.subgroup_id,
            header.publisher_priority,
            header.payload_length,
            None if immutable_properties is None else crc32(immutable_properties),
            item.placement is not None,
        )
        if likeness == self._likeness:
            likeness = self._likeness
        else:
            self._likeness = likeness
        record = (likeness, _checksum(item))
        object_id = header.object_id
        key = (header.group_id, object_id >> _RUN_BITS)
        if key != self._key:
            self._key, self._run = key, self._runs.setdefault(key, {})
            self._runs.move_to_end(key)
        known = self._run.setdefault(object_id, record)
        if known is record:
            self._count += 1
            if self._count > MAX_OBJECTS or len(self._runs) > MAX_OBJECT_RUNS:
                self._forget()
        elif known != record:
            _compare(header.location, known, record)

    def _forget(self) -> None:
        key, run = self._runs.popitem(last=False)
        self._count -= len(run)
        if key == self._key:
            self._key = None


def _checksum(item: Object) -> int:
    if item.placement is None:
        return crc32(item.payload) if item.payload is not None else 0
    checksum, left = 0, COMPARED_OCTETS
    for buffer in item.placement.buffers:
        if len(buffer) >= left:
            return crc32(buffer[:left], checksum)
        checksum = crc32(buffer, checksum)
        left -= len(buffer)
    return checksum


def _compare(location: Location, known: _Record, record: _Record) -> None:
    (before, known_checksum), (after, checksum) = known, record
    differing = ["Delivery Mode"] if (before[0] is None) != (after[0] is None) else []
    differing += [
        name for name, one, other in zip(_COMPARED, before, after, strict=False) if one != other
    ]
    if before[-1] == after[-1] and known_checksum != checksum:
        differing.append("payload")
    if differing:
        raise MalformedTrack(f"Object {location} came twice, with another {differing[0]}")
