"""What moqt.asyncio.bulk uses of aioquic's inside is what it takes it for.

As tests/asyncio/test_aioquic_contract.py does for `HeldConnection`: another version of aioquic or
of cryptography fails here, by name.
"""

from __future__ import annotations

import ast
import inspect
import os
from copy import copy
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from aioquic.quic import connection as quic
from aioquic.quic import packet_builder, recovery
from aioquic.quic.connection import QuicConnection, QuicReceiveContext
from aioquic.quic.crypto import CryptoPair
from aioquic.quic.packet import QuicErrorCode, QuicPacketType, QuicStreamFrame
from aioquic.quic.packet_builder import QuicDeliveryState, QuicSentPacket
from aioquic.quic.recovery import QuicPacketSpace
from aioquic.quic.stream import QuicStream, QuicStreamReceiver, QuicStreamSender
from aioquic.tls import CipherSuite, Epoch
from cryptography.exceptions import InvalidTag

from moqt.asyncio import bulk
from moqt.asyncio.bulk.protection import SAMPLE_OCTETS, TAG_OCTETS
from moqt.asyncio.bulk.receiver import PlacingReceiver
from moqt.asyncio.bulk.sender import ReferencingSender
from moqt.asyncio.config import CongestionControl, TransportConfig
from moqt.asyncio.connection import HeldConnection, quic_configuration
from tests.asyncio.bulk_pair import Kind, Network, Weather

if TYPE_CHECKING:
    from types import ModuleType

    from moqt.asyncio.bulk.sent import SentRun

SUITES = [
    CipherSuite.AES_128_GCM_SHA256,
    CipherSuite.AES_256_GCM_SHA384,
    CipherSuite.CHACHA20_POLY1305_SHA256,
]
CONNECTION_ID = b"12345678"


@pytest.fixture(autouse=True)
def no_leaks() -> None:
    """Nothing here has a task or a socket."""


def pairs(suite: CipherSuite) -> tuple[CryptoPair, CryptoPair]:
    """Return the keys of two sides."""
    up, down = os.urandom(32), os.urandom(32)
    near, far = CryptoPair(), CryptoPair()
    for one, secrets in ((near, (up, down)), (far, (down, up))):
        one.send.setup(cipher_suite=suite, secret=secrets[0], version=1)
        one.recv.setup(cipher_suite=suite, secret=secrets[1], version=1)
    return near, far


# --- keys ---


@pytest.mark.parametrize("suite", SUITES)
@pytest.mark.parametrize("number", [0, 1, 255, 1 << 20, (1 << 31) - 1])
def test_what_we_seal_aioquic_opens_and_the_other_way(suite: CipherSuite, number: int) -> None:
    near, far = pairs(suite)
    send, recv = near.send, far.recv
    assert send.aead is not None
    assert send.hp is not None
    assert recv.aead is not None
    assert recv.hp is not None
    header = bytes((0x41,)) + CONNECTION_ID + (number & 0xFFFF).to_bytes(2, "big")
    plain = b"some frames of this packet"
    nonce = (send.aead._iv ^ number).to_bytes(12, "big")
    theirs = near.encrypt_packet(header, plain, number)

    packet = bytearray(len(header) + len(plain) + TAG_OCTETS)
    packet[: len(header)] = header
    view = memoryview(packet)
    written = send.aead._aead.encrypt_into(nonce, plain, header, view[len(header) :])
    assert written == len(plain) + TAG_OCTETS
    sample = packet[len(header) + 2 : len(header) + 2 + SAMPLE_OCTETS]
    mask = send.hp._mask(bytes(sample))
    packet[0] ^= mask[0] & 0x1F
    packet[9] ^= mask[1]
    packet[10] ^= mask[2]
    assert packet == theirs

    assert far.decrypt_packet(theirs, 9, number)[1:] == (plain, number)
    opened = bytearray(len(plain))
    nonce = (recv.aead._iv ^ number).to_bytes(12, "big")
    body = memoryview(theirs)[len(header) :]
    recv.aead._aead.decrypt_into(nonce, body, header, memoryview(opened))
    assert opened == plain
    with pytest.raises(InvalidTag):
        recv.aead._aead.decrypt_into(nonce, body, header[:-1], memoryview(opened))


