"""One publication on the air: its tracks, its segments, its manifest versions (KVCS 3)."""

from __future__ import annotations

import asyncio
from enum import Enum
from typing import TYPE_CHECKING, Self

import numpy as np

from kvcs.errors import ProductionError
from kvcs.geometry import (
    DATA_SUBGROUP_ID,
    MANIFEST_PRIORITY,
    end_of_track,
    group_id_of,
    publisher_priority,
)
from kvcs.kvsp.codecs import CODECS
from kvcs.loan import Loan
from kvcs.names import MANIFEST, MANIFEST_COSE, DataTrackName, PublicationName
from kvcs.production import Encoding, PreparedLayer, Production, SegmentProduction, prepare_layer
from kvcs.stats import PublicationStats
from moqt.codes import PublishDoneCode
from moqt.session.publish.source import TrackSource
from moqt.types import Location
from moqt.wire.properties import TrackProperties

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from kvcs.jobs import Run
    from kvcs.kvsp.descriptor import Descriptor
    from kvcs.kvsp.identity import Prefix
    from kvcs.kvsp.shapes import AnyArray
    from kvcs.publisher import Producer
    from moqt.types import TrackNamespace

__all__ = ["Publication", "PublicationState", "Segment"]

KEPT_MANIFESTS = 2
"""Manifest versions that are kept: the current one, and the one before for who is reading it."""


class PublicationState(Enum):
    """Where a publication stands."""

    LIVE = "live"
    COMPLETE = "complete"
    WITHDRAWN = "withdrawn"


