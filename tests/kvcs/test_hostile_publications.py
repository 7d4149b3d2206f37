"""Publications under one prefix, some of which are not what they say."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from kvcs.consumer import Consumer
from kvcs.errors import PublicationUnusable
from kvcs.geometry import SegmentSpan
from kvcs.kvsp.identity import Prefix
from kvcs.manifest import Manifest, SegmentEntry
from kvcs.names import MANIFEST, DataTrackName, PublicationName, new_publication_id
from kvcs.publisher import Producer
from moqt.session.publish.source import TrackSource
from tests.kvcs.stage import CONSUMING, PRODUCING, QUICK
from tests.kvcs.support import SCOPE, describe, octets_of, tensors

if TYPE_CHECKING:
    from moqt.tls import CertificatePair

DESCRIPTOR = describe(layers=2)
BLOCKS = 3
TOKENS = list(range(BLOCKS * DESCRIPTOR.block_tokens))


def impostor(prefix: Prefix) -> TrackSource:
    """Return the manifest track of a publication whose segment is of other tokens."""
    entry = SegmentEntry(
        span=SegmentSpan(segment=0, first_block=0, blocks=BLOCKS),
        block_keys_sha256=bytes(32),
        tracks=(DataTrackName.parse("k.raw.s0"), DataTrackName.parse("v.raw.s0")),
        complete=False,
    )
    manifest = Manifest(descriptor=prefix.descriptor, deterministic=False, segments=(entry,))
    name = PublicationName.of(prefix, new_publication_id())
    track = TrackSource(name.track(MANIFEST, PRODUCING.namespace_form))
    writer = track.open_group(0, publisher_priority=0)
    writer.write(0, manifest.dump())
    writer.close()
    return track


async def test_a_publication_of_other_tokens_does_not_hide_the_right_one(
    certificate: CertificatePair, no_leaks: None
) -> None:
    async with (
        asyncio.timeout(30),
        Producer.serve(
            "127.0.0.1",
            0,
            scope=SCOPE,
            certificate=certificate.certificate,
            private_key=certificate.private_key,
            config=PRODUCING,
            transport_config=QUICK,
        ) as producer,
    ):
        producer.directory.add(impostor(Prefix.of(SCOPE, DESCRIPTOR, TOKENS)))
        publication = await producer.publish(DESCRIPTOR, TOKENS)
        segment = publication.segment()
        for layer in range(DESCRIPTOR.layers):
            await segment.put_layer(layer, *tensors(DESCRIPTOR, layer, BLOCKS))
        await segment.complete()
        await segment.complete()  # harmless, as said

        async with Consumer.connect(
            f"moqt://127.0.0.1:{producer.port}/",
            scope=SCOPE,
            ca=certificate.certificate,
            config=CONSUMING,
            transport_config=QUICK,
        ) as consumer:
            retrieval = await consumer.retrieve(DESCRIPTOR, TOKENS)
            assert retrieval.publication == publication.namespace
            async for usable in retrieval:
                k, _ = tensors(DESCRIPTOR, usable.index, BLOCKS)
                assert octets_of(usable.k) == octets_of(k)
            assert retrieval.stats.layers == DESCRIPTOR.layers


async def test_dead_publications_are_tried_no_longer_than_said(
    certificate: CertificatePair, no_leaks: None
) -> None:
    async with (
        asyncio.timeout(30),
        Producer.serve(
            "127.0.0.1",
            0,
            scope=SCOPE,
            certificate=certificate.certificate,
            private_key=certificate.private_key,
            config=PRODUCING,
            transport_config=QUICK,
        ) as producer,
        Consumer.connect(
            f"moqt://127.0.0.1:{producer.port}/",
            scope=SCOPE,
            ca=certificate.certificate,
            config=replace(CONSUMING, discovery_timeout_s=0.0, manifest_timeout_s=0.2),
            transport_config=QUICK,
        ) as consumer,
    ):
        prefix = Prefix.of(SCOPE, DESCRIPTOR, TOKENS)
        silent = [
            TrackSource(PublicationName.of(prefix, new_publication_id()).track(MANIFEST))
            for _ in range(8)
        ]
        for track in silent:
            producer.directory.add(track)
        with pytest.raises(PublicationUnusable):
            await consumer.retrieve(DESCRIPTOR, TOKENS)
        assert consumer.session.stats.requests_sent < 2 * len(silent)  # two for each manifest