@pytest.mark.parametrize("suite", SUITES)
def test_masks_of_many_samples_are_those_of_each(suite: CipherSuite) -> None:
    near, _ = pairs(suite)
    protection = near.send.hp
    assert protection is not None
    assert protection._is_chacha20 == (suite is CipherSuite.CHACHA20_POLY1305_SHA256)
    samples = [os.urandom(SAMPLE_OCTETS) for _ in range(7)]
    masks = [protection._mask(sample) for sample in samples]
    assert min(map(len, masks)) >= 5
    if not protection._is_chacha20:
        assert protection._encryptor.update(b"".join(samples)) == b"".join(masks)
    assert [protection._mask(sample) for sample in samples] == masks  # it has no memory


def test_an_update_of_keys_changes_both_directions_but_not_header_protection() -> None:
    near, far = pairs(CipherSuite.AES_128_GCM_SHA256)
    before = near.send.aead, near.recv.aead, near.send.hp, near.recv.hp
    near.update_key()
    assert near._update_key_requested
    assert (near.send.key_phase, near.recv.key_phase) == (0, 0)
    near._update_key("local_update")
    assert near.__dict__["_update_key_requested"] is False
    assert (near.send.key_phase, near.recv.key_phase) == (1, 1)
    assert near.send.aead is not before[0]
    assert near.recv.aead is not before[1]
    assert (near.send.hp, near.recv.hp) == before[2:]
    header = bytes((0x45,)) + CONNECTION_ID + b"\0\1"
    packet = near.encrypt_packet(header, b"some frames of this packet", 1)
    assert far.decrypt_packet(packet, 9, 1)[2] == 1  # aioquic follows the peer's phase
    assert (far.send.key_phase, far.recv.key_phase) == (1, 1)


# --- packet spaces and recovery ---


def test_attributes_of_a_packet_space() -> None:
    space = QuicPacketSpace()
    assert space.ack_at is None
    assert (space.expected_packet_number, space.largest_received_packet) == (0, -1)
    assert space.largest_received_time is None
    assert (space.ack_eliciting_in_flight, space.largest_acked_packet) == (0, 0)
    assert space.sent_packets == {}
    assert list(space.ack_queue) == []
    assert QuicPacketSpace(is_application_data=True).is_application_data


def sent_runs() -> list[SentRun]:
    """Return what the bulk path has sent, as it waits to be acknowledged."""
    network = Network()
    network.weather = Weather(mtu=1200)
    network.run_for(0.1)
    network.weather = Weather(loss=1.0)
    stream_id = network.client.open()
    network.client.send(stream_id, bytes(9_000), fin=True)
    network.client.pump(network.now)
    packets: list[Any] = list(
        network.client.connection._spaces[Epoch.ONE_RTT].sent_packets.values()
    )
    return [packet for packet in packets if not isinstance(packet, QuicSentPacket)]


def one_by_one(run: SentRun) -> list[SentRun]:
    """Return a run's packets, each as one."""
    numbers = range(run.first_number + 1, run.packet_number + 1)
    return [*(run.cut(number) for number in numbers), run]


def test_a_sent_run_has_all_that_aioquic_reads_of_a_packet() -> None:
    """In recovery, congestion control and `_flush_builder`, whatever it is called there."""
    (run,) = sent_runs()
    assert len(run.sizes) > 5
    assert set(run.sizes[:-1]) == {run.datagram_octets}
    assert run.packet_number - run.first_number + 1 == len(run.sizes)
    theirs = QuicSentPacket(
        epoch=Epoch.ONE_RTT,
        in_flight=True,
        is_ack_eliciting=True,
        is_crypto_packet=False,
        packet_number=run.first_number + len(run.sizes) - 1,
        packet_type=QuicPacketType.ONE_RTT,
        sent_time=run.sent_time,
        sent_bytes=sum(run.sizes),
    )
    for field in fields(QuicSentPacket):
        value: Any = getattr(run, field.name)
        if field.name == "delivery_handlers":
            ((handler, arguments),) = value
            assert callable(handler)
            assert arguments == (0, 9_000, True)
        else:
            expected: Any = getattr(theirs, field.name)
            assert value == expected or (value, expected) == ((), []), field.name


