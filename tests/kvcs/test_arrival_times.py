"""When each layer arrived, as a retrieval tells it."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import pytest

from tests.kvcs.stage import staged
from tests.kvcs.support import describe, prompt

if TYPE_CHECKING:
    from moqt.tls import CertificatePair

pytestmark = [pytest.mark.usefixtures("no_leaks")]


async def test_a_layer_has_arrived_between_its_production_and_its_hand_over(
    certificate: CertificatePair,
) -> None:
    async with (
        asyncio.timeout(30),
        staged(certificate, describe(layers=3)) as stage,
        stage.consumer() as consumer,
    ):
        publication = await stage.publish(2)
        segment = publication.segment()
        retrieval = await consumer.retrieve(stage.descriptor, prompt(stage.descriptor, 2))
        for layer in range(3):
            assert list(retrieval.arrived_at) == list(range(layer))
            produced = time.monotonic()
            await segment.put_layer(layer, *stage.layer(layer, 2))
            assert (await anext(retrieval)).index == layer
            taken = time.monotonic()
            assert produced <= retrieval.arrived_at[layer] <= taken
        await segment.complete()
