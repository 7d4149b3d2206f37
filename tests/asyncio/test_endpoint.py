"""The UDP endpoint by itself, and connections over a path that loses datagrams."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import socket
from typing import TYPE_CHECKING, Any

import pytest

from moqt.asyncio.endpoint import BATCH_DATAGRAMS, Address, Datagram, UdpEndpoint, udp_socket
from tests.asyncio.endpoints import poll
from tests.asyncio.quic_pair import quic_pair

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from moqt.tls import CertificatePair


class Recorder:
    def __init__(self) -> None:
        self.batches: list[list[Datagram]] = []
        self.writable = 0
        self.errors: list[OSError] = []
        self.too_large: list[Address] = []

    def on_batch(self, batch: list[Datagram]) -> None:
        self.batches.append(batch)

    def on_writable(self) -> None:
        self.writable += 1

    def on_error(self, error: OSError) -> None:
        self.errors.append(error)

    def on_too_large(self, address: Address) -> None:
        self.too_large.append(address)

    @property
    def received(self) -> list[bytes]:
        return [data for batch in self.batches for data, _ in batch]


class Sluggish(socket.socket):
    """Takes every other datagram; those above 100 octets are too large for its path."""

    calls = 0

    def sendto(self, data: bytes, address: Any) -> int:  # type: ignore[override]
        self.calls += 1
        if self.calls % 2:
            raise BlockingIOError
        if len(data) > 100:
            raise OSError(errno.EMSGSIZE, "Message too long")
        return super().sendto(data, address)


def bound(kind: type[socket.socket] = socket.socket) -> socket.socket:
    sock = kind(socket.AF_INET, socket.SOCK_DGRAM)
    sock.setblocking(False)
    sock.bind(("127.0.0.1", 0))
    return sock


@pytest.mark.asyncio(loop_factories=["asyncio", "uvloop"])
async def test_many_datagrams_come_in_one_batch() -> None:
    there, here = Recorder(), Recorder()
    receiving = UdpEndpoint(bound(), remote=None)
    sending = UdpEndpoint(bound(), remote=None)
    await receiving.start(there)
    await sending.start(here)
    try:
        sending.send([(bytes([n]), receiving.address) for n in range(100)])
        await poll(lambda: len(there.received) == 100)
        assert there.received == [bytes([n]) for n in range(100)]
        assert [len(batch) for batch in there.batches] == [BATCH_DATAGRAMS, 100 - BATCH_DATAGRAMS]
        assert there.batches[0][0][1] == sending.address
    finally:
        receiving.close()
        sending.close()
        sending.close()


async def test_a_full_socket_keeps_the_rest_in_order_and_says_when_it_is_free() -> None:
    there, here = Recorder(), Recorder()
    receiving = UdpEndpoint(bound(), remote=None)
    sending = UdpEndpoint(bound(Sluggish), remote=None)
    await receiving.start(there)
    await sending.start(here)
    try:
        datagrams = [b"a", bytes(200), b"b", b"c"]
        sending.send([(data, receiving.address) for data in datagrams])
        was_blocked = sending.is_blocked
        assert was_blocked
        await poll(lambda: len(there.received) == 3)
        assert there.received == [b"a", b"b", b"c"]
        assert here.too_large == [receiving.address]
        await poll(lambda: here.writable == 1)
        assert not sending.is_blocked
    finally:
        receiving.close()
        sending.close()
    sending.send([(b"late", ("127.0.0.1", 9))])
    assert not sending.is_blocked


async def test_a_connected_socket_reports_that_nobody_is_there() -> None:
    free = bound()
    address = free.getsockname()
    free.close()
    sock = udp_socket(socket.AF_INET, 4096)
    sock.connect(address)
    here = Recorder()
    endpoint = UdpEndpoint(sock, remote=address)
    await endpoint.start(here)
    try:
        endpoint.send([(b"x", address)])
        await poll(lambda: bool(here.errors))
        assert isinstance(here.errors[0], ConnectionRefusedError)
    finally:
        endpoint.close()


def losing(monkeypatch: pytest.MonkeyPatch, is_lost: Callable[[bytes], bool]) -> None:
    """Lose datagrams of both sides from now on."""
    send = UdpEndpoint.send

    def lossy(self: UdpEndpoint, datagrams: Iterable[Datagram]) -> None:
        send(self, [d for d in datagrams if not is_lost(d[0])])

    monkeypatch.setattr(UdpEndpoint, "send", lossy)


async def test_a_path_that_loses_datagrams_costs_no_octet(
    certificate: CertificatePair, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = os.urandom(2 << 20)
    dice = random.Random(7)
    async with quic_pair(certificate) as (near, far):
        losing(monkeypatch, lambda _: dice.random() < 0.03)
        stream_id = near.transport.open(bidirectional=False)
        assert stream_id is not None
        near.send(stream_id, data, fin=True)
        await far.until(lambda: stream_id in far.finished)
        assert far.received[stream_id] == data
        held = far.driver.connection
        await poll(lambda: held.credited_octets == held.received_octets)


async def test_a_black_hole_for_large_datagrams_is_found(
    certificate: CertificatePair, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with quic_pair(certificate) as (near, far):
        await poll(lambda: near.driver.connection.datagram_size == 1452)
        losing(monkeypatch, lambda data: len(data) > 1200)
        stream_id = near.transport.open(bidirectional=False)
        assert stream_id is not None
        near.send(stream_id, bytes(100_000), fin=True)
        await far.until(lambda: stream_id in far.finished)
        assert near.driver.connection.datagram_size == 1200


async def test_starting_a_closed_endpoint_receives_nothing() -> None:
    endpoint = UdpEndpoint(bound(), remote=None)
    await endpoint.start(Recorder(), watch_socket=False)
    endpoint.close()
    await asyncio.sleep(0)
