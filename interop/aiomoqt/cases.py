"""Cases against aiomoqt."""

from __future__ import annotations

from typing import TYPE_CHECKING

import moqt
from interop.content.track_content import GROUPS, OBJECTS, whole
from interop.harness.cases import Direction, Registry, check
from interop.harness.ours import (
    BINARY,
    collect,
    dial,
    hex_fields,
    named,
    publish_range,
    serving,
    url_of,
    whole_track,
)

if TYPE_CHECKING:
    from interop.harness.stage import Stage

CASES = Registry()
ALL = GROUPS * OBJECTS
TRACK_ENDED = int(moqt.PublishDoneCode.TRACK_ENDED)
NOTHING = whole(range(0))


def live(*, status: int) -> dict[str, object]:
    """Return a subscription's result: the whole track, nothing by a fill."""
    return {"live": whole(range(GROUPS)), "fill": NOTHING, "status": status}


@CASES.case("subscribe-to-peer", Direction.TO_PEER, "9.7, 9.9")
async def subscribe_to_peer(stage: Stage) -> None:
    """SUBSCRIBE of a whole track, PUBLISH_DONE."""
    track = moqt.TrackSource(named(BINARY))
    async with serving(stage, track) as server:
        subscriber = await stage.script(
            "subscriber", url_of(server.port), hex_fields(BINARY), "subscribe", ALL
        )
        await subscriber.line("SUBSCRIBED")
        publish_range(track, 0, ALL)
        track.end()
        got = await subscriber.result()
    check("what it got", got, live(status=TRACK_ENDED))


@CASES.case("subscribe-from-peer", Direction.FROM_PEER, "9.7")
async def subscribe_from_peer(stage: Stage) -> None:
    """SUBSCRIBE of a whole track."""
    port = stage.port()
    await (await stage.script("publisher", "serve", port, hex_fields(BINARY))).line("READY")
    async with (
        dial(stage, port) as session,
        session.subscribe(named(BINARY)) as subscription,
    ):
        got = await collect(subscription, objects=ALL)
    check("what we got", got.live.summary, whole(range(GROUPS)))


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
    port = stage.port()
    publisher = await stage.script("publisher", "serve", port, hex_fields(BINARY))
    await publisher.line("READY")
    async with dial(stage, port) as session:
        async with session.subscribe(named(BINARY)):
            await publisher.line("PRODUCED")
        location = moqt.LocationFilter.groups(first=1, last=2)
        async with session.fetch(named(BINARY), location_filter=location) as fetch:
            got = await collect(fetch)
    check("what we got", got.live.summary, whole(range(1, 3)))
