"""The sending half of a stream that refers to what is written until it is acknowledged.

It stands in for aioquic's `QuicStreamSender`, which copies what is written into one growing buffer,
out of it again for each frame, and moves the rest down with each acknowledgement. Both packet
writers use it: aioquic's by `get_frame`, the bulk one by `next_run`. What `buffer_is_empty` says
is what keeps aioquic's away while the bulk one is at work.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aioquic.buffer import encode_uint_var
from aioquic.quic.packet import QuicStreamFrame
from aioquic.quic.packet_builder import QuicDeliveryState
from aioquic.quic.stream import QuicStreamSender

from moqt.wire.ranges import RangeSet

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Protocol

    class SenderOwner(Protocol):
        """The connection, as its senders see it."""

        is_bulk_at_work: bool
        """Whether the bulk writer sends what they have."""

        def on_sendable(self, sender: ReferencingSender, *, is_urgent: bool) -> None:
            """It has something to send; `is_urgent`: again."""


_ACKED = QuicDeliveryState.ACKED


@dataclass(slots=True)
class Run:
    """Octets `start` to `stop` of a stream, to be sent next. `is_new`: for the first time."""

    start: int
    stop: int
    fin: bool
    is_new: bool


class ReferencingSender(QuicStreamSender):
    """Sends slices of the buffers that were written. Nobody may change those meanwhile.

    A reference goes when all octets up to the buffer's end are acknowledged, or with a reset.
    """

    def __init__(self, stream_id: int, owner: SenderOwner) -> None:
        super().__init__(stream_id=stream_id, writable=True)
        self.stream_id = stream_id
        self.id_octets = encode_uint_var(stream_id)
        """The stream ID as frames have it."""
        self.is_queued = False
        """Whether the bulk writer has it in its queue."""
        self.times_held = 0
        """How often it was not sent because it had less than a packet, since it was sent last."""
        self._owner = owner
        self._chunks: deque[tuple[int, int, memoryview | bytes]] = deque()
        self._lost = RangeSet()
        self._early_acked: dict[int, int] = {}
        self._next_chunk = 0
        """The chunk, counted from the first that is kept, where `highest_offset` is."""

    # `_buffer_start` is the lowest octet not acknowledged, `highest_offset` the first never sent;
    # `_buffer`, `_pending` and `_acked` of the base class are not used.

    @property
    def buffer_is_empty(self) -> bool:
        """Whether aioquic's packet writer should pass it by."""
        return self._owner.is_bulk_at_work or not self.has_pending

    @buffer_is_empty.setter
    def buffer_is_empty(self, value: bool) -> None:
        """The base class says what follows from the rest anyway."""

    @property
    def has_pending(self) -> bool:
        """Whether there is something to send, flow control permitting."""
        return self._reset_error_code is None and (
            self.highest_offset < self._buffer_stop or self._pending_eof or bool(self._lost)
        )

    @property
    def stop_offset(self) -> int:
        """How many octets were written so far."""
        return self._buffer_stop

    @property
    def has_lost(self) -> bool:
        """Whether there is something to send again."""
        return bool(self._lost)

    @property
    def next_offset(self) -> int:
        """The offset of the next frame."""
        return self._lost.starts[0] if self._lost else self.highest_offset

    # --- written ---

    def write(self, data: bytes, end_stream: bool = False) -> None:
        """Append one buffer."""
        self.append((data,), end_stream)

    def append(self, buffers: Sequence[memoryview | bytes], fin: bool) -> int:
        """Append references to `buffers`, then FIN if `fin`; return the octets."""
        if self._buffer_fin is not None:
            raise RuntimeError("Cannot send data after FIN")
        if self._reset_error_code is not None:
            raise RuntimeError("Cannot send data after the stream was reset")
        start = stop = self._buffer_stop
        for data in buffers:
            if data:
                self._chunks.append((stop, stop + len(data), data))
                stop += len(data)
        self._buffer_stop = stop
        if fin:
            self._buffer_fin = stop
            self._pending_eof = True
        if stop > start or fin:
            self._owner.on_sendable(self, is_urgent=False)
        return stop - start

    def reset(self, error_code: int) -> None:
        """Give up, and let go of everything."""
        super().reset(error_code)
        if self._reset_error_code is not None:
            self.let_go()

    def let_go(self) -> None:
        """Refer to nothing any more: nothing is sent any more."""
        self._chunks.clear()
        self._lost = RangeSet()
        self._early_acked.clear()
        self._next_chunk = 0

    # --- sent ---

    def can_send(self, max_offset: int) -> bool:
        """Whether `next_run` has something, if new octets may go as far as `max_offset`."""
        if self._reset_error_code is not None:
            return False
        highest = self.highest_offset
        return (
            bool(self._lost)
            or highest < min(self._buffer_stop, max_offset)
            or (self._pending_eof and highest == self._buffer_fin)
        )

    def tail(self, step: int) -> int:
        """Return how many octets would be left for a short packet behind full ones of `step`; 0
        when the stream ends there, or something is to be sent again first."""
        if self._pending_eof or self._lost:
            return 0
        return (self._buffer_stop - self.highest_offset) % step

    def next_run(self, max_offset: int, max_octets: int) -> Run | None:
        """Take what comes next, so many octets at most; None: nothing for now.

        `max_offset` is how far flow control lets new octets go.
        """
        if self._lost:
            if max_octets <= 0:
                return None
            start, stop = self._lost.take_first(max_octets)
            fin = self._pending_eof and stop == self._buffer_fin == self.highest_offset
            if fin:
                self._pending_eof = False
            return Run(start, stop, fin, is_new=False)
        start = self.highest_offset
        stop = min(self._buffer_stop, max_offset, start + max_octets)
        fin = self._pending_eof and max(start, stop) == self._buffer_fin
        if stop <= start and not fin:
            return None
        if fin:
            self._pending_eof = False
        self.highest_offset = stop = max(start, stop)
        return Run(start, stop, fin, is_new=True)

    def slices(self, start: int, stop: int) -> list[memoryview | bytes]:
        """Return octets `start` to `stop`, as slices of what was written."""
        chunks = self._chunks
        index = self._find(start)
        found: list[memoryview | bytes] = []
        while start < stop:
            first, last, data = chunks[index]
            if start == first and stop >= last:
                found.append(data)
            else:
                found.append(memoryview(data)[start - first : min(stop, last) - first])
            start = last
            index += 1
        return found

    def _find(self, offset: int) -> int:
        """Return the index of the chunk that has `offset`: mostly where the last search ended."""
        chunks = self._chunks
        index = self._next_chunk
        if index >= len(chunks) or not chunks:
            index = max(0, len(chunks) - 1)
        while index and chunks[index][0] > offset:
            index -= 1
        while index < len(chunks) and chunks[index][1] <= offset:
            index += 1
        self._next_chunk = index
        return index

    def get_frame(self, max_size: int, max_offset: int | None = None) -> QuicStreamFrame | None:
        """Give aioquic's packet writer one frame, as the base class does."""
        if max_size < 0:
            return None
        limit = self._buffer_stop if max_offset is None else max_offset
        run = self.next_run(limit, max_size)
        if run is None:
            return None
        data = b"".join(self.slices(run.start, run.stop))
        return QuicStreamFrame(data=data, fin=run.fin, offset=run.start)

    # --- acknowledged or lost ---

    def on_data_delivery(
        self, delivery: QuicDeliveryState, start: int, stop: int, fin: bool
    ) -> None:
        """A packet with octets `start` to `stop` was acknowledged, or lost."""
        if self._reset_error_code is not None:
            return
        if delivery is not _ACKED:
            self._on_lost(start, stop, fin)
            return
        # An octet is in one packet in flight at most, so acknowledged ranges never overlap.
        if start == self._buffer_start:
            early = self._early_acked
            if early:
                while (further := early.pop(stop, None)) is not None:
                    stop = further
            self._buffer_start = stop
            chunks = self._chunks
            while chunks and chunks[0][1] <= stop:
                chunks.popleft()
                if self._next_chunk:
                    self._next_chunk -= 1
        elif stop > start:
            self._early_acked[start] = stop
        if fin:
            self._acked_fin = True
        if self._acked_fin and self._buffer_start == self._buffer_fin:
            self.is_finished = True

    def _on_lost(self, start: int, stop: int, fin: bool) -> None:
        start = max(start, self._buffer_start)
        if stop > start:
            self._lost.add(start, stop)
        if fin:
            self._pending_eof = True
        if self.has_pending:
            self._owner.on_sendable(self, is_urgent=True)
