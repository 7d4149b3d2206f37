"""Transfers over the bulk path, in memory: whoever the peer is, whatever the network does."""

from __future__ import annotations

import gc
import random
import weakref
from dataclasses import replace

import pytest
from aioquic.tls import CipherSuite, Epoch

from moqt.asyncio.bulk import writer
from moqt.asyncio.bulk.connection import BulkConnection
from moqt.asyncio.bulk.sender import ReferencingSender
from moqt.asyncio.config import CongestionControl, TransportConfig
from tests.asyncio.bulk_pair import CLIENT, Kind, Network, Peer, Weather

ROUGH = Weather(loss=0.02, repeat=0.03, late=0.05, corrupt=0.02, blocked=0.1, cut=0.2, mtu=1500)

pairs = pytest.mark.parametrize(
    ("client", "server"),
    [
        (Kind.BULK, Kind.BULK),
        (Kind.BULK, Kind.HELD),
        (Kind.HELD, Kind.BULK),
        (Kind.BULK, Kind.PLAIN),
        (Kind.PLAIN, Kind.BULK),
    ],
    ids=lambda kind: str(kind.value),
)


@pytest.fixture(autouse=True)
def no_leaks() -> None:
    """Nothing here has a task or a socket."""


class Transfer:
    """Streams of given sizes from both sides, FIN with the last octets or alone."""

    def __init__(self, network: Network, sizes: list[int], *, seed: int = 1) -> None:
        self.network = network
        self.expected: list[tuple[Peer, int, bytes]] = []
        dice = random.Random(seed)
        for number, size in enumerate(sizes):
            for source, target in (
                (network.client, network.server),
                (network.server, network.client),
            ):
                data = dice.randbytes(size)
                stream_id = source.open()
                cuts = sorted(dice.randrange(size + 1) for _ in range(number % 4))
                for start, stop in zip([0, *cuts], [*cuts, size], strict=True):
                    source.send(stream_id, data[start:stop], fin=number % 2 == 0 and stop == size)
                    if number % 2 == 0 and stop == size:
                        break
                if number % 2:
                    source.send(stream_id, b"", fin=True)
                self.expected.append((target, stream_id, data))

    @property
    def octets(self) -> int:
        return sum(target.received_octets for target in self.network.peers)

    @property
    def share(self) -> float:
        return self.octets / sum(len(data) for _, _, data in self.expected)

    def is_done(self) -> bool:
        return all(target.has_all(stream_id) for target, stream_id, _ in self.expected)

    def finish(self) -> None:
        self.network.run(self.is_done)
        for target, stream_id, data in self.expected:
            assert target.received[stream_id] == data
            assert target.final[stream_id] == len(data)
        self.network.settle()
        for peer in self.network.peers:
            assert peer.end is None
            assert peer.connection._close_event is None


SIZES = [0, 1, 70_000, 1_400, 5, 30_000, 150_000]


@pytest.mark.parametrize("is_rough", [False, True], ids=["fair", "rough"])
@pairs
def test_all_arrives_once_whoever_the_peer_is(client: Kind, server: Kind, is_rough: bool) -> None:
    network = Network(client, server, seed=3)
    if is_rough:
        network.weather = replace(ROUGH)
    transfer = Transfer(network, SIZES)
    transfer.finish()
    for peer in network.peers:
        assert (peer.bulk_batches > 0) == isinstance(peer.connection, BulkConnection)


@pytest.mark.parametrize(
    "suite",
    [
        CipherSuite.AES_128_GCM_SHA256,
        CipherSuite.AES_256_GCM_SHA384,
        CipherSuite.CHACHA20_POLY1305_SHA256,
    ],
)
@pytest.mark.parametrize("server", Kind, ids=lambda kind: str(kind.value))
def test_each_cipher_suite(suite: CipherSuite, server: Kind) -> None:
    network = Network(Kind.BULK, server, seed=4, suite=suite)
    network.weather = replace(ROUGH)
    Transfer(network, [40_000, 100_000]).finish()


@pytest.mark.parametrize("algorithm", CongestionControl)
def test_each_congestion_controller(algorithm: CongestionControl) -> None:
    network = Network(seed=5, config=TransportConfig(congestion_control=algorithm))
    network.weather = replace(ROUGH)
    Transfer(network, [200_000]).finish()


@pytest.mark.parametrize(
    ("connection", "stream"), [(3_000, 1_500), (20_000, 3_000), (4_000, 9_000)]
)
@pairs
def test_tiny_windows(client: Kind, server: Kind, connection: int, stream: int) -> None:
    config = TransportConfig(
        connection_window_octets=connection,
        max_connection_window_octets=None,
        stream_window_octets=stream,
        max_stream_window_octets=None,
    )
    network = Network(client, server, seed=6, config=config)
    network.weather = Weather(loss=0.01, mtu=1500)
    Transfer(network, [20_000, 0, 9_000, 3_000]).finish()


