"""A producer that offers its publications to a relay, and keeps that up (MOQT-22 4.1)."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

import moqt
from kvcs.config import ProducerConfig
from kvcs.manifest import Manifest
from kvcs.publisher import Producer
from moqt.codes import RequestErrorCode
from moqt.errors import RequestRejected
from moqt.events import NamespaceOffered, ObjectReceived
from tests.kvcs.stage import QUICK, produce, until
from tests.kvcs.support import SCOPE, describe, prompt

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from moqt.tls import CertificatePair

pytestmark = [pytest.mark.usefixtures("no_leaks")]

DESCRIPTOR = describe()
CONFIG = ProducerConfig(reconnect_delay_s=0.01, retain_bytes=0)


class Relay:
    """Takes what producers offer, as far as a relay has to for them."""

    def __init__(self) -> None:
        self.offered: dict[moqt.TrackNamespace, moqt.MoqtSession] = {}
        self.refuses = False

    async def run(self, server: moqt.Server) -> None:
        async with asyncio.TaskGroup() as group:
            async for session in server:
                group.create_task(self._serve(session, group))

    async def _serve(self, session: moqt.MoqtSession, group: asyncio.TaskGroup) -> None:
        async for offer in session.offers():
            if not isinstance(offer, NamespaceOffered) or self.refuses:
                session.reject(offer, RequestErrorCode.UNAUTHORIZED, "not here")
                continue
            accepted = session.accept_namespace(offer)
            self.offered[offer.namespace] = session
            group.create_task(self._watch(accepted.wait_withdrawn(), offer.namespace))

    async def _watch(self, withdrawn: object, namespace: moqt.TrackNamespace) -> None:
        try:
            await withdrawn  # type: ignore[misc]
        except moqt.errors.SessionClosed:
            pass
        self.offered.pop(namespace, None)


@asynccontextmanager
async def relayed(
    certificate: CertificatePair,
) -> AsyncIterator[tuple[Relay, moqt.Server, Producer]]:
    relay = Relay()
    async with moqt.serve(
        "127.0.0.1",
        0,
        certificate=certificate.certificate,
        private_key=certificate.private_key,
        takes_offers=True,
        transport_config=QUICK,
    ) as server:
        running = asyncio.create_task(relay.run(server))
        try:
            async with Producer.connect(
                f"moqt://127.0.0.1:{server.port}/",
                scope=SCOPE,
                ca=certificate.certificate,
                config=CONFIG,
                transport_config=QUICK,
            ) as producer:
                yield relay, server, producer
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


async def read_manifest(session: moqt.MoqtSession, namespace: moqt.TrackNamespace) -> Manifest:
    name = moqt.FullTrackName(namespace, b"manifest")
    status = await session.track_status(name)
    assert status.largest is not None
    group_id = status.largest.group_id
    where = moqt.LocationFilter.groups(first=group_id, last=group_id)
    async with session.fetch(name, location_filter=where) as fetch:
        async for item in fetch:
            assert isinstance(item, ObjectReceived)
            assert item.object.payload is not None
            return Manifest.load(item.object.payload)
    raise AssertionError("no manifest")


async def test_publications_are_offered_served_and_withdrawn(certificate: CertificatePair) -> None:
    """7.6#1."""
    async with relayed(certificate) as (relay, _, producer):
        publication = await producer.publish(DESCRIPTOR, prompt(DESCRIPTOR, 2))
        assert list(relay.offered) == [publication.namespace]
        await produce(publication)
        session = relay.offered[publication.namespace]
        manifest = await read_manifest(session, publication.namespace)
        assert manifest.segments[0].complete
        assert producer.stats.sessions == 1
        assert [session.is_closed for session in producer.sessions] == [False]
        # The next completed one takes its place.
        other = await producer.publish(DESCRIPTOR, prompt(DESCRIPTOR, 1))
        await produce(other)
        await until(lambda: list(relay.offered) == [other.namespace])
        await other.abort()
        await until(lambda: not relay.offered)
    assert producer.stats.publications == 0


