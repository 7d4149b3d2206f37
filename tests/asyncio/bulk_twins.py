"""Two connections that get the same packets: one reads by the batch, for the other aioquic does."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import TYPE_CHECKING

from aioquic.tls import Epoch

from moqt.asyncio.bulk.connection import BulkConnection
from moqt.asyncio.bulk.reader import UNHURRIED_ACK_S
from moqt.asyncio.config import TransportConfig
from tests.asyncio.bulk_pair import Kind, Network

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aioquic.quic.recovery import QuicPacketSpace

    from tests.asyncio.bulk_pair import Peer


class Damage(Enum):
    """What the network did to a packet."""

    NONE = auto()
    FLIPPED = auto()
    CUT = auto()
    SHORT = auto()
    """Fewer octets than any packet."""
    NOISE = auto()
    ZEROS = auto()
    FOREIGN = auto()
    """It has another's connection ID."""


@dataclass(frozen=True, slots=True)
class Packet:
    """A 1-RTT packet that the other side sends."""

    number: int
    """Counted from the first that is expected."""
    payload: bytes
    spin: bool = False
    damage: Damage = Damage.NONE
    number_octets: int = 2
    reserved: int = 0
    """Bits 0x18 of the first octet."""


def varint(value: int) -> bytes:
    for octets, mark in ((1, 0), (2, 1), (4, 2), (8, 3)):
        if value < 1 << (8 * octets - 2):
            return (value | mark << (8 * octets - 2)).to_bytes(octets, "big")
    raise ValueError(value)


def stream_frame(
    stream_id: int,
    offset: int,
    data: bytes,
    *,
    fin: bool = False,
    has_length: bool = False,
) -> bytes:
    kind = 0x08 | (0x04 if offset else 0) | (0x02 if has_length else 0) | fin
    head = bytes((kind,)) + varint(stream_id) + (varint(offset) if offset else b"")
    return head + (varint(len(data)) if has_length else b"") + data


def packets(*payloads: bytes, first: int = 0) -> list[Packet]:
    return [Packet(number, payload) for number, payload in enumerate(payloads, first)]


def run(
    stream_id: int, start: int, count: int, octets: int, *, has_length: bool = False
) -> list[bytes]:
    """Frames of one stream, one after another."""
    return [
        stream_frame(stream_id, at, bytes(octets), has_length=has_length)
        for at in range(start, start + count * octets, octets)
    ]


