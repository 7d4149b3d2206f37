"""The UDP endpoint by itself, and connections over a path that loses datagrams."""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import random
import socket
import struct
import sys
from typing import TYPE_CHECKING, Any

import pytest

from moqt.asyncio import endpoint as endpoint_module
from moqt.asyncio.config import MAX_SEGMENTS, RUN_OCTETS
from moqt.asyncio.endpoint import (
    Address,
    Datagram,
    UdpEndpoint,
    udp_socket,
)
from tests.asyncio.endpoints import poll
from tests.asyncio.quic_pair import quic_pair

if TYPE_CHECKING:
    from collections.abc import Callable

    from moqt.tls import CertificatePair


class Recorder:
    def __init__(self) -> None:
        self.batches: list[list[Datagram]] = []
        self.batch: list[Datagram] = []
        self.writable = 0
        self.overflows = 0
        self.errors: list[OSError] = []
        self.too_large: list[tuple[Address, int | None]] = []

    def on_datagrams(self, datagrams: memoryview, segment_octets: int, address: Address) -> None:
        for start in range(0, len(datagrams), segment_octets):
            self.batch.append((bytes(datagrams[start : start + segment_octets]), address))

    def on_overflow(self) -> None:
        self.overflows += 1

    def on_batch_end(self) -> None:
        self.batches.append(self.batch)
        self.batch = []

    def on_writable(self) -> None:
        self.writable += 1

    def on_error(self, error: OSError) -> None:
        self.errors.append(error)

    def on_too_large(self, address: Address, octets: int | None) -> None:
        self.too_large.append((address, octets))

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

    def sendmsg(self, *args: Any) -> int:
        raise OSError(errno.EIO, "this device cuts nothing")


class Narrow(socket.socket):
    """Says `word` of a buffer to be cut into datagrams of more than 100 octets."""

    word = errno.EMSGSIZE
    cuts = 0

    def sendmsg(self, buffers: Any, ancillary: Any = (), *rest: Any) -> int:
        ((_, _, segment),) = ancillary
        octets = int.from_bytes(segment, sys.byteorder)
        if octets > 100:
            raise OSError(self.word, "no")
        self.cuts += 1
        (whole,) = buffers
        return sum(
            self.sendto(whole[at : at + octets], rest[-1]) for at in range(0, len(whole), octets)
        )

    def sendto(self, data: bytes, address: Any) -> int:  # type: ignore[override]
        if len(data) > 100:
            raise OSError(errno.EMSGSIZE, "Message too long")
        return super().sendto(data, address)


class OldNarrow(Narrow):
    """As Linux before 6.14."""

    word = errno.EINVAL


def bound(kind: type[socket.socket] = socket.socket) -> socket.socket:
    sock = kind(socket.AF_INET, socket.SOCK_DGRAM)
    sock.setblocking(False)
    sock.bind(("127.0.0.1", 0))
    return sock


class Script(socket.socket):
    """Brings what `reads` says: datagrams of one size as the system joins them, and from whom."""

    reads: list[tuple[bytes, int, Address]]

    def recvmsg_into(self, buffers: Any, *_: int) -> tuple[int, list[Any], int, Address]:
        if not self.reads:
            raise BlockingIOError
        data, size, address = self.reads.pop(0)
        (room,) = buffers
        assert len(room) >= 65535
        room[: len(data)] = data
        joined = [(17, 104, struct.pack("=i", size))] if size < len(data) else []
        return len(data), joined, 0, address


async def test_datagrams_that_belong_together_are_handed_on_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(endpoint_module, "BATCH_S", 60.0)

    class Runs(Recorder):
        def __init__(self) -> None:
            super().__init__()
            self.runs: list[tuple[int, int, Address]] = []

        def on_datagrams(
            self, datagrams: memoryview, segment_octets: int, address: Address
        ) -> None:
            assert len(datagrams) <= RUN_OCTETS
            self.runs.append((len(datagrams), segment_octets, address))
            super().on_datagrams(datagrams, segment_octets, address)

    here, there = ("127.0.0.1", 1), ("127.0.0.1", 2)
    runs: list[tuple[list[int], int, Address]] = [  # octets of each read, of a datagram, from whom
        ([60_000] * 8, 1_500, here),  # there is no room for another
        ([60_000] * 8, 60_000, here),
        ([9_000, 9_000, 1_500, 3_000, 1_600], 1_500, here),  # a shorter one ends a run
        ([1_500], 1_500, here),
        ([1_500, 400], 1_500, there),
        ([400], 400, there),
        ([800], 400, here),
        ([60_000, 59_999], 60_000, here),
    ]
    sock = bound(Script)
    assert isinstance(sock, Script)
    reads = [(octets, size, address) for run, size, address in runs for octets in run]
    contents = [os.urandom(octets) for octets, _, _ in reads]
    sock.reads = [
        (data, min(size, len(data)), address)
        for data, (_, size, address) in zip(contents, reads, strict=True)
    ]
    recorder = Runs()
    endpoint = UdpEndpoint(sock, remote=None)
    endpoint._receiver, endpoint._can_join = recorder, True
    endpoint._read_ready()
    assert recorder.runs == [(sum(run), size, address) for run, size, address in runs]
    assert recorder.received == [
        data[at : at + size]
        for data, (_, size, _) in zip(contents, reads, strict=True)
        for at in range(0, len(data), size)
    ]
    assert len(recorder.batches) == 1
    endpoint.close()


