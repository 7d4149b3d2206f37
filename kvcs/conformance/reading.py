"""What can be read of a manifest Object, even when something in it is wrong (KVCS 3.6).

A consumer refuses a manifest that lists one unknown Track Name. Here the rest is read all the same,
so that one fault hides no other.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from kvcs import ijson
from kvcs.cose import SignedManifest
from kvcs.errors import InvalidName, ManifestInvalid, SignatureInvalid
from kvcs.manifest import MAX_MANIFEST_OCTETS, Manifest
from kvcs.names import DataTrackName

if TYPE_CHECKING:
    from kvcs.keys import TrustedKeys

__all__ = ["ManifestReading", "read_manifest"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestReading:
    """The manifest, and what is wrong by topic; an empty text is nothing wrong."""

    manifest: Manifest | None = None
    json_problem: str = ""
    name_problems: tuple[str, ...] = ()
    """Listed Track Names that are outside the grammar; `manifest` has been read without them."""
    signature_problem: str = ""
    is_signed: bool = False
    is_verified: bool = False


def read_manifest(
    payload: bytes | memoryview, *, is_signed: bool, trusted: TrustedKeys | None
) -> ManifestReading:
    """Return what one Object of a manifest track says. Never raises for what is in it."""
    if not is_signed:
        return _read_json(payload)
    try:
        signed = SignedManifest.parse(payload)
    except SignatureInvalid as error:
        return ManifestReading(is_signed=True, signature_problem=str(error))
    read = replace(_read_json(signed.payload), is_signed=True)
    if trusted is None:
        return read
    try:
        signed.verify(trusted)
    except SignatureInvalid as error:
        return replace(read, signature_problem=str(error))
    return replace(read, is_verified=True)


def _read_json(text: bytes | memoryview) -> ManifestReading:
    try:
        value = ijson.parse(text, max_octets=MAX_MANIFEST_OCTETS)
        ijson.check_names(value)
    except ijson.IJsonError as error:
        return ManifestReading(json_problem=f"{error.path}: {error.problem}")
    bad_names = tuple(_drop_bad_names(value))
    try:
        manifest = Manifest.load(json.dumps(value).encode() if bad_names else text)
    except ManifestInvalid as error:
        return ManifestReading(json_problem=str(error), name_problems=bad_names)
    return ManifestReading(manifest=manifest, name_problems=bad_names)


def _drop_bad_names(value: Any) -> list[str]:
    """Take Track Names that do not parse out of a manifest's JSON value, and say what they were."""
    problems: list[str] = []
    segments = value.get("segments") if isinstance(value, dict) else None
    for segment in segments if isinstance(segments, list) else ():
        if not isinstance(segment, dict):
            continue
        tracks = segment.get("tracks")
        if not isinstance(tracks, list):
            continue
        digests = segment.get("object_digests")
        for name in [name for name in tracks if isinstance(name, str)]:
            try:
                DataTrackName.parse(name)
            except InvalidName as error:
                problems.append(str(error))
                tracks.remove(name)
                if isinstance(digests, dict):
                    digests.pop(name, None)
    return problems
