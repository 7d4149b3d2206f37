"""Writes 1-RTT packets of STREAM frames by the batch.

A batch is one run of one stream, cut into packets of the path's size in one buffer, and given to
the socket in one call. Each packet holds one frame without a length, which fills it. Control frames
and all other streams are aioquic's to write; it does so first.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from aioquic.quic.packet import QuicPacketType
from aioquic.tls import Epoch

from moqt.asyncio.bulk.protection import SAMPLE_OCTETS, TAG_OCTETS, header_masks
from moqt.asyncio.bulk.sender import Run

if TYPE_CHECKING:
    from typing import Any

    from moqt.asyncio.bulk.connection import BulkConnection
    from moqt.asyncio.bulk.sender import ReferencingSender
    from moqt.asyncio.connection import Emit

BATCH_OCTETS = 65000
"""No more in one call of the socket: what a UDP datagram may hold, and a little less."""

BATCH_DATAGRAMS = 64
"""The most that Linux cuts one buffer into."""

BATCHES_AT_ONCE = 16
"""Then what has arrived meanwhile is looked at."""

FAR_NUMBERS = 1 << 14
"""So many packets beyond the last acknowledged one, numbers are written in four octets."""

PACKETS_BY_KEY = 1 << 22
"""Packets sealed with one key before it's updated: half of what AES-GCM allows (RFC 9001 6.6)."""

_FIXED_BIT = 0x40
_STREAM_OFF = 0x0C
_FIN = 0x01


class SentPacket:
    """What aioquic's loss recovery keeps of a packet: stands in for its `QuicSentPacket`."""

    __slots__ = ("delivery_handlers", "packet_number", "sent_bytes", "sent_time")

    epoch = Epoch.ONE_RTT
    in_flight = True
    is_ack_eliciting = True
    is_crypto_packet = False
    packet_type = QuicPacketType.ONE_RTT
    quic_logger_frames: tuple[()] = ()

    def __init__(self, number: int, octets: int, at: float, handlers: Any) -> None:
        self.packet_number = number
        self.sent_bytes = octets
        self.sent_time = at
        self.delivery_handlers = handlers


