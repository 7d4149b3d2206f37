"""A held connection with a bulk path.

Packets of STREAM frames on unidirectional streams are written by `BulkWriter`, 1-RTT packets are
read by `BulkReader`, and streams hand on what comes at once. The handshake, control frames, other
streams, acknowledgement, loss recovery, key update, migration and close are aioquic's own code,
which both of them share all state with. What they use of its inside, beside what `HeldConnection`
does, is pinned by tests/asyncio/test_bulk_contract.py.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from aioquic.quic.connection import QuicConnectionError
from aioquic.quic.packet import QuicErrorCode, QuicPacketType
from aioquic.quic.packet_builder import QuicPacketBuilder, QuicPacketBuilderStop
from aioquic.quic.stream import FinalSizeError, StreamFinishedError
from aioquic.tls import Epoch

from moqt.asyncio.bulk.reader import BulkReader
from moqt.asyncio.bulk.receiver import PlacingReceiver, RangeTally
from moqt.asyncio.bulk.sender import ReferencingSender
from moqt.asyncio.bulk.writer import BulkWriter
from moqt.asyncio.connection import HeldConnection, can_write
from moqt.asyncio.credit import is_stream_limit_due

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from aioquic.quic.configuration import QuicConfiguration
    from aioquic.quic.stream import QuicStream

    from moqt.asyncio.config import TransportConfig
    from moqt.asyncio.connection import Emit

_FIRST_UNIDIRECTIONAL = 4
"""Below: each side's first unidirectional stream, which carries control messages (MOQT-22 6.1)."""


