"""What a hostile peer, or anyone on the path, may send: the batch reader does as aioquic does."""

from __future__ import annotations

import random
import sys
from typing import TYPE_CHECKING

import pytest
from aioquic.quic.packet import QuicErrorCode, QuicStreamFrame
from aioquic.quic.packet_builder import QuicDeliveryState
from aioquic.quic.stream import QuicStreamReceiver

from moqt.asyncio.bulk import receiver as receiving
from moqt.asyncio.bulk.reader import UNHURRIED_ACK_S
from moqt.asyncio.bulk.receiver import MAX_RANGES, PlacingReceiver, RangeTally
from moqt.asyncio.bulk.sender import ReferencingSender
from moqt.asyncio.config import TransportConfig
from tests.asyncio.bulk_pair import CLIENT, Network, Weather
from tests.asyncio.bulk_twins import Damage, Packet, Twins, packets, run, stream_frame, varint

if TYPE_CHECKING:
    from types import FrameType
    from typing import Any

SMALL = TransportConfig(
    connection_window_octets=5_000,
    max_connection_window_octets=None,
    stream_window_octets=2_000,
    max_stream_window_octets=None,
    max_unidirectional_streams=8,
)


@pytest.fixture(autouse=True)
def no_leaks() -> None:
    """Nothing here has a task or a socket."""


VIOLATIONS: dict[str, tuple[list[bytes], QuicErrorCode]] = {
    "over the stream's limit": (run(6, 0, 3, 1_000), QuicErrorCode.FLOW_CONTROL_ERROR),
    "over the stream's limit at once": (
        [stream_frame(6, 1 << 40, b"data")],
        QuicErrorCode.FLOW_CONTROL_ERROR,
    ),
    "over the connection's limit": (
        [*run(6, 0, 2, 990), *run(10, 0, 2, 990), *run(14, 0, 2, 990)],
        QuicErrorCode.FLOW_CONTROL_ERROR,
    ),
    "over both by a reset": (
        [b"\x04" + varint(6) + varint(1) + varint(1 << 30)],
        QuicErrorCode.FLOW_CONTROL_ERROR,
    ),
    "octets beyond the final size": (
        [stream_frame(6, 0, b"abcd", fin=True), stream_frame(6, 4, b"e")],
        QuicErrorCode.FINAL_SIZE_ERROR,
    ),
    "another final size": (
        [stream_frame(6, 10, b"abcd", fin=True), stream_frame(6, 4, b"abcd", fin=True)],
        QuicErrorCode.FINAL_SIZE_ERROR,
    ),
    "a final size below what came": (
        [stream_frame(6, 4, b"abcd"), stream_frame(6, 0, b"abcd", fin=True)],
        QuicErrorCode.FINAL_SIZE_ERROR,
    ),
    "a final size below what came, by a reset": (
        [stream_frame(6, 4, b"abcd"), b"\x04" + varint(6) + varint(1) + varint(4)],
        QuicErrorCode.FINAL_SIZE_ERROR,
    ),
    "octets after a reset": (
        [b"\x04" + varint(6) + varint(1) + varint(4), stream_frame(6, 4, b"abcd")],
        QuicErrorCode.FINAL_SIZE_ERROR,
    ),
    "our own direction": ([stream_frame(3, 0, b"abcd")], QuicErrorCode.STREAM_STATE_ERROR),
    "ours, never opened": ([stream_frame(401, 0, b"abcd")], QuicErrorCode.STREAM_STATE_ERROR),
    "too many streams": ([stream_frame(4 * 8 + 2, 0, b"ab")], QuicErrorCode.STREAM_LIMIT_ERROR),
    "no frames": ([b""], QuicErrorCode.PROTOCOL_VIOLATION),
    "an unknown frame": ([b"\x21\0\0\0"], QuicErrorCode.FRAME_ENCODING_ERROR),
    "an unknown frame behind octets": (
        [stream_frame(6, 0, b"abcd", has_length=True) + b"\x3f\0"],
        QuicErrorCode.FRAME_ENCODING_ERROR,
    ),
    "a truncated type": ([b"\x40"], QuicErrorCode.FRAME_ENCODING_ERROR),
    "a STREAM frame without a stream": ([b"\x08"], QuicErrorCode.FRAME_ENCODING_ERROR),
    "half a stream ID": ([b"\x08\x80\0"], QuicErrorCode.FRAME_ENCODING_ERROR),
    "no offset": ([b"\x0c\x06"], QuicErrorCode.FRAME_ENCODING_ERROR),
    "half an offset": ([b"\x0c\x06\xc0\0"], QuicErrorCode.FRAME_ENCODING_ERROR),
    "no length": ([b"\x0a\x06"], QuicErrorCode.FRAME_ENCODING_ERROR),
    "no length behind an offset": ([b"\x0e\x06\x41\0"], QuicErrorCode.FRAME_ENCODING_ERROR),
    "half a length": ([b"\x0e\x06\x41\0\x80\0"], QuicErrorCode.FRAME_ENCODING_ERROR),
    "a length that runs over": (
        [b"\x0a\x06" + varint(100) + b"abcd"],
        QuicErrorCode.FRAME_ENCODING_ERROR,
    ),
    "a length of all": ([b"\x0a\x06" + b"\xff" * 8 + b"abcd"], QuicErrorCode.FRAME_ENCODING_ERROR),
    "HANDSHAKE_DONE from a client": ([b"\x1e\0\0\0"], QuicErrorCode.PROTOCOL_VIOLATION),
}


