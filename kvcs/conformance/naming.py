"""Checks of namespaces, Track Names and what exists under them (KVCS 3.1, 3.2, 5.1)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcs.conformance.check import Check, Finding
from kvcs.errors import InvalidName
from kvcs.kvsp.shapes import Component
from kvcs.names import PROFILE, DataTrackName, NamespaceForm, PublicationName

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvcs.conformance.evidence import PublicationEvidence

__all__ = ["CHECKS"]

FIELDS = 5


def _fields(evidence: PublicationEvidence) -> Finding:
    fields = evidence.namespace.fields
    problem = None
    if len(fields) != FIELDS:
        problem = f"the namespace has {len(fields)} fields, expected {FIELDS}"
    elif fields[0] != PROFILE:
        problem = f"field 0 is {fields[0][:32]!r}, expected {PROFILE!r}"
    return Finding.of([problem], if_none="")


def _lengths(evidence: PublicationEvidence) -> Finding:
    if _fields(evidence).wrong:
        return Finding(0, note="the namespace has other fields")
    try:
        PublicationName.parse(evidence.namespace, evidence.form)
    except InvalidName as error:
        return Finding.of([f"{error}{_hint(evidence)}"], if_none="")
    return Finding(FIELDS - 1)


def _hint(evidence: PublicationEvidence) -> str:
    if evidence.form is NamespaceForm.BINARY:
        try:
            PublicationName.parse(evidence.namespace, NamespaceForm.HEX)
        except InvalidName:
            return ""
        return "; it is in hexadecimal: fields 1 to 4 are raw octets"
    return ""


def _discovery(evidence: PublicationEvidence) -> Finding:
    if evidence.is_discovered is None:
        return Finding(0, note="SUBSCRIBE_NAMESPACE was refused")
    problem = None
    if not evidence.is_discovered:
        problem = "SUBSCRIBE_NAMESPACE for its first four fields does not report the publication"
    return Finding.of([problem], if_none="")


def _track_names(evidence: PublicationEvidence) -> Finding:
    def results() -> Iterator[str | None]:
        names: set[DataTrackName] = set()
        problems: dict[str, None] = {}
        for version in evidence.manifests:
            problems.update(dict.fromkeys(version.reading.name_problems))
            if version.reading.manifest is not None:
                for entry in version.reading.manifest.segments:
                    names.update(entry.tracks)
        yield from (None for _ in names)
        yield from problems

    return Finding.of(results(), if_none="no manifest lists a track")


def _track_sets(evidence: PublicationEvidence) -> Finding:
    """A consumer takes the k and v tracks of one codec, or one kv track."""
    manifest = evidence.manifest
    if manifest is None:
        return Finding(0, note="no manifest")
    layers = range(manifest.layers)
    has_v = any(manifest.descriptor.geometry(layer).has(Component.V) for layer in layers)

    def results() -> Iterator[str | None]:
        for entry in manifest.segments:
            codecs: dict[str, set[Component]] = {}
            for track in entry.tracks:
                codecs.setdefault(track.codec_name, set()).add(track.component)
            is_whole = any(
                Component.KV in offered
                or (Component.K in offered and (Component.V in offered or not has_v))
                for offered in codecs.values()
            )
            yield (
                None
                if is_whole
                else (
                    f"segment {entry.span.segment} has neither kv nor k and v of one codec: "
                    f"{', '.join(map(str, entry.tracks))}"
                )
            )

    return Finding.of(results(), if_none="no manifest lists a segment")


def _tracks_exist(evidence: PublicationEvidence) -> Finding:
    return Finding.of(
        (
            f"{track.name} is listed: SUBSCRIBE was refused: {track.refusal}"
            if track.refusal
            else None
            for track in evidence.tracks.values()
        ),
        if_none="no manifest lists a track",
    )


CHECKS = (
    Check("namespace-fields", "KVCS 3.1", "five namespace fields, the first is kvcs-1", _fields),
    Check("namespace-lengths", "KVCS 3.1", "fields 1 to 4 are 32, 32, 32 and 16 octets", _lengths),
    Check("track-names", "KVCS 3.2", "listed Track Names follow the grammar", _track_names),
    Check("track-sets", "KVCS 3.2", "each segment has k and v of one codec, or kv", _track_sets),
    Check("tracks-exist", "KVCS 3.2", "each listed track can be subscribed to", _tracks_exist),
    Check("discovery", "KVCS 5.1", "the prefix of its content reports it", _discovery),
)
