"""Peers that lead a client astray: into names that are none, in circles, for ever."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING

import pytest

import moqt
from moqt import errors
from moqt.asyncio.roaming import MAX_UNREAD_LEGS
from moqt.session.events import ObjectReceived
from moqt.uri import MoqtUri
from tests.asyncio.endpoints import NAME, directory_with, poll, serving, write_group
from tests.asyncio.roaming import client_of, take_all, url
from tests.asyncio.test_following import redirect

if TYPE_CHECKING:
    from moqt.tls import CertificatePair

both_loops = pytest.mark.asyncio(loop_factories=["asyncio", "uvloop"])
no_name = pytest.mark.parametrize("host", ["a..b", "a" * 64 + ".example"])
"""Hosts that an address may have and that no resolver can be asked for."""


@both_loops
@no_name
async def test_a_redirect_to_what_is_no_host_name(certificate: CertificatePair, host: str) -> None:
    directory = moqt.TrackDirectory()
    directory.refuse(NAME, redirect(f"moqt://{host}/", NAME))
    async with (
        serving(certificate, directory) as server,
        client_of(server, certificate) as client,
    ):
        with pytest.raises(errors.ConnectFailed, match="not a host name"):
            await client.subscribe(NAME).__aenter__()
        assert client.session_count == 1


@no_name
async def test_goaway_to_what_is_no_host_name(certificate: CertificatePair, host: str) -> None:
    """The subscription goes on where it is, and then says why it could not move."""
    track = moqt.TrackSource(NAME)
    async with (
        serving(certificate, directory_with(track)) as server,
        client_of(server, certificate) as client,
        client.subscribe(NAME) as subscription,
    ):
        server.goaway(f"moqt://{host}/")
        await poll(lambda: client.session.goaway_received is not None)
        write_group(track, 0, objects=1)
        track.end()
        async with asyncio.timeout(10):
            assert isinstance(await anext(subscription), ObjectReceived)
            with pytest.raises(errors.ConnectFailed, match="not a host name"):
                async for _ in subscription:
                    pass


async def test_a_client_that_asks_for_nothing_does_not_follow_goaway_for_ever(
    certificate: CertificatePair,
) -> None:
    """It stops after `max_moves`, and makes a session when it needs one."""
    asked: set[moqt.MoqtSession] = set()
    track = moqt.TrackSource(NAME)
    async with (
        serving(certificate, directory_with(track)) as server,
        client_of(server, certificate, moqt.FollowConfig(max_moves=3)) as client,
    ):
        async with asyncio.timeout(20):
            while client.session_count != 0:
                for session in server.sessions:
                    if session not in asked:
                        asked.add(session)
                        session.goaway()
                assert len(asked) <= 8
                await asyncio.sleep(0.001)
        async with client.subscribe(NAME) as subscription:
            assert subscription.session is client.session


async def test_closing_a_client_does_not_cancel_who_waits_for_a_session(
    certificate: CertificatePair,
) -> None:
    """Their tasks get SessionClosed; a CancelledError would be lost in a task group."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
        silent.bind(("127.0.0.1", 0))
        nowhere = f"moqt://127.0.0.1:{silent.getsockname()[1]}/"
        directory = moqt.TrackDirectory()
        directory.refuse(NAME, redirect(nowhere, NAME))
        async with serving(certificate, directory) as server:
            async with client_of(server, certificate) as client:
                waiting = asyncio.create_task(client.track_status(NAME))
                await poll(lambda: client.session_count == 2)
            with pytest.raises(errors.SessionClosed, match="the client is closed"):
                await waiting
            with pytest.raises(errors.SessionClosed, match="the client is closed"):
                await client._sessions.at(MoqtUri.parse(url(server)))
            await poll(lambda: not server.sessions)


async def test_what_lies_unread_comes_from_few_sessions(certificate: CertificatePair) -> None:
    """A peer that sends an Object and GOAWAY, again and again, finds that it has to wait."""
    track = moqt.TrackSource(NAME)
    asked: set[moqt.MoqtSession] = set()
    rounds = MAX_UNREAD_LEGS + 4
    async with (
        serving(certificate, directory_with(track)) as server,
        client_of(server, certificate) as client,
        client.subscribe(NAME) as subscription,
    ):
        legs = subscription._legs
        for group_id in range(MAX_UNREAD_LEGS + 1):
            write_group(track, group_id, objects=1)
            await poll(lambda: legs[-1].request.has_unread)
            (served,) = (one for one in server.sessions if one not in asked)
            asked.add(served)
            served.goaway(timeout_ms=0)
            if group_id < MAX_UNREAD_LEGS:
                await poll(lambda: subscription.moves > group_id)  # noqa: B023
        await poll(lambda: client.session is not subscription.session)  # which moved without it
        await client.track_status(NAME)  # answered behind the request that a move would make
        assert subscription.moves == MAX_UNREAD_LEGS
        for group_id in range(MAX_UNREAD_LEGS + 1, rounds):
            write_group(track, group_id, objects=1)
        track.end()
        places, _ = await take_all(subscription)
        assert sorted(places) == [(group_id, 0) for group_id in range(rounds)]
        assert subscription.moves <= MAX_UNREAD_LEGS + 1