class BulkConnection(HeldConnection):
    """As `HeldConnection`; what is written must not change until it is acknowledged."""

    acknowledge_octets = 256 * 1024

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
        self.is_bulk_at_work = False
        self._tally = RangeTally()
        self._reader = BulkReader(self)
        self._writer = BulkWriter(self)

    def _is_bulk_possible(self) -> bool:
        return (
            self._handshake_confirmed
            and not self.is_over
            and not self._close_pending
            and self._network_paths[0].is_validated
            and self._quic_logger is None
        )

    # --- sending ---

    def datagrams_to_send(self, now: float) -> list[tuple[bytes, Any]]:
        """What aioquic has to send: all of it, or all but what `write_bulk` sends."""
        self.is_bulk_at_work = self._is_bulk_possible()
        if self._probe_pending and self.is_bulk_at_work and self._writer.will_repeat(now):
            # That is the probe (RFC 9002 6.2.4). A PING in a packet of its own would arrive where a
            # datagram of this size may not, and so begin the timeouts anew each time.
            self._probe_pending = False
        if self.is_bulk_at_work and not self._has_more_than_acks():
            self._pacing_at = None
            return self._acknowledge(now)
        return super().datagrams_to_send(now)

    def _has_more_than_acks(self) -> bool:
        """Whether aioquic may have something to send beside an ACK."""
        limits_of_streams = (self._local_max_streams_bidi, self._local_max_streams_uni)
        return bool(
            self._probe_pending
            or self._ping_pending
            or self._datagrams_pending
            or self._handshake_done_pending
            or self._streams_blocked_pending
            or self._retire_connection_ids
            or len(self._network_paths) > 1
            or self._network_paths[0].remote_challenges
            or self._local_max_data.value != self._local_max_data.sent
            or any(map(is_stream_limit_due, limits_of_streams))
            or not all(connection_id.was_sent for connection_id in self._host_cids)
            or not self._crypto_streams[Epoch.ONE_RTT].sender.buffer_is_empty
            or any(map(_has_news, self._streams_queue))
        )

    def ack_alone(self, due_at: float, now: float) -> list[tuple[bytes, Any]]:
        """Return an ACK to be sent if it is what was due, and nothing else is to be done.

        Who sends much gets little but control frames, and acknowledges some of them by the timer.
        """
        if (
            self._spaces[Epoch.ONE_RTT].ack_at != due_at
            or not self._is_bulk_possible()
            or self._has_more_than_acks()
        ):
            return []
        return self._acknowledge(now)

    def _acknowledge(self, now: float) -> list[tuple[bytes, Any]]:
        """Send an ACK if one is due, and nothing else."""
        space = self._spaces[Epoch.ONE_RTT]
        if space.ack_at is None or space.ack_at > now:
            return []
        assert self._version is not None  # the handshake settled it
        builder = QuicPacketBuilder(
            host_cid=self.host_cid,
            is_client=self._is_client,
            max_datagram_size=self._max_datagram_size,
            packet_number=self._packet_number,
            peer_cid=self._peer_cid.cid,
            spin_bit=self._spin_bit,
            version=self._version,
        )
        builder.max_flight_bytes = self._loss.congestion_window - self._loss.bytes_in_flight
        builder.start_packet(QuicPacketType.ONE_RTT, self._cryptos[Epoch.ONE_RTT])
        with suppress(QuicPacketBuilderStop):  # no room for the PING that may follow
            self._write_ack_frame(builder=builder, space=space, now=now)
        return self._flush_builder(
            builder=builder,
            network_path=self._network_paths[0],
            peer_cid=self._peer_cid.cid,
            now=now,
        )

    def write_bulk(self, now: float, emit: Emit, *, goes_on: bool = False) -> bool:
        """Send by the run; True when there is more that could be sent at once."""
        if not self.is_bulk_at_work or self.is_over or self._pacing_at is not None:
            return False
        return self._writer.write(now, emit, goes_on=goes_on)

    def note_sent(self, first_number: int, next_number: int, octets: int, now: float) -> None:
        """Account for a run of packets that the writer has sealed, as aioquic does for its own."""
        self._packet_number = next_number
        space = self._spaces[Epoch.ONE_RTT]
        space.ack_eliciting_in_flight += 1
        loss = self._loss
        loss._time_of_last_sent_ack_eliciting_packet = now
        loss._cc.on_packet_sent(packet=space.sent_packets[next_number - 1])
        self._network_paths[0].bytes_sent += octets
        if not self._ack_eliciting_sent_since_receipt:
            self._close_at = now + self._idle_timeout()
            self._ack_eliciting_sent_since_receipt = True

    def append(self, stream_id: int, buffers: Sequence[memoryview | bytes], fin: bool) -> None:
        """Append references to the buffers; nothing happens when the stream is gone."""
        stream = self._streams.get(stream_id)
        if stream is None or not isinstance(stream.sender, ReferencingSender):
            super().append(stream_id, buffers, fin)
        elif can_write(stream):
            self._written_octets += stream.sender.append(buffers, fin)

    def let_go(self) -> None:
        """It's over: refer to nothing that was written any more."""
        for stream in self._streams.values():
            if isinstance(stream.sender, ReferencingSender):
                stream.sender.let_go()

    def on_sendable(self, sender: ReferencingSender, *, is_urgent: bool) -> None:
        """A sender has something to send."""
        self._writer.add(sender, is_urgent=is_urgent)

    # --- receiving ---

    def receive_segments(
        self, datagrams: memoryview, segment_octets: int, address: Any, now: float
    ) -> None:
        """Take datagrams of so many octets each, one after another; the last may be shorter.

        Where many are alike, octets of those that were opened are gathered in their memory.
        """
        if (
            self._network_paths
            and address == self._network_paths[0].addr
            and self._is_bulk_possible()
        ):
            self._reader.read(datagrams, segment_octets, now)
        else:
            super().receive_segments(datagrams, segment_octets, address, now)

    def place(
        self, frame_type: int, stream_id: int, offset: int, data: memoryview | bytes, fin: bool
    ) -> None:
        """Take octets of a stream. Raises: QuicConnectionError, as aioquic does."""
        stream = self._streams.get(stream_id)
        if stream is None or type(stream.receiver) is not PlacingReceiver:
            self._assert_stream_can_receive(frame_type, stream_id)
            try:
                stream = self._get_or_create_stream(frame_type, stream_id)
            except StreamFinishedError:
                return
        receiver = stream.receiver
        assert isinstance(receiver, PlacingReceiver)
        stop = offset + len(data)
        fresh = stop - receiver.highest_offset
        if fresh > 0:
            limit = self._local_max_data
            if stop > stream.max_stream_data_local or limit.used + fresh > limit.value:
                raise QuicConnectionError(
                    error_code=QuicErrorCode.FLOW_CONTROL_ERROR,
                    frame_type=frame_type,
                    reason_phrase=f"stream {stream_id}: octets up to {stop} are over a limit",
                )
            limit.used += fresh
        try:
            receiver.place(offset, data, fin)
        except FinalSizeError as error:
            raise QuicConnectionError(
                error_code=QuicErrorCode.FINAL_SIZE_ERROR,
                frame_type=frame_type,
                reason_phrase=str(error),
            ) from error

    def _deliver(self, stream_id: int, offset: int, data: memoryview | bytes, fin: bool) -> None:
        if self.on_arrival is not None:
            self.on_arrival(stream_id, offset, data, fin)

    # --- streams ---

    def _get_or_create_stream(self, frame_type: int, stream_id: int) -> QuicStream:
        known = len(self._streams_queue)
        stream = super()._get_or_create_stream(frame_type, stream_id)
        for new in self._streams_queue[known:]:  # it, and those of its kind below it
            new.receiver = PlacingReceiver(new.stream_id or 0, self._deliver, self._tally)
        return stream

    def _get_or_create_stream_for_send(self, stream_id: int) -> QuicStream:
        is_new = stream_id not in self._streams
        stream = super()._get_or_create_stream_for_send(stream_id)
        if is_new and stream_id & 2 == 0:
            stream.receiver = PlacingReceiver(stream_id, self._deliver, self._tally)
        elif is_new and stream_id >= _FIRST_UNIDIRECTIONAL:
            stream.sender = ReferencingSender(stream_id, self)
        return stream


def _has_news(stream: QuicStream) -> bool:
    """Whether aioquic has something to say about a stream, or is to forget it."""
    sender, receiver = stream.sender, stream.receiver
    return (
        not sender.buffer_is_empty
        or sender.reset_pending
        or receiver.stop_pending
        or stream.max_stream_data_local != stream.max_stream_data_local_sent
        or (receiver.is_finished and sender.is_finished)
    )


def make_connection(
    *,
    configuration: QuicConfiguration,
    transport_config: TransportConfig,
    original_destination_connection_id: bytes | None = None,
) -> HeldConnection:
    """Return a connection with the bulk path, unless `transport_config` is against it."""
    return (BulkConnection if transport_config.is_fast_path else HeldConnection)(
        configuration=configuration,
        transport_config=transport_config,
        original_destination_connection_id=original_destination_connection_id,
    )
