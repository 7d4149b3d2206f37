"""Tracks and namespaces, both ways, between moq-rs and ours."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import moqt
from interop.content.track_content import GROUPS, OBJECTS, whole
from interop.harness.cases import CaseFailed, Direction, PeerLimit, Registry, check
from interop.harness.ours import (
    BINARY,
    TEXT,
    TestTrack,
    collect,
    dial,
    first_session,
    hex_fields,
    named,
    serving,
    url_of,
    whole_track,
)
from moqt.events import NamespaceFound, NamespaceOffered

if TYPE_CHECKING:
    from interop.harness.stage import Stage

CASES = Registry()
PREFIX = moqt.TrackNamespace.of("kvcs")
IMPLEMENTATION = b"moq-lite-rs"
NEWEST = whole(range(GROUPS - 1, GROUPS))


async def published(stage: Stage) -> int:
    """Start the peer as a server that has the whole test track; return its port."""
    port = stage.port()
    await (await stage.script("relay", port, hex_fields(TEXT))).serving("READY", port)
    return port


async def refused(stage: Stage, request: moqt.Fetch | moqt.Subscription) -> None:
    """Take what comes of a request; a REQUEST_ERROR becomes the peer's limit."""
    try:
        async with request:
            await collect(request)
    except moqt.errors.RequestRejected as error:
        raise PeerLimit(f"{error.code.name}: {error.reason}", stage.wiretap.reply()) from error


def closed(stage: Stage, code: moqt.SessionErrorCode, reason: str) -> PeerLimit:
    """Return the limit that shows by the session's end; the evidence is what we sent last."""
    return PeerLimit(
        f"closes the session after these octets: {code.name} {reason!r}", stage.wiretap.sent()
    )


@CASES.case("subscribe-to-peer", Direction.TO_PEER, "9.6, 9.7")
async def subscribe_to_peer(stage: Stage) -> None:
    """SUBSCRIBE of a whole track, a Group at a time."""
    track = TestTrack(TEXT)
    async with serving(stage, track) as server:
        subscriber = await stage.script("subscriber", url_of(server.port), hex_fields(TEXT), "live")
        await subscriber.line("SUBSCRIBED")
        while not track.subscriptions:
            await asyncio.sleep(0.01)
        for group_id in range(GROUPS):  # it drops older Groups when newer ones are there
            track.publish((group_id + 1) * OBJECTS)
            await subscriber.line(f"GROUP {group_id}")
        track.publish_all()
        got = await subscriber.result()
    check("what it got", got, whole(range(GROUPS)))


@CASES.case("fetch-group-to-peer", Direction.TO_PEER, "9.11")
async def fetch_group_to_peer(stage: Stage) -> None:
    """FETCH of Group 1, then of Group 2."""
    async with serving(stage, whole_track(TEXT)) as server:
        got = await stage.result("subscriber", url_of(server.port), hex_fields(TEXT), "fetch", 1, 2)
    check("what it got", got, whole(range(1, 3)))


@CASES.case("namespaces-to-peer", Direction.TO_PEER, "9.15, 9.16")
async def namespaces_to_peer(stage: Stage) -> None:
    """SUBSCRIBE_NAMESPACE."""
    async with serving(stage, whole_track(TEXT)) as server:
        got = await stage.result("subscriber", url_of(server.port), hex_fields(TEXT), "announced")
    check("what it found", got in ("kvcs/model-a/run-1", "model-a/run-1"), True)


@CASES.case("binary-namespace-to-peer", Direction.TO_PEER, "8.7, 9.16")
async def binary_namespace_to_peer(stage: Stage) -> None:
    """NAMESPACE with binary fields, to a client that asked for the first field."""
    async with serving(stage, whole_track(BINARY)) as server:
        await stage.script("subscriber", url_of(server.port), hex_fields(TEXT), "announced")
        session = await first_session(server)
        ended = await session.wait_closed()
    if ended.code is moqt.SessionErrorCode.PROTOCOL_VIOLATION and ended.by_peer:
        raise closed(stage, ended.code, ended.reason)
    raise CaseFailed(f"the session ended with {ended}")


