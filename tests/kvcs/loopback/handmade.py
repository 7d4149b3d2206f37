"""A publication whose tracks a test writes itself, as no producer of ours would."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import moqt
from kvcs.consumer import Consumer
from kvcs.geometry import SegmentSpan, end_of_track, publisher_priority
from kvcs.manifest import Manifest, SegmentEntry
from kvcs.names import MANIFEST, PublicationName
from kvcs.production import Encoding, SegmentPlan, prepare_layer
from tests.kvcs.stage import CONSUMING, QUICK, whole
from tests.kvcs.support import SCOPE, prefix_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from kvcs.config import ConsumerConfig
    from kvcs.kvsp.descriptor import Descriptor
    from kvcs.names import DataTrackName
    from moqt.tls import CertificatePair


class Handmade:
    """One segment in k.raw.s0 and v.raw.s0, found under `PublicationName` as any other."""

    def __init__(self, descriptor: Descriptor, blocks: int) -> None:
        self.descriptor = descriptor
        self.blocks = blocks
        self.directory = moqt.TrackDirectory()
        self._prefix = prefix_of(descriptor, blocks)
        self._plan = SegmentPlan(
            descriptor=descriptor,
            span=SegmentSpan(segment=0, first_block=0, blocks=blocks),
            encodings=(Encoding(),),
        )
        self._name = PublicationName.of(self._prefix, bytes(16))
        self._manifest = moqt.TrackSource(self._name.track(MANIFEST))
        self._versions = 0
        self._digests: dict[DataTrackName, list[bytes]] = {}
        self.tracks = {
            name: moqt.TrackSource(self._name.track(name)) for name, _ in self._plan.tracks
        }
        for track in (self._manifest, *self.tracks.values()):
            self.directory.add(track)

    def put(self, layer: int, *, left_out: Iterable[int] = (), ends_group: bool = True) -> None:
        """Publish a layer without some of its blocks, which the manifest lists all the same."""
        absent = frozenset(left_out)
        prepared = prepare_layer(self._plan, layer, *whole(self.descriptor, layer, 0, self.blocks))
        for group in prepared.groups:
            self._digests.setdefault(group.track, []).append(group.digests)
            writer = self.tracks[group.track].open_group(
                layer, publisher_priority=publisher_priority(layer, self.descriptor.layers)
            )
            for block, payload in enumerate(group.payloads):
                if block not in absent:
                    writer.write(block, payload)
            if ends_group:
                writer.end_of_group(self.blocks)
            writer.close()

    def put_manifest(self, *, complete: bool = False) -> None:
        """Publish the next manifest version."""
        entry = SegmentEntry(
            span=self._plan.span,
            block_keys_sha256=self._prefix.block_keys_sha256(0, self.blocks),
            tracks=tuple(self.tracks),
            complete=complete,
            object_digests={track: tuple(groups) for track, groups in self._digests.items()},
        )
        manifest = Manifest(descriptor=self.descriptor, deterministic=False, segments=(entry,))
        writer = self._manifest.open_group(self._versions, publisher_priority=0, ends_group=True)
        writer.write(0, manifest.dump())
        writer.close()
        self._versions += 1

    def end(self, location: moqt.Location | None = None) -> None:
        """End both data tracks."""
        for track in self.tracks.values():
            track.end(location or end_of_track(self.descriptor.layers))

    @asynccontextmanager
    async def served(
        self, certificate: CertificatePair, *, config: ConsumerConfig = CONSUMING
    ) -> AsyncIterator[Consumer]:
        """Serve it, and connect a consumer."""
        async with (
            moqt.serve(
                "127.0.0.1",
                0,
                certificate=certificate.certificate,
                private_key=certificate.private_key,
                directory=self.directory,
                transport_config=QUICK,
            ) as server,
            Consumer.connect(
                f"moqt://127.0.0.1:{server.port}/",
                scope=SCOPE,
                ca=certificate.certificate,
                config=config,
                transport_config=QUICK,
            ) as consumer,
        ):
            yield consumer