class Twin:
    """One of the two: a handshake of its own, but the same events after it."""

    def __init__(self, *, is_bulk: bool, is_client: bool, config: TransportConfig | None) -> None:
        config = replace(config or TransportConfig(), max_datagram_octets=1200)
        self.network = Network(Kind.BULK, Kind.BULK, seed=1, config=config)
        self.network.run_for(0.1)
        network = self.network
        self.reader: Peer = network.client if is_client else network.server
        """Who reads: the server, unless it is the client."""
        sending = network.server if is_client else network.client
        self.sending_address = sending.address
        connection = self.reader.connection
        assert isinstance(connection, BulkConnection)
        self.connection = connection
        if not is_bulk:
            connection._is_bulk_possible = lambda: False  # type: ignore[method-assign]
        self.space: QuicPacketSpace = connection._spaces[Epoch.ONE_RTT]
        self.first_number = self.space.largest_received_packet + 1
        self._keys = sending.connection._cryptos[Epoch.ONE_RTT].send

    def seal(self, packet: Packet) -> bytes:
        match packet.damage:
            case Damage.NOISE:
                return self.connection.host_cid * (len(packet.payload) // 8 + 4)
            case Damage.ZEROS:
                return bytes(len(packet.payload) + 27)
            case Damage.SHORT:
                return b"\x40" + self.connection.host_cid + b"\x11" * (packet.number % 20)
        number = self.first_number + packet.number
        connection_id = self.connection.host_cid
        if packet.damage is Damage.FOREIGN:
            connection_id = bytes(8)
        first = 0x40 | packet.spin << 5 | packet.reserved | self._keys.key_phase << 2
        header = bytes((first | packet.number_octets - 1,)) + connection_id
        header += (number & (1 << 8 * packet.number_octets) - 1).to_bytes(
            packet.number_octets, "big"
        )
        sealed = bytearray(self._keys.encrypt_packet(header, packet.payload, number))
        if packet.damage is Damage.FLIPPED:
            sealed[-1 - packet.number % 16] ^= 4
        elif packet.damage is Damage.CUT:
            del sealed[-5:]
        return bytes(sealed)

    def feed(self, packets: Sequence[Packet], now: float) -> None:
        self.network.now = now
        self.reader.receive([self.seal(packet) for packet in packets], self.sending_address, now)
        self.reader._take_events()
        self.connection.settle_arrivals()


class Twins:
    """Both, and what must not differ between them."""

    def __init__(self, config: TransportConfig | None = None, *, is_client: bool = False) -> None:
        self.bulk = Twin(is_bulk=True, is_client=is_client, config=config)
        self.stock = Twin(is_bulk=False, is_client=is_client, config=config)
        self.now = max(self.bulk.network.now, self.stock.network.now) + 0.01
        for twin in (self.bulk, self.stock):
            twin.connection._close_at = self.now + 30
            twin.space.largest_received_time = self.now
            twin.network.weather.cut = 0.0
        assert self.bulk.first_number == self.stock.first_number
        self.top = 0

    @property
    def is_over(self) -> bool:
        return self.stock.connection._close_event is not None

    def feed(self, packets: Sequence[Packet], *, joined: bool = True) -> None:
        """Give both the same packets, which arrived together; compare them."""
        self.now += 0.002
        self.top = max([self.top, *(packet.number for packet in packets)])
        for twin in (self.bulk, self.stock):
            twin.network.weather.cut = 0.0 if joined else 1.0
            twin.feed(packets, self.now)
        self.compare()

    def send(self) -> None:
        """Let both write what they have to."""
        self.now += 0.002
        for twin in (self.bulk, self.stock):
            twin.connection.datagrams_to_send(self.now)
        self.compare()

    def compare(self) -> None:
        ours, theirs = self.bulk.connection, self.stock.connection
        if theirs._close_event is not None or ours._close_event is not None:
            assert theirs._close_event is not None
            assert ours._close_event is not None, theirs._close_event
            assert ours._close_event.error_code == theirs._close_event.error_code
            return
        space, their_space = self.bulk.space, self.stock.space
        assert list(space.ack_queue) == list(their_space.ack_queue)
        numbers = range(self.bulk.first_number + self.top + 3)
        assert [number in space.received_packets for number in numbers] == [
            number in their_space.received_packets for number in numbers
        ]
        assert space.largest_received_packet == their_space.largest_received_packet
        assert space.largest_received_time == their_space.largest_received_time
        # aioquic's own is one behind after every other packet
        assert 0 <= space.expected_packet_number - their_space.expected_packet_number <= 1
        assert (space.ack_at is None) == (their_space.ack_at is None)
        if space.ack_at is not None and their_space.ack_at is not None:
            # what brings no octets goes at once, or later: test_bulk_hostile.py has all kinds
            late_s = space.ack_at - their_space.ack_at + ours._ack_delay
            assert -1e-9 <= late_s <= UNHURRIED_ACK_S + 1e-9
        assert ours._spin_bit == theirs._spin_bit
        assert ours._spin_highest_pn == their_space.largest_received_packet
        assert ours._close_at is not None
        assert theirs._close_at is not None
        assert 0 <= theirs._close_at - ours._close_at <= 0.002  # the idle timer's resolution
        assert ours._ack_eliciting_sent_since_receipt == theirs._ack_eliciting_sent_since_receipt
        assert ours.received_octets == theirs.received_octets
        assert ours.credited_octets == theirs.credited_octets
        assert self.bulk.reader.received == self.stock.reader.received
        assert self.bulk.reader.final == self.stock.reader.final
        assert self.bulk.reader.resets == self.stock.reader.resets
        assert self.bulk.reader.stops == self.stock.reader.stops
        assert self.bulk.reader.datagrams == self.stock.reader.datagrams
        assert ours._streams.keys() == theirs._streams.keys()
        for stream_id, stream in ours._streams.items():
            other = theirs._streams[stream_id]
            assert stream.receiver.highest_offset == other.receiver.highest_offset
            assert stream.receiver._final_size == other.receiver._final_size
            assert stream.is_finished == other.is_finished
            assert stream.max_stream_data_local == other.max_stream_data_local
