"""`ConnectionStats`: what is counted is what came and went, at both ends, on both packet paths."""

from __future__ import annotations

import os
import sys
from contextlib import asynccontextmanager
from dataclasses import FrozenInstanceError, replace
from functools import partial
from typing import TYPE_CHECKING

import pytest

from moqt.asyncio.bulk.connection import BulkConnection
from moqt.asyncio.info import connection_stats
from tests.asyncio.endpoints import (
    NAME,
    connected,
    directory_with,
    expected,
    poll,
    read_objects,
    serving,
    track_with,
)
from tests.asyncio.narrow_path import narrow_path
from tests.asyncio.quic_pair import QUICK, dialing, listening, quic_pair

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import moqt
    from moqt.tls import CertificatePair
    from tests.asyncio.narrow_path import NarrowPath
    from tests.asyncio.quic_pair import RecordingSession

KIBI = 1 << 10
LOST_EVERY = 8
SMALL = replace(QUICK, max_datagram_octets=1200)
"""Without probes of the path, so that only what is sent anyway is on it."""


class Observer:
    """Counts what a path is given, and drops every `LOST_EVERY`th datagram if told to."""

    def __init__(self, path: NarrowPath) -> None:
        self.given = self.lost = 0
        self.is_lossy = self.is_dead = False
        self._path = path
        path.loses = self._loses

    @property
    def all_given(self) -> int:
        """Those included that are larger than the path."""
        return self.given + len(self._path.dropped)

    def _loses(self) -> bool:
        self.given += 1
        if self.is_dead or (self.is_lossy and self.given % LOST_EVERY == 0):
            self.lost += 1
            return True
        return False


@asynccontextmanager
async def observed(
    certificate: CertificatePair, config: moqt.TransportConfig = SMALL
) -> AsyncIterator[tuple[RecordingSession, RecordingSession, Observer]]:
    """A client and a server, and who sees all that is between them."""
    async with (
        listening(certificate, config) as (listener, accepting),
        narrow_path(listener.address[1], 1452) as path,
    ):
        observer = Observer(path)
        async with dialing(path.port, config) as near:
            await near.until(lambda: near.started)
            far = accepting.sessions[0]
            await far.until(lambda: far.started)
            yield near, far, observer


def stats(session: RecordingSession) -> moqt.ConnectionStats:
    return connection_stats(session.driver)


async def send(near: RecordingSession, far: RecordingSession, octets: int) -> None:
    stream_id = near.transport.open(bidirectional=False)
    assert stream_id is not None
    data = os.urandom(octets)
    near.send(stream_id, data, fin=True)
    await far.until(lambda: stream_id in far.finished)
    assert far.received[stream_id] == data


def sent_and_received(*sessions: RecordingSession) -> tuple[int, int]:
    """Return the datagrams of both ends together."""
    all_stats = [stats(session) for session in sessions]
    return (
        sum(one.datagrams_sent for one in all_stats),
        sum(one.datagrams_received for one in all_stats),
    )


def has_received_more(session: RecordingSession, datagrams: int) -> bool:
    return stats(session).datagrams_received > datagrams


async def test_an_ack_that_is_all_there_is_to_do_is_no_wake_up(
    certificate: CertificatePair,
) -> None:
    """Of the packets of runs, that is; aioquic's own code looks at everything each time."""
    async with quic_pair(certificate, client=SMALL, server=SMALL) as (near, far):
        await send(near, far, 1000)
        connection = near.driver.connection
        await poll(lambda: not connection.recovery.bytes_in_flight)
        before = stats(far)
        for number in range(3):  # the first is acknowledged at once, the others by the timer
            answered = stats(near).datagrams_received
            connection.send_ping(number)
            near.driver.wake()
            await poll(partial(has_received_more, near, answered))
            await poll(lambda: not connection.recovery.bytes_in_flight)
        after = stats(far)
        assert after.datagrams_received - before.datagrams_received >= 3
        assert after.datagrams_sent - before.datagrams_sent >= 3
        if isinstance(far.driver.connection, BulkConnection):
            assert (
                after.wakeups - before.wakeups
                <= after.datagrams_received - before.datagrams_received
            )


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says what it dropped")
@pytest.mark.parametrize("is_server", [True, False])
async def test_a_socket_that_is_too_small_is_seen(
    certificate: CertificatePair, is_server: bool
) -> None:
    small = replace(QUICK, socket_buffer_octets=4096)
    async with quic_pair(
        certificate,
        client=QUICK if is_server else small,
        server=small if is_server else QUICK,
    ) as (client, server):
        near, far = (client, server) if is_server else (server, client)
        await send(near, far, 2 << 20)
        assert stats(far).overflows > 0
        assert stats(near).packets_lost > 0
        assert stats(near).overflows == 0


