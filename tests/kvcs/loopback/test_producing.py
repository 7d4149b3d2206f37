"""A producer's memory, its limits, and how publications end (KVCS 3)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import numpy as np
import pytest

from kvcs.config import ProducerConfig
from kvcs.errors import ProductionError, PublicationNotFound
from kvcs.kvsp.shapes import Layout
from kvcs.publication import PublicationState
from tests.kvcs.stage import produce, staged, take, take_incomplete, texts, until
from tests.kvcs.support import describe, prompt

if TYPE_CHECKING:
    from moqt.tls import CertificatePair

pytestmark = [pytest.mark.usefixtures("no_leaks")]


async def test_tensors_may_be_overwritten_when_put_layer_returns(
    certificate: CertificatePair,
) -> None:
    async with staged(certificate, describe()) as stage, stage.consumer() as consumer:
        publication = await stage.publish(2)
        segment = publication.segment()
        for layer in range(3):
            k, v = (np.array(a) for a in stage.layer(layer, 2) if a is not None)
            await segment.put_layer(layer, k, v)
            k.view("u1")[...] = v.view("u1")[...] = 0
        retrieval = await consumer.retrieve(stage.descriptor, prompt(stage.descriptor, 2))
        assert await take(retrieval, stage.descriptor) == [0, 1, 2]


async def test_borrowed_tensors_are_free_when_the_publication_is_gone_and_nothing_in_flight(
    certificate: CertificatePair,
) -> None:
    descriptor = describe(head_dim=64)  # blocks shorter than a reference to them would be copied
    async with staged(certificate, descriptor) as stage, stage.consumer() as consumer:
        publication = await stage.publish(2)
        segment = publication.segment()
        loans = [
            await segment.put_layer(layer, *stage.layer(layer, 2), borrow=True)
            for layer in range(3)
        ]
        await segment.complete()
        retrieval = await consumer.retrieve(stage.descriptor, prompt(stage.descriptor, 2))
        assert await take(retrieval, stage.descriptor) == [0, 1, 2]
        for loan in loans:
            assert loan is not None
            assert not loan.is_free
        await publication.abort("enough")
        for loan in loans:
            assert loan is not None
            async with asyncio.timeout(5):
                await loan
            assert loan.is_free
            assert loan.wait(0)
        assert stage.producer.stats.buffered_octets == 0


async def test_what_is_copied_is_not_borrowed(certificate: CertificatePair) -> None:
    async with staged(certificate, describe(layout=Layout.HND)) as stage:
        segment = (await stage.publish(2)).segment(codec="zstd")
        loan = await segment.put_layer(0, *stage.layer(0, 2), borrow=True)
        assert loan is not None
        assert loan.is_free


async def test_old_completed_publications_give_way_and_are_not_found_any_more(
    certificate: CertificatePair,
) -> None:
    config = ProducerConfig(retain_bytes=0)
    async with staged(certificate, describe(), config=config) as stage:
        first = await stage.publish_all(2)
        assert stage.producer.publications == (first,)  # the last completed one stays
        second = await stage.publish_all(3)
        assert first.state is PublicationState.WITHDRAWN
        assert stage.producer.publications == (second,)
        stats = stage.producer.stats
        assert (stats.publications, stats.evicted, stats.published) == (1, 1, 2)
        assert stats.buffered_octets == second.stats.octets
        async with stage.consumer() as consumer:
            with pytest.raises(PublicationNotFound):
                await consumer.retrieve(
                    stage.descriptor, prompt(stage.descriptor, 2), discovery_timeout_s=0
                )


async def test_completed_publications_are_kept_no_longer_than_they_should(
    certificate: CertificatePair,
) -> None:
    async with staged(certificate, describe(), config=ProducerConfig(retain_s=0.05)) as stage:
        publication = await stage.publish_all(2)
        await until(lambda: publication.state is PublicationState.WITHDRAWN)
        assert stage.producer.stats.publications == 0


async def test_limits_of_a_producer_are_named_when_they_are_reached(
    certificate: CertificatePair,
) -> None:
    config = ProducerConfig(max_live_bytes=1000, max_publications=1)
    async with staged(certificate, describe(), config=config) as stage:
        publication = await stage.publish(2)
        segment = publication.segment()
        await segment.put_layer(0, *stage.layer(0, 2))
        with pytest.raises(ProductionError, match="max_live_bytes"):
            await segment.put_layer(1, *stage.layer(1, 2))
        assert segment.next_layer == 1
        with pytest.raises(ProductionError, match="max_publications"):
            await stage.publish(3)


async def test_a_publication_as_a_block_completes_or_aborts(certificate: CertificatePair) -> None:
    async with staged(certificate, describe()) as stage:
        async with await stage.publish(2) as publication:
            await produce(publication)
        assert publication.state is PublicationState.COMPLETE
        with pytest.raises(RuntimeError, match="broke"):
            async with await stage.publish(3) as broken:
                raise RuntimeError("broke")
        assert broken.state is PublicationState.WITHDRAWN
        with pytest.raises(ProductionError, match="in no segment"):
            async with await stage.publish(3) as unfinished:
                pass
        assert unfinished.state is PublicationState.WITHDRAWN
        assert stage.producer.stats.aborted == 2
        with pytest.raises(ProductionError, match="is withdrawn"):
            unfinished.segment()


async def test_a_wrong_publication_is_restarted_under_a_new_id(
    certificate: CertificatePair,
) -> None:
    """K3.4#4, K3.1#3, 2.5#1."""
    async with staged(certificate, describe()) as stage, stage.consumer() as consumer:
        wrong = await stage.publish(2)
        await produce(wrong, layers=[0])
        retrieval = await consumer.retrieve(
            stage.descriptor, prompt(stage.descriptor, 2), recovery_deadline_s=0.5
        )
        assert (await anext(retrieval)).index == 0
        right = await wrong.restart("wrong weights")
        assert right.publication_id != wrong.publication_id
        assert right.namespace.fields[:4] == wrong.namespace.fields[:4]
        taken, error = await take_incomplete(retrieval, stage.descriptor)
        assert taken == []
        assert texts(error.missing) == [
            f"segment 0 layer {layer} {component} block {block}"
            for layer in (1, 2)
            for component in "kv"
            for block in (0, 1)
        ]
        assert "wrong weights" in str(error)
        await produce(right)
        again = await consumer.retrieve(stage.descriptor, prompt(stage.descriptor, 2))
        assert again.publication == right.namespace
        assert await take(again, stage.descriptor) == [0, 1, 2]
