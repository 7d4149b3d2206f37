"""The manifest: what a publication holds, as typed values and as JSON (KVCS 3.6).

Digests of a Group are kept as one run of octets, 32 for each Object: a manifest lists tens of
thousands of them, and a version is written every few layers.
"""

from __future__ import annotations

import json
import reprlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from kvcs import ijson
from kvcs.errors import (
    CompatibilityMismatch,
    InvalidDescriptor,
    InvalidName,
    ManifestInvalid,
)
from kvcs.geometry import SegmentSpan
from kvcs.ijson import read_array, read_boolean, read_integer, read_object, read_text
from kvcs.kvsp.descriptor import MAX_LAYERS, Descriptor
from kvcs.names import MAX_SEGMENT, DataTrackName

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = [
    "DIGEST_OCTETS",
    "MAX_MANIFEST_OCTETS",
    "Manifest",
    "SegmentEntry",
    "check_successor",
    "dump_digests",
]

PROFILE_VERSION = 1

MAX_MANIFEST_OCTETS = 64 << 20
"""The longest manifest read by default: some 480,000 Objects in one segment's digests."""

MAX_SEGMENTS = 65536
MAX_TRACKS = 64
"""Data tracks of one segment."""

DIGEST_OCTETS = 32

SHARED_OCTETS = 8192
"""Digests of a Group as JSON, so long, are not copied into the text of each manifest version: with
shorter ones the memory saved is not worth the time that many pieces take to send."""

