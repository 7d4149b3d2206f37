"""The bulk path on real sockets: many connections at once, and sockets that refuse."""

from __future__ import annotations

import errno
import os
import random
import socket
import struct
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from moqt.asyncio import endpoint
from moqt.asyncio.bulk.connection import BulkConnection
from moqt.asyncio.connection import quic_configuration
from moqt.asyncio.listener import Listener
from tests.asyncio.quic_pair import QUICK, dialing, listening, quic_pair
from tests.asyncio.test_quic import at_rest, open_uni, poll

if TYPE_CHECKING:
    from collections.abc import Callable

    from moqt.asyncio.binding import Driver
    from moqt.asyncio.endpoint import Address
    from moqt.tls import CertificatePair
    from tests.asyncio.quic_pair import RecordingSession

CONNECTIONS = 50


async def exchange(near: RecordingSession, far: RecordingSession, octets: int) -> None:
    """Send so much both ways at once."""
    up, down = os.urandom(octets), os.urandom(octets)
    a, b = open_uni(near), open_uni(far)
    near.send(a, up, fin=True)
    far.send(b, down, fin=True)
    await far.until(lambda: a in far.finished)
    await near.until(lambda: b in near.finished)
    assert far.received[a] == up
    assert near.received[b] == down
    for session in (near, far):
        await at_rest(session)
        connection = session.driver.connection
        await poll(lambda connection=connection: connection._loss.bytes_in_flight == 0)  # type: ignore[misc]
        assert connection.unsent_octets == 0


async def test_many_connections_at_once(certificate: CertificatePair, packet_path: str) -> None:
    async with AsyncExitStack() as stack:
        listener, accepting = await stack.enter_async_context(listening(certificate))
        port = listener.address[1]
        clients = [await stack.enter_async_context(dialing(port)) for _ in range(CONNECTIONS)]
        for near in clients:
            await near.until(lambda near=near: near.started)  # type: ignore[misc]
            near.send(open_uni(near), near.driver.connection.host_cid, fin=True)
        await poll(
            lambda: (
                len(accepting.sessions) == CONNECTIONS
                and all(far.finished for far in accepting.sessions)
            )
        )
        wanted: dict[bytes, bytes] = {}
        for far in accepting.sessions:
            (asked,) = far.received.values()
            wanted[bytes(asked)] = os.urandom(20_000)
            far.send(open_uni(far), wanted[bytes(asked)], fin=True)
        for near in clients:
            await near.until(lambda near=near: bool(near.finished))  # type: ignore[misc]
            (got,) = near.received.values()
            assert got == wanted[near.driver.connection.host_cid]
            assert isinstance(near.driver.connection, BulkConnection) == (packet_path == "bulk")


class Fed:
    """Stands in for a connection's driver."""

    def __init__(self) -> None:
        self.datagrams: list[bytes] = []
        self.pumps = 0

    def feed(
        self, datagrams: memoryview, segment_octets: int, address: Address, now: float
    ) -> None:
        for at in range(0, len(datagrams), segment_octets):
            self.datagrams.append(bytes(datagrams[at : at + segment_octets]))

    def pump_now(self) -> None:
        self.pumps += 1


@pytest.mark.parametrize("octets", [9, 10, 30, 1_200])
@pytest.mark.parametrize("seed", range(5))
async def test_a_buffer_with_datagrams_of_several_connections(octets: int, seed: int) -> None:
    dice = random.Random(seed)
    listener = Listener(quic_configuration(QUICK, is_client=False), QUICK, Accepting())
    drivers: dict[bytes, Any] = {dice.randbytes(8): Fed() for _ in range(3)}
    listener._drivers = drivers
    expected: dict[bytes, list[bytes]] = {one: [] for one in drivers}
    sent = []
    for _ in range(60):
        connection_id = dice.choice([*drivers] * 3 + [bytes(8)])
        count = dice.choice([1, 1, 2, 7])
        for _ in range(count):
            one = bytes((dice.choice([0x40, 0x41, 0x7F]),)) + connection_id
            sent.append(one + dice.randbytes(octets - 9))
            if connection_id in drivers:
                expected[connection_id].append(sent[-1])
    last = bytes((0x40,)) + next(iter(drivers))
    expected[last[1:]].append(last)
    listener.on_datagrams(memoryview(b"".join([*sent, last])), octets, ("127.0.0.1", 9))
    listener.on_batch_end()
    for connection_id, driver in drivers.items():
        assert driver.datagrams == expected[connection_id]
        assert driver.pumps == 1


