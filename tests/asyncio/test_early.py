"""Datagrams that the network brings before the handshake's last flight, without sockets."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

from aioquic.quic.events import StreamDataReceived
from aioquic.tls import Epoch

from moqt.asyncio.config import TransportConfig
from moqt.asyncio.connection import MAX_EARLY_DATAGRAMS, HeldConnection, quic_configuration
from moqt.tls import CertificatePair, load_identity

if TYPE_CHECKING:
    from collections.abc import Sequence

CLIENT, SERVER = ("192.0.2.1", 1), ("192.0.2.2", 2)
CONFIG = TransportConfig(fast_path=False)
NOW = 1.0


def last_flight(
    certificate: CertificatePair, octets: int
) -> tuple[HeldConnection, Sequence[bytes]]:
    """Return a server, and what its client sends last: its Finished, and a stream's octets."""
    configuration = quic_configuration(CONFIG, is_client=True)
    configuration.verify_mode = ssl.CERT_NONE
    client = HeldConnection(configuration=configuration, transport_config=CONFIG)
    configuration = quic_configuration(CONFIG, is_client=False)
    identity = load_identity(certificate.certificate, certificate.private_key)
    configuration.certificate = identity.certificate
    configuration.private_key = identity.private_key
    server = HeldConnection(
        configuration=configuration,
        transport_config=CONFIG,
        original_destination_connection_id=client.original_destination_connection_id,
    )
    client.connect(SERVER, now=NOW)
    while True:
        for data, _ in client.datagrams_to_send(NOW):
            server.receive_datagram(data, CLIENT, NOW)
        flight = server.datagrams_to_send(NOW)
        assert flight
        for data, _ in flight:
            client.receive_datagram(data, SERVER, NOW)
        if client._cryptos[Epoch.ONE_RTT].send.is_valid():
            break
    stream_id = client.open_stream(bidirectional=False)
    assert stream_id is not None
    client._loss._cc.congestion_window = 1 << 20
    client.burst_pacer.rate = None
    client.append(stream_id, [bytes(octets)], True)
    return server, [data for data, _ in client.datagrams_to_send(NOW)]


def received(connection: HeldConnection) -> int:
    octets = 0
    while (event := connection.next_event()) is not None:
        if isinstance(event, StreamDataReceived):
            octets += len(event.data)
    return octets


def test_what_overtakes_the_end_of_the_handshake_is_not_lost(
    certificate: CertificatePair,
) -> None:
    """RFC 9001 5.7."""
    server, flight = last_flight(certificate, 10_000)
    assert len(flight) > 5
    for data in reversed(flight[1:]):
        server.receive_datagram(data, CLIENT, NOW)
    assert received(server) == 0
    server.receive_datagram(flight[0], CLIENT, NOW)
    assert received(server) == 10_000
    server.receive_datagram(flight[1], CLIENT, NOW)  # kept nowhere, and taken once
    assert received(server) == 0
    assert not server._early


def test_no_more_is_kept_than_a_few_and_what_is_made_up_does_no_harm(
    certificate: CertificatePair,
) -> None:
    server, flight = last_flight(certificate, 10_000)
    cid = flight[-1][1:9]
    server.receive_datagram(b"", CLIENT, NOW)
    for number in range(3 * MAX_EARLY_DATAGRAMS):
        server.receive_datagram(b"\x40" + cid + number.to_bytes(2) + bytes(100), CLIENT, NOW)
    assert len(server._early) == MAX_EARLY_DATAGRAMS
    for data in flight:
        server.receive_datagram(data, CLIENT, NOW)
    assert received(server) == 10_000
    assert not server._early
