"""Objects and End of Range markers on fetch streams (MOQT-22 11.4.1)."""

from __future__ import annotations

from enum import IntFlag
from typing import TYPE_CHECKING, Final

from moqt.codes import GroupOrder, ObjectStatus, RangeStatus
from moqt.types import Location, ObjectHeader
from moqt.wire import vi64
from moqt.wire.cursor import malformed
from moqt.wire.object_reader import MAX_PROPERTIES_OCTETS, ObjectReader, ObjectTooLarge
from moqt.wire.streams import FetchHeader, encode_fetch_header

if TYPE_CHECKING:
    from collections.abc import Callable

    from moqt.types import Placement

__all__ = ["FetchFlag", "FetchReader", "FetchWriter"]


class FetchFlag(IntFlag):
    """Serialization Flags below 128 (MOQT-22 11.4.1.1). No subgroup bit: Subgroup ID 0."""

    PRIOR_SUBGROUP = 0x01
    NEXT_SUBGROUP = 0x02
    OBJECT_ID_DELTA = 0x04
    GROUP_ID_DELTA = 0x08
    PRIORITY = 0x10
    PROPERTIES = 0x20
    DATAGRAM = 0x40


# Plain numbers: IntFlag arithmetic would be most of the cost of a header.
_SUBGROUP_MODE = 0x03
_PRIOR_SUBGROUP = int(FetchFlag.PRIOR_SUBGROUP)
_NEXT_SUBGROUP = int(FetchFlag.NEXT_SUBGROUP)
_SUBGROUP_PRESENT = 0x03
_OBJECT = int(FetchFlag.OBJECT_ID_DELTA)
_GROUP = int(FetchFlag.GROUP_ID_DELTA)
_PRIORITY = int(FetchFlag.PRIORITY)
_PROPERTIES = int(FetchFlag.PROPERTIES)
_DATAGRAM = int(FetchFlag.DATAGRAM)
_FIRST = _OBJECT | _GROUP
_NORMAL: Final = ObjectStatus.NORMAL
_MARKERS = frozenset(int(status) for status in RangeStatus)


class FetchWriter:
    """Turns the items of one fetch or fill into octets; payloads are the caller's to send.

    The stream is: `head`, then for each Object `encode(header)` and its payload, or a marker.
    """

    __slots__ = ("_group_id", "_object_id", "_order", "_priority", "_subgroup_id", "header")

    def __init__(self, header: FetchHeader, group_order: GroupOrder) -> None:
        self.header = header
        self._order = group_order
        self._group_id = -1  # of the last item; -1: there was none
        self._object_id = -1
        self._subgroup_id: int | None = None  # of the last Object; None: there is none to refer to
        self._priority: int | None = None

    @property
    def head(self) -> bytes:
        """The stream's first octets."""
        return encode_fetch_header(self.header)

    def encode(self, header: ObjectHeader, *, write_object_id: bool = False) -> bytes:
        """Return the octets that go before the Object's payload.

        `write_object_id`: write the Object ID where its absence would say it too; both are legal.

        Raises: ValueError for an Object out of order, one that is not NORMAL, or one whose
        properties are longer than a reader accepts.
        """
        if header.status:
            raise ValueError(f"Object {header.location} of status {header.status.name} in a fetch")
        properties = header.properties
        if len(properties) > MAX_PROPERTIES_OCTETS:
            raise ValueError(f"Object {header.location} has {len(properties)} property octets")
        return self.encode_plain(
            header.group_id,
            header.object_id,
            header.payload_length,
            subgroup_id=header.subgroup_id,
            publisher_priority=header.publisher_priority,
            properties=properties,
            write_object_id=write_object_id,
        )

    def encode_plain(
        self,
        group_id: int,
        object_id: int,
        payload_octets: int,
        *,
        subgroup_id: int | None,
        publisher_priority: int,
        properties: bytes = b"",
        write_object_id: bool = False,
    ) -> bytes:
        """Do as `encode` does, for the values of a NORMAL Object."""
        flags = 0
        out = b""
        if self._group_id < 0:
            flags |= _FIRST
            out += vi64.encode(group_id)
        elif group_id != self._group_id:
            flags |= _GROUP
            ahead = group_id - self._group_id
            if self._order is GroupOrder.DESCENDING:
                ahead = -ahead
            if ahead < 0:
                raise ValueError(f"Group {group_id} is out of {self._order.name} order")
            out += vi64.encode(ahead - 1)
        elif object_id <= self._object_id:
            where = Location(group_id, object_id)
            raise ValueError(f"Object {where} does not come after {self._object_id}")
        if subgroup_id is None:
            flags |= _DATAGRAM
        elif subgroup_id:
            if subgroup_id == self._subgroup_id:
                flags |= _PRIOR_SUBGROUP
            elif self._subgroup_id is not None and subgroup_id == self._subgroup_id + 1:
                flags |= _NEXT_SUBGROUP
            else:
                flags |= _SUBGROUP_PRESENT
                out += vi64.encode(subgroup_id)
        if write_object_id or flags & _OBJECT or object_id != self._object_id + 1:
            flags |= _OBJECT
            out += vi64.encode(object_id if flags & _GROUP else object_id - self._object_id)
        if publisher_priority != self._priority:
            flags |= _PRIORITY
            out += bytes((publisher_priority,))
        if properties:
            flags |= _PROPERTIES
            out += vi64.encode(len(properties)) + properties
        out += vi64.encode(payload_octets)
        self._group_id, self._object_id = group_id, object_id
        self._subgroup_id = subgroup_id
        self._priority = publisher_priority
        return vi64.encode(flags) + out

    def end_of_range(self, status: RangeStatus, last: Location) -> bytes:
        """Return the marker that `status` holds from after the last item up to `last`, inclusive.

        NON_EXISTENT is for separating such a part from another marker's only: a gap says it.
        """
        out = vi64.encode(status) + vi64.encode(last.group_id) + vi64.encode(last.object_id)
        self._group_id, self._object_id = last.group_id, last.object_id
        return out


