"""Reads 1-RTT packets by the batch.

A packet is opened here if it opens with the keys and the connection ID in use; a frame is read here
if it is a STREAM frame that fills its packet. Anything else goes to aioquic's own code, before any
state was changed: coalesced and long packets, the other key phase, other connection IDs, junk.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from aioquic.quic.connection import (
    QuicConnectionError,
    QuicReceiveContext,
)
from aioquic.quic.recovery import MAX_ACK_RANGES
from aioquic.tls import Epoch
from cryptography.exceptions import InvalidTag

from moqt.asyncio.bulk.protection import SAMPLE_OCTETS, TAG_OCTETS, gather, header_masks
from moqt.asyncio.bulk.rows import FEWEST_ROWS, open_rows, payload_of_rows

if TYPE_CHECKING:
    from aioquic.quic.recovery import QuicPacketNumberWindow, QuicPacketSpace

    from moqt.asyncio.bulk.connection import BulkConnection

_IDLE_RESOLUTION_S = 0.001
"""How exactly the idle timer is kept while much comes."""

_SPIN_BIT = 0x20
_FIXED_BITS, _FIXED = 0xD8, 0x40  # a short header, and its reserved bits
_OFF, _LEN, _FIN = 4, 2, 1  # of a STREAM frame's type
_VARINT = (0, 0x3F, 0x3FFF, 0, 0x3FFFFFFF, 0, 0, 0, 0x3FFFFFFFFFFFFFFF)


class BulkReader:
    """Opens the packets of one connection, whose handshake is confirmed."""

    def __init__(self, connection: BulkConnection) -> None:
        self._connection = connection
        self._plain = bytearray(65536)
        self._view = memoryview(self._plain)
        self._scratch = memoryview(bytearray(65536))
        self._noted_at = -1.0
        self._connection_id = connection.host_cid
        # octets of one stream, in order, that were not handed on yet
        self._kind = self._offset = 0
        self._stream_id = self._next_offset = -1
        self._pieces: list[memoryview | bytes] = []
        self._next_head = b""  # of a frame that would go on there, as its sender writes them
        self._start_of_head, self._offset_octets = b"", 0

    def read(self, datagrams: memoryview, segment_octets: int, now: float) -> None:
        """Take datagrams that came from the connection's own path, one after another.

        Octets of one stream that follow each other are handed on at once, and numbers of packets
        that do are noted at once; both before aioquic's code is to see them.
        """
        connection = self._connection
        crypto = connection._cryptos[Epoch.ONE_RTT].recv
        space = connection._spaces[Epoch.ONE_RTT]
        aead, protection = crypto.aead, crypto.hp
        connection_id = self._connection_id = self._id_in_use(datagrams)
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
        view = self._view
        received = space.received_packets
        expected = first_number = next_number = _expected_number(space)
        first = -1
        header_start = b""
        elicits = is_opened = False
        spin = 0  # what the packet with the largest number has
        written = mask_at = 0
        rows = total // segment_octets
        if rows >= FEWEST_ROWS:
            grid = np.frombuffer(datagrams, np.uint8, rows * segment_octets).reshape(rows, -1)
            samples = grid[:, sample_at:sample_stop].tobytes()
            opened, size, first_octet = open_rows(
                grid,
                datagrams,
                header_masks(protection, samples),
                connection_id=connection_id,
                expected=expected,
                open_into=open_into,
                iv=iv,
                plain=view,
            )
            if opened:
                is_opened, spin = True, first_octet
                next_number = expected = expected + opened
                is_eliciting = self._read_rows(opened, size, now)
                if is_eliciting is None:
                    return
                elicits = is_eliciting
                written = opened * size
                starts = starts[opened:]
        masks = header_masks(
            protection,
            b"".join([datagrams[at + sample_at : at + sample_stop] for at in starts]),
        )
        for at in starts:
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
                        mask_at += SAMPLE_OCTETS
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
            mask_at += SAMPLE_OCTETS
            if not is_ours:
                self._note_numbers(space, first_number, next_number, now)
                if not self._hand_on():
                    return
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
                expected, spin = next_number, first
            is_eliciting = self._take(written, written + size, now)
            if is_eliciting is None:
                return
            elicits = elicits or is_eliciting
            written += size
        self._note_numbers(space, first_number, next_number, now)
        if self._hand_on() and is_opened and not connection.is_over:
            self._note_batch(space, total, spin & _SPIN_BIT, elicits, now)

    def _id_in_use(self, datagrams: memoryview) -> bytes:
        """Return the connection ID that the peer sends to.

        A server may take another of a client's at any time (RFC 9000 5.1.2), which aioquic doesn't
        keep; a client does so when it moves, which is aioquic's to deal with.
        """
        connection, known = self._connection, self._connection_id
        if not connection._is_client:
            return connection.host_cid
        found = bytes(datagrams[1 : 1 + len(known)])
        if found != known and any(one.cid == found for one in connection._host_cids):
            return found
        return known

    def _read_rows(self, rows: int, size: int, now: float) -> bool | None:
        """Take the payloads of packets that were opened as rows; what `_take` returns of all."""
        frame = self._stream_frame(0, size)
        if frame is not None and rows > 1:
            kind, stream_id, offset, offset_at, start = frame
            data = None
            if kind & (_OFF | _FIN) == _OFF:
                data = payload_of_rows(
                    np.frombuffer(self._plain, np.uint8, rows * size).reshape(rows, size),
                    frame_octets=start,
                    offset_at=offset_at,
                    offset=offset,
                    scratch=self._scratch,
                )
            if data is not None:
                self._kind, self._stream_id, self._offset = kind, stream_id, offset
                self._pieces.append(data)
                return True if self._hand_on() else None
        elicits = False
        for start in range(0, rows * size, size):
            is_eliciting = self._take(start, start + size, now)
            if is_eliciting is None:
                return None
            elicits = elicits or is_eliciting
        return elicits

    def _take(self, start: int, stop: int, now: float) -> bool | None:
        """Take one payload; whether it wants an acknowledgement, None: it ended the connection."""
        head = self._next_head
        data_at = start + len(head)
        if head and data_at <= stop and self._plain[start:data_at] == head:
            start = data_at
            self._pieces.append(self._view[start:stop])
            next_offset = self._next_offset + stop - start
            self._expect(self._start_of_head, next_offset, self._offset_octets)
            return True
        frame = self._stream_frame(start, stop)
        if frame is None:
            if not self._hand_on():
                return None
            return self._read_frames(bytes(self._view[start:stop]), now)
        kind, stream_id, offset, offset_at, data_at = frame
        if offset != self._next_offset or stream_id != self._stream_id or self._kind & _FIN:
            if not self._hand_on():
                return None
            self._stream_id, self._offset = stream_id, offset
        self._kind = kind
        self._pieces.append(self._view[data_at:stop])
        width = data_at - offset_at if kind & (_OFF | _LEN | _FIN) == _OFF else 0
        self._expect(bytes(self._view[start:offset_at]), offset + stop - data_at, width)
        return True

    def _expect(self, start_of_head: bytes, offset: int, width: int) -> None:
        """Note how a frame begins that goes on at `offset`, written in `width` octets as the last
        one; 0: it's not worth it."""
        self._next_offset = offset
        if width and offset < 1 << 8 * width - 2:
            mark = width.bit_length() - 1 << 8 * width - 2
            self._next_head = start_of_head + (offset | mark).to_bytes(width, "big")
            self._start_of_head, self._offset_octets = start_of_head, width
        else:
            self._next_head = b""

    def _stream_frame(self, start: int, stop: int) -> tuple[int, int, int, int, int] | None:
        """Read the head of a STREAM frame that fills a payload: its type, the stream ID, the
        offset, where that is, and where its octets begin. None: it's something else, or more."""
        plain, view = self._plain, self._view
        kind = plain[start]
        if not 0x08 <= kind <= 0x0F:
            return None
        start += 1
        stream_id = plain[start]
        if stream_id < 0x40:
            start += 1
        else:
            octets = 1 << (stream_id >> 6)
            stream_id = int.from_bytes(view[start : start + octets], "big") & _VARINT[octets]
            start += octets
        offset, offset_at = 0, start
        if kind & _OFF:
            octets = 1 << (plain[start] >> 6)
            offset = int.from_bytes(view[start : start + octets], "big") & _VARINT[octets]
            start += octets
        if kind & _LEN:
            octets = 1 << (plain[start] >> 6)
            length = int.from_bytes(view[start : start + octets], "big") & _VARINT[octets]
            start += octets
            if start + length != stop:
                return None
        return (kind, stream_id, offset, offset_at, start) if start <= stop else None

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
            host_cid=self._connection_id,
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

    def _hand_on(self) -> bool:
        """Hand on what was read of a stream, if anything; False: that ended the connection."""
        pieces = self._pieces
        if not pieces:
            return True
        self._pieces, self._next_offset, self._next_head = [], -1, b""
        data = pieces[0] if len(pieces) == 1 else gather(self._scratch, pieces)
        kind = self._kind
        try:
            self._connection.place(kind, self._stream_id, self._offset, data, bool(kind & _FIN))
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
