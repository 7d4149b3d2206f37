"""Checks of the manifest track (KVCS 3.4, 3.6, 5.2)."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from kvcs.conformance.check import Check, Finding
from kvcs.conformance.evidence import Way
from kvcs.errors import ManifestInvalid
from kvcs.geometry import MANIFEST_PRIORITY
from kvcs.manifest import check_successor
from kvcs.names import MANIFEST, MANIFEST_COSE, NamespaceForm

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvcs.conformance.evidence import PublicationEvidence, TrackEvidence
    from kvcs.manifest import Manifest
    from kvcs.names import DataTrackName

__all__ = ["CHECKS", "MAX_UNLISTED_LAYERS"]

MAX_UNLISTED_LAYERS = 8
"""A new version comes at least every so many completed layers (KVCS 3.6)."""

COMPATIBILITY_FIELD = 2
"""Where in the namespace it stands (KVCS 3.1)."""

_NO_MANIFEST = "no manifest came"


def _one_track(evidence: PublicationEvidence) -> Finding:
    problem = None
    if evidence.manifest_track is None:
        problem = f"there is no manifest track: {evidence.manifest_refusal}"
    elif evidence.other_manifest_exists:
        problem = f"both {MANIFEST_COSE.decode()} and {MANIFEST.decode()} exist"
    return Finding.of([problem], if_none="")


def _where(group_id: int) -> str:
    return f"manifest Group {group_id}"


def _json(evidence: PublicationEvidence) -> Finding:
    readings = [
        (version.header.group_id, version.reading)
        for version in evidence.manifests
        if not version.reading.is_signed or version.reading.manifest or version.reading.json_problem
    ]
    return Finding.of(
        (
            f"{_where(group_id)}: {reading.json_problem}" if reading.json_problem else None
            for group_id, reading in readings
        ),
        if_none=_NO_MANIFEST,
    )


def _signature(evidence: PublicationEvidence) -> Finding:
    return Finding.of(
        (
            f"{_where(version.header.group_id)}: {version.reading.signature_problem}"
            if version.reading.signature_problem
            else None
            for version in evidence.manifests
            if version.reading.is_signed
        ),
        if_none="the publication is not signed",
    )


def _locations(evidence: PublicationEvidence) -> Finding:
    def results() -> Iterator[str | None]:
        for version in evidence.manifests:
            object_id = version.header.object_id
            yield (
                None
                if object_id == 0
                else (f"{_where(version.header.group_id)}: is Object {object_id}, expected 0")
            )
        groups = sorted({version.header.group_id for version in evidence.manifests})
        for before, after in pairwise(groups):
            if after != before + 1:
                yield f"{_where(after)} came, the version before it is Group {before}"

    return Finding.of(results(), if_none=_NO_MANIFEST)


def _priority(evidence: PublicationEvidence) -> Finding:
    def problem(group_id: int, priority: int) -> str | None:
        if priority == MANIFEST_PRIORITY:
            return None
        return f"{_where(group_id)} has Publisher Priority {priority}, expected {MANIFEST_PRIORITY}"

    return Finding.of(
        (
            problem(version.header.group_id, version.header.publisher_priority)
            for version in evidence.manifests
        ),
        if_none=_NO_MANIFEST,
    )


def _versions(evidence: PublicationEvidence) -> list[tuple[int, Manifest]]:
    """Return the versions that could be read by rising Group ID."""
    return [
        (version.header.group_id, version.reading.manifest)
        for version in sorted(evidence.manifests, key=lambda version: version.header.group_id)
        if version.reading.manifest is not None
    ]


def _successors(evidence: PublicationEvidence) -> Finding:
    read = _versions(evidence)

    def results() -> Iterator[str | None]:
        for (_, before), (group_id, after) in pairwise(read):
            try:
                check_successor(before, after)
            except ManifestInvalid as error:
                yield f"{_where(group_id)}: {error}"
            else:
                yield None

    return Finding.of(results(), if_none="one version came")


def _named_compatibility(evidence: PublicationEvidence) -> bytes | None:
    """Return the namespace's Compatibility ID, whatever its other fields are."""
    fields = evidence.namespace.fields
    if len(fields) <= COMPATIBILITY_FIELD:
        return None
    field = fields[COMPATIBILITY_FIELD]
    if evidence.form is NamespaceForm.BINARY:
        return field
    try:
        return bytes.fromhex(field.decode("ascii"))
    except ValueError:
        return None


def _compatibility(evidence: PublicationEvidence) -> Finding:
    descriptor = evidence.descriptor
    if descriptor is None:
        return Finding(0, note=_NO_MANIFEST)
    expected = _named_compatibility(evidence)
    if expected is None:
        return Finding(0, note="the namespace has other fields")
    problem = None
    if descriptor.compatibility_id != expected:
        problem = (
            f'"compat" has the Compatibility ID {descriptor.compatibility_id.hex()}, the namespace '
            f"{expected.hex()}: consumers discard the publication"
        )
    return Finding.of([problem], if_none="")


