"""What the QUIC and TLS handshakes of a connection settled, for messages and tools."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from moqt.tls import certificate_facts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from moqt.asyncio.binding import Driver
    from moqt.tls import CertificateFacts

__all__ = ["ConnectProgress", "ConnectionInfo", "connection_info"]


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
