"""A transport that records, and a peer of which every octet is written by the test."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from moqt.session.config import Role, SessionConfig
from moqt.session.core import Session
from moqt.wire.framing import MessageReader, encode_message
from moqt.wire.messages import Setup
from moqt.wire.options import SetupOptions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moqt.codes import SessionErrorCode, StreamResetCode
    from moqt.session.access.authorization import Admission, AuthToken
    from moqt.session.events import Event
    from moqt.session.publish.directory import TrackDirectory
    from moqt.wire.messages import Message

__all__ = ["ScriptedPeer", "ScriptedTransport"]

PLENTY = 1 << 40

EventT = TypeVar("EventT")


class ScriptedTransport:
    """A `Transport` that keeps what it is told, and checks that it is told nothing absurd.

    Rooms and stream limits are attributes that a test may set at any time. AssertionError for
    octets behind a FIN, and for credit beyond what was received. As the contract asks, it calls
    nobody back.
    """

    def __init__(self, role: Role) -> None:
        self.sent: dict[int, bytearray] = {}
        self.finished: set[int] = set()
        self.resets: dict[int, StreamResetCode] = {}
        self.stops: dict[int, StreamResetCode] = {}
        self.received: dict[int, int] = {}
        self.credited: dict[int, int] = {}
        self.datagrams: list[bytes] = []
        self.datagram_slots = PLENTY
        """What `datagram_room` says; each datagram takes one."""
        self.unacknowledged: set[int] = set()
        """Streams that the peer has not acknowledged, although they ended."""
        self.closed: tuple[SessionErrorCode, str] | None = None
        self.room = PLENTY
        self.stream_rooms: dict[int, int] = {}
        """Overrides for single streams."""
        self.max_bidirectional = 1 << 20
        self.max_unidirectional = 1 << 20
        self.order: list[int] = []
        """Stream IDs in the order of their writes."""
        self._first = 0 if role is Role.CLIENT else 1
        self._opened = {True: 0, False: 0}

    def open(self, *, bidirectional: bool) -> int | None:
        """Open a stream, unless the limit that the test set is reached."""
        limit = self.max_bidirectional if bidirectional else self.max_unidirectional
        count = self._opened[bidirectional]
        if count >= limit:
            return None
        self._opened[bidirectional] = count + 1
        stream_id = 4 * count + self._first + (0 if bidirectional else 2)
        self.sent[stream_id] = bytearray()
        return stream_id

    def send_room(self) -> int:
        """Return `room`."""
        return self.room

    def stream_room(self, stream_id: int) -> int:
        """Return the override for this stream, or plenty."""
        return self.stream_rooms.get(stream_id, PLENTY)

    def write(self, stream_id: int, buffers: Sequence[memoryview | bytes], fin: bool) -> None:
        """Keep the octets."""
        if stream_id in self.resets or self.closed is not None:
            return
        assert stream_id not in self.finished, f"write on stream {stream_id} after FIN"
        sent = self.sent.setdefault(stream_id, bytearray())
        before = len(sent)
        for buffer in buffers:
            sent += buffer
        if stream_id in self.stream_rooms:
            self.stream_rooms[stream_id] -= len(sent) - before
        self.room -= len(sent) - before
        self.order.append(stream_id)
        if fin:
            self.finished.add(stream_id)

    def credit(self, stream_id: int, octets: int) -> None:
        """Count credit; it never exceeds what came."""
        if stream_id in self.stops:
            return
        total = self.credited.get(stream_id, 0) + octets
        assert octets >= 0
        assert total <= self.received.get(stream_id, 0), f"stream {stream_id}: credit for nothing"
        self.credited[stream_id] = total

    def reset(self, stream_id: int, code: StreamResetCode) -> None:
        """Keep the code."""
        self.resets.setdefault(stream_id, code)

    def stop(self, stream_id: int, code: StreamResetCode) -> None:
        """Keep the code, and settle the account."""
        self.stops.setdefault(stream_id, code)
        self.settle(stream_id)

    def is_acknowledged(self, stream_id: int) -> bool:
        """Return whether the stream has ended, unless the test says that it lags."""
        return stream_id in self.finished and stream_id not in self.unacknowledged

    def datagram_room(self) -> int:
        """Return `datagram_slots`."""
        return self.datagram_slots

    def send_datagram(self, data: bytes) -> bool:
        """Keep it."""
        self.datagrams.append(data)
        self.datagram_slots -= 1
        return True

    def close(self, code: SessionErrorCode, reason: str) -> None:
        """Keep the code; the first counts."""
        if self.closed is None:
            self.closed = (code, reason)

    # For the test

    def settle(self, stream_id: int) -> None:
        """The stream was reset or stopped: all of it is credited."""
        self.credited[stream_id] = self.received.get(stream_id, 0)

    @property
    def owed(self) -> int:
        """Octets received and not credited; zero when everything is at rest."""
        return sum(self.received.values()) - sum(self.credited.values())


class ScriptedPeer:
    """One session under test, and the peer that the test plays.

    The clock is `now`; it moves by `advance` alone. Events are collected in `events`.
    """

    def __init__(
        self,
        role: Role = Role.CLIENT,
        *,
        config: SessionConfig | None = None,
        directory: TrackDirectory | None = None,
        options: SetupOptions | None = None,
        setup: bool = True,
        admission: Admission | None = None,
        session_tokens: Sequence[AuthToken] = (),
    ) -> None:
        """`role` is that of the session under test. `setup`: exchange SETUP at once."""
        self.role = role
        self.now = 0.0
        self.transport = ScriptedTransport(role)
        self.session = Session(
            role=role,
            transport=self.transport,
            config=config or SessionConfig(),
            directory=directory,
            path="/kv" if role is Role.CLIENT else "",
            authority="host.example" if role is Role.CLIENT else "",
            admission=admission,
            session_tokens=session_tokens,
            clock=lambda: self.now,
        )
        self.events: list[Event] = []
        self._next = {True: 0, False: 0}
        self._offsets: dict[int, int] = {}
        self._readers: dict[int, MessageReader] = {}
        self._taken: dict[int, int] = {}
        self._peer_first = 1 if role is Role.CLIENT else 0
        self._next_request_id = self._peer_first
        self.control = -1
        if setup:
            self.session.start(self.now)
            self.send_setup(options)

    # Playing the peer

    def send_setup(self, options: SetupOptions | None = None) -> None:
        """Send SETUP on a new control stream; by default one that allows filters."""
        self.control = self.open_uni()
        self.send(self.control, Setup(options or SetupOptions(max_filter_ranges=32)))

    def open_uni(self) -> int:
        """Return the ID of a unidirectional stream of the peer's."""
        return self._open(bidirectional=False)

    def open_bidi(self) -> int:
        """Return the ID of a bidirectional stream of the peer's."""
        return self._open(bidirectional=True)

    def _open(self, *, bidirectional: bool) -> int:
        count = self._next[bidirectional]
        self._next[bidirectional] = count + 1
        return 4 * count + self._peer_first + (0 if bidirectional else 2)

    def next_request_id(self) -> int:
        """Use up a Request ID of the peer's."""
        request_id = self._next_request_id
        self._next_request_id += 2
        return request_id

    def send(self, stream_id: int, *messages: Message, fin: bool = False) -> None:
        """Send control messages."""
        self.send_octets(stream_id, b"".join(map(encode_message, messages)), fin=fin)

    def send_octets(self, stream_id: int, octets: bytes, *, fin: bool = False) -> None:
        """Send the next octets of a stream."""
        offset = self._offsets.get(stream_id, 0)
        self.send_range(stream_id, offset, octets, fin=fin)

    def send_range(self, stream_id: int, offset: int, octets: bytes, *, fin: bool = False) -> None:
        """Send octets of a stream from any offset."""
        end = offset + len(octets)
        self._offsets[stream_id] = max(self._offsets.get(stream_id, 0), end)
        received = self.transport.received
        received[stream_id] = received.get(stream_id, 0) + len(octets)
        if stream_id in self.transport.stops:
            self.transport.settle(stream_id)
        # A buffer that changes after the call shows whoever kept it instead of copying.
        buffer = bytearray(octets)
        self.session.receive_stream_data(stream_id, offset, memoryview(buffer), fin, self.now)
        buffer[:] = b"\xee" * len(buffer)
        self.after()

    def reset(self, stream_id: int, code: int = 1) -> None:
        """RESET_STREAM."""
        self.session.receive_reset(stream_id, code, self.now)
        self.transport.settle(stream_id)
        self.after()

    def stop(self, stream_id: int, code: int = 1) -> None:
        """STOP_SENDING."""
        self.session.receive_stop(stream_id, code, self.now)
        self.after()

    def cancel(self, stream_id: int, code: int = 1) -> None:
        """Cancel a request: RESET_STREAM and STOP_SENDING."""
        self.reset(stream_id, code)
        self.stop(stream_id, code)

    def datagram(self, octets: bytes) -> None:
        """Send a datagram."""
        self.session.receive_datagram(octets, self.now)
        self.after()

    def advance(self, seconds: float) -> None:
        """Let time pass, timer by timer."""
        end = self.now + seconds
        while True:
            deadline = self.session.next_deadline
            if deadline is None or deadline > end:
                break
            self.now = max(self.now, deadline)
            self.session.handle_timeout(self.now)
            self.after()
        self.now = end

    def after(self) -> None:
        """Do what a binding does after each input: flush, and take the events."""
        self.session.flush(self.now)
        while (event := self.session.next_event()) is not None:
            self.events.append(event)

    # Looking at the session

    def messages(self, stream_id: int) -> list[Message]:
        """Return the control messages on a stream that were not returned before."""
        reader = self._readers.setdefault(stream_id, MessageReader())
        sent = self.transport.sent.get(stream_id, bytearray())
        start = self._taken.get(stream_id, 0)
        self._taken[stream_id] = len(sent)
        return reader.feed(bytes(sent[start:]))

    def take(self, kind: type[EventT]) -> list[EventT]:
        """Return the events of one class so far, and forget them."""
        found: list[EventT] = [event for event in self.events if isinstance(event, kind)]
        self.events = [event for event in self.events if not isinstance(event, kind)]
        return found
