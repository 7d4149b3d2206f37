"""The receiving half of a stream that hands octets on as they come, each once, in any order.

It stands in for aioquic's `QuicStreamReceiver`, which keeps what runs ahead in a buffer of its own.
Here only the ranges that have come are kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aioquic.quic.stream import FinalSizeError, QuicStreamReceiver

if TYPE_CHECKING:
    from aioquic.quic.events import StreamDataReceived
    from aioquic.quic.packet import QuicStreamFrame

    from moqt.asyncio.connection import Arrival


class PlacingReceiver(QuicStreamReceiver):
    """Takes frames from either packet reader; `_buffer_start` is where the first gap begins."""

    def __init__(self, stream_id: int, deliver: Arrival) -> None:
        super().__init__(stream_id=stream_id, readable=True)
        self._number = stream_id
        self._deliver = deliver

    def handle_frame(self, frame: QuicStreamFrame) -> StreamDataReceived | None:
        """Take a frame that aioquic has read; there's never an event."""
        self.place(frame.offset, frame.data, frame.fin)
        return None

    def place(self, offset: int, data: memoryview | bytes, fin: bool) -> None:
        """Hand on what is new of `data`. Raises: FinalSizeError (RFC 9000 4.5)."""
        stop = offset + len(data)
        final = self._final_size
        if final is not None and (stop > final or (fin and stop != final)):
            raise FinalSizeError(f"octets end at {stop}, the final size is {final}")
        if fin and final is None:
            if stop < self.highest_offset:
                raise FinalSizeError(f"final size {stop} is below {self.highest_offset}")
            self._final_size = final = stop
        else:
            fin = False  # it's known already
        if stop > self.highest_offset:
            self.highest_offset = stop
        if self.is_finished:
            return
        if offset == self._buffer_start and not len(self._ranges):
            self._buffer_start = stop
            self.is_finished = stop == final
            if stop > offset or fin:
                self._deliver(self._number, offset, data, fin)
            return
        self._place_apart(offset, data, fin)

    def _place_apart(self, offset: int, data: memoryview | bytes, fin: bool) -> None:
        """There are gaps, or what came before comes again."""
        stop = offset + len(data)
        fresh = self._gaps(max(offset, self._buffer_start), stop)
        ranges = self._ranges
        if stop > max(offset, self._buffer_start):  # else it's empty, or all of it had come
            ranges.add(max(offset, self._buffer_start), stop)
            if ranges[0].start == self._buffer_start:
                self._buffer_start = ranges.shift().stop
        self.is_finished = self._buffer_start == self._final_size
        view = memoryview(data)
        for start, end in fresh:
            ends_stream = fin and end == stop
            self._deliver(self._number, start, view[start - offset : end - offset], ends_stream)
        if fin and not (fresh and fresh[-1][1] == stop):
            self._deliver(self._number, stop, b"", True)

    def _gaps(self, start: int, stop: int) -> list[tuple[int, int]]:
        """Return what of `start` to `stop` has not come yet."""
        found = []
        for had in self._ranges:
            if had.stop <= start:
                continue
            if had.start >= stop:
                break
            if had.start > start:
                found.append((start, had.start))
            start = max(start, had.stop)
        if start < stop:
            found.append((start, stop))
        return found
