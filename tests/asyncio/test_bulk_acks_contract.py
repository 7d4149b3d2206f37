"""Where the bulk path sends an ACK by itself, nothing else of aioquic's waits to be sent.

Another version of aioquic, which has more to send, fails here.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from typing import TYPE_CHECKING

import pytest
from aioquic.quic.connection import QuicConnection
from aioquic.quic.packet_builder import QuicPacketBuilder
from aioquic.tls import Epoch

from moqt.asyncio.bulk.connection import BulkConnection
from tests.asyncio.bulk_pair import Network

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture(autouse=True)
def no_leaks() -> None:
    """Nothing here has a task or a socket."""


def attributes(name: str) -> set[str]:
    """Return what `_write_application` reads or calls of an object."""
    source = textwrap.dedent(inspect.getsource(QuicConnection._write_application))
    return {
        node.attr
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == name
    }


def test_all_that_aioquic_may_send_is_known() -> None:
    assert {name for name in attributes("self") if not name.startswith("_write_")} == {
        # looked at by `_has_more_than_acks`
        "_crypto_streams",
        "_datagrams_pending",
        "_handshake_done_pending",
        "_host_cids",
        "_ping_pending",
        "_probe_pending",
        "_retire_connection_ids",
        "_streams",
        "_streams_blocked_pending",
        "_streams_queue",
        # of no account where the bulk path is at work, or said of what is sent
        "_configuration",
        "_cryptos",
        "_handshake_complete",
        "_is_client",
        "_logger",
        "_loss",
        "_pacing_at",
        "_remote_max_data",
        "_remote_max_data_used",
        "_remote_max_streams_bidi",
        "_remote_max_streams_uni",
        "_spaces",
        "_stream_limit",
        "_streams_blocked_bidi",
        "_streams_blocked_uni",
    }
    assert attributes("network_path") == {
        "is_validated",
        "local_challenge_sent",
        "remote_challenges",
        "validation_deadline",
    }
    assert attributes("stream") == {
        "is_blocked",
        "is_finished",
        "max_stream_data_remote",
        "receiver",
        "sender",
        "stream_id",
    }
    assert attributes("stream.receiver") == {"stop_pending"}
    assert attributes("stream.sender") == {"buffer_is_empty", "highest_offset", "reset_pending"}


@pytest.mark.parametrize(
    ("method", "parameters"),
    [
        (QuicConnection._write_ack_frame, ["self", "builder", "space", "now"]),
        (QuicConnection._flush_builder, ["self", "builder", "network_path", "peer_cid", "now"]),
        (QuicPacketBuilder.start_packet, ["self", "packet_type", "crypto"]),
    ],
)
def test_methods_called(method: Callable[..., object], parameters: list[str]) -> None:
    assert list(inspect.signature(method).parameters) == parameters


def connected() -> tuple[Network, BulkConnection]:
    """Return a server, at rest, to which one stream of a client is open."""
    network = Network()
    network.run_for(0.1)
    network.client.send(network.client.open(), bytes(1_000))
    network.client.send(network.client.open(bidirectional=True), bytes(10))
    network.run_for(5.0)
    connection = network.server.connection
    assert isinstance(connection, BulkConnection)
    return network, connection


def stream_of(connection: QuicConnection, *, bidirectional: bool) -> int:
    return next(one for one in connection._streams if one & 2 == (0 if bidirectional else 2))


def credit_stream(connection: BulkConnection) -> None:
    stream = connection._streams[stream_of(connection, bidirectional=False)]
    stream.max_stream_data_local += 1


def credit(connection: BulkConnection) -> None:
    connection._local_max_data.value += 1


def allow_streams(connection: BulkConnection) -> None:
    connection._local_max_streams_uni.value *= 2


def block_streams(connection: BulkConnection) -> None:
    connection._streams_blocked_pending = True


def finish(connection: BulkConnection) -> None:
    stream = connection._streams[stream_of(connection, bidirectional=False)]
    stream.receiver.is_finished = True


def probe(connection: BulkConnection) -> None:
    connection._probe_pending = True


def confirm(connection: BulkConnection) -> None:
    connection._handshake_done_pending = True


def send_crypto(connection: BulkConnection) -> None:
    connection._crypto_streams[Epoch.ONE_RTT].sender.write(b"a ticket")


NEWS: dict[str, Callable[[BulkConnection], object]] = {
    "a PING": lambda connection: connection.send_ping(1),
    "a probe": probe,
    "a DATAGRAM": lambda connection: connection.send_datagram_frame(b"unreliable"),
    "HANDSHAKE_DONE": confirm,
    "CRYPTO": send_crypto,
    "NEW_CONNECTION_ID": lambda connection: connection._replenish_connection_ids(),
    "RETIRE_CONNECTION_ID": lambda connection: connection._retire_connection_ids.append(0),
    "PATH_RESPONSE": lambda c: c._network_paths[0].remote_challenges.append(bytes(8)),
    "STREAMS_BLOCKED": block_streams,
    "MAX_DATA": credit,
    "MAX_STREAMS": allow_streams,
    "MAX_STREAM_DATA": credit_stream,
    "STOP_SENDING": lambda c: c.stop_stream(stream_of(c, bidirectional=False), 1),
    "RESET_STREAM": lambda c: c.reset_stream(stream_of(c, bidirectional=True), 1),
    "STREAM": lambda c: c.send_stream_data(stream_of(c, bidirectional=True), b"reply"),
    "a finished stream": finish,
}


@pytest.mark.parametrize("news", NEWS)
def test_aioquic_is_asked_when_it_has_something_to_send(news: str) -> None:
    network, connection = connected()
    assert connection._is_bulk_possible()
    assert not connection._has_more_than_acks()
    if news == "NEW_CONNECTION_ID":
        connection._host_cids.pop()
    NEWS[news](connection)
    assert connection._has_more_than_acks()
    connection._spaces[Epoch.ONE_RTT].ack_at = network.now
    assert connection.ack_alone(network.now, network.now) == []
    network.server.pump(network.now)
    assert not connection._has_more_than_acks()


def test_an_ack_leaves_when_it_is_due_and_nothing_before() -> None:
    network, connection = connected()
    space = connection._spaces[Epoch.ONE_RTT]
    space.ack_at = network.now + 0.001
    assert connection.datagrams_to_send(network.now) == []
    number = connection._packet_number
    ((datagram, address),) = connection.datagrams_to_send(network.now + 0.001)
    assert address == connection._network_paths[0].addr
    assert len(datagram) < 100
    assert vars(space)["ack_at"] is None
    assert connection._packet_number == number + 1
    before = network.client.connection._spaces[Epoch.ONE_RTT].largest_acked_packet
    network.client.receive([datagram], network.server.address, network.now + 0.001)
    assert network.client.connection._close_event is None
    assert network.client.connection._spaces[Epoch.ONE_RTT].largest_acked_packet >= before
    assert connection.datagrams_to_send(network.now + 0.002) == []


def test_an_ack_goes_alone_only_if_it_is_what_was_due() -> None:
    network, connection = connected()
    space = connection._spaces[Epoch.ONE_RTT]
    due_at = space.ack_at = network.now
    assert connection.ack_alone(due_at - 0.001, network.now) == []
    ((datagram, address),) = connection.ack_alone(due_at, network.now)
    assert address == connection._network_paths[0].addr
    assert len(datagram) < 100
    assert connection.ack_alone(due_at, network.now) == []
    network.client.receive([datagram], network.server.address, network.now)
    assert network.client.connection._close_event is None
