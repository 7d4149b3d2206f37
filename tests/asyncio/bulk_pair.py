"""Two QUIC connections in memory: a virtual clock, and a network that loses, repeats, delays,
reorders and corrupts by a seed. No socket, no loop, no wall time."""

from __future__ import annotations

import heapq
import random
import ssl
from collections import deque
from dataclasses import dataclass
from enum import Enum
from functools import cache
from itertools import count
from typing import TYPE_CHECKING, Any

from aioquic._buffer import Buffer
from aioquic.quic import events as quic
from aioquic.quic.connection import QuicConnection
from aioquic.quic.packet import pull_quic_header
from aioquic.tls import CipherSuite, Epoch

from moqt.asyncio.bulk.connection import BulkConnection
from moqt.asyncio.config import RUN_OCTETS, TransportConfig
from moqt.asyncio.connection import HeldConnection, quic_configuration
from moqt.tls import generate_certificate, load_identity

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from aioquic.quic.configuration import QuicConfiguration

    from moqt.tls import Identity

SERVER = ("server", 4433)
CLIENT = ("client", 1)
ONE_WAY_S = 0.005
BLOCKED_S = 0.001
KEEP_ALIVE_S = 5.0
TICK_S = 1e-6
MAX_STEPS = 40_000
MAX_VIRTUAL_S = 900.0
AHEAD_OCTETS = 256 * 1024


class Kind(Enum):
    """Which code a side runs."""

    BULK = "bulk"
    HELD = "held"
    PLAIN = "plain"
    """aioquic's connection as it is."""


@dataclass(slots=True)
class Weather:
    """What happens to a datagram: probabilities, and the largest that is carried."""

    loss: float = 0.0
    repeat: float = 0.0
    late: float = 0.0
    """By up to three round trips."""
    corrupt: float = 0.0
    blocked: float = 0.0
    """The socket takes no more after a batch."""
    cut: float = 0.1
    """Datagrams that came together are joined in one buffer up to here."""
    mtu: int = 65507


class Written(bytearray):
    """What is written to a stream; unlike bytes, it can be watched by a weak reference."""


@cache
def identity() -> Identity:
    pair = generate_certificate(["localhost"])
    return load_identity(pair.certificate, pair.private_key)


def configuration(config: TransportConfig, *, is_client: bool) -> QuicConfiguration:
    made = quic_configuration(config, is_client=is_client)
    made.verify_mode = ssl.CERT_NONE
    if not is_client:
        made.certificate = identity().certificate
        made.private_key = identity().private_key
    return made


def make(
    kind: Kind, made: QuicConfiguration, config: TransportConfig, original_id: bytes | None = None
) -> QuicConnection:
    if kind is Kind.PLAIN:
        return QuicConnection(configuration=made, original_destination_connection_id=original_id)
    return (BulkConnection if kind is Kind.BULK else HeldConnection)(
        configuration=made,
        transport_config=config,
        original_destination_connection_id=original_id,
    )