def _cadence(evidence: PublicationEvidence) -> Finding:
    """Completed layers that no version lists: between two versions, and behind the last one."""
    versions: dict[DataTrackName, list[tuple[int, int]]] = {name: [] for name in evidence.tracks}
    for group_id, manifest in _versions(evidence):
        for entry in manifest.segments:
            for name in entry.tracks:
                if name in versions:
                    versions[name].append((group_id, entry.listed_layers(name)))

    def results(track: TrackEvidence) -> Iterator[str | None]:
        listed = versions[track.name]
        if not any(layers for _, layers in listed):
            return
        for (before_id, before), (after_id, after) in pairwise(listed):
            if after_id == before_id + 1:
                yield (
                    None
                    if after - before <= MAX_UNLISTED_LAYERS
                    else (
                        f"{_where(after_id)} lists {after - before} layers of {track.name} that "
                        "the version before it does not"
                    )
                )
        unlisted = _whole_layers(evidence, track) - listed[-1][1]
        yield (
            None
            if unlisted <= MAX_UNLISTED_LAYERS
            else (f"{unlisted} whole layers of {track.name} came that no manifest lists")
        )

    return Finding.of(
        (result for track in evidence.tracks.values() for result in results(track)),
        if_none="no manifest lists digests",
    )


def _whole_layers(evidence: PublicationEvidence, track: TrackEvidence) -> int:
    counts: dict[int, int] = {}
    for record in track.distinct:
        layer = record.location.group_id
        counts[layer] = counts.get(layer, 0) + 1
    layer = 0
    while counts.get(layer, 0) == evidence.expected_objects(track.name, layer) != 0:
        layer += 1
    return layer


def _listed(evidence: PublicationEvidence) -> Finding:
    manifest = evidence.manifest
    if manifest is None:
        return Finding(0, note=_NO_MANIFEST)
    return Finding.of(
        (
            None
            if entry.listed_layers(track) == manifest.layers
            else f"segment {entry.span.segment} is complete, object_digests list "
            f"{entry.listed_layers(track)} of {manifest.layers} layers of {track}"
            for entry in manifest.segments
            if entry.complete
            for track in entry.tracks
        ),
        if_none="no segment is complete",
    )


def _digests(evidence: PublicationEvidence) -> Finding:
    def results() -> Iterator[str | None]:
        for track in evidence.tracks.values():
            entry = evidence.segment(track.name)
            for record in track.distinct if entry is not None else ():
                layer, block = record.location.group_id, record.location.object_id
                listed = entry.digest(track.name, layer, block) if entry is not None else None
                if listed is None or record.header is None:
                    continue
                yield (
                    None
                    if listed == record.header.data_digest
                    else (
                        f"{track.name} Group {layer} Object {block}: the manifest lists another "
                        "digest than the Data Digest of its header"
                    )
                )

    return Finding.of(results(), if_none="no manifest lists digests of what came")


def _current(evidence: PublicationEvidence) -> Finding:
    """The fill brings the current version, once and alone."""
    if evidence.manifest_track is None:
        return Finding(0, note="there is no manifest track")
    if evidence.manifest_refusal:
        return Finding.of([f"a fill was refused: {evidence.manifest_refusal}"], if_none="")
    if evidence.manifest_largest is None:
        return Finding(0, note="there was no manifest yet")
    expected = evidence.manifest_largest.group_id
    came = [version.header.group_id for version in evidence.manifests if version.way is Way.FILL]
    if evidence.cut and not came:
        return Finding(0, note="it was not followed so far")
    problem = None
    if came != [expected]:
        problem = f"the fill brought Groups {came}, the current version is Group {expected}"
    elif any(
        version.header.group_id == expected and version.way is Way.LIVE
        for version in evidence.manifests
    ):
        problem = f"Group {expected} came by the fill and by the subscription too"
    return Finding.of([problem], if_none="")


CHECKS = (
    Check("manifest-priority", "KVCS 3.4", "the manifest has Publisher Priority 0", _priority),
    Check("manifest-track", "KVCS 3.6", "exactly one of manifest and manifest.cose", _one_track),
    Check("manifest-json", "KVCS 3.6", "each version is a manifest", _json),
    Check("manifest-signature", "KVCS 3.6", "COSE_Sign1 with kid, ES256 or EdDSA", _signature),
    Check("manifest-groups", "KVCS 3.6", "versions are Object 0 of Groups in a row", _locations),
    Check("manifest-history", "KVCS 3.6", "no version takes anything back", _successors),
    Check("manifest-cadence", "KVCS 3.6", "a version every eight completed layers", _cadence),
    Check("compatibility-id", "KVCS 3.6", "compat is the namespace's", _compatibility),
    Check("digests-listed", "KVCS 3.6", "complete segments list all object_digests", _listed),
    Check("object-digests", "KVCS 3.6", "listed digests are the Objects' Data Digests", _digests),
    Check("manifest-current", "KVCS 5.2", "a fill brings the current manifest", _current),
)