@CASES.case("subscribe-from-peer", Direction.FROM_PEER, "9.6, 9.7")
async def subscribe_from_peer(stage: Stage) -> None:
    """SUBSCRIBE of a whole track that is there already: from its newest Group on."""
    port = await published(stage)
    async with dial(stage, port) as session, session.subscribe(named(TEXT)) as subscription:
        got = await collect(subscription, objects=OBJECTS)
    check("what we got", got.live.summary, NEWEST)


@CASES.case("live-from-peer", Direction.FROM_PEER, "9.14, 9.6")
async def live_from_peer(stage: Stage) -> None:
    """PUBLISH_NAMESPACE to our server, accepted, then SUBSCRIBE of a track, a Group at a time."""
    async with serving(stage, takes_offers=True) as server:
        publisher = await stage.script("publisher", url_of(server.port), hex_fields(TEXT))
        session = await first_session(server)
        offer = await anext(session.offers())
        if not isinstance(offer, NamespaceOffered):
            raise CaseFailed(f"expected a PUBLISH_NAMESPACE, got {offer}")
        check("the namespace", offer.namespace, TEXT)
        session.accept_namespace(offer)
        async with session.subscribe(named(TEXT)) as subscription:
            for group_id in range(GROUPS):  # it drops older Groups when newer ones are there
                await publisher.tell("next")
                got = await collect(subscription, objects=OBJECTS)
                check("what we got", got.live.summary, whole(range(group_id, group_id + 1)))


@CASES.case("fetch-group-from-peer", Direction.FROM_PEER, "9.11")
async def fetch_group_from_peer(stage: Stage) -> None:
    """FETCH of one Group."""
    port = await published(stage)
    location = moqt.LocationFilter.groups(first=1, last=1)
    async with (
        dial(stage, port) as session,
        session.fetch(named(TEXT), location_filter=location) as fetch,
    ):
        got = await collect(fetch)
    check("what we got", got.live.summary, whole(range(1, 2)))


@CASES.case("fetch-range-from-peer", Direction.FROM_PEER, "9.11")
async def fetch_range_from_peer(stage: Stage) -> None:
    """FETCH of Groups 1 to 2."""
    port = await published(stage)
    location = moqt.LocationFilter.groups(first=1, last=2)
    async with dial(stage, port) as session:
        await refused(stage, session.fetch(named(TEXT), location_filter=location))


@CASES.case("fill-group-from-peer", Direction.FROM_PEER, "3.4, 9.20.15")
async def fill_group_from_peer(stage: Stage) -> None:
    """Next Object and a fill of the current Group."""
    port = await published(stage)
    fill = moqt.FillParameters(location_filter=moqt.LocationFilter.relative(1))
    async with (
        dial(stage, port) as session,
        session.subscribe(
            named(TEXT), location_filter=moqt.LocationFilter.next_object(), fill=fill
        ) as subscription,
    ):
        got = await collect(subscription, objects=OBJECTS, has_fill=True)
    check("by the fill", got.fill.summary, NEWEST)


@CASES.case("fill-from-peer", Direction.FROM_PEER, "3.4, 9.20.15")
async def fill_from_peer(stage: Stage) -> None:
    """Next Object and a fill of the whole track."""
    port = await published(stage)
    fill = moqt.FillParameters(location_filter=moqt.LocationFilter.absolute(moqt.Location(0, 0)))
    async with (
        dial(stage, port) as session,
        session.subscribe(
            named(TEXT), location_filter=moqt.LocationFilter.next_object(), fill=fill
        ) as subscription,
    ):
        got = await collect(subscription, objects=0, has_fill=True)
    if not got.is_fill_whole:
        codes = [f"0x{code:x}" for code in stage.wiretap.resets]
        raise PeerLimit(
            f"SUBSCRIBE_OK, then data streams reset with {', '.join(codes)}", stage.wiretap.reply()
        )
    check("by the fill", got.fill.summary, whole(range(GROUPS)))


@CASES.case("namespaces-from-peer", Direction.FROM_PEER, "9.15, 9.16")
async def namespaces_from_peer(stage: Stage) -> None:
    """SUBSCRIBE_NAMESPACE."""
    port = await published(stage)
    async with dial(stage, port) as session, session.subscribe_namespace(PREFIX) as found:
        item = await anext(found)
    check("what was found", item, NamespaceFound(item.request_id, TEXT))


