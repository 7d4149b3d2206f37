"""What the QUIC and TLS handshakes of a connection settled, and its counters: for who looks on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from moqt.tls import certificate_facts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from moqt.asyncio.binding import Driver
    from moqt.tls import CertificateFacts

__all__ = [
    "ConnectProgress",
    "ConnectionInfo",
    "ConnectionStats",
    "connection_info",
    "connection_stats",
]


@dataclass(slots=True)
class ConnectProgress:
    """How far `connect` has come, for who has to tell when it fails or is cancelled.

    `connection_id`: as in `ConnectionInfo`, of the latest attempt; None before there is one.
    `is_quic_ready`: its QUIC handshake was done, so that SETUP was waited for.
    """

    connection_id: bytes | None = None
    is_quic_ready: bool = False


@dataclass(frozen=True, slots=True)
class ConnectionInfo:
    """The facts of one QUIC connection.

    `connection_id`: the client's first Destination Connection ID, by which traces of both ends are
    matched. `ready_at`: when the QUIC handshake was done, by `time.monotonic`. That, `alpn`,
    `quic_version` and `cipher_suite` are None before they are known; `certificate` is the server's,
    None at a server. `peer_parameters`: the numbers and claims of the peer's transport parameters
    by name (RFC 9000 18.2); what it left out is left out. `datagram_octets`: the UDP payload that
    the path is known to carry by now, 1200 at first.
    """

    connection_id: bytes
    ready_at: float | None
    alpn: str | None
    quic_version: int | None
    cipher_suite: str | None
    certificate: CertificateFacts | None
    peer_parameters: Mapping[str, int]
    datagram_octets: int


@dataclass(frozen=True, slots=True)
class ConnectionStats:
    """How one QUIC connection fares: counters from its beginning, and what holds now.

    A value of its own, so that two of them may be subtracted; the same for both packet paths and at
    both ends. Octets are UDP payload, without the headers of UDP and IP.

    `datagrams_sent`, `octets_sent`: handed to the socket, acknowledgements and probes of the path
    included; the system may still have dropped them. `datagrams_received`, `octets_received`: came
    for this connection, whether or not they could be read.

    `packets_lost`: declared lost by loss recovery (RFC 9002 6.1), those that turned out to be late
    included. Left out: the handshake's, those sent before the peer can have had its keys, what a
    probe timeout repeated, and probes of the path's MTU, whose loss is an answer.
    `probe_timeouts`: how often nothing was acknowledged in time (RFC 9002 6.2).

    `smoothed_rtt_s`, `least_rtt_s`: round trips in seconds (RFC 9002 5); None before the first
    sample, `least_rtt_s` also on a new path. `congestion_window_octets`: how much may be in flight;
    `octets_in_flight`: how much is.

    `overflows`: how often the socket's buffer had no room for what came, as far as the system says
    so (Linux). Such a loss is this side's own: larger buffers (`socket_buffer_octets`, `sysctl
    net.core.rmem_max`) mend it, or a loop that is held up less. A server's socket is shared: it
    counts for all who were sent something at that moment.

    `wakeups`: how often the connection was worked on, for a batch of datagrams, a timer or what the
    application did; each costs about the same, however much it moves.
    """

    datagrams_sent: int
    datagrams_received: int
    octets_sent: int
    octets_received: int
    packets_lost: int
    probe_timeouts: int
    smoothed_rtt_s: float | None
    least_rtt_s: float | None
    congestion_window_octets: int
    octets_in_flight: int
    wakeups: int
    overflows: int


def connection_info(driver: Driver) -> ConnectionInfo:
    """Return what is settled so far."""
    connection = driver.connection
    tls = getattr(connection, "tls", None)  # a server has none before the first Initial
    schedule = None if tls is None else tls.key_schedule
    certificate = None if tls is None else tls._peer_certificate
    parameters = connection.peer_parameters
    # identifiers and the stateless reset token are octets: no facts to show
    numbers = {} if parameters is None else vars(parameters)
    return ConnectionInfo(
        ready_at=driver.ready_at,
        connection_id=connection.original_destination_connection_id,
        alpn=None if tls is None else tls.alpn_negotiated,
        quic_version=connection._version,
        cipher_suite=None if schedule is None else schedule.cipher_suite.name,
        certificate=None if certificate is None else certificate_facts(certificate),
        peer_parameters={name: value for name, value in numbers.items() if isinstance(value, int)},
        datagram_octets=connection.datagram_size,
    )


def connection_stats(driver: Driver) -> ConnectionStats:
    """Return what was counted so far; also when the connection is over."""
    traffic, recovery = driver.traffic, driver.connection.recovery
    return ConnectionStats(
        datagrams_sent=traffic.datagrams_sent,
        datagrams_received=traffic.datagrams_received,
        octets_sent=traffic.octets_sent,
        octets_received=traffic.octets_received,
        packets_lost=recovery.lost_packets,
        probe_timeouts=recovery.probe_timeouts,
        smoothed_rtt_s=recovery.smoothed_rtt_s,
        least_rtt_s=recovery.least_rtt_s,
        congestion_window_octets=recovery.congestion_window,
        octets_in_flight=recovery.bytes_in_flight,
        wakeups=traffic.wakeups,
        overflows=traffic.overflows,
    )