class Peer:
    """One side: its connection, what it is to send, and what it was given."""

    def __init__(self, network: Network, connection: QuicConnection, address: Any) -> None:
        self.network = network
        self.connection = connection
        self.address = address
        self.credits_at_once = True
        self.is_fed = False
        self.received: dict[int, bytearray] = {}
        self.final: dict[int, int] = {}
        self.resets: dict[int, int] = {}
        self.stops: dict[int, int] = {}
        self.datagrams: list[bytes] = []
        self.uncredited: dict[int, int] = {}
        self.end: quic.ConnectionTerminated | None = None
        self.largest_run = 0
        self.bulk_batches = 0
        self._had: dict[int, bytearray] = {}
        self._offsets: dict[int, int] = {}
        self._to_send: dict[int, deque[tuple[memoryview, bool]]] = {}
        self._blocked_until = 0.0
        self._heard_at = network.now
        if isinstance(connection, HeldConnection):
            connection.on_arrival = self._take_arrival

    # --- what a test does ---

    @property
    def held(self) -> HeldConnection:
        assert isinstance(self.connection, HeldConnection)
        return self.connection

    @property
    def received_octets(self) -> int:
        return sum(had.count(1) for had in self._had.values())

    def open(self, *, bidirectional: bool = False) -> int:
        """Open a stream, not the first unidirectional one, which carries control messages."""
        if isinstance(self.connection, HeldConnection):
            stream_id = self.connection.open_stream(bidirectional=bidirectional)
            assert stream_id is not None
        else:
            stream_id = self.connection.get_next_available_stream_id(not bidirectional)
            self.connection.send_stream_data(stream_id, b"")
        if not bidirectional and stream_id < 4:
            return self.open()
        return stream_id

    def send(self, stream_id: int, data: bytes, *, fin: bool = False) -> None:
        self._to_send.setdefault(stream_id, deque()).append((memoryview(Written(data)), fin))

    def buffers(self) -> list[Any]:
        """What waits to be written: the objects themselves."""
        return [piece.obj for pieces in self._to_send.values() for piece, _ in pieces]

    def give_credit(self) -> None:
        for stream_id, octets in self.uncredited.items():
            self.held.credit(stream_id, octets)
        self.uncredited.clear()

    def drop(self, stream_id: int, code: int) -> None:
        self._to_send.pop(stream_id, None)
        if isinstance(self.connection, HeldConnection):
            self.connection.drop(stream_id, code)
        else:
            self.connection.reset_stream(stream_id, code)

    # --- what arrives ---

    def receive(self, datagrams: list[bytes], address: Any, now: float) -> None:
        """Take datagrams that arrived together, joined as a system may join them."""
        self._heard_at = now
        for joined, segment in self.network.join(datagrams):
            if isinstance(self.connection, HeldConnection):
                buffer = bytearray(joined)
                with memoryview(buffer) as view:
                    self.connection.receive_segments(view, segment, address, now)
                buffer[:] = b"\xaa" * len(buffer)
            else:
                for at in range(0, len(joined), segment):
                    self.connection.receive_datagram(joined[at : at + segment], address, now)

    def _take_arrival(
        self, stream_id: int, offset: int, data: memoryview | bytes, fin: bool
    ) -> None:
        self._take_events()
        if not self.held.is_wanted(stream_id):
            return
        self._place(stream_id, offset, data, fin)
        self.held.finish_delivery(stream_id)

    def _place(self, stream_id: int, offset: int, data: memoryview | bytes, fin: bool) -> None:
        stop = offset + len(data)
        place = self.received.setdefault(stream_id, bytearray())
        had = self._had.setdefault(stream_id, bytearray())
        short = stop - len(place)
        if short > 0:
            place += bytes(short)
            had += bytes(short)
        assert not any(had[offset:stop]), f"stream {stream_id}: octets came twice"
        place[offset:stop] = data
        had[offset:stop] = b"\1" * len(data)
        self.largest_run = max(self.largest_run, len(data))
        if fin:
            assert stream_id not in self.final, f"stream {stream_id}: FIN came twice"
            self.final[stream_id] = stop
        if isinstance(self.connection, HeldConnection):
            if self.credits_at_once:
                self.connection.credit(stream_id, len(data))
            else:
                self.uncredited[stream_id] = self.uncredited.get(stream_id, 0) + len(data)

    def _take_events(self) -> None:
        while (event := self.connection.next_event()) is not None:
            match event:
                case quic.StreamDataReceived():
                    self._take_data(event)
                case quic.StreamReset():
                    self.resets[event.stream_id] = event.error_code
                    if isinstance(self.connection, HeldConnection):
                        self.connection.settle(event.stream_id)
                case quic.StopSendingReceived():
                    self.stops[event.stream_id] = event.error_code
                    self._to_send.pop(event.stream_id, None)
                case quic.DatagramFrameReceived():
                    self.datagrams.append(event.data)
                case quic.ConnectionTerminated():
                    self.end = event

    def _take_data(self, event: quic.StreamDataReceived) -> None:
        octets = len(event.data)
        if isinstance(self.connection, HeldConnection):
            offset = self.connection.deliver(event.stream_id, octets)
            if offset is None:
                return
        else:
            offset = self._offsets.get(event.stream_id, 0)
            self._offsets[event.stream_id] = offset + octets
        self._place(event.stream_id, offset, event.data, event.end_stream)
        if event.end_stream and isinstance(self.connection, HeldConnection):
            self.connection.finish_delivery(event.stream_id)

    def has_all(self, stream_id: int) -> bool:
        """Whether the stream has ended, and all of it came."""
        had = self._had.get(stream_id)
        return had is not None and self.final.get(stream_id) == len(had) and all(had)

    # --- what is sent ---

    def next_time(self) -> float | None:
        at = self.connection.get_timer() if self.connection._network_paths else None
        if at is not None:
            at = min(at, self._heard_at + KEEP_ALIVE_S)
        return at if at is None else max(at, self._blocked_until)

    def pump(self, now: float) -> None:
        """As the driver does: timers, events, writes, aioquic's datagrams, probes, batches."""
        connection = self.connection
        if not connection._network_paths:
            return
        at = connection.get_timer()
        if at is not None and at <= now:
            connection.handle_timer(now)
        if now >= self._heard_at + KEEP_ALIVE_S:
            connection.send_ping(0)
            self._heard_at = now
        self._take_events()
        self._write()
        if now < self._blocked_until:
            return
        held = connection if isinstance(connection, HeldConnection) else None
        if held is not None:
            held.settle_arrivals()
            held.adapt_datagram_size(now)
        for data, address in connection.datagrams_to_send(now):
            self.network.send(self, data, len(data), address)
        if held is not None:
            while (probe := held.next_probe(now)) is not None:
                self.network.send(self, probe[0], len(probe[0]), probe[1])
            goes_on = any(self._to_send.values())
            while held.write_bulk(now, self._emit, goes_on=goes_on):
                pass
        self._take_events()

    def _emit(self, datagrams: memoryview, segment: int, address: Any) -> bool:
        self.bulk_batches += 1
        assert segment == self.held.datagram_size
        self.network.send(self, bytes(datagrams), segment, address)
        if self.network.dice.random() < self.network.weather.blocked:
            self._blocked_until = self.network.now + BLOCKED_S
            return False
        return True

    def _write(self) -> None:
        connection = self.connection
        if connection._state.value > 1:  # the connection is over
            return
        for stream_id, pieces in self._to_send.items():
            while pieces:
                if isinstance(connection, HeldConnection):
                    if connection.unsent_octets >= AHEAD_OCTETS:
                        break
                    data, fin = pieces.popleft()
                    connection.append(stream_id, [data], fin)
                else:
                    data, fin = pieces.popleft()
                    connection.send_stream_data(stream_id, bytes(data), end_stream=fin)


