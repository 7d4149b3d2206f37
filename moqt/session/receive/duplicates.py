"""Notices that an Object comes a second time and is another one (MOQT-22 7.1)."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final, NamedTuple
from zlib import crc32

from moqt.session.receive.malformed import MalformedTrack

if TYPE_CHECKING:
    from moqt.types import Location
    from moqt.wire.object_reader import ObjectRead

__all__ = ["MAX_OBJECTS", "PLACED_OCTETS", "SeenObjects"]

MAX_OBJECTS: Final = 16384
"""Objects of one track that are remembered; the one seen first is forgotten first."""

PLACED_OCTETS: Final = 128
"""Of a payload in an application's place, the octets that are compared: its first ones."""


class _Record(NamedTuple):
    """What must be the same in each copy of an Object."""

    subgroup_id: int | None
    """None: Delivery Mode Datagram."""

    publisher_priority: int
    payload_octets: int
    immutable_properties: int | None
    """CRC-32 of them."""

    checksum: int
    is_placed: bool


class SeenObjects:
    """The last Objects of one track.

    A payload is told from another by CRC-32: it finds a publisher's mistake, not an attack. A place
    belongs to the application, whose own format tells best whether it holds what it should, so only
    its beginning is read here: `PLACED_OCTETS`, where a format has its header.
    """

    __slots__ = ("_records",)

    def __init__(self) -> None:
        self._records: OrderedDict[tuple[int, int], _Record] = OrderedDict()

    def see(self, item: ObjectRead, immutable_properties: bytes | None) -> None:
        """Take an Object; raises MalformedTrack when it was another one before."""
        header = item.header
        is_placed = item.place is not None
        record = _Record(
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


def _checksum(item: ObjectRead) -> int:
    if item.place is None:
        return crc32(item.payload) if item.payload is not None else 0
    checksum, left = 0, PLACED_OCTETS
    for buffer in item.place.buffers:
        checksum = crc32(buffer[:left], checksum)
        left -= len(buffer)
        if left <= 0:
            break
    return checksum


def _compare(location: Location, known: _Record, record: _Record) -> None:
    differing = [
        name
        for name, before, after in (
            ("Delivery Mode", known.subgroup_id is None, record.subgroup_id is None),
            ("Subgroup ID", known.subgroup_id, record.subgroup_id),
            ("priority", known.publisher_priority, record.publisher_priority),
            ("payload length", known.payload_octets, record.payload_octets),
            ("immutable properties", known.immutable_properties, record.immutable_properties),
        )
        if before != after
    ]
    if known.is_placed == record.is_placed and known.checksum != record.checksum:
        differing.append("payload")
    if differing:
        raise MalformedTrack(f"Object {location} came twice, with another {differing[0]}")