def test_a_window_that_opens_late_lets_the_rest_through() -> None:
    config = TransportConfig(
        connection_window_octets=30_000,
        max_connection_window_octets=None,
        stream_window_octets=10_000,
        max_stream_window_octets=None,
    )
    network = Network(seed=7, config=config)
    network.server.credits_at_once = False
    streams = [network.client.open() for _ in range(4)]
    for stream_id in streams:
        network.client.send(stream_id, bytes(25_000), fin=True)
    server = network.server
    network.run(lambda: server.received_octets == 30_000)
    network.run_for(1.0)
    assert server.received_octets == 30_000
    assert max(len(data) for data in server.received.values()) == 10_000
    while not all(server.has_all(stream_id) for stream_id in streams):
        network.run(lambda: bool(server.uncredited))
        server.give_credit()
    network.settle()


@pairs
def test_more_streams_than_the_peer_lets_be_open_at_once(client: Kind, server: Kind) -> None:
    config = TransportConfig(max_unidirectional_streams=6)
    network = Network(client, server, seed=8, config=config)
    network.weather = Weather(loss=0.02, mtu=1500)
    to_server = 30
    source, target = network.client, network.server
    sent: dict[int, bytes] = {}
    while len(sent) < to_server:
        if source.connection.get_next_available_stream_id(is_unidirectional=True) // 4 < (
            source.connection._remote_max_streams_uni
        ):
            stream_id = source.open()
            sent[stream_id] = network.dice.randbytes(700 * len(sent))
            source.send(stream_id, sent[stream_id], fin=True)
            source.pump(network.now)
        else:
            network.step()
    network.run(lambda: all(target.has_all(stream_id) for stream_id in sent))
    assert all(target.received[stream_id] == data for stream_id, data in sent.items())
    network.settle()


# --- keys ---


@pytest.mark.parametrize("by", ["client", "server", "both"])
@pairs
def test_key_updates_in_the_middle(client: Kind, server: Kind, by: str) -> None:
    network = Network(client, server, seed=9)
    network.weather = Weather(loss=0.01, late=0.02, mtu=1500)
    transfer = Transfer(network, [200_000])
    for share in (0.2, 0.5, 0.8):
        network.run(lambda share=share: transfer.share > share)  # type: ignore[misc]
        before = [peer.connection._cryptos[Epoch.ONE_RTT].recv.secret for peer in network.peers]
        for name in ("client", "server") if by == "both" else (by,):
            getattr(network, name).connection.request_key_update()
        network.run(
            lambda before=before: (
                all(  # type: ignore[misc]
                    peer.connection._cryptos[Epoch.ONE_RTT].recv.secret != secret
                    for peer, secret in zip(network.peers, before, strict=True)
                )
                or transfer.is_done()
            )
        )
    transfer.finish()
    assert not network.client.connection._cryptos[Epoch.ONE_RTT]._update_key_requested


@pytest.mark.parametrize("server", Kind, ids=lambda kind: str(kind.value))
def test_keys_are_renewed_by_the_count_of_packets(
    server: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "PACKETS_BY_KEY", 50)
    network = Network(Kind.BULK, server, seed=10)
    network.weather = Weather(mtu=1500)
    data = network.dice.randbytes(600_000)
    stream_id = network.client.open()
    network.client.send(stream_id, data, fin=True)
    secrets = set()

    def is_done() -> bool:
        secrets.add(network.client.connection._cryptos[Epoch.ONE_RTT].send.secret)
        return network.server.has_all(stream_id)

    network.run(is_done)
    assert network.server.received[stream_id] == data
    assert len(secrets) > 3
    network.settle()


def test_keys_are_not_updated_while_nothing_is_sent() -> None:
    """Else the next update would be the second one that the peer has seen nothing of."""
    network = Network(seed=22)
    data = network.dice.randbytes(100_000)
    stream_id = network.client.open()
    network.client.send(stream_id, data, fin=True)
    connection = network.client.connection
    keys = connection._cryptos[Epoch.ONE_RTT]
    controller = connection._loss._cc
    window, controller.congestion_window = controller.congestion_window, 0
    for _ in range(3):
        connection.request_key_update()
        network.client.pump(network.now)
    assert keys._update_key_requested
    assert keys.send.key_phase == 0
    controller.congestion_window = window
    network.run(lambda: network.server.has_all(stream_id))
    assert network.server.received[stream_id] == data
    assert keys.send.key_phase == 1
    network.settle()