class Network:
    """A client, a server, and the way between them."""

    def __init__(
        self,
        client: Kind = Kind.BULK,
        server: Kind = Kind.BULK,
        *,
        seed: int = 0,
        config: TransportConfig | None = None,
        suite: CipherSuite | None = None,
    ) -> None:
        self.now = 1.0
        self.dice = random.Random(seed)
        self.weather = Weather()
        self.config = config or TransportConfig()
        self._server_kind = server
        self._sequence = count()
        self._flying: list[tuple[float, int, bytes, Any, Any]] = []
        made = configuration(self.config, is_client=True)
        if suite is not None:
            made.cipher_suites = [suite]
        self.client = Peer(self, make(client, made, self.config), CLIENT)
        self._server: Peer | None = None
        self.client.connection.connect(SERVER, now=self.now)
        self.client.pump(self.now)
        self.run(self._is_confirmed)
        if suite is not None:
            assert self.client.connection._cryptos[Epoch.ONE_RTT].send.cipher_suite is suite

    def _is_confirmed(self) -> bool:
        return self._server is not None and all(
            peer.connection._handshake_confirmed for peer in self.peers
        )

    @property
    def server(self) -> Peer:
        assert self._server is not None
        return self._server

    @property
    def peers(self) -> list[Peer]:
        return [self.client] if self._server is None else [self.client, self._server]

    def send(self, source: Peer, datagrams: bytes, segment: int, address: Any) -> None:
        """Let datagrams of so many octets each go; the last may be shorter."""
        for at in range(0, len(datagrams), segment):
            self._send_one(source, datagrams[at : at + segment], address)

    def _send_one(self, source: Peer, datagram: bytes, address: Any) -> None:
        weather, dice = self.weather, self.dice
        if dice.random() < weather.loss or len(datagram) > weather.mtu:
            return
        for _ in range(2 if dice.random() < weather.repeat else 1):
            data = datagram
            if dice.random() < weather.corrupt:
                data = self._corrupted(data)
            delay = ONE_WAY_S
            if dice.random() < weather.late:
                delay += dice.random() * 6 * ONE_WAY_S
            entry = (self.now + delay, next(self._sequence), data, address, source.address)
            heapq.heappush(self._flying, entry)

    def _corrupted(self, data: bytes) -> bytes:
        changed = bytearray(data)
        match self.dice.randrange(4):
            case 0:
                del changed[self.dice.randrange(1, len(changed)) :]
            case 1:
                return self.dice.randbytes(len(changed))
            case 2:
                changed += b"\0"
            case _:
                changed[self.dice.randrange(len(changed))] ^= 1 << self.dice.randrange(8)
        return bytes(changed)

    def join(self, datagrams: Sequence[bytes]) -> Iterator[tuple[bytes, int]]:
        """Join datagrams to buffers: alike ones, but for a shorter last one."""
        joined: list[bytes] = []
        for data in datagrams:
            if joined and (
                len(joined[-1]) != len(joined[0])
                or len(data) > len(joined[0])
                or sum(map(len, joined)) + len(data) > RUN_OCTETS
                or self.dice.random() < self.weather.cut
            ):
                yield b"".join(joined), len(joined[0])
                joined = []
            joined.append(data)
        if joined:
            yield b"".join(joined), len(joined[0])

    def next_time(self) -> float | None:
        """When the next thing happens; None: never."""
        times = [peer.next_time() for peer in self.peers]
        if self._flying:
            times.append(self._flying[0][0])
        return min((time for time in times if time is not None), default=None)

    def step(self) -> None:
        """Go on to the next thing that happens."""
        at = self.next_time()
        assert at is not None, "nothing happens any more"
        self.now = max(self.now + TICK_S, at)  # a clock goes on: a sum may be rounded either way
        while self._flying and self._flying[0][0] <= self.now:
            self._deliver()
        for peer in self.peers:
            due = peer.next_time()
            if peer.is_fed or (due is not None and due <= self.now):
                peer.is_fed = False
                peer.pump(self.now)

    def _deliver(self) -> None:
        _, _, data, address, source = heapq.heappop(self._flying)
        together = [data]
        while self._flying:
            at, _, data, *way = self._flying[0]
            if at > self.now or way != [address, source]:
                break
            together.append(data)
            heapq.heappop(self._flying)
        if self._server is None and address == SERVER:
            header = pull_quic_header(Buffer(data=together[0]), host_cid_length=8)
            made = configuration(self.config, is_client=False)
            connection = make(self._server_kind, made, self.config, header.destination_cid)
            self._server = Peer(self, connection, SERVER)
        for peer in self.peers:
            if peer.address == address:
                peer.receive(together, source, self.now)
                peer.is_fed = True

    def run(self, until: Callable[[], bool]) -> None:
        """Go on until something holds; it has to in `MAX_VIRTUAL_S`."""
        limit = self.now + MAX_VIRTUAL_S
        self._pump()
        for _ in range(MAX_STEPS):
            if until():
                return
            assert self.now < limit, f"it never came: {self}"
            self.step()
        raise AssertionError(f"it never came: {self}")

    def _pump(self) -> None:
        """Act on what a test did meanwhile."""
        for peer in self.peers:
            peer.pump(self.now)

    def run_for(self, seconds: float) -> None:
        """Let so much time go by."""
        end = self.now + seconds
        self._pump()
        for _ in range(MAX_STEPS):
            at = self.next_time()
            if at is None or at > end:
                self.now = end
                return
            self.step()
        raise AssertionError(f"too much happens: {self}")

    def settle(self) -> None:
        """Go on until both sides have all acknowledged, and their accounts are even."""
        self.weather = Weather(mtu=self.weather.mtu)
        self.run(lambda: all(is_at_rest(peer) for peer in self.peers))

    def __repr__(self) -> str:
        return "; ".join(
            f"{peer.address}: flight {peer.connection._loss.bytes_in_flight}, "
            f"window {peer.connection._loss.congestion_window}, streams "
            f"{ {s: (len(d), peer.final.get(s)) for s, d in peer.received.items()} }, "
            f"end {peer.connection._close_event}"
            for peer in self.peers
        )


def is_at_rest(peer: Peer) -> bool:
    connection = peer.connection
    space = connection._spaces[Epoch.ONE_RTT]
    if connection._loss.bytes_in_flight or space.ack_eliciting_in_flight:
        return False
    if isinstance(connection, HeldConnection):
        return (
            connection.unsent_octets == 0
            and connection.credited_octets == connection.received_octets
        )
    return True