def test_who_looks_at_what_is_outstanding() -> None:
    """Whom runs, and their number for that of their packets, are made to suit: aioquic asks of the
    count only whether it is 0, and takes packets for lost without a congestion event when it
    repeats one for a probe timeout."""
    functions = [
        node
        for module in (recovery, quic)
        for node in ast.walk(ast.parse(inspect.getsource(module)))
        if isinstance(node, ast.FunctionDef)
    ]

    def using(name: str) -> set[str]:
        return {one.name for one in functions if name in ast.unparse(one)}

    assert using("sent_packets") == {
        "__init__",
        "_detect_loss",
        "_on_packets_lost",
        "discard_space",
        "on_ack_received",
        "on_packet_sent",
        "reschedule_data",
    }
    assert using("ack_eliciting_in_flight") == {
        "__init__",
        "_on_packets_lost",
        "discard_space",
        "get_loss_detection_time",
        "on_ack_received",
        "on_packet_sent",
    }
    assert "completed_address_validation or ack_eliciting_in_flight:" in inspect.getsource(
        recovery.QuicPacketRecovery.get_loss_detection_time
    )
    assert using("congestion_event=False") == {"reschedule_data"}
    lost = inspect.getsource(recovery.QuicPacketRecovery._on_packets_lost)
    assert "del space.sent_packets[packet.packet_number]" in lost


def attributes_of(module: ModuleType, *names: str) -> set[str]:
    """Return what a module's code reads or calls of the objects it calls so."""
    found = set()
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.Attribute):
            value = node.value
            if (isinstance(value, ast.Name) and value.id in names) or (
                isinstance(value, ast.Attribute) and value.attr in names
            ):
                found.add(node.attr)
    return found


def test_what_aioquic_reads_of_packets_is_known() -> None:
    for module in (recovery, quic, packet_builder):
        known = {field.name for field in fields(QuicSentPacket)}
        read = attributes_of(module, "packet", "_packet", "sent_packet") - {"QuicSentPacket"}
        assert read - known <= {"split"}, module


@pytest.mark.parametrize("algorithm", CongestionControl)
def test_congestion_control_takes_a_run_for_its_packets(algorithm: CongestionControl) -> None:
    config = TransportConfig(congestion_control=algorithm)
    ours, theirs = (
        HeldConnection(
            configuration=quic_configuration(config, is_client=True), transport_config=config
        )._loss._cc
        for _ in range(2)
    )
    (run,) = sent_runs()
    run.sent_time = 1.0
    together: Any = copy(run)
    packets: list[Any] = one_by_one(run)
    assert len(packets) > 5
    for is_lost in (False, True):
        ours.on_packet_sent(packet=together)
        for packet in packets:
            theirs.on_packet_sent(packet=packet)
        assert values(ours) == values(theirs)
        assert ours.bytes_in_flight == together.sent_bytes
        if is_lost:
            ours.on_packets_lost(now=1.2, packets=[together])
            theirs.on_packets_lost(now=1.2, packets=packets)
        else:
            ours.on_packet_acked(now=1.1, packet=together)
            for packet in packets:
                theirs.on_packet_acked(now=1.1, packet=packet)
            ours.on_rtt_measurement(now=1.1, rtt=0.1)
            theirs.on_rtt_measurement(now=1.1, rtt=0.1)
        assert values(ours) == values(theirs)
        assert ours.bytes_in_flight == 0


def values(of: object) -> dict[str, Any]:
    return {name: value for name, value in vars(of).items() if isinstance(value, int | float)}


# --- a connection ---


@pytest.mark.parametrize(
    ("method", "parameters"),
    [
        ("_assert_stream_can_receive", ["self", "frame_type", "stream_id"]),
        ("_get_or_create_stream", ["self", "frame_type", "stream_id"]),
        ("_get_or_create_stream_for_send", ["self", "stream_id"]),
        ("_payload_received", ["self", "context", "plain", "crypto_frame_required"]),
        ("_idle_timeout", ["self"]),
        ("_stream_can_receive", ["self", "stream_id"]),
        ("close", ["self", "error_code", "frame_type", "reason_phrase"]),
        ("datagrams_to_send", ["self", "now"]),
        ("receive_datagram", ["self", "data", "addr", "now"]),
        ("request_key_update", ["self"]),
    ],
)
def test_methods_overridden_or_called(method: str, parameters: list[str]) -> None:
    assert list(inspect.signature(getattr(QuicConnection, method)).parameters) == parameters


