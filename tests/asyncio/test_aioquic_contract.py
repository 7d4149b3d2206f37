"""What moqt.asyncio.connection uses of aioquic's inside is what it takes it for.

A version of aioquic that changes any of it fails here, by name, rather than in a transfer.
"""

from __future__ import annotations

import ast
import inspect
from importlib.metadata import version
from textwrap import dedent

import pytest
from aioquic import tls
from aioquic.quic import connection as quic
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.congestion.base import QuicCongestionControl
from aioquic.quic.connection import Limit, QuicConnection
from aioquic.quic.crypto import CryptoPair
from aioquic.quic.recovery import (
    K_PACKET_THRESHOLD,
    K_TIME_THRESHOLD,
    QuicPacketNumberWindow,
    QuicPacketPacer,
    QuicPacketRecovery,
    QuicPacketSpace,
)
from aioquic.quic.stream import QuicStream

from moqt.asyncio.config import CongestionControl, TransportConfig
from moqt.asyncio.connection import HeldConnection, quic_configuration
from moqt.asyncio.cubic import Cubic
from moqt.asyncio.pacing import BurstPacer
from moqt.asyncio.recovery import _Numbered


def stock() -> QuicConnection:
    return QuicConnection(configuration=QuicConfiguration(alpn_protocols=["x"]))


def test_the_version_is_one_that_was_looked_at() -> None:
    assert version("aioquic").startswith("1.7.")


@pytest.mark.parametrize(
    ("method", "parameters"),
    [
        ("_write_connection_limits", ["self", "builder", "space"]),
        ("_write_stream_limits", ["self", "builder", "space", "stream"]),
        ("_handle_stop_sending_frame", ["self", "context", "frame_type", "buf"]),
        ("_parse_transport_parameters", ["self", "data", "from_session_ticket"]),
        ("_probe_preferred_address", ["self"]),
        ("_get_or_create_stream_for_send", ["self", "stream_id"]),
        ("_stream_can_receive", ["self", "stream_id"]),
        ("_on_connection_limit_delivery", ["self", "delivery", "limit"]),
        ("_on_max_stream_data_delivery", ["self", "delivery", "stream"]),
        ("_idle_timeout", ["self"]),
    ],
)
def test_methods_overridden_or_called(method: str, parameters: list[str]) -> None:
    assert list(inspect.signature(getattr(QuicConnection, method)).parameters) == parameters


def test_attributes_of_a_connection() -> None:
    connection = stock()
    for limit in (
        connection._local_max_data,
        connection._local_max_streams_bidi,
        connection._local_max_streams_uni,
    ):
        assert isinstance(limit, Limit)
        assert {"frame_type", "value", "sent", "used"} <= vars(limit).keys()
    assert {
        "_close_event",
        "_datagrams_pending",
        "_events",
        "_handshake_confirmed",
        "_loss",
        "_max_datagram_size",
        "_network_paths",
        "_peer_cid",
        "_remote_max_data",
        "_remote_max_data_used",
        "_remote_max_datagram_frame_size",
        "_remote_max_streams_bidi",
        "_remote_max_streams_uni",
        "_remote_preferred_address",
        "_spaces",
        "_state",
        "_streams",
    } <= vars(connection).keys()
    assert {"_pacer", "_pto_count", "_cc"} <= vars(connection._loss).keys()
    assert "_max_datagram_size" in vars(connection._loss._cc)
    assert connection._loss.congestion_window > connection._loss.bytes_in_flight == 0
    assert tls.Epoch.ONE_RTT not in connection._spaces
    assert quic.END_STATES >= {quic.QuicConnectionState.DRAINING}


def test_what_loss_recovery_is_built_on() -> None:
    """moqt.asyncio.recovery."""
    loss = stock()._loss
    assert type(loss) is QuicPacketRecovery
    assert {
        "_cc",
        "_logger",
        "_pacer",
        "_pto_count",
        "_quic_logger",
        "_rtt_initial",
        "_rtt_initialized",
        "_rtt_latest",
        "_rtt_min",
        "_rtt_smoothed",
        "_send_probe",
        "peer_completed_address_validation",
        "spaces",
    } <= vars(loss).keys()
    assert list(inspect.signature(QuicPacketRecovery.__init__).parameters) == [
        "self",
        "congestion_control_algorithm",
        "initial_rtt",
        "max_datagram_size",
        "peer_completed_address_validation",
        "send_probe",
        "logger",
        "quic_logger",
    ]
    for method, parameters in {
        "on_ack_received": ["self", "ack_rangeset", "ack_delay", "now", "space"],
        "_detect_loss": ["self", "now", "space"],
        "_on_packets_lost": [
            "self",
            "congestion_event",
            "now",
            "packets",
            "persistent_congestion",
            "space",
        ],
        "_in_persistent_congestion": ["self", "packets"],
        "on_loss_detection_timeout": ["self", "now"],
    }.items():
        signature = inspect.signature(getattr(QuicPacketRecovery, method))
        assert list(signature.parameters) == parameters
    space = QuicPacketSpace()
    assert {
        "ack_eliciting_in_flight",
        "sent_packets",
        "largest_acked_packet",
        "loss_time",
    } <= vars(space).keys()
    # it is looked at in order
    assert isinstance(space.sent_packets, dict)
    # what `_detect_loss` has of it; where it asks, of lost packets, for numbers without a gap
    assert (K_PACKET_THRESHOLD, K_TIME_THRESHOLD) == (3, 9 / 8)
    source = inspect.getsource(QuicPacketRecovery._in_persistent_congestion)
    asked = {
        node.attr
        for node in ast.walk(ast.parse(dedent(source)))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "packet"
    }
    assert asked == set(_Numbered._fields)
    assert "get_probe_timeout() * K_PERSISTENT_CONGESTION_THRESHOLD" in source


