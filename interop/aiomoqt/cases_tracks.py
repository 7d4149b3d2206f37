"""Tracks: subscriptions, fills, fetches and filters, both ways and without a relay."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import moqt
from interop.content.track_content import GROUPS, OBJECTS, SIZE, whole
from interop.harness.cases import Direction, PeerLimit, Registry, check
from interop.harness.ours import (
    BINARY,
    Collection,
    TestTrack,
    collect,
    dial,
    hex_fields,
    named,
    serving,
    url_of,
    whole_track,
)
from moqt.session.events import ObjectReceived

if TYPE_CHECKING:
    from interop.harness.processes import PeerProcess
    from interop.harness.stage import Stage

CASES = Registry()
ALL = GROUPS * OBJECTS
HELD = 2 * OBJECTS + 3
"""Objects there are when someone joins in the middle: two Groups, and the third begun."""

LARGE = 256 * 1024
DONE_TIMEOUT_S = 3.0
NOTHING = whole(range(0))


def received(*, live: dict[str, object], fill: dict[str, object] = NOTHING) -> dict[str, object]:
    """Return the result of a subscription of the peer's to a track that ended."""
    return {"live": live, "fill": fill, "status": int(moqt.PublishDoneCode.TRACK_ENDED)}


def numbered(start: int, stop: int) -> dict[str, object]:
    """Return the summary of having got the Objects of these numbers, each once."""
    groups: dict[str, list[int]] = {}
    for number in range(start, stop):
        groups.setdefault(str(number // OBJECTS), []).append(number % OBJECTS)
    return {"groups": groups, "repeated": [], "wrong": []}


async def published(
    stage: Stage, *, held: int = -1, size: int = SIZE, mapping: str = "per_group"
) -> tuple[PeerProcess, int]:
    """Start the peer's publisher as a server; return it and its port."""
    port = stage.port()
    publisher = await stage.script(
        "publisher", "serve", port, hex_fields(BINARY), held, size, mapping
    )
    await publisher.serving("READY", port)
    return publisher, port


async def subscribed(stage: Stage, *verb: object, before: int = 0, size: int = SIZE) -> object:
    """Serve the track, whose first `before` Objects are there, and return what the peer got."""
    track = TestTrack(BINARY, size=size)
    track.publish(before)
    async with serving(stage, track) as server:
        subscriber = await stage.script(
            "subscriber", url_of(server.port), hex_fields(BINARY), *verb
        )
        await subscriber.line("SUBSCRIBED")
        track.publish_all()
        return await subscriber.result()


@CASES.case("subscribe-to-peer", Direction.TO_PEER, "9.6, 9.7, 9.9")
async def subscribe_to_peer(stage: Stage) -> None:
    """SUBSCRIBE of a whole track, PUBLISH_DONE."""
    got = await subscribed(stage, "subscribe", ALL)
    check("what it got", got, received(live=whole(range(GROUPS))))


@CASES.case("subscribe-from-peer", Direction.FROM_PEER, "9.6, 9.7")
async def subscribe_from_peer(stage: Stage) -> None:
    """SUBSCRIBE of a whole track."""
    _, port = await published(stage)
    async with dial(stage, port) as session, session.subscribe(named(BINARY)) as subscription:
        got = await collect(subscription, objects=ALL)
    check("what we got", got.live.summary, whole(range(GROUPS)))


@CASES.case("first-done-from-peer", Direction.FROM_PEER, "9.9")
async def first_done_from_peer(stage: Stage) -> None:
    """PUBLISH_DONE of a subscription with Request ID 0."""
    publisher, port = await published(stage, held=ALL - 1)
    async with dial(stage, port) as session, session.subscribe(named(BINARY)) as subscription:
        check("Request ID", subscription.request_id, 0)
        await publisher.line("HELD")
        await publisher.tell("go on")
        await publisher.line("PRODUCED")
        try:
            async with asyncio.timeout(DONE_TIMEOUT_S):
                got = await collect(subscription)
        except TimeoutError:
            raise PeerLimit("no PUBLISH_DONE follows SUBSCRIBE_OK", stage.wiretap.reply()) from None
    check("what we got", got.live.summary, whole(range(GROUPS)))


@CASES.case("large-objects-to-peer", Direction.TO_PEER, "11.3.1")
async def large_objects_to_peer(stage: Stage) -> None:
    """SUBSCRIBE of Objects of 256 KiB."""
    got = await subscribed(stage, "subscribe", ALL, LARGE, size=LARGE)
    check("what it got", got, received(live=whole(range(GROUPS))))


@CASES.case("large-objects-from-peer", Direction.FROM_PEER, "11.3.1")
async def large_objects_from_peer(stage: Stage) -> None:
    """SUBSCRIBE of Objects of 256 KiB."""
    _, port = await published(stage, size=LARGE)
    async with dial(stage, port) as session, session.subscribe(named(BINARY)) as subscription:
        got = await collect(subscription, objects=ALL, size=LARGE)
    check("what we got", got.live.summary, whole(range(GROUPS)))


@CASES.case("fill-to-peer", Direction.TO_PEER, "3.4, 9.20.15")
async def fill_to_peer(stage: Stage) -> None:
    """Next Object and a fill, joined in the third Group: each Object exactly once."""
    got = await subscribed(stage, "join", ALL, before=HELD)
    check(
        "what it got",
        got,
        received(live=numbered(HELD, ALL), fill=numbered(0, HELD)),
    )


async def joined_at(stage: Stage, held: int) -> Collection:
    """Join the peer's track when `held` Objects are there; return what came until its end."""
    publisher, port = await published(stage, held=held)
    fill = moqt.FillParameters(location_filter=moqt.LocationFilter.absolute(moqt.Location(0, 0)))
    async with dial(stage, port) as first, first.subscribe(named(BINARY)):
        await publisher.line("HELD")
        async with dial(stage, port) as second:
            await second.track_status(named(BINARY))  # Request ID 0, which never gets PUBLISH_DONE
            async with second.subscribe(
                named(BINARY), location_filter=moqt.LocationFilter.next_object(), fill=fill
            ) as joined:
                await publisher.tell("go on")
                return await collect(joined)


@CASES.case("fill-from-peer", Direction.FROM_PEER, "3.4, 9.20.15")
async def fill_from_peer(stage: Stage) -> None:
    """Next Object and a fill, joined between two Groups: each Object exactly once."""
    got = await joined_at(stage, 2 * OBJECTS)
    check("by the fill", got.fill.summary, numbered(0, 2 * OBJECTS))
    check("live", got.live.summary, numbered(2 * OBJECTS, ALL))


@CASES.case("fill-within-group-from-peer", Direction.FROM_PEER, "3.4, 9.20.15")
async def fill_within_group_from_peer(stage: Stage) -> None:
    """Next Object and a fill, joined within the third Group: each Object exactly once."""
    got = await joined_at(stage, HELD)
    check("by the fill", got.fill.summary, numbered(0, HELD))
    if got.live.summary == numbered(3 * OBJECTS, ALL):
        raise PeerLimit(
            "the rest of the Group joined in never comes; PUBLISH_DONE counts no stream for it",
            stage.wiretap.reply(),
        )
    check("live", got.live.summary, numbered(HELD, ALL))


@CASES.case("fetch-range-to-peer", Direction.TO_PEER, "9.11")
async def fetch_range_to_peer(stage: Stage) -> None:
    """FETCH of Groups 1 to 2."""
    async with serving(stage, whole_track(BINARY)) as server:
        got = await stage.result(
            "subscriber", url_of(server.port), hex_fields(BINARY), "fetch", 1, 2
        )
    check("what it got", got, {"objects": whole(range(1, 3)), "whole": True})


@CASES.case("fetch-range-from-peer", Direction.FROM_PEER, "9.11")
async def fetch_range_from_peer(stage: Stage) -> None:
    """FETCH of Groups 1 to 2."""
    publisher, port = await published(stage)
    async with dial(stage, port) as session:
        async with session.subscribe(named(BINARY)):
            await publisher.line("PRODUCED")
        location = moqt.LocationFilter.groups(first=1, last=2)
        async with session.fetch(named(BINARY), location_filter=location) as fetch:
            got = await collect(fetch)
    check("what we got", got.live.summary, whole(range(1, 3)))


def newest_first(first: int, last: int) -> list[tuple[int, int]]:
    """Return the Locations of whole Groups in descending Group Order."""
    return [
        (group_id, object_id)
        for group_id in range(last, first - 1, -1)
        for object_id in range(OBJECTS)
    ]


@CASES.case("fetch-descending-to-peer", Direction.TO_PEER, "9.11")
async def fetch_descending_to_peer(stage: Stage) -> None:
    """FETCH of Groups 1 to 3 in descending order."""
    async with serving(stage, whole_track(BINARY)) as server:
        got = await stage.result(
            "subscriber", url_of(server.port), hex_fields(BINARY), "fetch_descending", 1, 3
        )
    check("what it got, in order", [tuple(location) for location in got], newest_first(1, 3))


@CASES.case("fetch-descending-from-peer", Direction.FROM_PEER, "9.11")
async def fetch_descending_from_peer(stage: Stage) -> None:
    """FETCH of Groups 1 to 3 in descending order."""
    publisher, port = await published(stage)
    async with dial(stage, port) as session:
        async with session.subscribe(named(BINARY)):
            await publisher.line("PRODUCED")
        location = moqt.LocationFilter.groups(first=1, last=3)
        order = moqt.GroupOrder.DESCENDING
        fetch = session.fetch(named(BINARY), location_filter=location, group_order=order)
        async with fetch:
            got = [
                (item.object.header.group_id, item.object.header.object_id)
                async for item in fetch
                if isinstance(item, ObjectReceived) and item.object.payload
            ]
    check("what we got, in order", got, newest_first(1, 3))


@CASES.case("pause-to-peer", Direction.TO_PEER, "9.5")
async def pause_to_peer(stage: Stage) -> None:
    """Forward State 0, then 1 by REQUEST_UPDATE: what was published before doesn't come."""
    track = TestTrack(BINARY)
    async with serving(stage, track) as server:
        subscriber = await stage.script(
            "subscriber", url_of(server.port), hex_fields(BINARY), "resume", ALL - 2 * OBJECTS
        )
        await subscriber.line("SUBSCRIBED")
        track.publish(2 * OBJECTS)
        await subscriber.tell("resume")
        await subscriber.line("RESUMED")
        track.publish_all()
        got = await subscriber.result()
    check("what it got", got, received(live=numbered(2 * OBJECTS, ALL)))


@CASES.case("pause-from-peer", Direction.FROM_PEER, "9.5")
async def pause_from_peer(stage: Stage) -> None:
    """Forward State 0, then 1 by REQUEST_UPDATE: what was published before doesn't come."""
    publisher, port = await published(stage, held=2 * OBJECTS)
    async with dial(stage, port) as first, dial(stage, port) as second:
        await second.track_status(named(BINARY))  # Request ID 0, which never gets PUBLISH_DONE
        async with (
            second.subscribe(named(BINARY), forward=False) as paused,
            first.subscribe(named(BINARY)),
        ):
            await publisher.line("HELD")
            await paused.resume()
            await publisher.tell("go on")
            got = await collect(paused)
    check("what we got", got.live.summary, numbered(2 * OBJECTS, ALL))


@CASES.case("object-ids-to-peer", Direction.TO_PEER, "3.3.2, 9.20.11")
async def object_ids_to_peer(stage: Stage) -> None:
    """OBJECTID_FILTER of 2 to 3."""
    got = await subscribed(stage, "object_ids", 2, 3, 2 * GROUPS)
    check("what it got", got, received(live=whole(range(GROUPS), range(2, 4))))


@CASES.case("object-ids-from-peer", Direction.FROM_PEER, "3.3.2, 9.20.11")
async def object_ids_from_peer(stage: Stage) -> None:
    """OBJECTID_FILTER of 2 to 3."""
    _, port = await published(stage)
    filters = [moqt.RangeFilter(moqt.RangeFilterKind.OBJECT_ID, (moqt.IdRange(2, 3),))]
    async with (
        dial(stage, port) as session,
    ):
        assert session.peer_options is not None
        if session.peer_options.max_filter_ranges == 0:
            raise PeerLimit("its SETUP has no MAX_FILTER_RANGES", stage.wiretap.setup())
        async with session.subscribe(named(BINARY), range_filters=filters) as subscription:
            got = await collect(subscription, objects=2 * GROUPS)
    check("what we got", got.live.summary, whole(range(GROUPS), range(2, 4)))
