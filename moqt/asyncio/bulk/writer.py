"""Writes 1-RTT packets of STREAM frames by the run.

A run is of one stream, cut into packets of the path's size in one buffer, and given to the socket
at once. Each packet holds one frame without a length, which fills it. Control frames
and all other streams are aioquic's to write; it does so first.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from aioquic.tls import Epoch

from moqt.asyncio.bulk.memory import run_memory
from moqt.asyncio.bulk.sealing import FAR_NUMBERS, Sealer
from moqt.asyncio.bulk.sent import SentRun
from moqt.asyncio.config import RUN_CALLS, datagrams_in_call

if TYPE_CHECKING:
    from moqt.asyncio.bulk.connection import BulkConnection
    from moqt.asyncio.bulk.sender import ReferencingSender, Run
    from moqt.asyncio.connection import Emit

RUNS_AT_ONCE = 4
"""Then what has arrived meanwhile is looked at."""

MAX_HELD = 4
"""Streams take turns, so what goes on may come some calls later."""

PACKETS_BY_KEY = 1 << 22
"""Packets sealed with one key before it's updated: half of what AES-GCM allows (RFC 9001 6.6)."""


class BulkWriter:
    """Sends what a connection's `ReferencingSender`s have, first come, first served."""

    def __init__(self, connection: BulkConnection) -> None:
        self._connection = connection
        self._queue: deque[ReferencingSender] = deque()
        self._blocked: list[ReferencingSender] = []
        self._held: dict[ReferencingSender, None] = {}
        """Who has less than a packet, in order."""
        self._key_number = 0
        """The first packet number under the key in use."""
        self._key_phase = 0

    def add(self, sender: ReferencingSender, *, is_urgent: bool) -> None:
        """It has something to send; what is to be sent again goes first."""
        if sender.is_queued:
            if not is_urgent or (self._queue and self._queue[0] is sender):
                return
            if sender in self._held:  # rare: a loss
                del self._held[sender]
            else:
                (self._queue if sender in self._queue else self._blocked).remove(sender)
        sender.is_queued = True
        if is_urgent:
            self._queue.appendleft(sender)
        else:
            self._queue.append(sender)

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

    def write(self, now: float, emit: Emit, *, goes_on: bool = False) -> bool:
        """Send what congestion control, pacing and flow control let through.

        `goes_on`: more will be written soon. Then what is less than a packet waits for it, while
        something is in flight, whose acknowledgement leads to the next call, and up to `MAX_HELD`
        calls: a short packet costs as much as a long one, here and there, and ends what the peer's
        system joins. Returns True when there is more that could be sent at once.
        """
        connection = self._connection
        queue = self._queue
        first = [queue.popleft()] if queue and queue[0].has_lost else []
        queue.extendleft(reversed([*first, *self._held]))
        self._held.clear()
        if self._blocked:  # until its peer grants more; looked at once in a while only
            queue.extend(self._blocked)
            self._blocked.clear()
        if not queue:
            return False
        sealer: Sealer | None = None
        datagram_octets = connection.datagram_size
        most = RUN_CALLS * datagrams_in_call(datagram_octets)
        controller = connection._loss._cc
        pacer = connection.burst_pacer
        paced_octets = spent = runs = 0
        has_more = False
        while queue:
            room = (controller.congestion_window - controller.bytes_in_flight) // datagram_octets
            if room <= 0:
                break
            if paced_octets <= 0:
                pacer.spend(spent, now)
                spent, paced_octets = 0, pacer.available(now)
                if not paced_octets:
                    connection._pacing_at = pacer.next_send_time(now)
                    break
            sender = queue[0]
            max_offset = self._max_offset(sender)
            if not sender.can_send(max_offset):
                queue.popleft()
                if sender.has_pending:
                    self._blocked.append(sender)
                else:
                    sender.is_queued = False
                continue
            if runs == RUNS_AT_ONCE:
                has_more = True
                break
            if sealer is None:
                sealer = self._sealer()
            step = sealer.payload_octets(sender.id_octets, sender.stop_offset, datagram_octets)
            if goes_on and sender.times_held < MAX_HELD and controller.bytes_in_flight:
                tail = sender.tail(step)
                whole = sender.stop_offset - tail
                if tail and whole == sender.highest_offset:
                    sender.times_held += 1
                    self._held[queue.popleft()] = None
                    continue
                max_offset = min(max_offset, whole)
            if not runs:  # not before: a key under which nothing is sent is never confirmed
                self._renew_key()
                sealer = self._sealer()
            datagrams = min(room, most, 1 + paced_octets // datagram_octets)
            run = sender.next_run(max_offset, datagrams * step)
            assert run is not None  # it can send
            sender.times_held = 0
            octets, is_writable = self._send(sealer, sender, run, step, datagram_octets, now, emit)
            paced_octets -= octets
            spent += octets
            runs += 1
            if not is_writable:
                break
        pacer.spend(spent, now)
        return has_more

    def _max_offset(self, sender: ReferencingSender) -> int:
        """Return how far the peer's windows let a stream go; 0 when it is gone."""
        connection = self._connection
        stream = connection._streams.get(sender.stream_id)
        if stream is None:
            return 0
        room = connection._remote_max_data - connection._remote_max_data_used
        return min(stream.max_stream_data_remote, sender.highest_offset + room)

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
            connection_id=connection._peer_cid.cid,
            spin_bit=connection._spin_bit,
            is_far=connection._packet_number - last_acked >= FAR_NUMBERS,
        )

    def _send(
        self,
        sealer: Sealer,
        sender: ReferencingSender,
        run: Run,
        step: int,
        datagram_octets: int,
        now: float,
        emit: Emit,
    ) -> tuple[int, bool]:
        """Send a run, `step` octets a packet; return the octets sent, and whether to go on."""
        connection = self._connection
        first_number = connection._packet_number
        start, stop = run.start, run.stop
        view = run_memory("sent")
        octets = sealer.seal(
            view,
            sender.slices(start, stop) if stop > start else [b""],
            id_octets=sender.id_octets,
            start=start,
            stop=stop,
            offset_limit=sender.stop_offset,
            fin=run.fin,
            number=first_number,
            datagram_octets=datagram_octets,
        )
        next_number = first_number - -octets // datagram_octets
        connection._spaces[Epoch.ONE_RTT].sent_packets[next_number - 1] = SentRun(  # type: ignore[assignment]
            first_number=first_number,
            last_number=next_number - 1,
            octets=octets,
            datagram_octets=datagram_octets,
            sent_time=now,
            sender=sender,
            start=start,
            stop=stop,
            step=step,
            fin=run.fin,
        )
        if run.is_new:
            connection._remote_max_data_used += stop - run.start
        connection.note_sent(first_number, next_number, octets, now)
        address = connection._network_paths[0].addr
        return octets, emit(view[:octets], datagram_octets, address)