class BulkWriter:
    """Sends what a connection's `ReferencingSender`s have, first come, first served."""

    def __init__(self, connection: BulkConnection) -> None:
        self._connection = connection
        self._buffer = bytearray(65536)
        self._view = memoryview(self._buffer)
        self._queue: deque[ReferencingSender] = deque()
        self._blocked: list[ReferencingSender] = []
        self._key_number = 0
        """The first packet number under the key in use."""
        self._key_phase = 0

    def add(self, sender: ReferencingSender, *, is_urgent: bool) -> None:
        """It has something to send; what is to be sent again goes first."""
        if sender.is_queued:
            if not is_urgent or (self._queue and self._queue[0] is sender):
                return
            if sender in self._queue:  # rare: a loss
                self._queue.remove(sender)
            else:
                self._blocked.remove(sender)
        sender.is_queued = True
        if is_urgent:
            self._queue.appendleft(sender)
        else:
            self._queue.append(sender)

    @property
    def has_work(self) -> bool:
        """Whether some stream waits for its turn, or for its peer."""
        return bool(self._queue or self._blocked)

    def write(self, now: float, emit: Emit) -> bool:
        """Send what congestion control, pacing and flow control let through.

        Returns True when there is more that could be sent at once.
        """
        connection = self._connection
        queue = self._queue
        if self._blocked:  # until its peer grants more; looked at once in a while only
            queue.extend(self._blocked)
            self._blocked.clear()
        if not queue:
            return False
        self._renew_key()
        datagram_octets = connection.datagram_size
        batch_datagrams = max(1, min(BATCH_DATAGRAMS, BATCH_OCTETS // datagram_octets))
        controller = connection._loss._cc
        pacer = connection.burst_pacer
        batches = 0
        while queue:
            room = (controller.congestion_window - controller.bytes_in_flight) // datagram_octets
            if room <= 0:
                return False
            if batches == BATCHES_AT_ONCE:
                return True
            paced_octets = pacer.available(now)
            if not paced_octets:
                connection._pacing_at = pacer.next_send_time(now)
                return False
            sender = queue[0]
            run = self._next_run(sender)
            if run is None:
                queue.popleft()
                if sender.has_pending:
                    self._blocked.append(sender)
                else:
                    sender.is_queued = False
                continue
            datagrams = min(room, batch_datagrams, 1 + paced_octets // datagram_octets)
            octets, is_writable = self._send(sender, run, datagrams, datagram_octets, now, emit)
            pacer.spend(octets, now)
            batches += 1
            if not is_writable:
                return False
        return False

    def _next_run(self, sender: ReferencingSender) -> Run | None:
        connection = self._connection
        stream = connection._streams.get(sender.stream_id)
        if stream is None or not sender.has_pending:
            return None
        before = sender.highest_offset
        room = connection._remote_max_data - connection._remote_max_data_used
        return sender.next_run(min(stream.max_stream_data_remote, before + room))

    def _renew_key(self) -> None:
        connection = self._connection
        pair = connection._cryptos[Epoch.ONE_RTT]
        number = connection._packet_number
        if (
            number - self._key_number >= PACKETS_BY_KEY
            and connection._spaces[Epoch.ONE_RTT].largest_acked_packet >= self._key_number
            and pair.send.key_phase == self._key_phase
        ):
            connection.request_key_update()
        if pair._update_key_requested:
            pair._update_key("local_update")
        if pair.send.key_phase != self._key_phase:
            self._key_phase = pair.send.key_phase
            self._key_number = number

    def _send(
        self,
        sender: ReferencingSender,
        run: Run,
        datagrams: int,
        datagram_octets: int,
        now: float,
        emit: Emit,
    ) -> tuple[int, bool]:
        """Seal as many packets of the run; return the octets sent, and whether to go on."""
        connection = self._connection
        crypto = connection._cryptos[Epoch.ONE_RTT].send
        aead = crypto.aead
        protection = crypto.hp
        assert aead is not None
        assert protection is not None
        seal_into, iv = aead._aead.encrypt_into, aead._iv
        space = connection._spaces[Epoch.ONE_RTT]
        number = connection._packet_number
        number_octets = 2 if number - space.largest_acked_packet < FAR_NUMBERS else 4
        number_mask = (1 << (8 * number_octets)) - 1
        first = _FIXED_BIT | connection._spin_bit << 5 | crypto.key_phase << 2 | number_octets - 1
        start_of_header = bytes((first,)) + connection._peer_cid.cid
        number_at = len(start_of_header)
        header_octets = number_at + number_octets

        id_octets = sender.id_octets
        offset_octets, offset_mark = (4, 0x80000000) if run.stop < 1 << 30 else (8, 0xC << 60)
        frame_octets = 1 + len(id_octets) + offset_octets
        kind, last_kind = (
            bytes((_STREAM_OFF,)) + id_octets,
            bytes((_STREAM_OFF | _FIN,)) + id_octets,
        )
        payload_octets = datagram_octets - header_octets - frame_octets - TAG_OCTETS
        start = run.start
        stop = min(run.stop, start + datagrams * payload_octets)
        pieces = sender.slices(start, stop) if stop > start else []
        if len(pieces) == 1:
            payloads = memoryview(pieces[0])
        elif stop - start > payload_octets:
            payloads = memoryview(b"".join(pieces))
        else:
            payloads = None  # one packet, of several pieces

        buffer, view = self._buffer, self._view
        sent = space.sent_packets
        on_delivery = sender.on_data_delivery
        sample_at = number_at + 4
        samples = []
        heads = []
        first_number = number
        at = 0
        while True:
            end = start + payload_octets
            if end > stop:
                end = stop
            fin = run.fin and end == run.stop
            header = start_of_header + (number & number_mask).to_bytes(number_octets, "big")
            frame = last_kind if fin else kind
            offset = (start | offset_mark).to_bytes(offset_octets, "big")
            if payloads is None:
                plain = b"".join((frame, offset, *pieces))
            else:
                plain = b"".join((frame, offset, payloads[start - run.start : end - run.start]))
            body_at = at + header_octets
            buffer[at:body_at] = header
            packet_end = body_at + len(plain) + TAG_OCTETS
            seal_into((iv ^ number).to_bytes(12, "big"), plain, header, view[body_at:packet_end])
            samples.append(buffer[at + sample_at : at + sample_at + SAMPLE_OCTETS])
            heads.append(at)
            sent[number] = SentPacket(  # type: ignore[assignment]
                number, packet_end - at, now, ((on_delivery, (start, end, fin)),)
            )
            number += 1
            at = packet_end
            start = end
            if start >= stop:
                break

        masks = header_masks(protection, samples)
        mask_at = 0
        for head in heads:
            buffer[head] ^= masks[mask_at] & 0x1F
            head += number_at
            buffer[head] ^= masks[mask_at + 1]
            buffer[head + 1] ^= masks[mask_at + 2]
            if number_octets == 4:
                buffer[head + 2] ^= masks[mask_at + 3]
                buffer[head + 3] ^= masks[mask_at + 4]
            mask_at += SAMPLE_OCTETS

        if run.is_new:
            connection._remote_max_data_used += stop - run.start
        if stop < run.stop:
            sender.put_back(Run(stop, run.stop, run.fin, run.is_new))
        connection.note_sent(first_number, number, at, now)
        is_writable = emit(view[:at], datagram_octets, connection._network_paths[0].addr)
        return at, is_writable

