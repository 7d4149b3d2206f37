"""A client that follows: redirects and Retry Intervals (MOQT-22 9.4, 12.3)."""

from __future__ import annotations

import asyncio
import warnings
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

import moqt
from moqt import errors
from moqt.asyncio import following
from moqt.events import NamespaceFound, ObjectReceived, PublicationOffered
from moqt.tls import generate_certificate
from moqt.wire.messages import Redirect, RequestError
from tests.asyncio.endpoints import (
    NAME,
    NAMESPACE,
    directory_with,
    expected,
    poll,
    read_objects,
    serving,
    track_with,
)
from tests.asyncio.quic_pair import QUICK
from tests.asyncio.roaming import OTHER, WHOLE, client_of, full_track, url

if TYPE_CHECKING:
    from moqt.tls import CertificatePair


def redirect(uri: str, name: moqt.FullTrackName) -> errors.RequestRejected:
    return errors.RequestRejected(
        moqt.RequestErrorCode.REDIRECT, "moved", redirect_uri=uri, redirect_name=name
    )


async def test_a_redirect_is_followed_to_another_session(certificate: CertificatePair) -> None:
    """12.3#1: subscribe, fetch and track status go to the URI and target that REDIRECT names."""
    directory = moqt.TrackDirectory()
    async with (
        serving(certificate, directory_with(full_track(OTHER))) as second,
        serving(certificate, directory) as first,
        client_of(first, certificate) as client,
    ):
        directory.refuse(NAME, redirect(url(second), OTHER))
        async with client.fetch(NAME) as fetch:
            assert await read_objects(fetch) == expected(range(2), 3)
        assert fetch.established.end == moqt.Location(1, 2)
        async with client.subscribe(NAME, fill=WHOLE) as subscription:
            assert subscription.largest == moqt.Location(1, 2)
            assert await read_objects(subscription) == expected(range(2), 3)
        assert (await client.track_status(NAME)).largest == moqt.Location(1, 2)
        # One new session served all three, and the first one goes on.
        assert client.session_count == 2
        assert len(second.sessions) == 1
        assert client.session.stats.requests_sent == 3
        assert str(client.uri) == url(first)
        assert not client.session.is_closed


async def test_what_a_client_has_no_verb_for_is_asked_of_its_session(
    certificate: CertificatePair,
) -> None:
    """A client, which takes no offers, gets those that it asks for; they end with the session."""
    async with (
        serving(certificate, directory_with(moqt.TrackSource(NAME))) as server,
        client_of(server, certificate) as client,
    ):
        async with client.session.subscribe_tracks(NAMESPACE) as tracks, asyncio.timeout(20):
            offer = await anext(tracks)
            assert isinstance(offer, PublicationOffered)
            assert offer.name == NAME
            server.goaway()
            with pytest.raises(errors.SessionClosed):
                await anext(tracks)
        assert (await client.track_status(NAME)).largest is None


async def test_a_redirect_without_a_uri_stays_in_the_session(certificate: CertificatePair) -> None:
    """9.4.1#4, 12.3#1: the request again, for its target, at the current session's URI."""
    directory = directory_with(full_track(OTHER))
    directory.refuse(NAME, redirect("", OTHER))
    async with (
        serving(certificate, directory) as server,
        client_of(server, certificate) as client,
        client.subscribe(NAME, fill=WHOLE) as subscription,
    ):
        assert await read_objects(subscription) == expected(range(2), 3)
        assert subscription.session is client.session
        assert len(server.sessions) == client.session_count == 1


async def test_a_redirected_prefix_is_followed(certificate: CertificatePair) -> None:
    """12.3#1: SUBSCRIBE_NAMESPACE, whose target has no Track Name."""
    directory = moqt.TrackDirectory()
    directory.advertise(OTHER.namespace)
    async with (
        serving(certificate, directory) as second,
        serving(certificate, takes_offers=True) as first,
        client_of(first, certificate) as client,
    ):
        (served,) = first.sessions
        target = moqt.FullTrackName(moqt.TrackNamespace.of("kv"), b"")

        def refuse(*args: object) -> None:
            stream = args[0]
            stream.send(  # type: ignore[attr-defined]
                RequestError(
                    code=moqt.RequestErrorCode.REDIRECT, redirect=Redirect(url(second), target)
                )
            )
            stream.finish()  # type: ignore[attr-defined]

        served._session._namespaces.on_subscribe_namespace = refuse  # type: ignore[assignment]
        async with client.subscribe_namespace(NAMESPACE) as found:
            item = await anext(found)
            assert isinstance(item, NamespaceFound)
            assert item.namespace == OTHER.namespace


