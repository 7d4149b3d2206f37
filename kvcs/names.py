"""Namespaces and Track Names of the profile: build, parse, refuse (KVCS 3.1, 3.2)."""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Self

from kvcs.errors import InvalidName
from kvcs.kvsp.identity import ID_OCTETS
from kvcs.kvsp.shapes import Component
from moqt.types import FullTrackName, TrackNamespace

if TYPE_CHECKING:
    from kvcs.kvsp.identity import Prefix

__all__ = [
    "MANIFEST",
    "MANIFEST_COSE",
    "PROFILE",
    "PUBLICATION_ID_OCTETS",
    "DataTrackName",
    "NamespaceForm",
    "PublicationName",
    "anchor_prefix",
    "is_codec_name",
    "new_publication_id",
    "parse_track_name",
    "scope_prefix",
]

PROFILE = b"kvcs-1"
"""Namespace field 0."""

MANIFEST = b"manifest"
MANIFEST_COSE = b"manifest.cose"

PUBLICATION_ID_OCTETS = 16

MAX_SEGMENT = 2**32 - 1
"""The largest segment number this package uses; the grammar itself names no bound."""

_FIELDS = (
    ("scope_id", ID_OCTETS),
    ("compatibility_id", ID_OCTETS),
    ("anchor_key", ID_OCTETS),
    ("publication_id", PUBLICATION_ID_OCTETS),
)

_CODEC_NAME = re.compile(r"[a-z0-9-]{1,32}")
_SEGMENT = re.compile(r"0|[1-9][0-9]*")
_HEX = re.compile(rb"(?:[0-9a-f]{2})*")


class NamespaceForm(Enum):
    """How namespace fields 1 to 4 are written.

    BINARY is the profile: raw octets. HEX writes the same octets as lower-case hexadecimal text,
    for relays whose paths must be text and that close the session on other octets. Both ends must
    be set to the same form: the two name different namespaces.
    """

    BINARY = "binary"
    HEX = "hex"

    def write(self, octets: bytes) -> bytes:
        """Return a field as this form puts it into a namespace."""
        return octets if self is NamespaceForm.BINARY else octets.hex().encode()


def new_publication_id() -> bytes:
    """Return a random Publication ID of 16 octets, for one production of a cache (KVCS 3.1)."""
    return secrets.token_bytes(PUBLICATION_ID_OCTETS)


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicationName:
    """The five fields of a publication's namespace; field 0 is always "kvcs-1" (KVCS 3.1).

    Raises: InvalidName when a field has the wrong length; `.field` is its attribute's name.
    """

    scope_id: bytes
    compatibility_id: bytes
    anchor_key: bytes
    publication_id: bytes

    def __post_init__(self) -> None:
        for name, octets in _FIELDS:
            length = len(getattr(self, name))
            if length != octets:
                raise InvalidName(name, f"has {length} octets, expected {octets} (KVCS 3.1)")

    @classmethod
    def of(cls, prefix: Prefix, publication_id: bytes) -> Self:
        """Return the name of a publication of a whole token prefix."""
        return cls(
            scope_id=prefix.scope_id,
            compatibility_id=prefix.compatibility_id,
            anchor_key=prefix.anchor_key(),
            publication_id=publication_id,
        )

    def namespace(self, form: NamespaceForm = NamespaceForm.BINARY) -> TrackNamespace:
        """Return the Track Namespace."""
        return TrackNamespace((PROFILE, *(form.write(getattr(self, name)) for name, _ in _FIELDS)))

    def track(
        self, name: bytes | DataTrackName, form: NamespaceForm = NamespaceForm.BINARY
    ) -> FullTrackName:
        """Return the Full Track Name of one of the publication's tracks."""
        octets = name if isinstance(name, bytes) else str(name).encode()
        return FullTrackName(self.namespace(form), octets)

    @classmethod
    def parse(cls, namespace: TrackNamespace, form: NamespaceForm = NamespaceForm.BINARY) -> Self:
        """Read a namespace that someone else made.

        Raises: InvalidName with the field that is wrong, "namespace" for their number.
        """
        fields = namespace.fields
        if len(fields) != 1 + len(_FIELDS):
            raise InvalidName(
                "namespace", f"has {len(fields)} fields, expected {1 + len(_FIELDS)} (KVCS 3.1)"
            )
        if fields[0] != PROFILE:
            raise InvalidName("profile", f"is {fields[0]!r}, expected {PROFILE!r} (KVCS 3.1)")
        read = {
            name: _read(field, name, octets, form)
            for field, (name, octets) in zip(fields[1:], _FIELDS, strict=True)
        }
        return cls(**read)


