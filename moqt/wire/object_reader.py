"""Reads Objects from a stream whose octets may come in any order, each copied once into place.

Theory of operation. `_next` is the offset below which all is done with. It stands either in a
header or in a payload. A header is parsed when its octets are there without a gap; what ahead of it
has come is stashed, since nobody knows what it is. In a payload every octet's place is known, so
octets are copied there at once, in order or not; `_ahead` notes those beyond `_next`. The common
case, the next octets of a payload that does not end with them, is the first branch of `receive`.
"""

from __future__ import annotations

import mmap
from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

from moqt.errors import MoqtError
from moqt.types import Object, ObjectHeader
from moqt.wire.cursor import malformed
from moqt.wire.properties import parse_pairs
from moqt.wire.ranges import RangeSet, Stash

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from moqt.codes import RangeStatus
    from moqt.types import Location, Placement

__all__ = [
    "MAX_PROPERTIES_OCTETS",
    "EndOfRangeRead",
    "ObjectReader",
    "ObjectTooLarge",
    "StreamFinished",
    "StreamItem",
]

MAX_PROPERTIES_OCTETS = 0xFFFF
"""The longest Properties block of an Object that is accepted, a limit of this package."""

_LAZY_OCTETS = 1 << 18
"""Payloads from here on are allocated so that memory is taken as octets come, not at once."""

_HEADER_STEP = 64
"""How many octets are looked at, at first, to complete a header that a range cut."""

_NO_OCTETS = memoryview(b"")


class ObjectTooLarge(MoqtError):
    """Ends the request: an Object passes a limit of ours; no memory was taken for it.

    `header` is None when it is the Properties block that is too long.
    """

    def __init__(self, what: str, octets: int, limit: int, header: ObjectHeader | None) -> None:
        super().__init__(f"{what} has {octets} octets, at most {limit}")
        self.octets = octets
        self.limit = limit
        self.header = header


@dataclass(frozen=True, slots=True)
class EndOfRangeRead:
    """An End of Range marker: `status` holds from after the last item up to `last`, inclusive."""

    status: RangeStatus
    last: Location


@dataclass(frozen=True, slots=True)
class StreamFinished:
    """FIN, and all octets before it are read. Always the last item.

    `last` is the Location of the last Object or marker; None: there was none. `ends_group`: the
    last Object is the last of its Group.
    """

    last: Location | None
    ends_group: bool = False


StreamItem = Object | EndOfRangeRead | StreamFinished


