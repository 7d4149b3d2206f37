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
"""Objects of one track that are remembered; the one seen first is forgotten first."""


_Record = tuple[int | None, int, int, int | None, int, bool]
"""What must be the same in each copy of an Object: Subgroup ID (None: Delivery Mode Datagram),
priority, octets of payload, CRC-32 of the immutable properties and of the payload, and whether the
latter is of its beginning alone. A plain tuple, which is quick to make and to collect."""

_COMPARED: Final = ("Subgroup ID", "priority", "payload length", "immutable properties")
"""What the first parts of a `_Record` are called."""


class SeenObjects:
    """The last Objects of one track.

    A payload is told from another by CRC-32: it finds a publisher's mistake, not an attack. A place
    belongs to the application, whose own format tells best whether it holds what it should, so only
    its beginning is read here: `COMPARED_OCTETS`, where a format has its header.
    """

    __slots__ = ("_records",)

    def __init__(self) -> None:
        self._records: OrderedDict[tuple[int, int], _Record] = OrderedDict()

    def see(self, item: Object, immutable_properties: bytes | None) -> None:
        """Take an Object; raises MalformedTrack when it was another one before."""
        header = item.header
        is_placed = item.placement is not None
        record = (
            header.subgroup_id,
            header.publisher_priority,
            header.payload_length,
            None if immutable_properties is None else crc32(immutable_properties),
            _checksum(item),
            is_placed,
        )
        known = self._records.setdefault((header.group_id, header.object_id), record)
        if known is record:
            if len(self._records) > MAX_OBJECTS:
                self._records.popitem(last=False)
        elif known != record:
            _compare(header.location, known, record)


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
    differing = ["Delivery Mode"] if (known[0] is None) != (record[0] is None) else []
    differing += [
        name
        for name, before, after in zip(_COMPARED, known, record, strict=False)
        if before != after
    ]
    *_, known_checksum, known_is_placed = known
    *_, checksum, is_placed = record
    if known_is_placed == is_placed and known_checksum != checksum:
        differing.append("payload")
    if differing:
        raise MalformedTrack(f"Object {location} came twice, with another {differing[0]}")