@pytest.mark.parametrize(("before", "joined"), [(0, True), (1, False), (20, True)])
@pytest.mark.parametrize("violation", VIOLATIONS)
def test_a_violation_ends_the_connection(violation: str, before: int, joined: bool) -> None:
    """And whatever came in the same buffer before it, or comes after it, changes nothing."""
    payloads, code = VIOLATIONS[violation]
    twins = Twins(SMALL)
    for twin in (twins.bulk, twins.stock):
        twin.reader.credits_at_once = False
    good = [b"\x01\0\0\0"] * before
    # a payload of fewer than four octets doesn't fill a sample with a short packet number
    sent = packets(*good, *payloads, b"\x01\0\0\0")
    twins.feed(
        [
            Packet(one.number, one.payload, number_octets=2 if len(one.payload) >= 2 else 4)
            for one in sent
        ],
        joined=joined,
    )
    for twin in (twins.bulk, twins.stock):
        event = twin.connection._close_event
        assert event is not None
        assert event.error_code == code
    twins.bulk.network.run_for(1.0)
    event = twins.bulk.network.client.connection._close_event
    assert event is not None
    assert event.error_code == code


def test_an_offset_beyond_all_is_an_error_of_flow_control_or_encoding() -> None:
    """RFC 9000 19.8 lets either be; the batch reader sees the limit first."""
    twin = Twins(SMALL).bulk
    twin.feed(packets(stream_frame(6, (1 << 62) - 1, b"abcd")), 9.0)
    event = twin.connection._close_event
    assert event is not None
    assert event.error_code in (
        QuicErrorCode.FLOW_CONTROL_ERROR,
        QuicErrorCode.FRAME_ENCODING_ERROR,
    )


@pytest.mark.parametrize("reserved", [0x08, 0x10, 0x18])
@pytest.mark.parametrize("count", [0, 20])
def test_reserved_bits_end_the_connection(reserved: int, count: int) -> None:
    twins = Twins()
    good = packets(*run(6, 0, count, 100))
    twins.feed([*good, Packet(count, bytes(103), reserved=reserved)])
    event = twins.bulk.connection._close_event
    assert event is not None
    assert event.error_code == QuicErrorCode.PROTOCOL_VIOLATION


@pytest.mark.parametrize("damage", Damage)
@pytest.mark.parametrize("at", [0, 1, 13, 29, 30])
def test_junk_between_good_packets_costs_no_other(damage: Damage, at: int) -> None:
    twins = Twins()
    good = packets(*run(6, 0, 30, 500))
    junk = Packet(500, bytes(504), damage=damage) if damage is not Damage.NONE else good[0]
    twins.feed([*good[:at], junk, *good[at:]])
    assert len(twins.bulk.reader.received[6]) == 30 * 500
    assert not twins.is_over
    twins.feed(packets(*run(6, 15_000, 30, 500), first=30))
    assert len(twins.bulk.reader.received[6]) == 60 * 500


