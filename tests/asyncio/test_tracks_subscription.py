"""SUBSCRIBE_TRACKS, moved prefixes and GOAWAY for one request, between real endpoints."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import moqt
from moqt import errors
from moqt.asyncio import namespaces
from moqt.events import (
    NamespaceFound,
    NamespaceGone,
    NamespaceOffered,
    PublicationOffered,
    TrackSkipped,
)
from tests.asyncio.endpoints import (
    NAME,
    NAMESPACE,
    connected,
    directory_with,
    expected,
    poll,
    read_objects,
    serving,
    track_with,
    write_group,
)

if TYPE_CHECKING:
    from moqt.tls import CertificatePair

PREFIX = moqt.TrackNamespace.of("kv")
ELSEWHERE = moqt.TrackNamespace.of("elsewhere")


def named(name: str, namespace: moqt.TrackNamespace = NAMESPACE) -> moqt.FullTrackName:
    return moqt.FullTrackName(namespace, name.encode())


async def next_offer(tracks: moqt.TracksSubscription) -> PublicationOffered:
    async with asyncio.timeout(10):
        item = await anext(tracks)
    assert isinstance(item, PublicationOffered)
    return item


async def test_offered_tracks_are_taken_whole(certificate: CertificatePair) -> None:
    """A track there before, by a fill; one that comes later, from its first Object on."""
    early = track_with(groups=2, objects=3)
    directory = directory_with(early)
    async with (
        serving(certificate, directory) as server,
        connected(server, certificate) as session,  # without takes_offers
        session.subscribe_tracks(PREFIX, forward=False) as tracks,
    ):
        first = await next_offer(tracks)
        assert (first.name, first.forward, first.tracks_id) == (
            NAME,
            False,
            tracks.request_id,
        )
        fill = moqt.FillParameters(location_filter=moqt.LocationFilter.none())
        async with session.accept(first, fill=fill) as subscription:
            early.end()
            assert await read_objects(subscription) == expected(range(2), 3)
        await tracks.set_forward(True)
        late = moqt.TrackSource(named("late"))
        directory.add(late)
        write_group(late, 0, objects=3)
        late.end()
        second = await next_offer(tracks)
        assert (second.name, second.forward) == (late.name, True)
        async with session.accept(second) as subscription:
            assert await read_objects(subscription) == expected(range(1), 3)


async def test_a_track_without_a_stream_is_skipped_and_can_be_subscribed_to(
    certificate: CertificatePair,
) -> None:
    directory = directory_with(track_with(groups=1, objects=1))
    async with (
        serving(
            certificate, directory, config=moqt.SessionConfig(max_pending_requests=0)
        ) as server,
        connected(server, certificate) as session,
        session.subscribe_tracks(PREFIX) as tracks,
    ):
        async with asyncio.timeout(10):
            item = await anext(tracks)
        assert item == TrackSkipped(tracks.request_id, NAME)
        async with session.subscribe(NAME) as subscription:
            assert subscription.largest == moqt.Location(0, 0)


async def test_leaving_refuses_what_was_not_read_and_keeps_what_was_taken(
    certificate: CertificatePair,
) -> None:
    taken, unread = moqt.TrackSource(named("taken")), moqt.TrackSource(named("unread"))
    directory = directory_with(taken, unread)
    async with (
        serving(certificate, directory) as server,
        connected(server, certificate) as session,
    ):
        (served,) = server.sessions
        async with session.subscribe_tracks(PREFIX) as tracks:
            offer = await next_offer(tracks)
            assert offer.name == taken.name
            subscription = session.accept(offer)
            await subscription.__aenter__()
            await poll(lambda: len(served.served_requests()) == 2 and bool(tracks._items))
        await poll(lambda: [one.name for one in served.served_requests()] == [taken.name])
        write_group(taken, 0, objects=2)
        taken.end()
        assert await read_objects(subscription) == expected(range(1), 2)
        await subscription.__aexit__(None, None, None)


async def test_an_offer_that_is_taken_back_is_not_yielded(certificate: CertificatePair) -> None:
    """Nor does it count against MAX_WAITING_OFFERS any more."""
    track = moqt.TrackSource(named("gone"))
    async with (
        serving(certificate, moqt.TrackDirectory()) as server,
        connected(server, certificate) as session,
        session.subscribe_tracks(PREFIX) as tracks,
    ):
        (served,) = server.sessions
        publication = served.publish(track)
        entering = asyncio.create_task(publication.__aenter__())
        await poll(lambda: tracks._waiting == 1)
        entering.cancel()
        await poll(lambda: tracks._waiting == 0)
        assert not tracks._items
        other = served.publish(moqt.TrackSource(named("stays")))
        entering = asyncio.create_task(other.__aenter__())
        offer = await next_offer(tracks)
        assert offer.name == named("stays")
        session.reject(offer, moqt.RequestErrorCode.UNINTERESTED)
        with pytest.raises(errors.RequestRejected):
            await entering


async def test_more_offers_than_may_wait_are_refused(
    certificate: CertificatePair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MAX_WAITING_OFFERS."""
    monkeypatch.setattr(namespaces, "MAX_WAITING_OFFERS", 2)
    directory = directory_with(*(moqt.TrackSource(named(str(number))) for number in range(5)))
    async with (
        serving(certificate, directory) as server,
        connected(server, certificate) as session,
        session.subscribe_tracks(PREFIX) as tracks,
    ):
        (served,) = server.sessions
        await poll(lambda: session.stats.requests_refused == 3)
        await poll(lambda: len(served.served_requests()) == 2)
        assert [(await next_offer(tracks)).name for _ in range(2)] == [named("0"), named("1")]


