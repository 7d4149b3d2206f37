"""Tensors of all kinds arrive bit for bit, in the caller's own arrays too (KVCS 3.5, 5.4)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import numpy as np
import pytest

from kvcs.config import ConsumerConfig
from kvcs.kvsp.shapes import DTYPES, Layout
from tests.kvcs.stage import staged, take
from tests.kvcs.support import describe, octets_of, prompt

if TYPE_CHECKING:
    from kvcs.kvsp.shapes import AnyArray
    from moqt.tls import CertificatePair

pytestmark = pytest.mark.usefixtures("no_leaks")


def every_pattern(dtype: np.dtype[np.generic]) -> AnyArray:
    """Return 2**16 elements: each bit pattern of narrow types, each kind of NaN of float32."""
    count = 1 << 16
    if dtype.itemsize < 4:
        patterns: AnyArray = np.arange(count, dtype=f"<u{dtype.itemsize}")
    else:
        payloads = np.arange(count, dtype="<u4") * 127 + 1
        patterns = payloads | np.uint32(0x7F800000) | (payloads << np.uint32(31))
    return patterns.view(dtype)


@pytest.mark.parametrize("codec", ["raw", "zstd", "bszstd"])
@pytest.mark.parametrize("dtype", DTYPES)
async def test_every_bit_pattern_survives_nan_payloads_included(
    certificate: CertificatePair, dtype: str, codec: str
) -> None:
    descriptor = describe(layers=1, block_tokens=16, kv_heads=16, head_dim=32, dtype=dtype)
    k = every_pattern(descriptor.dtype).reshape(128, 16, 32)
    v = k[::-1]
    if descriptor.dtype.kind not in "iu":
        assert np.isnan(k.astype(np.float32)).any()
    async with (
        asyncio.timeout(20),
        staged(certificate, descriptor) as stage,
        stage.consumer() as consumer,
    ):
        publication = await stage.publish(8)
        segment = publication.segment(codec=codec)
        await segment.put_layer(0, k, v)
        await segment.complete()
        retrieval = await consumer.retrieve(descriptor, prompt(descriptor, 8))
        (layer,) = [layer async for layer in retrieval]
        assert layer.k.dtype == descriptor.dtype
        assert octets_of(layer.k) == octets_of(k)
        assert layer.v is not None
        assert octets_of(layer.v) == octets_of(v)


@pytest.mark.parametrize("codec", ["raw", "zstd"])
@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("head_dim", [8, 512], ids=["short runs", "long runs"])
async def test_strided_arrays_of_the_caller_are_filled_and_nothing_beside_them(
    certificate: CertificatePair, head_dim: int, layout: Layout, codec: str
) -> None:
    layers, blocks, room = 2, 3, 20
    descriptor = describe(layers=layers, head_dim=head_dim, layout=layout)
    tokens = blocks * descriptor.block_tokens
    if layout is Layout.NHD:  # tokens of all layers, K and V lie between each other
        cache = np.zeros((room, layers, 2, 2, head_dim), "u2").view(descriptor.dtype)
        into = {at: (cache[:, at, 0], cache[:, at, 1]) for at in range(layers)}
    else:
        cache = np.zeros((2, layers, 2, room, head_dim), "u2").view(descriptor.dtype)
        into = {at: (cache[at, :, 0], cache[at, :, 1]) for at in range(layers)}
    assert not into[0][0].flags.c_contiguous
    async with (
        asyncio.timeout(20),
        staged(certificate, descriptor) as stage,
        stage.consumer(config=ConsumerConfig(discovery_settle_s=0.05, thread_octets=0)) as consumer,
    ):
        publication = await stage.publish(blocks)
        segment = publication.segment(codec=codec)
        retrieval = await consumer.retrieve(descriptor, prompt(descriptor, blocks), into=into)
        for layer in range(layers):
            await segment.put_layer(layer, *stage.layer(layer, blocks))
        await segment.complete()
        async for usable in retrieval:
            assert np.shares_memory(usable.k, into[usable.index][0])
        for at in range(layers):
            for given, published in zip(into[at], stage.layer(at, blocks), strict=True):
                assert published is not None
                ours = given if layout is Layout.NHD else given.transpose(1, 0, 2)
                theirs = published if layout is Layout.NHD else published.transpose(1, 0, 2)
                assert octets_of(ours[:tokens]) == octets_of(theirs)
                assert not octets_of(ours[tokens:]).strip(b"\0")
        assert retrieval.stats.buffered_octets == 0


async def test_layers_of_their_own_geometry_arrive_in_the_heads_first_layout(
    certificate: CertificatePair,
) -> None:
    descriptor = describe(
        layers=4,
        layout=Layout.HND,
        layer_overrides={
            0: {"kv_heads": 1},
            2: {"v_head_dim": 0, "head_dim": 24},
            3: {"v_head_dim": 16},
        },
    )
    async with (
        asyncio.timeout(20),
        staged(certificate, descriptor) as stage,
        stage.consumer() as consumer,
    ):
        await stage.publish_all(2, 1)
        retrieval = await consumer.retrieve(descriptor, prompt(descriptor, 3))
        assert await take(retrieval, descriptor) == [0, 1, 2, 3]
        assert retrieval.stats.objects == (4 + 3) * 3
