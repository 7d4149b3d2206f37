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
from moqt.asyncio.bulk.opening import FrameHead, Opener
from moqt.asyncio.bulk.protection import SAMPLE_OCTETS
from moqt.asyncio.bulk.received import ReceivedNumbers
from moqt.asyncio.bulk.rows import FEWEST_ROWS, payload_of_rows

if TYPE_CHECKING:
    from aioquic.quic.recovery import QuicPacketSpace

    from moqt.asyncio.bulk.connection import BulkConnection

MAX_TRIES = 8
"""A run is tried so often as rows, after a packet that was none: each try looks at all the rest."""

UNHURRIED_ACK_S = 0.015
"""So often at most packets are acknowledged that brought nothing new to the application: whoever
sent nothing but control frames waits for its probe timeout, which is no less than max_ack_delay,
25 ms. The first is at once, with what its frames lead to, as a timer costs more than an ACK."""

_HEAD_ROOM = 32
"""Octets of memory in front of the first payload: for the head of a STREAM frame, 25 at most."""

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
        self._acknowledged_at = -UNHURRIED_ACK_S
        """When the last ACK was due."""
        self._connection_id = connection.host_cid
        # packets opened that were not noted yet: their numbers; what the newest one has
        self._first_number = self._next_number = self._expected = 0
        self._spin = 0
        self._is_opened = self._elicits = self._has_octets = False
        # octets of one stream that were not handed on yet: from where to where in `_view`
        self._start = self._stop = _HEAD_ROOM
        self._kind = self._offset = 0
        self._stream_id = -1
        # the head of the last frame, and the offset at which another one like it would go on
        self._head: FrameHead | None = None
        self._next_offset = 0

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
        self._start = self._stop = _HEAD_ROOM
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
        self._start = self._stop = _HEAD_ROOM
        self._head = None
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
                scratch=datagrams,  # these were opened, those behind them keep their octets
            )
            self._elicits = self._has_octets = True
            if not self._place(kind, stream_id, offset, data):
                return -1
            row += taken
        return rows

    def _read_each(
        self, opener: Opener, datagrams: memoryview, segment_octets: int, now: float
    ) -> bool:
        """Take packets one by one, and at once those that go on where one ended."""
        octets = len(datagrams)
        masks = opener.masks(datagrams, range(0, octets, segment_octets))
        at = mask_at = 0
        while at < octets:
            if self._head is not None and octets - at >= segment_octets:
                rows = self._read_on(opener, datagrams[at:], masks[mask_at:], segment_octets)
                at += rows * segment_octets
                mask_at += rows * SAMPLE_OCTETS
                if at == octets:
                    break
            mask = masks[mask_at : mask_at + SAMPLE_OCTETS]
            if not self._read_one(opener, datagrams[at : at + segment_octets], mask, now):
                return False
            at += segment_octets
            mask_at += SAMPLE_OCTETS
        return True

    def _read_on(
        self, opener: Opener, datagrams: memoryview, masks: bytes, segment_octets: int
    ) -> int:
        """Take packets whose frames go on where the last one ended, in this run or the one before.

        Returns how many were, from the first on.
        """
        head = self._head
        if head is None or self._next_number != self._expected:
            return 0
        if self._kind:
            self._next_offset = self._offset + self._stop - self._start
        rows, step = opener.open_on(
            datagrams,
            masks,
            segment_octets,
            number=self._expected,
            head=head,
            offset=self._next_offset,
            view=self._view,
            stop=self._stop,
        )
        if rows:
            if not self._kind:
                self._kind, self._stream_id, self._offset = (
                    head.kind,
                    head.stream_id,
                    self._next_offset,
                )
                self._start = self._stop
            self._stop += rows * step
            self._next_number = self._expected = self._expected + rows
            self._spin = opener.first_octet
            self._is_opened = self._elicits = self._has_octets = True
        return rows

    def _read_one(self, opener: Opener, datagram: memoryview, mask: bytes, now: float) -> bool:
        """Take a packet, or have aioquic take it."""
        connection = self._connection
        sealed = opener.look(datagram, mask, self._expected)
        if sealed is not None and sealed.number < self._expected:
            self._note_numbers(now)
            if sealed.number in connection._spaces[Epoch.ONE_RTT].received_packets:
                return True
        start = self._stop
        if sealed is None or not opener.open(
            sealed, datagram, self._view[start : start + sealed.size]
        ):
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
        return self._take(start, start + sealed.size, now)

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
            self._head = FrameHead(
                kind=self._kind,
                stream_id=self._stream_id,
                start=bytes(view[start:offset_at]),
                offset_octets=length_at - offset_at,
                end=bytes(view[length_at:data_at]),
                payload_octets=stop - start,
            )
        else:
            self._head = None
        return True

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
        kind, self._kind = self._kind, 0
        if not kind:
            return True
        self._next_offset = self._offset + self._stop - self._start
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
        received = space.received_packets
        assert isinstance(received, ReceivedNumbers)
        received.add_run(first, stop)

    def _note_batch(self, space: QuicPacketSpace, octets: int, now: float) -> None:
        """What aioquic does after each packet, for a run of them."""
        connection = self._connection
        connection._network_paths[0].bytes_received += octets
        if self._elicits:
            if self._has_octets:
                ack_at = now + connection._ack_delay
            else:
                ack_at = max(now, min(self._acknowledged_at, now) + UNHURRIED_ACK_S)
            if space.ack_at is None or ack_at < space.ack_at:
                space.ack_at = self._acknowledged_at = ack_at
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
