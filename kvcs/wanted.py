"""The wanted Objects of one data track: their places, and the checks of what arrives (KVCS 3.5)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

from kvcs.errors import CodecError, ObjectRejected
from kvcs.kvsp.codecs import RAW, Codec
from kvcs.kvsp.shapes import BlockShape
from kvcs.manifest import DIGEST_OCTETS
from kvcs.payload import HEADER_OCTETS, ExpectedTrack, verify_data

if TYPE_CHECKING:
    from kvcs.errors import RejectReason
    from kvcs.geometry import SegmentSpan
    from kvcs.kvsp.descriptor import Descriptor
    from kvcs.names import DataTrackName

__all__ = ["LayerMemory", "Lease", "ObjectState", "TrackState", "Verification", "WantedTrack"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedTrack:
    """A data track to assemble: of a segment, the first `blocks` blocks but for the first `skip`.

    `is_part`: others have the rest of the track's blocks.
    """

    name: DataTrackName
    codec: Codec
    span: SegmentSpan
    blocks: int
    skip: int = 0
    is_part: bool = False

    def __contains__(self, block: int) -> bool:
        return self.skip <= block < self.blocks


class ObjectState(IntEnum):
    """Where a wanted Object stands."""

    ABSENT = 0
    LEASED = 1
    CHECKING = 2
    """It is whole, and being verified."""
    VERIFIED = 3
    ELSEWHERE = 4
    """It belongs to another part of the track."""


class Lease:
    """A place that is out. `buffers`: where the payload goes, 68 header octets, then Data.

    `is_direct`: Data goes to the tensors' own memory, or, when there is no Data in `buffers`, is to
    be written there once it was checked: the tensors' strides leave no runs.
    """

    __slots__ = ("block", "buffers", "holder", "is_direct", "layer", "track")

    def __init__(
        self,
        track: int,
        layer: int,
        block: int,
        holder: object,
        *,
        runs: tuple[memoryview, ...] | None,
    ) -> None:
        self.track = track
        self.layer = layer
        self.block = block
        self.holder = holder
        self.buffers = (memoryview(bytearray(HEADER_OCTETS)), *(runs or ()))
        self.is_direct = runs is not None

    @property
    def runs(self) -> tuple[memoryview, ...] | None:
        """The tensors' own memory; None: their strides leave no runs."""
        return self.buffers[1:] if self.is_direct else None


class TrackState:
    """One wanted track's Objects. Lists are by layer, from the first wanted one on."""

    def __init__(self, wanted: WantedTrack, descriptor: Descriptor, layers: range) -> None:
        component = wanted.name.component
        block_tokens = descriptor.block_tokens
        self.wanted = wanted
        self.layers = layers
        self.expected = ExpectedTrack(
            component=component,
            codec=wanted.codec.value,
            span=wanted.span,
            layers=descriptor.layers,
            block_tokens=block_tokens,
        )
        geometries = [descriptor.geometry(layer) for layer in layers]
        self.shapes = [BlockShape(geometry, component, block_tokens) for geometry in geometries]
        is_raw = wanted.codec is RAW
        self.placed_octets = [
            HEADER_OCTETS + shape.raw_octets if is_raw else -1 for shape in self.shapes
        ]
        """Payload octets of an Object that may go to its place as it comes; -1: it is encoded."""
        self.memory: list[LayerMemory | None] = [None] * len(layers)
        """Where the wanted blocks of a layer go, once that is known."""
        self.parts = [geometry.parts(component) for geometry in geometries]
        count = max(wanted.blocks - wanted.skip, 0)
        self.sizes = tuple(count if parts else 0 for parts in self.parts)
        """Objects that are wanted."""
        self.pending = list(self.sizes)
        """Objects that are not verified, by layer."""
        self.all_pending = sum(self.sizes)
        """The same over all layers."""
        self.checking = 0
        """Of these, the ones being verified."""
        skipped = bytes((ObjectState.ELSEWHERE,)) * wanted.skip
        self.states = [
            bytearray(skipped) + bytearray(count) if size else bytearray() for size in self.sizes
        ]
        """By block, from the segment's first one on."""
        self.digests = [bytearray(DIGEST_OCTETS * size) for size in self.sizes]
        """Data Digests of what is verified, from the first wanted block on."""
        self.listed: list[bytes | None] = [None] * len(layers)
        """Data Digests of the layer's Objects as the manifest has them, as `digests`."""
        self.recomputed: list[set[int]] = [set() for _ in layers]
        self.reasons: dict[tuple[int, int], RejectReason] = {}
        self.leases: dict[tuple[int, int], Lease] = {}
        self.spares: dict[tuple[int, int], Verification] = {}

    def first_token(self, block: int) -> int:
        """Return the position in the context of a block's first token."""
        return self.wanted.span.token_start(block, self.expected.block_tokens)

    def digest_octets(self, block: int) -> slice:
        """Return where the digest of a block stands in `digests` and `listed`."""
        start = (block - self.wanted.skip) * DIGEST_OCTETS
        return slice(start, start + DIGEST_OCTETS)

    def is_listed_otherwise(self, at: int, block: int, digest: bytes) -> bool:
        """Whether the manifest lists another Data Digest for an Object."""
        listed = self.listed[at]
        return listed is not None and listed[self.digest_octets(block)] != digest

    def is_settled(self, at: int, *, require_listed: bool) -> bool:
        """Whether nothing of a layer is pending in this track, and no listing is waited for."""
        if self.pending[at]:
            return False
        return (
            not require_listed
            or self.listed[at] is not None
            or len(self.recomputed[at]) == self.sizes[at]
        )