async def test_redirects_in_a_circle_are_found_out(certificate: CertificatePair) -> None:
    directory = moqt.TrackDirectory()
    directory.refuse(NAME, redirect("", OTHER))
    directory.refuse(OTHER, redirect("", NAME))
    async with (
        serving(certificate, directory) as server,
        client_of(server, certificate) as client,
    ):
        with pytest.raises(errors.FollowFailed, match="circle") as failed:
            async with client.subscribe(NAME):
                pytest.fail("accepted")
        assert len(failed.value.visited) == 3
        assert client.session.stats.requests_sent == 2
        assert client.session.stats.open_requests == 0


async def test_no_more_redirects_than_allowed(certificate: CertificatePair) -> None:
    names = [moqt.FullTrackName(NAMESPACE, b"%d" % n) for n in range(4)]
    directory = directory_with(full_track(names[3]))
    for name, target in pairwise(names):
        directory.refuse(name, redirect("", target))
    async with serving(certificate, directory) as server:
        async with client_of(server, certificate, moqt.FollowConfig(max_redirects=2)) as client:
            with pytest.raises(errors.FollowFailed, match="more than 2 redirects"):
                await client.track_status(names[0])
            assert (await client.track_status(names[1])).largest == moqt.Location(1, 2)
        async with client_of(server, certificate) as client:
            assert (await client.track_status(names[0])).largest == moqt.Location(1, 2)


@pytest.mark.parametrize("uri", ["https://127.0.0.1/", "moqt://", "nonsense"])
async def test_a_redirect_to_no_moqt_address_fails(certificate: CertificatePair, uri: str) -> None:
    directory = moqt.TrackDirectory()
    directory.refuse(NAME, redirect(uri, OTHER))
    async with (
        serving(certificate, directory) as server,
        client_of(server, certificate) as client,
    ):
        with pytest.raises(errors.FollowFailed) as failed:
            await client.track_status(NAME)
        assert failed.value.visited[-1] == uri
        assert not client.session.is_closed


async def test_trust_is_not_widened_by_a_redirect(certificate: CertificatePair) -> None:
    """`insecure` holds for the host that was named by the application alone."""
    stranger = generate_certificate(["localhost"])
    directory = moqt.TrackDirectory()
    other = directory_with(full_track(OTHER))
    async with (
        serving(stranger, other, host="localhost") as second,
        serving(certificate, directory) as first,
    ):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", moqt.InsecureConnectionWarning)
            async with moqt.Client.connect(
                url(first), insecure=True, transport_config=QUICK
            ) as client:
                directory.refuse(NAME, redirect(f"moqt://localhost:{second.port}/", OTHER))
                with pytest.raises(errors.ConnectFailed, match="not trusted"):
                    await client.track_status(NAME)
                directory.refuse(NAME, redirect(url(first) + "x", OTHER))
                directory.add(full_track(OTHER))
                assert (await client.track_status(NAME)).largest == moqt.Location(1, 2)


