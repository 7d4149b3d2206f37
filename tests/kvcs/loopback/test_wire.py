"""What a producer sends, as any subscriber sees it: Groups, ends, priorities, manifests."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

import moqt
from kvcs.manifest import Manifest
from kvcs.payload import HEADER_OCTETS, parse_header
from moqt.codes import ObjectStatus, PublishDoneCode
from moqt.events import ObjectReceived, SubgroupEnded
from tests.kvcs.stage import QUICK, Stage, staged, take
from tests.kvcs.support import describe, prompt

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from moqt.tls import CertificatePair

pytestmark = pytest.mark.usefixtures("no_leaks")


@asynccontextmanager
async def raw_session(stage: Stage) -> AsyncIterator[moqt.MoqtSession]:
    async with moqt.connect(
        stage.url, ca=stage.certificate.certificate, transport_config=QUICK
    ) as session:
        yield session


async def test_groups_ends_and_priorities_of_a_data_track(certificate: CertificatePair) -> None:
    """K3.3#1, K3.3#4, K3.3#5, K3.3#6, K3.4#1, K3.4#5, K3.5#2."""
    layers, blocks = 5, 3
    descriptor = describe(layers=layers)
    async with staged(certificate, descriptor) as stage, raw_session(stage) as session:
        publication = await stage.publish(blocks)
        segment = publication.segment()
        found: list[tuple[int, int, ObjectStatus]] = []
        ended: list[int] = []
        async with (
            asyncio.timeout(20),
            session.subscribe(publication.name.track(b"v.raw.s0")) as subscription,
        ):
            for layer in range(layers):
                await segment.put_layer(layer, *stage.layer(layer, blocks))
            await segment.complete()
            async for item in subscription:
                if isinstance(item, SubgroupEnded):
                    assert item.reset is None
                    ended.append(item.group_id)
                if not isinstance(item, ObjectReceived):
                    continue
                header = item.object.header
                found.append((header.group_id, header.object_id, header.status))
                if header.status is not ObjectStatus.NORMAL:
                    continue
                assert header.subgroup_id == 0
                assert header.publisher_priority == 128 * header.group_id // layers
                assert item.object.payload is not None
                said = parse_header(item.object.payload)
                assert (said.layer, said.block_index) == (header.group_id, header.object_id)
                assert said.data_length == header.payload_length - HEADER_OCTETS
                assert (said.flags, said.reserved) == (0, 0)
            assert subscription.done is not None
            assert subscription.done.code is PublishDoneCode.TRACK_ENDED
            assert subscription.done.streams_missing == 0
        expected = [
            (layer, at, ObjectStatus.END_OF_GROUP if at == blocks else ObjectStatus.NORMAL)
            for layer in range(layers)
            for at in range(blocks + 1)
        ]
        assert sorted(found, key=lambda one: one[:2]) == [
            *expected,
            (layers, 0, ObjectStatus.END_OF_TRACK),
        ]
        for layer in range(layers):  # streams interleave, the Objects of one do not
            assert [one for one in found if one[0] == layer] == [
                one for one in expected if one[0] == layer
            ]
        assert sorted(ended) == list(range(layers + 1))


@pytest.mark.parametrize("segments", [(2,), (1, 1)])
async def test_a_manifest_version_comes_at_least_every_eight_layers(
    certificate: CertificatePair, segments: tuple[int, ...]
) -> None:
    """K3.4#6, K3.6#1, K3.6#6, K3.6#9."""
    layers = 20
    descriptor = describe(layers=layers, v_head_dim=0)
    async with staged(certificate, descriptor) as stage, raw_session(stage) as session:
        publication = await stage.publish(sum(segments))
        stats = publication.stats
        seen: list[Manifest] = []
        # From the version there is on: no later one can be published unseen, each is awaited.
        async with (
            asyncio.timeout(20),
            session.subscribe(
                publication.name.track(b"manifest"),
                location_filter=moqt.LocationFilter.absolute(moqt.Location(1, 0)),
            ) as subscription,
        ):

            async def look() -> None:
                while len(seen) + 1 < stats.manifest_versions:
                    item = await anext(subscription)
                    if not isinstance(item, ObjectReceived):
                        continue
                    header = item.object.header
                    assert header.publisher_priority == 0
                    if header.status is ObjectStatus.END_OF_TRACK:
                        continue  # on a stream of its own: it may overtake the last version
                    assert (header.group_id, header.object_id) == (len(seen) + 1, 0)
                    assert item.object.payload is not None
                    seen.append(Manifest.load(item.object.payload))

            for blocks in segments:
                segment = publication.segment(blocks=blocks)
                await look()
                assert seen[-1].segments[-1].span.blocks == blocks
                for layer in range(layers):
                    await segment.put_layer(
                        layer, *stage.layer(layer, blocks, first=segment.first_block)
                    )
                    await look()
                    entry = seen[-1].segments[-1]
                    assert layer + 1 - entry.listed_layers(entry.tracks[0]) < 8
                    assert not entry.complete
                await segment.complete()
                await look()
                entry = seen[-1].segments[-1]
                assert entry.complete
                assert entry.listed_layers(entry.tracks[0]) == layers
            async for item in subscription:
                if isinstance(item, ObjectReceived):
                    assert item.object.status is ObjectStatus.END_OF_TRACK
        assert [len(manifest.segments) for manifest in seen] == sorted(
            len(manifest.segments) for manifest in seen
        )
        assert len(seen) + 1 == stats.manifest_versions


async def test_an_unsigned_publication_is_found_by_one_refusal_more(
    certificate: CertificatePair,
) -> None:
    """K5.2#4."""
    async with staged(certificate, describe()) as stage, stage.consumer() as consumer:
        await stage.publish_all(2)

        retrieval = await consumer.retrieve(stage.descriptor, prompt(stage.descriptor, 2))
        assert not retrieval.is_signed
        assert await take(retrieval, stage.descriptor) == [0, 1, 2]
        assert stage.producer._server is not None
        (session,) = stage.producer._server.sessions
        assert session.stats.requests_refused == 1  # manifest.cose does not exist
