"""A held connection with a bulk path.

Packets of STREAM frames on unidirectional streams are written by `BulkWriter`, 1-RTT packets are
read by `BulkReader`, and streams hand on what comes at once. The handshake, control frames, other
streams, acknowledgement, loss recovery, key update, migration and close are aioquic's own code,
which both of them share all state with. What they use of its inside, beside what `HeldConnection`
does, is pinned by tests/asyncio/test_bulk_contract.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aioquic.quic.connection import QuicConnectionError
from aioquic.quic.packet import QuicErrorCode
from aioquic.quic.stream import FinalSizeError, StreamFinishedError
from aioquic.tls import Epoch

from moqt.asyncio.bulk.reader import BulkReader
from moqt.asyncio.bulk.receiver import PlacingReceiver, RangeTally
from moqt.asyncio.bulk.sender import ReferencingSender
from moqt.asyncio.bulk.writer import BulkWriter
from moqt.asyncio.connection import HeldConnection, can_write

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
        return super().datagrams_to_send(now)

    def write_bulk(self, now: float, emit: Emit) -> bool:
        """Send by the batch; True when there is more that could be sent at once."""
        if not self.is_bulk_at_work or self.is_over or self._pacing_at is not None:
            return False
        return self._writer.write(now, emit)

    def note_sent(self, first_number: int, next_number: int, octets: int, now: float) -> None:
        """Account for packets that the writer has sealed, as aioquic does for its own."""
        self._packet_number = next_number
        space = self._spaces[Epoch.ONE_RTT]
        space.ack_eliciting_in_flight += next_number - first_number
        loss = self._loss
        loss._time_of_last_sent_ack_eliciting_packet = now
        first = space.sent_packets[first_number]
        loss._cc.on_packet_sent(packet=first)
        loss._cc.bytes_in_flight += octets - first.sent_bytes
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
        """Take datagrams of so many octets each, one after another; the last may be shorter."""
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