def test_attributes_of_a_connection() -> None:
    connection = Network(Kind.PLAIN, Kind.PLAIN).client.connection
    assert {
        "_ack_delay",
        "_ack_eliciting_sent_since_receipt",
        "_close_at",
        "_close_pending",
        "_cryptos",
        "_events",
        "_handshake_confirmed",
        "_host_cids",
        "_is_client",
        "_local_max_data",
        "_loss",
        "_network_paths",
        "_pacing_at",
        "_packet_number",
        "_peer_cid",
        "_probe_pending",
        "_quic_logger",
        "_remote_max_data",
        "_remote_max_data_used",
        "_spaces",
        "_spin_bit",
        "_spin_highest_pn",
        "_streams",
        "_streams_queue",
        "_version",
        "host_cid",
    } <= vars(connection).keys()
    assert "_time_of_last_sent_ack_eliciting_packet" in vars(connection._loss)
    assert {"bytes_in_flight", "congestion_window"} <= vars(connection._loss._cc).keys()
    path = connection._network_paths[0]
    assert {"addr", "is_validated", "bytes_sent", "bytes_received"} <= vars(path).keys()
    assert path.is_validated
    assert path.addr == ("server", 4433)
    assert connection._close_at is not None
    assert connection.host_cid == connection._host_cids[0].cid
    keys = connection._cryptos[Epoch.ONE_RTT]
    assert keys.send.is_valid()
    assert keys.recv.is_valid()


def test_a_client_does_not_follow_the_servers_choice_among_its_ids() -> None:
    """It's why the reader does; a server follows."""
    network = Network(Kind.PLAIN, Kind.PLAIN)
    network.run_for(0.1)
    client, server = network.client.connection, network.server.connection
    before, server_before = client.host_cid, server.host_cid
    server.change_connection_id()
    client.change_connection_id()
    server.send_ping(1)
    client.send_ping(1)
    network.run_for(0.5)
    assert client.host_cid == before
    assert before not in {one.cid for one in client._host_cids}
    assert server.host_cid != server_before
    assert server.host_cid in {one.cid for one in server._host_cids}


def test_streams_that_a_peer_opens_are_queued_in_order() -> None:
    connection = Network(Kind.PLAIN, Kind.PLAIN).client.connection
    known = len(connection._streams_queue)
    stream = connection._get_or_create_stream(0x08, 11)
    assert [one.stream_id for one in connection._streams_queue[known:]] == [3, 7, 11]
    assert connection._streams_queue[-1] is stream
    known = len(connection._streams_queue)
    assert connection._get_or_create_stream(0x08, 7) in connection._streams_queue[:known]
    assert len(connection._streams_queue) == known


def test_the_context_of_a_payload() -> None:
    assert [field.name for field in fields(QuicReceiveContext)] == [
        "epoch",
        "host_cid",
        "network_path",
        "quic_logger_frames",
        "time",
        "version",
    ]


def test_a_payload_is_read_by_aioquic_as_from_a_packet() -> None:
    connection = Network(Kind.PLAIN, Kind.PLAIN).client.connection
    context = QuicReceiveContext(
        epoch=Epoch.ONE_RTT,
        host_cid=connection.host_cid,
        network_path=connection._network_paths[0],
        quic_logger_frames=None,
        time=5.0,
        version=connection._version,
    )
    assert connection._payload_received(context, b"\x01") == (True, False)  # PING
    assert connection._payload_received(context, bytes(4)) == (False, True)  # PADDING
    with pytest.raises(quic.QuicConnectionError) as caught:
        connection._payload_received(context, b"")
    assert caught.value.error_code == QuicErrorCode.PROTOCOL_VIOLATION


def test_aioquic_writes_two_octets_of_a_packet_number() -> None:
    """A batch in flight is far smaller than what two octets tell apart."""
    assert packet_builder.PACKET_NUMBER_SEND_SIZE == 2


# --- streams ---


def test_what_aioquic_uses_of_the_halves_of_a_stream_is_known() -> None:
    """Ours inherit the rest; what is named here is either overridden or keeps its meaning."""
    assert attributes_of(quic, "sender") == {
        "buffer_is_empty",
        "get_frame",
        "get_reset_frame",
        "highest_offset",
        "next_offset",
        "on_data_delivery",
        "on_reset_delivery",
        "reset",
        "reset_pending",
        "write",
    }
    assert attributes_of(quic, "receiver") == {
        "get_stop_frame",
        "handle_frame",
        "handle_reset",
        "highest_offset",
        "on_stop_sending_delivery",
        "starting_offset",
        "stop",
        "stop_pending",
    }
    assert {"is_finished", "is_blocked", "max_stream_data_remote", "max_stream_data_local"} <= (
        vars(QuicStream(stream_id=0)).keys() | {"is_finished"}
    )


