"""Path MTU discovery of an aioquic connection: `PathMtu`'s probes as packets, their fate as news.

A probe is a 1-RTT packet of PING and PADDING in a datagram of its own. It is acknowledged and
declared lost as any packet, but it is not counted in flight: so neither its size, which may be
several congestion windows, nor its loss (RFC 9000 14.4) holds back what the application sends. At
most two are on the way at once. A probe that the socket refuses is forgotten, and its packet number
left out.

What this module uses of aioquic's inside, pinned by tests/asyncio/test_aioquic_contract.py:
`QuicConnection`'s `_network_paths`, `_handshake_confirmed`, `_close_pending`, `_state`, `_cryptos`,
`_spaces`, `_loss`, `_flush_builder` and the arguments of a `QuicPacketBuilder`; the builder's
`_packet`; a packet space's `sent_packets` and `ack_eliciting_in_flight`; and of the recovery
`_pto_count` and `_time_of_last_sent_ack_eliciting_packet`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aioquic import tls
from aioquic.quic.connection import END_STATES
from aioquic.quic.packet import QuicFrameType, QuicPacketType
from aioquic.quic.packet_builder import QuicDeliveryState, QuicPacketBuilder

from moqt.asyncio.path_mtu import PathMtu, Probe

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aioquic.quic.connection import QuicConnection, QuicNetworkPath

    from moqt.asyncio.endpoint import Datagram
    from moqt.asyncio.recovery import AdaptiveRecovery

SUSPICIOUS_TIMEOUTS = 2
"""Probe timeouts in a row after which large datagrams may be the cause."""


class MtuProber:
    """Searches on the path that `connection` uses; made before anything is sent."""

    def __init__(
        self, connection: QuicConnection, recovery: AdaptiveRecovery, *, limit: int
    ) -> None:
        self.search = PathMtu(limit=limit)
        self._connection = connection
        self._recovery = recovery
        recovery.on_lost = self.on_packets_lost
        self._path: QuicNetworkPath | None = None
        self._sent: dict[Probe, int] = {}
        self._now = 0.0

    def update(self, now: float) -> int:
        """Look at the path before packets are built; return the size to build them for."""
        self._now = now
        connection = self._connection
        path = connection._network_paths[0]
        if path is not self._path:
            if self._path is not None:
                self.search.reset()
                self._recovery.forget_round_trips()
            self._path = path
        if connection._loss._pto_count >= SUSPICIOUS_TIMEOUTS or path.remote_challenges:
            # A peer that sends PATH_CHALLENGE sees us elsewhere. aioquic fills the datagram of the
            # PATH_RESPONSE, which the new path may not carry; 1200 octets will do (RFC 9000 8.2.2).
            self.search.doubt()
        return self.search.size

    def next_probe(self, now: float) -> Datagram | None:
        """Build the probe that is to be sent now; None: there is none."""
        connection = self._connection
        if (
            not connection._handshake_confirmed
            or not connection._network_paths[0].is_validated
            or connection._loss._pto_count  # whatever is sent now may well be lost
            or connection._close_pending
            or connection._state in END_STATES
        ):
            return None
        probe = self.search.next_probe(now)
        return None if probe is None else self._build(probe, now)

    def on_too_large(self, octets: int | None) -> None:
        """The socket refused a datagram of so many octets; None: it doesn't say of how many."""
        refuted = self.search.on_too_large(octets, self._now)
        for probe in [probe for probe in self._sent if probe.octets == refuted]:
            self._forget(probe)

    def on_packets_lost(self, sizes: Iterable[int]) -> None:
        """Packets of so many octets, none of them probes, were declared lost."""
        self.search.on_packets_lost(sizes)
        if self.search.is_suspicious:
            self._recovery.on_acked = self._on_packet_acked

    def _on_packet_acked(self, octets: int) -> None:
        self.search.on_packet_acked(octets)
        if not self.search.is_suspicious:  # it costs a call for each ACK
            self._recovery.on_acked = None

    def _build(self, probe: Probe, now: float) -> Datagram:
        connection = self._connection
        builder = QuicPacketBuilder(
            host_cid=connection.host_cid,
            is_client=connection._is_client,
            max_datagram_size=probe.octets,
            packet_number=connection._packet_number,
            peer_cid=connection._peer_cid.cid,
            quic_logger=connection._quic_logger,
            spin_bit=connection._spin_bit,
            version=connection._version or 0,
        )
        builder.start_packet(QuicPacketType.ONE_RTT, connection._cryptos[tls.Epoch.ONE_RTT])
        packet = builder._packet
        assert packet is not None
        frame = builder.start_frame(
            QuicFrameType.PING, handler=self._on_delivery, handler_args=(probe,)
        )
        padding = builder.remaining_buffer_space
        frame.push_bytes(bytes(padding))
        packet.in_flight = False
        logger = connection._quic_logger
        if logger is not None and builder.quic_logger_frames is not None:
            builder.quic_logger_frames += [
                logger.encode_ping_frame(),
                logger.encode_padding_frame(),
            ]
        self._sent[probe] = packet.packet_number
        (datagram,) = connection._flush_builder(
            builder=builder,
            network_path=connection._network_paths[0],
            peer_cid=connection._peer_cid.cid,
            now=now,
        )
        # aioquic counts its probe timeout from what is in flight, but waits for the probe as well
        connection._loss._time_of_last_sent_ack_eliciting_packet = now
        return datagram

    def _on_delivery(self, delivery: QuicDeliveryState, probe: Probe) -> None:
        self._sent.pop(probe, None)
        if delivery is QuicDeliveryState.ACKED:
            self.search.on_acked(probe)
        else:
            self.search.on_lost(probe, self._now)

    def _forget(self, probe: Probe) -> None:
        space = self._connection._spaces[tls.Epoch.ONE_RTT]
        if space.sent_packets.pop(self._sent.pop(probe), None) is not None:
            space.ack_eliciting_in_flight -= 1
