"""A publisher that breaks the profile in ten ways, each by a switch of its own.

One segment of three blocks in k.raw.s0 and v.raw.s0, four layers. Layer 0 is there from the start,
the rest comes when somebody has subscribed to both tracks, so that ends are seen live.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from enum import Enum
from typing import TYPE_CHECKING, Any

import moqt
from kvcs.geometry import SegmentSpan, end_of_track, publisher_priority
from kvcs.kvsp.shapes import Component
from kvcs.manifest import DIGEST_OCTETS, Manifest, SegmentEntry
from kvcs.names import MANIFEST, PROFILE, DataTrackName, PublicationName
from kvcs.payload import pack_header, parse_header
from kvcs.production import Encoding, SegmentPlan, prepare_layer
from moqt.types import FullTrackName, TrackNamespace
from moqt.wire.properties import TrackProperties
from tests.kvcs.stage import whole
from tests.kvcs.support import describe, prefix_of

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from kvcs.production import PreparedGroup
    from moqt.session.publish.source import TrackListener

BLOCKS = 3
LAYERS = 4


class Fault(Enum):
    """What is wrong; the value is the one check that fails."""

    NAMESPACE = "namespace-lengths"
    """The Publication ID has 8 octets."""
    TRACK_NAME = "track-names"
    """The manifest lists a component that does not exist."""
    COMPATIBILITY = "compatibility-id"
    """The namespace has the Compatibility ID of another model."""
    LISTED_DIGEST = "object-digests"
    """The manifest lists another digest for one Object."""
    LAYER_FIELD = "header-layer"
    """One header names another layer than its Group."""
    DATA = "data-digest"
    """One bit of one Object's Data is not what its digest is of."""
    PRIORITY = "data-priority"
    """One Group has another Publisher Priority."""
    END_OF_GROUP = "end-of-group"
    """One Group has no End of Group."""
    END_OF_TRACK = "end-of-track"
    """One track never ends, though its segment is complete."""
    MISSING_OBJECT = "exactly-once"
    """One Object that the manifest lists is never published."""


K, V = DataTrackName(Component.K, "raw", 0), DataTrackName(Component.V, "raw", 0)

LAYER_FIELD_AT = (K, 2, 0)
DATA_AT = (K, 2, 1)
LISTED_DIGEST_AT = (V, 1, 2)
MISSING_AT = (V, 2, 1)
PRIORITY_AT = (V, 3)
NO_END_OF_GROUP_AT = (K, 3)
NO_END_OF_TRACK = V


class _HeardTrack(moqt.TrackSource):
    """A track that tells when it was subscribed to."""

    def __init__(self, name: FullTrackName) -> None:
        super().__init__(name)
        self.heard = asyncio.Event()

    def add_listener(self, listener: TrackListener) -> None:
        super().add_listener(listener)
        self.heard.set()


class FaultyPublication:
    """Its tracks, in `directory`; `run` publishes."""

    def __init__(self, faults: AbstractSet[Fault] = frozenset()) -> None:
        self.directory = moqt.TrackDirectory()
        self._faults = faults
        self._descriptor = describe(layers=LAYERS)
        self._prefix = prefix_of(self._descriptor, BLOCKS)
        self._plan = SegmentPlan(
            descriptor=self._descriptor,
            span=SegmentSpan(segment=0, first_block=0, blocks=BLOCKS),
            encodings=(Encoding(),),
        )
        self.namespace = self._namespace()
        self._manifest = moqt.TrackSource(
            FullTrackName(self.namespace, MANIFEST),
            properties=TrackProperties.of(default_publisher_priority=0),
        )
        self._versions = 0
        self._digests: dict[DataTrackName, list[bytes]] = {}
        self._tracks = {
            name: _HeardTrack(FullTrackName(self.namespace, str(name).encode())) for name in (K, V)
        }
        for track in (self._manifest, *self._tracks.values()):
            self.directory.add(track)
        self._put(0)
        self._put_manifest(complete=False)

    async def run(self) -> None:
        """Publish the rest once both data tracks are subscribed to."""
        for track in self._tracks.values():
            await track.heard.wait()
        for layer in range(1, LAYERS):
            self._put(layer)
        for name, track in self._tracks.items():
            if not (self._has(Fault.END_OF_TRACK) and name == NO_END_OF_TRACK):
                track.end(end_of_track(LAYERS))
        self._put_manifest(complete=True)
        self._manifest.end()

    def _has(self, fault: Fault) -> bool:
        return fault in self._faults

    def _namespace(self) -> TrackNamespace:
        name = PublicationName.of(self._prefix, bytes(range(16)))
        if self._has(Fault.COMPATIBILITY):
            name = replace(name, compatibility_id=describe(layers=5).compatibility_id)
        publication_id = name.publication_id[: 8 if self._has(Fault.NAMESPACE) else 16]
        return TrackNamespace.of(
            PROFILE, name.scope_id, name.compatibility_id, name.anchor_key, publication_id
        )

    def _put(self, layer: int) -> None:
        prepared = prepare_layer(self._plan, layer, *whole(self._descriptor, layer, 0, BLOCKS))
        for group in prepared.groups:
            self._digests.setdefault(group.track, []).append(self._listed(group, layer))
            priority = publisher_priority(layer, LAYERS)
            if self._has(Fault.PRIORITY) and (group.track, layer) == PRIORITY_AT:
                priority += 1
            writer = self._tracks[group.track].open_group(layer, publisher_priority=priority)
            for block, buffers in enumerate(group.payloads):
                at = (group.track, layer, block)
                if not (self._has(Fault.MISSING_OBJECT) and at == MISSING_AT):
                    writer.write(block, self._payload(b"".join(buffers), at))
            if not (self._has(Fault.END_OF_GROUP) and (group.track, layer) == NO_END_OF_GROUP_AT):
                writer.end_of_group(BLOCKS)
            writer.close()

    def _payload(self, payload: bytes, at: tuple[DataTrackName, int, int]) -> bytes:
        if self._has(Fault.LAYER_FIELD) and at == LAYER_FIELD_AT:
            header = parse_header(payload)
            return pack_header(header._replace(layer=header.layer + 1)) + payload[68:]
        if self._has(Fault.DATA) and at == DATA_AT:
            return payload[:-1] + bytes((payload[-1] ^ 1,))
        return payload

    def _listed(self, group: PreparedGroup, layer: int) -> bytes:
        digests = bytearray(group.digests)
        track, wrong_layer, block = LISTED_DIGEST_AT
        if self._has(Fault.LISTED_DIGEST) and (group.track, layer) == (track, wrong_layer):
            digests[block * DIGEST_OCTETS] ^= 1
        return bytes(digests)

    def _put_manifest(self, *, complete: bool) -> None:
        entry = SegmentEntry(
            span=self._plan.span,
            block_keys_sha256=self._prefix.block_keys_sha256(0, BLOCKS),
            tracks=(K, V),
            complete=complete,
            object_digests={track: tuple(groups) for track, groups in self._digests.items()},
        )
        manifest = Manifest(descriptor=self._descriptor, deterministic=False, segments=(entry,))
        value: dict[str, Any] = json.loads(manifest.dump())
        if self._has(Fault.TRACK_NAME):
            value["segments"][0]["tracks"].append("q.raw.s0")
        writer = self._manifest.open_group(self._versions, publisher_priority=0, ends_group=True)
        writer.write(0, json.dumps(value).encode())
        writer.close()
        self._versions += 1
