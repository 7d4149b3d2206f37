"""Tests of our own: Objects through a relay, and what is found there."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import moqt
from moqt.events import FillEnded, NamespaceFound, NamespaceGone
from moqt.tools.relay_test.case import CaseFailed, Stage
from moqt.tools.relay_test.content import (
    GROUPS,
    OBJECTS,
    Received,
    locations,
    new_namespace,
    payload,
    write_group,
)
from moqt.tools.relay_test.standard import OK_TO_NAMESPACE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

__all__ = ["fetch_range", "fill_exactly_once", "namespace_discovery", "objectid_filter"]

SETTLE_S = 0.3
"""How long after the last wanted Object one that is not wanted may still come."""

FILTERED = (2, 3)
"""The Object IDs asked for, inclusive."""


@asynccontextmanager
async def _two_sides(
    stage: Stage, track: moqt.TrackSource
) -> AsyncIterator[tuple[moqt.MoqtSession, moqt.MoqtSession]]:
    """Yield publisher and subscriber, with the track's namespace published."""
    directory = moqt.TrackDirectory()
    directory.add(track)
    async with (
        stage.connect("publisher", directory) as publisher,
        stage.connect("subscriber") as subscriber,
    ):
        stage.expect(OK_TO_NAMESPACE, "the relay takes no PUBLISH_NAMESPACE")
        async with publisher.publish_namespace(track.name.namespace):
            yield publisher, subscriber


def _new_track() -> moqt.TrackSource:
    return moqt.TrackSource(moqt.FullTrackName(new_namespace(), b"objects"))


async def fetch_range(stage: Stage) -> None:
    """FETCH of two Groups in the middle of a track: these Objects and no others."""
    track = _new_track()
    for group_id in range(GROUPS):
        write_group(track, group_id)
    received = Received(locations([1, 2]))
    meaning = "the relay does not serve a FETCH of several Groups"
    async with _two_sides(stage, track) as (_, subscriber):
        stage.expect("FETCH_OK, and Groups 1 and 2", meaning, received.summary)
        wanted = moqt.LocationFilter.groups(first=1, last=2)
        async with subscriber.fetch(track.name, location_filter=wanted) as fetch:
            async for item in fetch:
                received.take(item)
            await fetch.established()
        received.check(meaning)


