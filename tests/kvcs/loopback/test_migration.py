"""Retrievals that are sent elsewhere: GOAWAY of their session, and redirects (KVCS 5.4)."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

import moqt
from kvcs.errors import PublicationNotFound
from kvcs.names import MANIFEST
from moqt.errors import FollowFailed, RequestRejected
from moqt.types import FullTrackName
from tests.kvcs.stage import CONSUMING, QUICK, check, produce, staged, take, until
from tests.kvcs.support import describe, prompt

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from kvcs.publisher import Producer
    from moqt.session.publish.directory import TrackDirectory
    from moqt.tls import CertificatePair

pytestmark = [
    pytest.mark.usefixtures("no_leaks"),
]
both_loops = pytest.mark.asyncio(loop_factories=["asyncio", "uvloop"])


@asynccontextmanager
async def second_server(
    certificate: CertificatePair, directory: TrackDirectory
) -> AsyncIterator[moqt.Server]:
    async with moqt.serve(
        "127.0.0.1",
        0,
        certificate=certificate.certificate,
        private_key=certificate.private_key,
        directory=directory,
        transport_config=QUICK,
    ) as server:
        yield server


def server_of(producer: Producer) -> moqt.Server:
    server = producer._server
    assert server is not None
    return server


@both_loops
@pytest.mark.parametrize("timeout_ms", [0, 10_000])
async def test_a_server_that_goes_away_in_the_middle_of_a_live_retrieval(
    certificate: CertificatePair, timeout_ms: int
) -> None:
    """9.2#5, #10, 6.6.1#2: bit-exact, each Object once, the old session left with NO_ERROR."""
    descriptor = describe(layers=6)
    async with (
        staged(certificate, descriptor) as stage,
        second_server(certificate, stage.producer.directory) as second,
        stage.consumer() as consumer,
    ):
        first = server_of(stage.producer)
        publication = await stage.publish(3)
        retrieval = await consumer.retrieve(descriptor, prompt(descriptor, 3))
        segment = publication.segment()
        for layer in range(2):
            await segment.put_layer(layer, *stage.layer(layer, 3))
            got = await anext(retrieval)
            check(retrieval, got, descriptor)
        (served,) = first.sessions
        first.goaway(f"moqt://127.0.0.1:{second.port}/", timeout_ms=timeout_ms)
        for layer in range(2, 4):
            await segment.put_layer(layer, *stage.layer(layer, 3))
        await until(lambda: retrieval.stats.moves == 1)
        for layer in range(4, 6):
            await segment.put_layer(layer, *stage.layer(layer, 3))
        await segment.complete()
        assert await take(retrieval, descriptor) == [2, 3, 4, 5]
        end = await served.wait_closed()
        assert (end.code, end.by_peer) == (moqt.SessionErrorCode.NO_ERROR, True)
        assert retrieval.stats.objects == 6 * 2 * 3
        assert (retrieval.stats.moves, retrieval.stats.reconnects) == (1, 0)
        assert retrieval.stats.retries == retrieval.stats.missing == 0
        assert retrieval.missing == ()
        assert len(second.sessions) == 1
        assert consumer.session.remote_address == f"127.0.0.1:{second.port}"


async def test_a_server_that_goes_away_while_a_completed_cache_is_fetched(
    certificate: CertificatePair,
) -> None:
    """9.2#12: held up by flow control in the middle of it; only what lacks comes again."""
    descriptor = describe(layers=8, block_tokens=64, kv_heads=8, head_dim=64)
    narrow = replace(QUICK, connection_window_octets=200_000, stream_window_octets=100_000)
    async with (
        staged(certificate, descriptor) as stage,
        second_server(certificate, stage.producer.directory) as second,
        stage.consumer(transport_config=narrow) as consumer,
    ):
        first = server_of(stage.producer)
        await stage.publish_all(4)
        retrieval = await consumer.retrieve(descriptor, prompt(descriptor, 4))
        await until(lambda: retrieval.stats.objects >= 4)
        (served,) = first.sessions
        first.goaway(f"moqt://127.0.0.1:{second.port}/", timeout_ms=0)
        assert await take(retrieval, descriptor) == list(range(8))
        assert retrieval.stats.objects == 8 * 2 * 4
        await served.wait_closed()


async def test_a_second_retrieval_finds_its_way_after_goaway(
    certificate: CertificatePair,
) -> None:
    """9.2#6: discovery and manifests ask at the next session."""
    descriptor = describe()
    async with (
        staged(certificate, descriptor) as stage,
        second_server(certificate, stage.producer.directory) as second,
        stage.consumer() as consumer,
    ):
        await stage.publish_all(2)
        server_of(stage.producer).goaway(f"moqt://127.0.0.1:{second.port}/")
        for _ in range(2):
            retrieval = await consumer.retrieve(descriptor, prompt(descriptor, 2))
            assert await take(retrieval, descriptor) == [0, 1, 2]
        assert consumer.session.remote_address == f"127.0.0.1:{second.port}"


async def test_discovery_goes_on_at_the_next_session(certificate: CertificatePair) -> None:
    """A publication that appears only after its server went away."""
    import asyncio

    descriptor = describe()
    async with (
        staged(certificate, descriptor) as stage,
        second_server(certificate, stage.producer.directory) as second,
        stage.consumer() as consumer,
    ):
        first = server_of(stage.producer)
        finding = asyncio.create_task(consumer.retrieve(descriptor, prompt(descriptor, 2)))
        (served,) = first.sessions
        await until(lambda: served.stats.open_requests > 0)
        first.goaway(f"moqt://127.0.0.1:{second.port}/")
        await served.wait_closed()
        await stage.publish_all(2)
        retrieval = await finding
        assert await take(retrieval, descriptor) == [0, 1, 2]