async def test_prefixes_move(certificate: CertificatePair) -> None:
    """9.20.20#1: both kinds; a move onto another one is refused here, one too wide by the peer."""
    directory = directory_with(track_with(groups=1, objects=1))
    directory.add(moqt.TrackSource(named("t", ELSEWHERE)))
    async with (
        serving(certificate, directory) as server,
        connected(server, certificate) as session,
        session.subscribe_namespace(PREFIX) as found,
        session.subscribe_tracks(PREFIX) as tracks,
    ):
        assert await anext(found) == NamespaceFound(found.request_id, NAMESPACE)
        assert (await next_offer(tracks)).name == NAME
        await found.move(ELSEWHERE)
        assert await anext(found) == NamespaceGone(found.request_id, NAMESPACE)
        assert await anext(found) == NamespaceFound(found.request_id, ELSEWHERE)
        await tracks.move(ELSEWHERE)
        assert (await next_offer(tracks)).name == named("t", ELSEWHERE)
        async with session.subscribe_tracks(PREFIX) as others:
            with pytest.raises(errors.LocalProtocolError, match="overlaps"):
                await others.move(moqt.TrackNamespace())
            assert not others.is_over


async def test_one_subscription_is_asked_to_move(certificate: CertificatePair) -> None:
    """9.2#7, 9.2#8: the application hears of it, asks again, and leaves the old request."""
    track = track_with(groups=1, objects=1)
    async with (
        serving(certificate, directory_with(track)) as server,
        connected(server, certificate) as session,
    ):
        (served,) = server.sessions
        async with session.subscribe(NAME) as old:
            (request,) = served.served_requests(NAME)
            assert request.request_id == old.request_id
            served.goaway(timeout_ms=60_000, request_id=request.request_id)
            async with asyncio.timeout(10):
                asked = await old.wait_goaway()
            assert asked is not None
            assert asked.request_id == old.request_id
            new = session.subscribe(NAME)
            await new.__aenter__()
        await poll(lambda: [r.request_id for r in served.served_requests()] == [new.request_id])
        track.end()
        assert await read_objects(new) == {}
        await new.__aexit__(None, None, None)
        assert session.goaway_received is None


async def test_who_is_asked_for_a_namespace(certificate: CertificatePair) -> None:
    """4.1#3: only the peers that advertised just that namespace and were accepted."""
    async with (
        serving(certificate, takes_offers=True) as server,
        connected(server, certificate) as first,
        connected(server, certificate),
    ):
        served = list(server.sessions)
        assert moqt.sessions_to_ask(served, NAMESPACE) == served  # nobody has advertised
        announcing = first.publish_namespace(NAMESPACE)
        entering = asyncio.create_task(announcing.__aenter__())
        offers = [asyncio.create_task(anext(one.offers())) for one in served]
        done, waiting = await asyncio.wait(offers, return_when=asyncio.FIRST_COMPLETED)
        for task in waiting:
            task.cancel()
        offered = done.pop()
        advertiser, offer = served[offers.index(offered)], offered.result()
        assert isinstance(offer, NamespaceOffered)
        assert moqt.sessions_to_ask(served, NAMESPACE) == served  # it is not accepted yet
        advertiser.accept_namespace(offer)
        await entering
        assert moqt.sessions_to_ask(served, NAMESPACE) == [advertiser]
        assert moqt.sessions_to_ask(served, PREFIX) == served  # exactly that one, no prefix
        assert moqt.sessions_to_ask(iter(()), NAMESPACE) == []
        await announcing.__aexit__(None, None, None)
        await poll(lambda: not advertiser.accepted_namespaces)
        assert moqt.sessions_to_ask(served, NAMESPACE) == served