@pytest.mark.parametrize("octets", [1, 2, 9, 10, 16, 25, 28, 29, 30, 31, 45])
@pytest.mark.parametrize("count", [1, 2, 3, 12, 64, 500])
def test_buffers_of_datagrams_too_short_for_packets(octets: int, count: int) -> None:
    """A system joins what comes from one address, whoever sent it."""
    network = Network(seed=2)
    dice = random.Random(octets)
    server = network.server
    for content in (bytes(octets), b"\xff" * octets, dice.randbytes(octets)):
        for prefix in (b"", b"\x40" + server.connection.host_cid):
            one = (prefix + content)[:octets]
            buffer = memoryview(one * count + one[: dice.randrange(octets)])
            server.held.receive_segments(buffer, octets, CLIENT, network.now)
    assert server.connection._close_event is None
    # header protection is as it was
    stream_id = network.client.open()
    network.client.send(stream_id, bytes(100_000), fin=True)
    network.run(lambda: server.has_all(stream_id))
    network.settle()


@pytest.mark.parametrize("count", [1, 40])
def test_a_packet_that_is_repeated_is_read_once(count: int) -> None:
    """Whoever read it first: aioquic's expected number may be the last one that came."""
    twins = Twins()
    for step in range(4):
        sent = [
            Packet(step * count + number, b"\x30" + bytes((step, number)))
            for number in range(count)
        ]
        for twin in (twins.bulk, twins.stock):  # aioquic reads them, in both
            for packet in sent:
                twin.connection.receive_datagram(twin.seal(packet), CLIENT, twins.now)
            twin.reader._take_events()
        twins.feed(sent)
        twins.feed(sent[-1:])
        assert len(twins.bulk.reader.datagrams) == (step + 1) * count


def test_empty_frames_anywhere() -> None:
    twins = Twins()
    payloads = [
        stream_frame(6, 100, b""),
        stream_frame(6, 50, b"abcd"),
        stream_frame(6, 50, b""),
        stream_frame(6, 52, b""),
        stream_frame(6, 54, b""),
        stream_frame(6, 60, b""),
        stream_frame(6, 0, b"\0\0\0\0"),
        stream_frame(6, 0, b"\0\0\0\0" + bytes(46)),
        stream_frame(6, 54, b"", fin=False),
        stream_frame(10, 0, b"", has_length=True) + bytes(2),
    ]
    twins.feed(packets(*payloads))
    assert not twins.is_over
    twins.feed(packets(stream_frame(6, 100, b"", fin=True), stream_frame(6, 100, b""), first=20))
    twins.feed(packets(stream_frame(6, 54, bytes(46)), first=30))
    assert twins.bulk.reader.has_all(6)
    assert twins.bulk.connection.received_octets == 100


@pytest.mark.parametrize("offset", [0, 1, 100, 20_000])
@pytest.mark.parametrize("count", [1, 12, 64])
def test_many_empty_frames_in_one_buffer(count: int, offset: int) -> None:
    twins = Twins()
    empty = stream_frame(6, offset, b"") + bytes(0)
    payloads = [empty] * count
    twins.feed([Packet(at, one, number_octets=4) for at, one in enumerate(payloads)])
    twins.feed([Packet(count + at, one, number_octets=2) for at, one in enumerate(payloads)])
    assert not twins.is_over
    assert twins.bulk.connection.received_octets == offset
    twins.feed(packets(*run(6, 0, 64, 500), first=2 * count))
    assert len(twins.bulk.reader.received[6]) == 32_000


