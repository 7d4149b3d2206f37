"""What was seen of one publication: values that checks look at, no payload among them.

`examine` turns an Object into its record as it comes. A record has the header's octets and digests
of the Data, so that memory grows with the number of Objects and not with their size.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from enum import Enum
from itertools import chain
from typing import TYPE_CHECKING

from kvcs.errors import CodecError, ObjectRejected
from kvcs.kvsp.codecs import CODECS, RAW
from kvcs.kvsp.shapes import BlockShape
from kvcs.payload import HEADER_OCTETS, parse_header
from moqt.codes import ObjectStatus

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvcs.conformance.reading import ManifestReading
    from kvcs.kvsp.descriptor import Descriptor
    from kvcs.manifest import Manifest, SegmentEntry
    from kvcs.names import DataTrackName, NamespaceForm
    from kvcs.payload import Header
    from moqt.codes import PublishDoneCode, RangeStatus
    from moqt.types import Location, Object, ObjectHeader, TrackNamespace

__all__ = [
    "FetchEvidence",
    "Gap",
    "ManifestVersion",
    "ObjectRecord",
    "PublicationEvidence",
    "TrackEvidence",
    "Way",
    "examine",
]


MAX_DECODED_OCTETS = 256 << 20
"""Blocks that are longer decoded are not decoded: a manifest may claim any size."""


class Way(Enum):
    """How an Object came."""

    FILL = "fill"
    LIVE = "live"
    FETCH = "fetch"


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectRecord:
    """One Object of a data track as it came; a status Object has no header and no Data."""

    location: Location
    subgroup_id: int | None
    publisher_priority: int
    status: ObjectStatus
    way: Way
    arrived_s: float
    """Seconds since the collection began."""
    payload_octets: int = 0
    header: Header | None = None
    """None: the payload has fewer than 68 octets."""
    header_octets: bytes = b""
    data_sha256: bytes = b""
    """Of the Data that came, whatever the header says."""
    raw_sha256: tuple[bytes, ...] = ()
    """Of the decoded K section, the V section, or both in order; empty: not decoded."""
    decode_problem: str = ""
    """Why the Data is not what the codec and the descriptor say."""

    @property
    def fingerprint(self) -> tuple[int, bytes, bytes]:
        """What two receptions of one Object must have in common: all its octets, in effect."""
        return self.payload_octets, self.header_octets, self.data_sha256


def examine(
    received: Object,
    track: DataTrackName,
    descriptor: Descriptor | None,
    *,
    way: Way,
    arrived_s: float,
) -> ObjectRecord:
    """Return the record of an Object. `descriptor` None: its Data is hashed and not decoded."""
    payload = received.payload if received.payload is not None else memoryview(b"")
    header: Header | None = None
    raw: tuple[bytes, ...] = ()
    problem = ""
    data = payload[HEADER_OCTETS:]
    try:
        header = parse_header(payload)
    except ObjectRejected:
        data = payload[:0]
    data_sha256 = hashlib.sha256(data).digest()
    if header is not None and descriptor is not None:
        try:
            raw = _raw_digests(data, data_sha256, track, descriptor, received.location.group_id)
        except CodecError as error:
            problem = str(error)
    return ObjectRecord(
        location=received.location,
        subgroup_id=received.header.subgroup_id,
        publisher_priority=received.header.publisher_priority,
        status=received.status,
        way=way,
        arrived_s=arrived_s,
        payload_octets=len(payload),
        header=header,
        header_octets=bytes(payload[:HEADER_OCTETS]),
        data_sha256=data_sha256,
        raw_sha256=raw,
        decode_problem=problem,
    )


def _raw_digests(
    data: memoryview, data_sha256: bytes, track: DataTrackName, descriptor: Descriptor, layer: int
) -> tuple[bytes, ...]:
    """Return the SHA-256 of each raw section; nothing for a codec or layer that is not known."""
    if track.codec_name not in CODECS or layer >= descriptor.layers:
        return ()
    geometry = descriptor.geometry(layer)
    if not geometry.has(track.component):
        return ()
    codec = CODECS.by_name(track.codec_name)
    shape = BlockShape(geometry, track.component, descriptor.block_tokens)
    codec.check_data_octets(len(data), shape)
    if codec is RAW and len(shape.sections) == 1:
        return (data_sha256,)
    if codec is not RAW and shape.raw_octets > MAX_DECODED_OCTETS:
        return ()
    raw = data if codec is RAW else codec.decode(data, shape)
    digests = []
    at = 0
    for section in shape.sections:
        digests.append(hashlib.sha256(raw[at : at + section]).digest())
        at += section
    return tuple(digests)


@dataclass(frozen=True, slots=True)
class Gap:
    """An End of Range marker: nothing comes up to `last` (MOQT-22 11.4.1.2)."""

    status: RangeStatus
    last: Location


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestVersion:
    """One Object of the manifest track, and what could be read of it."""

    header: ObjectHeader
    way: Way
    reading: ManifestReading


@dataclass(slots=True, kw_only=True)
class FetchEvidence:
    """A FETCH of the layers `first_layer` to `last_layer`, of the first `blocks` blocks if given.

    `problem`: why it was refused or broke off.
    """

    first_layer: int
    last_layer: int
    blocks: int | None = None
    objects: list[ObjectRecord] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    ends_track: bool = False
    """FETCH_OK said that the track ends here."""
    problem: str = ""


@dataclass(slots=True, kw_only=True)
class TrackEvidence:
    """What the subscription to one data track brought, its fill included (KVCS 5.2)."""

    name: DataTrackName
    refusal: str = ""
    """Why there is no subscription at all."""
    fill_refusal: str = ""
    """Why there is one without a fill."""
    largest: Location | None = None
    """The Largest Object when the subscription was accepted."""
    objects: list[ObjectRecord] = field(default_factory=list)
    """In the order in which they came whole."""
    gaps: list[Gap] = field(default_factory=list)
    resets: list[str] = field(default_factory=list)
    """Streams that the publisher broke off."""
    done: PublishDoneCode | None = None
    failure: str = ""
    """Why the subscription ended, if not with the track."""
    fetch: FetchEvidence | None = None
    filtered: FetchEvidence | None = None

    @property
    def received(self) -> Iterator[ObjectRecord]:
        """All Objects with content, by subscription and by FETCH, in the order they came."""
        fetched = [fetch.objects for fetch in (self.fetch, self.filtered) if fetch is not None]
        for record in chain(self.objects, *fetched):
            if record.status is ObjectStatus.NORMAL:
                yield record

    @property
    def distinct(self) -> Iterator[ObjectRecord]:
        """As `received`, but each Location once, as it came first."""
        seen: set[Location] = set()
        for record in self.received:
            if record.location not in seen:
                seen.add(record.location)
                yield record

    @property
    def joined(self) -> Iterator[ObjectRecord]:
        """The Objects with content that came by the subscription and its fill."""
        return (record for record in self.objects if record.status is ObjectStatus.NORMAL)

    @property
    def is_over(self) -> bool:
        """Whether no more will come by the subscription."""
        return bool(self.done is not None or self.failure or self.refusal)


@dataclass(slots=True, kw_only=True)
class PublicationEvidence:
    """All that was seen of one publication."""

    namespace: TrackNamespace
    form: NamespaceForm
    is_discovered: bool | None = None
    """Whether the prefix of its four content fields reports it; None: that was refused."""
    manifest_track: bytes | None = None
    """The name of the manifest track; None: there is none."""
    manifest_refusal: str = ""
    has_no_manifest: bool = False
    """Both manifest tracks were refused as not existing."""
    other_manifest_exists: bool | None = None
    manifests: list[ManifestVersion] = field(default_factory=list)
    manifest_largest: Location | None = None
    tracks: dict[DataTrackName, TrackEvidence] = field(default_factory=dict)
    max_filter_ranges: int = 0
    """What the peer announced."""
    cut: str = ""
    """Which limit ended the collection early."""

    _newest: tuple[int, Manifest | None] = (0, None)
    """What `manifest` found, and among how many versions: it is asked for with every Object."""

    @property
    def manifest(self) -> Manifest | None:
        """The newest version that could be read; versions are only ever added."""
        if self._newest[0] != len(self.manifests):
            read = (version.reading.manifest for version in reversed(self.manifests))
            found = next((manifest for manifest in read if manifest is not None), None)
            self._newest = (len(self.manifests), found)
        return self._newest[1]

    @property
    def is_absent(self) -> bool:
        """Whether nothing is published under the name: no manifest, and nobody reports it."""
        return self.has_no_manifest and not self.is_discovered

    @property
    def descriptor(self) -> Descriptor | None:
        """The manifest's "compat"."""
        manifest = self.manifest
        return None if manifest is None else manifest.descriptor

    def segment(self, track: DataTrackName) -> SegmentEntry | None:
        """Return the newest entry of a track's segment."""
        manifest = self.manifest
        if manifest is None or track.segment >= len(manifest.segments):
            return None
        return manifest.segments[track.segment]  # a manifest numbers them so

    def expected_objects(self, track: DataTrackName, layer: int) -> int:
        """Return how many Objects the Group of a layer has; 0 without a manifest."""
        manifest, entry = self.manifest, self.segment(track)
        if manifest is None or entry is None or not 0 <= layer < manifest.layers:
            return 0
        return entry.span.blocks * manifest.descriptor.geometry(layer).has(track.component)
