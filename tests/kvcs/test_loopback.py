"""Producer and consumer over real connections: what arrives, when, and how often (KVCS 3, 5)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from kvcs.config import ConsumerConfig
from kvcs.geometry import group_id_of, publisher_priority
from kvcs.kvsp.shapes import DTYPES, Layout
from kvcs.production import prepare_layer
from kvcs.publication import PublicationState
from tests.kvcs.stage import Stage, produce, staged, take, until
from tests.kvcs.support import describe, octets_of, prompt

if TYPE_CHECKING:
    from kvcs.publisher import Segment
    from moqt.tls import CertificatePair

pytestmark = [pytest.mark.usefixtures("no_leaks")]


async def test_layers_arrive_while_later_ones_are_still_computed(
    certificate: CertificatePair,
) -> None:
    async with staged(certificate, describe(layers=4)) as stage, stage.consumer() as consumer:
        publication = await stage.publish(4)
        segment = publication.segment()
        retrieval = await consumer.retrieve(stage.descriptor, prompt(stage.descriptor, 4))
        for layer in range(4):
            await segment.put_layer(layer, *stage.layer(layer, 4))
            usable = await anext(retrieval)
            assert usable.index == layer == segment.next_layer - 1
            assert octets_of(usable.k) == octets_of(stage.layer(layer, 4)[0])
        await segment.complete()
        assert await take(retrieval, stage.descriptor) == []
        assert retrieval.missing == ()
        assert retrieval.stats.objects == retrieval.stats.objects_received == 4 * 4 * 2
        assert publication.state is PublicationState.COMPLETE


def put_half(segment: Segment, layer: int, stage: Stage, *, half: int) -> None:
    """Publish the first or second half of a layer's Objects, as no producer of ours would."""
    production = segment._production
    prepared = prepare_layer(production.plan, layer, *stage.layer(layer, 4))
    for group in prepared.groups:
        track = segment._tracks[group.track]
        if half == 0:
            writer = track.open_group(
                group_id_of(layer),
                publisher_priority=publisher_priority(layer, stage.descriptor.layers),
            )
            track.half = writer  # type: ignore[attr-defined]
        writer = track.half  # type: ignore[attr-defined]
        for block in (0, 1) if half == 0 else (2, 3):
            writer.write(block, group.payloads[block])
        if half == 1:
            writer.end_of_group()
            writer.close()
    if half == 1:
        segment.publication._production.commit(production, prepared)


async def test_who_joins_in_the_middle_of_a_layer_gets_every_object_once(
    certificate: CertificatePair,
) -> None:
    """K5.2#3."""
    async with staged(certificate, describe()) as stage, stage.consumer() as consumer:
        publication = await stage.publish(4)
        segment = publication.segment()
        await segment.put_layer(0, *stage.layer(0, 4))
        put_half(segment, 1, stage, half=0)
        retrieval = await consumer.retrieve(stage.descriptor, prompt(stage.descriptor, 4))
        await until(lambda: retrieval.stats.objects == (4 + 2) * 2)
        put_half(segment, 1, stage, half=1)
        await segment.put_layer(2, *stage.layer(2, 4))
        await segment.complete()
        assert await take(retrieval, stage.descriptor) == [0, 1, 2]
        stats = retrieval.stats
        assert (stats.objects, stats.objects_received, stats.duplicates) == (24, 24, 0)
        assert (stats.retries, stats.missing, stats.discarded) == (0, 0, 0)


async def test_who_joins_after_the_end_gets_all_by_fetch(certificate: CertificatePair) -> None:
    async with staged(certificate, describe()) as stage, stage.consumer() as consumer:
        await stage.publish_all(4)
        retrieval = await consumer.retrieve(stage.descriptor, prompt(stage.descriptor, 4))
        assert await take(retrieval, stage.descriptor) == [0, 1, 2]
        assert retrieval.stats.objects == retrieval.stats.objects_received == 24
        await until(lambda: consumer.stats.retrievals == 0)
        assert consumer.stats.completed == 1
        assert consumer.stats.objects == 24
        assert retrieval.stats.open_requests == 0
        assert not retrieval.is_signed


