"""The QUIC half of the binding: two real connections, sessions that only record."""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import pytest

from moqt.asyncio.endpoint import UdpEndpoint
from moqt.codes import SessionErrorCode, StreamResetCode
from tests.asyncio.quic_pair import QUICK, RecordingSession, dialing, listening, quic_pair

if TYPE_CHECKING:
    from collections.abc import Callable

    from moqt.tls import CertificatePair

MEBI = 1 << 20

both_loops = pytest.mark.asyncio(loop_factories=["asyncio", "uvloop"])


def open_uni(session: RecordingSession) -> int:
    stream_id = session.transport.open(bidirectional=False)
    assert stream_id is not None
    return stream_id


async def poll(condition: Callable[[], bool]) -> None:
    """Wait for what nobody signals."""
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def at_rest(session: RecordingSession) -> None:
    """Wait until the connection's account is even."""
    connection = session.driver.connection
    await poll(lambda: connection.credited_octets == connection.received_octets)


@both_loops
async def test_a_transfer_both_ways_arrives_whole(certificate: CertificatePair) -> None:
    up, down = os.urandom(3 * MEBI), os.urandom(3 * MEBI)
    async with quic_pair(certificate) as (near, far):
        a, b = open_uni(near), open_uni(far)
        near.send(a, up, fin=True)
        far.send(b, down, fin=True)
        await far.until(lambda: a in far.finished)
        await near.until(lambda: b in near.finished)
        assert far.received[a] == up
        assert near.received[b] == down
        await at_rest(near)
        await at_rest(far)
        assert near.driver.connection.received_octets == len(down)
        assert near.driver.connection.datagram_size > 60_000


async def test_a_loop_that_watches_no_sockets_will_do(certificate: CertificatePair) -> None:
    data = os.urandom(MEBI)
    async with quic_pair(certificate, watch_socket=False) as (near, far):
        stream_id = open_uni(near)
        near.send(stream_id, data, fin=True)
        await far.until(lambda: stream_id in far.finished)
        assert far.received[stream_id] == data


async def test_a_peer_may_send_no_more_than_was_credited(certificate: CertificatePair) -> None:
    """3.1.3.1#2."""
    window = replace(
        QUICK,
        connection_window_octets=300_000,
        max_connection_window_octets=None,
        stream_window_octets=200_000,
        max_stream_window_octets=None,
    )
    async with quic_pair(certificate, server=window, server_credits=False) as (near, far):
        streams = [open_uni(near) for _ in range(3)]
        for stream_id in streams:
            near.send(stream_id, bytes(MEBI), fin=True)
        held = far.driver.connection
        # Objects leave the control reserve of the connection's window untouched
        limit = 300_000 - QUICK.control_reserve_octets
        await far.until(lambda: held.received_octets >= limit)
        assert held.received_octets == limit
        assert held.credited_octets == 0
        while far.finished != set(streams):
            await far.until(lambda: bool(far.uncredited) or far.finished == set(streams))
            assert held.received_octets - held.credited_octets <= 300_000
            far.give_credit()
        assert held.credited_octets == held.received_octets == 3 * MEBI


async def test_windows_grow_while_they_limit_the_peer_and_never_above_their_caps(
    certificate: CertificatePair,
) -> None:
    config = replace(
        QUICK,
        connection_window_octets=50_000,
        max_connection_window_octets=300_000,
        stream_window_octets=40_000,
        max_stream_window_octets=200_000,
    )
    async with quic_pair(certificate, server=config) as (near, far):
        held = far.driver.connection
        stream_id = open_uni(near)
        near.send(stream_id, bytes(4 * MEBI), fin=True)
        while stream_id not in far.finished:
            held._loss._rtt_min = 5.0  # whatever is consumed is consumed within a round trip
            await far.changed.wait()
            assert held._local_max_data.value - held.credited_octets <= 300_000
        assert held._local_max_data.value - held.credited_octets > 200_000
        assert held._connection_window.octets == 300_000
        assert held._stream_window.octets == 200_000


