"""Reads 1-RTT packets by the batch.

A packet is opened here if it opens with the keys and the connection ID in use; a frame is read here
if it is a STREAM frame that fills its packet. Anything else goes to aioquic's own code, before any
state was changed: coalesced and long packets, the other key phase, other connection IDs, junk.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aioquic.quic.connection import (
    END_STATES,
    QuicConnectionError,
    QuicReceiveContext,
)
from aioquic.quic.recovery import MAX_ACK_RANGES
from aioquic.tls import Epoch
from cryptography.exceptions import InvalidTag

from moqt.asyncio.bulk.protection import SAMPLE_OCTETS, TAG_OCTETS, header_masks

if TYPE_CHECKING:
    from aioquic.quic.recovery import QuicPacketNumberWindow, QuicPacketSpace

    from moqt.asyncio.bulk.connection import BulkConnection

_SPIN_BIT = 0x20
_VARINT_MASKS = (0, 0x3F, 0x3FFF, 0, 0x3FFFFFFF, 0, 0, 0, 0x3FFFFFFFFFFFFFFF)


class BulkReader:
    """Opens the packets of one connection, whose handshake is confirmed."""

    def __init__(self, connection: BulkConnection) -> None:
        self._connection = connection
        self._plain = bytearray(65536)
        self._view = memoryview(self._plain)
        # octets of one stream, in order, that were not handed on yet
        self._stream_id = -1
        self._kind = 0
        self._start = self._stop = 0
        self._pieces: list[memoryview] = []
        # numbers of packets, in order, that were not noted yet
        self._first_number = self._next_number = 0

    def read(self, datagrams: memoryview, segment_octets: int, now: float) -> None:
        """Take datagrams that came from the connection's own path, one after another."""
        connection = self._connection
        address = connection._network_paths[0].addr
        crypto = connection._cryptos[Epoch.ONE_RTT].recv
        space = connection._spaces[Epoch.ONE_RTT]
        aead, protection, connection_id = crypto.aead, crypto.hp, connection.host_cid
        assert aead is not None
        assert protection is not None
        open_into, iv = aead._aead.decrypt_into, aead._iv
        number_at = 1 + len(connection_id)
        sample_at = number_at + 4
        sample_stop = sample_at + SAMPLE_OCTETS
        total = len(datagrams)
        starts = range(0, total, segment_octets)
        if total - starts[-1] < sample_stop:  # no packet, or the rest of a batch is none
            connection.receive_datagram(bytes(datagrams[starts[-1] :]), address, now)
            starts = starts[:-1]
            if not starts or connection.is_over:
                return
        masks = header_masks(
            protection, [datagrams[at + sample_at : at + sample_stop] for at in starts]
        )
        plain, view = self._plain, self._view
        received = space.received_packets
        expected = space.expected_packet_number
        self._first_number = self._next_number = expected
        elicits = is_opened = False
        spin = 0
        mask_at = written = 0
        for at in starts:
            first = datagrams[at] ^ (masks[mask_at] & 0x1F)
            number_octets = (first & 3) + 1
            end = at + segment_octets
            if end > total:
                end = total
            if number_octets == 2:
                truncated = ((datagrams[at + number_at] ^ masks[mask_at + 1]) << 8) | (
                    datagrams[at + number_at + 1] ^ masks[mask_at + 2]
                )
            else:
                truncated = int.from_bytes(
                    datagrams[at + number_at : at + number_at + number_octets], "big"
                ) ^ int.from_bytes(masks[mask_at + 1 : mask_at + 1 + number_octets], "big")
            mask_at += 16
            # the number nearest to the one expected (RFC 9000 A.3)
            window = 1 << (8 * number_octets)
            lowest = expected - (window >> 1) + 1
            if lowest < 0:
                lowest = 0
            number = lowest + ((truncated - lowest) & (window - 1))
            body_at = at + number_at + number_octets
            size = end - body_at - TAG_OCTETS
            is_ours = first & 0xD8 == 0x40 and size > 0
            if is_ours:
                if number < expected:
                    self._note_numbers(space, now)
                    if number in received:
                        continue
                try:
                    open_into(
                        (iv ^ number).to_bytes(12, "big"),
                        datagrams[body_at:end],
                        b"%c%b%b"
                        % (first, connection_id, truncated.to_bytes(number_octets, "big")),
                        view[written : written + size],
                    )
                except InvalidTag:
                    is_ours = False
            if not is_ours:
                self._flush(space, now)
                connection.receive_datagram(bytes(datagrams[at:end]), address, now)
                if connection.is_over or connection._close_pending:
                    return
                expected = max(expected, space.expected_packet_number)
                self._first_number = self._next_number = expected
                continue
            is_opened = True
            if number != self._next_number:
                self._note_numbers(space, now)
                self._first_number = number
            self._next_number = number + 1
            if number >= expected:
                expected = number + 1
                spin = first & _SPIN_BIT
            stop = written + size
            kind = plain[written]
            if 0x08 <= kind <= 0x0F:
                p = written + 1
                stream_id = plain[p]
                if stream_id < 0x40:
                    p += 1
                else:
                    octets = 1 << (stream_id >> 6)
                    stream_id = int.from_bytes(view[p : p + octets], "big") & _VARINT_MASKS[octets]
                    p += octets
                offset = 0
                if kind & 4:
                    octets = 1 << (plain[p] >> 6)
                    offset = int.from_bytes(view[p : p + octets], "big") & _VARINT_MASKS[octets]
                    p += octets
                is_whole = p <= stop
                if kind & 2 and p < stop:
                    octets = 1 << (plain[p] >> 6)
                    length = int.from_bytes(view[p : p + octets], "big") & _VARINT_MASKS[octets]
                    p += octets
                    is_whole = p + length == stop
                if is_whole:
                    elicits = True
                    if stream_id != self._stream_id or offset != self._stop or self._kind & 1:
                        if not self._hand_on():
                            return
                        self._stream_id, self._start = stream_id, offset
                    self._kind = kind
                    self._pieces.append(view[p:stop])
                    self._stop = offset + stop - p
                    written = stop
                    continue
            if not self._hand_on():
                return
            context = QuicReceiveContext(
                epoch=Epoch.ONE_RTT,
                host_cid=connection_id,
                network_path=connection._network_paths[0],
                quic_logger_frames=None,
                time=now,
                version=connection._version,
            )
            try:
                is_eliciting, _ = connection._payload_received(context, bytes(view[written:stop]))
            except QuicConnectionError as error:
                self._fail(error)
                return
            elicits = elicits or is_eliciting
            if connection._state in END_STATES or connection._close_pending:
                return
        self._flush(space, now)
        if not is_opened or connection.is_over:
            return
        connection._network_paths[0].bytes_received += total
        if elicits and space.ack_at is None:
            space.ack_at = now + connection._ack_delay
        connection._close_at = now + connection._idle_timeout()
        connection._ack_eliciting_sent_since_receipt = False
        if expected - 1 > connection._spin_highest_pn:
            connection._spin_highest_pn = expected - 1
            connection._spin_bit = bool(spin) != connection._is_client

    def _flush(self, space: QuicPacketSpace, now: float) -> None:
        self._note_numbers(space, now)
        self._hand_on()

    def _hand_on(self) -> bool:
        """Hand on what was read of a stream; False: that ended the connection."""
        pieces, self._pieces = self._pieces, []
        stream_id, self._stream_id = self._stream_id, -1
        if stream_id < 0:
            return True
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        try:
            self._connection.place(self._kind, stream_id, self._start, data, bool(self._kind & 1))
        except QuicConnectionError as error:
            self._fail(error)
            return False
        return True

    def _fail(self, error: QuicConnectionError) -> None:
        self._connection.close(
            error_code=error.error_code,
            frame_type=error.frame_type,
            reason_phrase=error.reason_phrase,
        )

    def _note_numbers(self, space: QuicPacketSpace, now: float) -> None:
        """Note that packets have come, as aioquic does for each."""
        first, stop = self._first_number, self._next_number
        self._first_number = stop
        if first == stop:
            return
        if stop > space.expected_packet_number:
            space.expected_packet_number = stop
        if stop - 1 > space.largest_received_packet:
            space.largest_received_packet = stop - 1
            space.largest_received_time = now
        space.ack_queue.add(first, stop)
        if len(space.ack_queue) > MAX_ACK_RANGES:
            space.ack_queue.shift()
        add_numbers(space.received_packets, first, stop)


def add_numbers(window: QuicPacketNumberWindow, first: int, stop: int) -> None:
    """Note packets `first` to `stop`: what `add` does for each of them."""
    size = window._size
    window._received.update(range(max(first, stop - size, window._lower), stop))
    lower = stop - size
    if lower > window._lower:
        window._lower = lower
        if len(window._received) > 2 * size:
            window._received = {number for number in window._received if number >= lower}
