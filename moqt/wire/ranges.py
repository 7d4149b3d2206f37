"""Which octets of a stream have come: sets of ranges, and octets that came too early."""

from __future__ import annotations

from bisect import bisect_left, bisect_right

__all__ = ["RangeSet", "Stash"]

_BEYOND = 1 << 62
"""QUIC stream offsets are below this (RFC 9000 4.5)."""

_SMALL_OCTETS = 4096
_MANY_CHUNKS = 1024
"""With so many chunks more than were left the last time, neighbours of which the first is small are
joined: an octet that is held by itself takes the memory of two hundred."""


class RangeSet:
    """Disjoint half-open ranges of stream offsets, merged where they touch."""

    __slots__ = ("_stops", "starts")

    def __init__(self) -> None:
        self.starts: list[int] = []
        """Where each range begins, rising; to be read alone. Empty: so is the set."""
        self._stops: list[int] = []

    def __bool__(self) -> bool:
        return bool(self.starts)

    def add(self, start: int, stop: int) -> list[tuple[int, int]]:
        """Add a range; return those parts of it that were not in the set, by rising start."""
        if start >= stop:
            return []
        first = bisect_left(self._stops, start)
        last = bisect_right(self.starts, stop)
        new: list[tuple[int, int]] = []
        at = start
        for known in range(first, last):
            if at < self.starts[known]:
                new.append((at, self.starts[known]))
            at = max(at, self._stops[known])
        if at < stop:
            new.append((at, stop))
        if first < last:
            start = min(start, self.starts[first])
            stop = max(stop, self._stops[last - 1])
        self.starts[first:last] = [start]
        self._stops[first:last] = [stop]
        return new

    def take_first(self, most: int) -> tuple[int, int]:
        """Take the lowest range out, or its first `most` octets; there must be one."""
        start, stop = self.starts[0], self._stops[0]
        if stop - start > most:
            stop = self.starts[0] = start + most
        else:
            del self.starts[0], self._stops[0]
        return start, stop

    def drop_through(self, offset: int) -> int:
        """Forget all ranges that begin at `offset` or below; return where the last one stops.

        The result is at least `offset`.
        """
        count = bisect_right(self.starts, offset)
        if count:
            offset = max(offset, self._stops[count - 1])
            del self.starts[:count], self._stops[:count]
        return offset


class Stash:
    """Octets that came before those ahead of them, each held once, as copies.

    It has no bound of its own: the sender's flow control bounds the octets, as long as those held
    here are not credited, and the transport the gaps between them (RFC 9000 21.7).
    """

    __slots__ = ("_chunks", "_join_at", "_known", "_starts", "octets")

    def __init__(self) -> None:
        self._known = RangeSet()
        self._starts: list[int] = []
        self._chunks: list[bytes | bytearray | memoryview] = []
        self._join_at = _MANY_CHUNKS
        self.octets = 0
        """How many octets are held."""

    def __bool__(self) -> bool:
        return bool(self._starts)

    @property
    def first(self) -> int:
        """The lowest offset held; beyond any stream's end when there is none."""
        return self._starts[0] if self._starts else _BEYOND

    def put(self, offset: int, data: memoryview) -> None:
        """Keep a copy of `data`, as far as it is not held yet."""
        for start, stop in self._known.add(offset, offset + len(data)):
            at = bisect_left(self._starts, start)
            self._starts.insert(at, start)
            self._chunks.insert(at, bytes(data[start - offset : stop - offset]))
            self.octets += stop - start
        if len(self._chunks) >= self._join_at:
            self._join()

    def _join(self) -> None:
        starts: list[int] = []
        chunks: list[bytes | bytearray | memoryview] = []
        end = -1
        for start, chunk in zip(self._starts, self._chunks, strict=True):
            if start == end and len(chunks[-1]) < _SMALL_OCTETS:
                joined = chunks[-1]
                if not isinstance(joined, bytearray):
                    joined = chunks[-1] = bytearray(joined)
                joined += chunk
            else:
                starts.append(start)
                chunks.append(chunk)
            end = start + len(chunk)
        self._starts, self._chunks = starts, chunks
        self._join_at = 2 * len(chunks) + _MANY_CHUNKS

    def take_at(self, offset: int) -> tuple[int, memoryview] | None:
        """Return the first octets held, with their offset, if they begin at `offset` or below."""
        if not self._starts or self._starts[0] > offset:
            return None
        start, chunk = self._starts[0], memoryview(self._chunks[0])
        del self._starts[0], self._chunks[0]
        if not self._starts:
            self._known = RangeSet()
        self.octets -= len(chunk)
        return start, chunk

    def take_below(self, limit: int) -> tuple[int, memoryview] | None:
        """Return the first octets held, with their offset, as far as they lie below `limit`."""
        if not self._starts or self._starts[0] >= limit:
            return None
        fit = limit - self._starts[0]
        if fit < len(self._chunks[0]):
            chunk = memoryview(self._chunks[0])
            self._starts.insert(1, limit)
            self._chunks[:1] = chunk[:fit], chunk[fit:]
        return self.take_at(limit)