async def test_a_refused_publication_is_not_published(certificate: CertificatePair) -> None:
    async with relayed(certificate) as (relay, _, producer):
        relay.refuses = True
        with pytest.raises(RequestRejected, match="not here"):
            await producer.publish(DESCRIPTOR, prompt(DESCRIPTOR, 2))
        assert producer.publications == ()
        assert len(producer.directory) == 0


async def test_a_lost_relay_is_connected_again_and_told_everything(
    certificate: CertificatePair,
) -> None:
    async with relayed(certificate) as (relay, server, producer):
        publication = await producer.publish(DESCRIPTOR, prompt(DESCRIPTOR, 2))
        (session,) = server.sessions
        await session.close()
        while_lost = await producer.publish(DESCRIPTOR, prompt(DESCRIPTOR, 3))
        names = {publication.namespace, while_lost.namespace}
        await until(lambda: relay.offered.keys() == names)
        await until(lambda: producer.stats.reconnects == 1)
        new = relay.offered[publication.namespace]
        assert new is not session
        assert await read_manifest(new, publication.namespace)


async def test_a_relay_that_goes_away_is_left_for_the_next(certificate: CertificatePair) -> None:
    """9.2#5, 6.6.1#2: everything is offered at its URI first, and what runs is served meanwhile."""
    async with (
        relayed(certificate) as (relay, server, producer),
        relayed(certificate) as (next_relay, next_server, _),
    ):
        publication = await producer.publish(DESCRIPTOR, prompt(DESCRIPTOR, 2))
        (old,) = server.sessions
        name = moqt.FullTrackName(publication.namespace, b"manifest")
        async with old.subscribe(name):
            server.goaway(f"moqt://127.0.0.1:{next_server.port}/", timeout_ms=60_000)
            await until(lambda: publication.namespace in next_relay.offered)
            await until(lambda: publication.namespace not in relay.offered)
            assert not old.is_closed
            other = await producer.publish(DESCRIPTOR, prompt(DESCRIPTOR, 3))
            assert other.namespace in next_relay.offered
            new = next_relay.offered[publication.namespace]
            assert await read_manifest(new, publication.namespace)
            assert (producer.stats.moves, producer.stats.reconnects) == (1, 0)
        await old.close()
        await publication.abort()
        await until(lambda: list(next_relay.offered) == [other.namespace])


async def test_a_relay_that_serves_nobody_is_left_at_once(certificate: CertificatePair) -> None:
    async with relayed(certificate) as (relay, server, producer):
        publication = await producer.publish(DESCRIPTOR, prompt(DESCRIPTOR, 2))
        (old,) = server.sessions
        for moves in (1, 2, 3):
            (session,) = server.sessions
            session.goaway()
            end = await session.wait_closed()
            assert (end.code, end.by_peer) == (moqt.SessionErrorCode.NO_ERROR, True)
            await until(lambda moves=moves: producer.stats.moves == moves)  # type: ignore[misc]
        (new,) = server.sessions
        assert new is not old
        assert await read_manifest(new, publication.namespace)
        assert relay.refuses is False


async def test_a_next_relay_that_is_not_there_does_not_end_the_link(
    certificate: CertificatePair,
) -> None:
    """The old session serves as long as it lasts; then the first address is tried again."""
    async with relayed(certificate) as (relay, server, producer):
        publication = await producer.publish(DESCRIPTOR, prompt(DESCRIPTOR, 2))
        (old,) = server.sessions
        name = moqt.FullTrackName(publication.namespace, b"manifest")
        async with old.subscribe(name) as manifests:
            server.goaway("moqt://127.0.0.1:9/", timeout_ms=0)
            await produce(publication)
            assert isinstance(await anext(manifests), ObjectReceived)
        await old.close()
        await until(lambda: len(server.sessions) == 1 and server.sessions[0] is not old)
        await until(lambda: relay.offered.get(publication.namespace) is server.sessions[0])
        assert producer.stats.moves == 0


async def test_a_relay_that_is_not_there_is_an_error_at_once(certificate: CertificatePair) -> None:
    with pytest.raises(moqt.errors.MoqtError):
        async with Producer.connect(
            "moqt://127.0.0.1:9/",
            scope=SCOPE,
            ca=certificate.certificate,
            transport_config=moqt.TransportConfig(handshake_timeout_s=0.1),
        ):
            pass