@pytest.mark.parametrize("is_elsewhere", [True, False], ids=["with a URI", "in the session"])
async def test_a_manifest_that_is_asked_to_move_takes_the_retrieval_along(
    certificate: CertificatePair, is_elsewhere: bool
) -> None:
    """9.2#7: all that lacks is asked for where GOAWAY on the manifest's stream says."""
    descriptor = describe()
    async with (
        staged(certificate, descriptor) as stage,
        second_server(certificate, stage.producer.directory) as second,
        stage.consumer() as consumer,
    ):
        publication = await stage.publish(2)
        retrieval = await consumer.retrieve(descriptor, prompt(descriptor, 2))
        segment = publication.segment()
        await segment.put_layer(0, *stage.layer(0, 2))
        assert (await anext(retrieval)).index == 0
        (served,) = server_of(stage.producer).sessions
        (manifest,) = served.served_requests(publication._manifest_track.name)
        uri = f"moqt://127.0.0.1:{second.port}/" if is_elsewhere else ""
        served.goaway(uri, request_id=manifest.request_id)
        await until(lambda: retrieval.stats.moves == 1)
        for layer in (1, 2):
            await segment.put_layer(layer, *stage.layer(layer, 2))
        await segment.complete()
        assert await take(retrieval, descriptor) == [1, 2]
        assert retrieval.stats.objects == 12
        assert retrieval.stats.retries == 0
        assert len(second.sessions) == is_elsewhere
        assert not served.is_closed


async def test_the_next_server_lacks_the_publication(certificate: CertificatePair) -> None:
    """6.6.1#2: the old session is used as long as it lasts."""
    descriptor = describe()
    async with (
        staged(certificate, descriptor) as stage,
        second_server(certificate, moqt.TrackDirectory()) as second,
        stage.consumer() as consumer,
    ):
        publication = await stage.publish(2)
        retrieval = await consumer.retrieve(descriptor, prompt(descriptor, 2))
        segment = publication.segment()
        await segment.put_layer(0, *stage.layer(0, 2))
        assert (await anext(retrieval)).index == 0
        server_of(stage.producer).goaway(f"moqt://127.0.0.1:{second.port}/", timeout_ms=0)
        await until(lambda: bool(second.sessions))
        await until(lambda: second.sessions[0].stats.requests_refused >= 2)
        for layer in (1, 2):
            await segment.put_layer(layer, *stage.layer(layer, 2))
        await segment.complete()
        assert await take(retrieval, descriptor) == [1, 2]
        assert retrieval.stats.moves == 0


# Redirects


def move_tracks(source: TrackDirectory, to: TrackDirectory, uri: str, *, only_data: bool) -> None:
    """Serve the tracks of one directory from another, and redirect whoever asks the first."""
    for track in source.tracks():
        if only_data and track.name.name == MANIFEST:
            continue
        source.advertise(track.name.namespace)
        source.remove(track)
        to.add(track)
        moved = RequestRejected(
            moqt.RequestErrorCode.REDIRECT, "moved", redirect_uri=uri, redirect_name=track.name
        )
        source.refuse(track.name, moved)


@pytest.mark.parametrize("is_complete", [True, False])
@pytest.mark.parametrize("only_data", [True, False])
async def test_redirects_of_manifest_and_tracks_are_followed(
    certificate: CertificatePair, only_data: bool, is_complete: bool
) -> None:
    """12.3#1: FETCH and SUBSCRIBE of each track, at the session that REDIRECT names."""
    descriptor = describe()
    elsewhere = moqt.TrackDirectory()
    async with (
        staged(certificate, descriptor) as stage,
        second_server(certificate, elsewhere) as second,
        stage.consumer() as consumer,
    ):
        publication = await stage.publish(2)
        await produce(publication, layers=range(3) if is_complete else [0])
        uri = f"moqt://127.0.0.1:{second.port}/"
        move_tracks(stage.producer.directory, elsewhere, uri, only_data=only_data)
        retrieval = await consumer.retrieve(descriptor, prompt(descriptor, 2))
        if not is_complete:
            assert (await anext(retrieval)).index == 0
            segment = publication._segments[0]
            for layer in (1, 2):
                await segment.put_layer(layer, *stage.layer(layer, 2))
        assert await take(retrieval, descriptor) == ([0, 1, 2] if is_complete else [1, 2])
        assert retrieval.stats.objects == 12
        assert retrieval.stats.duplicates == retrieval.stats.retries == 0
        assert len(second.sessions) == 1


async def test_redirects_in_a_circle_end_a_retrieval(certificate: CertificatePair) -> None:
    descriptor = describe()
    async with staged(certificate, descriptor) as stage, stage.consumer() as consumer:
        publication = await stage.publish_all(1)
        directory = stage.producer.directory
        name = publication._manifest_track.name
        other = FullTrackName(moqt.TrackNamespace.of("other"), MANIFEST)
        directory.advertise(publication.namespace)
        directory.remove(publication._manifest_track)
        for here, there in ((name, other), (other, name)):
            directory.refuse(
                here,
                RequestRejected(
                    moqt.RequestErrorCode.REDIRECT, "", redirect_uri="", redirect_name=there
                ),
            )
        with pytest.raises((FollowFailed, PublicationNotFound), match="circle"):
            await consumer.retrieve(
                descriptor, prompt(descriptor, 1), publication=publication.namespace
            )
        assert not consumer.session.is_closed
        assert CONSUMING.max_redirects == 8