@pytest.mark.parametrize("max_filter_ranges", [32, 0])
async def test_some_layers_of_the_first_blocks_alone_can_be_had(
    certificate: CertificatePair, max_filter_ranges: int
) -> None:
    from moqt.session.config import SessionConfig

    session_config = SessionConfig(max_filter_ranges=max_filter_ranges)
    async with (
        staged(certificate, describe(layers=5), session_config=session_config) as stage,
        stage.consumer() as consumer,
    ):
        await stage.publish_all(4)
        retrieval = await consumer.retrieve(
            stage.descriptor, prompt(stage.descriptor, 4), layers=(1, 3), blocks=2
        )
        assert retrieval.tokens == 2 * stage.descriptor.block_tokens
        assert await take(retrieval, stage.descriptor) == [1, 2, 3]
        assert retrieval.stats.objects == 3 * 2 * 2
        # With ranges the peer leaves the rest out, without it comes and is thrown away.
        unwanted = retrieval.stats.objects_received - retrieval.stats.objects
        assert unwanted == retrieval.stats.discarded
        assert bool(unwanted) == (max_filter_ranges == 0)


@pytest.mark.parametrize("layers", [range(0, 2), (2, 2)])
async def test_some_layers_can_be_had_while_they_are_produced(
    certificate: CertificatePair, layers: range | tuple[int, int]
) -> None:
    async with staged(certificate, describe()) as stage, stage.consumer() as consumer:
        publication = await stage.publish(3)
        segment = publication.segment()
        await segment.put_layer(0, *stage.layer(0, 3))
        retrieval = await consumer.retrieve(
            stage.descriptor, prompt(stage.descriptor, 3), layers=layers, blocks=2
        )
        for layer in (1, 2):
            await segment.put_layer(layer, *stage.layer(layer, 3))
        wanted = list(layers) if isinstance(layers, range) else [2]
        assert await take(retrieval, stage.descriptor) == wanted


async def test_three_consumers_of_different_speed_get_all_and_none_slows_another(
    certificate: CertificatePair,
) -> None:
    descriptor = describe(layers=6, head_dim=1024)
    async with (
        staged(certificate, descriptor) as stage,
        stage.consumer() as fast,
        stage.consumer() as slow,
        stage.consumer() as idle,
    ):
        publication = await stage.publish(4)
        segment = publication.segment()
        tokens = prompt(descriptor, 4)
        retrievals = [await c.retrieve(descriptor, tokens) for c in (fast, slow, idle)]
        for layer in range(6):
            await segment.put_layer(layer, *stage.layer(layer, 4))
            assert (await anext(retrievals[0])).index == layer
            if layer % 2:
                assert (await anext(retrievals[1])).index == layer // 2
        await segment.complete()
        assert await take(retrievals[0], descriptor) == []
        assert await take(retrievals[1], descriptor) == [3, 4, 5]
        assert await take(retrievals[2], descriptor) == list(range(6))
        for retrieval, consumer in zip(retrievals, (fast, slow, idle), strict=True):
            assert retrieval.stats.objects == retrieval.stats.objects_received == 6 * 4 * 2
            assert consumer.session.stats.octets_unread == 0
        # What is held for all of them is held once.
        assert stage.producer.stats.buffered_octets == publication.stats.octets


async def test_a_chunked_prefill_of_three_segments_becomes_one_cache(
    certificate: CertificatePair,
) -> None:
    """K3.3#3."""
    async with staged(certificate, describe()) as stage, stage.consumer() as consumer:
        publication = await stage.publish(6)
        retrieval = await consumer.retrieve(stage.descriptor, prompt(stage.descriptor, 6))
        for blocks in (2, 1, 3):
            await produce(publication, blocks)
            assert publication.segments[-1].is_complete
        assert await take(retrieval, stage.descriptor) == [0, 1, 2]
        late = await consumer.retrieve(stage.descriptor, prompt(stage.descriptor, 6), blocks=3)
        assert await take(late, stage.descriptor) == [0, 1, 2]
        assert late.stats.objects == late.stats.objects_received == 3 * 3 * 2
        assert [t for s in publication.segments for t in s.track_names] == [
            f"{component}.raw.s{number}" for number in range(3) for component in "kv"
        ]


@pytest.mark.parametrize("dtype", DTYPES)
async def test_every_dtype_arrives_bit_exact(certificate: CertificatePair, dtype: str) -> None:
    descriptor = describe(dtype=dtype, layout=Layout.HND)
    async with staged(certificate, descriptor) as stage, stage.consumer() as consumer:
        await stage.publish_all(2)
        retrieval = await consumer.retrieve(descriptor, prompt(descriptor, 2))
        assert await take(retrieval, descriptor) == [0, 1, 2]


