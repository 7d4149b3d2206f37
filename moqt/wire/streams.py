"""What unidirectional streams begin with: their type and header (MOQT-22 6.3, 11.3, 11.4)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntFlag

from moqt.wire.cursor import NeedMore, OpenReader, Writer, malformed
from moqt.wire.messages import MessageType

__all__ = [
    "FETCH_STREAM",
    "MAX_HEAD_OCTETS",
    "PADDING_STREAM",
    "ControlHead",
    "FetchHeader",
    "PaddingHead",
    "StreamHead",
    "SubgroupFlag",
    "SubgroupHeader",
    "encode_fetch_header",
    "encode_subgroup_header",
    "parse_stream_head",
]

FETCH_STREAM = 0x05
"""The stream type of FETCH_HEADER."""

PADDING_STREAM = 0x132B3E28
"""The stream type of padding: zeros to be discarded (MOQT-22 11.5)."""

MAX_HEAD_OCTETS = 4 * 9 + 1
"""The longest head of a stream."""


class SubgroupFlag(IntFlag):
    """The bits of a subgroup stream's type (MOQT-22 11.3.1)."""

    PROPERTIES = 0x01
    ID_OF_FIRST_OBJECT = 0x02
    ID_PRESENT = 0x04
    END_OF_GROUP = 0x08
    SUBGROUP = 0x10
    DEFAULT_PRIORITY = 0x20
    FIRST_OBJECT = 0x40


# Plain numbers: IntFlag arithmetic would be most of the cost of a header.
_PROPERTIES = int(SubgroupFlag.PROPERTIES)
_ID_OF_FIRST_OBJECT = int(SubgroupFlag.ID_OF_FIRST_OBJECT)
_ID_PRESENT = int(SubgroupFlag.ID_PRESENT)
_END_OF_GROUP = int(SubgroupFlag.END_OF_GROUP)
_SUBGROUP = int(SubgroupFlag.SUBGROUP)
_DEFAULT_PRIORITY = int(SubgroupFlag.DEFAULT_PRIORITY)
_FIRST_OBJECT = int(SubgroupFlag.FIRST_OBJECT)
_ID_MODE = _ID_OF_FIRST_OBJECT | _ID_PRESENT
_SETUP = int(MessageType.SETUP)


@dataclass(frozen=True, slots=True)
class ControlHead:
    """A control stream. Its type is SETUP's message type, so no octet of it is used up."""


@dataclass(frozen=True, slots=True)
class PaddingHead:
    """A stream of padding: discard all of it."""


@dataclass(frozen=True, slots=True)
class FetchHeader:
    """FETCH_HEADER: the Objects of one FETCH or one fill (MOQT-22 11.4).

    `request_id` is that of the FETCH, or of the SUBSCRIBE or REQUEST_UPDATE that asked for a fill.
    """

    request_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SubgroupHeader:
    """SUBGROUP_HEADER: the Objects of one Subgroup (MOQT-22 11.3.1).

    `subgroup_id` None: it is the Object ID of the first Object on the stream.
    `publisher_priority` None: the track's default.
    `ends_group`: if the stream ends by FIN, its last Object is the last of the Group.
    `is_first_object`: its first Object is the first ever published in the Subgroup. An original
    publisher has to say so.
    """

    track_alias: int
    group_id: int
    subgroup_id: int | None = 0
    publisher_priority: int | None = None
    has_properties: bool = False
    ends_group: bool = False
    is_first_object: bool = False


StreamHead = ControlHead | PaddingHead | FetchHeader | SubgroupHeader


def parse_stream_head(data: memoryview | bytes | bytearray) -> tuple[StreamHead, int] | None:
    """Return how a unidirectional stream begins, and how many octets that took.

    `data` are its first octets, as many as there are; more than `MAX_HEAD_OCTETS` never help.
    None: they do not suffice. Raises: RemoteProtocolError for an unknown type or invalid flags.
    """
    reader = OpenReader(data, "stream header")
    try:
        return _read_head(reader), reader.position
    except NeedMore:
        return None


def _read_head(reader: OpenReader) -> StreamHead:
    kind = reader.vi64("stream type")
    if kind == _SETUP:
        # The control stream has no type of its own: the octets are the first message's.
        reader.rewind()
        return ControlHead()
    if kind == PADDING_STREAM:
        return PaddingHead()
    if kind == FETCH_STREAM:
        return FetchHeader(reader.vi64("Request ID"))
    if kind > 0x7F or not kind & _SUBGROUP:
        raise malformed(f"unknown unidirectional stream type 0x{kind:x}")
    mode = kind & _ID_MODE
    if mode == _ID_MODE:
        raise malformed(f"subgroup stream type 0x{kind:x}: invalid SUBGROUP_ID_MODE 3")
    track_alias = reader.vi64("Track Alias")
    group_id = reader.vi64("Group ID")
    subgroup_id: int | None = 0
    if mode == _ID_OF_FIRST_OBJECT:
        subgroup_id = None
    elif mode == _ID_PRESENT:
        subgroup_id = reader.vi64("Subgroup ID")
    default_priority = kind & _DEFAULT_PRIORITY
    return SubgroupHeader(
        track_alias=track_alias,
        group_id=group_id,
        subgroup_id=subgroup_id,
        publisher_priority=None if default_priority else reader.uint8("Publisher Priority"),
        has_properties=bool(kind & _PROPERTIES),
        ends_group=bool(kind & _END_OF_GROUP),
        is_first_object=bool(kind & _FIRST_OBJECT),
    )


def encode_subgroup_header(header: SubgroupHeader) -> bytes:
    """Return the first octets of a subgroup stream, in their shortest form."""
    flags = _SUBGROUP
    if header.has_properties:
        flags |= _PROPERTIES
    if header.subgroup_id is None:
        flags |= _ID_OF_FIRST_OBJECT
    elif header.subgroup_id:
        flags |= _ID_PRESENT
    if header.ends_group:
        flags |= _END_OF_GROUP
    if header.publisher_priority is None:
        flags |= _DEFAULT_PRIORITY
    if header.is_first_object:
        flags |= _FIRST_OBJECT
    writer = Writer()
    writer.vi64(flags)
    writer.vi64(header.track_alias)
    writer.vi64(header.group_id)
    if header.subgroup_id:
        writer.vi64(header.subgroup_id)
    if header.publisher_priority is not None:
        writer.uint8(header.publisher_priority, "Publisher Priority")
    return bytes(writer)


def encode_fetch_header(header: FetchHeader) -> bytes:
    """Return the first octets of a fetch stream."""
    writer = Writer()
    writer.vi64(FETCH_STREAM)
    writer.vi64(header.request_id)
    return bytes(writer)
