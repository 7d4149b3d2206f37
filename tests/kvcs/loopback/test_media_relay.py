"""A relay for live media: the newest matters, and what it cannot do it says late or not at all.

Older Groups of a live track are dropped whole, a FETCH of several Groups is refused, a fill of
several is reset before its header, and filters of Object IDs are not taken (KVCS 5.2 to 5.4).
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from kvcs.keys import ProducerKey, TrustedKeys
from moqt.codes import RequestErrorCode, StreamResetCode
from moqt.session.config import SessionConfig
from moqt.session.publish.publisher import Publisher
from moqt.session.publish.served_subscription import ServedSubscription
from moqt.wire.messages import RequestError
from tests.kvcs.stage import CONSUMING, produce, staged, take, until
from tests.kvcs.support import describe, prompt

if TYPE_CHECKING:
    from moqt.session.publish.history import StoredSubgroup
    from moqt.session.request.requests import RequestStream
    from moqt.tls import CertificatePair
    from moqt.wire.messages import Fetch
    from moqt.wire.params import FillParameters

pytestmark = pytest.mark.usefixtures("no_leaks")

DESCRIPTOR = describe(layers=6)
BLOCKS = 3
K, V = b"k.raw.s0", b"v.raw.s0"
TAKES_NO_RANGES = SessionConfig(max_filter_ranges=0)
HASTY = replace(CONSUMING, overtaken_timeout_s=0.05)


class MediaRelay:
    """Makes every publisher behave so; `drops`: Groups that no subscription is sent."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, drops: frozenset[tuple[bytes, int]] = frozenset()
    ) -> None:
        self.dropped: set[tuple[bytes, int]] = set()
        self.fills_reset: list[bytes] = []
        self.fetches_refused: list[bytes] = []
        self.groups_fetched: set[tuple[bytes, int]] = set()
        on_fetch = Publisher.on_fetch
        fill = ServedSubscription.fill
        subgroup_opened = ServedSubscription.subgroup_opened

        def fetch(publisher: Publisher, stream: RequestStream, message: Fetch, now: float) -> None:
            assert publisher._directory is not None
            track = publisher._directory.find(message.name)
            location = message.parameters.location_filter
            assert track is not None
            assert location is not None
            wanted = location.resolve_fetch(track.largest)
            assert wanted.end is not None
            if wanted.start.group_id == wanted.end.group_id:
                self.groups_fetched.add((track.name.name, wanted.start.group_id))
                on_fetch(publisher, stream, message, now)
                return
            self.fetches_refused.append(track.name.name)
            reason = "FETCH spanning several groups not supported"
            stream.send(RequestError(code=RequestErrorCode.NOT_SUPPORTED, reason=reason))
            stream.finish()

        def reset_fill(
            subscription: ServedSubscription, parameters: FillParameters, request_id: int
        ) -> None:
            largest = subscription.track.largest
            wanted = subscription.state.fill_range(parameters, largest)
            if wanted is None or largest is None:
                return
            last = largest if wanted.end is None else min(wanted.end, largest)
            if wanted.start.group_id == last.group_id:
                fill(subscription, parameters, request_id)
                return
            self.fills_reset.append(subscription.track.name.name)
            transport = subscription._context.transport
            stream_id = transport.open(bidirectional=False)
            assert stream_id is not None
            transport.reset(stream_id, StreamResetCode.INTERNAL_ERROR)

        def opened(subscription: ServedSubscription, subgroup: StoredSubgroup) -> None:
            group = (subscription.track.name.name, subgroup.group_id)
            if group in drops:
                self.dropped.add(group)
            else:
                subgroup_opened(subscription, subgroup)

        monkeypatch.setattr(Publisher, "on_fetch", fetch)
        monkeypatch.setattr(ServedSubscription, "fill", reset_fill)
        monkeypatch.setattr(ServedSubscription, "subgroup_opened", opened)


