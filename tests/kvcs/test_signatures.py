"""Manifests that do not hold, and signatures: what is refused, and why (KVCS 3.6, 5.2)."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from kvcs import cose
from kvcs.cose import sign
from kvcs.errors import (
    CompatibilityMismatch,
    ManifestInvalid,
    SignatureInvalid,
    UnknownKey,
)
from kvcs.keys import ProducerKey, SigningAlgorithm, TrustedKeys
from kvcs.manifest import Manifest
from tests.kvcs.stage import (
    staged,
    take,
    until,
)
from tests.kvcs.support import describe, prompt

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from moqt.tls import CertificatePair

pytestmark = [pytest.mark.usefixtures("no_leaks")]


async def test_a_manifest_of_another_descriptor_is_refused(
    certificate: CertificatePair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K3.6#10, K5.4#1."""
    other = describe(head_dim=16)

    original = Manifest.pieces
    monkeypatch.setattr(
        Manifest, "pieces", lambda self, known: original(replace(self, descriptor=other), known)
    )
    async with staged(certificate, describe()) as stage, stage.consumer() as consumer:
        await stage.publish(1)
        with pytest.raises(CompatibilityMismatch, match=other.compatibility_id.hex()):
            await consumer.retrieve(
                stage.descriptor, prompt(stage.descriptor, 1), discovery_timeout_s=0.1
            )
        assert consumer.stats.retrievals == 0


async def test_a_segment_of_other_tokens_is_refused(
    certificate: CertificatePair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvcs.kvsp.identity.block_keys_sha256", lambda keys: bytes(32))
    async with staged(certificate, describe()) as stage, stage.consumer() as consumer:
        await stage.publish_all(1)
        monkeypatch.undo()
        with pytest.raises(ManifestInvalid, match="is not that of this prompt's tokens") as caught:
            await consumer.retrieve(
                stage.descriptor, prompt(stage.descriptor, 1), discovery_timeout_s=0.1
            )
        assert caught.value.path == "$.segments[0].block_keys_sha256"


@pytest.mark.parametrize("algorithm", list(SigningAlgorithm))
async def test_signed_publications_are_verified_before_a_layer_is_usable(
    certificate: CertificatePair, algorithm: SigningAlgorithm
) -> None:
    """K3.6#7."""
    key = ProducerKey.generate(algorithm)
    trusted = TrustedKeys([key.public])
    async with (
        staged(certificate, describe(layers=10), signing_key=key) as stage,
        stage.consumer(trusted_keys=trusted, require_signature=True) as consumer,
    ):
        publication = await stage.publish(2)
        segment = publication.segment()
        retrieval = await consumer.retrieve(stage.descriptor, prompt(stage.descriptor, 2))
        assert retrieval.is_signed
        for layer in range(7):
            await segment.put_layer(layer, *stage.layer(layer, 2))
        await until(lambda: retrieval.stats.objects == 7 * 4)
        assert retrieval.stats.layers == 0  # not listed yet
        await segment.put_layer(7, *stage.layer(7, 2))
        for layer in range(8):
            assert (await anext(retrieval)).index == layer
        for layer in (8, 9):
            await segment.put_layer(layer, *stage.layer(layer, 2))
        await segment.complete()
        assert await take(retrieval, stage.descriptor) == [8, 9]


@asynccontextmanager
async def refusing(certificate: CertificatePair, *, signs: bool) -> AsyncIterator[Any]:
    key = ProducerKey.generate()
    async with staged(certificate, describe(), signing_key=key if signs else None) as stage:
        await stage.publish_all(1)
        yield stage, key


async def test_an_unsigned_publication_is_refused_when_signatures_are_required(
    certificate: CertificatePair,
) -> None:
    trusted = TrustedKeys([ProducerKey.generate().public])
    async with (
        refusing(certificate, signs=False) as (stage, _),
        stage.consumer(trusted_keys=trusted, require_signature=True) as consumer,
    ):
        with pytest.raises(SignatureInvalid, match="signatures are required"):
            await consumer.retrieve(
                stage.descriptor, prompt(stage.descriptor, 1), discovery_timeout_s=0.1
            )
        async with stage.consumer(trusted_keys=trusted) as lenient:
            retrieval = await lenient.retrieve(stage.descriptor, prompt(stage.descriptor, 1))
            assert await take(retrieval, stage.descriptor) == [0, 1, 2]


async def test_an_unknown_key_is_refused_and_named(certificate: CertificatePair) -> None:
    trusted = TrustedKeys([ProducerKey.generate().public])
    async with refusing(certificate, signs=True) as (stage, key):
        for required in (True, False):
            async with stage.consumer(trusted_keys=trusted, require_signature=required) as consumer:
                with pytest.raises(UnknownKey, match=key.key_id.hex()):
                    await consumer.retrieve(
                        stage.descriptor, prompt(stage.descriptor, 1), discovery_timeout_s=0.1
                    )
        async with stage.consumer() as careless:
            retrieval = await careless.retrieve(stage.descriptor, prompt(stage.descriptor, 1))
            assert await take(retrieval, stage.descriptor) == [0, 1, 2]


async def test_a_wrong_signature_is_refused(
    certificate: CertificatePair, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forged(payload: bytes, key: ProducerKey) -> bytes:
        octets = bytearray(sign(payload, key))
        octets[-1] ^= 1
        return bytes(octets)

    monkeypatch.setattr(cose, "sign", forged)
    async with refusing(certificate, signs=True) as (stage, key):
        trusted = TrustedKeys([key.public])
        async with stage.consumer(trusted_keys=trusted, require_signature=True) as consumer:
            with pytest.raises(SignatureInvalid, match="does not hold"):
                await consumer.retrieve(
                    stage.descriptor, prompt(stage.descriptor, 1), discovery_timeout_s=0.1
                )


async def test_a_signature_that_breaks_later_ends_the_retrieval(
    certificate: CertificatePair, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = ProducerKey.generate()
    async with (
        staged(certificate, describe(), signing_key=key) as stage,
        stage.consumer(trusted_keys=TrustedKeys([key.public])) as consumer,
    ):
        publication = await stage.publish(1)
        segment = publication.segment()
        await segment.put_layer(0, *stage.layer(0, 1))
        retrieval = await consumer.retrieve(stage.descriptor, prompt(stage.descriptor, 1))
        assert (await anext(retrieval)).index == 0
        monkeypatch.setattr(cose, "sign", lambda payload, key: sign(payload, key)[:-1] + b"x")
        await produce_rest(segment, stage)
        with pytest.raises(SignatureInvalid):
            async for _ in retrieval:
                pass
        with pytest.raises(SignatureInvalid):
            await retrieval.finished()


async def produce_rest(segment: Any, stage: Any) -> None:
    publication = segment.publication
    publication._production._is_manifest_due = True
    for layer in (1, 2):
        await segment.put_layer(layer, *stage.layer(layer, 1))
    await segment.complete()


async def test_signatures_cannot_be_required_without_keys(certificate: CertificatePair) -> None:
    async with staged(certificate, describe()) as stage:
        with pytest.raises(ValueError, match="needs trusted_keys"):
            async with stage.consumer(require_signature=True):
                pass