async def test_a_session_of_either_role_has_counters_that_add_up(
    certificate: CertificatePair,
) -> None:
    track = track_with(groups=4, objects=50)
    async with (
        serving(certificate, directory_with(track)) as server,
        connected(server, certificate) as session,
    ):
        (served,) = server.sessions
        before, served_before = session.connection_stats, served.connection_stats
        async with session.fetch(NAME) as fetch:
            assert await read_objects(fetch) == expected(range(4), 50)
        served_after, after = served.connection_stats, session.connection_stats
        assert after.octets_received - before.octets_received > 4 * 50 * 1000
        assert after.datagrams_received > before.datagrams_received
        assert after.datagrams_received <= served_after.datagrams_sent
        assert after.octets_received <= served_after.octets_sent
        assert 0 < served_after.datagrams_received <= after.datagrams_sent
        assert 0 < served_after.octets_received <= after.octets_sent
        assert after.datagrams_received * 65535 >= after.octets_received
        for earlier, later in (before, after), (served_before, served_after):
            assert 0 < earlier.wakeups < later.wakeups
            assert later.congestion_window_octets >= 2 * 1200
            assert later.smoothed_rtt_s is not None
            assert later.least_rtt_s is not None
            assert 0 < later.least_rtt_s


async def test_each_datagram_on_the_path_is_counted_once(certificate: CertificatePair) -> None:
    async with observed(certificate) as (near, far, observer):
        await send(near, far, 100 * KIBI)
        await send(far, near, 100 * KIBI)
        await poll(lambda: sent_and_received(near, far) == (observer.given, observer.given))
        assert stats(near).octets_sent == stats(far).octets_received > 100 * KIBI
        assert stats(far).octets_sent == stats(near).octets_received > 100 * KIBI
        assert stats(near).datagrams_sent == stats(far).datagrams_received
        await poll(lambda: stats(near).octets_in_flight == stats(far).octets_in_flight == 0)


async def test_probes_of_the_path_are_sent_but_their_loss_is_none(
    certificate: CertificatePair,
) -> None:
    async with observed(certificate, QUICK) as (near, far, observer):
        searches = [one.driver.connection._mtu_prober.search for one in (near, far)]
        await poll(lambda: all(search.is_settled for search in searches))
        await poll(lambda: sent_and_received(near, far) == (observer.all_given, observer.given))
        assert observer.all_given > observer.given
        assert stats(near).packets_lost == stats(far).packets_lost == 0


async def test_lost_packets_are_counted_by_who_sent_them(certificate: CertificatePair) -> None:
    async with observed(certificate) as (near, far, observer):
        await send(near, far, 10 * KIBI)
        observer.is_lossy = True
        await send(near, far, 200 * KIBI)
        observer.is_lossy = False
        await poll(
            lambda: sent_and_received(near, far) == (observer.given, observer.given - observer.lost)
        )
        assert stats(near).packets_lost > 0
        assert stats(far).datagrams_received < stats(near).datagrams_sent


async def test_a_path_that_carries_nothing_leads_to_probe_timeouts(
    certificate: CertificatePair,
) -> None:
    async with observed(certificate) as (near, far, observer):
        await send(near, far, KIBI)
        before = stats(near).probe_timeouts
        observer.is_dead = True
        stream_id = near.transport.open(bidirectional=False)
        assert stream_id is not None
        near.send(stream_id, b"anyone?", fin=True)
        await poll(lambda: stats(near).probe_timeouts >= before + 2)
        assert stats(near).octets_in_flight > 0
        observer.is_dead = False
        await far.until(lambda: stream_id in far.finished)


async def test_each_time_that_a_driver_works_is_counted(certificate: CertificatePair) -> None:
    async with quic_pair(certificate) as (near, _):
        before = stats(near).wakeups
        near.driver.pump_now()
        near.driver.wake()  # that is for later
        assert stats(near).wakeups == before + 1
        near.driver.abort()
        after = stats(near)
        near.driver.pump_now()
        assert stats(near) == after  # what was counted can still be read


async def test_stats_are_a_value_of_their_own(certificate: CertificatePair) -> None:
    async with quic_pair(certificate) as (near, far):
        before = stats(near)
        copy = replace(before)
        await send(near, far, KIBI)
        assert before == copy != stats(near)
        with pytest.raises(FrozenInstanceError):
            before.wakeups = 0  # type: ignore[misc]


async def test_where_the_loop_watches_no_sockets_datagrams_are_counted_too(
    certificate: CertificatePair,
) -> None:
    async with quic_pair(certificate, watch_socket=False) as (near, far):
        await send(near, far, 10 * KIBI)
        await poll(lambda: stats(near).octets_in_flight == 0)
        assert 10 * KIBI < stats(far).octets_received <= stats(near).octets_sent
        assert 0 < stats(near).datagrams_received <= stats(far).datagrams_sent