async def test_what_waits_unsent_in_quic_is_bounded(certificate: CertificatePair) -> None:
    """5.2#5."""
    ahead = replace(QUICK, send_ahead_octets=100_000, max_send_buffer_octets=200_000)
    async with quic_pair(certificate, client=ahead) as (near, far):
        stream_id = open_uni(near)
        near.send(stream_id, bytes(4 * MEBI), fin=True)
        await far.until(lambda: stream_id in far.finished)
        assert 0 < near.peak_unsent <= 200_000
        assert near.driver.connection.unsent_octets == 0


async def test_a_reset_settles_both_accounts(certificate: CertificatePair) -> None:
    """RFC 9000 4.5: the final size counts, whatever arrived; a moq-rs code has 48 bits."""
    async with quic_pair(certificate, server_credits=False) as (near, far):
        stream_id = open_uni(near)
        near.send(stream_id, bytes(MEBI))
        await far.until(lambda: len(far.received.get(stream_id, b"")) > 100_000)
        near._to_send.clear()
        near.driver.connection.drop(stream_id, 0x52E4A40FA8DB)
        near.driver.wake()
        await far.until(lambda: stream_id in far.resets)
        assert far.resets[stream_id] == 0x52E4A40FA8DB
        await at_rest(far)
        assert near.driver.connection.unsent_octets == 0
        held = far.driver.connection
        far.transport.credit(stream_id, 5)  # late credit changes nothing
        assert held.credited_octets == held.received_octets


async def test_a_stop_settles_the_account_and_delivers_nothing_more(
    certificate: CertificatePair,
) -> None:
    async with quic_pair(certificate, server_credits=False) as (near, far):
        stream_id = open_uni(near)
        near.send(stream_id, bytes(4 * MEBI))
        await far.until(lambda: len(far.received.get(stream_id, b"")) > 100_000)
        far.transport.stop(stream_id, StreamResetCode.CANCELLED)
        got = len(far.received[stream_id])
        await near.until(lambda: stream_id in near.stops)
        assert near.stops[stream_id] == StreamResetCode.CANCELLED
        other = open_uni(near)
        near.send(other, b"next", fin=True)
        await far.until(lambda: other in far.finished)
        far.give_credit()
        await at_rest(far)
        assert len(far.received[stream_id]) == got
        assert near.driver.connection.unsent_octets == 0
        # writing to it is no error, and neither is anything else
        near.transport.write(stream_id, [b"late"], True)
        near.transport.reset(stream_id, StreamResetCode.CANCELLED)
        assert near.transport.stream_room(stream_id) == 0


async def test_stopped_streams_never_use_up_the_connection_window(
    certificate: CertificatePair,
) -> None:
    window = replace(QUICK, connection_window_octets=256 * 1024, stream_window_octets=128 * 1024)
    async with quic_pair(certificate, server=window, server_credits=False) as (near, far):
        for _ in range(12):
            stream_id = open_uni(near)
            near.send(stream_id, bytes(64 * 1024))
            await far.until(partial(far.received.__contains__, stream_id))
            far.transport.stop(stream_id, StreamResetCode.CANCELLED)
            await near.until(partial(near.stops.__contains__, stream_id))
        await at_rest(far)


async def test_opening_stops_at_the_peers_limit_and_goes_on_when_streams_end(
    certificate: CertificatePair,
) -> None:
    few = replace(QUICK, max_unidirectional_streams=4, max_bidirectional_streams=2)
    async with quic_pair(certificate, server=few) as (near, far):
        streams = [open_uni(near) for _ in range(4)]
        assert near.transport.open(bidirectional=False) is None
        assert near.transport.open(bidirectional=True) is not None
        assert near.transport.open(bidirectional=True) is not None
        assert near.transport.open(bidirectional=True) is None
        for stream_id in streams:
            near.send(stream_id, b"x", fin=True)
        await far.until(lambda: far.finished == set(streams))
        again: list[int | None] = []

        def opens() -> bool:
            again.append(near.transport.open(bidirectional=False))
            return again[-1] is not None

        await poll(opens)
        assert again[-1] is not None
        near.send(again[-1], b"y", fin=True)
        await far.until(lambda: again[-1] in far.finished)


