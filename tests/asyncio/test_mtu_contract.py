"""What moqt.asyncio.mtu_prober uses of aioquic's inside is what it takes it for."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

import pytest
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection, QuicNetworkPath
from aioquic.quic.packet import QuicPacketType
from aioquic.quic.packet_builder import QuicDeliveryState, QuicPacketBuilder, QuicSentPacket
from aioquic.quic.rangeset import RangeSet
from aioquic.quic.recovery import QuicPacketRecovery, QuicPacketSpace
from aioquic.tls import Epoch

from moqt.asyncio.config import LARGEST_STOCK_DATAGRAM_OCTETS
from moqt.asyncio.pacing import BurstPacer
from moqt.asyncio.path_mtu import SUSPICIOUS_LOSSES
from moqt.asyncio.recovery import AdaptiveRecovery
from tests.asyncio.endpoints import poll
from tests.asyncio.quic_pair import quic_pair

if TYPE_CHECKING:
    from moqt.tls import CertificatePair

SENT_AT = 1.0


def stock() -> QuicConnection:
    return QuicConnection(configuration=QuicConfiguration(alpn_protocols=["x"]))


@pytest.fixture(params=[QuicPacketRecovery, AdaptiveRecovery])
def recovery(request: pytest.FixtureRequest) -> QuicPacketRecovery:
    made: QuicPacketRecovery = request.param(
        congestion_control_algorithm="reno",
        initial_rtt=0.1,
        max_datagram_size=1200,
        peer_completed_address_validation=True,
        send_probe=lambda: None,
    )
    made._pacer = BurstPacer(max_datagram_size=1200)  # type: ignore[assignment]
    made.handshake_confirmed = True
    return made


def sent_packet(number: int, octets: int, *, in_flight: bool = True) -> QuicSentPacket:
    return QuicSentPacket(
        epoch=Epoch.ONE_RTT,
        in_flight=in_flight,
        is_ack_eliciting=True,
        is_crypto_packet=False,
        packet_number=number,
        packet_type=QuicPacketType.ONE_RTT,
        sent_time=SENT_AT,
        sent_bytes=octets,
    )


def space_with_a_probe(
    recovery: QuicPacketRecovery, fates: list[QuicDeliveryState]
) -> QuicPacketSpace:
    """Packet 0 is the probe, 1 to 4 are data."""
    space = QuicPacketSpace(is_application_data=True)
    recovery.spaces = [space]
    for number in range(5):
        is_probe = number == 0
        packet = sent_packet(number, 9000 if is_probe else 1000, in_flight=not is_probe)
        if is_probe:
            packet.delivery_handlers.append((lambda delivery: fates.append(delivery), ()))
        recovery.on_packet_sent(packet=packet, space=space)
    return space


def acknowledge(recovery: QuicPacketRecovery, space: QuicPacketSpace, numbers: range) -> None:
    recovery.on_ack_received(
        ack_rangeset=RangeSet([numbers]), ack_delay=0.0, now=SENT_AT + 0.1, space=space
    )


def test_a_probe_is_not_in_flight_but_waited_for(recovery: QuicPacketRecovery) -> None:
    space = space_with_a_probe(recovery, [])
    assert recovery.bytes_in_flight == 4000
    assert space.ack_eliciting_in_flight == 5


def test_the_loss_of_a_probe_is_told_and_is_no_congestion(recovery: QuicPacketRecovery) -> None:
    """RFC 9000 14.4."""
    fates: list[QuicDeliveryState] = []
    space = space_with_a_probe(recovery, fates)
    acknowledge(recovery, space, range(1, 5))
    assert fates == [QuicDeliveryState.LOST]
    assert recovery._cc.ssthresh is None
    assert recovery.bytes_in_flight == 0
    assert space.ack_eliciting_in_flight == 0


def test_the_acknowledgement_of_a_probe_is_told(recovery: QuicPacketRecovery) -> None:
    fates: list[QuicDeliveryState] = []
    space = space_with_a_probe(recovery, fates)
    acknowledge(recovery, space, range(5))
    assert fates == [QuicDeliveryState.ACKED]
    assert recovery.bytes_in_flight == 0


def test_a_probe_that_was_taken_back_is_not_missed(recovery: QuicPacketRecovery) -> None:
    fates: list[QuicDeliveryState] = []
    space = space_with_a_probe(recovery, fates)
    del space.sent_packets[0]
    space.ack_eliciting_in_flight -= 1
    acknowledge(recovery, space, range(1, 5))
    assert fates == []
    assert recovery.get_loss_detection_time(amplification_limited=False) is None


def test_the_probe_timeout_counts_from_the_last_packet_in_flight(
    recovery: QuicPacketRecovery,
) -> None:
    """That's why the prober says when it sent a packet that is not in flight."""
    space = space_with_a_probe(recovery, [])
    acknowledge(recovery, space, range(1, 2))
    space.loss_time = None
    before = recovery.get_loss_detection_time(amplification_limited=False)
    recovery._time_of_last_sent_ack_eliciting_packet += 5.0
    after = recovery.get_loss_detection_time(amplification_limited=False)
    assert before is not None
    assert after == pytest.approx(before + 5.0)


