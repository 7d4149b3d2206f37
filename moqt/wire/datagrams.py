"""Objects and padding in datagrams (MOQT-22 11.2, 11.5)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntFlag

from moqt.codes import ObjectStatus
from moqt.wire.cursor import Reader, Writer
from moqt.wire.properties import parse_pairs

__all__ = [
    "PADDING_DATAGRAM",
    "DatagramFlag",
    "ObjectDatagram",
    "PaddingDatagram",
    "encode_datagram",
    "parse_datagram",
]

PADDING_DATAGRAM = 0x132B3E29
"""The datagram type of padding (MOQT-22 11.5)."""


class DatagramFlag(IntFlag):
    """The bits of an Object datagram's type; not those of a subgroup stream (MOQT-22 11.2)."""

    PROPERTIES = 0x01
    END_OF_GROUP = 0x02
    ZERO_OBJECT_ID = 0x04
    DEFAULT_PRIORITY = 0x08
    STATUS = 0x20


_ALL_FLAGS = 0x2F


@dataclass(frozen=True, slots=True)
class PaddingDatagram:
    """Padding: `length` octets behind the type, to be discarded."""

    length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectDatagram:
    """One Object in a datagram (MOQT-22 11.2).

    `publisher_priority` None: the track's default. `properties` is an encoded Key-Value-Pair list;
    empty: none. `payload` is the receiver's own copy.
    """

    track_alias: int
    group_id: int
    object_id: int
    publisher_priority: int | None = None
    ends_group: bool = False
    properties: bytes = b""
    status: ObjectStatus = ObjectStatus.NORMAL
    payload: bytes = b""


def parse_datagram(data: memoryview | bytes | bytearray) -> ObjectDatagram | PaddingDatagram:
    """Read one datagram; RemoteProtocolError for any that breaks the draft, cut ones included."""
    reader = Reader(data, "datagram")
    kind = reader.vi64("datagram type")
    if kind == PADDING_DATAGRAM:
        return PaddingDatagram(reader.remaining)
    if kind & ~_ALL_FLAGS:
        raise reader.error(f"unknown type 0x{kind:x}")
    flags = DatagramFlag(kind)
    if DatagramFlag.STATUS in flags and DatagramFlag.END_OF_GROUP in flags:
        raise reader.error("type has both STATUS and END_OF_GROUP")
    track_alias = reader.vi64("Track Alias")
    group_id = reader.vi64("Group ID")
    object_id = 0 if DatagramFlag.ZERO_OBJECT_ID in flags else reader.vi64("Object ID")
    default_priority = DatagramFlag.DEFAULT_PRIORITY in flags
    priority = None if default_priority else reader.uint8("Publisher Priority")
    properties = b""
    if DatagramFlag.PROPERTIES in flags:
        properties = reader.prefixed("Properties")
        if not properties:
            raise reader.error("Properties Length is 0")
        parse_pairs(properties, "datagram Properties")
    status = ObjectStatus.NORMAL
    payload = b""
    if DatagramFlag.STATUS in flags:
        number = reader.vi64("Object Status")
        try:
            status = ObjectStatus(number)
        except ValueError:
            raise reader.error(f"unknown Object Status 0x{number:x}") from None
        if status is not ObjectStatus.NORMAL and properties:
            raise reader.error(f"Properties on an Object of status {status.name}")
        reader.expect_end()
    else:
        payload = reader.rest()
    return ObjectDatagram(
        track_alias=track_alias,
        group_id=group_id,
        object_id=object_id,
        publisher_priority=priority,
        ends_group=DatagramFlag.END_OF_GROUP in flags,
        properties=properties,
        status=status,
        payload=payload,
    )


def encode_datagram(
    datagram: ObjectDatagram | PaddingDatagram, *, write_zero_object_id: bool = False
) -> bytes:
    """Return the datagram's octets; ValueError for one that a receiver would not accept.

    `write_zero_object_id`: write Object ID 0 as a field, not as a flag; both are legal.
    """
    writer = Writer()
    if isinstance(datagram, PaddingDatagram):
        writer.vi64(PADDING_DATAGRAM)
        writer.octets(bytes(datagram.length))
        return bytes(writer)
    has_status = datagram.status is not ObjectStatus.NORMAL
    if has_status and (datagram.ends_group or datagram.properties or datagram.payload):
        raise ValueError(
            f"an Object of status {datagram.status.name} has no payload, no properties and no "
            "END_OF_GROUP (MOQT-22 11.2)"
        )
    flags = DatagramFlag(0)
    if datagram.properties:
        flags |= DatagramFlag.PROPERTIES
    if datagram.ends_group:
        flags |= DatagramFlag.END_OF_GROUP
    if not datagram.object_id and not write_zero_object_id:
        flags |= DatagramFlag.ZERO_OBJECT_ID
    if datagram.publisher_priority is None:
        flags |= DatagramFlag.DEFAULT_PRIORITY
    if has_status:
        flags |= DatagramFlag.STATUS
    writer.vi64(flags)
    writer.vi64(datagram.track_alias)
    writer.vi64(datagram.group_id)
    if DatagramFlag.ZERO_OBJECT_ID not in flags:
        writer.vi64(datagram.object_id)
    if datagram.publisher_priority is not None:
        writer.uint8(datagram.publisher_priority, "Publisher Priority")
    if datagram.properties:
        writer.prefixed(datagram.properties)
    if has_status:
        writer.vi64(datagram.status)
    else:
        writer.octets(datagram.payload)
    return bytes(writer)
