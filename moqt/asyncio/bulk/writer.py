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

from moqt.asyncio.bulk.sealing import FAR_NUMBERS, Sealer
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

PACKETS_BY_KEY = 1 << 22
"""Packets sealed with one key before it's updated: half of what AES-GCM allows (RFC 9001 6.6)."""


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
        self._view = memoryview(bytearray(65536))
        self._scratch = memoryview(bytearray(65536))
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

    def will_repeat(self, now: float) -> bool:
        """Whether `write` would begin with what was lost."""
        connection = self._connection
        loss = connection._loss
        return (
            bool(self._queue)
            and self._queue[0].has_lost
            and loss.congestion_window - loss.bytes_in_flight >= connection.datagram_size
            and connection.burst_pacer.available(now) > 0
        )

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
        sealer: Sealer | None = None
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
            if sealer is None:  # not before: a key under which nothing is sent is never confirmed
                self._renew_key()
                sealer = self._sealer()
            datagrams = min(room, batch_datagrams, 1 + paced_octets // datagram_octets)
            octets, is_writable = self._send(
                sealer, sender, run, datagrams, datagram_octets, now, emit
            )
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

    def _sealer(self) -> Sealer:
        connection = self._connection
        last_acked = connection._spaces[Epoch.ONE_RTT].largest_acked_packet
        return Sealer(
            connection._cryptos[Epoch.ONE_RTT].send,
            self._scratch,
            connection_id=connection._peer_cid.cid,
            spin_bit=connection._spin_bit,
            is_far=connection._packet_number - last_acked >= FAR_NUMBERS,
        )

    def _send(
        self,
        sealer: Sealer,
        sender: ReferencingSender,
        run: Run,
        datagrams: int,
        datagram_octets: int,
        now: float,
        emit: Emit,
    ) -> tuple[int, bool]:
        """Send so many packets of the run; return the octets sent, and whether to go on."""
        connection = self._connection
        number = connection._packet_number
        step = sealer.payload_octets(sender.id_octets, run.stop, datagram_octets)
        start = run.start
        stop = min(run.stop, start + datagrams * step)
        fin = run.fin and stop == run.stop
        octets = sealer.seal(
            self._view,
            sender.slices(start, stop) if stop > start else [b""],
            id_octets=sender.id_octets,
            start=start,
            stop=stop,
            offset_limit=run.stop,
            fin=fin,
            number=number,
            datagram_octets=datagram_octets,
        )
        sent = connection._spaces[Epoch.ONE_RTT].sent_packets
        on_delivery = sender.on_data_delivery
        first_number = number
        for first in range(start, stop - step, step):
            sent[number] = SentPacket(  # type: ignore[assignment]
                number, datagram_octets, now, ((on_delivery, (first, first + step, False)),)
            )
            number += 1
        last_octets = octets - (number - first_number) * datagram_octets
        last = start + (number - first_number) * step
        sent[number] = SentPacket(  # type: ignore[assignment]
            number, last_octets, now, ((on_delivery, (last, stop, fin)),)
        )
        if run.is_new:
            connection._remote_max_data_used += stop - start
        if stop < run.stop:
            sender.put_back(Run(stop, run.stop, run.fin, run.is_new))
        connection.note_sent(first_number, number + 1, octets, now)
        address = connection._network_paths[0].addr
        return octets, emit(self._view[:octets], datagram_octets, address)