class Publication:
    """One production of one prefix's cache, under a Publication ID of its own (KVCS 3.1).

    Made by `Producer.publish`. It is complete when its segments hold every block of the prefix and
    each is complete; it then stays for late joiners as long as the producer retains it. As an
    `async with` block it completes on a clean exit and aborts on an error.
    """

    def __init__(
        self, producer: Producer, prefix: Prefix, name: PublicationName, *, deterministic: bool
    ) -> None:
        self.prefix = prefix
        self.name = name
        self.namespace: TrackNamespace = name.namespace(producer.config.namespace_form)
        self.stats = PublicationStats()
        self._producer = producer
        self._production = Production(
            prefix,
            deterministic=deterministic,
            layers_per_manifest=producer.config.layers_per_manifest,
            max_segments=producer.config.max_segments,
        )
        self._state = PublicationState.LIVE
        manifest = MANIFEST if producer.signing_key is None else MANIFEST_COSE
        self._manifest_track = TrackSource(
            name.track(manifest, producer.config.namespace_form),
            properties=TrackProperties.of(default_publisher_priority=MANIFEST_PRIORITY),
        )
        self._data_tracks: dict[DataTrackName, TrackSource] = {}
        self._segments: list[Segment] = []

    # Queries

    @property
    def publication_id(self) -> bytes:
        """The random Publication ID, 16 octets."""
        return self.name.publication_id

    @property
    def descriptor(self) -> Descriptor:
        """The Compatibility Descriptor."""
        return self.prefix.descriptor

    @property
    def blocks(self) -> int:
        """Full blocks of the prefix: what its segments have to hold."""
        return self.prefix.blocks

    @property
    def deterministic(self) -> bool:
        """What the manifest says about it (KVCS 3.6)."""
        return self._production.deterministic

    @property
    def state(self) -> PublicationState:
        """Live, complete, or withdrawn."""
        return self._state

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The segments so far, in order."""
        return tuple(self._segments)

    @property
    def retained_octets(self) -> int:
        """Payload octets held for subscribers."""
        return sum(track.retained_octets for track in self._data_tracks.values())

    def __repr__(self) -> str:
        return (
            f"<Publication {self.publication_id.hex()} {self._state.value}, {self.blocks} blocks, "
            f"{len(self._segments)} segments>"
        )

    # Production

    def segment(
        self,
        first_block: int | None = None,
        blocks: int | None = None,
        codec: str = "raw",
        joint: bool = False,
        *,
        also: Sequence[tuple[str, bool]] = (),
    ) -> Segment:
        """Add the next segment: one pass of the model over `blocks` blocks (KVCS 3.3).

        `first_block` counts from the start of the context; by default it follows the segment
        before, and `blocks` reaches to the end of the prefix. `codec`, `joint`: how it is offered;
        joint is one kv track instead of k and v. `also`: further (codec, joint) offers of the same.
        Raises: ProductionError when it is empty, overlaps or leaves a gap, or the publication is
        over; CodecError for an unknown codec.
        """
        self._check_live()
        if first_block is None:
            first_block = self._production.covered_blocks
        if blocks is None:
            blocks = self.prefix.blocks - first_block
        encodings = [
            Encoding(CODECS.by_name(name), is_joint) for name, is_joint in ((codec, joint), *also)
        ]
        production = self._production.add_segment(
            first_block=first_block, blocks=blocks, encodings=encodings
        )
        tracks = {name: self._new_track(str(name).encode()) for name, _ in production.plan.tracks}
        self._data_tracks.update(tracks)
        for track in tracks.values():
            self._producer.directory.add(track)
        segment = Segment(self, production, tracks)
        self._segments.append(segment)
        self._publish_manifest_if_due()
        return segment

    async def complete(self) -> None:
        """Complete the publication; it was completed already when its last segment was.

        Raises: ProductionError, saying what lacks.
        """
        if self._state is PublicationState.COMPLETE:
            return
        self._check_live()
        self._production.check_complete()
        self._complete_if_all_there()

    async def abort(self, reason: str = "") -> None:
        """Stop the publication: it is wrong or will not be finished (KVCS 3.4).

        Its namespace is withdrawn and its subscriptions end; what is retained is released. Harmless
        when it is withdrawn already.
        """
        if self._state is not PublicationState.WITHDRAWN:
            self._producer.count_aborted()
            await self._producer.withdraw(self, PublishDoneCode.INTERNAL_ERROR, reason)

    async def restart(self, reason: str = "") -> Publication:
        """Abort, and return a new publication of the same prefix under a new Publication ID."""
        await self.abort(reason)
        return await self._producer.publish_prefix(self.prefix, deterministic=self.deterministic)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Complete, or abort when the block raised or did not finish its segments."""
        if kind is not None:
            await self.abort("production failed")
        elif self._state is not PublicationState.WITHDRAWN:
            try:
                await self.complete()
            except ProductionError:
                await self.abort("production was not finished")
                raise

    # For the segments and the producer

    def _check_live(self) -> None:
        if self._state is not PublicationState.LIVE:
            raise ProductionError(f"publication {self.publication_id.hex()} is {self._state.value}")

    def begin(self) -> None:
        """Publish the first manifest and be found from now on."""
        self._publish_manifest_if_due()
        self._producer.directory.add(self._manifest_track)

    def end(self, code: PublishDoneCode, reason: str) -> None:
        """Withdraw all tracks and release what they retain."""
        is_live = self._state is PublicationState.LIVE
        self._state = PublicationState.WITHDRAWN
        for track in (*self._data_tracks.values(), self._manifest_track):
            self._producer.directory.remove(track)
            track.abort(code, reason)
        self._producer.count_released(self.stats.buffered_octets, is_live=is_live)
        self.stats.buffered_octets = 0

    def _new_track(self, name: bytes) -> TrackSource:
        return TrackSource(self.name.track(name, self._producer.config.namespace_form))

    def _publish_manifest_if_due(self) -> None:
        if not self._production.is_manifest_due:
            return
        version, manifest = self._production.take_manifest()
        payload = manifest.pieces(self._production.digests_json)
        if self._producer.signing_key is not None:
            from kvcs.cose import sign  # brings cbor2: only this needs it

            payload = [sign(b"".join(payload), self._producer.signing_key)]
        writer = self._manifest_track.open_group(
            version, publisher_priority=MANIFEST_PRIORITY, ends_group=True
        )
        writer.write(0, payload)
        writer.close()
        if version >= KEPT_MANIFESTS:
            self._manifest_track.evict_before(Location(version + 1 - KEPT_MANIFESTS, 0))
        self.stats.manifest_versions += 1
        self._producer.count_manifest()

    def _publish(
        self,
        segment: SegmentProduction,
        tracks: dict[DataTrackName, TrackSource],
        prepared: PreparedLayer,
    ) -> None:
        """Publish a whole layer (KVCS 3.3, 3.4). One step of the loop: all of it or nothing."""
        self._check_live()
        segment.check_turn(prepared.layer)
        octets = prepared.octets
        self._producer.check_room(octets)
        self._production.commit(segment, prepared)
        objects = 0
        for group in prepared.groups:
            writer = tracks[group.track].open_group(
                group_id_of(prepared.layer),
                subgroup_id=DATA_SUBGROUP_ID,
                publisher_priority=publisher_priority(prepared.layer, self.descriptor.layers),
            )
            writer.write_all(group.payloads)
            writer.end_of_group()
            writer.close()
            objects += len(group.payloads)
        self.stats.add_layer(objects, octets)
        self._producer.count_layer(objects, octets)
        self._publish_manifest_if_due()

    def _complete_segment(
        self, segment: SegmentProduction, tracks: dict[DataTrackName, TrackSource]
    ) -> None:
        self._check_live()
        self._production.complete_segment(segment)
        self._publish_manifest_if_due()
        for track in tracks.values():
            track.end(end_of_track(self.descriptor.layers))
        self._complete_if_all_there()

    def _complete_if_all_there(self) -> None:
        if self._state is PublicationState.LIVE and self._production.is_complete:
            self._state = PublicationState.COMPLETE
            self._manifest_track.end()
            self._producer.completed(self)