@pytest.mark.parametrize(("seconds", "reads"), [(0.0, 24), (1.0, 8)])
async def test_a_batch_ends_by_the_time_of_its_thread(
    seconds: float, reads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not while another process has the core: a nanosecond passes between two runs anyway."""
    monkeypatch.setattr(endpoint_module, "BATCH_S", 1e-9)
    used = itertools.count(step=seconds)
    monkeypatch.setattr("time.thread_time", lambda: next(used))
    sock = bound(Script)
    assert isinstance(sock, Script)
    sock.reads = [(bytes(60_000), 60_000, ("127.0.0.1", 1))] * 24  # 8 are a full run
    endpoint = UdpEndpoint(sock, remote=None)
    recorder = Recorder()
    endpoint._receiver, endpoint._can_join = recorder, True
    endpoint._read_ready()
    assert len(recorder.received) == reads
    endpoint.close()


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
        assert len(there.batches) <= 2
        assert there.batches[0][0][1] == sending.address
    finally:
        receiving.close()
        sending.close()
        sending.close()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says what it dropped")
async def test_a_buffer_that_was_full_is_told_once() -> None:
    there = Recorder()
    receiving = UdpEndpoint(udp_socket(socket.AF_INET, 4096), remote=None)
    receiving._sock.bind(("127.0.0.1", 0))
    sending = bound()
    await receiving.start(there)
    try:
        for _ in range(100):
            sending.sendto(bytes(1000), receiving.address)
        await poll(lambda: bool(there.received))
        assert len(there.received) < 100
        for count in (1, 2):  # those that came before the first drop don't tell
            before = len(there.received)
            sending.sendto(b"late", receiving.address)
            await poll(lambda before=before: len(there.received) > before)  # type: ignore[misc]
            assert there.overflows == 1, count
    finally:
        receiving.close()
        sending.close()


@pytest.mark.asyncio(loop_factories=["asyncio", "uvloop"])
@pytest.mark.parametrize("can_segment", [True, False])
@pytest.mark.parametrize("can_join", [True, False])
async def test_segments_arrive_as_the_datagrams_they_are(
    can_segment: bool, can_join: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not can_join:
        monkeypatch.setattr("moqt.asyncio.endpoint._join_datagrams", lambda sock: False)
    there, here = Recorder(), Recorder()
    receiving = UdpEndpoint(bound(), remote=None)
    sending = UdpEndpoint(bound(), remote=None)
    await receiving.start(there)
    await sending.start(here)
    sending._can_segment &= can_segment
    try:
        whole = os.urandom(MAX_SEGMENTS * 1000 - 300)
        expected = [whole[at : at + 1000] for at in range(0, len(whole), 1000)]
        assert sending.send_segments(memoryview(whole), 1000, receiving.address)
        await poll(lambda: len(there.received) == MAX_SEGMENTS)
        assert there.received == expected
        # unlike sizes and alike ones, by the list
        mixed = [os.urandom(n) for n in (10, 10, 700, 700, 300, 1, 2)]
        sending.send([(data, receiving.address) for data in mixed])
        await poll(lambda: len(there.received) == MAX_SEGMENTS + len(mixed))
        assert there.received[MAX_SEGMENTS:] == mixed
    finally:
        receiving.close()
        sending.close()


@pytest.mark.parametrize(("kind", "reports"), [(Narrow, 1), (OldNarrow, 8)])
async def test_a_batch_too_large_for_the_path_is_no_reason_to_cut_no_more(
    kind: type[Narrow], reports: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("moqt.asyncio.endpoint._is_linux", lambda: True)
    there, here = Recorder(), Recorder()
    receiving, sock = UdpEndpoint(bound(), remote=None), bound(kind)
    sending = UdpEndpoint(sock, remote=None)
    await receiving.start(there)
    await sending.start(here)
    try:
        assert sending.send_segments(memoryview(bytes(8 * 200)), 200, receiving.address)
        assert here.too_large == [(receiving.address, 200)] * reports
        assert sending.send_segments(memoryview(bytes(8 * 100)), 100, receiving.address)
        await poll(lambda: len(there.received) == 8)
        assert isinstance(sock, Narrow)
        assert sock.cuts == 1
    finally:
        receiving.close()
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
        assert here.too_large == [(receiving.address, 200)]
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
    send = UdpEndpoint.send_segments

    def lossy(
        self: UdpEndpoint, datagrams: memoryview, segment_octets: int, address: Address
    ) -> bool:
        for start in range(0, len(datagrams), segment_octets):
            one = datagrams[start : start + segment_octets]
            if not is_lost(bytes(one)):
                send(self, one, len(one), address)
        return not self.is_blocked

    monkeypatch.setattr(UdpEndpoint, "send_segments", lossy)


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


async def test_starting_a_closed_endpoint_receives_nothing() -> None:
    endpoint = UdpEndpoint(bound(), remote=None)
    await endpoint.start(Recorder(), watch_socket=False)
    endpoint.close()
    await asyncio.sleep(0)
