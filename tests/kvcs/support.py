"""What tests of producer and consumer share: small models, their tensors, their Objects."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from kvcs.assembly import Assembly, Outcome
from kvcs.destinations import Destinations
from kvcs.geometry import SegmentSpan
from kvcs.kvsp.codecs import CODECS, RAW
from kvcs.kvsp.descriptor import Descriptor
from kvcs.kvsp.identity import Prefix, Scope
from kvcs.kvsp.shapes import AnyArray, Component, Layout
from kvcs.production import Encoding, SegmentPlan, prepare_layer
from kvcs.stats import RetrievalStats
from kvcs.wanted import Lease, Verification, WantedTrack
from moqt.types import ObjectHeader

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvcs.destinations import Into

SCOPE = Scope(bytes(range(32)))


def describe(
    *,
    layers: int = 3,
    block_tokens: int = 4,
    kv_heads: int = 2,
    head_dim: int = 8,
    dtype: str = "bfloat16",
    **others: Any,
) -> Descriptor:
    return Descriptor(
        model="test",
        layers=layers,
        block_tokens=block_tokens,
        kv_heads=kv_heads,
        head_dim=head_dim,
        dtype=dtype,
        **others,
    )


def octets_of(array: AnyArray) -> bytes:
    return np.ascontiguousarray(array).reshape(-1).view("u1").tobytes()


def tensors(
    descriptor: Descriptor, layer: int, blocks: int, *, seed: int = 0
) -> tuple[AnyArray, AnyArray | None]:
    """Return K and V of a layer with any bit patterns, NaN payloads included."""
    geometry = descriptor.geometry(layer)
    tokens = blocks * descriptor.block_tokens
    rng = np.random.default_rng([seed, layer])

    def make(component: Component) -> AnyArray:
        shape = geometry.shape(component, tokens)
        octets = rng.integers(0, 256, int(np.prod(shape)) * geometry.dtype.itemsize, np.uint8)
        return octets.view(geometry.dtype).reshape(shape)

    k = make(Component.K)
    return k, make(Component.V) if geometry.has(Component.V) else None


def cut_tokens(descriptor: Descriptor, array: AnyArray, first: int, stop: int) -> AnyArray:
    return array[first:stop] if descriptor.layout is Layout.NHD else array[:, first:stop]


@dataclass(frozen=True)
class TestObject:
    """One Object of a prepared layer, by the track that it is in."""

    __test__ = False

    track: int
    header: ObjectHeader
    payload: bytes


@dataclass
class Bench:
    """An assembly with the Objects that fill it, all of one publication."""

    descriptor: Descriptor
    assembly: Assembly
    objects: list[TestObject]
    digests: dict[tuple[int, int], bytes]
    """By track and layer."""
    expected: list[tuple[AnyArray, AnyArray | None]]
    stats: RetrievalStats
    placed: dict[int, Lease] = field(default_factory=dict)
    at_once: ClassVar[bool] = False
    """Whether Objects are verified as they are received, or in steps."""

    def deliver(
        self, one: TestObject, holder: object = None, *, flip: int | None = None
    ) -> Outcome:
        """Bring an Object whole: place, octets, verdict. `flip`: the bit of its payload to flip."""
        lease = self.assembly.lease(one.track, one.header, holder)
        return self.finish(one, lease, flip=flip)

    def finish(self, one: TestObject, lease: Lease | None, *, flip: int | None = None) -> Outcome:
        octets = bytearray(one.payload)
        if flip is not None:
            octets[flip // 8] ^= 1 << flip % 8
        payload: memoryview | None = memoryview(octets)
        if lease is not None:
            at = 0
            for buffer in lease.buffers:
                buffer[:] = octets[at : at + len(buffer)]
                at += len(buffer)
            payload = None
        result = self.assembly.receive(
            one.track, one.header, lease=lease, payload=payload, at_once=self.at_once
        )
        if isinstance(result, Verification):
            result.run()
            return self.assembly.finish(result)
        return result

    def usable(self) -> list[int]:
        """Take the layers that are usable in order, and check their content."""
        taken = []
        while (layer := self.assembly.next_usable()) is not None:
            self.check(layer.index, layer.k, layer.v)
            taken.append(layer.index)
        return taken

    def check(self, index: int, k: AnyArray, v: AnyArray | None) -> None:
        tokens = self.assembly.blocks * self.descriptor.block_tokens
        expected_k, expected_v = self.expected[index]
        assert octets_of(k) == octets_of(cut_tokens(self.descriptor, expected_k, 0, tokens))
        assert (v is None) == (expected_v is None)
        if v is not None and expected_v is not None:
            assert octets_of(v) == octets_of(cut_tokens(self.descriptor, expected_v, 0, tokens))


def bench(
    descriptor: Descriptor | None = None,
    *,
    segments: Sequence[int] = (3,),
    layers: tuple[int, int] | None = None,
    blocks: int | None = None,
    codec: str = RAW.name,
    joint: bool = False,
    into: Into | None = None,
    require_listed: bool = False,
    seed: int = 0,
) -> Bench:
    """Return an assembly of `blocks` blocks of a publication with segments of so many blocks."""
    descriptor = descriptor or describe()
    total = sum(segments)
    wanted_blocks = total if blocks is None else blocks
    first_layer, last_layer = layers or (0, descriptor.layers - 1)
    stats = RetrievalStats()
    assembly = Assembly(
        descriptor,
        Destinations(
            descriptor,
            first_layer=first_layer,
            last_layer=last_layer,
            tokens=wanted_blocks * descriptor.block_tokens,
            into=into,
        ),
        first_layer=first_layer,
        last_layer=last_layer,
        blocks=wanted_blocks,
        require_listed=require_listed,
        stats=stats,
    )
    expected = [tensors(descriptor, layer, total, seed=seed) for layer in range(descriptor.layers)]
    objects: list[TestObject] = []
    digests: dict[tuple[int, int], bytes] = {}
    first = 0
    for number, count in enumerate(segments):
        span = SegmentSpan(segment=number, first_block=first, blocks=count)
        plan = SegmentPlan(
            descriptor=descriptor,
            span=span,
            encodings=(Encoding(CODECS.by_name(codec), joint),),
        )
        first += count
        if span.first_block >= wanted_blocks:
            continue
        tracks = {
            name: assembly.add_track(
                WantedTrack(
                    name=name,
                    codec=encoding.codec,
                    span=span,
                    blocks=min(count, wanted_blocks - span.first_block),
                )
            )
            for name, encoding in plan.tracks
        }
        assembly.cover(span)
        for layer in range(descriptor.layers):
            start = span.first_block * descriptor.block_tokens
            stop = span.stop_block * descriptor.block_tokens
            k, v = (
                None if array is None else cut_tokens(descriptor, array, start, stop)
                for array in expected[layer]
            )
            assert k is not None
            for group in prepare_layer(plan, layer, k, v).groups:
                track = tracks[group.track]
                digests[track, layer] = group.digests
                for block, buffers in enumerate(group.payloads):
                    payload = b"".join(buffers)
                    header = ObjectHeader(layer, block, 0, 0, len(payload))
                    objects.append(TestObject(track, header, payload))
    return Bench(descriptor, assembly, objects, digests, expected, stats)


def prefix_of(descriptor: Descriptor, blocks: int, *, scope: Scope = SCOPE) -> Prefix:
    return Prefix.of(scope, descriptor, prompt(descriptor, blocks))


def prompt(descriptor: Descriptor, blocks: int) -> list[int]:
    return list(range(7, 7 + blocks * descriptor.block_tokens))