def test_what_a_probe_is_built_with() -> None:
    connection = stock()
    assert {
        "_close_pending",
        "_cryptos",
        "_handshake_confirmed",
        "_is_client",
        "_network_paths",
        "_packet_number",
        "_peer_cid",
        "_quic_logger",
        "_spaces",
        "_spin_bit",
        "_state",
        "_version",
        "host_cid",
    } <= vars(connection).keys() | {"host_cid"}
    assert "remote_challenges" in vars(QuicNetworkPath(("::1", 1)))
    assert {"_pto_count", "_time_of_last_sent_ack_eliciting_packet"} <= vars(
        connection._loss
    ).keys()
    assert list(inspect.signature(QuicConnection._flush_builder).parameters) == [
        "self",
        "builder",
        "network_path",
        "peer_cid",
        "now",
    ]
    assert inspect.signature(QuicPacketBuilder).parameters.keys() >= {
        "host_cid",
        "is_client",
        "max_datagram_size",
        "packet_number",
        "peer_cid",
        "quic_logger",
        "spin_bit",
        "version",
    }


@pytest.mark.parametrize("octets", [1201, 1452, 16384, 65488])
async def test_a_probe_has_the_size_it_is_for(certificate: CertificatePair, octets: int) -> None:
    async with quic_pair(certificate) as (near, _):
        prober = near.driver.connection._mtu_prober
        await poll(lambda: prober.search.is_settled)
        now = prober._now + 5.0  # nothing was sent for long
        prober.search.reset()
        probe = prober.search.next_probe(now)
        assert probe is not None
        in_flight = near.driver.connection._loss.bytes_in_flight
        data, _ = prober._build(type(probe)(octets, probe.search), now)
        assert len(data) == octets
        loss = near.driver.connection._loss
        assert loss.bytes_in_flight == in_flight
        timeout_at = loss.get_loss_detection_time(amplification_limited=False)
        assert timeout_at is not None
        assert timeout_at > now


async def test_only_large_packets_that_were_no_probes_are_suspicious(
    certificate: CertificatePair,
) -> None:
    async with quic_pair(certificate) as (near, _):
        prober = near.driver.connection._mtu_prober
        await poll(lambda: prober.search.is_settled)
        recovery = near.driver.connection.recovery

        def lose(packet: QuicSentPacket) -> None:
            space = QuicPacketSpace(is_application_data=True)
            space.sent_packets[packet.packet_number] = packet
            recovery._on_packets_lost(now=prober._now, packets=[packet], space=space)

        for number in range(SUSPICIOUS_LOSSES):
            lose(sent_packet(number, 1200))
            lose(sent_packet(number, 9000, in_flight=False))
        assert prober.search.next_probe(prober._now) is None
        for number in range(SUSPICIOUS_LOSSES):
            lose(sent_packet(number, 1201))
        probe = prober.search.next_probe(prober._now)
        assert probe is not None
        assert probe.octets == prober.search.size
        assert recovery.on_lost == prober.on_packets_lost
        assert recovery.on_acked is not None
        recovery.on_acked(1201)
        assert vars(recovery)["on_acked"] is None
        assert prober.search.is_settled


async def test_a_path_that_the_peer_challenges_is_doubted(certificate: CertificatePair) -> None:
    """PATH_RESPONSE would fill a datagram that the new path may not carry."""
    async with quic_pair(certificate) as (near, _):
        connection = near.driver.connection
        await poll(lambda: connection._mtu_prober.search.is_settled)
        connection._network_paths[0].remote_challenges.append(bytes(8))
        connection.adapt_datagram_size(connection._mtu_prober._now)
        assert connection.datagram_size == connection._max_datagram_size == 1200
        connection.datagrams_to_send(connection._mtu_prober._now)
        assert not connection._network_paths[0].remote_challenges
        near.driver.wake()
        await poll(lambda: connection.datagram_size > 60_000)


def test_aioquics_stream_frames_have_two_octets_of_length() -> None:
    """Hence `LARGEST_STOCK_DATAGRAM_OCTETS`."""
    source = inspect.getsource(QuicConnection._write_stream_frame)
    assert "push_uint16(len(frame.data) | 0x4000)" in source
    assert LARGEST_STOCK_DATAGRAM_OCTETS < 1 << 14


def test_aioquic_announces_no_largest_datagram() -> None:
    """Absent means 65,527 (RFC 9000 18.2), which is what our sockets take."""
    source = inspect.getsource(QuicConnection._serialize_transport_parameters)
    assert "max_udp_payload_size" not in source
