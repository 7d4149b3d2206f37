"""A producer without I/O: layers to Objects, whose turn it is, when a manifest is due (KVCS 3.3-6).

`prepare_layer` is pure and runs anywhere. `Production` keeps the order of one publication: layers
of a segment one after the other, each whole or not at all, and a manifest version whenever a
segment is added or completes and at least every `layers_per_manifest` completed layers.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from kvcs.errors import ProductionError, TensorMismatch
from kvcs.geometry import SegmentSpan
from kvcs.jobs import run_here
from kvcs.kvsp.codecs import RAW, Codec
from kvcs.kvsp.shapes import AnyArray, BlockShape, Component
from kvcs.kvsp.tensors import LayerTensor
from kvcs.manifest import Manifest, SegmentEntry, dump_digests
from kvcs.names import DataTrackName
from kvcs.payload import data_digest, pack_headers
from moqt.session.publish.payloads import EqualPayloads

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvcs.jobs import Run
    from kvcs.kvsp.codecs import Octets
    from kvcs.kvsp.descriptor import Descriptor
    from kvcs.kvsp.identity import Prefix

__all__ = [
    "Encoding",
    "PreparedGroup",
    "PreparedLayer",
    "Production",
    "SegmentPlan",
    "SegmentProduction",
    "prepare_layer",
]


@dataclass(frozen=True, slots=True)
class Encoding:
    """One way in which a segment is offered: its codec, and K and V in one track or in two."""

    codec: Codec = RAW
    joint: bool = False

    @property
    def components(self) -> tuple[Component, ...]:
        """The tracks of this encoding."""
        return (Component.KV,) if self.joint else (Component.K, Component.V)


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentPlan:
    """What one segment holds and how it is offered. All that `prepare_layer` needs to know."""

    descriptor: Descriptor
    span: SegmentSpan
    encodings: tuple[Encoding, ...]

    @property
    def tracks(self) -> tuple[tuple[DataTrackName, Encoding], ...]:
        """The data tracks in order; there is no V track when no layer has a V tensor."""
        return tuple(
            (DataTrackName(component, encoding.codec.name, self.span.segment), encoding)
            for encoding in self.encodings
            for component in encoding.components
            if component is not Component.V or self.has_v
        )

    @property
    def has_v(self) -> bool:
        """Whether any layer has a V tensor."""
        descriptor = self.descriptor
        return any(
            descriptor.geometry(layer).has(Component.V) for layer in range(descriptor.layers)
        )

    @property
    def tokens(self) -> int:
        """Tokens of the segment."""
        return self.span.blocks * self.descriptor.block_tokens

    def layer_octets(self, layer: int) -> int:
        """Octets of the raw K and V tensors of one layer."""
        return self.descriptor.geometry(layer).raw_octets(Component.KV, self.tokens)


@dataclass(frozen=True, slots=True)
class PreparedGroup:
    """The Objects of one layer in one track; Object ID is the position. Empty without a tensor."""

    track: DataTrackName
    payloads: Sequence[tuple[Octets, ...]]
    """Header, then Data, as buffers that are never copied again."""
    octets: int
    """Of all payloads."""
    digests: bytes
    """The Data Digests one after the other, as the manifest lists them."""


@dataclass(frozen=True, slots=True)
class PreparedLayer:
    """One layer, ready to be published in all tracks of its segment.

    `exporters`: what the payloads lend memory from, for whoever watches when it is free again.
    """

    layer: int
    groups: tuple[PreparedGroup, ...]
    exporters: tuple[object, ...]

    @property
    def octets(self) -> int:
        """Payload octets of all tracks."""
        return sum(group.octets for group in self.groups)


PART_OCTETS = 512 << 10
"""Raw octets of one job of `prepare_layer`: a fraction of a millisecond of SHA-256."""


def prepare_layer(
    plan: SegmentPlan,
    layer: int,
    k: AnyArray,
    v: AnyArray | None = None,
    *,
    borrow: bool = False,
    run: Run = run_here,
) -> PreparedLayer:
    """Cut, encode and hash one layer of a segment. Pure: it may run in any thread.

    `k`, `v`: [tokens, heads, dim] or [heads, tokens, dim] as the descriptor's layout says, of
    exactly the segment's tokens; `v` None where the layer has no V tensor. Without `borrow` the
    result holds the octets of this moment; with it, blocks that are contiguous in the arrays stay
    there, and must not change while `exporters` live. `run` runs jobs that do not depend on each
    other: K and V are gathered by one each, then runs of blocks are encoded and hashed.
    Raises: TensorMismatch; IndexError for a layer that does not exist; CodecError.
    """
    geometry = plan.descriptor.geometry(layer)
    if v is None and geometry.has(Component.V):
        raise TensorMismatch(f"layer {layer} has a V tensor (v_head_dim {geometry.v_head_dim})")
    if v is not None and not geometry.has(Component.V):
        raise TensorMismatch(f"layer {layer} has no V tensor (v_head_dim 0): pass no v")
    copy = not borrow and any(encoding.codec is RAW for encoding in plan.encodings)
    tensors = [
        _checked(plan, layer, LayerTensor(array, geometry, component))
        for component, array in ((Component.K, k), (Component.V, v))
        if array is not None
    ]
    gathered = run([partial(_gather, plan, tensor, copy=copy) for tensor in tensors])
    sections = {tensor.component: octets for tensor, octets in zip(tensors, gathered, strict=True)}

    works = [
        _Work(
            track,
            encoding.codec,
            BlockShape(geometry, track.component, plan.descriptor.block_tokens),
            plan.span.blocks,
            [sections[part] for part in geometry.parts(track.component)],
        )
        for track, encoding in plan.tracks
    ]
    jobs = [(work, blocks) for work in works for blocks in work.runs()]
    done = run([partial(work.encode, blocks) for work, blocks in jobs])
    for (work, _), (data, digests) in zip(jobs, done, strict=True):
        work.data += data
        work.digests += digests
    groups = tuple(work.group(plan, layer) for work in works)
    return PreparedLayer(layer, groups, tuple(octets.obj for octets in gathered))


def _checked(plan: SegmentPlan, layer: int, tensor: LayerTensor) -> LayerTensor:
    if tensor.tokens != plan.tokens:
        raise TensorMismatch(
            f"{tensor.component.text} array of layer {layer} has {tensor.tokens} tokens, segment "
            f"{plan.span.segment} has {plan.span.blocks} blocks of "
            f"{plan.descriptor.block_tokens}: {plan.tokens}"
        )
    return tensor


def _gather(plan: SegmentPlan, tensor: LayerTensor, *, copy: bool) -> memoryview:
    return tensor.sections(0, plan.descriptor.block_tokens, plan.span.blocks, copy=copy)


class _Work:
    """The Objects of one layer in one track, in the making.

    `parts`: the raw sections of all blocks, one after the other: K's, then V's, as the component
    has them; none for a V that does not exist.
    """

    def __init__(
        self,
        track: DataTrackName,
        codec: Codec,
        shape: BlockShape,
        blocks: int,
        parts: list[memoryview],
    ) -> None:
        self.data: list[list[Octets]] = []
        """By block; of codec raw it's in `parts`."""
        self.digests = bytearray()
        self._track = track
        self._codec = codec
        self._shape = shape
        self._blocks = blocks if parts else 0
        self._parts = parts
        self._sections = EqualPayloads(self._blocks, parts)

    def runs(self) -> Iterator[range]:
        """Yield runs of blocks of some PART_OCTETS; none where the layer has no such tensor."""
        step = max(1, PART_OCTETS // max(1, self._shape.raw_octets))
        for first in range(0, self._blocks, step):
            yield range(first, min(first + step, self._blocks))

    def encode(self, blocks: range) -> tuple[list[list[Octets]], bytes]:
        """Return the Data of a run of blocks and its digests: the one pass over the octets."""
        kept: list[list[Octets]] = []
        digests: list[bytes] = []
        for block in blocks:
            data = self._codec.encode(self._sections.cut(block), self._shape)
            digests.append(data_digest(data))
            if self._codec is not RAW:
                kept.append(data)
        return kept, b"".join(digests)

    def group(self, plan: SegmentPlan, layer: int) -> PreparedGroup:
        """Return the Objects: what was encoded, behind their headers."""
        digests = bytes(self.digests)
        if self._codec is RAW:
            lengths = [self._shape.raw_octets] * self._blocks
        else:
            lengths = [sum(map(len, data)) for data in self.data]
        heads = pack_headers(
            lengths,
            digests,
            component=self._track.component,
            layer=layer,
            span=plan.span,
            block_tokens=plan.descriptor.block_tokens,
            codec=self._codec.value,
        )
        payloads: Sequence[tuple[Octets, ...]]
        if self._codec is RAW:
            payloads = EqualPayloads(self._blocks, (heads, *self._parts))
        else:
            each = EqualPayloads(self._blocks, (heads,))
            payloads = [(*head, *data) for head, data in zip(each, self.data, strict=True)]
        return PreparedGroup(self._track, payloads, len(heads) + sum(lengths), digests)


class SegmentProduction:
    """How far one segment has come. Made by `Production.add_segment`."""

    def __init__(self, plan: SegmentPlan, block_keys_sha256: bytes) -> None:
        self.plan = plan
        self.next_layer = 0
        """The layer that `Production.commit` expects next."""
        self.is_complete = False
        self._block_keys_sha256 = block_keys_sha256
        self._digests: dict[DataTrackName, list[bytes]] = {track: [] for track, _ in plan.tracks}

    def check_turn(self, layer: int) -> None:
        """Raise ProductionError unless `layer` is the next one (KVCS 3.3)."""
        layers = self.plan.descriptor.layers
        where = f"segment {self.plan.span.segment}"
        if self.is_complete:
            raise ProductionError(f"{where} is complete: layer {layer} cannot be put")
        if not 0 <= layer < layers:
            raise ProductionError(f"{where}: there is no layer {layer}, layers are 0..{layers - 1}")
        if layer < self.next_layer:
            raise ProductionError(
                f"{where}: layer {layer} was put already; an Object is never modified (KVCS 3.4)"
            )
        if layer > self.next_layer:
            raise ProductionError(
                f"{where}: layer {layer} is out of turn, expected {self.next_layer}: Groups of a "
                "track are published in order (KVCS 3.3)"
            )

    def add(self, prepared: PreparedLayer) -> None:
        """Take note of a layer in turn that is being published."""
        for group in prepared.groups:
            self._digests[group.track].append(group.digests)
        self.next_layer += 1

    def entry(self) -> SegmentEntry:
        """Return the segment as the next manifest version lists it."""
        return SegmentEntry(
            span=self.plan.span,
            block_keys_sha256=self._block_keys_sha256,
            tracks=tuple(track for track, _ in self.plan.tracks),
            complete=self.is_complete,
            object_digests={track: tuple(groups) for track, groups in self._digests.items()},
        )


class Production:
    """The order of one publication: its segments, their layers, its manifest versions."""

    def __init__(
        self,
        prefix: Prefix,
        *,
        deterministic: bool = False,
        layers_per_manifest: int = 8,
        max_segments: int = 4096,
    ) -> None:
        self.prefix = prefix
        self.deterministic = deterministic
        self.segments: list[SegmentProduction] = []
        self.digests_json: dict[bytes, bytes] = {}
        """By the digests of a Group: their JSON, for `Manifest.pieces`."""
        self._layers_per_manifest = layers_per_manifest
        self._max_segments = max_segments
        self._next_version = 0
        self._layers_unlisted = 0
        self._is_manifest_due = True

    # Queries

    @property
    def covered_blocks(self) -> int:
        """Blocks of the prefix that segments hold so far, from the first one on."""
        return self.segments[-1].plan.span.stop_block if self.segments else 0

    @property
    def is_complete(self) -> bool:
        """Whether segments hold the whole prefix and all are complete."""
        return self.covered_blocks == self.prefix.blocks and all(
            segment.is_complete for segment in self.segments
        )

    @property
    def is_manifest_due(self) -> bool:
        """Whether a manifest version is to be published now (KVCS 3.6)."""
        return self._is_manifest_due

    # Commands

    def add_segment(
        self, *, first_block: int, blocks: int, encodings: Sequence[Encoding]
    ) -> SegmentProduction:
        """Add the next segment: one pass over `blocks` blocks from `first_block` of the context.

        Raises: ProductionError for an empty one, one that overlaps or leaves a gap, one that
        reaches behind the prefix, no or repeated encodings, or one segment too many.
        """
        number = len(self.segments)
        if number >= self._max_segments:
            raise ProductionError(f"a publication has at most {self._max_segments} segments")
        if blocks < 1:
            raise ProductionError(f"segment {number} has {blocks} blocks, at least 1 is needed")
        if first_block < self.covered_blocks:
            raise ProductionError(
                f"segment {number} from block {first_block} on overlaps segment {number - 1}, "
                f"which ends before block {self.covered_blocks}"
            )
        if first_block > self.covered_blocks:
            raise ProductionError(
                f"segment {number} begins at block {first_block}, expected "
                f"{self.covered_blocks}: segments follow each other without gaps"
            )
        if first_block + blocks > self.prefix.blocks:
            raise ProductionError(
                f"segment {number} ends at block {first_block + blocks - 1}, the prefix has "
                f"{self.prefix.blocks} full blocks"
            )
        chosen = tuple(encodings)
        if not chosen:
            raise ProductionError(f"segment {number} has no encoding")
        plan = SegmentPlan(
            descriptor=self.prefix.descriptor,
            span=SegmentSpan(segment=number, first_block=first_block, blocks=blocks),
            encodings=chosen,
        )
        names = [track for track, _ in plan.tracks]
        if len(set(names)) != len(names):
            raise ProductionError(f"segment {number} has one encoding twice")
        segment = SegmentProduction(plan, self.prefix.block_keys_sha256(first_block, blocks))
        self.segments.append(segment)
        self._is_manifest_due = True
        return segment

    def commit(self, segment: SegmentProduction, prepared: PreparedLayer) -> None:
        """Take note of a layer that is published now. Raises: ProductionError when out of turn."""
        segment.check_turn(prepared.layer)
        segment.add(prepared)
        for group in prepared.groups:
            self.digests_json[group.digests] = dump_digests(group.digests)
        self._layers_unlisted += 1
        if self._layers_unlisted >= self._layers_per_manifest:
            self._is_manifest_due = True

    def complete_segment(self, segment: SegmentProduction) -> bool:
        """Complete a segment; False when it is already. Raises: ProductionError if layers lack."""
        if segment.is_complete:
            return False
        layers = segment.plan.descriptor.layers
        if segment.next_layer < layers:
            raise ProductionError(
                f"segment {segment.plan.span.segment} has {segment.next_layer} of {layers} layers"
            )
        segment.is_complete = True
        self._is_manifest_due = True
        return True

    def check_complete(self) -> None:
        """Raise ProductionError, saying what lacks, unless the whole prefix is published."""
        if self.covered_blocks < self.prefix.blocks:
            raise ProductionError(
                f"blocks {self.covered_blocks}..{self.prefix.blocks - 1} are in no segment"
            )
        for segment in self.segments:
            if not segment.is_complete:
                raise ProductionError(f"segment {segment.plan.span.segment} is not complete")

    def take_manifest(self) -> tuple[int, Manifest]:
        """Return the next version and its Group ID; it counts as published (KVCS 3.6)."""
        version = self._next_version
        self._next_version += 1
        self._layers_unlisted = 0
        self._is_manifest_due = False
        manifest = Manifest(
            descriptor=self.prefix.descriptor,
            deterministic=self.deterministic,
            segments=tuple(segment.entry() for segment in self.segments),
        )
        return version, manifest
