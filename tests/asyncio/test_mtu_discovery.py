"""Connections find the datagram size of their path, use it, and notice when it shrinks."""

from __future__ import annotations

import errno
import json
import os
import random
import socket
import sys
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from aioquic.quic import connection
from aioquic.quic.packet import push_quic_transport_parameters

from moqt.asyncio.cubic import Cubic
from moqt.asyncio.endpoint import NO_FRAGMENTS, UdpEndpoint, udp_socket
from moqt.asyncio.info import connection_info
from moqt.asyncio.listener import Listener
from moqt.asyncio.path_mtu import BASE_OCTETS, SUSPICIOUS_LOSSES, tolerance
from tests.asyncio.endpoints import poll
from tests.asyncio.narrow_path import narrow_path
from tests.asyncio.quic_pair import QUICK, dialing, listening, quic_pair

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from aioquic._buffer import Buffer
    from aioquic.quic.packet import QuicTransportParameters

    from moqt.asyncio.config import TransportConfig
    from moqt.asyncio.connection import HeldConnection
    from moqt.asyncio.endpoint import Address
    from moqt.tls import CertificatePair
    from tests.asyncio.narrow_path import NarrowPath
    from tests.asyncio.quic_pair import RecordingSession

MEBI = 1 << 20


def held(session: RecordingSession) -> HeldConnection:
    return session.driver.connection


def is_settled(session: RecordingSession) -> bool:
    return held(session)._mtu_prober.search.is_settled


async def settle(session: RecordingSession, *, at_least: int = 65536) -> None:
    """Wait for a search to end, or for its first success. It begins after a pause, which is no
    reason for QUIC to wake up."""

    def is_over() -> bool:
        session.driver.wake()
        return is_settled(session) or held(session).datagram_size >= at_least

    await poll(is_over)


async def send(near: RecordingSession, far: RecordingSession, data: bytes) -> None:
    """Send on a stream, and wait until it has come, whole."""
    stream_id = near.transport.open(bidirectional=False)
    assert stream_id is not None
    near.send(stream_id, data, fin=True)
    await far.until(lambda: stream_id in far.finished)
    assert far.received[stream_id] == data


@asynccontextmanager
async def pair_over(
    certificate: CertificatePair, mtu: int, config: TransportConfig = QUICK
) -> AsyncIterator[tuple[RecordingSession, RecordingSession, NarrowPath]]:
    """A client and a server with a narrow path between them."""
    async with (
        listening(certificate, config) as (listener, accepting),
        narrow_path(listener.address[1], mtu) as path,
        dialing(path.port, config) as near,
    ):
        await near.until(lambda: near.started)
        far = accepting.sessions[0]
        await far.until(lambda: far.started)
        yield near, far, path


async def test_loopback_carries_the_largest_datagrams(certificate: CertificatePair) -> None:
    async with quic_pair(certificate) as (near, far):
        await poll(lambda: is_settled(near) and is_settled(far))
        assert held(near).datagram_size > 60_000
        assert held(far).datagram_size > 60_000
        await send(near, far, os.urandom(4 * MEBI))
        await send(far, near, os.urandom(4 * MEBI))
        assert connection_info(near.driver).datagram_octets == held(near).datagram_size


@pytest.mark.parametrize("mtu", [1200, 1372, 1452, 1472, 8900])
async def test_a_path_of_any_size_is_found(certificate: CertificatePair, mtu: int) -> None:
    async with pair_over(certificate, mtu) as (
        near,
        far,
        path,
    ):
        await poll(lambda: is_settled(near) and is_settled(far))
        for session in near, far:
            size = held(session).datagram_size
            assert mtu - tolerance(size) <= size <= mtu
            controller = held(session)._loss._cc
            assert isinstance(controller, Cubic)
            assert controller._recovery_began_at == 0.0  # RFC 9000 14.4: no sign of congestion
            assert controller.congestion_window >= 10 * BASE_OCTETS
            assert controller.bytes_in_flight < BASE_OCTETS
        dropped = len(path.dropped)
        assert dropped
        await send(near, far, os.urandom(MEBI))
        assert len(path.dropped) == dropped
        assert path.largest in (held(near).datagram_size, held(far).datagram_size)


