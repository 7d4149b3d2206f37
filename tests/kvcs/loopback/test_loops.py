"""The main case on both event loops: live, late, and from a lossless start to a clean end."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tests.kvcs.stage import staged, take
from tests.kvcs.support import describe, prompt

if TYPE_CHECKING:
    from moqt.tls import CertificatePair

pytestmark = pytest.mark.usefixtures("no_leaks")


@pytest.mark.asyncio(loop_factories=["asyncio", "uvloop"])
async def test_a_live_and_a_late_consumer_get_everything(certificate: CertificatePair) -> None:
    descriptor = describe(layers=8, head_dim=1024)
    async with (
        asyncio.timeout(30),
        staged(certificate, descriptor) as stage,
        stage.consumer() as live,
        stage.consumer() as late,
    ):
        publication = await stage.publish(8)
        retrieval = await live.retrieve(descriptor, prompt(descriptor, 8))
        for blocks in (5, 3):
            segment = publication.segment(blocks=blocks)
            for layer in range(8):
                await segment.put_layer(
                    layer, *stage.layer(layer, blocks, first=segment.first_block)
                )
            await segment.complete()
        assert await take(retrieval, descriptor) == list(range(8))
        assert retrieval.stats.objects == retrieval.stats.objects_received == 128
        after = await late.retrieve(descriptor, prompt(descriptor, 8))
        assert await take(after, descriptor) == list(range(8))
        assert after.stats.objects == after.stats.objects_received == 128
        assert after.stats.retries == retrieval.stats.retries == 0
