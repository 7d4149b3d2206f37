"""Namespaces, offers, status, GOAWAY: requests that carry no Objects, and PUBLISH."""

from __future__ import annotations

from typing import TYPE_CHECKING

import moqt
from interop.content.track_content import GROUPS, OBJECTS, whole
from interop.harness.cases import CaseFailed, Direction, Registry, check
from interop.harness.ours import (
    BINARY,
    TEXT,
    TRACK,
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
from moqt.events import NamespaceFound, NamespaceOffered, PublicationOffered

if TYPE_CHECKING:
    from interop.harness.stage import Stage

CASES = Registry()
ALL = GROUPS * OBJECTS
PREFIX = moqt.TrackNamespace.of("kvcs")
GOAWAY_MS = 5000


@CASES.case("namespaces-to-peer", Direction.TO_PEER, "9.15, 9.16")
async def namespaces_to_peer(stage: Stage) -> None:
    """SUBSCRIBE_NAMESPACE with binary fields: one namespace before, one after the answer."""
    directory_track, late = whole_track(BINARY), moqt.TrackSource(named(TEXT))
    directory = moqt.TrackDirectory()
    directory.add(directory_track)
    async with moqt.serve(
        "127.0.0.1",
        0,
        certificate=stage.certificate,
        private_key=stage.private_key,
        directory=directory,
    ) as server:
        subscriber = await stage.script(
            "subscriber", url_of(server.port), hex_fields(PREFIX), "namespaces", 2
        )
        await subscriber.line("SUBSCRIBED")
        directory.add(late)
        got = await subscriber.result()
    suffixes = [[field.hex() for field in name.fields[1:]] for name in (BINARY, TEXT)]
    check("suffixes", got, sorted(suffixes))


@CASES.case("namespaces-from-peer", Direction.FROM_PEER, "9.15, 9.16")
async def namespaces_from_peer(stage: Stage) -> None:
    """SUBSCRIBE_NAMESPACE with binary fields."""
    port = stage.port()
    await (await stage.script("publisher", "serve", port, hex_fields(BINARY))).serving(
        "READY", port
    )
    async with dial(stage, port) as session, session.subscribe_namespace(PREFIX) as found:
        item = await anext(found)
    check("what was found", item, NamespaceFound(item.request_id, BINARY))


@CASES.case("tracks-to-peer", Direction.TO_PEER, "9.18, 9.8")
async def tracks_to_peer(stage: Stage) -> None:
    """SUBSCRIBE_TRACKS: a PUBLISH for the track under the prefix."""
    async with serving(stage, TestTrack(BINARY)) as server:
        got = await stage.result("subscriber", url_of(server.port), hex_fields(PREFIX), "tracks", 1)
    check("tracks", got, [[[field.hex() for field in BINARY], TRACK.decode()]])


@CASES.case("offer-to-peer", Direction.TO_PEER, "9.8")
async def offer_to_peer(stage: Stage) -> None:
    """PUBLISH, accepted, and its Objects."""
    track = TestTrack(BINARY)
    async with serving(stage, track) as server:
        subscriber = await stage.script(
            "subscriber", url_of(server.port), hex_fields(BINARY), "offered", ALL
        )
        session = await first_session(server)
        async with session.publish(track):
            track.publish_all()
            got = await subscriber.result()
    check(
        "what it got",
        got,
        {
            "namespace": [field.hex() for field in BINARY],
            "objects": whole(range(GROUPS)),
            "done": True,
        },
    )


@CASES.case("offer-from-peer", Direction.FROM_PEER, "9.8")
async def offer_from_peer(stage: Stage) -> None:
    """PUBLISH, accepted, and its Objects."""
    async with serving(stage, takes_offers=True) as server:
        await stage.script("publisher", "track", url_of(server.port), hex_fields(BINARY))
        session = await first_session(server)
        offer = await anext(session.offers())
        if not isinstance(offer, PublicationOffered):
            raise CaseFailed(f"expected a PUBLISH, got {offer}")
        check("the track", offer.name, named(BINARY))
        async with session.accept(offer) as subscription:
            got = await collect(subscription, objects=ALL)
    check("what we got", got.live.summary, whole(range(GROUPS)))


@CASES.case("namespace-offer-from-peer", Direction.FROM_PEER, "9.14")
async def namespace_offer_from_peer(stage: Stage) -> None:
    """PUBLISH_NAMESPACE, accepted, then SUBSCRIBE of a track in it, by the server."""
    async with serving(stage, takes_offers=True) as server:
        await stage.script("publisher", "namespace", url_of(server.port), hex_fields(BINARY))
        session = await first_session(server)
        offer = await anext(session.offers())
        if not isinstance(offer, NamespaceOffered):
            raise CaseFailed(f"expected a PUBLISH_NAMESPACE, got {offer}")
        check("the namespace", offer.namespace, BINARY)
        session.accept_namespace(offer)
        async with session.subscribe(named(BINARY)) as subscription:
            got = await collect(subscription, objects=ALL)
    check("what we got", got.live.summary, whole(range(GROUPS)))


@CASES.case("track-status-to-peer", Direction.TO_PEER, "9.13")
async def track_status_to_peer(stage: Stage) -> None:
    """TRACK_STATUS: the Largest Object."""
    async with serving(stage, whole_track(BINARY)) as server:
        got = await stage.result("subscriber", url_of(server.port), hex_fields(BINARY), "status")
    check("Largest Object", got, [GROUPS - 1, OBJECTS - 1])


@CASES.case("track-status-from-peer", Direction.FROM_PEER, "9.13")
async def track_status_from_peer(stage: Stage) -> None:
    """TRACK_STATUS: the Largest Object."""
    port = stage.port()
    publisher = await stage.script("publisher", "serve", port, hex_fields(BINARY))
    await publisher.serving("READY", port)
    async with dial(stage, port) as session:
        async with session.subscribe(named(BINARY)):
            await publisher.line("PRODUCED")
        status = await session.track_status(named(BINARY))
    check("Largest Object", status.largest, moqt.Location(GROUPS - 1, OBJECTS - 1))


@CASES.case("unknown-track-to-peer", Direction.TO_PEER, "9.4")
async def unknown_track_to_peer(stage: Stage) -> None:
    """SUBSCRIBE of a track that there is not: DOES_NOT_EXIST."""
    async with serving(stage) as server:
        got = await stage.result(
            "subscriber", url_of(server.port), hex_fields(BINARY), "subscribe", ALL
        )
    check("refused with", got["refused"], int(moqt.RequestErrorCode.DOES_NOT_EXIST))


@CASES.case("unknown-track-from-peer", Direction.FROM_PEER, "9.4")
async def unknown_track_from_peer(stage: Stage) -> None:
    """SUBSCRIBE of a track that there is not: DOES_NOT_EXIST."""
    port = stage.port()
    await (await stage.script("publisher", "serve", port, hex_fields(BINARY))).serving(
        "READY", port
    )
    async with dial(stage, port) as session:
        try:
            async with session.subscribe(named(TEXT)):
                pass
        except moqt.errors.RequestRejected as error:
            check("refused with", error.code, moqt.RequestErrorCode.DOES_NOT_EXIST)
        else:
            raise CaseFailed("SUBSCRIBE_OK for a track that there is not")


@CASES.case("goaway-to-peer", Direction.CONTROL, "6.6.1, 9.2")
async def goaway_to_peer(stage: Stage) -> None:
    """GOAWAY of our server, as the peer's client reads it."""
    uri = "moqt://localhost:4443/elsewhere"
    async with serving(stage) as server:
        subscriber = await stage.script(
            "subscriber", url_of(server.port), hex_fields(BINARY), "goaway"
        )
        session = await first_session(server)
        session.goaway(uri, timeout_ms=GOAWAY_MS)
        got = await subscriber.result()
    check("what it read", got, {"uri": uri, "timeout_ms": GOAWAY_MS})


@CASES.case("goaway-from-peer", Direction.CONTROL, "6.6.1, 9.2")
async def goaway_from_peer(stage: Stage) -> None:
    """GOAWAY of the peer's server, as our client reads it, and the end of the session."""
    port = stage.port()
    publisher = await stage.script("publisher", "serve", port, hex_fields(BINARY))
    await publisher.serving("READY", port)
    async with dial(stage, port) as session:
        await publisher.tell("goaway")
        received = await session.wait_goaway()
    if received is None:
        raise CaseFailed("the session ended without GOAWAY")
    check("timeout", received.timeout_ms, GOAWAY_MS)
