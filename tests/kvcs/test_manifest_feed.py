"""The manifest track as a consumer follows it, when versions come faster than they are sent."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from kvcs import manifest_feed, publication
from kvcs.config import ProducerConfig
from kvcs.errors import IncompleteRetrieval
from tests.kvcs.stage import produce, staged, take
from tests.kvcs.support import describe, prompt

if TYPE_CHECKING:
    from moqt.tls import CertificatePair

pytestmark = [pytest.mark.usefixtures("no_leaks")]

BURST = ProducerConfig(layers_per_manifest=1)
"""A version a layer; small layers are prepared on the loop, so nothing is sent between them."""


async def test_who_is_too_far_behind_for_a_version_gets_the_newest_one(
    certificate: CertificatePair,
) -> None:
    async with (
        asyncio.timeout(30),
        staged(certificate, describe(layers=12), config=BURST) as stage,
        stage.consumer() as consumer,
    ):
        published = await stage.publish(4)
        retrieval = await consumer.retrieve(stage.descriptor, prompt(stage.descriptor, 4))
        for _ in range(2):
            await produce(published, 2)
        assert published.stats.manifest_versions > 2 * publication.KEPT_MANIFESTS
        assert await take(retrieval, stage.descriptor) == list(range(12))
        assert retrieval.stats.retries == retrieval.stats.missing == 0
        assert retrieval.stats.manifest_versions < published.stats.manifest_versions


async def test_a_version_that_never_comes_is_not_asked_for_without_end(
    certificate: CertificatePair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifest_feed, "MAX_RENEWALS", 0)
    async with (
        asyncio.timeout(30),
        staged(certificate, describe(layers=12), config=BURST) as stage,
        stage.consumer() as consumer,
    ):
        published = await stage.publish(4)
        retrieval = await consumer.retrieve(
            stage.descriptor, prompt(stage.descriptor, 4), recovery_deadline_s=0
        )
        await produce(published, 4)
        with pytest.raises(IncompleteRetrieval, match="TOO_FAR_BEHIND"):
            await take(retrieval, stage.descriptor)