async def test_a_path_that_shrinks_in_the_middle_of_a_transfer(
    certificate: CertificatePair,
) -> None:
    """RFC 8899 4.3: black hole detection."""
    async with pair_over(certificate, 8972) as (
        near,
        far,
        path,
    ):
        await poll(lambda: held(near).datagram_size == 8952)
        data = os.urandom(4 * MEBI)
        stream_id = near.transport.open(bidirectional=False)
        assert stream_id is not None
        near.send(stream_id, data, fin=True)
        await far.until(lambda: len(far.received.get(stream_id, b"")) > MEBI)
        path.mtu = 1400
        await far.until(lambda: stream_id in far.finished)
        assert far.received[stream_id] == data
        assert held(near).datagram_size <= 1400
        await settle(near, at_least=1201)
        assert held(near).datagram_size <= 1400


async def test_loss_that_has_other_reasons_costs_no_size(certificate: CertificatePair) -> None:
    dice = random.Random(8899)
    async with pair_over(certificate, 8972) as (near, far, path):
        await poll(lambda: held(near).datagram_size == 8952)
        path.loses = lambda: dice.random() < 0.03
        await send(near, far, os.urandom(8 * MEBI))
        assert held(near).recovery.lost_packets > SUSPICIOUS_LOSSES
        await poll(lambda: held(near).datagram_size == 8952)
        assert held(near)._mtu_prober.search._search == 1  # it did not begin anew


async def test_another_path_is_searched_anew(certificate: CertificatePair) -> None:
    """RFC 9000 9.4: a client behind another address is reached by 1,200 octets at first."""
    config = replace(QUICK, max_datagram_octets=1452)
    async with pair_over(certificate, 1452, config) as (near, far, path):
        await poll(lambda: is_settled(near) and held(far).datagram_size == 1452)
        path.rebind()
        path.mtu = 1300
        await send(near, far, b"here I am")
        await poll(lambda: held(far).datagram_size <= 1300)
        await send(far, near, os.urandom(MEBI))
        await settle(far)
        assert 1300 - tolerance(1300) <= held(far).datagram_size <= 1300


async def test_a_path_that_shrinks_while_small_packets_come_and_go(
    certificate: CertificatePair,
) -> None:
    """What arrives from the peer says nothing of what is lost on the way to it."""
    async with pair_over(certificate, 8972) as (near, far, path):
        await poll(lambda: is_settled(near) and is_settled(far))
        path.mtu = 1300
        stream_id = near.transport.open(bidirectional=False)
        assert stream_id is not None
        near.send(stream_id, bytes(MEBI), fin=True)
        while stream_id not in far.finished:
            near.transport.send_datagram(b"small")
            far.transport.send_datagram(b"small")
            seen = len(far.datagrams), len(near.datagrams)
            await far.until(
                lambda seen=seen: (
                    stream_id in far.finished  # type: ignore[misc]
                    or (len(far.datagrams), len(near.datagrams)) != seen
                )
            )
        assert far.received[stream_id] == bytes(MEBI)
        assert held(near).datagram_size <= 1300


class Interface:
    """Refuses what every endpoint of this process sends that is larger than `mtu`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, mtu: int) -> None:
        self.mtu = mtu
        self.refused: list[int] = []
        send_one = UdpEndpoint._send_one

        def refusing(endpoint: UdpEndpoint, datagram: memoryview | bytes, address: Address) -> bool:
            if len(datagram) > self.mtu:
                self.refused.append(len(datagram))
                endpoint.report(OSError(errno.EMSGSIZE, "Message too long"), address, len(datagram))
                return True
            return send_one(endpoint, datagram, address)

        def one_by_one(*args: object) -> bool:
            return False

        monkeypatch.setattr(UdpEndpoint, "_send_one", refusing)
        monkeypatch.setattr(UdpEndpoint, "_send_joined", one_by_one)


async def test_a_socket_that_refuses_large_datagrams_needs_no_round_trips(
    certificate: CertificatePair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """EMSGSIZE: the probe that it hit is taken back, and nothing else is disturbed."""

    def unexpected(*args: object) -> None:
        raise AssertionError("a refused probe is its sender's own business")

    interface = Interface(monkeypatch, 1472)
    monkeypatch.setattr(Listener, "on_too_large", unexpected)
    async with quic_pair(certificate) as (near, far):
        await poll(lambda: is_settled(near) and is_settled(far))
        assert interface.refused
        for session in near, far:
            assert held(session).datagram_size == 1472
            assert held(session).recovery.lost_packets == 0
            assert held(session)._loss._pto_count == 0
            assert not held(session)._mtu_prober._sent
        interface.refused.clear()
        await send(near, far, os.urandom(MEBI))
        assert not interface.refused


async def test_a_socket_that_begins_to_refuse_datagrams(
    certificate: CertificatePair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The route has changed, to another interface: packets are refused, then their probes."""
    interface = Interface(monkeypatch, 8972)
    async with quic_pair(certificate) as (near, far):
        await poll(lambda: held(near).datagram_size == held(far).datagram_size == 8952)
        interface.mtu = 1400
        interface.refused.clear()
        await send(near, far, os.urandom(MEBI))
        await send(far, near, os.urandom(MEBI))
        assert interface.refused
        for session in near, far:
            await settle(session, at_least=1201)
            assert held(session).datagram_size <= 1400


