"""aioquic's connection as a transport needs it: what it holds unsent, how large its datagrams are.

What this module and `moqt.asyncio.credit` use of aioquic's inside, pinned by
tests/asyncio/test_aioquic_contract.py:
`_local_max_data` and `_local_max_streams_*` (`Limit`: value, sent, used), `_remote_max_data`,
`_remote_max_data_used`, `_remote_max_streams_*`, `_remote_max_datagram_frame_size`, `_streams`,
`QuicStream` (`max_stream_data_local`, `_local_sent`, `_remote`; its sender's `highest_offset`,
`_buffer_stop`, `_buffer_fin`, `_reset_error_code`; its receiver's `highest_offset`, `_final_size`),
`_loss` (`_pacer`, `_rtt_smoothed`, `_rtt_min`, `_cc._max_datagram_size`, `congestion_window`,
`bytes_in_flight`), `_max_datagram_size`, `_handshake_confirmed`, `_network_paths`,
`_spaces[...].ack_at`, `_state`, `_close_event`, `_datagrams_pending`,
`_cryptos[...].recv`, `_events`, `_get_or_create_stream_for_send`, and the methods overridden.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from aioquic import tls
from aioquic._buffer import Buffer
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import (
    END_STATES,
    QuicConnectionState,
)
from aioquic.quic.packet import pull_quic_transport_parameters

from moqt.asyncio import cubic, recovery
from moqt.asyncio.config import (
    LARGEST_DATAGRAM_OCTETS,
    LARGEST_STOCK_DATAGRAM_OCTETS,
    SMALLEST_DATAGRAM_OCTETS,
    CongestionControl,
    TransportConfig,
)
from moqt.asyncio.credit import CreditedConnection
from moqt.asyncio.mtu_prober import MtuProber
from moqt.asyncio.pacing import LARGEST_NETWORK_DATAGRAM_OCTETS, BurstPacer
from moqt.wire.draft import ALPN

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aioquic.quic.connection import QuicReceiveContext
    from aioquic.quic.events import ConnectionTerminated
    from aioquic.quic.packet import QuicTransportParameters
    from aioquic.quic.stream import QuicStream

    from moqt.asyncio.endpoint import Datagram
    from moqt.asyncio.qlog import QlogDirectory, Trace

    Arrival = Callable[[int, int, memoryview | bytes, bool], None]
    """Stream ID, offset, octets, FIN: the stream ends with these octets."""

    Emit = Callable[[memoryview, int, Any], bool]
    """Gives datagrams of so many octets, one after another, the last may be shorter, to a socket;
    False when it takes no more for now."""

MAX_EARLY_DATAGRAMS = 32
MAX_EARLY_OCTETS = 48 * 1024
"""Of datagrams that come before the keys to read them, so many are kept, of so many octets in
all: more than a first flight."""

LONG_HEADER = 0x80
"""Set in the first octet of a handshake's packet (RFC 9000 17.2)."""

DATAGRAM_FRAME_OCTETS = 65535
"""max_datagram_frame_size announced: MOQT demands that it's not zero (MOQT-22 6.1)."""

MAX_UDP_PAYLOAD_SIZE = 0x03
"""The transport parameter (RFC 9000 18.2); aioquic sends none, which means 65,527."""

LEAST_WINDOW_DATAGRAMS = 2
"""RFC 9002 7.2: the congestion window is never less."""


cubic.register()

_ALGORITHMS = {CongestionControl.CUBIC: cubic.NAME, CongestionControl.RENO: "reno"}

# What aioquic warns of is in the errors that we raise; without this line, a program that has not
# set up logging would find it on stderr as well.
logging.getLogger("quic").addHandler(logging.NullHandler())


def quic_configuration(config: TransportConfig, *, is_client: bool) -> QuicConfiguration:
    """Return aioquic's configuration for `config`; identity and trust are the caller's to add."""
    return QuicConfiguration(
        alpn_protocols=[ALPN],
        congestion_control_algorithm=_ALGORITHMS[config.congestion_control],
        idle_timeout=config.idle_timeout_s,
        is_client=is_client,
        max_data=config.connection_window_octets,
        max_datagram_frame_size=DATAGRAM_FRAME_OCTETS,
        max_datagram_size=SMALLEST_DATAGRAM_OCTETS,
        max_stream_data=config.stream_window_octets,
        quic_logger=_qlog(config),
    )