def _read(field: bytes, name: str, octets: int, form: NamespaceForm) -> bytes:
    if form is NamespaceForm.BINARY:
        return field
    if len(field) != 2 * octets or not _HEX.fullmatch(field):
        raise InvalidName(name, f"is not {2 * octets} lower-case hexadecimal digits")
    return bytes.fromhex(field.decode("ascii"))


def scope_prefix(scope_id: bytes, form: NamespaceForm = NamespaceForm.BINARY) -> TrackNamespace:
    """Return the namespace prefix of all publications of a scope (KVCS 3.1)."""
    return TrackNamespace((PROFILE, form.write(scope_id)))


def anchor_prefix(
    prefix: Prefix, blocks: int | None = None, form: NamespaceForm = NamespaceForm.BINARY
) -> TrackNamespace:
    """Return the namespace prefix of all publications of the first `blocks` blocks (KVCS 5.1)."""
    fields = (prefix.scope_id, prefix.compatibility_id, prefix.anchor_key(blocks))
    return TrackNamespace((PROFILE, *map(form.write, fields)))


def is_codec_name(text: str) -> bool:
    """Return whether `text` is a codec name: 1 to 32 of a-z, 0-9 and "-" (KVCS 3.2)."""
    return _CODEC_NAME.fullmatch(text) is not None


@dataclass(frozen=True, slots=True, order=True)
class DataTrackName:
    """The name of a data track, as in "k.raw.s0" (KVCS 3.2). Raises InvalidName."""

    component: Component
    codec_name: str
    segment: int

    def __post_init__(self) -> None:
        if not is_codec_name(self.codec_name):
            raise InvalidName(
                "codec-name",
                f"is {self.codec_name[:40]!r}, expected 1 to 32 of a-z, 0-9 and '-' (KVCS 3.2)",
            )
        if not 0 <= self.segment <= MAX_SEGMENT:
            raise InvalidName("segment", f"is {self.segment}, expected 0 to {MAX_SEGMENT}")

    def __str__(self) -> str:
        return f"{self.component.text}.{self.codec_name}.s{self.segment}"

    @classmethod
    def parse(cls, name: bytes | str) -> Self:
        """Read the name of a data track; InvalidName says which part is wrong and why."""
        text = _ascii(name)
        parts = text.split(".")
        if len(parts) != 3:
            raise InvalidName(
                "track-name",
                f"{text[:64]!r} has {len(parts)} parts between dots, expected component, codec "
                "name and segment (KVCS 3.2)",
            )
        component, codec_name, segment = parts
        if component not in _COMPONENTS:
            raise InvalidName(
                "component", f"is {component[:40]!r}, expected 'k', 'v' or 'kv' (KVCS 3.2)"
            )
        digits = segment[1:]
        if segment[:1] != "s" or not _SEGMENT.fullmatch(digits) or len(digits) > 10:
            raise InvalidName(
                "segment",
                f"is {segment[:40]!r}, expected 's' and a number without leading zeros, at most "
                f"{MAX_SEGMENT} (KVCS 3.2)",
            )
        return cls(_COMPONENTS[component], codec_name, int(digits))


_COMPONENTS = {component.text: component for component in Component}


def _ascii(name: bytes | str) -> str:
    if isinstance(name, str):
        text = name
    else:
        text = name.decode("latin-1")
    if not text.isascii():
        raise InvalidName("track-name", f"{text[:64]!r} is not ASCII (KVCS 3.2)")
    return text


def parse_track_name(name: bytes | str) -> DataTrackName | bytes:
    """Read any Track Name of the profile: MANIFEST or MANIFEST_COSE come back as they are."""
    octets = _ascii(name).encode()
    return octets if octets in (MANIFEST, MANIFEST_COSE) else DataTrackName.parse(octets)
