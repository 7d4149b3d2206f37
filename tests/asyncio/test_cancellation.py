"""Cancelled at every await: no task, no socket, no timer is left, and the peer is told."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

import moqt
from moqt import errors
from tests.asyncio.endpoints import (
    NAME,
    connected,
    directory_with,
    expected,
    poll,
    read_objects,
    serving,
    track_with,
    write_group,
)
from tests.asyncio.quic_pair import QUICK

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from moqt.tls import CertificatePair


async def cancelled_after(turns: int, run: Callable[[], Awaitable[None]]) -> bool:
    """Cancel `run` after so many turns of the loop; return whether it was still running."""
    task = asyncio.ensure_future(run())
    for _ in range(turns):
        await asyncio.sleep(0)
    was_running = task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        return was_running
    return False


async def test_a_session_cancelled_at_any_time_leaves_nothing(
    certificate: CertificatePair,
) -> None:
    """From the name's resolution to the linger of the close."""
    directory = directory_with(track_with(2, 3))
    async with serving(certificate, directory) as server:

        async def whole_life() -> None:
            async with connected(server, certificate) as session:
                async with session.subscribe(NAME, fill=moqt.FillParameters()) as subscription:
                    await anext(subscription)
                await session.track_status(NAME)

        turns, was_running = 0, True
        while was_running:
            was_running = await cancelled_after(turns, whole_life)
            turns += 1 if turns < 20 else 5
            assert asyncio.all_tasks() == {asyncio.current_task()}
        assert turns > 20
        await poll(lambda: not server.sessions)


async def test_cancelling_an_entry_cancels_the_request(certificate: CertificatePair) -> None:
    """The peer offers nothing and answers late: PUBLISH_NAMESPACE waits for its application."""
    async with (
        serving(certificate, takes_offers=True) as server,
        connected(server, certificate) as session,
    ):
        (served,) = server.sessions
        for _ in range(3):
            announcing = session.publish_namespace(moqt.TrackNamespace.of("x"))
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(announcing.__aenter__(), 0.02)
        assert session.stats.open_requests == 0
        await poll(lambda: served.stats.open_requests == 0)
        assert not session._desk.requests


async def test_a_cancelled_update_leaves_nothing(certificate: CertificatePair) -> None:
    """Its answer has nobody to go to any more, and is not kept."""
    async with (
        serving(certificate, directory_with(moqt.TrackSource(NAME))) as server,
        connected(server, certificate) as session,
        session.subscribe(NAME) as subscription,
    ):
        for priority in range(3):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0):
                    await subscription.update(priority=priority)
        await subscription.update(priority=4)  # answered behind all of them
        assert not subscription._updates


async def test_a_timeout_of_our_own_is_a_timed_out(certificate: CertificatePair) -> None:
    async with (
        serving(certificate, takes_offers=True) as server,
        connected(server, certificate) as session,
    ):
        with pytest.raises(errors.TimedOut, match="PUBLISH_NAMESPACE"):
            async with session.publish_namespace(moqt.TrackNamespace.of("x"), timeout_s=0.02):
                pytest.fail("accepted")


async def test_the_sessions_own_request_timeout(certificate: CertificatePair) -> None:
    impatient = moqt.SessionConfig(request_timeout_s=0.05)
    async with (
        serving(certificate, takes_offers=True) as server,
        connected(server, certificate, config=impatient) as session,
    ):
        with pytest.raises(errors.TimedOut, match=r"no answer within 0\.05 s"):
            async with session.publish_namespace(moqt.TrackNamespace.of("x")):
                pytest.fail("accepted")


async def test_a_cancelled_iteration_loses_nothing(certificate: CertificatePair) -> None:
    track = moqt.TrackSource(NAME)
    async with (
        serving(certificate, directory_with(track)) as server,
        connected(server, certificate) as session,
        session.subscribe(NAME) as subscription,
    ):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02):
                await anext(subscription)
        write_group(track, 0, objects=4)
        track.end()
        assert await read_objects(subscription) == expected(range(1), 4)


async def test_a_cancelled_close_still_closes(certificate: CertificatePair) -> None:
    slow = replace(QUICK, close_linger_s=30.0)
    async with serving(certificate) as server:

        async def run() -> None:
            async with connected(server, certificate, transport_config=slow) as session:
                (served,) = server.sessions
                closing.set_result(served)
                await session.close()
            assert served.is_closed

        closing = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(run())
        served = await closing
        await served.wait_closed()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_a_cancelled_serve_frees_its_port(certificate: CertificatePair) -> None:
    started = asyncio.get_running_loop().create_future()

    async def run() -> None:
        async with serving(certificate) as server:
            async with connected(server, certificate):
                started.set_result(server.port)
                await asyncio.Future()

    task = asyncio.create_task(run())
    port = await started
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with moqt.serve(
        "127.0.0.1",
        port,
        certificate=certificate.certificate,
        private_key=certificate.private_key,
    ) as again:
        assert again.port == port