@pytest.mark.parametrize("limit", [1200, 1452, 16383])
async def test_a_configured_size_is_the_largest_that_is_sent(
    certificate: CertificatePair, limit: int
) -> None:
    config = replace(QUICK, max_datagram_octets=limit)
    async with pair_over(certificate, 65535, config) as (near, far, path):
        await poll(lambda: held(near).datagram_size == held(far).datagram_size == limit)
        await send(near, far, os.urandom(MEBI))
        assert path.largest == limit


@pytest.mark.parametrize("limit", [1440, 1472])
async def test_a_peer_gets_no_more_than_it_takes(
    certificate: CertificatePair, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RFC 9000 18.2: max_udp_payload_size. Foreign peers announce 1440 or 1472."""

    def announcing(buf: Buffer, parameters: QuicTransportParameters) -> None:
        push_quic_transport_parameters(buf, replace(parameters, max_udp_payload_size=limit))

    monkeypatch.setattr(connection, "push_quic_transport_parameters", announcing)
    async with pair_over(certificate, 65535) as (near, far, path):
        await poll(lambda: held(near).datagram_size == held(far).datagram_size == limit)
        await send(near, far, os.urandom(MEBI))
        assert path.largest == limit


async def test_a_small_receive_buffer_keeps_the_peers_datagrams_small(
    certificate: CertificatePair,
) -> None:
    """One that holds few large datagrams would lose most of a batch of them."""
    small = replace(QUICK, socket_buffer_octets=64 << 10)
    async with quic_pair(certificate, client=small) as (near, far):
        await poll(lambda: is_settled(near) and is_settled(far))
        parameters = held(far).peer_parameters
        assert parameters is not None
        assert parameters.max_udp_payload_size is not None
        assert 4096 <= parameters.max_udp_payload_size <= 8192
        assert held(far).datagram_size == parameters.max_udp_payload_size
        assert held(near).datagram_size > 60_000
        await send(far, near, os.urandom(MEBI))


async def test_a_datagram_too_large_for_the_path_blocks_nothing_behind_it(
    certificate: CertificatePair,
) -> None:
    """What waits when the path turns out to be smaller is dropped: it is unreliable."""
    async with quic_pair(certificate) as (near, far):
        await poll(lambda: is_settled(near))
        assert held(near).queue_datagram(bytes(8000))
        assert held(near).queue_datagram(b"small")
        held(near)._set_datagram_size(BASE_OCTETS)
        await send(near, far, os.urandom(10_000))
        await far.until(lambda: bool(far.datagrams))
        assert far.datagrams == [b"small"]


def sizes_in_the_only_qlog(directory: Path) -> list[dict[str, int]]:
    (file,) = directory.iterdir()
    (trace,) = json.loads(file.read_text())["traces"]
    return [event["data"] for event in trace["events"] if event["name"].endswith(":mtu_updated")]


async def test_the_qlog_has_the_size(certificate: CertificatePair, tmp_path: Path) -> None:
    config = replace(QUICK, qlog_dir=tmp_path, max_datagram_octets=1452)
    async with quic_pair(certificate, client=config) as (near, _):
        await poll(lambda: is_settled(near))
    assert sizes_in_the_only_qlog(tmp_path) == [{"old": 1200, "new": 1452}]


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
async def test_no_datagram_is_cut_into_fragments(family: int) -> None:
    """RFC 9000 14: DF is set, for both families where the socket is for both."""
    sock = udp_socket(family, 1 << 16)
    try:
        for level, option, value in NO_FRAGMENTS[sys.platform]:
            if family == socket.AF_INET6 or level == socket.IPPROTO_IP:
                assert sock.getsockopt(level, option) == value
    finally:
        sock.close()