def _qlog(config: TransportConfig) -> QlogDirectory | None:
    if config.qlog_dir is None:
        return None
    from moqt.asyncio.qlog import QlogDirectory  # here, as it is rarely wanted

    return QlogDirectory(Path(config.qlog_dir), max_events=config.qlog_max_events)


class HeldConnection(CreditedConnection):
    """A QUIC connection that grants nothing by itself, and says what it holds unsent."""

    acknowledge_octets = 64 * 1024
    """Received since the last ACK: the next one need not wait."""

    def __init__(
        self,
        *,
        configuration: QuicConfiguration,
        transport_config: TransportConfig,
        original_destination_connection_id: bytes | None = None,
    ) -> None:
        super().__init__(
            configuration=configuration,
            transport_config=transport_config,
            original_destination_connection_id=original_destination_connection_id,
        )
        self.peer_parameters: QuicTransportParameters | None = None
        """What the peer's handshake announced; None before."""
        self.on_arrival: Arrival | None = None
        """Who takes octets of streams as they come, each once, in any order, with their offset; a
        connection that has no use for it reports them by aioquic's events, in order."""
        self._has_keys = False
        self._early: list[tuple[bytes, Any]] = []
        self._written_octets = 0
        self._datagram_size = self._max_datagram_size
        self._receivable_octets = LARGEST_DATAGRAM_OCTETS
        self.burst_pacer = BurstPacer(max_datagram_size=self._max_datagram_size)
        self.recovery = recovery.install(self, pacer=self.burst_pacer)
        self._mtu_prober = MtuProber(
            self, self.recovery, limit=transport_config.max_datagram_octets
        )

    # --- queries ---

    @property
    def unsent_octets(self) -> int:
        """Octets handed over and never sent yet; lost ones aren't counted again."""
        return self._written_octets - self._remote_max_data_used

    @property
    def sendable_octets(self) -> int:
        """What may leave soon: the congestion window's room, but a burst of the pacer at most."""
        room = self._loss.congestion_window - self._loss.bytes_in_flight
        return max(0, min(room, self.burst_pacer.burst_octets))

    @property
    def peer_credit(self) -> int:
        """What the peer's connection window still takes beyond what is handed over."""
        return self._remote_max_data - self._written_octets

    @property
    def peer_window_octets(self) -> int:
        """All that the peer ever let us send; at first its connection window, 0 before."""
        return self._remote_max_data

    @property
    def peer_takes_datagrams(self) -> bool:
        """Whether the peer announced max_datagram_frame_size > 0 (RFC 9221)."""
        return bool(self._remote_max_datagram_frame_size)

    @property
    def is_over(self) -> bool:
        """Whether the connection is closing, draining or gone."""
        return self._state in END_STATES

    @property
    def is_terminated(self) -> bool:
        """Whether nothing is left to wait for."""
        return self._state is QuicConnectionState.TERMINATED

    @property
    def close_event(self) -> ConnectionTerminated | None:
        """Why the connection ends, as soon as it's known; aioquic's event comes later."""
        return self._close_event

    @property
    def is_closed_by_peer(self) -> bool:
        """Whether it was the peer's CONNECTION_CLOSE that ended the connection."""
        return self._state is QuicConnectionState.DRAINING

    @property
    def idle_timeout_s(self) -> float:
        """The idle timeout in force: the shorter of both sides' (RFC 9000 10.1)."""
        return self._idle_timeout()

    @property
    def trace(self) -> Trace | None:
        """Its qlog; None: it has none, or it is written already."""
        return cast("Trace | None", self._quic_logger)  # `quic_configuration` names no other kind

    def end_trace(self) -> None:
        """Write the qlog, if there is one and aioquic has not done so; it ends there."""
        trace, self._quic_logger = self.trace, None
        if trace is not None:
            trace.write()

    @property
    def has_events(self) -> bool:
        """Whether `next_event` has one."""
        return bool(self._events)

    @property
    def has_path(self) -> bool:
        """Whether there is an address to send to; a server has none before a valid Initial."""
        return bool(self._network_paths)

    @property
    def datagram_size(self) -> int:
        """The UDP payload that the path is known to carry. aioquic's own code builds packets for
        16,383 octets of it at most: it writes the length of a frame in two octets."""
        return self._datagram_size

    # --- sending ---

    def open_stream(self, *, bidirectional: bool) -> int | None:
        """Open a stream; None while the peer's limit is reached."""
        stream_id = self.get_next_available_stream_id(is_unidirectional=not bidirectional)
        limit = self._remote_max_streams_bidi if bidirectional else self._remote_max_streams_uni
        if stream_id // 4 >= limit:
            return None
        self._get_or_create_stream_for_send(stream_id)
        return stream_id

    def stream_credit(self, stream_id: int) -> int:
        """What the peer's windows still take on this stream; 0 when it is gone."""
        stream = self._streams.get(stream_id)
        if stream is None or not can_write(stream):
            return 0
        return min(
            stream.max_stream_data_remote - stream.sender._buffer_stop,
            self._remote_max_data - self._written_octets,
        )

    def append(self, stream_id: int, buffers: Sequence[memoryview | bytes], fin: bool) -> None:
        """Copy the buffers to the stream's end; nothing happens when it is gone."""
        stream = self._streams.get(stream_id)
        if stream is None or not can_write(stream):
            return
        data = buffers[0] if len(buffers) == 1 else b"".join(buffers)
        stream.sender.write(data, end_stream=fin)  # type: ignore[arg-type]
        self._written_octets += len(data)

    def let_go(self) -> None:
        """It's over: refer to nothing that was written any more."""

    def is_acknowledged(self, stream_id: int) -> bool:
        """Whether the peer has acknowledged a stream's octets and FIN; True when it is gone."""
        stream = self._streams.get(stream_id)
        return stream is None or stream.sender.is_finished

    @property
    def waiting_datagrams(self) -> int:
        """How many datagrams are queued and not in a packet yet."""
        return len(self._datagrams_pending)

    def drop(self, stream_id: int, code: int) -> None:
        """RESET_STREAM; nothing happens when the stream is gone."""
        stream = self._streams.get(stream_id)
        if stream is None or stream.sender.is_finished:
            return
        self._forget_unsent(stream)
        stream.sender.reset(code)

    def queue_datagram(self, data: bytes) -> bool:
        """Queue a DATAGRAM frame; False when it's too large for a packet, or the queue is full."""
        if (
            len(data) > self._datagram_room
            or len(data) + 3 > (self._remote_max_datagram_frame_size or 0)
            or len(self._datagrams_pending) >= self.transport_config.max_queued_datagrams
        ):
            return False
        self.send_datagram_frame(data)
        return True

    @property
    def _datagram_room(self) -> int:
        """What a DATAGRAM frame of a packet holds: less header, tag, type and length."""
        return self._max_datagram_size - 1 - len(self._peer_cid.cid) - 2 - 16 - 1 - 2

    def _forget_unsent(self, stream: QuicStream) -> None:
        sender = stream.sender
        if sender._reset_error_code is None:
            self._written_octets -= sender._buffer_stop - sender.highest_offset

    def _handle_stop_sending_frame(
        self, context: QuicReceiveContext, frame_type: int, buf: Buffer
    ) -> None:
        at = buf.tell()
        stream = self._streams.get(buf.pull_uint_var())
        buf.seek(at)
        was_open = stream is not None and not stream.sender.is_finished
        if stream is not None and was_open:  # aioquic answers with RESET_STREAM by itself
            self._forget_unsent(stream)
        super()._handle_stop_sending_frame(context, frame_type, buf)

    def write_bulk(self, now: float, emit: Emit, *, goes_on: bool = False) -> bool:
        """Send what is not aioquic's to send, after `datagrams_to_send`; here: nothing.

        `goes_on`: more will be written soon, so that packets need not be short. Returns True
        when there is more that could be sent at once.
        """
        return False

    # --- receiving ---

    def receive_datagram(self, data: bytes, addr: Any, now: float) -> None:
        """Give a datagram to aioquic. What the network has brought before the handshake's last
        flight is kept for a moment (RFC 9001 5.7): dropped, it would count as congestion."""
        super().receive_datagram(data, addr, now)
        if self._has_keys or not self._cryptos:
            return
        self._has_keys = self._cryptos[tls.Epoch.ONE_RTT].recv.is_valid()
        if self._has_keys:
            early, self._early = self._early, []
            for kept, kept_addr in early:
                super().receive_datagram(kept, kept_addr, now)
        elif data and not data[0] & LONG_HEADER:
            held = sum(len(kept) for kept, _ in self._early)
            if len(self._early) < MAX_EARLY_DATAGRAMS and held + len(data) <= MAX_EARLY_OCTETS:
                self._early.append((data, addr))

    def receive_segments(
        self, datagrams: memoryview, segment_octets: int, address: Any, now: float
    ) -> None:
        """Take datagrams of so many octets each, one after another; the last may be shorter."""
        for start in range(0, len(datagrams), segment_octets):
            datagram = bytes(datagrams[start : start + segment_octets])
            self.receive_datagram(datagram, address, now=now)

    # --- datagrams ---

    def acknowledge_soon(self, now: float) -> None:
        """Send an owed ACK with the next transmit, rather than when its timer runs out."""
        space = self._spaces.get(tls.Epoch.ONE_RTT)
        if space is not None and space.ack_at is not None and space.ack_at > now:
            space.ack_at = now

    @property
    def is_path_short(self) -> bool:
        """Whether all that is under way may wait in the socket's buffer."""
        return self._datagram_size > LARGEST_NETWORK_DATAGRAM_OCTETS or super().is_path_short

    def ack_alone(self, due_at: float, now: float) -> list[Datagram]:
        """Return an ACK to be sent if it is what was due at `due_at`, and nothing else is to be
        done; none: all has to be looked at."""
        return []

    def adapt_datagram_size(self, now: float) -> None:
        """Follow what is known of the path; before packets are built."""
        octets = self._mtu_prober.update(now)
        if octets != self._datagram_size:
            self._set_datagram_size(octets)

    def next_probe(self, now: float) -> Datagram | None:
        """Return a datagram that shows whether the path carries its size; None: none is due."""
        return self._mtu_prober.next_probe(now)

    def on_too_large(self, octets: int | None) -> None:
        """The socket refused a datagram of so many octets; None: it doesn't say of how many."""
        self._mtu_prober.on_too_large(octets)

    def _set_datagram_size(self, octets: int) -> None:
        if self.trace is not None:
            sizes = {"old": self._datagram_size, "new": octets}
            self.trace.log_event(category="connectivity", event="mtu_updated", data=sizes)
        self._datagram_size = octets
        self._max_datagram_size = min(octets, LARGEST_STOCK_DATAGRAM_OCTETS)
        self.burst_pacer.max_datagram_size = self._max_datagram_size
        self.burst_pacer.path_datagram_octets = octets
        controller: Any = self._loss._cc
        controller._max_datagram_size = octets
        controller.congestion_window = max(
            controller.congestion_window, LEAST_WINDOW_DATAGRAMS * octets
        )
        waiting = self._datagrams_pending
        for data in [data for data in waiting if len(data) > self._datagram_room]:
            waiting.remove(data)  # it would block what waits behind it; it is unreliable anyway

    def announce_receivable(self, octets: int) -> None:
        """Tell the peer, in the handshake to come, to send no larger datagrams."""
        self._receivable_octets = max(SMALLEST_DATAGRAM_OCTETS, octets)

    def _serialize_transport_parameters(self) -> bytes:
        parameters = super()._serialize_transport_parameters()
        if self._receivable_octets >= LARGEST_DATAGRAM_OCTETS:
            return parameters
        value = (0x80000000 | self._receivable_octets).to_bytes(4, "big")
        return parameters + bytes((MAX_UDP_PAYLOAD_SIZE, len(value))) + value

    def _parse_transport_parameters(self, data: bytes, from_session_ticket: bool = False) -> None:
        super()._parse_transport_parameters(data, from_session_ticket)
        # aioquic reads max_udp_payload_size but doesn't heed it (RFC 9000 18.2)
        self.peer_parameters = pull_quic_transport_parameters(Buffer(data=data))
        largest = self.peer_parameters.max_udp_payload_size
        if largest is not None:
            self._mtu_prober.search.lower_limit(largest)

    def _probe_preferred_address(self) -> None:
        # The client's socket is connected to one address, so it doesn't move to another.
        self._remote_preferred_address = None


def can_write(stream: QuicStream) -> bool:
    """Whether anything may still be appended to it."""
    sender: Any = stream.sender
    return (
        not sender.is_finished and sender._reset_error_code is None and sender._buffer_fin is None
    )