async def test_datagrams_go_within_their_bounds(certificate: CertificatePair) -> None:
    async with quic_pair(certificate) as (near, far):
        assert near.transport.send_datagram(b"small")
        assert not near.transport.send_datagram(bytes(1500))
        await far.until(lambda: far.datagrams == [b"small"])
        queued = sum(near.transport.send_datagram(b"x") for _ in range(300))
        assert queued == QUICK.max_queued_datagrams


@both_loops
async def test_a_close_reaches_the_peer_with_code_and_reason(certificate: CertificatePair) -> None:
    async with quic_pair(certificate) as (near, far):
        near.transport.close(SessionErrorCode.GOAWAY_TIMEOUT, "x" * 2000)
        await far.until(lambda: far.end is not None)
        assert far.end is not None
        assert far.end.code is SessionErrorCode.GOAWAY_TIMEOUT
        assert far.end.reason == "x" * 512
        assert far.end.by_peer
        await near.until(lambda: near.is_finished)
        assert near.end is not None
        assert not near.end.by_peer
        assert near.transport.open(bidirectional=False) is None


async def test_a_silent_peer_is_lost_after_the_idle_timeout(certificate: CertificatePair) -> None:
    short = replace(QUICK, idle_timeout_s=0.5, keep_alive_s=0)
    async with listening(certificate) as (listener, _):
        async with dialing(listener.address[1], short) as near:
            await near.until(lambda: near.started)
            listener.close()
            await near.until(lambda: near.end is not None)
            assert near.end is not None
            assert near.end.by_peer
            assert "idle timeout" in near.end.reason


async def test_a_round_trip_that_seemed_long_does_not_hold_a_silent_peer(
    certificate: CertificatePair,
) -> None:
    """As when this process was stopped in the middle of one: aioquic waits for three of them."""
    short = replace(QUICK, idle_timeout_s=0.3)
    async with listening(certificate) as (listener, _):
        async with dialing(listener.address[1], short) as near:
            await near.until(lambda: near.started)
            near.driver.connection._loss._rtt_smoothed = 3600.0
            near.driver.connection._loss._rtt_initialized = True
            near.driver.connection._close_at = time.monotonic() + 3600.0  # as the next PING has it
            listener.close()
            await near.until(lambda: near.end is not None)  # 20 s at most
            assert near.end is not None
            assert near.end.by_peer
            assert "idle timeout" in near.end.reason


async def test_keep_alive_holds_an_idle_connection(certificate: CertificatePair) -> None:
    short = replace(QUICK, idle_timeout_s=0.6)
    async with quic_pair(certificate, client=short) as (near, far):
        heard = near.driver._heard_at
        await poll(lambda: near.driver._heard_at >= heard + 0.9)
        assert near.end is None
        assert far.end is None


async def test_a_peer_without_datagrams_gets_no_session(certificate: CertificatePair) -> None:
    """6.2#1: MOQT-22 6.1: a connection without RFC 9221 must not become a session."""
    async with listening(certificate) as (listener, accepting):
        async with dialing(listener.address[1], max_datagram_frame_size=None) as near:
            await near.until(lambda: near.end is not None)
            assert near.end is not None
            assert near.end.code is SessionErrorCode.PROTOCOL_VIOLATION
            assert "RFC 9221" in near.end.reason
            assert not accepting.sessions[0].started


async def test_garbage_opens_no_connection(certificate: CertificatePair) -> None:
    async with listening(certificate) as (listener, accepting):
        for data in (b"", b"\x00", b"\xc0", bytes(1300), b"\xc0" + bytes(1300), os.urandom(1300)):
            if data:
                listener.on_datagrams(memoryview(data), len(data), ("127.0.0.1", 9))
                listener.on_batch_end()
        assert all(not session.started for session in accepting.sessions)
        async with dialing(listener.address[1]) as near:
            await near.until(lambda: near.started)


