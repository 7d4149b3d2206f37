"""Two real QUIC endpoints on loopback, driven for sessions that only record."""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from moqt.asyncio.binding import Driver
from moqt.asyncio.bulk.connection import make_connection
from moqt.asyncio.config import TransportConfig
from moqt.asyncio.connection import quic_configuration
from moqt.asyncio.endpoint import UdpEndpoint, udp_socket
from moqt.asyncio.listener import Listener
from moqt.asyncio.requests import Signal
from moqt.session.events import Event, SessionEnded
from moqt.tls import CertificatePair, load_identity

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from moqt.codes import SessionErrorCode
    from moqt.session.transport import Transport

QUICK = TransportConfig(close_linger_s=0.01)


class RecordingSession:
    """Sends what it's told to, as QUIC has room; keeps what arrives; credits if told to."""

    def __init__(self, driver: Driver, *, credits_at_once: bool = True) -> None:
        self.driver = driver
        self.transport: Transport = driver.transport
        self.credits_at_once = credits_at_once
        self.is_closed = False
        self.wake: Callable[[], None] = driver.wake
        self.next_deadline: float | None = None
        self.started = False
        self.received: dict[int, bytearray] = {}
        self.finished: set[int] = set()
        self._had: dict[int, set[tuple[int, int]]] = {}
        self._final: dict[int, int] = {}
        self.uncredited: dict[int, int] = {}
        self.resets: dict[int, int] = {}
        self.stops: dict[int, int] = {}
        self.datagrams: list[bytes] = []
        self.end: SessionEnded | None = None
        self.changed = Signal()
        self.peak_unsent = 0
        self._to_send: dict[int, deque[tuple[memoryview, bool]]] = {}
        self._events: deque[Event] = deque()
        self.is_finished = False

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not condition():
                await self.changed.wait()

    def send(self, stream_id: int, data: bytes, *, fin: bool = False) -> None:
        self._to_send.setdefault(stream_id, deque()).append((memoryview(data), fin))
        self.driver.wake()

    def give_credit(self) -> None:
        for stream_id, octets in self.uncredited.items():
            self.transport.credit(stream_id, octets)
        self.uncredited.clear()

    # what the driver calls

    def start(self, now: float) -> None:
        self.started = True
        self.changed.fire()

    def receive_stream_data(
        self, stream_id: int, offset: int, data: memoryview | bytes, fin: bool, now: float
    ) -> None:
        stop = offset + len(data)
        place = self.received.setdefault(stream_id, bytearray())
        place.extend(bytes(max(0, stop - len(place))))
        place[offset:stop] = data
        had = self._had.setdefault(stream_id, set())
        assert (offset, stop) not in had  # each octet once; the sums below show the rest
        if len(data):
            had.add((offset, stop))
        if self.credits_at_once:
            self.transport.credit(stream_id, len(data))
        else:
            self.uncredited[stream_id] = self.uncredited.get(stream_id, 0) + len(data)
        if fin:
            assert self._final.setdefault(stream_id, stop) == stop
        come = sum(last - first for first, last in had)
        assert come <= len(place)
        if come == self._final.get(stream_id):
            self.finished.add(stream_id)
        self.changed.fire()

    def receive_reset(self, stream_id: int, raw_code: int, now: float) -> None:
        self.resets[stream_id] = raw_code
        self.changed.fire()

    def receive_stop(self, stream_id: int, raw_code: int, now: float) -> None:
        self.stops[stream_id] = raw_code
        self._to_send.pop(stream_id, None)
        self.changed.fire()

    def receive_datagram(self, data: memoryview | bytes, now: float) -> None:
        self.datagrams.append(bytes(data))
        self.changed.fire()

    def handle_timeout(self, now: float) -> None:
        raise AssertionError("no deadline was set")

    def connection_lost(
        self, code: SessionErrorCode, reason: str, *, by_peer: bool, now: float
    ) -> None:
        self.is_closed = True
        self._events.append(SessionEnded(code, reason, by_peer))

    def flush(self, now: float) -> None:
        for stream_id, pieces in self._to_send.items():
            while pieces:
                data, fin = pieces[0]
                room = min(self.transport.send_room(), self.transport.stream_room(stream_id))
                if room <= 0 and len(data):
                    break
                if len(data) > room:
                    self.transport.write(stream_id, [data[:room]], False)
                    pieces[0] = (data[room:], fin)
                else:
                    self.transport.write(stream_id, [data], fin)
                    pieces.popleft()
        self.peak_unsent = max(self.peak_unsent, self.driver.connection.unsent_octets)

    def next_event(self) -> Event | None:
        return self._events.popleft() if self._events else None

    # what the driver tells its owner

    def on_event(self, event: Event) -> None:
        assert isinstance(event, SessionEnded)
        self.end = event
        self.changed.fire()

    def on_finished(self) -> None:
        self.is_finished = True
        self.changed.fire()