def test_what_our_halves_share_with_what_they_inherit_keeps_its_name() -> None:
    assert {
        "_acked_fin",
        "_buffer_fin",
        "_buffer_start",
        "_buffer_stop",
        "_pending_eof",
        "_reset_error_code",
    } <= vars(QuicStreamSender(3, writable=True)).keys()
    assert {"_buffer_start", "_final_size"} <= vars(QuicStreamReceiver(3, readable=True)).keys()


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [(ReferencingSender, QuicStreamSender), (PlacingReceiver, QuicStreamReceiver)],
)
def test_methods_of_the_halves_are_called_alike(ours: type, theirs: type) -> None:
    assert issubclass(ours, theirs)
    for name, method in inspect.getmembers(theirs, inspect.isfunction):
        if not name.startswith("_"):
            assert list(inspect.signature(getattr(ours, name)).parameters) == list(
                inspect.signature(method).parameters
            ), name


class Owner:
    """What a sender tells its connection."""

    is_bulk_at_work = False

    def on_sendable(self, sender: ReferencingSender, *, is_urgent: bool) -> None:
        """Nothing follows: aioquic's writer asks."""


def test_our_sender_gives_the_frames_of_aioquics() -> None:
    ours, theirs = ReferencingSender(3, Owner()), QuicStreamSender(3, writable=True)
    for sender in (ours, theirs):
        sender.write(b"abcdefghij")
        sender.write(b"klm", end_stream=True)
    for size, limit in (
        (4, None),
        (100, 6),
        (100, 6),
        (0, None),
        (-1, None),
        (5, 100),
        (100, None),
    ):
        assert ours.next_offset == theirs.next_offset
        assert ours.get_frame(size, limit) == theirs.get_frame(size, limit), (size, limit)
        assert ours.highest_offset == theirs.highest_offset
        assert ours.buffer_is_empty == (not ours.has_pending)
    assert ours.get_frame(100) is theirs.get_frame(100) is None
    for sender in (ours, theirs):
        sender.on_data_delivery(QuicDeliveryState.ACKED, 0, 4, False)
        sender.on_data_delivery(QuicDeliveryState.LOST, 11, 13, True)
        sender.on_data_delivery(QuicDeliveryState.LOST, 4, 6, False)
        sender.on_data_delivery(QuicDeliveryState.ACKED, 6, 11, False)
        assert not sender.buffer_is_empty
    for size in (100, 1, 100):
        assert ours.next_offset == theirs.next_offset
        assert ours.get_frame(size) == theirs.get_frame(size)
    for sender in (ours, theirs):
        sender.on_data_delivery(QuicDeliveryState.ACKED, 4, 6, False)
        sender.on_data_delivery(QuicDeliveryState.ACKED, 11, 12, False)
        assert not sender.is_finished
        sender.on_data_delivery(QuicDeliveryState.ACKED, 12, 13, True)
        assert sender.is_finished


def test_our_sender_resets_as_aioquics_does() -> None:
    ours, theirs = ReferencingSender(3, Owner()), QuicStreamSender(3, writable=True)
    for sender in (ours, theirs):
        sender.write(b"abcdef")
        sender.get_frame(2)
        sender.reset(9)
        assert sender.reset_pending
        assert sender.buffer_is_empty
        sender.on_data_delivery(QuicDeliveryState.LOST, 0, 2, False)
        assert sender.buffer_is_empty
    assert ours.get_reset_frame() == theirs.get_reset_frame()
    for sender in (ours, theirs):
        sender.on_reset_delivery(QuicDeliveryState.LOST)
        assert sender.reset_pending
        sender.on_reset_delivery(QuicDeliveryState.ACKED)
        assert sender.is_finished
        with pytest.raises(RuntimeError, match="after the stream was reset"):
            sender.write(b"x")


def test_a_stream_of_aioquics_takes_other_halves() -> None:
    """They are looked up at each use: nothing keeps a half, or a method of it."""
    stream = QuicStream(stream_id=3, readable=False)
    stream.sender = sender = ReferencingSender(3, Owner())
    assert not stream.is_finished
    sender.write(b"", end_stream=True)
    assert sender.get_frame(0) == QuicStreamFrame(data=b"", fin=True, offset=0)
    sender.on_data_delivery(QuicDeliveryState.ACKED, 0, 0, True)
    assert stream.is_finished


def test_nothing_else_of_aioquics_inside_is_used() -> None:
    """Each private name that the bulk path reads of others' objects is named in this file."""
    here = Path(__file__).read_text()
    folder = Path(next(iter(bulk.__path__)))
    own: set[str] = set()
    used: set[str] = set()
    for path in folder.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and node.attr.startswith("_"):
                is_own = isinstance(node.value, ast.Name) and node.value.id == "self"
                (own if is_own else used).add(node.attr)
            elif isinstance(node, ast.FunctionDef):
                own.add(node.name)
    assert {name for name in used if name not in here and name not in own} == set()
