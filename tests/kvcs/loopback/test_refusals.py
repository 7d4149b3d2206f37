"""Publishers that refuse fills and FETCHes of several Groups, as some relays do (KVCS 5.2, 5.3)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from moqt.codes import RequestErrorCode
from moqt.session.publish.publisher import Publisher
from moqt.wire.messages import RequestError
from tests.kvcs.stage import produce, staged, take, until
from tests.kvcs.support import describe, prompt

if TYPE_CHECKING:
    from moqt.session.request.requests import RequestStream
    from moqt.tls import CertificatePair
    from moqt.wire.messages import Fetch, Subscribe

pytestmark = pytest.mark.usefixtures("no_leaks")

REFUSALS = [RequestErrorCode.NOT_SUPPORTED, RequestErrorCode.INTERNAL_ERROR]

DESCRIPTOR = describe(layers=4)
TOKENS = prompt(DESCRIPTOR, 3)


class Refusing:
    """Makes every publisher refuse; counts what it refused and what it took."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, code: RequestErrorCode, *, fills: bool
    ) -> None:
        self.fills_refused = 0
        self.fetches_refused = 0
        self.taken: list[bytes] = []
        """Tracks whose subscription was accepted."""
        self.groups_fetched: list[tuple[bytes, int]] = []
        on_fetch = Publisher.on_fetch
        on_subscribe = Publisher.on_subscribe

        def refuse(stream: RequestStream) -> None:
            stream.send(RequestError(code=code, reason="not by this relay"))
            stream.finish()

        def fetch(publisher: Publisher, stream: RequestStream, message: Fetch, now: float) -> None:
            assert publisher._directory is not None
            track = publisher._directory.find(message.name)
            location = message.parameters.location_filter
            assert track is not None
            assert location is not None
            wanted = location.resolve_fetch(track.largest)
            assert wanted.end is not None
            if wanted.start.group_id != wanted.end.group_id:
                self.fetches_refused += 1
                refuse(stream)
                return
            self.groups_fetched.append((message.name.name, wanted.start.group_id))
            on_fetch(publisher, stream, message, now)

        def subscribe(
            publisher: Publisher, stream: RequestStream, message: Subscribe, now: float
        ) -> None:
            if fills and message.parameters.fill is not None and message.name.name[:2] == b"k.":
                self.fills_refused += 1
                refuse(stream)
                return
            self.taken.append(message.name.name)
            on_subscribe(publisher, stream, message, now)

        monkeypatch.setattr(Publisher, "on_fetch", fetch)
        monkeypatch.setattr(Publisher, "on_subscribe", subscribe)


@pytest.mark.parametrize("code", REFUSALS)
async def test_a_fetch_of_all_layers_becomes_one_a_group(
    certificate: CertificatePair, monkeypatch: pytest.MonkeyPatch, code: RequestErrorCode
) -> None:
    refusing = Refusing(monkeypatch, code, fills=False)
    async with (
        asyncio.timeout(20),
        staged(certificate, DESCRIPTOR) as stage,
        stage.consumer() as consumer,
    ):
        await stage.publish_all(3)
        retrieval = await consumer.retrieve(DESCRIPTOR, TOKENS, layers=(1, 3))
        assert await take(retrieval, DESCRIPTOR) == [1, 2, 3]
        assert refusing.fetches_refused == 2
        assert sorted(refusing.groups_fetched) == [
            (name, layer) for name in (b"k.raw.s0", b"v.raw.s0") for layer in (1, 2, 3)
        ]
        stats = retrieval.stats
        assert (stats.objects, stats.objects_received, stats.retries) == (18, 18, 0)


@pytest.mark.parametrize("code", REFUSALS)
@pytest.mark.parametrize("before", [0, 2])
async def test_a_refused_fill_is_fetched_group_by_group_while_the_rest_comes_live(
    certificate: CertificatePair,
    monkeypatch: pytest.MonkeyPatch,
    code: RequestErrorCode,
    before: int,
) -> None:
    refusing = Refusing(monkeypatch, code, fills=True)
    async with (
        asyncio.timeout(20),
        staged(certificate, DESCRIPTOR) as stage,
        stage.consumer() as consumer,
    ):
        publication = await stage.publish(3)
        await produce(publication, layers=range(before))
        retrieval = await consumer.retrieve(DESCRIPTOR, TOKENS)
        await until(lambda: {b"k.raw.s0", b"v.raw.s0"} <= {*refusing.taken})
        await until(lambda: retrieval.stats.objects == before * 6)
        (segment,) = publication.segments
        for layer in range(before, 4):
            await segment.put_layer(layer, *stage.layer(layer, 3))
        await segment.complete()
        assert await take(retrieval, DESCRIPTOR) == [0, 1, 2, 3]
        assert refusing.fills_refused == 1
        assert sorted(refusing.groups_fetched) == [(b"k.raw.s0", at) for at in range(before)]
        assert refusing.fetches_refused == 0
        assert retrieval.stats.objects == retrieval.stats.objects_received == 24