@pytest.mark.parametrize("limit", [64, 1 << 14, 1 << 30])
def test_offsets_where_they_take_more_octets(limit: int) -> None:
    """Rows of packets: the same but for offsets, until their size changes."""
    config = TransportConfig(connection_window_octets=2 << 30, stream_window_octets=2 << 30)
    twins = Twins(config)
    for twin in (twins.bulk, twins.stock):  # no gigabyte below it
        twin.feed([Packet(0, stream_frame(6, 0, b""))], twins.now)
        receiver = twin.connection._streams[6].receiver
        receiver._buffer_start = receiver.highest_offset = max(0, limit - 640)
        twin.connection._local_max_data.used = receiver.highest_offset
        twin.reader._place = lambda *_: None  # type: ignore[method-assign]
    start = twins.bulk.connection._streams[6].receiver.highest_offset
    arrived: list[tuple[int, bytes]] = []
    twins.bulk.connection.on_arrival = lambda _, at, data, __: arrived.append((at, bytes(data)))
    whole = random.Random(1).randbytes(64 * 32)
    for first in (0, 20, 40):
        twins.feed(
            [
                Packet(1 + at, stream_frame(6, start + at * 32, whole[at * 32 : at * 32 + 32]))
                for at in range(first, first + 20)
            ]
        )
    assert b"".join(data for _, data in arrived) == whole[: 60 * 32]
    at = start
    for offset, data in arrived:
        assert offset == at
        at += len(data)


def test_packets_without_octets_are_acknowledged_in_time_but_seldom() -> None:
    """The first at once, the others in time: a probe timeout is max_ack_delay, 25 ms, and more (RFC
    9002 6.2.1)."""
    twin = Twins().bulk
    twin.space.ack_at = None

    def ack_at_after(now: float, *payloads: bytes, first: int) -> float | None:
        twin.feed(packets(*payloads, first=first), now)
        return twin.space.ack_at

    ping = b"\x01\0\0\0"
    assert ack_at_after(10.0, ping, first=0) == 10.0
    twin.space.ack_at = None  # it was sent
    next_at = 10.0 + UNHURRIED_ACK_S
    assert ack_at_after(10.001, ping, first=1) == next_at < 10.02
    assert ack_at_after(10.002, ping, first=2) == next_at  # it isn't put off
    soon = 10.003 + twin.connection._ack_delay
    assert ack_at_after(10.003, *run(6, 0, 2, 100), first=3) == soon
    assert ack_at_after(10.0035, ping, first=5) == soon
    twin.space.ack_at = None  # it was sent before it was due
    assert ack_at_after(10.0036, ping, first=6) == 10.0036 + UNHURRIED_ACK_S
    twin.space.ack_at = None
    assert ack_at_after(10.5, ping, first=7) == 10.5


@pytest.mark.parametrize(
    "payload",
    [
        b"\x01" + stream_frame(6, 0, bytes(10)),
        stream_frame(6, 0, bytes(10), has_length=True) + bytes(3),
        b"\x30" + bytes(10),
    ],
)
def test_octets_in_any_frame_are_acknowledged_soon(payload: bytes) -> None:
    twin = Twins().bulk
    twin.space.ack_at = None
    twin.feed(packets(payload), 10.0)
    ack_at: float | None = twin.space.ack_at
    assert ack_at == 10.0 + twin.connection._ack_delay


@pytest.mark.parametrize("has_length", [False, True])
@pytest.mark.parametrize("count", [5, 40, 150])
@pytest.mark.parametrize("seed", range(8))
def test_runs_of_several_streams_with_gaps(seed: int, count: int, has_length: bool) -> None:
    """Packets of one size: most go on where the last one ended; some are of another stream, lost,
    repeated, of another kind, or the last of their stream."""
    dice = random.Random(seed)
    twins = Twins()
    octets = dice.choice([60, 300, 1100])
    at = dict.fromkeys((6, 10, 14, 18), 1 << 14)
    ended: set[int] = set()
    stream_id, number = 6, 0
    for _ in range(3):
        sent: list[Packet] = []
        for _ in range(count):
            number += 1
            event = dice.random()
            if event < 0.04 and len(ended) < 4:
                stream_id = dice.choice([one for one in at if one not in ended])
            elif event < 0.06:
                number += dice.randrange(1, 4)
            elif event < 0.07 and sent:
                sent.append(dice.choice(sent))
            elif event < 0.08:
                sent.append(Packet(number, b"\x01" + bytes(octets + 7 + 2 * has_length)))
                continue
            elif event < 0.09:
                at[stream_id] += dice.randrange(octets)
            if stream_id in ended:
                continue
            fin = dice.random() < 0.01
            data = dice.randbytes(octets)
            frame = stream_frame(stream_id, at[stream_id], data, fin=fin, has_length=has_length)
            if fin:
                ended.add(stream_id)
            at[stream_id] += octets
            sent.append(Packet(number, frame))
        twins.feed(sent)
        assert not twins.is_over


