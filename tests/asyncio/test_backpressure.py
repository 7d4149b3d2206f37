"""A slow reader costs bounded memory on both sides, and nobody else anything."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

import moqt
from moqt import errors
from moqt.events import ObjectReceived
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
    from moqt.tls import CertificatePair

KIBI = 1024
NARROW = replace(QUICK, connection_window_octets=512 * KIBI, stream_window_octets=256 * KIBI)
SMALL = moqt.SessionConfig(max_buffered_octets=128 * KIBI)


async def stalled(session: moqt.MoqtSession) -> int:
    """Wait until nothing more arrives, and return what did."""
    connection = session._driver.connection
    received = -1
    while received != connection.received_octets or not received:
        received = connection.received_octets
        await asyncio.sleep(0.05)
    return received


async def test_what_a_slow_reader_holds_is_bounded(certificate: CertificatePair) -> None:
    track = track_with(groups=8, objects=8, octets=64 * KIBI)
    async with (
        serving(certificate, directory_with(track)) as server,
        connected(server, certificate, config=SMALL, transport_config=NARROW) as session,
        session.fetch(NAME) as fetch,
    ):
        received = await stalled(session)
        connection = session._driver.connection
        assert received - connection.credited_octets <= NARROW.connection_window_octets
        # what is unread, and at most one stream's window behind it
        assert received <= SMALL.max_buffered_octets + 2 * NARROW.stream_window_octets
        (served,) = server.sessions
        assert served._driver.connection.unsent_octets <= QUICK.max_send_buffer_octets
        assert await read_objects(fetch) == expected(range(8), 8, 64 * KIBI)
        assert session.stats.octets_unread == 0
        await poll(lambda: connection.credited_octets == connection.received_octets)


async def test_items_in_hand_count_until_the_next_or_consume(certificate: CertificatePair) -> None:
    track = moqt.TrackSource(NAME)
    async with (
        serving(certificate, directory_with(track)) as server,
        connected(server, certificate) as session,
        session.subscribe(NAME) as subscription,
    ):
        writer = track.open_group(0)
        writer.write(0, bytes(1000))
        writer.write(1, bytes(1000))
        first = await anext(subscription)
        assert isinstance(first, ObjectReceived)
        await poll(lambda: session.stats.objects_received == 2)
        assert session.stats.octets_unread == 2000
        subscription.consume(first)
        subscription.consume(first)
        assert session.stats.octets_unread == 1000


async def test_what_was_left_unread_is_given_back(certificate: CertificatePair) -> None:
    track = track_with(groups=8, objects=8, octets=64 * KIBI)
    async with (
        serving(certificate, directory_with(track)) as server,
        connected(server, certificate, config=SMALL, transport_config=NARROW) as session,
    ):
        for _ in range(3):
            async with session.fetch(NAME) as fetch:
                await anext(fetch)
                await stalled(session)
        connection = session._driver.connection
        await poll(lambda: connection.credited_octets == connection.received_octets)
        assert session.stats.octets_unread == 0
        assert session._desk.queued == 0
        async with session.fetch(NAME) as fetch:
            assert await read_objects(fetch) == expected(range(8), 8, 64 * KIBI)


async def test_a_slow_subscriber_does_not_slow_another(certificate: CertificatePair) -> None:
    track = moqt.TrackSource(NAME)
    async with (
        serving(certificate, directory_with(track)) as server,
        connected(server, certificate, config=SMALL, transport_config=NARROW) as slow,
        connected(server, certificate) as fast,
        slow.subscribe(NAME) as unread,
        fast.subscribe(NAME) as subscription,
    ):
        reading = asyncio.create_task(read_objects(subscription))
        for group_id in range(8):
            write_group(track, group_id, objects=8, octets=64 * KIBI)
        track.end()
        assert await reading == expected(range(8), 8, 64 * KIBI)
        assert not unread.is_over
        received = slow._driver.connection.received_octets
        assert received <= SMALL.max_buffered_octets + NARROW.connection_window_octets
        assert await read_objects(unread) == expected(range(8), 8, 64 * KIBI)


async def test_too_far_behind_is_said(certificate: CertificatePair) -> None:
    track = moqt.TrackSource(NAME)
    config = moqt.SessionConfig(max_lag_octets=1024 * KIBI)
    async with (
        serving(certificate, directory_with(track), config=config) as server,
        connected(server, certificate, config=SMALL, transport_config=NARROW) as slow,
        slow.subscribe(NAME) as unread,
    ):
        for group_id in range(8):
            write_group(track, group_id, objects=8, octets=64 * KIBI)
            await asyncio.sleep(0.005)
        with pytest.raises(errors.RequestEnded) as ended:
            await read_objects(unread)
        assert ended.value.code is moqt.PublishDoneCode.TOO_FAR_BEHIND


async def test_too_many_unread_events_end_the_session(certificate: CertificatePair) -> None:
    directory = moqt.TrackDirectory()
    for number in range(50):
        directory.advertise(moqt.TrackNamespace.of("kv", str(number)))
    few = moqt.SessionConfig(max_events=40)
    async with (
        serving(certificate, directory) as server,
        connected(server, certificate, config=few) as session,
    ):
        async with session.subscribe_namespace(moqt.TrackNamespace.of("kv")):
            async with asyncio.timeout(5):
                ended = await session.wait_closed()
        assert ended.code is moqt.SessionErrorCode.INTERNAL_ERROR
        assert "40 events" in ended.reason