# --- paths ---


@pytest.mark.parametrize("who", ["client", "server"])
@pairs
def test_other_connection_ids_in_the_middle(client: Kind, server: Kind, who: str) -> None:
    network = Network(client, server, seed=11)
    network.weather = Weather(loss=0.01, late=0.02, mtu=1500)
    transfer = Transfer(network, [200_000])
    for share in (0.2, 0.5, 0.8):
        network.run(lambda share=share: transfer.share > share)  # type: ignore[misc]
        getattr(network, who).connection.change_connection_id()
    transfer.finish()


@pytest.mark.parametrize("server", Kind, ids=lambda kind: str(kind.value))
def test_a_client_reads_by_the_batch_whichever_of_its_ids_the_server_takes(server: Kind) -> None:
    """As quinn does: it takes another as soon as it has one, and retires the first."""
    network = Network(Kind.BULK, server, seed=23)
    network.weather = Weather(cut=0.0, mtu=1500)
    network.run_for(0.5)
    client = network.client
    for _ in range(3):
        before = {one.cid for one in client.connection._host_cids}
        network.server.connection.change_connection_id()
        data = network.dice.randbytes(100_000)
        stream_id = network.server.open()
        network.server.send(stream_id, data, fin=True)
        client.largest_run = 0
        network.run(lambda stream_id=stream_id: client.has_all(stream_id))  # type: ignore[misc]
        assert client.received[stream_id] == data
        assert client.largest_run > client.held.datagram_size
        assert len(before - {one.cid for one in client.connection._host_cids}) == 1
    network.settle()


@pairs
def test_the_client_moves_to_another_address(client: Kind, server: Kind) -> None:
    network = Network(client, server, seed=12)
    network.weather = Weather(loss=0.01, mtu=1500)
    transfer = Transfer(network, [200_000, 50_000])
    for number, share in enumerate((0.2, 0.5, 0.8)):
        network.run(lambda share=share: transfer.share > share)  # type: ignore[misc]
        network.client.address = (CLIENT[0], 100 + number)
        if number != 1:  # else as a NAT moves it: nobody knows
            network.client.connection.change_connection_id()
    transfer.finish()
    assert network.server.connection.get_peer_address() == network.client.address


def is_bulk_at_work(peer: Peer) -> bool:
    return isinstance(peer.connection, BulkConnection) and peer.connection.is_bulk_at_work


def test_packets_go_by_aioquics_writer_until_a_new_path_is_validated() -> None:
    network = Network(seed=13)
    network.weather = Weather(mtu=1500)
    transfer = Transfer(network, [300_000])
    network.run(lambda: transfer.share > 0.3)
    server = network.server.held
    assert is_bulk_at_work(network.server)
    network.client.address = (CLIENT[0], 77)
    network.run(lambda: server._network_paths[0].addr == network.client.address)
    assert not is_bulk_at_work(network.server)
    network.run(lambda: is_bulk_at_work(network.server))
    transfer.finish()


@pairs
def test_the_path_gets_narrower_and_wider(client: Kind, server: Kind) -> None:
    network = Network(client, server, seed=14)
    network.weather = Weather(mtu=9000)
    Transfer(network, [150_000]).finish()
    network.weather = Weather(mtu=1400)
    Transfer(network, [150_000, 80_000], seed=2).finish()
    network.weather = Weather(mtu=65507)
    Transfer(network, [400_000], seed=3).finish()
    for peer in network.peers:
        if isinstance(peer.connection, BulkConnection):
            assert peer.largest_run > 1400  # several datagrams at once


@pytest.mark.parametrize("kind", [Kind.BULK, Kind.HELD], ids=lambda kind: str(kind.value))
def test_the_last_packet_of_all_is_too_large_for_the_path(kind: Kind) -> None:
    """A PING beside it would get through each time, and hide that the path has become narrow."""
    network = Network(kind, kind, seed=23)
    network.weather = Weather(mtu=9000)
    network.run_for(2.0)
    assert network.client.held.datagram_size > 8000
    network.weather = Weather(mtu=1400)
    data = network.dice.randbytes(5_000)
    stream_id = network.client.open()
    network.client.send(stream_id, data, fin=True)
    began = network.now
    network.run(lambda: network.server.has_all(stream_id))
    assert network.now - began < 3.0
    network.settle()
    assert network.client.held.datagram_size <= 1400


# --- ends of streams ---