@dataclass(frozen=True, slots=True)
class LayerMemory:
    """The memory of a layer's blocks, where it is runs without gaps from block to block."""

    views: tuple[memoryview, ...]
    """In the order of an Object's Data, from the segment's first block on; none: there are gaps."""
    octets: tuple[int, ...]
    """Of one block, in each view."""

    def block(self, block: int) -> tuple[memoryview, ...]:
        """Return the place of a block's Data."""
        if len(self.views) == 1:
            start = block * self.octets[0]
            return (self.views[0][start : start + self.octets[0]],)
        return tuple(
            view[block * octets : (block + 1) * octets]
            for view, octets in zip(self.views, self.octets, strict=True)
        )


class Verification:
    """The checks of one Object that take time: hash and decode.

    `run` is pure but for the place it holds, so it may be in any thread; `Assembly.finish` takes
    the result.
    """

    __slots__ = (
        "codec",
        "data",
        "digest",
        "error",
        "is_placed",
        "is_verified",
        "lease",
        "octets",
        "raw",
        "shape",
        "where",
    )

    def __init__(
        self,
        where: tuple[int, int, int],
        digest: bytes,
        octets: int,
        data: tuple[memoryview, ...],
        *,
        lease: Lease | None,
        is_placed: bool,
        codec: Codec,
        shape: BlockShape,
    ) -> None:
        self.where = where
        """Track, layer, block."""
        self.digest = digest
        self.octets = octets
        """Octets to hash."""
        self.data = data
        self.lease = lease
        self.is_placed = is_placed
        """Whether `data` is in its place already."""
        self.codec = codec
        self.shape = shape
        self.raw: tuple[memoryview, ...] = ()
        """The raw sections, where they have yet to be written to their place."""
        self.is_verified = False
        self.error: ObjectRejected | None = None

    def run(self) -> None:
        """Check the Data Digest, then bring Data to its place or into memory of its own."""
        try:
            verify_data(self.digest, self.data)
            if not self.is_placed:
                self._bring()
            self.is_verified = True
        except ObjectRejected as error:
            self.error = error
        except CodecError as error:
            self.error = ObjectRejected(error.reason, str(error))

    def _bring(self) -> None:
        whole = self.data[0] if len(self.data) == 1 else memoryview(b"".join(self.data))
        if self.lease is not None and self.lease.runs is not None:
            self.codec.decode_into(whole, self.shape, self.lease.runs)
            self.is_placed = True
        elif self.codec is RAW:
            self.raw = (whole,)
        else:
            self.raw = (self.codec.decode(whole, self.shape),)