async def fill_exactly_once(stage: Stage) -> None:
    """Join in mid-Group with Next Object and a fill from the start: each Object exactly once.

    One subscriber is there from the beginning, so that the relay knows where the track stands when
    the second one joins; it too must get each Object once.
    """
    track = _new_track()
    directory = moqt.TrackDirectory()
    directory.add(track)
    early, joined = Received(locations(range(GROUPS))), Received(locations(range(GROUPS)))
    before = locations(range(2)) | locations([2], range(OBJECTS // 2))
    meaning = "the relay does not fill a subscription from the start of its track"
    async with (
        stage.connect("publisher", directory) as publisher,
        stage.connect("subscriber_1") as first,
        stage.connect("subscriber_2") as second,
    ):
        stage.expect(OK_TO_NAMESPACE, "the relay takes no PUBLISH_NAMESPACE")
        async with publisher.publish_namespace(track.name.namespace):
            stage.expect("SUBSCRIBE_OK", "the relay does not route SUBSCRIBE to the publisher")
            async with first.subscribe(track.name) as subscription:
                for group_id in range(2):
                    write_group(track, group_id)
                writer = track.open_group(2)
                for object_id in range(OBJECTS // 2):
                    writer.write(object_id, payload(2, object_id))
                stage.expect(
                    "the first Objects at the early subscriber",
                    "the relay does not deliver to an ordinary subscriber",
                    early.summary,
                )
                await _collect(subscription, early, until=before)
                stage.expect("SUBSCRIBE_OK", "the relay takes no SUBSCRIBE with FILL_PARAMETERS")
                async with second.subscribe(
                    track.name,
                    location_filter=moqt.LocationFilter.next_object(),
                    fill=moqt.FillParameters(
                        location_filter=moqt.LocationFilter.absolute(moqt.Location(0, 0))
                    ),
                ) as joining:
                    stage.expect(
                        "all Objects, each once, at the one that joined", meaning, joined.summary
                    )
                    for object_id in range(OBJECTS // 2, OBJECTS):
                        writer.write(object_id, payload(2, object_id))
                    writer.close()
                    for group_id in range(3, GROUPS):
                        write_group(track, group_id)
                    await _collect(joining, joined)
                    joined.check(meaning)
                    stage.expect(
                        "all Objects, each once, at the early subscriber",
                        "the relay loses Objects of an ordinary subscriber",
                        early.summary,
                    )
                    await _collect(subscription, early)
                    early.check("an ordinary subscriber does not get each Object once")


async def objectid_filter(stage: Stage) -> None:
    """SUBSCRIBE with OBJECTID_FILTER: two Objects of each Group and no others."""
    track = _new_track()
    received = Received(locations(range(GROUPS), range(FILTERED[0], FILTERED[1] + 1)))
    meaning = "the relay does not filter by Object ID"
    async with _two_sides(stage, track) as (_, subscriber):
        options = subscriber.peer_options
        if options is not None and not options.max_filter_ranges:
            raise CaseFailed(
                expected="MAX_FILTER_RANGES of 1 or more in SETUP",
                received="MAX_FILTER_RANGES 0",
                message="the relay takes no range filters (MOQT-22 9.1)",
            )
        stage.expect("SUBSCRIBE_OK", "the relay takes no SUBSCRIBE with OBJECTID_FILTER")
        only = moqt.RangeFilter(moqt.RangeFilterKind.OBJECT_ID, (moqt.IdRange(*FILTERED),))
        async with subscriber.subscribe(
            track.name, location_filter=moqt.LocationFilter.none(), range_filters=[only]
        ) as subscription:
            stage.expect("Objects 2 and 3 of each Group", meaning, received.summary)
            for group_id in range(GROUPS):
                write_group(track, group_id)
            await _collect(subscription, received)
        received.check(meaning)


async def _collect(
    subscription: moqt.Subscription, received: Received, until: set[moqt.Location] | None = None
) -> None:
    """Read until `until` came; None: all that is wanted, and a moment longer for what is not."""
    while not received.has(until):
        try:
            item = await anext(subscription)
        except StopAsyncIteration:
            return
        received.take(item)
        if isinstance(item, FillEnded) and item.reset is not None:
            code = "" if item.reset_code is None else f" 0x{item.reset_code:x}"
            raise CaseFailed(
                expected="a fill stream that ends with FIN",
                received=f"RESET_STREAM{code} on the fill stream; {received.summary()}",
                message="the relay accepts a fill and then resets its stream",
            )
    if until is not None:
        return
    try:
        async with asyncio.timeout(SETTLE_S):
            async for item in subscription:
                received.take(item)
    except TimeoutError:
        pass


async def namespace_discovery(stage: Stage) -> None:
    """SUBSCRIBE_NAMESPACE reports what is there already, what comes, and what goes."""
    prefix = new_namespace()
    first, second = (prefix + moqt.TrackNamespace.of(name) for name in ("first", "second"))
    async with (
        stage.connect("publisher") as publisher,
        stage.connect("subscriber") as subscriber,
    ):
        stage.expect(OK_TO_NAMESPACE, "the relay takes no PUBLISH_NAMESPACE")
        async with publisher.publish_namespace(second):
            stage.expect("REQUEST_OK to SUBSCRIBE_NAMESPACE", "the relay finds no namespaces")
            async with subscriber.subscribe_namespace(prefix) as found:
                stage.expect("NAMESPACE", "a namespace that was there before is not reported")
                await _hear(found, second, NamespaceFound)
                stage.expect(OK_TO_NAMESPACE, "the relay takes no second PUBLISH_NAMESPACE")
                async with publisher.publish_namespace(first):
                    stage.expect("NAMESPACE", "a namespace that comes later is not reported")
                    await _hear(found, first, NamespaceFound)
                stage.expect("NAMESPACE_DONE", "a namespace that was withdrawn is still there")
                await _hear(found, first, NamespaceGone)


async def _hear(
    found: moqt.NamespaceSubscription,
    namespace: moqt.TrackNamespace,
    kind: type[NamespaceFound] | type[NamespaceGone],
) -> None:
    async for item in found:
        if isinstance(item, kind) and item.namespace == namespace:
            return
        raise CaseFailed(
            expected=f"{kind.__name__} for {namespace}",
            received=f"{type(item).__name__} for {item.namespace}",
        )
    raise CaseFailed(
        expected=f"{kind.__name__} for {namespace}",
        received="the end of the SUBSCRIBE_NAMESPACE stream",
    )
