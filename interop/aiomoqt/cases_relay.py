"""Caches through aiomoqt's relay: producer, relay, consumers."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

import kvcs
import moqt
from interop.content.track_content import GROUPS, payload, whole
from interop.harness.caches import (
    Cache,
    consuming,
    fanned_out,
    from_middle,
    late,
    live,
    producing,
    take,
)
from interop.harness.cases import CaseFailed, Direction, PeerLimit, Registry, check
from interop.harness.ours import BINARY, Collection, TestTrack, collect, dial, named
from moqt.events import ObjectReceived, PublicationOffered

if TYPE_CHECKING:
    from interop.harness.processes import PeerProcess
    from interop.harness.stage import Stage

CASES = Registry()
FORM = kvcs.NamespaceForm.BINARY
DEEP = Cache(layers=30)
"""More layers than the relay keeps (8 Groups a track)."""

SHALLOW = Cache(layers=6)
"""Few enough that the relay keeps them all."""

LARGE = 2 << 20
LARGE_TIMEOUT_S = 4.0
PRIORITIES = (0, 31, 127, 128, 255)
MANIFEST_OCTETS = 65536
"""More than all manifests that the relay asks for, and less than one layer."""

UPDATED = "RequestOk(request_id=3"
"""What the relay says when we answered its second update: to forward, for a subscriber is there."""


async def relay(stage: Stage) -> int:
    """Start the relay and return its port."""
    return (await relay_process(stage))[1]


async def relay_process(stage: Stage, *options: object) -> tuple[PeerProcess, int]:
    """Start the relay with further options; return it and its port."""
    port = stage.port()
    process = await stage.module(
        "aiomoqt.tools.moq_interop_relay",
        *("--bind", "127.0.0.1", "--port", port, "--quic", "--draft", 22),
        *("--cert", stage.certificate, "--key", stage.private_key),
        *options,
    )
    await process.serving("Listening on", port)
    return process, port


@CASES.case("cache-live", Direction.THROUGH_PEER, "KVCS 5.2")
async def cache_live(stage: Stage) -> None:
    """A cache of 30 layers, waited for before its first layer."""
    await live(stage, DEEP, await relay(stage), form=FORM)


@CASES.case("cache-middle", Direction.THROUGH_PEER, "KVCS 5.2")
async def cache_middle(stage: Stage) -> None:
    """A cache of 30 layers, joined after 12: a fill, and again the Group that the relay kept."""
    stats = await from_middle(stage, DEEP, await relay(stage), form=FORM)
    check("recovery steps", stats.retries, 0)
    kept = DEEP.objects // DEEP.layers
    check("Objects that came twice, of the kept Group at most", stats.duplicates <= kept, True)


@CASES.case("cache-late", Direction.THROUGH_PEER, "KVCS 5.3")
async def cache_late(stage: Stage) -> None:
    """A complete cache of 30 layers: the relay has none of it and asks upstream."""
    duplicates = await late(stage, DEEP, await relay(stage), form=FORM)
    check("Objects that came twice", duplicates, 0)


@CASES.case("cache-late-evicted", Direction.THROUGH_PEER, "KVCS 5.3")
async def cache_late_evicted(stage: Stage) -> None:
    """A complete cache of 30 layers, of which the relay kept the last: the rest from upstream."""
    port = await relay(stage)
    async with producing(stage, DEEP, port, form=FORM) as production:
        async with (
            consuming(stage, port, form=FORM) as first,
            await first.retrieve(DEEP.descriptor, DEEP.tokens) as retrieval,
        ):
            await production.put(range(DEEP.layers))
            await production.complete()
            await take(DEEP, retrieval)
            async with (
                consuming(stage, port, form=FORM) as second,
                await second.retrieve(DEEP.descriptor, DEEP.tokens) as again,
            ):
                await take(DEEP, again)


@CASES.case("cache-signed", Direction.THROUGH_PEER, "KVCS 3.6, 5.2")
async def cache_signed(stage: Stage) -> None:
    """A cache with a signed manifest, taken by a consumer that demands it."""
    port = await relay(stage)
    key = kvcs.ProducerKey.generate(kvcs.SigningAlgorithm.EDDSA)
    async with (
        producing(stage, SHALLOW, port, form=FORM, key=key) as production,
        consuming(stage, port, form=FORM, key=key) as consumer,
        await consumer.retrieve(SHALLOW.descriptor, SHALLOW.tokens) as retrieval,
    ):
        await production.put(range(SHALLOW.layers))
        await production.complete()
        await take(SHALLOW, retrieval)
        check("signed", retrieval.is_signed, True)


@CASES.case("fan-out", Direction.THROUGH_PEER, "KVCS 5.2, 5.3")
async def fan_out(stage: Stage) -> None:
    """Four consumers that join at different times; the producer sends each Object once."""
    # The relay takes the first Object that it got for the beginning, so layer 0 goes alone; and it
    # forgets a track that ended, so the last one joins before.
    steps = (range(1), range(1, 3), range(3, SHALLOW.layers), range(0))
    sent, data = await fanned_out(stage, SHALLOW, await relay(stage), steps, form=FORM)
    check("octets sent are those of the cache once", data <= sent < data + MANIFEST_OCTETS, True)


@CASES.case("object-ids-through-peer", Direction.THROUGH_PEER, "3.3.2, 9.20.11")
async def object_ids_through_peer(stage: Stage) -> None:
    """OBJECTID_FILTER of 2 to 3, applied by the relay."""
    port = await relay(stage)
    track = TestTrack(BINARY)
    filters = [moqt.RangeFilter(moqt.RangeFilterKind.OBJECT_ID, (moqt.IdRange(2, 3),))]
    async with (
        dial(stage, port, track) as publisher,
        publisher.publish_namespace(BINARY),
        dial(stage, port) as subscriber,
        subscriber.subscribe(named(BINARY), range_filters=filters) as subscription,
    ):
        track.publish_all()
        got = await collect(subscription)
    check("what we got", got.live.summary, whole(range(GROUPS), range(2, 4)))


@CASES.case("tracks-through-peer", Direction.THROUGH_PEER, "9.18, 9.8")
async def tracks_through_peer(stage: Stage) -> None:
    """SUBSCRIBE_TRACKS: the relay offers the track by PUBLISH; accepted, and its Objects."""
    process, port = await relay_process(stage)
    track = TestTrack(BINARY)
    prefix = moqt.TrackNamespace.of("kvcs")
    async with (
        dial(stage, port, track) as publisher,
        publisher.publish(track),
        dial(stage, port) as subscriber,
        subscriber.subscribe_tracks(prefix) as offered,
    ):
        offer = await anext(offered)
        if not isinstance(offer, PublicationOffered):
            raise CaseFailed(f"expected a PUBLISH, got {offer}")
        check("the track", offer.name, named(BINARY))
        async with subscriber.accept(offer) as subscription:
            await process.line(UPDATED)
            track.publish_all()
            got = await collect(subscription)
    check("what we got", got.live.summary, whole(range(GROUPS)))


async def pass_large(stage: Stage, port: int) -> Collection:
    """Publish two Objects of 2 MiB by the relay at `port`; return what came of them in time."""
    track = moqt.TrackSource(named(BINARY))
    async with (
        dial(stage, port, track) as publisher,
        publisher.publish_namespace(BINARY),
        dial(stage, port) as subscriber,
        subscriber.subscribe(named(BINARY)) as subscription,
    ):
        writer = track.open_group(0, ends_group=True)
        for object_id in range(2):
            writer.write(object_id, payload(0, object_id, LARGE))
        writer.close()
        track.end()
        got = Collection(LARGE)
        with suppress(TimeoutError):
            async with asyncio.timeout(LARGE_TIMEOUT_S):
                await collect(subscription, into=got)
        return got


@CASES.case("large-objects-through-peer", Direction.THROUGH_PEER, "11.3.1")
async def large_objects_through_peer(stage: Stage) -> None:
    """Objects of 2 MiB; the relay runs with --stream-ring-cap 4194304."""
    _, port = await relay_process(stage, "--stream-ring-cap", 4 << 20)
    got = await pass_large(stage, port)
    check("what we got", got.live.summary, whole(range(1), range(2)))


@CASES.case("large-objects-default-through-peer", Direction.THROUGH_PEER, "11.3.1")
async def large_objects_default_through_peer(stage: Stage) -> None:
    """Objects of 2 MiB; the relay runs with its defaults."""
    got = await pass_large(stage, await relay(stage))
    if got.live.summary == whole(range(0)):
        raise PeerLimit("a subgroup stream begins and goes no further", stage.wiretap.data())
    check("what we got", got.live.summary, whole(range(1), range(2)))


@CASES.case("priorities-through-peer", Direction.THROUGH_PEER, "5.1, 11.3.1")
async def priorities_through_peer(stage: Stage) -> None:
    """Publisher Priorities of Groups arrive as they were given."""
    port = await relay(stage)
    track = moqt.TrackSource(named(BINARY))
    async with (
        dial(stage, port, track) as publisher,
        publisher.publish_namespace(BINARY),
        dial(stage, port) as subscriber,
        subscriber.subscribe(named(BINARY)) as subscription,
    ):
        for group_id, priority in enumerate(PRIORITIES):
            writer = track.open_group(group_id, publisher_priority=priority, ends_group=True)
            writer.write(0, payload(group_id, 0))
            writer.close()
        track.end()
        got = {
            item.object.header.group_id: item.object.header.publisher_priority
            async for item in subscription
            if isinstance(item, ObjectReceived) and item.object.payload
        }
    check("priorities by Group", got, dict(enumerate(PRIORITIES)))
