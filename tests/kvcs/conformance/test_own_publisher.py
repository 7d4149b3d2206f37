"""The publisher of this package conforms, whatever it publishes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from kvcs.config import ProducerConfig
from kvcs.conformance import Limits, Verdict, judge
from kvcs.keys import ProducerKey, SigningAlgorithm, TrustedKeys
from kvcs.names import NamespaceForm
from tests.kvcs.conformance.observing import observe
from tests.kvcs.stage import PRODUCING, produce, staged, until
from tests.kvcs.support import describe

if TYPE_CHECKING:
    from kvcs.conformance import PublicationReport
    from moqt.tls import CertificatePair

pytestmark = pytest.mark.usefixtures("no_leaks")

DESCRIPTOR = describe(layers=4)

ENDED = {"end-of-group", "group-order", "manifest-history"}
"""What cannot be seen of a publication that was complete before."""


def check(report: PublicationReport, *, unseen: set[str]) -> None:
    assert report.failed() == ()
    assert report.cut == ""
    assert set(report.ids(Verdict.NOT_APPLICABLE)) == unseen


@pytest.mark.parametrize("codec", ["raw", "zstd", "bszstd"])
@pytest.mark.parametrize("is_signed", [False, True])
async def test_a_completed_publication(
    certificate: CertificatePair, codec: str, is_signed: bool
) -> None:
    key = ProducerKey.generate(SigningAlgorithm.ES256) if is_signed else None
    trusted = None if key is None else TrustedKeys([key.public])
    async with asyncio.timeout(60), staged(certificate, DESCRIPTOR, signing_key=key) as stage:
        publication = await stage.publish(5)
        await produce(publication, 3, codec=codec)
        await produce(publication, 2, codec=codec)
        (evidence,) = await observe(stage.url, certificate, trusted=trusted)
    assert evidence.manifests[-1].reading.is_verified is is_signed
    unseen = ENDED | {"encodings-agree"} | (set() if is_signed else {"manifest-signature"})
    check(judge(evidence), unseen=unseen)


async def test_a_publication_in_production(certificate: CertificatePair) -> None:
    async with (
        asyncio.timeout(60),
        staged(certificate, DESCRIPTOR) as stage,
        asyncio.TaskGroup() as group,
    ):
        publication = await stage.publish(5)
        segment = publication.segment(blocks=3)
        await segment.put_layer(0, *stage.layer(0, 3))
        observing = group.create_task(observe(stage.url, certificate))
        await until(lambda: stage.producer.stats.open_requests >= 3)
        for layer in range(1, 4):
            await segment.put_layer(layer, *stage.layer(layer, 3))
        await segment.complete()
        await produce(publication, 2, codec="zstd", joint=True)
        (evidence,) = await observing
    check(judge(evidence), unseen={"encodings-agree", "manifest-signature"})


async def test_the_same_tensors_in_several_encodings(certificate: CertificatePair) -> None:
    async with asyncio.timeout(60), staged(certificate, DESCRIPTOR) as stage:
        publication = await stage.publish(2)
        await produce(publication, also=[("raw", True), ("zstd", False), ("bszstd", True)])
        (evidence,) = await observe(stage.url, certificate)
    assert len(evidence.tracks) == 6
    check(judge(evidence), unseen=ENDED | {"manifest-signature"})


async def test_layers_without_a_v_tensor(certificate: CertificatePair) -> None:
    descriptor = describe(layers=3, layer_overrides={1: {"v_head_dim": 0}})
    async with asyncio.timeout(60), staged(certificate, descriptor) as stage:
        await stage.publish_all(2)
        (evidence,) = await observe(stage.url, certificate)
    check(judge(evidence), unseen=ENDED | {"encodings-agree", "manifest-signature"})


async def test_a_hexadecimal_namespace_conforms_only_where_it_is_asked_for(
    certificate: CertificatePair,
) -> None:
    config = ProducerConfig(thread_octets=0, namespace_form=NamespaceForm.HEX)
    async with asyncio.timeout(60), staged(certificate, DESCRIPTOR, config=config) as stage:
        await stage.publish_all(2)
        (evidence,) = await observe(stage.url, certificate, form=NamespaceForm.HEX)
        (misread,) = await observe(stage.url, certificate)
    assert judge(evidence).failed() == ()
    assert set(judge(misread).failed()) == {"namespace-lengths", "compatibility-id"}


async def test_production_that_does_not_end_is_looked_at_as_far_as_it_came(
    certificate: CertificatePair,
) -> None:
    limits = Limits(listen_s=0.5, timeout_s=2.0)
    async with asyncio.timeout(60), staged(certificate, DESCRIPTOR) as stage:
        publication = await stage.publish(2)
        await produce(publication, layers=range(2))
        (evidence,) = await observe(stage.url, certificate, limits=limits)
        await publication.abort()
    report = judge(evidence)
    assert report.failed() == ()
    assert "2 s" in report.cut
    assert {"end-of-track", "digests-listed"} <= set(report.ids(Verdict.NOT_APPLICABLE))
    assert {"exactly-once", "data-digest", "fetch-range"} <= set(report.ids(Verdict.PASS))


async def test_several_publications_are_told_apart(certificate: CertificatePair) -> None:
    async with asyncio.timeout(60), staged(certificate, DESCRIPTOR) as stage:
        made = [await stage.publish_all(2), await stage.publish_all(3)]
        found = await observe(stage.url, certificate)
        few = await observe(stage.url, certificate, limits=Limits(listen_s=0.5, max_publications=1))
    assert {each.namespace for each in found} == {each.namespace for each in made}
    assert len(few) == 1
    assert [judge(each).failed() for each in found] == [(), ()]


@pytest.mark.parametrize(
    ("limits", "cut"),
    [
        (Limits(listen_s=0.5, max_objects=5), "more than 5 Objects"),
        (Limits(listen_s=0.5, max_tracks=1), "more than 1 data tracks"),
        (Limits(listen_s=0.5, max_manifests=1), "more than 1 manifest versions"),
        (Limits(listen_s=0.5, manifest_octets=100), "more than 100 octets of manifests"),
    ],
)
async def test_no_table_grows_beyond_its_limit(
    certificate: CertificatePair, limits: Limits, cut: str
) -> None:
    async with (
        asyncio.timeout(60),
        staged(certificate, DESCRIPTOR, config=PRODUCING) as stage,
    ):
        await stage.publish_all(3)
        (evidence,) = await observe(stage.url, certificate, limits=limits)
    assert evidence.cut == cut
    records = sum(len(track.objects) for track in evidence.tracks.values())
    assert records <= limits.max_objects
    assert len(evidence.tracks) <= limits.max_tracks
    assert judge(evidence).failed() == ()
