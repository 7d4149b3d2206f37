"""Checks of single Objects: where they stand, and what their headers say (KVCS 3.4, 3.5)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcs.conformance.check import Check, Finding
from kvcs.geometry import publisher_priority
from kvcs.kvsp.codecs import CODECS
from kvcs.payload import HEADER_OCTETS, MAGIC, VERSION

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kvcs.conformance.evidence import ObjectRecord, PublicationEvidence, TrackEvidence
    from kvcs.kvsp.shapes import Component
    from kvcs.payload import Header
    from moqt.types import Location

__all__ = ["CHECKS"]

_NO_OBJECT = "no Object came"


def _where(track: TrackEvidence, location: Location) -> str:
    return f"{track.name} Group {location.group_id} Object {location.object_id}"


def _object_ids(evidence: PublicationEvidence) -> Finding:
    def results() -> Iterator[str | None]:
        for track in evidence.tracks.values():
            for record in track.distinct:
                location = record.location
                blocks = evidence.expected_objects(track.name, location.group_id)
                is_block = location.object_id < blocks
                yield (
                    None
                    if is_block
                    else (f"{_where(track, location)}: the Group has {blocks} blocks")
                )

    return Finding.of(results(), if_none=_NO_OBJECT)


def _priorities(evidence: PublicationEvidence) -> Finding:
    manifest = evidence.manifest
    if manifest is None:
        return Finding(0, note="no manifest came")

    def results() -> Iterator[str | None]:
        for track in evidence.tracks.values():
            for record in track.received:
                if record.location.group_id >= manifest.layers:
                    continue
                expected = publisher_priority(record.location.group_id, manifest.layers)
                yield (
                    None
                    if record.publisher_priority == expected
                    else (
                        f"{_where(track, record.location)} has Publisher Priority "
                        f"{record.publisher_priority}, expected {expected}"
                    )
                )

    return Finding.of(results(), if_none=_NO_OBJECT)


def _unchanged(evidence: PublicationEvidence) -> Finding:
    def results() -> Iterator[str | None]:
        for track in evidence.tracks.values():
            first: dict[Location, ObjectRecord] = {}
            for record in track.received:
                known = first.setdefault(record.location, record)
                if known is not record:
                    yield (
                        None
                        if known.fingerprint == record.fingerprint
                        else (
                            f"{_where(track, record.location)} has other octets by "
                            f"{record.way.value} than by {known.way.value}"
                        )
                    )

    return Finding.of(results(), if_none="no Object came twice")


def _header(evidence: PublicationEvidence) -> Finding:
    def problem(record: ObjectRecord) -> str | None:
        header = record.header
        if header is None:
            return f"the payload has {record.payload_octets} octets, a header has {HEADER_OCTETS}"
        if header.magic != MAGIC:
            return f"Magic is 0x{header.magic:08x}, expected 0x{MAGIC:08x}"
        if header.version != VERSION:
            return f"Version is {header.version}, expected {VERSION}"
        return None

    def results() -> Iterator[str | None]:
        for track in evidence.tracks.values():
            for record in track.distinct:
                found = problem(record)
                yield None if found is None else f"{_where(track, record.location)}: {found}"

    return Finding.of(results(), if_none=_NO_OBJECT)


def _field(
    name: str, came: Callable[[Header], int], expect: Callable[..., int | None]
) -> Callable[[PublicationEvidence], Finding]:
    """Return a check of one header field of every Object."""

    def look(evidence: PublicationEvidence) -> Finding:
        def results() -> Iterator[str | None]:
            for track in evidence.tracks.values():
                for record in track.distinct:
                    if record.header is None:
                        continue
                    expected = expect(evidence, track, record)
                    if expected is None:
                        continue
                    value = came(record.header)
                    yield (
                        None
                        if value == expected
                        else (
                            f"{_where(track, record.location)}: {name} is {value}, "
                            f"expected {expected}"
                        )
                    )

        return Finding.of(results(), if_none=_NO_OBJECT)

    return look


def _token_start(
    evidence: PublicationEvidence, track: TrackEvidence, record: ObjectRecord
) -> int | None:
    manifest, entry = evidence.manifest, evidence.segment(track.name)
    if manifest is None or entry is None:
        return None
    return entry.span.token_start(record.location.object_id, manifest.descriptor.block_tokens)


def _token_count(
    evidence: PublicationEvidence, track: TrackEvidence, record: ObjectRecord
) -> int | None:
    descriptor = evidence.descriptor
    return None if descriptor is None else descriptor.block_tokens


def _codec(evidence: PublicationEvidence, track: TrackEvidence, record: ObjectRecord) -> int | None:
    name = track.name.codec_name
    return CODECS.by_name(name).value if name in CODECS else None


def _data_digest(evidence: PublicationEvidence) -> Finding:
    return Finding.of(
        (
            None
            if record.data_sha256 == record.header.data_digest
            else f"{_where(track, record.location)}: Data has another SHA-256 than its header says"
            for track in evidence.tracks.values()
            for record in track.distinct
            if record.header is not None
        ),
        if_none=_NO_OBJECT,
    )


def _data(evidence: PublicationEvidence) -> Finding:
    return Finding.of(
        (
            f"{_where(track, record.location)}: {record.decode_problem}"
            if record.decode_problem
            else None
            for track in evidence.tracks.values()
            for record in track.distinct
            if record.raw_sha256 or record.decode_problem
        ),
        if_none="no Object of a known codec came",
    )


def _encodings(evidence: PublicationEvidence) -> Finding:
    """The same tensor in several tracks: k and v beside kv, or several codecs."""

    def results() -> Iterator[str | None]:
        first: dict[tuple[int, Component, Location], tuple[TrackEvidence, bytes]] = {}
        for track in evidence.tracks.values():
            parts = track.name.component.parts
            for record in track.distinct:
                for part, digest in zip(parts, record.raw_sha256, strict=False):
                    key = (track.name.segment, part, record.location)
                    other, known = first.setdefault(key, (track, digest))
                    if other is not track:
                        yield (
                            None
                            if known == digest
                            else (
                                f"{_where(track, record.location)}: its {part.text} tensor is "
                                f"not that of {other.name}"
                            )
                        )

    return Finding.of(results(), if_none="each tensor is in one track only")


CHECKS = (
    Check("object-ids", "KVCS 3.4", "Object IDs are blocks of the segment", _object_ids),
    Check("data-priority", "KVCS 3.4", "Publisher Priority is floor(128 g / L)", _priorities),
    Check("unchanged", "KVCS 3.4", "an Object has the same octets each time", _unchanged),
    Check("header", "KVCS 3.5", "68 octets, Magic KVO1, Version 1", _header),
    Check(
        "header-component",
        "KVCS 3.5",
        "Component is the track's",
        _field("Component", lambda h: h.component, lambda _, track, __: int(track.name.component)),
    ),
    Check(
        "header-flags",
        "KVCS 3.5",
        "Flags and Reserved are zero",
        _field("Flags or Reserved", lambda h: h.flags | h.reserved, lambda _, __, ___: 0),
    ),
    Check(
        "header-layer",
        "KVCS 3.5",
        "Layer is the Group ID",
        _field("Layer", lambda h: h.layer, lambda _, __, record: record.location.group_id),
    ),
    Check(
        "header-block",
        "KVCS 3.5",
        "Block Index is the Object ID",
        _field(
            "Block Index", lambda h: h.block_index, lambda _, __, record: record.location.object_id
        ),
    ),
    Check(
        "header-token-start",
        "KVCS 3.5",
        "Token Start is the block's first token",
        _field("Token Start", lambda h: h.token_start, _token_start),
    ),
    Check(
        "header-token-count",
        "KVCS 3.5",
        "Token Count is the block size",
        _field("Token Count", lambda h: h.token_count, _token_count),
    ),
    Check(
        "header-codec",
        "KVCS 3.5",
        "Codec is the Track Name's",
        _field("Codec", lambda h: h.codec, _codec),
    ),
    Check(
        "header-data-length",
        "KVCS 3.5",
        "header and Data Length are the payload",
        _field(
            "Data Length",
            lambda h: h.data_length,
            lambda _, __, record: record.payload_octets - HEADER_OCTETS,
        ),
    ),
    Check("data-digest", "KVCS 3.5", "Data Digest is the SHA-256 of Data", _data_digest),
    Check("data", "KVCS 3.5", "Data is the tensor's size, or decodes to it", _data),
    Check("encodings-agree", "KVCS 3.5", "all encodings hold the same tensors", _encodings),
)
