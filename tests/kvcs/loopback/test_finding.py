"""Which publication a retrieval takes, and what it refuses to look for (KVCS 5.1)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from kvcs.config import ConsumerConfig, ProducerConfig
from kvcs.errors import InvalidTokens, ProductionError, PublicationNotFound, TensorMismatch
from kvcs.names import NamespaceForm
from tests.kvcs.stage import staged, take, until
from tests.kvcs.support import SCOPE, describe, prompt

if TYPE_CHECKING:
    from moqt.tls import CertificatePair

pytestmark = [pytest.mark.usefixtures("no_leaks")]


async def test_the_longest_published_prefix_is_taken(certificate: CertificatePair) -> None:
    """K5.1#3."""
    async with staged(certificate, describe()) as stage, stage.consumer() as consumer:
        await stage.publish_all(2)
        await stage.publish_all(5)
        retrieval = await consumer.retrieve(stage.descriptor, prompt(stage.descriptor, 7))
        assert (retrieval.blocks, retrieval.tokens) == (5, 20)
        assert await take(retrieval, stage.descriptor) == [0, 1, 2]


async def test_a_publication_that_appears_later_is_found(certificate: CertificatePair) -> None:
    async with staged(certificate, describe()) as stage, stage.consumer() as consumer:
        tokens = prompt(stage.descriptor, 2)
        looking = asyncio.create_task(consumer.retrieve(stage.descriptor, tokens))
        await until(lambda: consumer.session.stats.open_requests > 1)
        await stage.publish_all(2)
        assert await take(await looking, stage.descriptor) == [0, 1, 2]


async def test_two_retrievals_of_one_prompt_share_what_they_look_for(
    certificate: CertificatePair,
) -> None:
    async with staged(certificate, describe()) as stage, stage.consumer() as consumer:
        tokens = prompt(stage.descriptor, 2)
        looking = [
            asyncio.create_task(consumer.retrieve(stage.descriptor, tokens)) for _ in range(3)
        ]
        await until(lambda: consumer.session.stats.open_requests > 1)
        await stage.publish_all(2)
        for task in looking:
            assert await take(await task, stage.descriptor) == [0, 1, 2]


async def test_who_publishes_nothing_of_the_prompt_is_said_in_time(
    certificate: CertificatePair,
) -> None:
    async with staged(certificate, describe()) as stage, stage.consumer() as consumer:
        await stage.publish_all(2)
        with pytest.raises(PublicationNotFound, match="nobody publishes this prompt's 2 blocks"):
            await consumer.retrieve(
                stage.descriptor, prompt(describe(), 9)[20:28], discovery_timeout_s=0.0
            )
        assert consumer.stats.retrievals == 0
        await until(lambda: consumer.session.stats.open_requests == 0)


async def test_a_known_namespace_needs_no_discovery(certificate: CertificatePair) -> None:
    """K5.1#4."""
    async with staged(certificate, describe()) as stage, stage.consumer() as consumer:
        publication = await stage.publish_all(3)
        retrieval = await consumer.retrieve(
            stage.descriptor,
            prompt(stage.descriptor, 3),
            publication=publication.namespace,
            blocks=2,
        )
        assert retrieval.publication == publication.namespace
        assert await take(retrieval, stage.descriptor) == [0, 1, 2]


async def test_namespaces_may_be_written_as_text_on_both_ends(
    certificate: CertificatePair,
) -> None:
    config = ProducerConfig(namespace_form=NamespaceForm.HEX)
    async with staged(certificate, describe(), config=config) as stage:
        publication = await stage.publish_all(2)
        assert publication.namespace.fields[1] == SCOPE.scope_id.hex().encode()
        taking = ConsumerConfig(namespace_form=NamespaceForm.HEX, discovery_settle_s=0.05)
        async with stage.consumer(config=taking) as consumer:
            retrieval = await consumer.retrieve(stage.descriptor, prompt(stage.descriptor, 2))
            assert await take(retrieval, stage.descriptor) == [0, 1, 2]


async def test_bad_calls_say_what_is_wrong_and_change_nothing(
    certificate: CertificatePair,
) -> None:
    async with staged(certificate, describe()) as stage, stage.consumer() as consumer:
        descriptor = stage.descriptor
        with pytest.raises(InvalidTokens, match="3 tokens are less than one block of 4"):
            await stage.producer.publish(descriptor, [1, 2, 3])
        with pytest.raises(InvalidTokens, match="less than one block"):
            await consumer.retrieve(descriptor, [1, 2, 3])
        publication = await stage.publish(2)
        with pytest.raises(ProductionError, match="0 blocks"):
            publication.segment(blocks=0)
        segment = publication.segment(blocks=1)
        with pytest.raises(ProductionError, match="overlaps"):
            publication.segment(0, 1)
        k, v = stage.layer(0, 1)
        with pytest.raises(TensorMismatch, match="expected dtype bfloat16"):
            await segment.put_layer(0, k.astype("f4"), v)
        with pytest.raises(ProductionError, match="out of turn"):
            await segment.put_layer(1, k, v)
        assert (publication.stats.layers, segment.next_layer) == (0, 0)
        await segment.put_layer(0, k, v)
        with pytest.raises(ProductionError, match="put already"):
            await segment.put_layer(0, k, v)
        with pytest.raises(ProductionError, match="blocks 1"):
            await publication.complete()
        tokens = prompt(descriptor, 2)
        for wrong in (
            {"layers": (2, 3)},
            {"layers": range(0, 0)},
            {"layers": 1},
            {"blocks": 3},
            {"blocks": 0},
            {"recovery_deadline_s": -1.0},
        ):
            with pytest.raises(ValueError, match=r"expected|not among"):
                await consumer.retrieve(descriptor, tokens, **wrong)
        with pytest.raises(TensorMismatch, match="0 pairs of arrays"):
            await consumer.retrieve(descriptor, tokens, into=[])
        assert consumer.stats.retrievals == 0