@pytest.mark.parametrize("share", [0.0, 0.4])
@pairs
def test_resets_in_the_middle(client: Kind, server: Kind, share: float) -> None:
    network = Network(client, server, seed=15)
    network.weather = replace(ROUGH)
    transfer = Transfer(network, [60_000, 60_000, 60_000])
    for source, target in ((network.client, network.server), (network.server, network.client)):
        stream_id = source.open()
        source.send(stream_id, bytes(300_000))
        if share:
            network.run(
                lambda target=target, stream_id=stream_id: (  # type: ignore[misc]
                    len(target.received.get(stream_id, b"")) > share * 300_000
                )
            )
        source.drop(stream_id, 7)
        network.run(lambda target=target, stream_id=stream_id: stream_id in target.resets)  # type: ignore[misc]
        assert target.resets[stream_id] == 7
        assert not any(target.received.get(stream_id, b""))
    transfer.finish()


@pairs
def test_stops_in_the_middle(client: Kind, server: Kind) -> None:
    network = Network(client, server, seed=16)
    network.weather = replace(ROUGH)
    transfer = Transfer(network, [60_000, 60_000])
    for source, target in ((network.client, network.server), (network.server, network.client)):
        stream_id = source.open()
        source.send(stream_id, bytes(900_000))
        network.run(
            lambda target=target, stream_id=stream_id: (  # type: ignore[misc]
                len(target.received.get(stream_id, b"")) > 20_000
            )
        )
        if target.connection._streams.get(stream_id) is not None:
            if isinstance(target.connection, BulkConnection):
                target.connection.stop(stream_id, 9)
            else:
                target.connection.stop_stream(stream_id, 9)
        network.run(lambda source=source, stream_id=stream_id: stream_id in source.stops)  # type: ignore[misc]
        assert source.stops[stream_id] == 9
    transfer.finish()


@pytest.mark.parametrize("kind", [Kind.BULK, Kind.HELD], ids=lambda kind: str(kind.value))
def test_a_stop_before_anything_came(kind: Kind) -> None:
    """A stream is known as soon as a later one of its kind is."""
    network = Network(kind, kind, seed=24)
    first, second = network.client.open(), network.client.open()
    network.client.send(second, b"second", fin=True)
    network.run(lambda: network.server.has_all(second))
    network.server.held.stop(first, 5)
    network.client.send(first, bytes(500_000))
    network.run(lambda: first in network.client.stops)
    network.settle()


def all_senders(peer: Peer) -> list[ReferencingSender]:
    gc.collect()
    owner: object = peer.connection
    return [
        one
        for one in gc.get_objects()
        if isinstance(one, ReferencingSender) and one._owner is owner
    ]


@pytest.mark.parametrize("is_rough", [False, True], ids=["fair", "rough"])
def test_nothing_is_referred_to_once_it_is_acknowledged(is_rough: bool) -> None:
    network = Network(seed=17)
    network.weather = replace(ROUGH) if is_rough else Weather(mtu=1500)
    transfer = Transfer(network, SIZES)
    reset = network.client.open()
    network.client.send(reset, bytes(100_000))
    written = [weakref.ref(one) for peer in network.peers for one in peer.buffers()]
    assert written
    network.run(lambda: len(network.server.received.get(reset, b"")) > 30_000)
    network.client.drop(reset, 3)
    transfer.finish()
    gc.collect()
    assert [one() for one in written] == [None] * len(written)
    network.client.connection.send_ping(1)  # aioquic discards streams when it writes a packet
    network.server.connection.send_ping(1)
    network.settle()
    for peer in network.peers:
        assert not all_senders(peer)
        assert peer.connection._streams.keys() <= {2, 3}  # control streams
        assert not peer.held._accounts


def test_a_buffer_goes_as_soon_as_it_is_acknowledged() -> None:
    network = Network(seed=18)
    stream_id = network.client.open()
    network.client.send(stream_id, bytes(50_000))
    (first,) = map(weakref.ref, network.client.buffers())
    network.run(lambda: len(network.server.received.get(stream_id, b"")) == 50_000)
    assert first() is not None
    network.settle()
    gc.collect()
    assert first() is None  # though the stream goes on
    network.client.send(stream_id, b"", fin=True)
    network.run(lambda: network.server.has_all(stream_id))
    network.settle()