@pytest.mark.parametrize("extra", [1, 9])
def test_a_length_that_ends_before_its_packet_does(extra: int) -> None:
    """The head is as expected, but more follows than the octets that it is of."""
    twins = Twins()
    frames = [stream_frame(6, at, bytes(100), has_length=True) for at in range(64, 1000, 100)]
    twins.feed(packets(*frames[:4], frames[4] + bytes(extra), *frames[5:]))
    assert not twins.is_over
    assert twins.bulk.reader.received_octets == 1000


@pytest.mark.parametrize("octets", [2, 3, 5])
def test_a_head_that_ends_with_its_packet_is_not_read_on_from_older_ones(octets: int) -> None:
    twins = Twins()
    whole = random.Random(2).randbytes(2000)
    first, second = stream_frame(6, 20_000, whole[:1000]), stream_frame(6, 21_000, whole[1000:])
    twins.feed(packets(first, second))
    twins.feed([Packet(2, first), Packet(3, second[:octets])])
    assert twins.is_over
    twins.compare()


def test_packets_of_other_connections_in_one_buffer() -> None:
    """A client's socket has one peer, which may join what it sends for several."""
    twins = Twins()
    good = packets(*run(6, 0, 20, 200))
    foreign = [Packet(number, bytes(203), damage=Damage.FOREIGN) for number in range(20)]
    twins.feed([one for pair in zip(good, foreign, strict=True) for one in pair])
    assert len(twins.bulk.reader.received[6]) == 4_000
    assert not twins.is_over


def test_random_octets_in_any_sizes() -> None:
    network = Network(seed=3)
    dice = random.Random(3)
    server = network.server.held
    for _ in range(300):
        octets = dice.randrange(1, 3_000)
        segment = dice.randrange(1, octets + 1)
        head = b"\x40" + server.host_cid if dice.random() < 0.5 else b""
        joined = b"".join(
            (head + dice.randbytes(segment))[:segment] for _ in range(0, octets, segment)
        )
        server.receive_segments(memoryview(joined[:octets]), segment, CLIENT, network.now)
    assert server._close_event is None
    network.weather = Weather(mtu=1500)
    stream_id = network.client.open()
    network.client.send(stream_id, bytes(50_000), fin=True)
    network.run(lambda: network.server.has_all(stream_id))


def test_sealed_payloads_of_random_octets() -> None:
    """A peer with the keys may seal anything: the outcome is aioquic's."""
    dice = random.Random(4)
    for _ in range(60):
        twins = Twins(SMALL)
        size = dice.randrange(4, 40)
        payloads = []
        for _ in range(dice.choice([1, 3, 14])):
            kind = bytes((dice.choice([8, 9, 10, 11, 12, 13, 14, 15, dice.randrange(64)]),))
            payloads.append(kind + bytes((dice.choice([6, 10, 2, 0x40]),)) + dice.randbytes(size))
        try:
            twins.feed(packets(*payloads))
        except AssertionError:
            ours, theirs = (twin.connection._close_event for twin in (twins.bulk, twins.stock))
            assert ours is not None
            assert theirs is not None
            either = {QuicErrorCode.FLOW_CONTROL_ERROR, QuicErrorCode.FRAME_ENCODING_ERROR}
            assert {ours.error_code, theirs.error_code} == either  # RFC 9000 19.8


class Lines:
    """Counts the lines of Python that run: work, whatever the machine."""

    def __init__(self) -> None:
        self.count = 0

    def __enter__(self) -> Lines:
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        self.count += event == "line"
        return self._trace


