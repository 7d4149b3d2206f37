"""Frozen values that every part of moqt shares: names, Locations, Objects."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Self

from moqt.codes import ObjectStatus

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_NAMESPACE_FIELDS = 32
MAX_NAME_OCTETS = 4096
"""Octets of all namespace fields and the Track Name together (MOQT-22 8.7)."""

_LITERAL = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")
_TEXT_FIELD = re.compile(r"(?:[A-Za-z0-9_]|\.[0-9a-f]{2})*")


def _kind(value: object) -> str:
    return type(value).__name__


def _to_text(octets: bytes) -> str:
    return "".join(chr(o) if o in _LITERAL else f".{o:02x}" for o in octets)


def _from_text(text: str) -> bytes:
    if not _TEXT_FIELD.fullmatch(text):
        raise ValueError(
            f"{text!r} is not the text form of a name: expected a-z A-Z 0-9 _ or '.' "
            "and two lower-case hex digits (MOQT-22 8.8)"
        )
    out = bytearray()
    at = 0
    while at < len(text):
        if text[at] == ".":
            octet = int(text[at + 1 : at + 3], 16)
            if octet in _LITERAL:
                escape = text[at : at + 3]
                raise ValueError(f"{text!r}: {escape!r} must be {chr(octet)!r} (MOQT-22 8.8)")
            out.append(octet)
            at += 3
        else:
            out.append(ord(text[at]))
            at += 1
    return bytes(out)


@dataclass(frozen=True, slots=True, order=True)
class Location:
    """A place in a track: Group ID, then Object ID (MOQT-22 8.2)."""

    group_id: int
    object_id: int

    def __str__(self) -> str:
        return f"{{{self.group_id},{self.object_id}}}"


@dataclass(frozen=True, slots=True)
class TrackNamespace:
    """An ordered tuple of opaque fields; also a prefix or a suffix of one (MOQT-22 8.7).

    Raises: ValueError for more than 32 fields, an empty field, or more than 4096 octets in all;
    TypeError for fields that are not a tuple of bytes.
    """

    fields: tuple[bytes, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.fields, tuple):
            raise TypeError(
                f"the fields of a Track Namespace are a {_kind(self.fields)}, expected a tuple of "
                "bytes; TrackNamespace.of takes text"
            )
        if len(self.fields) > MAX_NAMESPACE_FIELDS:
            raise ValueError(
                f"a Track Namespace has at most {MAX_NAMESPACE_FIELDS} fields, "
                f"got {len(self.fields)}"
            )
        for position, field in enumerate(self.fields):
            if not isinstance(field, bytes):
                raise TypeError(
                    f"Track Namespace field {position} is a {_kind(field)}, expected bytes; "
                    "TrackNamespace.of takes text"
                )
            if not field:
                raise ValueError(f"Track Namespace field {position} is empty (MOQT-22 8.7)")
        if self.octets > MAX_NAME_OCTETS:
            raise ValueError(
                f"a Track Namespace has at most {MAX_NAME_OCTETS} octets, got {self.octets}"
            )

    @classmethod
    def of(cls, *fields: bytes | str) -> Self:
        """Build a namespace from its fields; text is taken as UTF-8."""
        return cls(tuple(f.encode() if isinstance(f, str) else f for f in fields))

    @property
    def octets(self) -> int:
        """The length of all fields together, in octets."""
        return sum(map(len, self.fields))

    @property
    def is_reserved(self) -> bool:
        """True when the first field begins with "." (MOQT-22 2.4.3)."""
        return bool(self.fields) and self.fields[0].startswith(b".")

    @property
    def as_prefix(self) -> str:
        """The text form, for messages; of an empty prefix "(all)"."""
        return str(self) if self.fields else "(all)"

    def starts_with(self, prefix: TrackNamespace) -> bool:
        """Return whether `prefix` matches this namespace, field by field."""
        return self.fields[: len(prefix.fields)] == prefix.fields

    def suffix_after(self, prefix: TrackNamespace) -> TrackNamespace:
        """Return the fields behind `prefix`; ValueError when it is not a prefix of this."""
        if not self.starts_with(prefix):
            raise ValueError(f"{prefix} is not a prefix of {self}")
        return TrackNamespace(self.fields[len(prefix.fields) :])

    def __add__(self, suffix: TrackNamespace) -> TrackNamespace:
        return TrackNamespace(self.fields + suffix.fields)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.fields)

    def __len__(self) -> int:
        return len(self.fields)

    def __str__(self) -> str:
        return "-".join(map(_to_text, self.fields))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read the text form of MOQT-22 8.8; ValueError says what is wrong with it."""
        return cls(tuple(_from_text(part) for part in text.split("-")) if text else ())


@dataclass(frozen=True, slots=True)
class FullTrackName:
    """A Track Namespace and a Track Name (MOQT-22 2.4.1).

    Raises: ValueError for more than 4096 octets in all; TypeError for other types.
    """

    namespace: TrackNamespace
    name: bytes

    def __post_init__(self) -> None:
        if not isinstance(self.namespace, TrackNamespace):
            raise TypeError(
                f"the namespace of a track is a {_kind(self.namespace)}, expected a TrackNamespace"
            )
        if not isinstance(self.name, bytes):
            raise TypeError(f"a Track Name is a {_kind(self.name)}, expected bytes")
        total = self.namespace.octets + len(self.name)
        if total > MAX_NAME_OCTETS:
            raise ValueError(f"a Full Track Name has at most {MAX_NAME_OCTETS} octets, got {total}")

    def __str__(self) -> str:
        return f"{self.namespace}--{_to_text(self.name)}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read the text form of MOQT-22 8.8; ValueError says what is wrong with it."""
        namespace, separator, name = text.partition("--")
        if not separator:
            raise ValueError(f"{text!r} has no '--' between Track Namespace and Track Name")
        return cls(TrackNamespace.parse(namespace), _from_text(name))


class ObjectHeader(NamedTuple):
    """All of an Object but its payload, as a receiver knows it before the payload has arrived.

    `subgroup_id` is None for Delivery Mode Datagram. `payload_length` is in octets.
    `properties` is the encoded Key-Value-Pair list (MOQT-22 8.3); `moqt.wire.properties` reads it.
    """

    group_id: int
    object_id: int
    subgroup_id: int | None
    publisher_priority: int
    payload_length: int
    status: ObjectStatus = ObjectStatus.NORMAL
    properties: bytes = b""

    @property
    def location(self) -> Location:
        """Where in its track the Object stands."""
        return Location(self.group_id, self.object_id)


class Placement(NamedTuple):
    """A place for one payload: `buffers` are filled in turn.

    Their lengths sum up to `payload_length` exactly; each is contiguous, writable octets. The
    session writes to them until the Object is reported or `ObjectSink.abandoned` is called, and
    never after that. `token` is the sink's own.
    """

    buffers: tuple[memoryview, ...]
    token: object = None


class Object(NamedTuple):
    """A whole Object as received.

    `payload` is owned by the receiver of this value. It is None when an `ObjectSink` gave the
    place for the octets; `placement` is then what the sink returned.
    """

    header: ObjectHeader
    payload: memoryview | None = None
    placement: Placement | None = None

    @property
    def location(self) -> Location:
        """Where in its track the Object stands."""
        return self.header.location

    @property
    def status(self) -> ObjectStatus:
        """NORMAL for an Object with content, else what the Object says about Group or Track."""
        return self.header.status