# Retry Interval


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What was waited for, in seconds; the waiting itself is left out."""
    waited: list[float] = []

    async def pause(seconds: float) -> None:
        waited.append(seconds)
        await asyncio.sleep(0)

    monkeypatch.setattr(following, "_pause", pause)
    return waited


def busy(retry_interval_ms: int | None) -> errors.RequestRejected:
    return errors.RequestRejected(
        moqt.RequestErrorCode.EXCESSIVE_LOAD, "busy", retry_interval_ms=retry_interval_ms
    )


async def test_a_request_is_repeated_after_its_retry_interval(
    certificate: CertificatePair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """9.4.2#1: Retry Interval 251 on the wire is 250 ms, waited for before each repetition."""
    directory = moqt.TrackDirectory()
    directory.refuse(NAME, busy(250))
    waited: list[float] = []

    async def pause(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 3:
            directory.add(full_track(NAME))

    monkeypatch.setattr(following, "_pause", pause)
    async with (
        serving(certificate, directory) as server,
        client_of(server, certificate) as client,
        client.fetch(NAME) as fetch,
    ):
        assert await read_objects(fetch) == expected(range(2), 3)
        assert waited == [0.25] * 3
        assert client.session.stats.requests_sent == 4


async def test_a_request_without_a_retry_interval_is_not_repeated(
    certificate: CertificatePair, pauses: list[float]
) -> None:
    """9.4#2: 0 on the wire; a redirect is followed all the same."""
    directory = moqt.TrackDirectory()
    directory.refuse(NAME, busy(None))
    async with (
        serving(certificate, directory) as server,
        client_of(server, certificate) as client,
    ):
        with pytest.raises(errors.RequestRejected) as refused:
            await client.track_status(NAME)
        assert refused.value.code is moqt.RequestErrorCode.EXCESSIVE_LOAD
        assert client.session.stats.requests_sent == 1
        directory.add(full_track(OTHER))
        directory.refuse(NAME, redirect("", OTHER))
        assert (await client.track_status(NAME)).largest == moqt.Location(1, 2)
        assert pauses == []


async def test_repetitions_are_bounded_by_number_and_time(
    certificate: CertificatePair, pauses: list[float]
) -> None:
    directory = moqt.TrackDirectory()
    directory.refuse(NAME, busy(0))
    limits = moqt.FollowConfig(max_retries=3, follow_timeout_s=30)
    async with (
        serving(certificate, directory) as server,
        client_of(server, certificate, limits) as client,
    ):
        with pytest.raises(errors.RequestRejected):
            await client.track_status(NAME)
        assert client.session.stats.requests_sent == 4
        assert pauses == [0.0] * 3
        directory.refuse(NAME, busy(30_000))
        with pytest.raises(errors.RequestRejected):
            await client.track_status(NAME)
        assert client.session.stats.requests_sent == 5
        assert pauses == [0.0] * 3


async def test_the_whole_way_has_a_time_limit(certificate: CertificatePair) -> None:
    async with serving(certificate, takes_offers=True) as server:
        limits = moqt.FollowConfig(follow_timeout_s=0.1)
        async with client_of(server, certificate, limits) as client:
            (served,) = server.sessions
            served._session._publisher.on_track_status = lambda *_: None  # type: ignore[method-assign]
            with pytest.raises(errors.TimedOut, match="TRACK_STATUS"):
                await client.track_status(NAME)
            await poll(lambda: client.session.stats.open_requests == 0)


# Sessions


async def test_sessions_are_bounded_and_the_idle_ones_give_way(
    certificate: CertificatePair,
) -> None:
    directory = moqt.TrackDirectory()
    live = directory_with(full_track(OTHER))
    async with (
        serving(certificate, live) as second,
        serving(certificate, directory) as first,
        client_of(first, certificate, moqt.FollowConfig(max_sessions=2)) as client,
    ):
        for path in ("a", "b", "c"):
            directory.refuse(NAME, redirect(url(second) + path, OTHER))
            assert (await client.track_status(NAME)).largest == moqt.Location(1, 2)
            assert client.session_count == 2
        await poll(lambda: len(second.sessions) == 1)
        live.add(moqt.TrackSource(NAME))
        directory.refuse(NAME, redirect(url(second) + "c", NAME))
        async with client.subscribe(NAME) as subscription:
            assert subscription.session is not client.session
            directory.refuse(NAME, redirect(url(second) + "d", OTHER))
            with pytest.raises(errors.ResourceBusy, match="max_sessions"):
                await client.track_status(NAME)


async def test_a_lost_session_is_made_again_for_the_next_request(
    certificate: CertificatePair,
) -> None:
    track = moqt.TrackSource(NAME)
    async with (
        serving(certificate, directory_with(track)) as server,
        client_of(server, certificate) as client,
        client.subscribe(NAME) as subscription,
    ):
        (served,) = server.sessions
        served.close_now(moqt.SessionErrorCode.INTERNAL_ERROR, "lost")
        with pytest.raises(errors.SessionClosed):
            await anext(subscription)
        assert (await client.track_status(NAME)).largest is None
        assert not client.session.is_closed
        await poll(lambda: client.session_count == 1)


async def test_an_unknown_server_is_an_error_on_entry(certificate: CertificatePair) -> None:
    async with serving(certificate) as server:
        port = server.port
    with pytest.raises((errors.ConnectFailed, errors.TimedOut)):
        async with moqt.Client.connect(
            f"moqt://127.0.0.1:{port}/",
            ca=certificate.certificate,
            transport_config=moqt.TransportConfig(handshake_timeout_s=0.5),
        ):
            pytest.fail("connected")


async def test_items_after_a_redirect_are_consumed(certificate: CertificatePair) -> None:
    """Credit comes back at the session that the redirect led to."""
    track = track_with(groups=3, objects=8, octets=64 * 1024)
    track.end()
    small = moqt.SessionConfig(max_buffered_octets=128 * 1024)
    directory = moqt.TrackDirectory()
    async with (
        serving(certificate, directory_with(track)) as second,
        serving(certificate, directory) as first,
        client_of(first, certificate, config=small) as client,
    ):
        directory.refuse(OTHER, redirect(url(second), NAME))
        async with client.fetch(OTHER) as fetch:
            found = 0
            async for item in fetch:
                assert isinstance(item, ObjectReceived)
                fetch.consume(item)
                found += 1
            assert found == 24


def test_limits_are_checked() -> None:
    with pytest.raises(ValueError, match="max_sessions is 0"):
        moqt.FollowConfig(max_sessions=0)
    with pytest.raises(ValueError, match="max_redirects is -1"):
        moqt.FollowConfig(max_redirects=-1)
