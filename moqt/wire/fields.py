"""Structures that messages share: Locations, names, phrases, Key-Value-Pairs (MOQT-22 8)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from moqt.types import (
    MAX_NAME_OCTETS,
    MAX_NAMESPACE_FIELDS,
    FullTrackName,
    Location,
    TrackNamespace,
)
from moqt.wire.vi64 import MAX_VI64

if TYPE_CHECKING:
    from collections.abc import Iterable

    from moqt.wire.cursor import Reader, Writer

__all__ = [
    "MAX_PAIR_OCTETS",
    "MAX_REASON_OCTETS",
    "KeyValue",
    "read_full_track_name",
    "read_location",
    "read_namespace",
    "read_pairs",
    "read_reason",
    "write_full_track_name",
    "write_location",
    "write_namespace",
    "write_pairs",
    "write_reason",
]

MAX_REASON_OCTETS = 1024
"""The longest Reason Phrase (MOQT-22 8.5)."""

MAX_PAIR_OCTETS = 0xFFFF
"""The longest value of a Key-Value-Pair of odd type (MOQT-22 8.3)."""


def read_location(reader: Reader, field: str) -> Location:
    """Read a Location: Group ID, Object ID (MOQT-22 8.2)."""
    return Location(reader.vi64(f"{field} Group"), reader.vi64(f"{field} Object"))


def write_location(writer: Writer, location: Location) -> None:
    """Append a Location (MOQT-22 8.2)."""
    writer.vi64(location.group_id)
    writer.vi64(location.object_id)


def read_namespace(reader: Reader, field: str = "Track Namespace") -> TrackNamespace:
    """Read a Track Namespace, a prefix or a suffix (MOQT-22 8.7)."""
    count = reader.vi64(f"{field} field count")
    if count > MAX_NAMESPACE_FIELDS:
        raise reader.error(f"{field} has {count} fields, at most {MAX_NAMESPACE_FIELDS}")
    fields: list[bytes] = []
    for position in range(count):
        part = reader.prefixed(f"{field} field {position}")
        if not part:
            raise reader.error(f"{field} field {position} is empty")
        fields.append(part)
    octets = sum(map(len, fields))
    if octets > MAX_NAME_OCTETS:
        raise reader.error(f"{field} has {octets} octets, at most {MAX_NAME_OCTETS}")
    return TrackNamespace(tuple(fields))


def write_namespace(writer: Writer, namespace: TrackNamespace) -> None:
    """Append a Track Namespace, a prefix or a suffix (MOQT-22 8.7)."""
    writer.vi64(len(namespace.fields))
    for part in namespace.fields:
        writer.prefixed(part)


def read_full_track_name(reader: Reader) -> FullTrackName:
    """Read a Track Namespace and a Track Name (MOQT-22 8.7)."""
    namespace = read_namespace(reader)
    name = reader.prefixed("Track Name")
    total = namespace.octets + len(name)
    if total > MAX_NAME_OCTETS:
        raise reader.error(f"Full Track Name has {total} octets, at most {MAX_NAME_OCTETS}")
    return FullTrackName(namespace, name)


def write_full_track_name(writer: Writer, name: FullTrackName) -> None:
    """Append a Track Namespace and a Track Name (MOQT-22 8.7)."""
    write_namespace(writer, name.namespace)
    writer.prefixed(name.name)


def read_reason(reader: Reader) -> str:
    """Read a Reason Phrase; octets that are not UTF-8 become U+FFFD (MOQT-22 8.5).

    The text is the peer's: cut and escape it before it goes to a log.
    """
    length = reader.vi64("Reason Phrase Length")
    if length > MAX_REASON_OCTETS:
        raise reader.error(f"Reason Phrase has {length} octets, at most {MAX_REASON_OCTETS}")
    return reader.octets(length, "Reason Phrase").decode(errors="replace")


def write_reason(writer: Writer, reason: str) -> None:
    """Append a Reason Phrase; ValueError beyond 1024 octets (MOQT-22 8.5).

    What UTF-8 cannot say becomes "?": a reason may quote a file name, or anything else.
    """
    octets = reason.encode(errors="replace")
    if len(octets) > MAX_REASON_OCTETS:
        raise ValueError(f"Reason Phrase has {len(octets)} octets, at most {MAX_REASON_OCTETS}")
    writer.prefixed(octets)


@dataclass(frozen=True, slots=True)
class KeyValue:
    """One Key-Value-Pair: an even type holds an integer, an odd one octets (MOQT-22 8.3)."""

    type: int
    value: int | bytes

    def __post_init__(self) -> None:
        if isinstance(self.value, int) == bool(self.type % 2):
            expected = "octets" if self.type % 2 else "an integer"
            raise ValueError(f"Key-Value-Pair 0x{self.type:x}: expected {expected} (MOQT-22 8.3)")


def read_pairs(reader: Reader) -> tuple[KeyValue, ...]:
    """Read a Key-Value-Pair list up to the end of `reader` (MOQT-22 8.3).

    Raises: RemoteProtocolError for a type beyond 64 bits, a value beyond 65,535 octets, or a list
    that ends inside a pair.
    """
    pairs: list[KeyValue] = []
    kind = 0
    while reader.remaining:
        kind += reader.vi64("Delta Type")
        if kind > MAX_VI64:
            raise reader.error("Key-Value-Pair type is above 2^64-1")
        if kind % 2:
            length = reader.vi64("Key-Value-Pair Length")
            if length > MAX_PAIR_OCTETS:
                raise reader.error(
                    f"Key-Value-Pair 0x{kind:x} has {length} octets, at most {MAX_PAIR_OCTETS}"
                )
            pairs.append(KeyValue(kind, reader.octets(length, f"Key-Value-Pair 0x{kind:x}")))
        else:
            pairs.append(KeyValue(kind, reader.vi64(f"Key-Value-Pair 0x{kind:x}")))
    return tuple(pairs)


def write_pairs(writer: Writer, pairs: Iterable[KeyValue]) -> None:
    """Append a Key-Value-Pair list, by rising type; equal types keep their order (MOQT-22 8.3)."""
    prior = 0
    for pair in sorted(pairs, key=lambda pair: pair.type):
        writer.vi64(pair.type - prior)
        prior = pair.type
        if isinstance(pair.value, int):
            writer.vi64(pair.value)
        elif len(pair.value) > MAX_PAIR_OCTETS:
            raise ValueError(
                f"Key-Value-Pair 0x{pair.type:x} has {len(pair.value)} octets, "
                f"at most {MAX_PAIR_OCTETS}"
            )
        else:
            writer.prefixed(pair.value)
