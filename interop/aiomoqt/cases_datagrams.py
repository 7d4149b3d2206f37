"""Objects of Delivery Mode Datagram, with properties, both ways: subscribed to, and fetched."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

import moqt
from interop.aiomoqt.cases_tracks import published
from interop.content.track_content import (
    DATAGRAM_SIZE,
    GROUPS,
    OBJECTS,
    CollectedDatagrams,
    payload,
    properties,
    whole,
)
from interop.harness.cases import Direction, Registry, check
from interop.harness.ours import BINARY, dial, hex_fields, named, serving, url_of
from moqt.events import ObjectReceived
from moqt.wire.fields import KeyValue
from moqt.wire.properties import parse_pairs, serialize_pairs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from interop.harness.processes import PeerProcess
    from interop.harness.stage import Stage

CASES = Registry()
ALL = GROUPS * OBJECTS
PACE_S = 0.005
"""Between datagrams, so that none is lost on the way."""

WAIT_S = 10.0
"""The longest that Objects are waited for; those that have not come by then are missing."""


def datagrams_of(track: moqt.TrackSource) -> Iterator[None]:
    """Publish the test track, an Object in a datagram at each step."""
    for number in range(ALL):
        group_id, object_id = divmod(number, OBJECTS)
        pairs = [KeyValue(kind, value) for kind, value in properties(group_id, object_id).items()]
        track.write_datagram(
            group_id,
            object_id,
            payload(group_id, object_id, DATAGRAM_SIZE),
            serialize_pairs(pairs),
            ends_group=object_id == OBJECTS - 1,
        )
        yield


async def taken(stream: moqt.Subscription | moqt.Fetch, objects: int) -> CollectedDatagrams:
    """Take so many Objects, or what comes of them in time."""
    got = CollectedDatagrams()
    with suppress(TimeoutError):
        async with asyncio.timeout(WAIT_S):
            async for item in stream:
                if isinstance(item, ObjectReceived) and item.object.payload:
                    header = item.object.header
                    pairs = parse_pairs(header.properties, "Properties")
                    got.take(
                        header.group_id,
                        header.object_id,
                        item.object.payload,
                        {pair.type: pair.value for pair in pairs},
                        is_datagram=header.subgroup_id is None,
                    )
                if len(got) + len(got.wrong) >= objects:
                    break
    return got


async def peer_with_datagrams(stage: Stage, *, held: int = -1) -> tuple[PeerProcess, int]:
    """Start the peer's publisher of datagrams as a server; return it and its port."""
    return await published(stage, held=held, size=DATAGRAM_SIZE, mapping="datagram")


@CASES.case("datagrams-to-peer", Direction.TO_PEER, "11.2")
async def datagrams_to_peer(stage: Stage) -> None:
    """SUBSCRIBE: each Object in a datagram, with properties."""
    track = moqt.TrackSource(named(BINARY))
    async with serving(stage, track) as server:
        subscriber = await stage.script(
            "subscriber", url_of(server.port), hex_fields(BINARY), "datagrams", ALL
        )
        await subscriber.line("SUBSCRIBED")
        for _ in datagrams_of(track):
            await asyncio.sleep(PACE_S)
        got = await subscriber.result()
    check("what it got", got, whole(range(GROUPS)))


@CASES.case("datagrams-from-peer", Direction.FROM_PEER, "11.2")
async def datagrams_from_peer(stage: Stage) -> None:
    """SUBSCRIBE: each Object in a datagram, with properties."""
    publisher, port = await peer_with_datagrams(stage, held=0)
    async with dial(stage, port) as session, session.subscribe(named(BINARY)) as subscription:
        await publisher.line("HELD")  # until its Track Alias is known here
        await publisher.tell("go on")
        got = await taken(subscription, ALL)
    check("what we got", got.summary, whole(range(GROUPS)))


@CASES.case("datagrams-fetched-to-peer", Direction.TO_PEER, "11.4.1")
async def datagrams_fetched_to_peer(stage: Stage) -> None:
    """FETCH of Groups 1 to 2 of Objects of Delivery Mode Datagram, with properties."""
    track = moqt.TrackSource(named(BINARY))
    for _ in datagrams_of(track):
        pass
    track.end()
    async with serving(stage, track) as server:
        got = await stage.result(
            "subscriber", url_of(server.port), hex_fields(BINARY), "fetch_datagrams", 1, 2
        )
    check("what it got", got, {"objects": whole(range(1, 3)), "whole": True})


@CASES.case("datagrams-fetched-from-peer", Direction.FROM_PEER, "11.4.1")
async def datagrams_fetched_from_peer(stage: Stage) -> None:
    """FETCH of Groups 1 to 2 of Objects of Delivery Mode Datagram, with properties."""
    publisher, port = await peer_with_datagrams(stage)
    async with dial(stage, port) as session:
        async with session.subscribe(named(BINARY)):
            await publisher.line("PRODUCED")
        location = moqt.LocationFilter.groups(first=1, last=2)
        async with session.fetch(named(BINARY), location_filter=location) as fetch:
            got = await taken(fetch, 2 * OBJECTS)
    check("what we got", got.summary, whole(range(1, 3)))
