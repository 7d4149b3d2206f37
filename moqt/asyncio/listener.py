"""A UDP socket with many QUIC connections behind it, found by their connection IDs."""

from __future__ import annotations

import asyncio
import socket
import time
from typing import TYPE_CHECKING, Protocol

from aioquic._buffer import Buffer
from aioquic.quic.packet import (
    QuicPacketType,
    encode_quic_version_negotiation,
    pull_quic_header,
)

from moqt.asyncio.binding import Driver
from moqt.asyncio.bulk.connection import make_connection
from moqt.asyncio.config import SMALLEST_DATAGRAM_OCTETS
from moqt.asyncio.endpoint import UdpEndpoint, udp_socket

if TYPE_CHECKING:
    from aioquic.quic.configuration import QuicConfiguration
    from aioquic.quic.packet import QuicHeader

    from moqt.asyncio.config import TransportConfig
    from moqt.asyncio.endpoint import Address

_LONG_HEADER = 0x80


if TYPE_CHECKING:

    class Acceptor(Protocol):
        """Whom a listener reports to."""

        def on_connection(self, driver: Driver) -> None:
            """A client's first datagram came: give the driver its session."""


class Listener:
    """Owns the socket, and a driver for each connection until `forget`.

    Connections that don't finish their handshake go away by themselves; with those that do, there
    are `TransportConfig.max_connections` at most. Beyond that a first datagram is not answered.
    """

    def __init__(
        self,
        configuration: QuicConfiguration,
        transport_config: TransportConfig,
        acceptor: Acceptor,
    ) -> None:
        self._configuration = configuration
        self._transport_config = transport_config
        self._acceptor = acceptor
        self._endpoint: UdpEndpoint | None = None
        self._is_accepting = True
        self._drivers: dict[bytes, Driver] = {}
        self._ids: dict[Driver, set[bytes]] = {}
        self._touched: dict[Driver, None] = {}

    @property
    def address(self) -> tuple[str, int]:
        """The host and port listened on."""
        if self._endpoint is None:
            return ("", 0)
        host, port = self._endpoint.address[:2]
        return host, port

    @property
    def drivers(self) -> tuple[Driver, ...]:
        """All connections, half-open and closing ones included."""
        return tuple(self._ids)

    async def listen(self, host: str, port: int) -> None:
        """Begin to listen. Raises: OSError when the address can't be had."""
        sock = await _bound_socket(host, port, self._transport_config.socket_buffer_octets)
        self._endpoint = UdpEndpoint(sock, remote=None)
        try:
            await self._endpoint.start(self)
        except BaseException:
            self._endpoint.close()
            raise

    def stop_accepting(self) -> None:
        """Answer no new connection any more; those there are go on."""
        self._is_accepting = False

    def close(self) -> None:
        """Drop all connections at once, and close the socket."""
        for driver in self.drivers:
            driver.abort()
            self.forget(driver)
        if self._endpoint is not None:
            self._endpoint.close()

    def forget(self, driver: Driver) -> None:
        """The connection is over: its IDs mean nothing any more."""
        for connection_id in self._ids.pop(driver, set()):
            self._drivers.pop(connection_id, None)

    def on_datagrams(self, datagrams: memoryview, segment_octets: int, address: Address) -> None:
        """Give each datagram to its connection."""
        now = time.monotonic()
        start, total = 0, len(datagrams)
        id_stop = 1 + self._configuration.connection_id_length
        while start < total:
            stop = start + segment_octets
            head = bytes(datagrams[start : start + id_stop])
            driver = self._find(head, datagrams[start:stop], address)
            if not head[0] & _LONG_HEADER:  # the same connection's next ones go with it
                while stop < total and datagrams[stop + 1 : stop + id_stop] == head[1:]:
                    if datagrams[stop] & _LONG_HEADER:
                        break
                    stop += segment_octets
            if driver is not None:
                driver.feed(datagrams[start : min(stop, total)], segment_octets, address, now)
                self._touched[driver] = None
            start = stop

    def on_overflow(self) -> None:
        """Datagrams were dropped; those who were given something now had most of the room."""
        for driver in self._touched:
            driver.on_overflow()

    def on_batch_end(self) -> None:
        """Let each connection that was given something act once."""
        touched, self._touched = self._touched, {}
        for driver in touched:
            driver.pump_now()

    def on_writable(self) -> None:
        """The socket takes datagrams again."""
        for driver in list(self._ids):
            driver.on_writable()

    def on_error(self, error: OSError) -> None:
        """An unconnected socket has no errors of its own."""

    def on_too_large(self, address: Address, octets: int | None) -> None:
        """The path to one client doesn't take datagrams of this size."""
        for driver in list(self._ids):
            if driver.connection.get_peer_address() == address:
                driver.on_too_large(address, octets)

    def _find(self, head: bytes, datagram: memoryview, address: Address) -> Driver | None:
        id_octets = self._configuration.connection_id_length
        if not head[0] & _LONG_HEADER:
            return self._drivers.get(head[1:])
        data = bytes(datagram)
        try:
            header = pull_quic_header(Buffer(data=data), host_cid_length=id_octets)
        except ValueError:
            return None
        driver = self._drivers.get(header.destination_cid)
        if driver is not None:
            return driver
        if header.packet_type is QuicPacketType.VERSION_NEGOTIATION:
            return None
        if header.version not in self._configuration.supported_versions:
            self._negotiate_version(header, len(data), address)
            return None
        if header.packet_type is QuicPacketType.INITIAL and len(data) >= SMALLEST_DATAGRAM_OCTETS:
            return self._accept(header.destination_cid)
        return None

    def _negotiate_version(self, header: QuicHeader, octets: int, address: Address) -> None:
        if self._endpoint is None or octets < SMALLEST_DATAGRAM_OCTETS:
            return
        packet = encode_quic_version_negotiation(
            source_cid=header.destination_cid,
            destination_cid=header.source_cid,
            supported_versions=self._configuration.supported_versions,
        )
        self._endpoint.send([(packet, address)])

    def _accept(self, original_id: bytes) -> Driver | None:
        is_full = len(self._ids) >= self._transport_config.max_connections
        if self._endpoint is None or is_full or not self._is_accepting:
            return None
        connection = make_connection(
            configuration=self._configuration,
            transport_config=self._transport_config,
            original_destination_connection_id=original_id,
        )
        driver = Driver(connection, self._endpoint, connection_ids=self)
        self._ids[driver] = set()
        self.on_id_issued(original_id, driver)
        self.on_id_issued(connection.host_cid, driver)
        self._acceptor.on_connection(driver)
        return driver

    def on_id_issued(self, connection_id: bytes, driver: Driver) -> None:
        """The client may use this connection ID from now on."""
        if driver in self._ids:
            self._drivers[connection_id] = driver
            self._ids[driver].add(connection_id)

    def on_id_retired(self, connection_id: bytes, driver: Driver) -> None:
        """The client uses it no more."""
        self._drivers.pop(connection_id, None)
        self._ids.get(driver, set()).discard(connection_id)


async def _bound_socket(host: str, port: int, buffer_octets: int) -> socket.socket:
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(
            host or None, port, type=socket.SOCK_DGRAM, flags=socket.AI_PASSIVE
        )
    except OSError as error:
        raise OSError(error.errno, f"cannot listen on {host}:{port}: {error.strerror}") from error
    family, _, _, _, address = found[0]
    sock = udp_socket(family, buffer_octets)
    try:
        if family == socket.AF_INET6 and hasattr(socket, "IPV6_V6ONLY"):
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        sock.bind(address)
    except OSError as error:
        sock.close()
        raise OSError(error.errno, f"cannot listen on {host}:{port}: {error.strerror}") from error
    return sock
