"""The receiving half of a stream that hands octets on as they come, each once, in any order.

It stands in for aioquic's `QuicStreamReceiver`, which keeps what runs ahead in a buffer of its own.
Here only the ranges that have come are kept, and of those only so many (RFC 9000 21.7).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aioquic.quic.connection import QuicConnectionError
from aioquic.quic.packet import QuicErrorCode, QuicFrameType
from aioquic.quic.stream import FinalSizeError, QuicStreamReceiver

from moqt.wire.ranges import RangeSet

if TYPE_CHECKING:
    from aioquic.quic.events import StreamDataReceived, StreamReset
    from aioquic.quic.packet import QuicStreamFrame

    from moqt.asyncio.connection import Arrival

MAX_RANGES = 16384
"""Ranges behind gaps that one peer may have, over all of its streams. A peer that loses every
second of 1,200 octets has so many over 37 MiB, which is 1 Gbit/s and 300 ms; more are made of
frames that nobody needs, and take memory that flow control doesn't count."""


class RangeTally:
    """Counts the ranges of all streams of one connection."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


class PlacingReceiver(QuicStreamReceiver):
    """Takes frames from either packet reader; `_buffer_start` is where the first gap begins.

    Beyond `MAX_RANGES` of a connection it raises QuicConnectionError with INTERNAL_ERROR: a peer
    that cuts its streams to pieces loses its own connection, and costs no other one anything.
    """

    def __init__(self, stream_id: int, deliver: Arrival, tally: RangeTally) -> None:
        super().__init__(stream_id=stream_id, readable=True)
        self._number = stream_id
        self._deliver = deliver
        self._tally = tally
        self._apart = RangeSet()
        """What came behind the first gap."""

    def handle_frame(self, frame: QuicStreamFrame) -> StreamDataReceived | None:
        """Take a frame that aioquic has read; there's never an event."""
        self.place(frame.offset, frame.data, frame.fin)
        return None

    def handle_reset(
        self, *, final_size: int, error_code: int = QuicErrorCode.NO_ERROR
    ) -> StreamReset | None:
        """As the base class does; what gaps there were no longer matters."""
        event = super().handle_reset(final_size=final_size, error_code=error_code)
        if self.is_finished:
            self._tally.count -= len(self._apart.starts)
            self._apart = RangeSet()
        return event

    def place(self, offset: int, data: memoryview | bytes, fin: bool) -> None:
        """Hand on what is new of `data`. Raises: FinalSizeError (RFC 9000 4.5),
        QuicConnectionError for too many gaps (21.7)."""
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
        if offset == self._buffer_start and not self._apart:
            self._buffer_start = stop
            self.is_finished = stop == final
            if stop > offset or fin:
                self._deliver(self._number, offset, data, fin)
            return
        self._place_apart(offset, data, fin)

    def _place_apart(self, offset: int, data: memoryview | bytes, fin: bool) -> None:
        """There are gaps, or what came before comes again."""
        stop = offset + len(data)
        apart, tally = self._apart, self._tally
        before = len(apart.starts)
        fresh = apart.add(max(offset, self._buffer_start), stop)
        self._buffer_start = apart.drop_through(self._buffer_start)
        tally.count += len(apart.starts) - before
        if tally.count > MAX_RANGES:
            raise QuicConnectionError(
                error_code=QuicErrorCode.INTERNAL_ERROR,
                frame_type=QuicFrameType.STREAM_BASE,
                reason_phrase=f"streams have gaps before more than {MAX_RANGES} ranges",
            )
        self.is_finished = self._buffer_start == self._final_size
        view = memoryview(data)
        for start, end in fresh:
            ends_stream = fin and end == stop
            self._deliver(self._number, start, view[start - offset : end - offset], ends_stream)
        if fin and not (fresh and fresh[-1][1] == stop):
            self._deliver(self._number, stop, b"", True)