class Accepting:
    """Gives each connection of a listener a recording session."""

    def __init__(self, *, credits_at_once: bool) -> None:
        self.credits_at_once = credits_at_once
        self.sessions: list[RecordingSession] = []
        self.changed = Signal()

    def on_connection(self, driver: Driver) -> None:
        session = RecordingSession(driver, credits_at_once=self.credits_at_once)
        driver.attach(session, session)
        self.sessions.append(session)
        self.changed.fire()


@asynccontextmanager
async def listening(
    certificate: CertificatePair, config: TransportConfig = QUICK, *, credits_at_once: bool = True
) -> AsyncIterator[tuple[Listener, Accepting]]:
    accepting = Accepting(credits_at_once=credits_at_once)
    configuration = quic_configuration(config, is_client=False)
    identity = load_identity(certificate.certificate, certificate.private_key)
    configuration.certificate = identity.certificate
    configuration.private_key = identity.private_key
    listener = Listener(configuration, config, accepting)
    await listener.listen("127.0.0.1", 0)
    try:
        yield listener, accepting
    finally:
        listener.close()


@asynccontextmanager
async def dialing(
    port: int,
    config: TransportConfig = QUICK,
    *,
    credits_at_once: bool = True,
    watch_socket: bool = True,
    max_datagram_frame_size: int | None = 65535,
) -> AsyncIterator[RecordingSession]:
    sock = udp_socket(2, config.socket_buffer_octets)
    sock.connect(("127.0.0.1", port))
    endpoint = UdpEndpoint(sock, remote=("127.0.0.1", port))
    configuration = quic_configuration(config, is_client=True)
    configuration.verify_mode = ssl.CERT_NONE
    configuration.max_datagram_frame_size = max_datagram_frame_size
    connection = make_connection(configuration=configuration, transport_config=config)
    driver = Driver(connection, endpoint)
    session = RecordingSession(driver, credits_at_once=credits_at_once)
    driver.attach(session, session)
    try:
        await endpoint.start(driver, watch_socket=watch_socket)
        driver.connect(("127.0.0.1", port))
        yield session
    finally:
        driver.abort()
        endpoint.close()
        if not watch_socket:
            await asyncio.sleep(0)  # asyncio's own transport closes its socket one turn later


@asynccontextmanager
async def quic_pair(
    certificate: CertificatePair,
    *,
    client: TransportConfig = QUICK,
    server: TransportConfig = QUICK,
    client_credits: bool = True,
    server_credits: bool = True,
    watch_socket: bool = True,
) -> AsyncIterator[tuple[RecordingSession, RecordingSession]]:
    async with (
        listening(certificate, server, credits_at_once=server_credits) as (listener, accepting),
        dialing(
            listener.address[1], client, credits_at_once=client_credits, watch_socket=watch_socket
        ) as near,
    ):
        await near.until(lambda: near.started)
        far = accepting.sessions[0]
        await far.until(lambda: far.started)
        yield near, far
