"""A transport that records, and the peer's eyes on what a Publisher wrote to it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from moqt.codes import GroupOrder, ObjectStatus, StreamResetCode
from moqt.session.config import Role, SessionConfig
from moqt.session.context import SessionContext
from moqt.session.publish.directory import TrackDirectory
from moqt.session.publish.payloads import EqualPayloads
from moqt.session.publish.publisher import Publisher
from moqt.session.publish.source import TrackSource
from moqt.session.request.requests import Requests
from moqt.types import FullTrackName, Location, Object, TrackNamespace
from moqt.wire.fetch_objects import FetchReader
from moqt.wire.filters import LocationFilter
from moqt.wire.framing import MessageReader, encode_message
from moqt.wire.messages import (
    Fetch,
    PublishDone,
    RequestUpdate,
    Subscribe,
    SubscribeOk,
    TrackStatus,
)
from moqt.wire.object_reader import EndOfRangeRead
from moqt.wire.params import NO_PARAMETERS, FillParameters, Parameters
from moqt.wire.streams import FetchHeader, SubgroupHeader, parse_stream_head
from moqt.wire.subgroup_objects import SubgroupReader

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from moqt.codes import SessionErrorCode
    from moqt.session.request.requests import Opener, RequestStream
    from moqt.wire.messages import Message
    from moqt.wire.properties import TrackProperties

MANY = 1 << 40
NAME = FullTrackName(TrackNamespace.of("n"), b"t")
NEXT = LocationFilter.next_object()
WHOLE_FILL = FillParameters(location_filter=LocationFilter.absolute(Location(0, 0)))
JOIN = Parameters(location_filter=NEXT, fill=WHOLE_FILL)


@dataclass
class Written:
    """What was done to one outgoing stream."""

    data: bytearray = field(default_factory=bytearray)
    fin: bool = False
    reset: StreamResetCode | None = None
    room: int = MANY

    @property
    def is_open(self) -> bool:
        return not self.fin and self.reset is None


@dataclass(frozen=True)
class Got:
    """One Object as the peer reads it."""

    location: Location
    payload: bytes
    priority: int
    status: ObjectStatus = ObjectStatus.NORMAL
    properties: bytes = b""


class RecordingTransport:
    """Takes everything; `room`, `Written.room` and `uni_limit` are for a test to set."""

    def __init__(self) -> None:
        self.room = MANY
        self.uni_limit = 1 << 20
        self.streams: dict[int, Written] = {}
        self.log: list[tuple[int, int]] = []
        """Stream and octets of each write to a unidirectional stream."""
        self.sequence: list[int | bytes] = []
        """Stream IDs of those writes and datagrams, in order."""
        self.opens_refused = 0
        self.unacknowledged: set[int] = set()
        """Streams that ended by FIN and that the peer has not acknowledged."""
        self.datagrams: list[bytes] = []
        self.takes_datagrams = True
        self.datagram_slots = MANY
        """What `datagram_room` says; each datagram takes one."""
        self._bidi = 0
        self._uni = 0

    def open(self, *, bidirectional: bool) -> int | None:
        if bidirectional:
            self._bidi += 1
            stream_id = 4 * self._bidi - 3
        else:
            if self._uni >= self.uni_limit:
                self.opens_refused += 1
                return None
            self._uni += 1
            stream_id = 4 * self._uni - 1
        self.streams[stream_id] = Written()
        return stream_id

    def send_room(self) -> int:
        return self.room

    def stream_room(self, stream_id: int) -> int:
        return self.streams.setdefault(stream_id, Written()).room

    def write(self, stream_id: int, buffers: Sequence[memoryview | bytes], fin: bool) -> None:
        stream = self.streams.setdefault(stream_id, Written())
        assert stream.is_open, f"write to stream {stream_id}, which has ended"
        size = sum(map(len, buffers))
        for buffer in buffers:
            assert len(buffer)
            stream.data += buffer
        stream.fin = fin
        if stream_id % 4 == 3:
            assert size <= stream.room, "beyond stream flow control"
            if size > 9:  # a FETCH_HEADER may go alone, to say that a fill failed
                assert size <= max(self.room, 0), "beyond send_room"
            stream.room -= size
            self.room -= size
            self.log.append((stream_id, size))
            self.sequence.append(stream_id)

    def credit(self, stream_id: int, octets: int) -> None:
        pass

    def reset(self, stream_id: int, code: StreamResetCode) -> None:
        stream = self.streams.setdefault(stream_id, Written())
        assert stream.is_open or stream_id in self.unacknowledged, f"{stream_id} has ended"
        stream.reset = code

    def stop(self, stream_id: int, code: StreamResetCode) -> None:
        pass

    def is_acknowledged(self, stream_id: int) -> bool:
        return stream_id not in self.unacknowledged

    def datagram_room(self) -> int:
        return self.datagram_slots

    def send_datagram(self, data: bytes) -> bool:
        if not self.takes_datagrams:
            return False
        self.datagrams.append(data)
        self.sequence.append(data)
        self.datagram_slots -= 1
        return True

    def close(self, code: SessionErrorCode, reason: str) -> None:
        raise AssertionError(f"closed: {code.name} {reason}")


class Sending:
    """A Publisher in a session of its own, and a peer that asks it for things."""

    def __init__(
        self, config: SessionConfig | None = None, directory: TrackDirectory | None = None
    ) -> None:
        self.transport = RecordingTransport()
        self.context = SessionContext(
            role=Role.SERVER, transport=self.transport, config=config or SessionConfig()
        )
        self.wakes = 0
        self.now = 0.0
        self.context.wake = self._wake
        self.directory = directory or TrackDirectory()
        self.requests = Requests(self.context, self._route)
        self.publisher = Publisher(self.context, self.requests, self.directory)
        self._next_stream = 0
        self._next_id = 0
        self._sent: dict[int, int] = {}

    def _wake(self) -> None:
        self.wakes += 1

    def _route(self, stream: RequestStream, message: Opener, now: float) -> None:
        if isinstance(message, Subscribe):
            self.publisher.on_subscribe(stream, message, now)
        elif isinstance(message, Fetch):
            self.publisher.on_fetch(stream, message, now)
        else:
            assert isinstance(message, TrackStatus)
            self.publisher.on_track_status(stream, message, now)

    def flush(self) -> None:
        self.publisher.flush(self.now)

    def advance(self, seconds: float) -> None:
        """Let time pass; timers run, nothing else."""
        self.now += seconds
        self.context.timers.run(self.now)

    def track(
        self,
        name: FullTrackName = NAME,
        *,
        retain: int | None = None,
        properties: TrackProperties | None = None,
    ) -> TrackSource:
        track = TrackSource(
            name,
            properties=properties,
            max_retained_octets=retain,
            clock=lambda: self.now,
        )
        self.directory.add(track)
        return track

    # The peer

    def next_id(self) -> int:
        self._next_id += 2
        return self._next_id - 2

    def deliver(self, stream_id: int, message: Message, *, fin: bool = False) -> None:
        stream = self.requests.streams.get(stream_id) or self.requests.admit(stream_id)
        assert stream is not None, f"stream {stream_id} is over"
        octets = encode_message(message)
        at = self._sent.get(stream_id, 0)
        self._sent[stream_id] = at + len(octets)
        stream.receive(at, octets, fin, 0.0)

    def ask(self, message: Message, *, fin: bool = False) -> int:
        stream_id = self._next_stream
        self._next_stream += 4
        self.deliver(stream_id, message, fin=fin)
        return stream_id

    def subscribe(self, parameters: Parameters = NO_PARAMETERS, name: FullTrackName = NAME) -> int:
        return self.ask(Subscribe(self.next_id(), name, parameters))

    def fetch(self, parameters: Parameters = NO_PARAMETERS, name: FullTrackName = NAME) -> int:
        return self.ask(Fetch(self.next_id(), name, parameters))

    def update(self, stream_id: int, parameters: Parameters) -> int:
        request_id = self.next_id()
        self.deliver(stream_id, RequestUpdate(request_id, parameters))
        return request_id

    def cancel(self, stream_id: int) -> None:
        self.requests.streams[stream_id].receive_cancel(1, 0.0)

    def replies(self, stream_id: int) -> list[Message]:
        written = self.transport.streams.get(stream_id)
        return list(MessageReader().feed(bytes(written.data))) if written else []

    def alias(self, stream_id: int) -> int:
        first = self.replies(stream_id)[0]
        assert isinstance(first, SubscribeOk)
        return first.track_alias

    def ended(self, stream_id: int) -> bool:
        return self.transport.streams[stream_id].fin

    # What came

    def data_streams(self) -> dict[int, Written]:
        return {i: s for i, s in self.transport.streams.items() if i % 4 == 3}

    def subgroups(self, alias: int | None = None) -> dict[int, SubgroupHeader]:
        found = {}
        for stream_id, written in self.data_streams().items():
            head = self.head(written)
            if isinstance(head, SubgroupHeader) and alias in (None, head.track_alias):
                found[stream_id] = head
        return found

    def fetches(self, request_id: int | None = None) -> list[int]:
        return [
            stream_id
            for stream_id, written in self.data_streams().items()
            if isinstance(head := self.head(written), FetchHeader)
            and request_id in (None, head.request_id)
        ]

    @staticmethod
    def head(written: Written) -> SubgroupHeader | FetchHeader:
        parsed = parse_stream_head(bytes(written.data))
        assert parsed is not None
        return cast("SubgroupHeader | FetchHeader", parsed[0])

    def read(
        self, stream_id: int, order: GroupOrder = GroupOrder.ASCENDING
    ) -> list[Got | EndOfRangeRead]:
        """Return the whole Objects and markers on one data stream."""
        written = self.transport.streams[stream_id]
        parsed = parse_stream_head(bytes(written.data))
        assert parsed is not None
        head, start = parsed
        reader: SubgroupReader | FetchReader
        if isinstance(head, SubgroupHeader):
            reader = SubgroupReader(head, start=start, place=lambda _: None, max_object_octets=MANY)
        else:
            assert isinstance(head, FetchHeader)
            reader = FetchReader(
                head, group_order=order, start=start, place=lambda _: None, max_object_octets=MANY
            )
        out: list[Got | EndOfRangeRead] = []
        for item in reader.receive(start, bytes(written.data[start:]), written.fin):
            if isinstance(item, Object):
                header = item.header
                out.append(
                    Got(
                        header.location,
                        bytes(item.payload or b""),
                        header.publisher_priority,
                        header.status,
                        header.properties,
                    )
                )
            elif isinstance(item, EndOfRangeRead):
                out.append(item)
        return out

    def objects(self, stream_ids: Iterable[int]) -> list[Got]:
        """Return the Objects of content on these streams, without markers and status Objects."""
        return [
            item
            for stream_id in stream_ids
            for item in self.read(stream_id)
            if isinstance(item, Got) and item.status is ObjectStatus.NORMAL
        ]


def payload_of(group_id: int, object_id: int, size: int = 100) -> bytes:
    """Return octets that tell where they belong."""
    return (f"{group_id}.{object_id};".encode() * size)[:size]


def publish(track: TrackSource, groups: Iterable[int], objects: int, size: int = 100) -> None:
    """Write whole Groups, each with its End of Group: one by Objects, the next in one call."""
    for group_id in groups:
        writer = track.open_group(group_id)
        payloads = [payload_of(group_id, object_id, size) for object_id in range(objects)]
        writer.write_all(EqualPayloads(objects, [b"".join(payloads)]) if group_id % 2 else payloads)
        writer.end_of_group()
        writer.close()


def places(got: Iterable[Got]) -> list[tuple[int, int]]:
    return [(one.location.group_id, one.location.object_id) for one in got]


def done(side: Sending, stream: int) -> PublishDone:
    """Return the PUBLISH_DONE that ended a request stream."""
    last = side.replies(stream)[-1]
    assert isinstance(last, PublishDone)
    assert side.ended(stream)
    return last