@pytest.mark.parametrize("blocks", [BLOCKS, 2])
async def test_a_live_cache_comes_whole_through_a_relay_for_media(
    certificate: CertificatePair, monkeypatch: pytest.MonkeyPatch, blocks: int
) -> None:
    """K5.3#3: what was dropped, or was to come by a fill, is fetched Group by Group."""
    drops = frozenset({(K, 3), (K, 4), (V, 4)})
    relay = MediaRelay(monkeypatch, drops)
    key = ProducerKey.generate()
    async with (
        asyncio.timeout(30),
        staged(certificate, DESCRIPTOR, signing_key=key, session_config=TAKES_NO_RANGES) as stage,
        stage.consumer(
            config=HASTY, trusted_keys=TrustedKeys([key.public]), require_signature=True
        ) as consumer,
    ):
        publication = await stage.publish(BLOCKS)
        await produce(publication, layers=range(2))
        retrieval = await consumer.retrieve(DESCRIPTOR, prompt(DESCRIPTOR, BLOCKS), blocks=blocks)
        await until(lambda: sorted(relay.fills_reset) == [K, V])
        (segment,) = publication.segments
        for layer in range(2, 6):
            await segment.put_layer(layer, *stage.layer(layer, BLOCKS))
        await segment.complete()
        assert await take(retrieval, DESCRIPTOR) == [0, 1, 2, 3, 4, 5]
        assert relay.dropped == drops
        assert relay.groups_fetched >= drops | {(track, at) for track in (K, V) for at in (0, 1)}
        stats = retrieval.stats
        assert retrieval.is_signed
        assert (stats.objects, stats.missing, stats.rejected_objects) == (12 * blocks, 0, 0)
        assert stats.retries >= 1
        assert stats.reconnects == 0
        # No Object ID can be filtered there: surplus blocks of whole Groups come, and are left.
        assert (stats.discarded > 0) is (blocks < BLOCKS)


async def test_a_complete_cache_comes_group_by_group_from_a_relay_for_media(
    certificate: CertificatePair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K5.3#3: one FETCH of all layers is refused, so each Group is asked for alone."""
    relay = MediaRelay(monkeypatch)
    async with (
        asyncio.timeout(30),
        staged(certificate, DESCRIPTOR, session_config=TAKES_NO_RANGES) as stage,
        stage.consumer(config=HASTY) as consumer,
    ):
        await stage.publish_all(BLOCKS)
        retrieval = await consumer.retrieve(DESCRIPTOR, prompt(DESCRIPTOR, BLOCKS), blocks=2)
        assert await take(retrieval, DESCRIPTOR) == [0, 1, 2, 3, 4, 5]
        assert sorted(relay.fetches_refused) == [K, V]
        assert relay.groups_fetched == {(track, at) for track in (K, V) for at in range(6)}
        stats = retrieval.stats
        assert (stats.objects, stats.missing, stats.rejected_objects) == (24, 0, 0)
        assert stats.retries == 0


async def test_a_dropped_last_group_is_found_when_the_track_ends(
    certificate: CertificatePair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing overtakes it, so PUBLISH_DONE is what tells."""
    drops = frozenset({(K, 5), (V, 5)})
    relay = MediaRelay(monkeypatch, drops)
    async with (
        asyncio.timeout(30),
        staged(certificate, DESCRIPTOR, session_config=TAKES_NO_RANGES) as stage,
        stage.consumer(config=HASTY) as consumer,
    ):
        publication = await stage.publish(BLOCKS)
        retrieval = await consumer.retrieve(DESCRIPTOR, prompt(DESCRIPTOR, BLOCKS))
        segment = publication.segment(blocks=BLOCKS)
        await until(lambda: retrieval.stats.open_requests == 2)
        for layer in range(6):
            await segment.put_layer(layer, *stage.layer(layer, BLOCKS))
        await segment.complete()
        assert await take(retrieval, DESCRIPTOR) == [0, 1, 2, 3, 4, 5]
        assert relay.dropped == drops
        assert relay.groups_fetched >= drops
        assert retrieval.stats.objects == 36