def test_less_than_a_packet_waits_for_more_while_something_is_in_flight() -> None:
    network = Network(seed=24, config=TransportConfig(max_datagram_octets=1400))
    network.run_for(0.5)
    client, held = network.client, network.client.held
    stream_id = client.open()
    sent: list[int] = []

    def emit(datagrams: memoryview, octets: int, address: object) -> bool:
        sent.append(len(datagrams))
        return client._emit(datagrams, octets, address)

    def write(octets: int, *, goes_on: bool, fin: bool = False) -> list[int]:
        if octets:
            held.append(stream_id, [bytes(octets)], fin)
        sent.clear()
        held.datagrams_to_send(network.now)
        held.write_bulk(network.now, emit, goes_on=goes_on)
        return list(sent)

    size = held.datagram_size
    (alone,) = write(1000, goes_on=True)  # nothing is in flight: nobody would send it later
    assert alone < 1100
    assert write(1000, goes_on=True) == []
    (full,) = write(2 * size, goes_on=True)
    assert full == 2 * size
    for _ in range(writer.MAX_HELD - 1):
        assert write(0, goes_on=True) == []
    assert len(write(0, goes_on=True)) == 1
    assert write(500, goes_on=True) == []
    assert len(write(0, goes_on=False)) == 1
    assert write(500, goes_on=True) == []
    held.drop(stream_id, 1)
    stream_id = client.open()
    assert write(500, goes_on=True) == []
    assert len(write(10, goes_on=True, fin=True)) == 1  # it's the last one
    network.run(lambda: network.server.has_all(stream_id))
    assert len(network.server.received[stream_id]) == 510
    network.settle()


def test_what_waits_for_more_does_not_wait_for_others_for_ever() -> None:
    """Another stream always has more, and mostly fills the congestion window first."""
    network = Network(seed=26, config=TransportConfig(max_datagram_octets=1400))
    network.run_for(0.5)
    client, held = network.client, network.client.held
    small, large = client.open(), client.open()
    for _ in range(400):
        client.send(large, bytes(20_000))
    network.run(lambda: len(network.server.received.get(large, b"")) > 100_000)
    held.append(small, [b"less than a packet"], False)
    network.run(lambda: small in network.server.received)
    assert bytes(network.server.received[small]) == b"less than a packet"
    assert len(network.server.received[large]) < 4_000_000


def test_what_waits_for_more_and_was_lost_before_goes_again() -> None:
    network = Network(seed=25)
    network.run_for(0.5)
    client, held = network.client, network.client.held
    network.weather = Weather(loss=1.0)
    stream_id = client.open()
    held.append(stream_id, [bytes(1000)], False)
    held.datagrams_to_send(network.now)
    held.write_bulk(network.now, client._emit)
    held.append(stream_id, [bytes(1000)], False)
    held.write_bulk(network.now, client._emit, goes_on=True)
    assert held._writer._held  # type: ignore[attr-defined]
    network.weather = Weather()
    network.run(lambda: len(network.server.received.get(stream_id, b"")) == 2000)
    held.append(stream_id, [b""], True)
    network.run(lambda: network.server.has_all(stream_id))
    network.settle()


def test_control_frames_and_datagrams_go_between_the_batches() -> None:
    network = Network(seed=19)
    network.weather = Weather(loss=0.01, repeat=0.5, late=0.1, mtu=1500)
    transfer = Transfer(network, [150_000, 150_000])
    asked: list[tuple[Peer, int]] = []
    for number in range(20):
        network.run(lambda number=number: transfer.share > number / 25)  # type: ignore[misc]
        for source, target in ((network.client, network.server), (network.server, network.client)):
            source.held.queue_datagram(bytes((number,)))
            request = source.open(bidirectional=True)
            source.send(request, bytes(number), fin=True)
            asked.append((target, request))
    network.run(lambda: all(target.has_all(request) for target, request in asked))
    transfer.finish()
    for peer in network.peers:
        assert len(peer.datagrams) == len(set(peer.datagrams)) > 10  # no packet is read twice


def test_a_close_in_the_middle_ends_both_sides() -> None:
    network = Network(seed=20)
    transfer = Transfer(network, [400_000])
    network.run(lambda: transfer.share > 0.3)
    network.client.connection.close(error_code=0x42, reason_phrase="enough")
    network.run(lambda: network.server.connection._close_event is not None)
    event = network.server.connection._close_event
    assert event is not None
    assert event.error_code == 0x42
    before = network.server.bulk_batches
    network.run_for(1.0)
    assert network.server.bulk_batches == before


def test_a_silent_peer_ends_in_the_idle_timeout() -> None:
    network = Network(seed=21)
    transfer = Transfer(network, [400_000])
    network.run(lambda: transfer.share > 0.3)
    network.weather = Weather(loss=1.0)
    began = network.now
    network.run(lambda: network.client.end is not None and network.server.end is not None)
    assert network.now - began < 2 * network.config.idle_timeout_s
    for peer in network.peers:
        assert peer.end is not None
        assert peer.end.reason_phrase == "Idle timeout"
