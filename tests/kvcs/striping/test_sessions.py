"""One retrieval over several sessions of one process: every Object once, layers in order."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

import moqt
from kvcs.keys import ProducerKey, TrustedKeys
from kvcs.kvsp.shapes import Layout
from kvcs.names import DataTrackName
from kvcs.striping.shares import Striping
from tests.kvcs.loopback.test_media_relay import HASTY, MediaRelay
from tests.kvcs.stage import CONSUMING, produce, staged, take, until
from tests.kvcs.support import describe, octets_of, prompt

if TYPE_CHECKING:
    from moqt.tls import CertificatePair

pytestmark = pytest.mark.usefixtures("no_leaks")

K, V = DataTrackName.parse("k.raw.s0"), DataTrackName.parse("v.raw.s0")


@pytest.mark.parametrize("parts", range(1, 9))
@pytest.mark.parametrize("blocks", [1, 2, 7, 64])
def test_shares_are_all_blocks_once_and_even(parts: int, blocks: int) -> None:
    for track in (K, V, DataTrackName.parse("kv.raw.s3")):
        for splits in (True, False):
            striping = Striping(parts=parts, lanes=parts, splits=splits)
            shares = striping.shares(track, blocks)
            assert sorted(b for share in shares for b in share.blocks) == list(range(blocks))
            sizes = [len(share.blocks) for share in shares]
            if splits:
                assert max(sizes) - (min(sizes) if len(sizes) == parts else 0) <= 1
            else:
                assert sizes == [blocks]
            alone = [Striping(parts=parts, first=at, splits=splits) for at in range(parts)]
            assert sum(len(one.shares(track, blocks)) for one in alone) == len(shares)


def test_small_caches_have_k_and_v_at_different_sessions() -> None:
    striping = Striping(parts=4, lanes=4)
    assert [share.lane for share in striping.shares(K, 1)] != [
        share.lane for share in striping.shares(V, 1)
    ]


@pytest.mark.parametrize(("parts", "first", "lanes"), [(2, 2, 1), (2, 0, 3), (2, -1, 1), (2, 0, 0)])
def test_shares_that_are_none_are_refused(parts: int, first: int, lanes: int) -> None:
    with pytest.raises(ValueError, match="expected"):
        Striping(parts=parts, first=first, lanes=lanes)


@pytest.mark.parametrize("is_live", [False, True], ids=["fetched", "live"])
@pytest.mark.parametrize("sessions", range(1, 9))
async def test_every_object_comes_once_over_any_number_of_sessions(
    certificate: CertificatePair, sessions: int, is_live: bool
) -> None:
    descriptor = describe(layers=5)
    async with (
        asyncio.timeout(30),
        staged(certificate, descriptor) as stage,
        stage.consumer() as consumer,
    ):
        publication = await stage.publish(9)
        if not is_live:
            await produce(publication)
        retrieval = await consumer.retrieve(descriptor, prompt(descriptor, 9), sessions=sessions)
        if is_live:
            await produce(publication)
        assert await take(retrieval, descriptor) == list(range(5))
        assert len(stage.producer.sessions) == sessions
        stats = retrieval.stats
        assert stats.objects == stats.objects_received == 2 * 5 * 9
        assert (stats.duplicates, stats.discarded, stats.retries) == (0, 0, 0)
        assert (stats.open_requests, stats.buffered_octets) == (0, 0)


async def test_a_layer_does_not_wait_for_later_ones(certificate: CertificatePair) -> None:
    descriptor = describe(layers=4)
    async with (
        asyncio.timeout(30),
        staged(certificate, descriptor) as stage,
        stage.consumer() as consumer,
    ):
        publication = await stage.publish(8)
        segment = publication.segment()
        await segment.put_layer(0, *stage.layer(0, 8))
        await segment.put_layer(1, *stage.layer(1, 8))
        retrieval = await consumer.retrieve(descriptor, prompt(descriptor, 8), sessions=3)
        assert [(await anext(retrieval)).index for _ in range(2)] == [0, 1]
        for layer in (2, 3):
            await segment.put_layer(layer, *stage.layer(layer, 8))
            assert (await anext(retrieval)).index == layer
        await segment.complete()
        assert await take(retrieval, descriptor) == []


@pytest.mark.parametrize("is_live", [False, True], ids=["fetched", "live"])
async def test_peers_without_filters_are_asked_by_ranges_or_for_whole_tracks(
    certificate: CertificatePair, is_live: bool
) -> None:
    descriptor = describe(layers=7)
    config = moqt.SessionConfig(max_filter_ranges=0)
    async with (
        asyncio.timeout(30),
        staged(certificate, descriptor, session_config=config) as stage,
        stage.consumer() as consumer,
    ):
        publication = await stage.publish(6)
        if not is_live:
            await produce(publication)
        retrieval = await consumer.retrieve(descriptor, prompt(descriptor, 6), sessions=3)
        if is_live:
            await produce(publication)
        assert await take(retrieval, descriptor) == list(range(7))
        stats = retrieval.stats
        assert stats.objects == stats.objects_received == 2 * 7 * 6
        assert len(stage.producer.sessions) == (2 if is_live else 3)


async def test_a_part_of_a_cache_with_fewer_blocks_and_layers_than_sessions(
    certificate: CertificatePair,
) -> None:
    descriptor = describe(layers=2, layout=Layout.HND, layer_overrides={1: {"v_head_dim": 0}})
    async with (
        asyncio.timeout(30),
        staged(certificate, descriptor) as stage,
        stage.consumer() as consumer,
    ):
        await stage.publish_all(1, 3)
        tokens = prompt(descriptor, 4)
        retrieval = await consumer.retrieve(descriptor, tokens, sessions=8)
        assert await take(retrieval, descriptor) == [0, 1]
        retrieval = await consumer.retrieve(descriptor, tokens, sessions=8, blocks=2, layers=(1, 1))
        assert await take(retrieval, descriptor) == [1]
        assert retrieval.stats.objects == retrieval.stats.objects_received == 2
        assert len(stage.producer.sessions) <= 8


@pytest.mark.parametrize("codec", ["raw", "zstd"])
@pytest.mark.parametrize("joint", [False, True])
async def test_signed_segments_of_any_codec_and_arrays_of_the_caller(
    certificate: CertificatePair, joint: bool, codec: str
) -> None:
    key = ProducerKey.generate()
    descriptor = describe(layers=3)
    into = {
        layer: tuple(np.zeros((20, 2, 8), descriptor.dtype) for _ in "kv") for layer in range(3)
    }
    async with (
        asyncio.timeout(30),
        staged(certificate, descriptor, signing_key=key) as stage,
        stage.consumer(trusted_keys=TrustedKeys([key.public]), require_signature=True) as consumer,
    ):
        publication = await stage.publish(5)
        await produce(publication, 2, codec=codec, joint=joint)
        retrieval = await consumer.retrieve(
            descriptor,
            prompt(descriptor, 5),
            sessions=2,
            into={layer: (k, v) for layer, (k, v) in into.items()},
        )
        await produce(publication, 3, codec=codec, joint=joint)
        assert await take(retrieval, descriptor) == [0, 1, 2]
        assert octets_of(into[2][0]) == octets_of(stage.layer(2, 5)[0])


@pytest.mark.parametrize("lost", [(0,), (1,), (2,), (1, 2), (0, 1), (0, 1, 2)])
async def test_the_share_of_a_lost_session_goes_to_the_others(
    certificate: CertificatePair, lost: tuple[int, ...]
) -> None:
    descriptor = describe(layers=4)
    async with (
        asyncio.timeout(30),
        staged(certificate, descriptor) as stage,
        stage.consumer() as consumer,
    ):
        publication = await stage.publish(9)
        segment = publication.segment()
        await segment.put_layer(0, *stage.layer(0, 9))
        retrieval = await consumer.retrieve(descriptor, prompt(descriptor, 9), sessions=3)
        assert (await anext(retrieval)).index == 0
        sessions = stage.producer.sessions
        assert len(sessions) == 3
        for which in lost:
            await sessions[which].close()
        for layer in range(1, 4):
            await segment.put_layer(layer, *stage.layer(layer, 9))
        await segment.complete()
        assert await take(retrieval, descriptor) == [1, 2, 3]
        assert retrieval.stats.objects == 2 * 4 * 9
        if 0 not in lost:  # nothing was missing meanwhile: no recovery
            assert (retrieval.stats.retries, retrieval.stats.reconnects) == (0, 0)
        again = await consumer.retrieve(descriptor, prompt(descriptor, 9), sessions=3)
        assert await take(again, descriptor) == [0, 1, 2, 3]
        assert len(stage.producer.sessions) == 3


async def test_a_session_that_is_asked_to_leave_is_replaced(certificate: CertificatePair) -> None:
    descriptor = describe(layers=3)
    async with (
        asyncio.timeout(30),
        staged(certificate, descriptor) as stage,
        stage.consumer() as consumer,
    ):
        publication = await stage.publish(6)
        segment = publication.segment()
        await segment.put_layer(0, *stage.layer(0, 6))
        retrieval = await consumer.retrieve(descriptor, prompt(descriptor, 6), sessions=3)
        assert (await anext(retrieval)).index == 0
        for session in stage.producer.sessions:
            session.goaway()
        for layer in (1, 2):
            await segment.put_layer(layer, *stage.layer(layer, 6))
        await segment.complete()
        assert await take(retrieval, descriptor) == [1, 2]
        assert retrieval.stats.objects == 2 * 3 * 6


@pytest.mark.parametrize("is_live", [False, True], ids=["fetched", "live"])
async def test_a_relay_for_media_that_drops_groups_is_no_hindrance(
    certificate: CertificatePair, monkeypatch: pytest.MonkeyPatch, is_live: bool
) -> None:
    drops = frozenset({(b"k.raw.s0", 3), (b"k.raw.s0", 4), (b"v.raw.s0", 4)})
    relay = MediaRelay(monkeypatch, drops)
    descriptor = describe(layers=6)
    config = moqt.SessionConfig(max_filter_ranges=0)
    async with (
        asyncio.timeout(30),
        staged(certificate, descriptor, session_config=config) as stage,
        stage.consumer(config=HASTY) as consumer,
    ):
        publication = await stage.publish(4)
        if not is_live:
            await produce(publication)
        retrieval = await consumer.retrieve(descriptor, prompt(descriptor, 4), sessions=3)
        if is_live:
            segment = publication.segment()
            await until(lambda: retrieval.stats.open_requests == 2)
            for layer in range(6):
                await segment.put_layer(layer, *stage.layer(layer, 4))
            await segment.complete()
        assert await take(retrieval, descriptor) == list(range(6))
        assert relay.dropped == (drops if is_live else set())
        assert retrieval.stats.objects == 2 * 6 * 4
        assert retrieval.stats.duplicates == 0


async def test_closing_in_the_middle_ends_the_requests_of_all_sessions(
    certificate: CertificatePair,
) -> None:
    descriptor = describe(layers=3)
    async with (
        asyncio.timeout(30),
        staged(certificate, descriptor) as stage,
        stage.consumer() as consumer,
    ):
        publication = await stage.publish(4)
        segment = publication.segment()
        await segment.put_layer(0, *stage.layer(0, 4))
        async with await consumer.retrieve(
            descriptor, prompt(descriptor, 4), sessions=4
        ) as retrieval:
            assert (await anext(retrieval)).index == 0
            assert retrieval.stats.open_requests == 8
        assert retrieval.stats.open_requests == 0
        await until(lambda: stage.producer.stats.open_requests == 0)
        await publication.abort()


async def test_the_limit_of_open_requests_is_one_of_each_session(
    certificate: CertificatePair,
) -> None:
    """Else the parts of the last segment would wait for all layers of the first."""
    descriptor = describe(layers=3)
    config = replace(CONSUMING, max_open_requests=4)
    async with (
        asyncio.timeout(30),
        staged(certificate, descriptor) as stage,
        stage.consumer(config=config) as consumer,
    ):
        await stage.publish_all(4, 4)
        retrieval = await consumer.retrieve(descriptor, prompt(descriptor, 8), sessions=4)
        await retrieval.finished()  # now all are connected
        retrieval = await consumer.retrieve(descriptor, prompt(descriptor, 8), sessions=4)
        most = 0
        while not retrieval.is_over:
            most = max(most, retrieval.stats.open_requests)
            await asyncio.sleep(0)
        assert most == 16  # two segments, K and V, four parts
        assert await take(retrieval, descriptor) == [0, 1, 2]


async def test_too_many_sessions_are_refused(certificate: CertificatePair) -> None:
    descriptor = describe()
    async with staged(certificate, descriptor) as stage, stage.consumer() as consumer:
        for sessions in (0, -1, 17):
            with pytest.raises(ValueError, match="expected 1 to 16"):
                await consumer.retrieve(descriptor, prompt(descriptor, 2), sessions=sessions)
