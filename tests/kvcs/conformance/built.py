"""Evidence of a flawless publication, made without a network, for tests to spoil."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvcs.conformance.evidence import (
    FetchEvidence,
    ManifestVersion,
    ObjectRecord,
    PublicationEvidence,
    TrackEvidence,
    Way,
    examine,
)
from kvcs.conformance.reading import ManifestReading
from kvcs.geometry import SegmentSpan, end_of_track, publisher_priority
from kvcs.manifest import Manifest, SegmentEntry
from kvcs.names import MANIFEST, DataTrackName, NamespaceForm, PublicationName
from kvcs.production import Encoding, SegmentPlan, prepare_layer
from moqt.codes import ObjectStatus, PublishDoneCode
from moqt.types import Location, Object, ObjectHeader
from tests.kvcs.stage import whole
from tests.kvcs.support import describe, prefix_of

if TYPE_CHECKING:
    from collections.abc import Callable

LAYERS = 12
BLOCKS = 3
DESCRIPTOR = describe(layers=LAYERS)
FETCHED = range(1, 3)

K = DataTrackName.parse("k.raw.s0")
V = DataTrackName.parse("v.raw.s0")
KV = DataTrackName.parse("kv.zstd.s0")


def _encodings() -> tuple[Encoding, ...]:
    from kvcs.kvsp.codecs import ZSTD

    return (Encoding(), Encoding(ZSTD, joint=True))


def built() -> PublicationEvidence:
    """Three tracks, all of it received live but layer 0, which came by the fill."""
    prefix = prefix_of(DESCRIPTOR, BLOCKS)
    plan = SegmentPlan(
        descriptor=DESCRIPTOR,
        span=SegmentSpan(segment=0, first_block=0, blocks=BLOCKS),
        encodings=_encodings(),
    )
    tracks = {
        name: TrackEvidence(name=name, done=PublishDoneCode.TRACK_ENDED) for name in (K, V, KV)
    }
    digests: dict[DataTrackName, list[bytes]] = {name: [] for name in tracks}
    for layer in range(LAYERS):
        for group in prepare_layer(plan, layer, *whole(DESCRIPTOR, layer, 0, BLOCKS)).groups:
            digests[group.track].append(group.digests)
            objects = tracks[group.track].objects
            way = Way.LIVE if layer else Way.FILL
            for block, buffers in enumerate(group.payloads):
                payload = b"".join(buffers)
                header = ObjectHeader(
                    layer, block, 0, publisher_priority(layer, LAYERS), len(payload)
                )
                objects.append(
                    examine(
                        Object(header, memoryview(payload)),
                        group.track,
                        DESCRIPTOR,
                        way=way,
                        arrived_s=0.01 * layer,
                    )
                )
            if layer:
                objects.append(status(Location(layer, BLOCKS), ObjectStatus.END_OF_GROUP))
    for name, track in tracks.items():
        track.objects.append(status(end_of_track(LAYERS), ObjectStatus.END_OF_TRACK))
        track.fetch = fetch(track, FETCHED.start, FETCHED.stop - 1, None)
        track.filtered = fetch(track, 0, 0, 1)
        assert name in digests
    evidence = PublicationEvidence(
        namespace=PublicationName.of(prefix, bytes(16)).namespace(),
        form=NamespaceForm.BINARY,
        is_discovered=True,
        manifest_track=MANIFEST,
        other_manifest_exists=False,
        manifest_largest=Location(0, 0),
        tracks=tracks,
        max_filter_ranges=1,
    )
    for version, listed in enumerate((0, 4, LAYERS)):
        entry = SegmentEntry(
            span=plan.span,
            block_keys_sha256=prefix.block_keys_sha256(0, BLOCKS),
            tracks=(K, V, KV),
            complete=listed == LAYERS,
            object_digests={name: tuple(groups[:listed]) for name, groups in digests.items()},
        )
        evidence.manifests.append(
            ManifestVersion(
                header=ObjectHeader(version, 0, 0, 0, 1000),
                way=Way.LIVE if version else Way.FILL,
                reading=ManifestReading(
                    manifest=Manifest(descriptor=DESCRIPTOR, deterministic=False, segments=(entry,))
                ),
            )
        )
    return evidence


def status(location: Location, what: ObjectStatus) -> ObjectRecord:
    return ObjectRecord(
        location=location,
        subgroup_id=0,
        publisher_priority=0,
        status=what,
        way=Way.LIVE,
        arrived_s=1.0,
    )


def fetch(track: TrackEvidence, first: int, last: int, blocks: int | None) -> FetchEvidence:
    """Return a FETCH that brought what it should."""
    return FetchEvidence(
        first_layer=first,
        last_layer=last,
        blocks=blocks,
        objects=[
            replace(record, way=Way.FETCH)
            for record in track.joined
            if first <= record.location.group_id <= last
            and (blocks is None or record.location.object_id < blocks)
        ],
    )


def index_of(records: list[ObjectRecord], layer: int, block: int) -> int:
    return next(
        index for index, record in enumerate(records) if record.location == Location(layer, block)
    )


def spoil(
    records: list[ObjectRecord],
    layer: int,
    block: int,
    change: Callable[[ObjectRecord], ObjectRecord],
) -> None:
    at = index_of(records, layer, block)
    records[at] = change(records[at])
