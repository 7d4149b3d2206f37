"""What goes wrong between producer and consumer: what we raise, what still works (KVCS 5.4)."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from kvcs import publication as publication_module
from kvcs.errors import (
    MissingObject,
    PublicationGone,
    RejectReason,
)
from kvcs.kvsp.shapes import Component
from kvcs.production import PreparedLayer, SegmentPlan, prepare_layer
from kvcs.recovery import Endpoint, OtherPublication
from tests.kvcs.stage import (
    CONSUMING,
    QUICK,
    produce,
    staged,
    take,
    take_incomplete,
    texts,
    whole,
)
from tests.kvcs.support import describe, prompt

if TYPE_CHECKING:
    from kvcs.recovery import Source
    from moqt.tls import CertificatePair

pytestmark = [pytest.mark.usefixtures("no_leaks")]


@pytest.fixture
def corrupt(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, str, int, int]]:
    """Objects that the next publications get wrong: layer, component, block, bit to flip.

    The producer's own lists (manifest digests) stay those of the right octets.
    """
    wanted: list[tuple[int, str, int, int]] = []

    def wrong(plan: SegmentPlan, layer: int, k: Any, v: Any, **how: Any) -> PreparedLayer:
        prepared = prepare_layer(plan, layer, k, v, **how)
        groups = []
        for group in prepared.groups:
            payloads = list(group.payloads)
            for at, component, block, bit in wanted:
                if (at, component) == (layer, group.track.component.text):
                    octets = bytearray(b"".join(payloads[block]))
                    octets[bit // 8] ^= 1 << bit % 8
                    payloads[block] = (bytes(octets),)
            groups.append(replace(group, payloads=tuple(payloads)))
        return replace(prepared, groups=tuple(groups))

    monkeypatch.setattr(publication_module, "prepare_layer", wrong)
    return wanted


DATA = 68 * 8


@pytest.mark.parametrize(
    ("bit", "reason"),
    [
        (0, RejectReason.MAGIC),
        (32, RejectReason.VERSION),
        (40, RejectReason.COMPONENT),
        (64 + 24, RejectReason.LAYER),
        (96 + 24, RejectReason.BLOCK_INDEX),
        (128 + 56, RejectReason.TOKEN_START),
        (192 + 24, RejectReason.TOKEN_COUNT),
        (224 + 8, RejectReason.CODEC),
        (256 + 24, RejectReason.DATA_LENGTH),
        (288, RejectReason.DATA_DIGEST),
        (DATA + 100, RejectReason.DATA_DIGEST),
    ],
    ids=lambda value: value.name.lower() if isinstance(value, RejectReason) else str(value),
)
async def test_one_flipped_bit_makes_exactly_one_object_missing(
    certificate: CertificatePair,
    corrupt: list[tuple[int, str, int, int]],
    bit: int,
    reason: RejectReason,
) -> None:
    """K3.5#7."""
    corrupt.append((1, "v", 2, bit))
    async with staged(certificate, describe()) as stage, stage.consumer() as consumer:
        publication = await stage.publish(3)
        retrieval = await consumer.retrieve(stage.descriptor, prompt(stage.descriptor, 3))
        await produce(publication)
        taken, error = await take_incomplete(retrieval, stage.descriptor)
        assert taken == [0, 2]
        assert error.missing == (MissingObject(0, 1, Component.V, 2),) == retrieval.missing
        assert error.missing[0].reason is reason
        assert set(retrieval.stats.rejected) == {reason}
        assert retrieval.stats.missing == 1
        # Asked again, it came wrong again; everything else is untouched.
        assert retrieval.stats.retries == 1
        assert retrieval.stats.objects == 17
        other = await consumer.retrieve(
            stage.descriptor, prompt(stage.descriptor, 3), layers=(2, 2)
        )
        assert await take(other, stage.descriptor) == [2]


