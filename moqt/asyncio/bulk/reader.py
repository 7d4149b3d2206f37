"""Reads 1-RTT packets by the run.

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

from moqt.asyncio.bulk.memory import run_memory
from moqt.asyncio.bulk.opening import Opener, Sealed
from moqt.asyncio.bulk.protection import SAMPLE_OCTETS
from moqt.asyncio.bulk.rows import FEWEST_ROWS, payload_of_rows

if TYPE_CHECKING:
    from aioquic.quic.recovery import QuicPacketNumberWindow, QuicPacketSpace

    from moqt.asyncio.bulk.connection import BulkConnection

MAX_TRIES = 8
"""A run is tried so often as rows, after a packet that was none: each try looks at all the rest."""

UNHURRIED_ACK_S = 0.015
"""When packets are acknowledged that brought nothing new to the application: whoever sent nothing
but control frames waits for its probe timeout at most, which is no less than max_ack_delay, 25 ms.
"""

_IDLE_RESOLUTION_S = 0.001
"""How exactly the idle timer is kept while much comes."""

_SPIN_BIT = 0x20
_OFF, _LEN, _FIN = 4, 2, 1  # of a STREAM frame's type
_VARINT = (0, 0x3F, 0x3FFF, 0, 0x3FFFFFFF, 0, 0, 0, 0x3FFFFFFFFFFFFFFF)


class BulkReader:
    """Opens the packets of one connection, whose handshake is confirmed.

    A method that returns bool says whether to go on: False means that the connection is over.
    """

    def __init__(self, connection: BulkConnection) -> None:
        self._connection = connection
        self._view = memoryview(b"")
        """Where payloads are while they are read: the thread's own memory."""
        self._noted_at = -1.0
        self._connection_id = connection.host_cid
        # packets opened that were not noted yet: their numbers; what the newest one has
        self._first_number = self._next_number = self._expected = 0
        self._spin = 0
        self._is_opened = self._elicits = self._has_octets = False
        # octets of one stream that were not handed on yet: from where to where in `_view`
        self._start = self._stop = 0
        self._kind = self._offset = 0
        self._stream_id = -1
        # the head of a frame that would go on there, as its sender writes them; what is the same in
        # front of its offset and behind it; the octets of the last one, which its length is of
        self._next_head = b""
        self._head = b"", b""
        self._frame_octets = 0

    def read(self, datagrams: memoryview, segment_octets: int, now: float) -> None:
        """Take datagrams that came from the connection's own path, one after another.

        Octets of one stream that follow each other are handed on at once, and numbers of packets
        that do are noted at once; both before aioquic's code is to see them.
        """
        connection = self._connection
        self._view = run_memory("opened")
        space = connection._spaces[Epoch.ONE_RTT]
        self._connection_id = self._id_in_use(datagrams)
        opener = Opener(connection._cryptos[Epoch.ONE_RTT].recv, self._connection_id)
        total = len(datagrams)
        starts = range(0, total, segment_octets)
        if segment_octets < opener.least_octets:
            for at in starts:
                self._leave_to_aioquic(datagrams[at : at + segment_octets], now)
            return
        if total - starts[-1] < opener.least_octets:  # the rest of a run is no packet
            self._leave_to_aioquic(datagrams[starts[-1] :], now)
            starts = starts[:-1]
            if not starts or connection.is_over:
                return
        self._expect_number(_expected_number(space))
        self._start = self._stop = 0
        self._is_opened = self._elicits = self._has_octets = False
        whole = total - total % segment_octets
        at, tries = 0, 0
        while whole - at >= FEWEST_ROWS * segment_octets and tries < MAX_TRIES:
            tries += 1
            opened = self._read_rows(opener, datagrams[at:whole], segment_octets, now)
            if opened < 0:
                return
            at += opened * segment_octets
            if at < whole:  # that one is unlike those before it
                stop = at + segment_octets
                if not self._read_each(opener, datagrams[at:stop], segment_octets, now):
                    return
                at = stop
        if at < starts.stop and not self._read_each(
            opener, datagrams[at : starts.stop], segment_octets, now
        ):
            return
        self._note_numbers(now)
        if self._hand_on() and self._is_opened and not connection.is_over:
            self._note_batch(space, total, now)

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

    def _read_rows(
        self, opener: Opener, datagrams: memoryview, segment_octets: int, now: float
    ) -> int:
        """Take packets that are alike, from the first on; return how many were. Negative: the
        connection is over."""
        if not self._hand_on():
            return -1
        self._start = self._stop = 0
        rows, size, first = opener.open_rows(datagrams, segment_octets, self._expected, self._view)
        if not rows:
            return 0
        if self._next_number != self._expected:
            self._note_numbers(now)
            self._first_number = self._expected
        self._is_opened, self._spin = True, first
        self._next_number = self._expected = self._expected + rows
        plain = np.frombuffer(self._view, np.uint8, rows * size).reshape(rows, size)
        row = 0
        while row < rows:
            start = row * size
            frame = self._stream_frame(start, start + size)
            if frame is None or frame[0] & (_OFF | _FIN) != _OFF:
                if not (self._take(start, start + size, now) and self._hand_on()):
                    return -1
                row += 1
                continue
            kind, stream_id, offset, offset_at, data_at = frame
            taken, data = payload_of_rows(
                plain[row:],
                frame_octets=data_at - start,
                offset_at=offset_at - start,
                offset=offset,
                scratch=run_memory("joined"),
            )
            self._elicits = self._has_octets = True
            if not self._place(kind, stream_id, offset, data):
                return -1
            row += taken
        return rows

    def _read_each(
        self, opener: Opener, datagrams: memoryview, segment_octets: int, now: float
    ) -> bool:
        """Take packets one by one."""
        starts = range(0, len(datagrams), segment_octets)
        masks = opener.masks(datagrams, starts)
        mask_at = 0
        for at in starts:
            mask = masks[mask_at : mask_at + SAMPLE_OCTETS]
            mask_at += SAMPLE_OCTETS
            if not self._read_one(opener, datagrams[at : at + segment_octets], mask, now):
                return False
        return True

    def _read_one(self, opener: Opener, datagram: memoryview, mask: bytes, now: float) -> bool:
        """Take a packet, or have aioquic take it."""
        connection = self._connection
        sealed = opener.look(datagram, mask, self._expected)
        if sealed is not None and sealed.number < self._expected:
            self._note_numbers(now)
            if sealed.number in connection._spaces[Epoch.ONE_RTT].received_packets:
                return True
        data_at = None if sealed is None else self._open(opener, sealed, datagram)
        if sealed is None or data_at is None:
            self._note_numbers(now)
            if not self._hand_on():
                return False
            self._leave_to_aioquic(datagram, now)
            self._expect_number(_expected_number(connection._spaces[Epoch.ONE_RTT]))
            return not (connection.is_over or connection._close_pending)
        number = sealed.number
        self._is_opened = True
        if number != self._next_number:
            self._note_numbers(now)
            self._first_number = number
        self._next_number = number + 1
        if number >= self._expected:
            self._expected, self._spin = self._next_number, sealed.first_octet
        if data_at < self._stop:
            offset_octets = len(self._next_head) - sum(map(len, self._head))
            self._stop += sealed.size - len(self._next_head)
            self._expect_head(offset_octets)
            self._elicits = self._has_octets = True
            return True
        return self._take(data_at, data_at + sealed.size, now)

    def _open(self, opener: Opener, sealed: Sealed, datagram: memoryview) -> int | None:
        """Open a packet; return where its payload is. None: it isn't for this key.

        Its frame most likely goes on where the last one ended. So it is opened with the head that
        such a frame has over the end of the last one's octets, which is put back: that way the
        octets of both lie together, and nothing is moved. A payload that is said to be there, in
        front of `_stop`, is such a one.
        """
        view, head, stop = self._view, self._next_head, self._stop
        start = stop - len(head)
        kept = bytes(view[start:stop])
        is_open = opener.open(sealed, datagram, view[start : start + sealed.size])
        if head:
            is_next = self._goes_on(sealed.size) and view[start:stop] == head
            if is_open and not is_next:
                view[stop : stop + sealed.size] = bytes(view[start : start + sealed.size])
            view[start:stop] = kept
            if not is_next:
                start = stop
        return start if is_open else None

    def _take(self, start: int, stop: int, now: float) -> bool:
        """Take the payload that is there, behind what waits to be handed on."""
        frame = self._stream_frame(start, stop)
        if frame is None:
            if not self._hand_on():
                return False
            self._start = self._stop = stop
            return self._read_frames(bytes(self._view[start:stop]), now)
        if not self._hand_on():
            return False
        self._kind, self._stream_id, self._offset, offset_at, data_at = frame
        self._start, self._stop = data_at, stop
        self._elicits = self._has_octets = True
        if self._kind & (_OFF | _FIN) == _OFF:
            length_at = offset_at + (1 << (self._view[offset_at] >> 6))
            view = self._view
            self._head = bytes(view[start:offset_at]), bytes(view[length_at:data_at])
            self._frame_octets = stop - data_at
            self._expect_head(length_at - offset_at)
        return True

    def _expect_head(self, width: int) -> None:
        """Note the head of a frame that goes on at `_stop`: as the last one but for the offset, of
        so many octets."""
        offset = self._offset + self._stop - self._start
        if offset < 1 << 8 * width - 2:
            start, end = self._head
            mark = width.bit_length() - 1 << 8 * width - 2
            self._next_head = start + (offset | mark).to_bytes(width, "big") + end
        else:
            self._next_head = b""

    def _goes_on(self, size: int) -> bool:
        """Whether a packet of so many octets, which begins with `_next_head`, does so."""
        octets = size - len(self._next_head)
        return octets == self._frame_octets if self._kind & _LEN else octets >= 0

    def _stream_frame(self, start: int, stop: int) -> tuple[int, int, int, int, int] | None:
        """Read the head of a STREAM frame that fills a payload: its type, the stream ID, the
        offset, where that is, and where its octets begin. None: it's something else, or more."""
        view = self._view
        kind = view[start]
        if not 0x08 <= kind <= 0x0F:
            return None
        start += 1
        stream_id = view[start]
        if stream_id < 0x40:
            start += 1
        else:
            octets = 1 << (stream_id >> 6)
            stream_id = int.from_bytes(view[start : start + octets], "big") & _VARINT[octets]
            start += octets
        offset, offset_at = 0, start
        if kind & _OFF:
            octets = 1 << (view[start] >> 6)
            offset = int.from_bytes(view[start : start + octets], "big") & _VARINT[octets]
            start += octets
        if kind & _LEN:
            octets = 1 << (view[start] >> 6)
            length = int.from_bytes(view[start : start + octets], "big") & _VARINT[octets]
            start += octets
            if start + length != stop:
                return None
        return (kind, stream_id, offset, offset_at, start) if start <= stop else None

    def _leave_to_aioquic(self, datagram: memoryview, now: float) -> None:
        connection = self._connection
        connection.receive_datagram(bytes(datagram), connection._network_paths[0].addr, now)

    def _read_frames(self, payload: bytes, now: float) -> bool:
        """Have aioquic read a packet's frames."""
        connection = self._connection
        context = QuicReceiveContext(
            epoch=Epoch.ONE_RTT,
            host_cid=self._connection_id,
            network_path=connection._network_paths[0],
            quic_logger_frames=None,
            time=now,
            version=connection._version,
        )
        octets, events = connection.received_octets, len(connection._events)
        try:
            is_eliciting, _ = connection._payload_received(context, payload)
        except QuicConnectionError as error:
            self._fail(error)
            return False
        self._elicits = self._elicits or is_eliciting
        if connection.received_octets != octets or len(connection._events) != events:
            self._has_octets = True  # or a datagram
        return not (connection.is_over or connection._close_pending)

    def _hand_on(self) -> bool:
        """Hand on what was read of a stream, if anything."""
        kind, self._kind, self._next_head = self._kind, 0, b""
        if not kind:
            return True
        return self._place(
            kind, self._stream_id, self._offset, self._view[self._start : self._stop]
        )

    def _place(self, kind: int, stream_id: int, offset: int, data: memoryview) -> bool:
        try:
            self._connection.place(kind, stream_id, offset, data, bool(kind & _FIN))
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

    def _expect_number(self, number: int) -> None:
        self._first_number = self._next_number = self._expected = number

    def _note_numbers(self, now: float) -> None:
        """Note that packets have come, as aioquic does for each."""
        first, stop = self._first_number, self._next_number
        if first == stop:
            return
        self._first_number = stop
        space = self._connection._spaces[Epoch.ONE_RTT]
        if stop > space.expected_packet_number:
            space.expected_packet_number = stop
        if stop - 1 > space.largest_received_packet:
            space.largest_received_packet = stop - 1
            space.largest_received_time = now
        space.ack_queue.add(first, stop)
        if len(space.ack_queue) > MAX_ACK_RANGES:
            space.ack_queue.shift()
        add_numbers(space.received_packets, first, stop)

    def _note_batch(self, space: QuicPacketSpace, octets: int, now: float) -> None:
        """What aioquic does after each packet, for a run of them."""
        connection = self._connection
        connection._network_paths[0].bytes_received += octets
        if self._elicits:
            ack_at = now + (connection._ack_delay if self._has_octets else UNHURRIED_ACK_S)
            if space.ack_at is None or ack_at < space.ack_at:
                space.ack_at = ack_at
        if now > self._noted_at + _IDLE_RESOLUTION_S:
            self._noted_at = now
            connection._close_at = now + connection._idle_timeout()
        connection._ack_eliciting_sent_since_receipt = False
        if space.largest_received_packet > connection._spin_highest_pn:
            connection._spin_highest_pn = space.largest_received_packet
            connection._spin_bit = bool(self._spin & _SPIN_BIT) != connection._is_client


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
