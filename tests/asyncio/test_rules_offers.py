"""Rules of draft 22 on offers and updates, between real endpoints."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import moqt
from moqt import errors
from moqt.events import ObjectReceived, PublicationOffered
from moqt.session.publish.served_subscription import ServedSubscription
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


async def test_unwanted_offers_are_refused_as_uninteresting(certificate: CertificatePair) -> None:
    """UNINTERESTED, not NOT_SUPPORTED: the request is known, just not wanted (MOQT-22 9.8)."""
    async with serving(certificate) as server, connected(server, certificate) as session:
        with pytest.raises(errors.RequestRejected) as refused:
            async with session.publish(moqt.TrackSource(NAME)):
                pytest.fail("accepted")
        assert refused.value.code is moqt.RequestErrorCode.UNINTERESTED


async def test_offered_track_is_taken_with_its_history_once(certificate: CertificatePair) -> None:
    """PUBLISH with FORWARD 0, then FORWARD 1 and a fill in one update (MOQT-22 9.8)."""
    track = track_with(groups=2, objects=3)
    async with (
        serving(certificate, takes_offers=True) as server,
        connected(server, certificate) as session,
    ):
        (served,) = server.sessions
        publication = session.publish(track, forward=False)
        entering = asyncio.create_task(publication.__aenter__())
        offer = await anext(served.offers())
        assert isinstance(offer, PublicationOffered)
        fill = moqt.FillParameters(location_filter=moqt.LocationFilter.none())
        async with served.accept(offer, fill=fill) as subscription:
            await entering
            first = await anext(subscription)
            assert isinstance(first, ObjectReceived)
            assert first.from_fill
            write_group(track, 2, objects=3)
            track.end()
            rest = await read_objects(subscription)
        assert len(rest) == 8
        assert rest.items() < expected(range(3), 3).items()


async def test_redirected_offer_raises_where_to_go(certificate: CertificatePair) -> None:
    async with (
        serving(certificate, takes_offers=True) as server,
        connected(server, certificate) as session,
    ):
        (served,) = server.sessions
        publication = session.publish_namespace(NAMESPACE)
        entering = asyncio.create_task(publication.__aenter__())
        offer = await anext(served.offers())
        target = moqt.FullTrackName(moqt.TrackNamespace.of("elsewhere"), b"")
        served.reject(
            offer,
            moqt.RequestErrorCode.REDIRECT,
            redirect_uri="moqt://other.example/",
            redirect_name=target,
        )
        with pytest.raises(errors.RequestRejected) as refused:
            await entering
        assert refused.value.redirect_uri == "moqt://other.example/"
        assert refused.value.redirect_name == target


async def test_withdrawn_track_is_not_handed_out(certificate: CertificatePair) -> None:
    async with (
        serving(certificate, takes_offers=True) as server,
        connected(server, certificate) as session,
    ):
        (served,) = server.sessions
        entering = asyncio.create_task(session.publish(moqt.TrackSource(NAME)).__aenter__())
        await poll(lambda: served.stats.requests_received == 1)
        entering.cancel()
        await poll(lambda: served.stats.open_requests == 0)
        again = asyncio.create_task(session.publish_namespace(NAMESPACE).__aenter__())
        async with asyncio.timeout(5):
            offer = await anext(served.offers())
        assert not isinstance(offer, PublicationOffered)
        again.cancel()


async def test_update_that_is_never_answered_times_out(
    certificate: CertificatePair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ServedSubscription, "on_message", lambda *_: None)
    impatient = moqt.SessionConfig(request_timeout_s=0.5)
    async with (
        serving(certificate, directory_with(track_with(1, 1))) as server,
        connected(server, certificate, config=impatient) as session,
        session.subscribe(NAME) as subscription,
    ):
        with pytest.raises(errors.TimedOut, match="update"):
            await subscription.pause()
        assert not session.is_closed


async def test_priority_of_a_running_fetch_changes(certificate: CertificatePair) -> None:
    """REQUEST_UPDATE of a FETCH (MOQT-22 9.5), until its data has come."""
    track = track_with(groups=1, objects=64, octets=64 * 1024)
    small = moqt.SessionConfig(max_buffered_octets=64 * 1024)
    async with (
        serving(certificate, directory_with(track)) as server,
        connected(server, certificate, config=small) as session,
        session.fetch(NAME) as fetch,
    ):
        await fetch.established()
        await fetch.update(priority=7)
        found = await read_objects(fetch)
        assert found == expected(range(1), 64, 64 * 1024)
        await poll(lambda: session.stats.open_requests == 0)
        await poll(lambda: next(iter(server.sessions)).stats.open_requests == 0)