async def test_a_right_digest_that_the_manifest_does_not_list_is_refused(
    certificate: CertificatePair, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(plan: SegmentPlan, layer: int, k: Any, v: Any, **how: Any) -> PreparedLayer:
        prepared = prepare_layer(plan, layer, k, v, **how)
        if layer != 1:
            return prepared
        k_group = prepared.groups[0]
        k_group = replace(k_group, digests=bytes(32) + k_group.digests[32:])
        return replace(prepared, groups=(k_group, *prepared.groups[1:]))

    monkeypatch.setattr(publication_module, "prepare_layer", wrong)
    async with staged(certificate, describe()) as stage, stage.consumer() as consumer:
        await stage.publish_all(2)
        retrieval = await consumer.retrieve(stage.descriptor, prompt(stage.descriptor, 2))
        taken, error = await take_incomplete(retrieval, stage.descriptor)
        assert taken == [0, 2]
        assert [one.reason for one in error.missing] == [RejectReason.MANIFEST_DIGEST]


# Recovery


async def test_what_is_missing_is_recomputed_by_the_caller(
    certificate: CertificatePair, corrupt: list[tuple[int, str, int, int]]
) -> None:
    """K5.4#4."""
    corrupt += [(1, "v", 2, DATA), (2, "k", 0, DATA)]
    asked: list[MissingObject] = []
    async with staged(certificate, describe()) as stage, stage.consumer() as consumer:
        await stage.publish_all(3)

        def recompute(missing: tuple[MissingObject, ...]) -> dict[MissingObject, Any]:
            asked.extend(missing)
            found = {}
            for one in missing:
                k, v = whole(stage.descriptor, one.layer, one.block, one.block + 1)
                found[one] = k if one.component is Component.K else v
            return found

        retrieval = await consumer.retrieve(
            stage.descriptor, prompt(stage.descriptor, 3), recompute=recompute
        )
        assert await take(retrieval, stage.descriptor) == [0, 1, 2]
        assert sorted(texts(asked)) == [
            "segment 0 layer 1 v block 2",
            "segment 0 layer 2 k block 0",
        ]
        assert retrieval.stats.recomputed == 2
        assert retrieval.missing == ()


async def test_recomputing_may_be_a_coroutine_and_need_not_know_all(
    certificate: CertificatePair, corrupt: list[tuple[int, str, int, int]]
) -> None:
    corrupt += [(1, "kv", 0, DATA), (2, "kv", 0, DATA)]
    async with staged(certificate, describe()) as stage, stage.consumer() as consumer:
        await produce(await stage.publish(2), joint=True)

        async def recompute(missing: tuple[MissingObject, ...]) -> dict[MissingObject, Any]:
            await asyncio.sleep(0)
            return {one: whole(stage.descriptor, 1, 0, 1) for one in missing if one.layer == 1}

        retrieval = await consumer.retrieve(
            stage.descriptor, prompt(stage.descriptor, 2), recompute=recompute
        )
        taken, error = await take_incomplete(retrieval, stage.descriptor)
        assert taken == [0, 1]
        assert texts(error.missing) == ["segment 0 layer 2 kv block 0"]


async def test_recomputing_that_hangs_is_given_up_at_the_deadline(
    certificate: CertificatePair, corrupt: list[tuple[int, str, int, int]]
) -> None:
    """K5.4#5."""
    corrupt.append((0, "k", 0, DATA))

    async def recompute(missing: tuple[MissingObject, ...]) -> dict[MissingObject, Any]:
        await asyncio.Event().wait()
        return {}

    async with staged(certificate, describe()) as stage, stage.consumer() as consumer:
        await stage.publish_all(1)
        retrieval = await consumer.retrieve(
            stage.descriptor,
            prompt(stage.descriptor, 1),
            recompute=recompute,
            recovery_deadline_s=0.1,
        )
        taken, error = await take_incomplete(retrieval, stage.descriptor)
        assert taken == [1, 2]
        assert "recovery_deadline_s" in str(error)


@pytest.mark.parametrize("deterministic", [True, False])
async def test_another_publication_fills_gaps_only_when_both_are_deterministic(
    certificate: CertificatePair,
    corrupt: list[tuple[int, str, int, int]],
    deterministic: bool,
) -> None:
    """K5.4#3, K3.6#8."""
    async with staged(certificate, describe()) as stage, stage.consumer() as consumer:
        corrupt.append((1, "k", 1, DATA))
        wrong = await stage.publish_all(2, deterministic=True)
        corrupt.clear()
        await stage.publish_all(2, deterministic=deterministic)
        retrieval = await consumer.retrieve(stage.descriptor, prompt(stage.descriptor, 2))
        assert retrieval.publication == wrong.namespace
        if deterministic:
            assert await take(retrieval, stage.descriptor) == [0, 1, 2]
            assert retrieval.stats.objects == 12
        else:
            taken, error = await take_incomplete(retrieval, stage.descriptor)
            assert taken == [0, 2]
            assert texts(error.missing) == ["segment 0 layer 1 k block 1"]
            assert "the other publication is not deterministic" in str(error)
        assert retrieval.publication == wrong.namespace


async def test_a_publication_that_is_cut_otherwise_cannot_fill_gaps(
    certificate: CertificatePair, corrupt: list[tuple[int, str, int, int]]
) -> None:
    async with staged(certificate, describe()) as stage, stage.consumer() as consumer:
        corrupt.append((1, "k", 0, DATA))
        await stage.publish_all(2, deterministic=True)
        corrupt.clear()
        await stage.publish_all(1, 1, deterministic=True)
        retrieval = await consumer.retrieve(stage.descriptor, prompt(stage.descriptor, 2))
        _, error = await take_incomplete(retrieval, stage.descriptor)
        assert "cut or encoded otherwise" in str(error)


async def test_another_endpoint_takes_over_when_the_first_is_gone(
    certificate: CertificatePair,
) -> None:
    """K5.4#4: two servers, one set of tracks: as two relays of one producer."""
    import moqt

    descriptor = describe()
    async with staged(certificate, descriptor) as stage:
        publication = await stage.publish(2)
        async with moqt.serve(
            "127.0.0.1",
            0,
            certificate=certificate.certificate,
            private_key=certificate.private_key,
            directory=stage.producer.directory,
            transport_config=QUICK,
        ) as second:
            source: Source | str = f"moqt://127.0.0.1:{second.port}/"
            async with stage.consumer() as consumer:
                retrieval = await consumer.retrieve(
                    descriptor, prompt(descriptor, 2), sources=[source]
                )
                segment = publication.segment()
                await segment.put_layer(0, *stage.layer(0, 2))
                assert (await anext(retrieval)).index == 0
                server = stage.producer._server
                assert server is not None
                await server.close()
                for layer in (1, 2):
                    await segment.put_layer(layer, *stage.layer(layer, 2))
                await segment.complete()
                assert await take(retrieval, descriptor) == [1, 2]
                assert retrieval.stats.objects == 12
                assert retrieval.stats.duplicates == 0


async def test_a_lost_session_is_made_again_and_the_rest_follows(
    certificate: CertificatePair,
) -> None:
    async with staged(certificate, describe()) as stage, stage.consumer() as consumer:
        publication = await stage.publish(2)
        segment = publication.segment()
        await segment.put_layer(0, *stage.layer(0, 2))
        retrieval = await consumer.retrieve(stage.descriptor, prompt(stage.descriptor, 2))
        assert (await anext(retrieval)).index == 0
        await consumer.session.close()
        for layer in (1, 2):
            await segment.put_layer(layer, *stage.layer(layer, 2))
        await segment.complete()
        assert await take(retrieval, stage.descriptor) == [1, 2]
        assert (retrieval.stats.reconnects, retrieval.stats.objects) == (1, 12)


async def test_sources_that_cannot_be_reached_are_passed_over(
    certificate: CertificatePair, corrupt: list[tuple[int, str, int, int]]
) -> None:
    corrupt.append((0, "k", 0, DATA))
    config = replace(CONSUMING, connect_timeout_s=0.1)
    async with staged(certificate, describe()) as stage, stage.consumer(config=config) as consumer:
        publication = await stage.publish_all(1)
        sources: list[Source | str] = [
            Endpoint("moqt://127.0.0.1:9/"),
            OtherPublication(publication.namespace),
            OtherPublication(replace(publication.name, publication_id=bytes(16)).namespace()),
        ]
        retrieval = await consumer.retrieve(
            stage.descriptor, prompt(stage.descriptor, 1), sources=sources
        )
        taken, error = await take_incomplete(retrieval, stage.descriptor)
        assert taken == [1, 2]
        assert retrieval.stats.retries == 4
        assert "127.0.0.1:9" in str(error)
        assert "has no manifest" in str(error)


# Silence


async def test_a_producer_that_falls_silent_is_given_up_in_time(
    certificate: CertificatePair,
) -> None:
    """K5.4#6."""
    config = replace(CONSUMING, stall_timeout_s=0.2, recovery_deadline_s=0.5)
    async with staged(certificate, describe()) as stage, stage.consumer(config=config) as consumer:
        publication = await stage.publish(1)
        await produce(publication, layers=[0, 1])
        retrieval = await consumer.retrieve(stage.descriptor, prompt(stage.descriptor, 1))
        taken, error = await take_incomplete(retrieval, stage.descriptor)
        assert taken == [0, 1]
        assert texts(error.missing) == [
            "segment 0 layer 2 k block 0",
            "segment 0 layer 2 v block 0",
        ]
        assert "no progress for 0.2 s" in str(error)


async def test_a_segment_that_is_never_begun_is_missing_too(certificate: CertificatePair) -> None:
    config = replace(CONSUMING, stall_timeout_s=0.2, recovery_deadline_s=0.5)
    async with staged(certificate, describe()) as stage, stage.consumer(config=config) as consumer:
        publication = await stage.publish(2)
        await produce(publication, 1)
        retrieval = await consumer.retrieve(
            stage.descriptor, prompt(stage.descriptor, 2), layers=(0, 0)
        )
        taken, error = await take_incomplete(retrieval, stage.descriptor)
        assert taken == []
        assert texts(error.missing) == [
            "segment 1 layer 0 k block 0",
            "segment 1 layer 0 v block 0",
        ]


async def test_late_objects_are_welcome_after_a_stall(certificate: CertificatePair) -> None:
    config = replace(CONSUMING, stall_timeout_s=0.1, recovery_deadline_s=20.0)
    waited = asyncio.Event()

    async def recompute(missing: tuple[MissingObject, ...]) -> dict[MissingObject, Any]:
        waited.set()
        await asyncio.Event().wait()
        return {}

    async with staged(certificate, describe()) as stage, stage.consumer(config=config) as consumer:
        publication = await stage.publish(1)
        segment = publication.segment()
        retrieval = await consumer.retrieve(
            stage.descriptor, prompt(stage.descriptor, 1), recompute=recompute
        )
        await waited.wait()
        for layer in range(3):
            await segment.put_layer(layer, *stage.layer(layer, 1))
        assert await take(retrieval, stage.descriptor) == [0, 1, 2]
        assert retrieval.stats.missing == 0


async def test_a_publication_without_a_manifest_is_gone(certificate: CertificatePair) -> None:
    config = replace(CONSUMING, manifest_timeout_s=0.1)
    async with staged(certificate, describe()) as stage, stage.consumer(config=config) as consumer:
        publication = await stage.publish(1)
        stage.producer.directory.remove(publication._manifest_track)
        stage.producer.directory.advertise(publication.namespace)
        with pytest.raises(PublicationGone, match="has no manifest"):
            await consumer.retrieve(
                stage.descriptor, prompt(stage.descriptor, 1), discovery_timeout_s=0.1
            )


async def test_an_unusable_publication_is_passed_over_for_the_next(
    certificate: CertificatePair,
) -> None:
    async with staged(certificate, describe()) as stage, stage.consumer() as consumer:
        first = await stage.publish(1)
        stage.producer.directory.remove(first._manifest_track)
        stage.producer.directory.advertise(first.namespace)
        second = await stage.publish_all(1)
        retrieval = await consumer.retrieve(stage.descriptor, prompt(stage.descriptor, 1))
        assert retrieval.publication == second.namespace
        assert await take(retrieval, stage.descriptor) == [0, 1, 2]
