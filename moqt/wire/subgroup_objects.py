"""Objects on subgroup streams (MOQT-22 11.3.1)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from moqt.codes import ObjectStatus
from moqt.types import Location, ObjectHeader
from moqt.wire import vi64
from moqt.wire.cursor import malformed
from moqt.wire.object_reader import MAX_PROPERTIES_OCTETS, ObjectReader, ObjectTooLarge
from moqt.wire.properties import DEFAULT_PRIORITY
from moqt.wire.streams import encode_subgroup_header
from moqt.wire.vi64 import MAX_VI64

if TYPE_CHECKING:
    from collections.abc import Callable

    from moqt.types import Placement
    from moqt.wire.streams import SubgroupHeader

__all__ = ["SubgroupReader", "SubgroupWriter"]

_NORMAL: Final = ObjectStatus.NORMAL  # looking up a member of an enum is no small part of a header


class SubgroupWriter:
    """Turns Objects of one Subgroup into header octets; payloads are the caller's to send.

    The stream is: `head`, then for each Object `encode(header)` and its payload.
    """

    __slots__ = ("_prior", "header")

    def __init__(self, header: SubgroupHeader) -> None:
        self.header = header
        self._prior = -1

    @property
    def head(self) -> bytes:
        """The stream's first octets."""
        return encode_subgroup_header(self.header)

    def encode(self, header: ObjectHeader) -> bytes:
        """Return the octets that go before the Object's payload.

        Group, Subgroup and priority are the stream's and are not looked at, except that a stream
        whose Subgroup ID is its first Object's ID has to begin with that Object.
        Raises: ValueError for an Object ID that does not rise, for properties on a stream without
        them, and for a status Object with a payload or properties.
        """
        properties, status = header.properties, header.status
        if len(properties) > MAX_PROPERTIES_OCTETS:
            raise ValueError(f"Object {header.location} has {len(properties)} property octets")
        if properties and not self.header.has_properties:
            raise ValueError(f"Object {header.location} has properties, its stream has none")
        if status and (properties or header.payload_length):
            raise ValueError(f"Object {header.location} of status {status.name}")
        return self.encode_plain(header.object_id, header.payload_length, properties, status)

    def encode_plain(
        self,
        object_id: int,
        payload_octets: int,
        properties: bytes = b"",
        status: int = 0,
    ) -> bytes:
        """Do as `encode` does, for values that are known to fit each other."""
        prior = self._prior
        if object_id <= prior:
            raise ValueError(f"Object ID {object_id} does not come after {prior}")
        out = vi64.encode(object_id - prior - 1)
        if self.header.has_properties:
            out += vi64.encode(len(properties)) + properties
        out += vi64.encode(payload_octets)
        if not payload_octets:
            out += vi64.encode(status)
        self._prior = object_id
        return out


class SubgroupReader(ObjectReader):
    """Reads the Objects of one subgroup stream; see `ObjectReader`.

    `start`: the length of the stream's header. `default_priority`: what an absent Publisher
    Priority stands for.
    """

    __slots__ = ("_prior", "_priority", "_subgroup_id", "header")

    def __init__(
        self,
        header: SubgroupHeader,
        *,
        start: int,
        place: Callable[[ObjectHeader], Placement | None],
        max_object_octets: int,
        default_priority: int = DEFAULT_PRIORITY,
    ) -> None:
        super().__init__(start=start, place=place, max_object_octets=max_object_octets)
        self.header = header
        self._prior = -1
        self._subgroup_id = header.subgroup_id
        given = header.publisher_priority
        self._priority = default_priority if given is None else given

    @property
    def subgroup_id(self) -> int | None:
        """The Subgroup ID; None while it depends on an Object that has not come."""
        return self._subgroup_id

    def _ends_group(self) -> bool:
        return self.header.ends_group and self._last is not None

    def _parse(self, data: memoryview | bytearray, at: int) -> int | None:
        decode = vi64.decode
        if (found := decode(data, at)) is None:
            return None
        delta, at = found
        object_id = self._prior + 1 + delta
        header = self.header
        group_id = header.group_id
        if object_id > MAX_VI64:
            raise malformed(f"Group {group_id}: Object ID is above 2^64-1")
        properties = b""
        if header.has_properties:
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
        payload_length, at = found
        status = _NORMAL
        if not payload_length:
            if (found := decode(data, at)) is None:
                return None
            at = found[1]
            if found[0]:
                status = _status(found[0], Location(group_id, object_id), bool(properties))
        if properties:
            self._check_properties(properties, Location(group_id, object_id))
        self._prior = object_id
        if self._subgroup_id is None:
            self._subgroup_id = object_id
        self._last = self._header = ObjectHeader(
            group_id,
            object_id,
            self._subgroup_id,
            self._priority,
            payload_length,
            status,
            properties,
        )
        return at


def _status(number: int, where: Location, has_properties: bool) -> ObjectStatus:
    try:
        status = ObjectStatus(number)
    except ValueError:
        raise malformed(f"Object {where}: unknown Object Status 0x{number:x}") from None
    if has_properties:
        raise malformed(f"Object {where}: properties on status {status.name}")
    return status