@pytest.mark.parametrize(
    "members",
    [
        {"v_head_dim": 0, "kv_heads": 1, "head_dim": 24},
        {"layers": 1},
        {"layer_overrides": {1: {"v_head_dim": 0}, 2: {"kv_heads": 1, "head_dim": 4}}},
        {"block_tokens": 1},
    ],
    ids=["MLA", "one layer", "mixed layers", "one token a block"],
)
async def test_other_shapes_arrive_too(
    certificate: CertificatePair, members: dict[str, int]
) -> None:
    descriptor = describe(**members)  # type: ignore[arg-type]
    async with staged(certificate, descriptor) as stage, stage.consumer() as consumer:
        publication = await stage.publish(1)
        live = await consumer.retrieve(descriptor, prompt(descriptor, 1))
        await produce(publication)
        layers = list(range(descriptor.layers))
        assert await take(live, descriptor) == layers
        late = await consumer.retrieve(descriptor, prompt(descriptor, 1))
        assert await take(late, descriptor) == layers


@pytest.mark.parametrize("codec", ["zstd", "bszstd"])
@pytest.mark.parametrize("joint", [False, True])
async def test_codecs_and_joint_tracks_arrive_bit_exact(
    certificate: CertificatePair, codec: str, joint: bool
) -> None:
    async with (
        staged(certificate, describe()) as stage,
        stage.consumer(config=ConsumerConfig(thread_octets=0)) as consumer,
    ):
        publication = await stage.publish(3)
        await produce(publication, codec=codec, joint=joint)
        retrieval = await consumer.retrieve(stage.descriptor, prompt(stage.descriptor, 3))
        assert await take(retrieval, stage.descriptor) == [0, 1, 2]


async def test_the_consumer_takes_the_encoding_that_it_prefers(
    certificate: CertificatePair,
) -> None:
    """K3.2#3, K3.2#4."""
    async with staged(certificate, describe()) as stage:
        publication = await stage.publish(2)
        await produce(publication, also=[("zstd", True), ("zstd", False)])
        config = ConsumerConfig(codecs=("zstd",), prefer_joint=True, discovery_settle_s=0.05)
        async with stage.consumer(config=config) as consumer:
            retrieval = await consumer.retrieve(stage.descriptor, prompt(stage.descriptor, 2))
            assert await take(retrieval, stage.descriptor) == [0, 1, 2]
            assert retrieval.stats.objects == 3 * 2


async def test_the_callers_arrays_are_filled_and_handed_back(certificate: CertificatePair) -> None:
    descriptor = describe(head_dim=256)
    async with staged(certificate, descriptor) as stage, stage.consumer() as consumer:
        await stage.publish_all(3)
        caches = np.zeros((3, 2, 16, 2, 256), descriptor.dtype)
        retrieval = await consumer.retrieve(
            descriptor, prompt(descriptor, 3), into=[(cache[0], cache[1]) for cache in caches]
        )
        async for layer in retrieval:
            assert np.shares_memory(layer.k, caches)
            assert layer.v is not None
            assert np.shares_memory(layer.v, caches)
            assert layer.k.shape == (12, 2, 256)
        for index in range(3):
            k, v = stage.layer(index, 3)
            assert octets_of(caches[index, 0, :12]) == octets_of(k)
            assert v is not None
            assert octets_of(caches[index, 1, :12]) == octets_of(v)
            assert not octets_of(caches[index, :, 12:]).strip(b"\0")


async def test_the_retrieval_finishes_by_itself_when_only_the_arrays_matter(
    certificate: CertificatePair,
) -> None:
    async with staged(certificate, describe()) as stage, stage.consumer() as consumer:
        await stage.publish_all(2)
        retrieval = await consumer.retrieve(stage.descriptor, prompt(stage.descriptor, 2))
        await retrieval.finished()
        assert retrieval.is_over
        assert await take(retrieval, stage.descriptor) == [0, 1, 2]


async def test_closing_a_retrieval_ends_its_requests_and_leaves_the_consumer_usable(
    certificate: CertificatePair,
) -> None:
    async with staged(certificate, describe()) as stage, stage.consumer() as consumer:
        publication = await stage.publish(2)
        await produce(publication, layers=[0])
        async with await consumer.retrieve(
            stage.descriptor, prompt(stage.descriptor, 2)
        ) as retrieval:
            assert (await anext(retrieval)).index == 0
        assert retrieval.is_over
        assert len(retrieval.missing) == 8
        assert retrieval.stats.open_requests == 0
        await until(lambda: consumer.session.stats.open_requests == 0)
        assert consumer.stats.incomplete == 1
        await publication.abort()
        await stage.publish_all(2)
        other = await consumer.retrieve(stage.descriptor, prompt(stage.descriptor, 2))
        assert await take(other, stage.descriptor) == [0, 1, 2]