class FetchReader(ObjectReader):
    """Reads the items of one fetch stream; see `ObjectReader`.

    `start`: the length of FETCH_HEADER. `group_order`: the order that was asked for, which the
    Group ID deltas follow.
    """

    __slots__ = ("_group_id", "_object_id", "_order", "_priority", "_subgroup_id", "header")

    def __init__(
        self,
        header: FetchHeader,
        *,
        start: int,
        place: Callable[[ObjectHeader], Placement | None],
        max_object_octets: int,
        group_order: GroupOrder,
    ) -> None:
        super().__init__(start=start, place=place, max_object_octets=max_object_octets)
        self.header = header
        self._order = group_order
        self._group_id = -1  # of the last item; -1: there was none
        self._object_id = -1
        self._subgroup_id = 0  # of the last Object
        self._priority: int | None = None  # of the last Object; None: there was none

    def _parse(self, data: memoryview | bytearray, at: int) -> int | None:
        decode = vi64.decode
        if (found := decode(data, at)) is None:
            return None
        flags, at = found
        if flags > 0x7F:
            return self._parse_marker(flags, data, at)
        if self._priority is None:
            self._check_flags(flags)
        group_id = self._group_id
        if flags & _GROUP:
            if (found := decode(data, at)) is None:
                return None
            group_id = self._next_group(found[0])
            at = found[1]
        subgroup_id: int | None = 0
        mode = flags & _SUBGROUP_MODE
        if flags & _DATAGRAM:
            subgroup_id = None
        elif mode == _SUBGROUP_PRESENT:
            if (found := decode(data, at)) is None:
                return None
            subgroup_id, at = found
        elif mode:
            subgroup_id = self._subgroup_id + mode - _PRIOR_SUBGROUP
        object_id = self._object_id + 1
        if flags & _OBJECT:
            if (found := decode(data, at)) is None:
                return None
            object_id = found[0] if flags & _GROUP else self._object_id + found[0]
            at = found[1]
        if object_id > vi64.MAX_VI64 or (subgroup_id or 0) > vi64.MAX_VI64:
            raise malformed(f"fetch stream, Group {group_id}: an ID is above 2^64-1")
        priority = self._priority
        if flags & _PRIORITY:
            if at >= len(data):
                return None
            priority = data[at]
            at += 1
        properties = b""
        if flags & _PROPERTIES:
            if (found := decode(data, at)) is None:
                return None
            length, at = found
            if length > MAX_PROPERTIES_OCTETS:
                what = f"the Properties of Object {Location(group_id, object_id)}"
                raise ObjectTooLarge(what, length, MAX_PROPERTIES_OCTETS, None)
            properties = bytes(data[at : at + length])
            if len(properties) < length:
                return None
            at += length
        if (found := decode(data, at)) is None:
            return None
        if properties:
            self._check_properties(properties, Location(group_id, object_id))
        assert priority is not None  # _check_flags: the first Object has to bring one
        self._group_id, self._object_id = group_id, object_id
        self._subgroup_id = subgroup_id or 0
        self._priority = priority
        self._last = self._header = ObjectHeader(
            group_id, object_id, subgroup_id, priority, found[0], _NORMAL, properties
        )
        return found[1]

    def _check_flags(self, flags: int) -> None:
        """Refuse what refers to an Object or item before the first Object (MOQT-22 11.4.1.1)."""
        if self._group_id < 0 and flags & _FIRST != _FIRST:
            raise malformed(f"fetch stream: flags 0x{flags:x} of the first Object refer to another")
        mode = 0 if flags & _DATAGRAM else flags & _SUBGROUP_MODE
        if not flags & _PRIORITY or mode in (_PRIOR_SUBGROUP, _NEXT_SUBGROUP):
            raise malformed(f"fetch stream: flags 0x{flags:x} refer to an Object, there was none")

    def _next_group(self, delta: int) -> int:
        if self._group_id < 0:
            return delta
        step = delta + 1
        group_id = self._group_id + (step if self._order is GroupOrder.ASCENDING else -step)
        if not 0 <= group_id <= vi64.MAX_VI64:
            raise malformed(f"fetch stream: Group ID {group_id} is not in 0 .. 2^64-1")
        return group_id

    def _parse_marker(self, flags: int, data: memoryview | bytearray, at: int) -> int | None:
        if flags not in _MARKERS:
            raise malformed(f"fetch stream: invalid Serialization Flags 0x{flags:x}")
        if (group := vi64.decode(data, at)) is None:
            return None
        if (last := vi64.decode(data, group[1])) is None:
            return None
        self._group_id, self._object_id = group[0], last[0]
        self._found_range(RangeStatus(flags), Location(group[0], last[0]))
        return last[1]
