"""Reads 1-RTT packets by the batch.

A packet is opened here if it opens with the keys and the connection ID in use; a frame is read here
if it is a STREAM frame that fills its packet. Anything else goes to aioquic's own code, before any
state was changed: coalesced and long packets, the other key phase, other connection IDs, junk.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aioquic.quic.connection import (
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

_IDLE_RESOLUTION_S = 0.001
"""How exactly the idle timer is kept while much comes."""

_SPIN_BIT = 0x20
_FIXED_BITS, _FIXED = 0xD8, 0x40  # a short header, and its reserved bits
_VARINT = (0, 0x3F, 0x3FFF, 0, 0x3FFFFFFF, 0, 0, 0, 0x3FFFFFFFFFFFFFFF)


class BulkReader:
    """Opens the packets of one connection, whose handshake is confirmed."""

    def __init__(self, connection: BulkConnection) -> None:
        self._connection = connection
        self._plain = bytearray(65536)
        self._view = memoryview(self._plain)
        self._noted_at = -1.0

    def read(self, datagrams: memoryview, segment_octets: int, now: float) -> None:
        """Take datagrams that came from the connection's own path, one after another.

        Octets of one stream that follow each other are handed on at once, and numbers of packets
        that do are noted at once; both as soon as aioquic's code is to see them.
        """
        connection = self._connection
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
        if segment_octets < sample_stop:  # none is a packet: a sample would end beyond it
            for at in starts:
                self._leave_to_aioquic(datagrams[at : at + segment_octets], now)
            return
        if total - starts[-1] < sample_stop:  # no packet, or the rest of a batch is none
            self._leave_to_aioquic(datagrams[starts[-1] :], now)
            starts = starts[:-1]
            if not starts or connection.is_over:
                return
        masks = header_masks(
            protection, [datagrams[at + sample_at : at + sample_stop] for at in starts]
        )
        plain, view = self._plain, self._view
        received = space.received_packets
        expected = first_number = next_number = _expected_number(space)
        first = -1
        spin = 0  # what the packet with the largest number has
        header_start = b""
        kind, stream_id, offset, next_offset = 0, -1, 0, -1
        pieces: list[memoryview] = []
        elicits = is_opened = False
        written = 0
        mask_at = -16
        for at in starts:
            mask_at += 16
            end = at + segment_octets
            if end > total:
                end = total
            if first != datagrams[at] ^ (masks[mask_at] & 0x1F):
                first = datagrams[at] ^ (masks[mask_at] & 0x1F)
                header_start = bytes((first,)) + connection_id
                number_octets = (first & 3) + 1
                body_at = number_at + number_octets
                window = 1 << (8 * number_octets)
            size = end - at - body_at - TAG_OCTETS
            is_ours = first & _FIXED_BITS == _FIXED and size > 0
            if is_ours:
                if number_octets == 2:
                    truncated = ((datagrams[at + number_at] ^ masks[mask_at + 1]) << 8) | (
                        datagrams[at + number_at + 1] ^ masks[mask_at + 2]
                    )
                else:
                    truncated = int.from_bytes(
                        datagrams[at + number_at : at + body_at], "big"
                    ) ^ int.from_bytes(masks[mask_at + 1 : mask_at + 1 + number_octets], "big")
                # the number nearest to the one expected (RFC 9000 A.3)
                number = expected + ((truncated - expected) & (window - 1))
                if number > expected + (window >> 1) and number >= window:
                    number -= window
                if number < expected:
                    self._note_numbers(space, first_number, next_number, now)
                    first_number = next_number
                    if number in received:
                        continue
                try:
                    open_into(
                        (iv ^ number).to_bytes(12, "big"),
                        datagrams[at + body_at : end],
                        header_start + truncated.to_bytes(number_octets, "big"),
                        view[written : written + size],
                    )
                except InvalidTag:
                    is_ours = False
            if not is_ours:
                self._note_numbers(space, first_number, next_number, now)
                if pieces and not self._hand_on(kind, stream_id, offset, pieces):
                    return
                pieces, next_offset = [], -1
                self._leave_to_aioquic(datagrams[at:end], now)
                if connection.is_over or connection._close_pending:
                    return
                expected = first_number = next_number = _expected_number(space)
                continue
            is_opened = True
            if number != next_number:
                self._note_numbers(space, first_number, next_number, now)
                first_number = number
            next_number = number + 1
            if number >= expected:
                expected = next_number
                spin = first

            stop = written + size
            if 0x08 <= plain[written] <= 0x0F:
                frame_type = plain[written]
                p = written + 1
                frame_id = plain[p]
                if frame_id < 0x40:
                    p += 1
                else:
                    octets = 1 << (frame_id >> 6)
                    frame_id = int.from_bytes(view[p : p + octets], "big") & _VARINT[octets]
                    p += octets
                frame_offset = 0
                if frame_type & 4:
                    octets = 1 << (plain[p] >> 6)
                    frame_offset = int.from_bytes(view[p : p + octets], "big") & _VARINT[octets]
                    p += octets
                is_whole = p <= stop
                if frame_type & 2:
                    octets = 1 << (plain[p] >> 6)
                    p += octets
                    length = int.from_bytes(view[p - octets : p], "big") & _VARINT[octets]
                    is_whole = p + length == stop
                if is_whole:
                    elicits = True
                    if frame_offset != next_offset or frame_id != stream_id or kind & 1:
                        if pieces and not self._hand_on(kind, stream_id, offset, pieces):
                            return
                        pieces, stream_id, offset = [], frame_id, frame_offset
                    kind = frame_type
                    pieces.append(view[p:stop])
                    next_offset = frame_offset + stop - p
                    written = stop
                    continue
            if pieces and not self._hand_on(kind, stream_id, offset, pieces):
                return
            pieces, next_offset = [], -1
            is_eliciting = self._read_frames(bytes(view[written:stop]), now)
            if is_eliciting is None:
                return
            elicits = elicits or is_eliciting
        self._note_numbers(space, first_number, next_number, now)
        if pieces and not self._hand_on(kind, stream_id, offset, pieces):
            return
        if is_opened and not connection.is_over:
            self._note_batch(space, total, spin & _SPIN_BIT, elicits, now)

    def _leave_to_aioquic(self, datagram: memoryview, now: float) -> None:
        connection = self._connection
        connection.receive_datagram(bytes(datagram), connection._network_paths[0].addr, now)

    def _read_frames(self, payload: bytes, now: float) -> bool | None:
        """Have aioquic read a packet's frames.

        Returns whether they want an acknowledgement; None: they ended the connection.
        """
        connection = self._connection
        context = QuicReceiveContext(
            epoch=Epoch.ONE_RTT,
            host_cid=connection.host_cid,
            network_path=connection._network_paths[0],
            quic_logger_frames=None,
            time=now,
            version=connection._version,
        )
        try:
            is_eliciting, _ = connection._payload_received(context, payload)
        except QuicConnectionError as error:
            self._fail(error)
            return None
        return None if connection.is_over or connection._close_pending else is_eliciting

    def _hand_on(self, kind: int, stream_id: int, offset: int, pieces: list[memoryview]) -> bool:
        """Hand on what was read of a stream; False: that ended the connection."""
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        try:
            self._connection.place(kind, stream_id, offset, data, bool(kind & 1))
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

    def _note_numbers(self, space: QuicPacketSpace, first: int, stop: int, now: float) -> None:
        """Note that packets have come, as aioquic does for each."""
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

    def _note_batch(
        self, space: QuicPacketSpace, octets: int, spin: int, elicits: bool, now: float
    ) -> None:
        """What aioquic does after each packet, for a batch of them."""
        connection = self._connection
        connection._network_paths[0].bytes_received += octets
        if elicits and space.ack_at is None:
            space.ack_at = now + connection._ack_delay
        if now > self._noted_at + _IDLE_RESOLUTION_S:
            self._noted_at = now
            connection._close_at = now + connection._idle_timeout()
        connection._ack_eliciting_sent_since_receipt = False
        if space.largest_received_packet > connection._spin_highest_pn:
            connection._spin_highest_pn = space.largest_received_packet
            connection._spin_bit = bool(spin) != connection._is_client


def _expected_number(space: QuicPacketSpace) -> int:
    """One above the largest received: aioquic's own may be that one, which is no new packet."""
    return max(space.expected_packet_number, space.largest_received_packet + 1)


def add_numbers(window: QuicPacketNumberWindow, first: int, stop: int) -> None:
    """Note packets `first` to `stop`: what `add` does for each of them."""
    size = window._size
    window._received.update(range(max(first, stop - size, window._lower), stop))
    lower = stop - size
    if lower > window._lower:
        window._lower = lower
        if len(window._received) > 2 * size:
            window._received = {number for number in window._received if number >= lower}
