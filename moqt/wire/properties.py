"""Track and Object Properties: Key-Value-Pair lists and typed views on them (MOQT-22 8.4, 10).

What a list says is looked up among the mutable pairs first, then inside Immutable Properties.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Self

from moqt.codes import GroupOrder
from moqt.errors import RemoteProtocolError
from moqt.wire.cursor import Reader, Writer, malformed
from moqt.wire.fields import KeyValue, read_pairs, write_pairs
from moqt.wire.vi64 import MAX_VI64

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "DEFAULT_PRIORITY",
    "MANDATORY_FIRST",
    "MANDATORY_LAST",
    "NO_PROPERTIES",
    "ObjectProperties",
    "PropertyType",
    "TrackProperties",
    "parse_pairs",
    "serialize_pairs",
]

DEFAULT_PRIORITY = 128
"""Publisher and subscriber priority where nothing says otherwise (MOQT-22 5.1)."""

MANDATORY_FIRST, MANDATORY_LAST = 0x4000, 0x7FFF
"""Track Properties that must be understood to use the track (MOQT-22 3.7)."""


class PropertyType(IntEnum):
    """The known properties (MOQT-22 10)."""

    OBJECT_DELIVERY_TIMEOUT = 0x02
    MAX_CACHE_DURATION = 0x04
    SUBGROUP_DELIVERY_TIMEOUT = 0x06
    IMMUTABLE_PROPERTIES = 0x0B
    DEFAULT_PUBLISHER_PRIORITY = 0x0E
    DEFAULT_PUBLISHER_GROUP_ORDER = 0x22
    DYNAMIC_GROUPS = 0x30
    PRIOR_GROUP_ID_GAP = 0x3C
    PRIOR_OBJECT_ID_GAP = 0x3E


def parse_pairs(octets: bytes | memoryview, what: str) -> tuple[KeyValue, ...]:
    """Read a whole Key-Value-Pair list; RemoteProtocolError names `what` when it is broken."""
    return read_pairs(Reader(octets, what))


def serialize_pairs(pairs: Iterable[KeyValue]) -> bytes:
    """Return the octets of a Key-Value-Pair list."""
    writer = Writer()
    write_pairs(writer, pairs)
    return bytes(writer)


def _immutable(pairs: tuple[KeyValue, ...]) -> tuple[KeyValue, ...]:
    """Return the pairs inside Immutable Properties; () where they cannot be parsed."""
    found: list[KeyValue] = []
    for pair in pairs:
        if pair.type == PropertyType.IMMUTABLE_PROPERTIES and isinstance(pair.value, bytes):
            try:
                found += parse_pairs(pair.value, "Immutable Properties")
            except RemoteProtocolError:
                return ()
    return tuple(found)


def _immutable_fault(pairs: tuple[KeyValue, ...]) -> str | None:
    inner = [pair.value for pair in pairs if pair.type == PropertyType.IMMUTABLE_PROPERTIES]
    if len(inner) > 1:
        return "Immutable Properties occur twice"
    for value in inner:
        assert isinstance(value, bytes)  # odd type
        try:
            nested = parse_pairs(value, "Immutable Properties")
        except RemoteProtocolError as error:
            return error.reason
        if any(pair.type == PropertyType.IMMUTABLE_PROPERTIES for pair in nested):
            return "Immutable Properties are nested"
    return None


def _join(
    known: Iterable[tuple[PropertyType, int | None]], other: Iterable[KeyValue]
) -> tuple[KeyValue, ...]:
    pairs = [KeyValue(int(kind), int(value)) for kind, value in known if value is not None]
    return tuple(sorted([*pairs, *other], key=lambda pair: pair.type))


class _View:
    """Looks pairs up by type. A subclass holds `pairs`."""

    __slots__ = ()
    pairs: tuple[KeyValue, ...]

    def integers(self, kind: int) -> tuple[int, ...]:
        """Return all values of an even type, those of mutable properties first."""
        return tuple(
            pair.value
            for pair in (*self.pairs, *_immutable(self.pairs))
            if pair.type == kind and isinstance(pair.value, int)
        )

    def _integer(self, kind: int) -> int | None:
        values = self.integers(kind)
        return values[0] if values else None


@dataclass(frozen=True, slots=True)
class TrackProperties(_View):
    """The properties of a track, unknown ones included, by rising type (MOQT-22 10).

    Build one with `of`. Times are in milliseconds; None or 0 means that nothing is set.
    """

    pairs: tuple[KeyValue, ...] = ()

    @classmethod
    def of(
        cls,
        *,
        object_delivery_timeout_ms: int | None = None,
        max_cache_duration_ms: int | None = None,
        subgroup_delivery_timeout_ms: int | None = None,
        default_publisher_priority: int | None = None,
        default_group_order: GroupOrder | None = None,
        dynamic_groups: bool | None = None,
        other: Iterable[KeyValue] = (),
    ) -> Self:
        """Return the properties named; None leaves one out. `other`: any further pairs.

        Raises: ValueError for a priority outside 0 to 255, and for broken Immutable Properties.
        """
        if default_publisher_priority is not None and not 0 <= default_publisher_priority <= 0xFF:
            raise ValueError(
                f"default_publisher_priority is {default_publisher_priority}, expected 0 to 255"
            )
        known = (
            (PropertyType.OBJECT_DELIVERY_TIMEOUT, object_delivery_timeout_ms),
            (PropertyType.MAX_CACHE_DURATION, max_cache_duration_ms),
            (PropertyType.SUBGROUP_DELIVERY_TIMEOUT, subgroup_delivery_timeout_ms),
            (PropertyType.DEFAULT_PUBLISHER_PRIORITY, default_publisher_priority),
            (PropertyType.DEFAULT_PUBLISHER_GROUP_ORDER, default_group_order),
            (PropertyType.DYNAMIC_GROUPS, dynamic_groups),
        )
        properties = cls(_join(known, other))
        if properties.malformation is not None:
            raise ValueError(properties.malformation)
        return properties

    @classmethod
    def parse(cls, octets: bytes) -> Self:
        """Read Track Properties and judge those that the draft lets a session judge.

        Raises: RemoteProtocolError for a broken list or a value that the draft forbids. Broken
        Immutable Properties only make the track malformed: see `malformation`.
        """
        properties = cls(parse_pairs(octets, "Track Properties"))
        for order in properties.integers(PropertyType.DEFAULT_PUBLISHER_GROUP_ORDER):
            if order not in (GroupOrder.ASCENDING, GroupOrder.DESCENDING):
                raise malformed(f"DEFAULT_PUBLISHER_GROUP_ORDER is {order}, expected 1 or 2")
        for dynamic in properties.integers(PropertyType.DYNAMIC_GROUPS):
            if dynamic > 1:
                raise malformed(f"DYNAMIC_GROUPS is {dynamic}, expected 0 or 1")
        for priority in properties.integers(PropertyType.DEFAULT_PUBLISHER_PRIORITY):
            # The draft calls it invalid and names no reaction; clamping would hide it.
            if priority > 0xFF:
                raise malformed(f"DEFAULT_PUBLISHER_PRIORITY is {priority}, expected 0 to 255")
        return properties

    def serialize(self) -> bytes:
        """Return the octets of the list."""
        return serialize_pairs(self.pairs)

    @property
    def object_delivery_timeout_ms(self) -> int | None:
        """OBJECT_DELIVERY_TIMEOUT (MOQT-22 5.2)."""
        return self._integer(PropertyType.OBJECT_DELIVERY_TIMEOUT)

    @property
    def max_cache_duration_ms(self) -> int | None:
        """MAX_CACHE_DURATION: how long a relay may serve the track's Objects."""
        return self._integer(PropertyType.MAX_CACHE_DURATION)

    @property
    def subgroup_delivery_timeout_ms(self) -> int | None:
        """SUBGROUP_DELIVERY_TIMEOUT (MOQT-22 5.2)."""
        return self._integer(PropertyType.SUBGROUP_DELIVERY_TIMEOUT)

    @property
    def default_publisher_priority(self) -> int:
        """DEFAULT_PUBLISHER_PRIORITY, or 128."""
        value = self._integer(PropertyType.DEFAULT_PUBLISHER_PRIORITY)
        return DEFAULT_PRIORITY if value is None else value

    @property
    def default_group_order(self) -> GroupOrder:
        """DEFAULT_PUBLISHER_GROUP_ORDER, or ascending."""
        value = self._integer(PropertyType.DEFAULT_PUBLISHER_GROUP_ORDER)
        return GroupOrder.ASCENDING if value is None else GroupOrder(value)

    @property
    def dynamic_groups(self) -> bool:
        """DYNAMIC_GROUPS: whether NEW_GROUP_REQUEST may be sent in REQUEST_UPDATE."""
        return self._integer(PropertyType.DYNAMIC_GROUPS) == 1

    @property
    def mandatory_types(self) -> tuple[int, ...]:
        """The Mandatory Track Properties, none of which this package knows (MOQT-22 3.7)."""
        everywhere = (*self.pairs, *_immutable(self.pairs))
        return tuple(p.type for p in everywhere if MANDATORY_FIRST <= p.type <= MANDATORY_LAST)

    @property
    def malformation(self) -> str | None:
        """Why the track is malformed, as far as its properties tell (MOQT-22 12.1); else None."""
        return _immutable_fault(self.pairs)