_MAX_BLOCKS = 2**32 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentEntry:
    """One segment as a manifest lists it.

    `object_digests` maps a track to the digests of its completed Groups from Group 0 on; each is
    the Objects' Data Digests one after the other, empty for a layer without Objects in that track.
    """

    span: SegmentSpan
    block_keys_sha256: bytes
    tracks: tuple[DataTrackName, ...]
    complete: bool
    object_digests: Mapping[DataTrackName, tuple[bytes, ...]] = field(default_factory=dict)

    def digest(self, track: DataTrackName, layer: int, block: int) -> bytes | None:
        """Return an Object's listed Data Digest, or None when the manifest does not list it yet."""
        groups = self.object_digests.get(track, ())
        if not 0 <= layer < len(groups) or not 0 <= block < self.span.blocks:
            return None
        digest = groups[layer][block * DIGEST_OCTETS : (block + 1) * DIGEST_OCTETS]
        return digest or None

    def listed_layers(self, track: DataTrackName) -> int:
        """Return for how many layers, from 0 on, the manifest lists this track's digests."""
        return len(self.object_digests.get(track, ()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """One version of a publication's manifest."""

    descriptor: Descriptor
    deterministic: bool
    segments: tuple[SegmentEntry, ...] = ()

    def __post_init__(self) -> None:
        _check_segments(self)

    @property
    def layers(self) -> int:
        """L of the descriptor."""
        return self.descriptor.layers

    @property
    def blocks(self) -> int:
        """Blocks of the context that the listed segments cover."""
        return sum(entry.span.blocks for entry in self.segments)

    def segment(self, segment: int) -> SegmentEntry | None:
        """Return the entry of a segment number, or None."""
        return next((entry for entry in self.segments if entry.span.segment == segment), None)

    def check_compatibility(self, expected: bytes) -> None:
        """Compare the Compatibility ID of "compat" with the namespace's (KVCS 3.6).

        Raises: CompatibilityMismatch; the publication must be discarded.
        """
        if self.descriptor.compatibility_id != expected:
            raise CompatibilityMismatch(
                expected=expected, computed=self.descriptor.compatibility_id
            )

    @classmethod
    def load(cls, text: bytes | memoryview, *, max_octets: int = MAX_MANIFEST_OCTETS) -> Self:
        """Return the manifest of a JSON text. Unknown members are ignored.

        Raises: ManifestInvalid, with the path of what is wrong.
        """
        try:
            value = ijson.parse(text, max_octets=max_octets)
            ijson.check_names(value)
            return cls._read(read_object(value))
        except ijson.IJsonError as error:
            raise ManifestInvalid(error.path, error.problem) from error

    @classmethod
    def _read(cls, value: dict[str, Any]) -> Self:
        version = read_integer(value, "kvcs", 0, ijson.MAX_SAFE_INTEGER)
        if version != PROFILE_VERSION:
            raise ManifestInvalid("$.kvcs", f"is {version}, expected {PROFILE_VERSION}")
        try:
            descriptor = Descriptor.from_dict(read_object(value.get("compat"), "$.compat"))
        except InvalidDescriptor as error:
            raise ManifestInvalid("$.compat" + error.path[1:], str(error)) from error
        for name in ("layers", "block_tokens"):
            expected = getattr(descriptor, name)
            if read_integer(value, name, 1, _MAX_BLOCKS) != expected:
                raise ManifestInvalid(f"$.{name}", f"is {value[name]}, compat has {expected}")
        entries = read_array(value, "segments", longest=MAX_SEGMENTS)
        return cls(
            descriptor=descriptor,
            deterministic=read_boolean(value, "deterministic"),
            segments=tuple(
                _read_segment(entry, f"$.segments[{index}]") for index, entry in enumerate(entries)
            ),
        )

    def dump(self) -> bytes:
        """Return the JSON text, UTF-8."""
        return b"".join(self._json({}))

    def pieces(self, digests_json: Mapping[bytes, bytes]) -> list[bytes]:
        """Return the JSON text, UTF-8, in pieces.

        `digests_json`: what `dump_digests` gave for a Group's digests, where it is at hand. A
        version repeats what all before it had: those of SHARED_OCTETS and more are pieces of their
        own, so that one copy does for all.
        """
        pieces: list[bytes] = []
        short: list[bytes] = []
        for piece in self._json(digests_json):
            if len(piece) < SHARED_OCTETS:
                short.append(piece)
            else:
                pieces += [b"".join(short), piece]
                short.clear()
        return [*pieces, b"".join(short)]

    def _json(self, digests_json: Mapping[bytes, bytes]) -> Iterator[bytes]:
        head = {
            "kvcs": PROFILE_VERSION,
            "compat": self.descriptor.to_dict(),
            "layers": self.descriptor.layers,
            "block_tokens": self.descriptor.block_tokens,
            "deterministic": self.deterministic,
        }
        yield _json(head)[:-1] + b',"segments":['
        for index, entry in enumerate(self.segments):
            if index:
                yield b","
            yield from _segment_json(entry, digests_json)
        yield b"]}"


def dump_digests(digests: bytes) -> bytes:
    """Return the JSON array of the hexadecimal digests of one Group, of 32 octets each."""
    if not digests:
        return b"[]"
    return f'["{digests.hex("-", DIGEST_OCTETS)}"]'.replace("-", '","').encode()


def _json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _segment_json(entry: SegmentEntry, digests_json: Mapping[bytes, bytes]) -> Iterator[bytes]:
    """Yield its JSON, the digests of large Groups alone."""
    head = {
        "segment": entry.span.segment,
        "first_block": entry.span.first_block,
        "blocks": entry.span.blocks,
        "block_keys_sha256": entry.block_keys_sha256.hex(),
        "tracks": [str(track) for track in entry.tracks],
        "complete": entry.complete,
    }
    yield _json(head)[:-1] + b',"object_digests":{'
    comma = b""
    for track, groups in entry.object_digests.items():
        yield comma + _json(str(track)) + b":["
        texts = [digests_json.get(group) or dump_digests(group) for group in groups]
        if max(map(len, texts), default=0) < SHARED_OCTETS:
            yield b",".join(texts)
        else:
            for index, text in enumerate(texts):
                if index:
                    yield b","
                yield text
        yield b"]"
        comma = b","
    yield b"}}"


def _read_segment(value: object, path: str) -> SegmentEntry:
    entry = read_object(value, path)
    names = read_array(entry, "tracks", path, longest=MAX_TRACKS)
    listed = read_object(entry.get("object_digests", {}), f"{path}.object_digests")
    return SegmentEntry(
        span=SegmentSpan(
            segment=read_integer(entry, "segment", 0, MAX_SEGMENT, path),
            first_block=read_integer(entry, "first_block", 0, _MAX_BLOCKS, path),
            blocks=read_integer(entry, "blocks", 1, _MAX_BLOCKS, path),
        ),
        block_keys_sha256=_digests(
            [read_text(entry, "block_keys_sha256", path)], f"{path}.block_keys_sha256"
        ),
        tracks=tuple(_track(name, f"{path}.tracks[{index}]") for index, name in enumerate(names)),
        complete=read_boolean(entry, "complete", path),
        object_digests={
            _track(name, f"{path}.object_digests"): _read_groups(
                listed, name, f"{path}.object_digests"
            )
            for name in listed
        },
    )


def _read_groups(listed: dict[str, Any], name: str, path: str) -> tuple[bytes, ...]:
    groups = read_array(listed, name, path, longest=MAX_LAYERS)
    return tuple(_digests(group, f"{path}.{name}[{index}]") for index, group in enumerate(groups))


def _track(name: object, path: str) -> DataTrackName:
    if not isinstance(name, str):
        raise ManifestInvalid(path, f"expected a track's name, got {reprlib.repr(name)}")
    try:
        return DataTrackName.parse(name)
    except InvalidName as error:
        raise ManifestInvalid(path, str(error)) from error


def _digests(texts: object, path: str) -> bytes:
    """Return the digests' octets one after the other; each is 64 hexadecimal digits."""
    if not isinstance(texts, list) or not {str}.issuperset(map(type, texts)):
        raise ManifestInvalid(path, "expected an array of strings")
    if not {2 * DIGEST_OCTETS}.issuperset(map(len, texts)):
        raise ManifestInvalid(path, f"expected {2 * DIGEST_OCTETS} hexadecimal digits a digest")
    try:
        octets = bytes.fromhex("".join(texts))
    except ValueError:
        octets = b""
    if len(octets) != DIGEST_OCTETS * len(texts):  # fromhex skips white space
        raise ManifestInvalid(path, "a digest holds something other than hexadecimal digits")
    return octets


def _check_segments(manifest: Manifest) -> None:
    """Check what one entry cannot know: the order of segments, and digests against shapes."""
    next_block: int | None = None
    for index, entry in enumerate(manifest.segments):
        path = f"$.segments[{index}]"
        if entry.span.segment != index:
            raise ManifestInvalid(
                f"{path}.segment", f"is {entry.span.segment}, segments count from 0 without gaps"
            )
        if next_block is not None and entry.span.first_block != next_block:
            raise ManifestInvalid(
                f"{path}.first_block",
                f"is {entry.span.first_block}, the segment before it ends at block {next_block}",
            )
        next_block = entry.span.stop_block
        _check_entry(manifest, entry, path)


def _check_entry(manifest: Manifest, entry: SegmentEntry, path: str) -> None:
    if len(entry.block_keys_sha256) != DIGEST_OCTETS:
        raise ManifestInvalid(f"{path}.block_keys_sha256", f"expected {DIGEST_OCTETS} octets")
    if not entry.tracks:
        raise ManifestInvalid(f"{path}.tracks", "a segment has at least one track")
    for index, track in enumerate(entry.tracks):
        if track.segment != entry.span.segment:
            raise ManifestInvalid(
                f"{path}.tracks[{index}]",
                f"{track} is of segment {track.segment}, expected {entry.span.segment}",
            )
        if track in entry.tracks[:index]:
            raise ManifestInvalid(f"{path}.tracks[{index}]", f"{track} is listed twice")
    for track, groups in entry.object_digests.items():
        where = f"{path}.object_digests.{track}"
        if track not in entry.tracks:
            raise ManifestInvalid(where, "is not one of the segment's tracks")
        if len(groups) > manifest.layers:
            raise ManifestInvalid(where, f"has {len(groups)} Groups, of {manifest.layers} layers")
        for layer, group in enumerate(groups):
            objects = entry.span.blocks * manifest.descriptor.geometry(layer).has(track.component)
            if len(group) != DIGEST_OCTETS * objects:
                raise ManifestInvalid(
                    f"{where}[{layer}]",
                    f"has {len(group) // DIGEST_OCTETS} digests, expected {objects}",
                )
        if entry.complete and len(groups) != manifest.layers:
            raise ManifestInvalid(
                where, f"has {len(groups)} Groups of a complete segment of {manifest.layers} layers"
            )


def check_successor(old: Manifest, new: Manifest) -> None:
    """Check that a later version of one publication's manifest takes nothing back (KVCS 3.4, 3.6).

    Segments may be added and become complete, digests may be added; what was said stays.
    Raises: ManifestInvalid with a path in `new`.
    """
    if new.descriptor != old.descriptor:
        raise ManifestInvalid("$.compat", "differs from an earlier version's")
    if new.deterministic != old.deterministic:
        raise ManifestInvalid("$.deterministic", "differs from an earlier version's")
    if len(new.segments) < len(old.segments):
        raise ManifestInvalid(
            "$.segments", f"has {len(new.segments)}, an earlier version had {len(old.segments)}"
        )
    for index, (before, after) in enumerate(zip(old.segments, new.segments, strict=False)):
        path = f"$.segments[{index}]"
        for name in ("span", "block_keys_sha256", "tracks"):
            if getattr(before, name) != getattr(after, name):
                raise ManifestInvalid(f"{path}.{name}", "differs from an earlier version's")
        if before.complete and not after.complete:
            raise ManifestInvalid(f"{path}.complete", "was true in an earlier version")
        for track, groups in before.object_digests.items():
            if after.object_digests.get(track, ())[: len(groups)] != groups:
                raise ManifestInvalid(
                    f"{path}.object_digests.{track}", "takes back digests of an earlier version"
                )