class Segment:
    """One pass over consecutive blocks of the context, published layer by layer (KVCS 3.3)."""

    def __init__(
        self,
        publication: Publication,
        production: SegmentProduction,
        tracks: dict[DataTrackName, TrackSource],
    ) -> None:
        self.publication = publication
        self._production = production
        self._tracks = tracks
        self._turn = asyncio.Lock()

    @property
    def first_block(self) -> int:
        """Its first block, counted from the start of the context."""
        return self._production.plan.span.first_block

    @property
    def blocks(self) -> int:
        """How many blocks it holds."""
        return self._production.plan.span.blocks

    @property
    def tokens(self) -> slice:
        """Its tokens' positions in the context."""
        start = self.first_block * self.publication.descriptor.block_tokens
        return slice(start, start + self._production.plan.tokens)

    @property
    def track_names(self) -> tuple[str, ...]:
        """Its data tracks, as in "k.raw.s0"."""
        return tuple(map(str, self._tracks))

    @property
    def next_layer(self) -> int:
        """The layer that is to be put next."""
        return self._production.next_layer

    @property
    def is_complete(self) -> bool:
        """Whether `complete` was called."""
        return self._production.is_complete

    async def put_layer(
        self, layer: int, k: AnyArray, v: AnyArray | None = None, *, borrow: bool = False
    ) -> Loan | None:
        """Publish one layer: the K and V tensors of exactly this segment's tokens.

        `k`, `v`: [tokens, heads, dim] or [heads, tokens, dim] as the descriptor's layout says; any
        strides; the descriptor's dtype; no `v` where the layer has none. Layers come in order. When
        this returns, the tensors may be overwritten: what is published are their octets of the
        time of the call. With `borrow` blocks that are contiguous in memory are read in place
        instead, and the `Loan` returned says when the tensors are free again.
        Cancelled: the layer is published whole or not at all; `next_layer` tells.
        Raises: TensorMismatch, ProductionError. Nothing is published then.
        """
        async with self._turn:
            self.publication._check_live()
            self._production.check_turn(layer)
            plan = self._production.plan

            def prepare(run: Run) -> PreparedLayer:
                return prepare_layer(plan, layer, k, v, borrow=borrow, run=run)

            prepared = await self.publication._producer.work(plan.layer_octets(layer), prepare)
            self.publication._publish(self._production, self._tracks, prepared)
            if not borrow:
                return None
            return Loan(
                exporter
                for exporter in prepared.exporters
                if isinstance(exporter, np.ndarray)
                and any(
                    np.may_share_memory(exporter, array) for array in (k, v) if array is not None
                )
            )

    async def complete(self) -> None:
        """End the segment: all its layers are there (KVCS 3.3, 3.6). Harmless twice.

        The last one completes the publication when the segments hold the whole prefix.
        Raises: ProductionError while layers lack.
        """
        async with self._turn:
            if not self.is_complete:
                self.publication._complete_segment(self._production, self._tracks)

    def __repr__(self) -> str:
        span = self._production.plan.span
        return (
            f"<Segment {span.segment}: blocks {span.first_block}..{span.stop_block - 1}, "
            f"{self.next_layer} layers>"
        )
