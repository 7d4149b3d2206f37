"""Narrow windows and slow readers: everything arrives, and memory stays within its bounds."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

import moqt
from moqt.events import ObjectReceived
from tests.kvcs.stage import CONSUMING, QUICK, staged, take, until
from tests.kvcs.support import describe, prompt

if TYPE_CHECKING:
    from moqt.tls import CertificatePair

pytestmark = pytest.mark.usefixtures("no_leaks")

KIBI = 1 << 10


@pytest.mark.parametrize("window", [8 * KIBI, 64 * KIBI, 100 * KIBI])
async def test_a_window_smaller_than_the_control_reserve_is_no_standstill(
    certificate: CertificatePair, window: int
) -> None:
    descriptor = describe(layers=2, head_dim=1024)  # 16 KiB a block, 64 KiB a layer and track
    narrow = replace(QUICK, connection_window_octets=window, stream_window_octets=window)
    async with (
        asyncio.timeout(30),
        staged(certificate, descriptor) as stage,
        stage.consumer(transport_config=narrow) as consumer,
    ):
        await stage.publish_all(4)
        retrieval = await consumer.retrieve(descriptor, prompt(descriptor, 4))
        assert await take(retrieval, descriptor) == [0, 1]
        assert retrieval.stats.retries == 0


async def test_readers_of_three_speeds_stay_within_their_bounds(
    certificate: CertificatePair,
) -> None:
    layers, blocks = 12, 4
    descriptor = describe(layers=layers, head_dim=2048)  # 12 MiB in all
    narrow = replace(QUICK, connection_window_octets=512 * KIBI, stream_window_octets=128 * KIBI)
    unread = moqt.SessionConfig(max_buffered_octets=64 * KIBI)
    async with (
        asyncio.timeout(30),
        staged(certificate, descriptor) as stage,
        stage.consumer() as fast,
        stage.consumer(config=replace(CONSUMING, max_open_requests=1)) as slow,
        moqt.connect(
            stage.url, ca=certificate.certificate, config=unread, transport_config=narrow
        ) as idle,
    ):
        publication = await stage.publish(blocks)
        segment = publication.segment()
        async with idle.subscribe(publication.name.track(b"k.raw.s0")) as subscription:
            retrievals = [
                await consumer.retrieve(descriptor, prompt(descriptor, blocks))
                for consumer in (fast, slow)
            ]
            for layer in range(layers):
                await segment.put_layer(layer, *stage.layer(layer, blocks))
                assert (await anext(retrievals[0])).index == layer
                if layer % 3 == 2:
                    assert (await anext(retrievals[1])).index == layer // 3
            await segment.complete()
            octets = publication.stats.octets
            assert await take(retrievals[0], descriptor) == []
            # Nobody waited for the idle one, who has what its bounds allow and no more.
            held = idle._driver.connection
            assert held.received_octets - held.credited_octets <= narrow.connection_window_octets
            assert idle.stats.octets_unread <= unread.max_unread_octets
            assert idle.stats.octets_received < octets // 4
            assert stage.producer._server is not None
            for served in stage.producer._server.sessions:
                unsent = served._driver.connection.unsent_octets
                assert unsent <= QUICK.max_send_buffer_octets
            # What is held for all three is held once.
            assert stage.producer.stats.buffered_octets == publication.retained_octets == octets
            objects = 0
            async for item in subscription:
                objects += isinstance(item, ObjectReceived) and bool(
                    item.object.header.payload_length
                )
            assert objects == layers * blocks
            assert await take(retrievals[1], descriptor) == list(range(layers // 3, layers))
        for retrieval in retrievals:
            assert retrieval.stats.objects == retrieval.stats.objects_received == 2 * 4 * layers
            assert retrieval.stats.buffered_octets == 0
        await until(lambda: idle.stats.octets_unread == idle.stats.open_requests == 0)
