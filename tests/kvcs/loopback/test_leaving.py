"""Publications that go while someone takes them, and counters when all is over."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import moqt
from kvcs.config import ProducerConfig
from kvcs.errors import IncompleteRetrieval, PublicationNotFound
from kvcs.publication import PublicationState
from moqt.errors import StreamReset
from moqt.events import ObjectReceived
from tests.kvcs.stage import QUICK, check, produce, staged, take, until
from tests.kvcs.support import describe, prompt

if TYPE_CHECKING:
    from moqt.asyncio.tracks import Fetch
    from moqt.session.stats import SessionStats
    from moqt.tls import CertificatePair

pytestmark = pytest.mark.usefixtures("no_leaks")

AT_REST = (
    "open_requests",
    "open_streams_received",
    "stray_streams_held",
    "stray_octets_held",
    "octets_unread",
    "octets_withheld",
)


def held(stats: SessionStats) -> dict[str, int]:
    return {name: value for name in AT_REST if (value := getattr(stats, name))}


async def read_to_the_end(fetch: Fetch) -> None:
    async for item in fetch:
        assert isinstance(item, ObjectReceived)


async def test_a_publication_evicted_before_its_objects_were_asked_for_is_all_missing(
    certificate: CertificatePair,
) -> None:
    descriptor = describe()
    async with (
        asyncio.timeout(20),
        staged(certificate, descriptor) as stage,
        stage.consumer() as consumer,
    ):
        publication = await stage.publish_all(2)
        retrieval = await consumer.retrieve(descriptor, prompt(descriptor, 2))
        await stage.producer.withdraw(publication)
        with pytest.raises(IncompleteRetrieval) as caught:
            await take(retrieval, descriptor)
        assert len(caught.value.missing) == retrieval.stats.missing == 12
        assert retrieval.stats.open_requests == 0
        with pytest.raises(PublicationNotFound):
            await consumer.retrieve(descriptor, prompt(descriptor, 2), discovery_timeout_s=0)


async def test_a_retrieval_that_runs_while_its_publication_is_evicted_ends_whole_or_says_what_lacks(
    certificate: CertificatePair,
) -> None:
    descriptor = describe(layers=6, head_dim=2048)
    config = ProducerConfig(retain_bytes=0)
    async with (
        asyncio.timeout(20),
        staged(certificate, descriptor, config=config) as stage,
        stage.consumer() as consumer,
    ):
        publication = await stage.publish_all(4)
        other = await stage.publish(1)
        await produce(other, layers=range(6))
        retrieval = await consumer.retrieve(descriptor, prompt(descriptor, 4))
        first = await anext(retrieval)
        check(retrieval, first, descriptor)
        await other.segments[0].complete()
        assert publication.state is PublicationState.WITHDRAWN
        assert publication.stats.buffered_octets == 0
        taken = [first.index]
        missing_layers: set[int] = set()
        try:
            async for layer in retrieval:
                check(retrieval, layer, descriptor)
                taken.append(layer.index)
        except IncompleteRetrieval as error:
            missing_layers = {one.layer for one in error.missing}
        assert sorted([*taken, *missing_layers]) == list(range(6))
        assert retrieval.is_over
        await until(lambda: not held(consumer.session.stats))


async def test_a_fetch_of_a_withdrawn_publication_is_cut_not_left_open(
    certificate: CertificatePair,
) -> None:
    descriptor = describe(layers=4, head_dim=4096)
    async with (
        asyncio.timeout(20),
        staged(certificate, descriptor) as stage,
        moqt.connect(
            stage.url,
            ca=certificate.certificate,
            config=moqt.SessionConfig(max_buffered_octets=1 << 14),
            transport_config=moqt.TransportConfig(
                close_linger_s=0.01, stream_window_octets=1 << 15, connection_window_octets=1 << 16
            ),
        ) as session,
    ):
        publication = await stage.publish_all(2)
        async with session.fetch(
            publication.name.track(b"k.raw.s0"),
            location_filter=moqt.LocationFilter.groups(first=0, last=3),
        ) as fetch:
            item = await anext(fetch)
            assert isinstance(item, ObjectReceived)
            await publication.abort("wrong weights")  # most Objects don't fit the window
            with pytest.raises(StreamReset):
                await read_to_the_end(fetch)
        await until(lambda: not held(session.stats))


async def test_a_loan_lasts_as_long_as_an_evicted_object_is_in_flight(
    certificate: CertificatePair,
) -> None:
    descriptor = describe(layers=1, head_dim=65536, block_tokens=4, v_head_dim=0)
    async with (
        asyncio.timeout(30),
        staged(certificate, descriptor) as stage,
        moqt.connect(
            stage.url,
            ca=certificate.certificate,
            config=moqt.SessionConfig(max_buffered_octets=1 << 14),
            transport_config=moqt.TransportConfig(
                close_linger_s=0.01, stream_window_octets=1 << 15, connection_window_octets=1 << 16
            ),
        ) as session,
    ):
        publication = await stage.publish(1)
        segment = publication.segment()
        k, _ = stage.layer(0, 1)
        loan = await segment.put_layer(0, k, borrow=True)
        assert loan is not None
        await segment.complete()
        name = publication.name.track(b"k.raw.s0")
        async with session.fetch(
            name, location_filter=moqt.LocationFilter.groups(first=0, last=0)
        ) as fetch:
            await fetch.established()
            assert not loan.is_free
            for track in publication._data_tracks.values():
                track.evict_all()
            assert not loan.is_free  # a megabyte doesn't fit the window: it is in flight
            item = await anext(fetch)
            assert isinstance(item, ObjectReceived)
            assert item.object.payload is not None
            assert bytes(item.object.payload[68:]) == k.view("u1").tobytes()
        await loan
        assert loan.is_free


async def test_counters_return_to_zero_or_only_grow(certificate: CertificatePair) -> None:
    descriptor = describe()
    async with (
        asyncio.timeout(20),
        staged(certificate, descriptor) as stage,
        stage.consumer() as consumer,
    ):
        producer = stage.producer
        assert producer._server is not None
        grown = (0, 0, 0)
        for _ in range(3):
            publication = await stage.publish(3)
            segment = publication.segment()
            retrieval = await consumer.retrieve(descriptor, prompt(descriptor, 3))
            for layer in range(3):
                await segment.put_layer(layer, *stage.layer(layer, 3))
            await segment.complete()
            assert await take(retrieval, descriptor) == [0, 1, 2]
            await until(lambda: consumer.stats.retrievals == 0)
            now = (producer.stats.objects, producer.stats.octets, consumer.stats.objects)
            assert all(new > old for new, old in zip(now, grown, strict=True))
            grown = now
            assert retrieval.stats.open_requests == retrieval.stats.buffered_octets == 0
            (served,) = producer._server.sessions
            for stats in (consumer.session.stats, served.stats):
                await until(lambda stats=stats: not held(stats))  # type: ignore[misc]
            assert served.stats.open_streams_sent == 0
            assert producer.stats.open_requests == 0
            assert producer.stats.buffered_octets == publication.stats.octets
            await publication.abort()
            assert producer.stats.buffered_octets == producer.stats.publications == 0
        assert grown[0] == grown[2] == 3 * 18
        assert consumer.stats.octets == grown[1]
        assert consumer.stats.completed == 3
        assert served.stats.octets_sent >= grown[1]
        assert QUICK.idle_timeout_s > 20  # nothing above was ended by a lost connection
        assert producer.stats.sessions == 1
    assert producer.stats.sessions == 0