async def test_connections_beyond_the_limit_are_not_answered(certificate: CertificatePair) -> None:
    """15.5#1."""
    one = replace(QUICK, max_connections=1)
    async with listening(certificate, one) as (listener, accepting):
        port = listener.address[1]
        async with dialing(port) as first:
            await first.until(lambda: first.started)
            async with dialing(port, replace(QUICK, handshake_timeout_s=0.2)) as second:
                await second.until(lambda: second.end is not None)
                assert not second.started
            assert len(accepting.sessions) == 1
            first.transport.close(SessionErrorCode.NO_ERROR, "")
            await accepting.sessions[0].until(lambda: accepting.sessions[0].is_finished)
            listener.forget(accepting.sessions[0].driver)
        async with dialing(port) as third:
            await third.until(lambda: third.started)


async def test_a_bug_in_a_session_ends_it_and_is_reported(
    certificate: CertificatePair, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported: list[BaseException] = []
    asyncio.get_running_loop().set_exception_handler(
        lambda loop, context: reported.append(context["exception"])
    )
    async with quic_pair(certificate) as (near, far):

        def broken(*args: object) -> None:
            raise ZeroDivisionError

        monkeypatch.setattr(far, "receive_stream_data", broken)
        near.send(open_uni(near), b"x")
        await near.until(lambda: near.end is not None)
        assert near.end is not None
        assert near.end.code is SessionErrorCode.INTERNAL_ERROR
        assert far.is_finished
        assert far.is_closed
        assert [type(error) for error in reported] == [ZeroDivisionError]


async def test_an_unknown_version_is_negotiated(certificate: CertificatePair) -> None:
    """RFC 9000 6.1: a full-size datagram is answered, a smaller one is not."""
    async with listening(certificate) as (listener, accepting):
        there = Datagrams()
        transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(
            lambda: there, remote_addr=("127.0.0.1", listener.address[1])
        )
        packet = b"\xc0\x0a\x0a\x0a\x0a\x08" + b"d" * 8 + b"\x08" + b"s" * 8 + b"\x00\x44\x00"
        transport.sendto(packet.ljust(300, b"\0"))
        transport.sendto(packet.ljust(1200, b"\0"))
        await poll(lambda: bool(there.received))
        (answer,) = there.received
        assert answer[1:5] == bytes(4)
        assert answer[5:23] == b"\x08" + b"s" * 8 + b"\x08" + b"d" * 8
        assert not accepting.sessions
        transport.close()
        await asyncio.sleep(0)


class Datagrams(asyncio.DatagramProtocol):
    def __init__(self) -> None:
        self.received: list[bytes] = []

    def datagram_received(self, data: bytes, addr: object) -> None:
        self.received.append(data)


async def test_an_error_of_quic_itself_is_named(certificate: CertificatePair) -> None:
    async with quic_pair(certificate) as (near, far):
        near.driver.connection.close(error_code=0x3, frame_type=0x8, reason_phrase="too much")
        near.driver.wake()
        await far.until(lambda: far.end is not None)
        assert far.end is not None
        assert far.end.code is SessionErrorCode.INTERNAL_ERROR
        assert far.end.reason == "QUIC error FLOW_CONTROL_ERROR: too much"
        assert far.end.by_peer


async def test_a_lost_farewell_is_repeated_to_who_still_talks(
    certificate: CertificatePair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RFC 9000 10.2.1."""
    patient = replace(QUICK, close_linger_s=5.0)
    async with quic_pair(certificate, client=patient) as (near, far):
        with monkeypatch.context() as context:
            context.setattr(UdpEndpoint, "send_segments", lambda self, *sent: True)
            near.transport.close(SessionErrorCode.NO_ERROR, "bye")
            near.driver.pump_now()
        assert not far.is_closed
        far.send(open_uni(far), b"still here")
        await far.until(lambda: far.end is not None)
        assert far.end is not None
        assert far.end.reason == "bye"