def work_of_gaps(receiver: QuicStreamReceiver, gaps: int) -> int:
    with Lines() as lines:
        for offset in range(1, 2 * gaps, 2):
            receiver.handle_frame(QuicStreamFrame(data=b"x", offset=offset))
    return lines.count


def test_many_gaps_in_one_stream_take_little_work() -> None:
    """Each frame leaves a gap. aioquic looks at all ranges to add one; here none is looked at."""
    few, many = (
        work_of_gaps(PlacingReceiver(6, lambda *_: None, RangeTally()), gaps) for gaps in (300, 600)
    )
    assert many <= 2 * few
    assert many < work_of_gaps(QuicStreamReceiver(6, readable=True), 600) / 10


def test_gaps_cost_no_memory_but_their_ranges() -> None:
    """A frame far ahead takes no buffer up to there: aioquic's would."""
    tally = RangeTally()
    receiver = PlacingReceiver(6, lambda *_: None, tally)
    for offset in range(1 << 20, 0, -4096):
        receiver.place(offset, b"x", False)
    assert len(receiver._buffer) == 0
    assert tally.count == 256


def test_gaps_of_all_streams_are_counted() -> None:
    """RFC 9000 21.7: what closes a gap, or ends its stream, makes room."""
    tally = RangeTally()
    first, second = (PlacingReceiver(at, lambda *_: None, tally) for at in (6, 10))
    for offset in range(1, 101, 2):
        first.place(offset, b"x", False)
        second.place(offset, b"x", False)
    assert tally.count == 100
    for offset in range(0, 50, 2):
        first.place(offset, b"x", False)
    assert tally.count == 75
    first.place(0, bytes(100), True)
    assert first.is_finished
    assert tally.count == 50
    second.handle_reset(final_size=100)
    second.handle_reset(final_size=100)
    assert tally.count == 0
    second.place(90, b"x", False)
    assert tally.count == 0


def test_more_gaps_than_any_transfer_has_end_the_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """RFC 9000 21.7: over several streams, by either reader; what was read before stays."""
    assert MAX_RANGES * 2 * 1200 > TransportConfig().largest_stream_window_octets
    monkeypatch.setattr(receiving, "MAX_RANGES", 50)
    twins = Twins()
    twins.feed(packets(*(stream_frame(6, at, b"x") for at in range(1, 61, 2))))
    twins.feed(packets(*(stream_frame(10, at, b"x") for at in range(1, 41, 2)), first=30))
    assert not twins.is_over
    twins.feed(packets(stream_frame(10, 0, bytes(40)), first=50))
    twins.feed(packets(*(stream_frame(14, at, b"x") for at in range(1, 41, 2)), first=51))
    assert not twins.is_over
    twins.feed(packets(stream_frame(14, 99, b"x"), first=71))
    for twin in (twins.bulk, twins.stock):
        event = twin.connection._close_event
        assert event is not None
        assert event.error_code == QuicErrorCode.INTERNAL_ERROR
        assert "gaps" in event.reason_phrase


class Owner:
    """What a sender tells its connection."""

    is_bulk_at_work = True

    def on_sendable(self, sender: ReferencingSender, *, is_urgent: bool) -> None:
        """It will be asked."""


def work_of_losses(count: int) -> int:
    """Have every second packet lost, as where a queue overflows, and sent again."""
    sender = ReferencingSender(6, Owner())
    sender.append([bytes(2 * count)], False)
    sender.next_run(2 * count, 2 * count)
    with Lines() as lines:
        for offset in range(1, 2 * count, 2):
            sender.on_data_delivery(QuicDeliveryState.LOST, offset, offset + 1, False)
        while sender.has_lost:
            sender.next_run(2 * count, 1)
    return lines.count


def test_many_losses_in_one_stream_take_little_work() -> None:
    """A peer chooses what it acknowledges; and a fast link whose queue overflows loses much."""
    few, many = work_of_losses(300), work_of_losses(600)
    assert 0 < many <= 2 * few