def test_a_packet_far_below_the_largest_is_taken_for_a_duplicate() -> None:
    """Which is why `ReceivedNumbers`, of more packets, stands in for that."""
    received = QuicPacketSpace().received_packets
    received.add(1000)
    assert 1000 - 128 in received
    assert 1000 - 128 + 1 not in received


def test_what_a_window_of_packet_numbers_is_asked() -> None:
    """moqt.asyncio.bulk.received."""
    asked = {name for name, value in vars(QuicPacketNumberWindow).items() if callable(value)}
    assert asked == {"__init__", "add", "__contains__"}


def test_what_congestion_control_is_called_with() -> None:
    """moqt.asyncio.cubic."""
    abstract = QuicCongestionControl.__abstractmethods__
    assert abstract == {
        "on_packet_acked",
        "on_packet_sent",
        "on_packets_expired",
        "on_packets_lost",
        "on_persistent_congestion",
        "on_rtt_measurement",
    }
    for method in abstract:
        theirs = inspect.signature(getattr(QuicCongestionControl, method))
        assert (
            theirs.parameters.keys() == inspect.signature(getattr(Cubic, method)).parameters.keys()
        )
    source = inspect.getsource(QuicPacketRecovery.on_ack_received)
    # the window moves after the packets of an ACK were counted, and before its losses
    assert (
        source.index("on_packet_acked")
        < source.index("on_rtt_measurement")
        < source.index("update_rate")
        < source.index("_detect_loss")
    )
    assert "rtt=latest_rtt" in source  # not smoothed, not reduced by the ACK's delay


def test_keys_to_read_application_data_come_with_the_handshake() -> None:
    """`HeldConnection` keeps datagrams until then."""
    assert not CryptoPair().recv.is_valid()


def test_attributes_of_a_stream() -> None:
    stream = QuicStream(stream_id=3, max_stream_data_local=10, max_stream_data_remote=20)
    assert stream.max_stream_data_local == stream.max_stream_data_local_sent == 10
    assert stream.max_stream_data_remote == 20
    sender, receiver = stream.sender, stream.receiver
    assert (sender.highest_offset, sender._buffer_stop, receiver.highest_offset) == (0, 0, 0)
    assert sender._buffer_fin is None
    assert sender._reset_error_code is None
    assert receiver._final_size is None
    sender.write(b"abc")
    assert (sender.highest_offset, sender._buffer_stop) == (0, 3)
    frame = sender.get_frame(2)
    assert frame is not None
    assert (sender.highest_offset, sender._buffer_stop) == (2, 3)
    sender.write(b"", end_stream=True)
    assert sender._buffer_fin == 3


def test_a_reset_sender_sends_nothing_of_its_rest() -> None:
    """What `_forget_unsent` subtracts is what will never be sent."""
    sender = QuicStream(stream_id=3).sender
    sender.write(b"abcdef")
    sender.get_frame(2)
    sender.reset(0x52E4A40FA8DB)
    frame = sender.get_reset_frame()
    assert frame.final_size == sender.highest_offset == 2
    assert frame.error_code == 0x52E4A40FA8DB


def test_the_pacer_has_the_methods_of_aioquics() -> None:
    for name in ("next_send_time", "update_after_send", "update_rate"):
        theirs = inspect.signature(getattr(QuicPacketPacer, name))
        assert (
            theirs.parameters.keys()
            == inspect.signature(getattr(BurstPacer, name)).parameters.keys()
        )
    assert isinstance(stock()._loss._pacer, QuicPacketPacer)


@pytest.mark.parametrize("algorithm", CongestionControl)
def test_a_held_connection_announces_its_own_limits(algorithm: CongestionControl) -> None:
    config = TransportConfig(
        connection_window_octets=7, stream_window_octets=5, congestion_control=algorithm
    )
    connection = HeldConnection(
        configuration=quic_configuration(config, is_client=True), transport_config=config
    )
    assert connection._local_max_data.value == 7
    assert connection._local_max_stream_data_uni == 5
    assert connection._local_max_stream_data_bidi_remote == 5
    assert connection._local_max_streams_uni.value == config.max_unidirectional_streams
    assert connection._local_max_streams_bidi.value == config.max_bidirectional_streams
    assert isinstance(connection._loss._pacer, BurstPacer)
    assert connection.datagram_size == 1200


def test_stock_aioquic_still_needs_holding_back() -> None:
    """When this fails, aioquic may have got flow control that follows the reader."""
    source = inspect.getsource(QuicConnection._write_connection_limits)
    assert "max_data.value *= 2" in source
