"""One direction of one stream as values, whoever sends it: for traces and tools, not for sessions.

It knows no request and no state, so it reads more than a session would accept; what breaks the
format itself ends it with `Malformed`.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from typing import TYPE_CHECKING

from moqt.codes import GroupOrder
from moqt.errors import RemoteProtocolError
from moqt.session.request.reassembly import Reassembly
from moqt.types import Placement
from moqt.wire.cursor import NeedMore, OpenReader, malformed
from moqt.wire.fetch_objects import FetchReader
from moqt.wire.framing import MESSAGES, decode_body
from moqt.wire.messages import Message, MessageType
from moqt.wire.object_reader import ObjectTooLarge, StreamItem
from moqt.wire.properties import DEFAULT_PRIORITY
from moqt.wire.streams import (
    ControlHead,
    FetchHeader,
    PaddingHead,
    StreamHead,
    SubgroupHeader,
    parse_stream_head,
)
from moqt.wire.subgroup_objects import SubgroupReader

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from moqt.types import ObjectHeader
    from moqt.wire.object_reader import ObjectReader

__all__ = ["Decoded", "Malformed", "StreamDecoder", "StreamValue"]

_SCRATCH = memoryview(mmap.mmap(-1, 1 << 20))
"""Where payloads go: nobody reads them. The kernel gives it memory when there is a trace."""

MAX_OBJECT_OCTETS = 1 << 32
"""The longest payload that is followed. A header may claim any length, and a place of so many
octets is a row of views of the scratch: at most 4,096."""


@dataclass(frozen=True, slots=True)
class Malformed:
    """The octets from here on cannot be read; `reason` says what was expected."""

    reason: str


@dataclass(frozen=True, slots=True)
class Decoded:
    """A value, and where on the stream it begins.

    Of Objects the offset is exact when they were read with `exact`, else it is that of the octets
    with which they became whole.
    """

    offset: int
    value: StreamValue


StreamValue = Message | StreamHead | StreamItem | Malformed


def _ascending(_request_id: int) -> GroupOrder:
    return GroupOrder.ASCENDING


class StreamDecoder:
    """Reads a request stream (`is_request`) or a unidirectional stream of any type.

    `group_order_of`: the order of the FETCH with this Request ID, without which the Groups of a
    descending one are wrong. `exact`: offsets of Objects are exact, which costs time. Holds what
    waits for a gap, and one unfinished message or header.
    """

    def __init__(
        self,
        *,
        is_request: bool,
        group_order_of: Callable[[int], GroupOrder] = _ascending,
        exact: bool = False,
    ) -> None:
        self._is_messages = is_request
        self._group_order_of = group_order_of
        self._exact = exact
        self._reassembly = Reassembly()
        self._held = bytearray()
        self._at = 0  # the offset of what is held
        self._reader: ObjectReader | None = None
        self._payload_end = 0
        self.head: StreamHead | None = None
        """What a unidirectional stream began with."""
        self._is_padding = False
        self.is_over = False
        """True after FIN or what cannot be read: nothing more comes of it."""

    @property
    def is_complete(self) -> bool:
        """True when all octets up to the FIN were taken."""
        return self._reassembly.is_complete

    @property
    def position(self) -> int:
        """The offset up to which all is read."""
        return self._at if self._reader is None else self._reader.next_offset

    @property
    def unfinished(self) -> str | None:
        """What began and is not whole, with how much of it is there; None: nothing."""
        if self.is_over:
            return None
        reader = self._reader
        if reader is None:
            what = "message" if self._is_messages else "stream header"
            return f"{len(self._held)} octets of an unfinished {what}" if self._held else None
        if reader.current is not None:
            missing = self._payload_end - reader.next_offset
            return (
                f"Object {reader.current.location}: {missing} of "
                f"{reader.current.payload_length} payload octets are missing"
            )
        pending = reader.octets_pending
        return f"{pending} octets of an unfinished Object header" if pending else None

    def receive(self, offset: int, data: memoryview | bytes, fin: bool) -> list[Decoded]:
        """Take octets, each once, in any order; return what they complete. It never raises."""
        found: list[Decoded] = []
        if self.is_over:
            return found
        start = self._reassembly.position
        octets = memoryview(self._reassembly.push(offset, data, fin))
        is_end = self.is_complete
        try:
            self._read(start, octets, is_end, found)
        except (RemoteProtocolError, ObjectTooLarge) as error:
            self._take(found)
            reason = error.reason if isinstance(error, RemoteProtocolError) else str(error)
            found.append(Decoded(self.position, Malformed(reason)))
            self.is_over = True
        if is_end:
            self.is_over = True
        return found

    def _take(self, found: list[Decoded]) -> None:
        if self._reader is not None:
            found += [Decoded(self._at, item) for item in self._reader.take_items()]

    def _read(self, start: int, octets: memoryview, is_end: bool, found: list[Decoded]) -> None:
        if self._reader is not None:
            self._read_objects(start, octets, is_end, found)
            return
        if self._is_padding:
            return
        self._held += octets
        if self._is_messages:
            self._read_messages(is_end, found)
        else:
            self._read_head(is_end, found)

    def _read_head(self, is_end: bool, found: list[Decoded]) -> None:
        parsed = parse_stream_head(self._held)
        if parsed is None:
            if is_end:
                raise malformed(
                    f"the stream ends inside its header, after {len(self._held)} octets"
                )
            return
        head, octets = parsed
        self.head = head
        found.append(Decoded(0, head))
        held, self._held = bytes(self._held), bytearray()
        self._reader = self._reader_for(head, octets)
        if self._reader is not None:
            self._at = octets
            self._read_objects(octets, memoryview(held)[octets:], is_end, found)
        elif isinstance(head, PaddingHead):
            self._is_padding = True
        else:
            self._is_messages = True
            self._held += held
            self._read_messages(is_end, found)

    def _reader_for(self, head: StreamHead, start: int) -> ObjectReader | None:
        match head:
            case SubgroupHeader():
                return SubgroupReader(
                    head,
                    start=start,
                    place=self._place,
                    max_object_octets=MAX_OBJECT_OCTETS,
                    default_priority=DEFAULT_PRIORITY,
                )
            case FetchHeader():
                return FetchReader(
                    head,
                    start=start,
                    place=self._place,
                    max_object_octets=MAX_OBJECT_OCTETS,
                    group_order=self._group_order_of(head.request_id),
                )
            case ControlHead() | PaddingHead():
                return None

    def _read_objects(
        self, start: int, octets: memoryview, is_end: bool, found: list[Decoded]
    ) -> None:
        reader = self._reader
        assert reader is not None
        at = 0
        while self._exact and at < len(octets):
            # one octet at a time in headers, so that each item is known to end with it
            left = 1 if reader.current is None else self._payload_end - reader.next_offset
            size = min(left, len(octets) - at)
            is_last = is_end and at + size == len(octets)
            self._add(reader.receive(start + at, octets[at : at + size], is_last), found)
            at += size
        if at < len(octets) or not octets:
            self._add(reader.receive(start + at, octets[at:], is_end), found)

    def _place(self, header: ObjectHeader) -> Placement:
        assert self._reader is not None  # it asks
        self._payload_end = self._reader.next_offset + header.payload_length
        whole, rest = divmod(header.payload_length, len(_SCRATCH))
        return Placement((_SCRATCH,) * whole + ((_SCRATCH[:rest],) if rest else ()))

    def _add(self, items: Sequence[StreamItem], found: list[Decoded]) -> None:
        assert self._reader is not None
        found += [Decoded(self._at, item) for item in items]
        if items:
            self._at = self._reader.next_offset

    def _read_messages(self, is_end: bool, found: list[Decoded]) -> None:
        while self._held:
            reader = OpenReader(bytes(self._held[:11]), "control message")
            try:
                kind = reader.vi64("Message Type")
                if kind not in MESSAGES:
                    raise malformed(
                        f"unknown message type 0x{kind:x}, expected one of "
                        + ", ".join(f"0x{known.value:x} {known.name}" for known in MessageType)
                    )
                length = reader.uint16("Length")
            except NeedMore:
                break
            end = reader.position + length
            if len(self._held) < end:
                break
            message = decode_body(kind, bytes(self._held[reader.position : end]))
            found.append(Decoded(self._at, message))
            del self._held[:end]
            self._at += end
        if is_end and self._held:
            raise malformed(f"the stream ends inside a message, after {len(self._held)} octets")
