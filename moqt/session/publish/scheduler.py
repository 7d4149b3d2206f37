"""The order in which Objects go to QUIC (MOQT-22 5.1).

Each request (a subscription with its fills, or a fetch) is a `Flow`. Flows wait in a heap by the
urgency of their most urgent cursor, those of equal urgency in turn. The choice is made anew for
each piece of `write_octets`, so a more urgent Object waits for one piece at most.

Opening a stream is what is limited: at most `max_active_streams` are written in turn, and a flow
whose best cursor has no stream yet waits in a second heap. A more urgent flow may open one all the
same, up to twice that number. A stream that its own flow control blocks takes no place. Datagrams
need no stream: their queue can be written as long as few of them wait in QUIC.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Final

from moqt.codes import StreamResetCode
from moqt.session.publish.cursor import CursorState
from moqt.session.publish.datagram_queue import DatagramQueue
from moqt.session.publish.outbound import StreamCursor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moqt.session.context import SessionContext
    from moqt.session.publish.cursor import Cursor, Flow

__all__ = ["Scheduler"]

_SWEEP_FROM: Final = 64
"""Entries of a heap from which on those of flows that have nothing to write are dropped."""

_READY: Final = CursorState.READY  # asked for with each piece; looking up a member takes its time
_FINISHED: Final = CursorState.FINISHED

_Entry = tuple[int, int, int, int, "Flow"]
"""Urgency (two numbers), turn, ticket, flow. The ticket is unique, so flows are never compared."""


class Scheduler:
    """Feeds the transport what it can send soon, the most urgent first."""

    def __init__(self, context: SessionContext) -> None:
        self._context = context
        self._ready: list[_Entry] = []
        self._stalled: list[_Entry] = []
        self._sending: set[Cursor] = set()
        """Cursors with a stream and something to write that are not blocked."""
        self._blocked: list[Cursor] = []
        self._streams: dict[int, StreamCursor] = {}
        self._can_open = True
        self._numbers = 0

    # Commands

    def add(self, cursor: Cursor) -> None:
        """Write `cursor`, which has something to write, until it is IDLE or over."""
        flow = cursor.flow
        if isinstance(cursor, StreamCursor) and not cursor.is_open:
            heappush(flow.unopened, (cursor.urgency, cursor.order, self._number(), cursor))
            if flow.is_stalled and flow.unopened[0][3] is cursor:
                flow.is_stalled = False  # more urgent than what it stalled for: ask again
        else:
            flow.opened.append(cursor)
            if cursor.stream_id is not None:
                self._sending.add(cursor)
        self.requeue(flow)

    def discard(self, cursors: Sequence[Cursor]) -> None:
        """Take cursors of one flow out for good; their streams stay as they are."""
        for cursor in cursors:
            cursor.is_dead = True
            if cursor.is_open:
                self._take_out(cursor)
            if cursor.stream_id is not None:
                self._streams.pop(cursor.stream_id, None)
        if cursors:
            flow = cursors[0].flow
            if not all(cursor.is_open for cursor in cursors):
                flow.rebuild()
            self._sweep(flow)

    def suspend(self, cursor: Cursor) -> None:
        """Take a cursor out until it is added again."""
        cursor.is_dead = True
        self._take_out(cursor)
        cursor.flow.rebuild()
        cursor.is_dead = False

    def reprioritize(self, flow: Flow) -> None:
        """The Subscriber Priority of a flow changed."""
        flow.rebuild()
        flow.is_stalled = False
        flow.queued = None
        self.requeue(flow)

    def reset(self, cursor: Cursor, code: StreamResetCode) -> None:
        """Reset the stream of a cursor that was taken out; nothing where it has none."""
        if cursor.stream_id is not None:
            stats = self._context.stats
            stats.streams_reset_by_us += 1
            stats.open_streams_sent -= 1
            self._context.transport.reset(cursor.stream_id, code)

    def reset_unacknowledged(self, stream_id: int) -> None:
        """Reset a stream that has ended by FIN unless the peer has all of it (MOQT-22 5.2)."""
        transport = self._context.transport
        if not transport.is_acknowledged(stream_id):
            self._context.stats.streams_reset_by_us += 1
            transport.reset(stream_id, StreamResetCode.DELIVERY_TIMEOUT)

    def fail(self, cursor: StreamCursor, code: StreamResetCode) -> None:
        """Reset the stream of a cursor that was taken out, opened for that if there is none.

        So a fill says that it failed (MOQT-22 3.4.1). Nothing happens at the peer's stream limit.
        """
        if cursor.stream_id is None:
            stream_id = self._start_stream(cursor)
            if stream_id is not None:
                self._context.transport.write(stream_id, cursor.take_header(), False)
        self.reset(cursor, code)

    def find(self, stream_id: int) -> StreamCursor | None:
        """Return the cursor whose stream this is, while it is open."""
        return self._streams.get(stream_id)

    def flush(self, now: float) -> None:
        """Hand over pieces while the transport has room.

        Datagrams too go only while it has: they are not to overtake what makes the network full.
        """
        self._can_open = True
        if self._blocked:
            self._unblock(now)
        if self._stalled:
            self._unstall()
        if not self._ready:
            return
        room = self._context.transport.send_room()
        cursor = self._pick() if room > 0 else None
        while cursor is not None:
            if isinstance(cursor, StreamCursor):
                room -= self._serve(cursor, room, now)
            else:
                assert isinstance(cursor, DatagramQueue)  # there is nothing else
                self._serve_datagram(cursor, now)
                room = self._context.transport.send_room()
            if room <= 0:
                self.requeue(cursor.flow)
                return
            cursor = self._next(cursor.flow)

    # Choice

    def _number(self) -> int:
        self._numbers += 1
        return self._numbers

    def requeue(self, flow: Flow) -> None:
        """Something of a flow may have become more urgent."""
        best = flow.best(may_open=not flow.is_stalled)
        if best is None:
            return
        urgency = best.urgency
        if flow.queued is not None and flow.queued <= urgency:
            return  # its entry comes early enough, and is judged when it comes
        flow.queued = urgency
        flow.ticket = self._number()
        heappush(self._ready, (*urgency, self._numbers, flow.ticket, flow))

    def _next(self, flow: Flow) -> Cursor | None:
        """Choose again, after a cursor of `flow` was served: it goes on unless others are due."""
        cursor = flow.best(may_open=not flow.is_stalled)
        if cursor is None or not cursor.is_open or self._is_another_due(cursor):
            self.requeue(flow)
            return self._pick()
        return cursor

    def _is_another_due(self, cursor: Cursor) -> bool:
        if not self._ready:
            return False
        first, second, *_ = self._ready[0]
        return (first, second) <= cursor.urgency

    def _pick(self) -> Cursor | None:
        while self._ready:
            first, second, _, ticket, flow = heappop(self._ready)
            if ticket != flow.ticket:
                continue
            flow.queued = None
            cursor = flow.best(may_open=not flow.is_stalled)
            if cursor is not None and cursor.urgency <= (first, second):
                if cursor.is_open or self._may_open(cursor):
                    return cursor
                self._stall(flow)
            self.requeue(flow)
        return None

    def _may_open(self, cursor: Cursor) -> bool:
        config = self._context.config
        if not self._can_open or len(self._streams) >= config.max_open_streams:
            return False
        used = len(self._sending)
        if used < config.max_active_streams:
            return True
        return used < 2 * config.max_active_streams and cursor.urgency < min(
            sending.urgency for sending in self._sending
        )

    def _stall(self, flow: Flow) -> None:
        flow.is_stalled = True
        if not flow.has_stalled_entry:
            flow.has_stalled_entry = True
            number = self._number()
            heappush(self._stalled, (*flow.unopened[0][0], number, number, flow))

    def _unstall(self) -> None:
        # One at least may ask: a more urgent flow has places of its own.
        free = max(self._context.config.max_active_streams - len(self._sending), 1)
        while free > 0 and self._stalled and self._can_open:
            flow = heappop(self._stalled)[-1]
            flow.has_stalled_entry = False
            if flow.is_stalled:
                flow.is_stalled = False
                free -= 1
                self.requeue(flow)

    def _unblock(self, now: float) -> None:
        transport = self._context.transport
        blocked, self._blocked = self._blocked, []
        for cursor in blocked:
            if cursor.stream_id is None:
                is_free = transport.datagram_room() > 0
            else:
                assert isinstance(cursor, StreamCursor)  # it has a stream
                is_free = transport.stream_room(cursor.stream_id) > 0 or cursor.is_late(now)
            if is_free:
                self.add(cursor)
            else:
                self._blocked.append(cursor)

    # Writing

    def _serve(self, cursor: StreamCursor, room: int, now: float) -> int:
        """Write one piece of at most `room` octets; return its octets."""
        transport = self._context.transport
        written = 0
        state = cursor.prepare()
        if state is _READY and cursor.is_late(now):
            state = CursorState.LATE
        if state is _READY:
            if cursor.stream_id is None and not self._open(cursor):
                return 0
            stream_id = cursor.stream_id
            assert stream_id is not None  # opened
            room = min(room, transport.stream_room(stream_id))
            if room <= 0:
                self._take_out(cursor)
                self._blocked.append(cursor)
                self._unstall()
                return 0
            quantum = self._context.config.write_octets
            buffers, written = cursor.take(min(room, quantum), min(room, quantum + quantum // 8))
            state = cursor.prepare()
            transport.write(stream_id, buffers, state is _FINISHED)
        elif state is _FINISHED and cursor.stream_id is not None:
            transport.write(cursor.stream_id, [], True)
        if state is not _READY:
            self._let_go(cursor, state)
        return written

    def _serve_datagram(self, queue: DatagramQueue, now: float) -> None:
        if self._context.transport.datagram_room() <= 0:
            self._take_out(queue)
            self._blocked.append(queue)
        else:
            queue.send_next(now)
            if queue.prepare() is CursorState.IDLE:
                self._let_go(queue, CursorState.IDLE)

    def _open(self, cursor: StreamCursor) -> bool:
        flow = cursor.flow
        stream_id = self._start_stream(cursor)
        if stream_id is None:
            self._can_open = False
            self._stall(flow)
            return False
        assert flow.unopened[0][3] is cursor  # it was the best
        heappop(flow.unopened)
        flow.opened.append(cursor)
        self._sending.add(cursor)
        self._streams[stream_id] = cursor
        return True

    def _start_stream(self, cursor: StreamCursor) -> int | None:
        stream_id = self._context.transport.open(bidirectional=False)
        if stream_id is not None:
            cursor.opened(stream_id)
            stats = self._context.stats
            stats.streams_sent += 1
            stats.open_streams_sent += 1
        return stream_id

    def _let_go(self, cursor: Cursor, state: CursorState) -> None:
        if not cursor.is_open:
            heappop(cursor.flow.unopened)  # it was the best
        else:
            self._take_out(cursor)
            if state is not CursorState.IDLE and cursor.stream_id is not None:
                del self._streams[cursor.stream_id]
            if state is _FINISHED:
                self._context.stats.open_streams_sent -= 1
            self._unstall()
        cursor.owner.cursor_left(cursor, state)

    def _take_out(self, cursor: Cursor) -> None:
        self._sending.discard(cursor)
        if cursor in cursor.flow.opened:
            cursor.flow.opened.remove(cursor)
        elif cursor in self._blocked:
            self._blocked.remove(cursor)

    def _sweep(self, flow: Flow) -> None:
        """Drop the entries of flows that have nothing left, once they are many."""
        if not flow.opened and not flow.unopened:
            flow.ticket = 0
            flow.queued = None
            flow.is_stalled = False
        for heap in (self._ready, self._stalled):
            if len(heap) > _SWEEP_FROM and len(heap) > 2 * self._context.stats.open_requests:
                heap[:] = [e for e in heap if e[-1].opened or e[-1].unopened]
                heapify(heap)