class Accepting:
    """Nobody comes."""

    def on_connection(self, driver: Driver) -> None:
        raise AssertionError("no first datagram was sent")


class Unwilling(socket.socket):
    """Refuses what `refuses` says: the octets of a datagram, and whether it is one of many."""

    calls = 0
    refusals = 0

    @staticmethod
    def refuses(call: int, octets: int, is_joined: bool) -> int:
        raise NotImplementedError

    def _ask(self, octets: int, *, is_joined: bool) -> None:
        self.calls += 1
        number = self.refuses(self.calls, octets, is_joined)
        if number:
            type(self).refusals += 1
            raise OSError(number, os.strerror(number))  # EAGAIN's is a BlockingIOError

    def sendmsg(self, buffers: Any, controls: Any = (), *rest: Any) -> int:
        (segment,) = struct.unpack("=H", controls[0][2])
        self._ask(segment, is_joined=True)
        return super().sendmsg(buffers, controls, *rest)

    def send(self, data: Any, *rest: Any) -> int:
        self._ask(len(data), is_joined=False)
        return super().send(data, *rest)

    def sendto(self, data: Any, *rest: Any) -> int:
        self._ask(len(data), is_joined=False)
        return super().sendto(data, *rest)


def use(
    monkeypatch: pytest.MonkeyPatch, refuses: Callable[[int, int, bool], int]
) -> type[Unwilling]:
    """Have both sides use sockets that refuse."""
    made = type("Refusing", (Unwilling,), {"refuses": staticmethod(refuses)})
    usual = endpoint.udp_socket

    def unwilling(family: int, buffer_octets: int) -> socket.socket:
        sock: socket.socket = made(fileno=usual(family, buffer_octets).detach())
        sock.setblocking(False)
        return sock

    monkeypatch.setattr("tests.asyncio.quic_pair.udp_socket", unwilling)
    monkeypatch.setattr("moqt.asyncio.listener.udp_socket", unwilling)
    return made


@pytest.mark.asyncio(loop_factories=["asyncio", "uvloop"])
async def test_a_socket_that_is_full_now_and_then(
    certificate: CertificatePair, monkeypatch: pytest.MonkeyPatch
) -> None:
    narrow = replace(QUICK, max_datagram_octets=1452)
    made = use(monkeypatch, lambda call, octets, is_joined: 0 if call % 3 else errno.EAGAIN)
    async with quic_pair(certificate, client=narrow, server=narrow) as (near, far):
        await exchange(near, far, 1 << 20)
    assert made.refusals > 10


async def test_a_system_that_cuts_no_more(
    certificate: CertificatePair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the route changes to a device without checksums."""
    narrow = replace(QUICK, max_datagram_octets=1452)
    made = use(
        monkeypatch, lambda call, octets, is_joined: errno.EIO if is_joined and call > 15 else 0
    )
    async with quic_pair(certificate, client=narrow, server=narrow) as (near, far):
        await exchange(near, far, 2 << 20)
    assert 1 <= made.refusals <= 2  # it isn't tried again


async def test_a_path_that_gets_too_narrow_for_a_batch(
    certificate: CertificatePair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system says so: of a whole batch, then of each of its datagrams."""
    limit = [65_507]
    made = use(
        monkeypatch,
        lambda call, octets, is_joined: errno.EMSGSIZE if octets > limit[0] else 0,
    )
    config = replace(QUICK, max_datagram_octets=9_000)
    async with quic_pair(certificate, client=config, server=config) as (near, far):
        await exchange(near, far, 1 << 19)
        assert far.driver.connection.datagram_size > 8_000
        limit[0] = 1_400
        await exchange(near, far, 1 << 19)
        for session in (near, far):
            assert session.driver.connection.datagram_size <= 1_400
            assert session.driver.loss is None
    assert made.refusals