@CASES.case("track-status-from-peer", Direction.FROM_PEER, "9.13")
async def track_status_from_peer(stage: Stage) -> None:
    """TRACK_STATUS: the Largest Object."""
    port = await published(stage)
    async with dial(stage, port) as session:
        try:
            status = await session.track_status(named(TEXT))
        except moqt.errors.RequestRejected as error:
            raise PeerLimit(f"{error.code.name}: {error.reason}", stage.wiretap.reply()) from error
    check("Largest Object", status.largest, moqt.Location(GROUPS - 1, OBJECTS - 1))


@CASES.case("unknown-track-from-peer", Direction.FROM_PEER, "9.4")
async def unknown_track_from_peer(stage: Stage) -> None:
    """SUBSCRIBE of a track that there is not: DOES_NOT_EXIST."""
    port = await published(stage)
    name = moqt.FullTrackName(moqt.TrackNamespace.of("nobody"), b"nothing")
    async with dial(stage, port) as session:
        try:
            async with session.subscribe(name):
                pass
        except moqt.errors.RequestRejected as error:
            check("refused with", error.code, moqt.RequestErrorCode.DOES_NOT_EXIST)
        else:
            raise CaseFailed("SUBSCRIBE_OK for a track that there is not")


def stable(setup: bytes) -> bytes:
    """Return SETUP with zeros for what is random: 56 bits of an option that nobody knows.

    It follows MOQT_IMPLEMENTATION: its type has 3 octets, its value begins with 0xfe.
    """
    head, name, rest = setup.partition(IMPLEMENTATION)
    return head + name + rest[:4] + bytes(7) + rest[11:]


@CASES.case("object-ids-from-peer", Direction.FROM_PEER, "3.3.2, 9.20.11")
async def object_ids_from_peer(stage: Stage) -> None:
    """OBJECTID_FILTER of 2 to 3."""
    port = await published(stage)
    filters = [moqt.RangeFilter(moqt.RangeFilterKind.OBJECT_ID, (moqt.IdRange(2, 3),))]
    async with dial(stage, port) as session:
        assert session.peer_options is not None
        if session.peer_options.max_filter_ranges == 0:
            raise PeerLimit("its SETUP has no MAX_FILTER_RANGES", stable(stage.wiretap.setup()))
        async with session.subscribe(named(TEXT), range_filters=filters) as subscription:
            got = await collect(subscription, objects=2)
    check("what we got", got.live.summary, whole(range(GROUPS - 1, GROUPS), range(2, 4)))


@CASES.case("offer-to-peer", Direction.TO_PEER, "9.8")
async def offer_to_peer(stage: Stage) -> None:
    """PUBLISH to the peer's server."""
    port = stage.port()
    await (await stage.script("relay", port)).serving("READY", port)
    track = whole_track(TEXT)
    async with dial(stage, port) as session:
        try:
            async with session.publish(track) as publication:
                await publication.wait_ended()
        except moqt.errors.RequestRejected as error:
            raise PeerLimit(f"{error.code.name}: {error.reason}", stage.wiretap.reply()) from error


@CASES.case("binary-offer-to-peer", Direction.TO_PEER, "8.7, 9.14")
async def binary_offer_to_peer(stage: Stage) -> None:
    """PUBLISH_NAMESPACE with binary fields."""
    port = stage.port()
    await (await stage.script("relay", port)).serving("READY", port)
    async with dial(stage, port) as session:
        try:
            async with session.publish_namespace(BINARY):
                pass
        except moqt.errors.SessionClosed as error:
            raise closed(stage, error.code, error.reason) from error


@CASES.case("binary-namespace-from-peer", Direction.FROM_PEER, "8.7, 9.6")
async def binary_namespace_from_peer(stage: Stage) -> None:
    """SUBSCRIBE with binary fields in its namespace."""
    port = await published(stage)
    async with dial(stage, port) as session:
        try:
            async with session.subscribe(named(BINARY)):
                pass
        except moqt.errors.SessionClosed as error:
            raise closed(stage, error.code, error.reason) from error
        except moqt.errors.RequestRejected as error:
            check("refused with", error.code, moqt.RequestErrorCode.DOES_NOT_EXIST)