class ObjectReader:
    """What subgroup and fetch streams share. A subclass parses the headers.

    `start`: how many octets the stream's head took. `place` is asked for each Object with a payload
    when its header is read; None from it: the reader allocates. `max_object_octets`: the largest
    payload accepted.
    """

    __slots__ = (
        "_ahead",
        "_allocated",
        "_buffers",
        "_final_size",
        "_finished",
        "_header",
        "_header_start",
        "_items",
        "_last",
        "_max_object_octets",
        "_next",
        "_object_end",
        "_partial",
        "_place",
        "_placement",
        "_starts",
        "_stash",
        "_window",
        "_window_end",
        "_window_start",
    )

    def __init__(
        self,
        *,
        start: int,
        place: Callable[[ObjectHeader], Placement | None],
        max_object_octets: int,
    ) -> None:
        self._place = place
        self._max_object_octets = max_object_octets
        self._next = start
        self._final_size: int | None = None
        self._finished = False
        self._last: ObjectHeader | Location | None = None
        self._items: list[StreamItem] = []
        self._stash = Stash()
        self._partial = bytearray()  # of a header that is not whole, from _header_start
        self._header_start = start
        # The Object whose payload is being read; all below is meaningless when _header is None.
        self._header: ObjectHeader | None = None
        self._placement: Placement | None = None
        self._allocated: memoryview | None = None
        self._buffers: Sequence[memoryview] = ()
        self._starts: Sequence[int] = ()  # stream offset of each buffer, once asked for
        self._object_end = 0
        self._ahead = RangeSet()
        # The buffer that _next stands in, as stream offsets. _window_end 0 sends every octet the
        # long way: in no payload, with octets in _ahead, or when each call may end the stream.
        self._window = _NO_OCTETS
        self._window_start = 0
        self._window_end = 0

    @property
    def next_offset(self) -> int:
        """The stream offset below which every octet has been read."""
        return self._next

    @property
    def octets_pending(self) -> int:
        """Octets held aside: those that ran ahead of an unread header, and of a header in part."""
        return self._stash.octets + len(self._partial)

    @property
    def current(self) -> ObjectHeader | None:
        """The Object whose payload is incomplete."""
        return self._header

    @property
    def current_place(self) -> Placement | None:
        """What `place` gave for `current`; the reader writes there on the next `receive`."""
        return self._placement

    @property
    def is_finished(self) -> bool:
        """True when `StreamFinished` was reported."""
        return self._finished

    def receive(
        self, offset: int, data: memoryview | bytes | bytearray, fin: bool
    ) -> Sequence[StreamItem]:
        """Take octets of the stream, from `offset` on; return what they complete.

        Ranges may come in any order, overlap and repeat. `data` is not kept. `fin`: the stream
        ends with these octets; the transport guarantees that no octet comes from beyond.
        Raises: RemoteProtocolError (session), ObjectTooLarge (request). After either the reader is
        of no use but for `take_items`.
        """
        end = offset + len(data)
        if offset == self._next and end < self._window_end and not fin:
            at = offset - self._window_start
            self._window[at : at + len(data)] = data
            self._next = end
            return ()
        if fin:
            self._final_size = end
            self._window_end = 0
        self._receive(offset, memoryview(data))
        return self.take_items()

    def take_items(self) -> list[StreamItem]:
        """Return what was completed before `receive` raised. Otherwise `receive` returns all."""
        items = self._items
        self._items = []
        return items

    def _receive(self, offset: int, view: memoryview) -> None:
        if offset > self._next:
            self._run_ahead(offset, view)
        elif not self._stash.octets:
            self._consume(offset, view)
        else:
            self._consume_with_stash(offset, view)
        if self._final_size == self._next and not self._finished:
            self._finish()

    def _consume_with_stash(self, offset: int, view: memoryview) -> None:
        end = offset + len(view)
        while True:
            held = self._stash.take_at(self._next)
            if held is not None:
                self._consume(*held)
            elif self._next < end:
                self._consume(offset, view[: self._stash.first - offset])
            else:
                return

    def _run_ahead(self, offset: int, view: memoryview) -> None:
        if self._header is not None and offset < self._object_end:
            self._fill(offset, view)
            self._window_end = 0
            view = view[self._object_end - offset :]
            offset = self._object_end
        if len(view):
            self._stash.put(offset, view)

    def _consume(self, base: int, view: memoryview) -> None:
        """Read `view`, whose first octet has offset `base`, from `_next` to its end."""
        end = base + len(view)
        while (start := self._next) < end:
            if self._header is None:
                if not self._read_header(base, view):
                    return
                continue
            if self._ahead.starts:
                self._fill(base, view)
                self._next = self._ahead.drop_through(start)
            else:
                stop = min(end, self._object_end)
                if stop <= self._window_end:
                    at = start - self._window_start
                    self._window[at : at + stop - start] = view[start - base : stop - base]
                else:
                    self._write(start, view, start - base, stop - base)
                self._next = stop
            if self._next == self._object_end:
                self._complete()
        if self._header is not None and self._final_size is None and not self._ahead.starts:
            self._slide()

    def _fill(self, base: int, view: memoryview) -> None:
        """Copy to its place what `view` has of the payload and is not there yet."""
        start = max(base, self._next)
        stop = min(base + len(view), self._object_end)
        for first, last in self._ahead.add(start, stop):
            self._write(first, view, first - base, last - base)

    def _write(self, offset: int, view: memoryview, start: int, stop: int) -> None:
        """Copy `view[start:stop]` to where the payload's octets from stream `offset` on go."""
        starts = self._starts or self._find_starts()
        index = bisect_right(starts, offset) - 1
        at = offset - starts[index]
        while start < stop:
            buffer = self._buffers[index]
            size = min(stop - start, len(buffer) - at)
            buffer[at : at + size] = view[start : start + size]
            start += size
            index += 1
            at = 0

    def _slide(self) -> None:
        """Move the window to the buffer that `_next` stands in."""
        if self._next < self._window_end:
            return
        starts = self._starts or self._find_starts()
        index = bisect_right(starts, self._next) - 1
        self._window = self._buffers[index]
        self._window_start = starts[index]
        self._window_end = self._window_start + len(self._window)

    def _find_starts(self) -> Sequence[int]:
        first = self._object_end - sum(map(len, self._buffers))
        self._starts = list(accumulate(map(len, self._buffers[:-1]), initial=first))
        return self._starts

    def _read_header(self, base: int, view: memoryview) -> bool:
        """Read one header at `_next`; False when `view` ends inside it."""
        at = self._next - base
        if not self._partial:
            parsed = self._parse(view, at)
            if parsed is not None:
                self._next = base + parsed
                self._begin(base, view)
                return True
            self._header_start = self._next
            self._partial += view[at:]
            self._next = base + len(view)
            return False
        step = _HEADER_STEP
        while at < len(view):
            self._partial += view[at : at + step]
            at += step
            step *= 2
            parsed = self._parse(self._partial, 0)
            if parsed is not None:
                self._next = self._header_start + parsed
                self._partial = bytearray()
                self._begin(base, view)
                return True
        self._next = base + len(view)
        return False

    def _parse(self, data: memoryview | bytearray, at: int) -> int | None:
        """Parse one header at `at`; return where it ends, None when octets are missing.

        When it is whole: sets `_last` and `_header`, or calls `_found_range`; changes nothing
        otherwise.
        """
        raise NotImplementedError

    def _found_range(self, status: RangeStatus, last: Location) -> None:
        self._last = last
        self._items.append(EndOfRangeRead(status, last))

    def _begin(self, base: int, view: memoryview) -> None:
        """Begin the payload at `_next` of the Object whose header was read, if there is one.

        What `view` has of it is copied; where that is all, the Object is whole.
        """
        header = self._header
        if header is None:
            return
        length = header.payload_length
        if not length:
            self._header = None
            self._items.append(Object(header, _NO_OCTETS))
            return
        if length > self._max_object_octets:
            self._header = None
            what = f"the payload of Object {header.location}"
            raise ObjectTooLarge(what, length, self._max_object_octets, header)
        allocated: memoryview | None = None
        buffers: Sequence[memoryview]
        placement = self._place(header)
        if placement is None:
            allocated = _allocate(length)
            buffers = (allocated,)
        else:
            buffers = placement.buffers
        octets = sum(map(len, buffers))
        if octets != length:
            self._header = None
            raise ValueError(
                f"the place for Object {header.location} has {octets} octets, expected {length}"
            )
        at = self._next - base
        if at + length <= len(view) and not self._stash.octets:
            for buffer in buffers:
                buffer[:] = view[at : at + len(buffer)]
                at += len(buffer)
            self._next = base + at
            self._header = None
            self._items.append(Object(header, allocated, placement))
            return
        self._object_end = self._next + length
        self._placement = placement
        self._allocated = allocated
        self._buffers = buffers
        self._starts = ()
        if self._stash.octets:
            while (held := self._stash.take_below(self._object_end)) is not None:
                self._fill(*held)
            self._next = self._ahead.drop_through(self._next)
            if self._next == self._object_end:
                self._complete()
        else:
            self._copy_first(base, view)

    def _copy_first(self, base: int, view: memoryview) -> None:
        """Copy what `view` has of a payload of which nothing has come before: not all of it."""
        at = self._next - base
        octets = len(view)
        for buffer in self._buffers:
            stop = at + len(buffer)
            if stop > octets:
                buffer[: octets - at] = view[at:]
                if self._final_size is None:
                    self._window = buffer
                    self._window_start = base + at
                    self._window_end = base + stop
                at = octets
                break
            buffer[:] = view[at:stop]
            at = stop
        self._next = base + at

    def _complete(self) -> None:
        assert self._header is not None  # the caller asked
        self._items.append(Object(self._header, self._allocated, self._placement))
        self._header = self._placement = self._allocated = None
        self._buffers = ()
        self._window = _NO_OCTETS
        self._window_end = 0

    def _finish(self) -> None:
        if self._header is not None or self._partial:
            place = f" {self._header.location}" if self._header is not None else ""
            raise malformed(f"FIN inside an Object{place}")
        self._finished = True
        last = self._last.location if isinstance(self._last, ObjectHeader) else self._last
        self._items.append(StreamFinished(last, self._ends_group()))

    def _ends_group(self) -> bool:
        return False

    @staticmethod
    def _check_properties(octets: bytes, where: Location) -> None:
        parse_pairs(octets, f"Properties of Object {where}")


def _allocate(octets: int) -> memoryview:
    if octets < _LAZY_OCTETS:
        return memoryview(bytearray(octets))
    return memoryview(mmap.mmap(-1, octets))