NO_PROPERTIES = TrackProperties()


@dataclass(frozen=True, slots=True)
class ObjectProperties(_View):
    """The properties of an Object, unknown ones included, by rising type (MOQT-22 10)."""

    pairs: tuple[KeyValue, ...] = ()

    @classmethod
    def of(
        cls,
        *,
        object_delivery_timeout_ms: int | None = None,
        subgroup_delivery_timeout_ms: int | None = None,
        prior_group_id_gap: int | None = None,
        prior_object_id_gap: int | None = None,
        other: Iterable[KeyValue] = (),
    ) -> Self:
        """Return the properties named; None leaves one out. `other`: any further pairs.

        Raises: ValueError for what would make the track malformed, wherever the Object stands.
        """
        known = (
            (PropertyType.OBJECT_DELIVERY_TIMEOUT, object_delivery_timeout_ms),
            (PropertyType.SUBGROUP_DELIVERY_TIMEOUT, subgroup_delivery_timeout_ms),
            (PropertyType.PRIOR_GROUP_ID_GAP, prior_group_id_gap),
            (PropertyType.PRIOR_OBJECT_ID_GAP, prior_object_id_gap),
        )
        properties = cls(_join(known, other))
        fault = properties.malformation(MAX_VI64, MAX_VI64)
        if fault is not None:
            raise ValueError(fault)
        return properties

    @classmethod
    def parse(cls, octets: bytes | memoryview) -> Self:
        """Read `ObjectHeader.properties`; RemoteProtocolError when the list is broken."""
        return cls(parse_pairs(octets, "Object Properties"))

    def serialize(self) -> bytes:
        """Return the octets of the list, as `ObjectHeader.properties` wants them."""
        return serialize_pairs(self.pairs)

    @property
    def object_delivery_timeout_ms(self) -> int | None:
        """OBJECT_DELIVERY_TIMEOUT; counts on the first Object of a Subgroup (MOQT-22 5.2)."""
        return self._integer(PropertyType.OBJECT_DELIVERY_TIMEOUT)

    @property
    def subgroup_delivery_timeout_ms(self) -> int | None:
        """SUBGROUP_DELIVERY_TIMEOUT; counts on the first Object of a Subgroup (MOQT-22 5.2)."""
        return self._integer(PropertyType.SUBGROUP_DELIVERY_TIMEOUT)

    @property
    def prior_group_id_gap(self) -> int:
        """How many Groups right before this one will never exist."""
        return self._integer(PropertyType.PRIOR_GROUP_ID_GAP) or 0

    @property
    def prior_object_id_gap(self) -> int:
        """How many Object IDs right before this one will never exist."""
        return self._integer(PropertyType.PRIOR_OBJECT_ID_GAP) or 0

    @property
    def immutable(self) -> bytes | None:
        """The octets of Immutable Properties; None where there are none (MOQT-22 10.7)."""
        for pair in self.pairs:
            if pair.type == PropertyType.IMMUTABLE_PROPERTIES and isinstance(pair.value, bytes):
                return pair.value
        return None

    def malformation(self, group_id: int, object_id: int) -> str | None:
        """Return why an Object there with these properties makes its track malformed, or None.

        Source: MOQT-22 12.1, signs that one Object shows by itself.
        """
        fault = _immutable_fault(self.pairs)
        if fault is not None:
            return fault
        for kind, limit in (
            (PropertyType.PRIOR_GROUP_ID_GAP, group_id),
            (PropertyType.PRIOR_OBJECT_ID_GAP, object_id),
        ):
            gaps = self.integers(kind)
            if len(gaps) > 1:
                return f"{kind.name} occurs twice"
            if gaps and gaps[0] > limit:
                return f"{kind.name} is {gaps[0]}, larger than the ID {limit}"
        for pair in (*self.pairs, *_immutable(self.pairs)):
            if MANDATORY_FIRST <= pair.type <= MANDATORY_LAST:
                return f"Mandatory Track Property 0x{pair.type:x} on an Object"
        return None
