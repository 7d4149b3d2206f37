"""What a consumer asks for on the wire, message by message, and what a producer has to offer."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

import moqt
from kvcs.cose import verify
from kvcs.keys import ProducerKey, TrustedKeys
from kvcs.manifest import Manifest
from moqt.codes import GroupOrder, RequestErrorCode
from moqt.errors import RequestRejected
from moqt.events import ObjectReceived
from moqt.session.discover.namespaces import Namespaces
from moqt.session.publish.publisher import Publisher
from moqt.types import Location
from moqt.wire.filters import IdRange, LocationFilter, RangeFilter, RangeFilterKind
from moqt.wire.messages import Fetch, Subscribe, SubscribeNamespace
from tests.kvcs.stage import QUICK, produce, staged, take
from tests.kvcs.support import describe, prefix_of, prompt

if TYPE_CHECKING:
    from collections.abc import Iterator

    from moqt.tls import CertificatePair

pytestmark = pytest.mark.usefixtures("no_leaks")

Asked = Subscribe | Fetch | SubscribeNamespace


@contextmanager
def noted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Asked]]:
    """Collect the requests that reach any server, in order."""
    asked: list[Asked] = []
    for owner, name in (
        (Publisher, "on_subscribe"),
        (Publisher, "on_fetch"),
        (Namespaces, "on_subscribe_namespace"),
    ):
        original = getattr(owner, name)

        def note(
            self: object,
            stream: object,
            message: Asked,
            *rest: object,
            original: object = original,
            **named: object,
        ) -> None:
            asked.append(message)
            assert callable(original)
            original(self, stream, message, *rest, **named)

        monkeypatch.setattr(owner, name, note)
    yield asked


def of_track(asked: list[Asked], name: bytes) -> list[Subscribe | Fetch]:
    return [a for a in asked if isinstance(a, Subscribe | Fetch) and a.name.name == name]


async def test_a_cache_in_production_is_asked_for_by_next_object_and_fill(
    certificate: CertificatePair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K5.1#1, K5.2#1, K5.2#2, K5.2#4, K5.2#5."""
    descriptor = describe()
    with noted(monkeypatch) as asked:
        async with staged(certificate, descriptor) as stage, stage.consumer() as consumer:
            publication = await stage.publish(3)
            segment = publication.segment()
            await segment.put_layer(0, *stage.layer(0, 3))
            retrieval = await consumer.retrieve(descriptor, prompt(descriptor, 3))
            assert (await anext(retrieval)).index == 0
            for layer in range(1, descriptor.layers):
                await segment.put_layer(layer, *stage.layer(layer, 3))
            await segment.complete()
            assert await take(retrieval, descriptor) == list(range(1, descriptor.layers))
    prefix = prefix_of(descriptor, 3)
    first = asked[0]
    assert isinstance(first, SubscribeNamespace)
    assert list(first.prefix) == [
        b"kvcs-1",
        prefix.scope_id,
        prefix.compatibility_id,
        prefix.anchor_key(3),
    ]
    manifests = [a.name.name for a in asked if isinstance(a, Subscribe)][:2]
    assert manifests == [b"manifest.cose", b"manifest"]
    wanted = {b"k.raw.s0": LocationFilter.absolute(Location(0, 0))}
    wanted[b"v.raw.s0"] = wanted[b"k.raw.s0"]
    wanted[b"manifest"] = LocationFilter.relative(1)
    for name, fill in wanted.items():
        (message,) = of_track(asked, name)
        assert isinstance(message, Subscribe)
        assert message.parameters.location_filter == LocationFilter.next_object()
        assert message.parameters.fill is not None
        assert message.parameters.fill.location_filter == fill


@pytest.mark.parametrize("ranges", [32, 0])
async def test_a_completed_cache_is_fetched_by_group_range_in_ascending_order(
    certificate: CertificatePair, monkeypatch: pytest.MonkeyPatch, ranges: int
) -> None:
    """K5.3#1, K5.3#2, K5.3#3: of the first blocks too, where the peer takes filters or not."""
    descriptor = describe(layers=5)
    config = moqt.SessionConfig(max_filter_ranges=ranges)
    with noted(monkeypatch) as asked:
        async with (
            staged(certificate, descriptor, session_config=config) as stage,
            stage.consumer() as consumer,
        ):
            await stage.publish_all(4)
            retrieval = await consumer.retrieve(
                descriptor, prompt(descriptor, 4), layers=range(1, 4), blocks=2
            )
            assert await take(retrieval, descriptor) == [1, 2, 3]
    for name in (b"k.raw.s0", b"v.raw.s0"):
        (message,) = of_track(asked, name)
        assert isinstance(message, Fetch)
        parameters = message.parameters
        assert parameters.location_filter == LocationFilter.groups(first=1, last=3)
        assert parameters.group_order in (None, GroupOrder.ASCENDING)  # absent is ascending
        first_two = RangeFilter(RangeFilterKind.OBJECT_ID, (IdRange(0, 1),))
        assert parameters.range_filters == ((first_two,) if ranges else ())


@pytest.mark.parametrize("signs", [True, False])
async def test_a_publication_has_one_manifest_track(
    certificate: CertificatePair, signs: bool
) -> None:
    """K3.6#2, K3.6#8: and does not say deterministic by itself."""
    key = ProducerKey.generate() if signs else None
    async with (
        staged(certificate, describe(), signing_key=key) as stage,
        moqt.connect(
            stage.url, ca=stage.certificate.certificate, transport_config=QUICK
        ) as session,
    ):
        publication = await stage.publish(2)
        await produce(publication)
        there, absent = (
            (b"manifest.cose", b"manifest") if signs else (b"manifest", b"manifest.cose")
        )
        await session.track_status(publication.name.track(there))
        with pytest.raises(RequestRejected) as refused:
            await session.track_status(publication.name.track(absent))
        assert refused.value.code is RequestErrorCode.DOES_NOT_EXIST
        newest: bytes | None = None
        async with session.fetch(publication.name.track(there)) as fetch:
            async for item in fetch:
                if isinstance(item, ObjectReceived):
                    newest = bytes(item.object.payload or b"")
        assert newest is not None
        if key is not None:
            newest = bytes(verify(newest, TrustedKeys([key.public])))
        assert Manifest.load(newest).deterministic is False
