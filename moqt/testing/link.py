"""A QUIC connection that a test controls: two `Transport`s and what is under way between them.

Nothing happens by itself. What a session writes waits in the link as pieces; `Link.deliver` hands
them over, in order or as a seeded random source says. The link checks the accounts of flow control.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from moqt.session.config import Role

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random

    from moqt.codes import SessionErrorCode, StreamResetCode
    from moqt.session.core import Session

__all__ = ["Link", "LinkConditions", "LinkEnd"]


@dataclass(slots=True, kw_only=True)
class LinkConditions:
    """How the link behaves; a test may change it while it runs. Octets throughout."""

    piece: int = 1200
    """The most that one piece of a stream has."""
    stream_window: int = 1 << 20
    """How much of a stream may be under way uncredited."""
    connection_window: int = 1 << 22
    """The same for all streams together."""
    reserve: int = 1 << 16
    """Connection credit that `send_room` keeps for control and request streams."""
    send_buffer: int = 1 << 18
    """What `send_room` lets lie in the link, undelivered."""
    max_bidirectional: int = 1 << 20
    max_unidirectional: int = 1 << 20
    """How many streams of a kind an end may ever open."""
    max_waiting_datagrams: int = 16
    """Datagrams that `datagram_room` lets lie in the link, undelivered."""
    stalled: set[Role] = field(default_factory=set)
    """Ends whose pieces are not delivered for now."""


@dataclass(slots=True)
class _Half:
    """One direction of one stream."""

    written: int = 0
    received: int = 0
    credited: int = 0
    is_finished: bool = False
    reset_code: int | None = None
    is_stopped: bool = False
    is_settled: bool = False
    """True when the receiving end credits all of it by itself."""


@dataclass(slots=True)
class _Piece:
    stream_id: int
    offset: int
    data: bytes
    fin: bool


@dataclass(slots=True)
class _Signal:
    stream_id: int
    code: int
    is_reset: bool


class LinkEnd:
    """The transport of one session. `halves` are the streams' directions that it sends on."""

    def __init__(self, link: Link, role: Role) -> None:
        self.role = role
        self.halves: dict[int, _Half] = {}
        self.pending: deque[_Piece | _Signal | bytes] = deque()
        self.under_way = 0
        """Octets written and not delivered."""
        self.uncredited = 0
        """Octets written that the other end has not credited."""
        self.closed: tuple[SessionErrorCode, str] | None = None
        self.opened = {True: 0, False: 0}
        self.most_uncredited = 0
        self._link = link
        self._first = 0 if role is Role.CLIENT else 1

    @property
    def other(self) -> LinkEnd:
        """The other end."""
        return self._link.end(Role.SERVER if self.role is Role.CLIENT else Role.CLIENT)

    # Transport

    def open(self, *, bidirectional: bool) -> int | None:
        """Open a stream within the conditions' limits."""
        conditions = self._link.conditions
        limit = conditions.max_bidirectional if bidirectional else conditions.max_unidirectional
        count = self.opened[bidirectional]
        if count >= limit:
            return None
        self.opened[bidirectional] = count + 1
        return 4 * count + self._first + (0 if bidirectional else 2)

    def send_room(self) -> int:
        """What the link takes now, less the reserve."""
        conditions = self._link.conditions
        connection = conditions.connection_window - conditions.reserve - self.uncredited
        return min(conditions.send_buffer - self.under_way, connection)

    def stream_room(self, stream_id: int) -> int:
        """What the other end's windows take on this stream."""
        conditions = self._link.conditions
        half = self._half(stream_id)
        return min(
            conditions.stream_window - (half.written - half.credited),
            conditions.connection_window - self.uncredited,
        )

    def write(self, stream_id: int, buffers: Sequence[memoryview | bytes], fin: bool) -> None:
        """Put octets into the link as pieces."""
        half = self._half(stream_id)
        if half.reset_code is not None or self.closed is not None:
            return
        assert not half.is_finished, f"write on stream {stream_id} after FIN"
        data = b"".join(buffers)
        step = self._link.conditions.piece
        for start in range(0, len(data), step):
            end = start + step >= len(data)
            piece = data[start : start + step]
            self.pending.append(_Piece(stream_id, half.written + start, piece, fin=fin and end))
        if not data and fin:
            self.pending.append(_Piece(stream_id, half.written, b"", fin=True))
        half.written += len(data)
        half.is_finished = fin
        self.under_way += len(data)
        self._count(len(data))

    def _count(self, octets: int) -> None:
        self.uncredited += octets
        self.most_uncredited = max(self.most_uncredited, self.uncredited)

    def credit(self, stream_id: int, octets: int) -> None:
        """Let the other end send more."""
        half = self.other._half(stream_id)
        if half.is_settled:
            return
        half.credited += octets
        assert half.credited <= half.received, f"stream {stream_id}: credit for nothing"
        self.other.uncredited -= octets

    def reset(self, stream_id: int, code: StreamResetCode) -> None:
        """Drop what is undelivered, and tell the other end."""
        half = self._half(stream_id)
        if half.reset_code is None:
            half.reset_code = int(code)
            self._drop_pieces(stream_id)
            self.pending.append(_Signal(stream_id, int(code), is_reset=True))

    def _drop_pieces(self, stream_id: int) -> None:
        kept: deque[_Piece | _Signal | bytes] = deque()
        for piece in self.pending:
            if isinstance(piece, _Piece) and piece.stream_id == stream_id:
                self.under_way -= len(piece.data)
            else:
                kept.append(piece)
        self.pending = kept

    def stop(self, stream_id: int, code: StreamResetCode) -> None:
        """Tell the other end; what still comes is credited by the link."""
        half = self.other._half(stream_id)
        if not half.is_stopped:
            half.is_stopped = True
            self.pending.append(_Signal(stream_id, int(code), is_reset=False))
            self.other._settle(half)

    def _settle(self, half: _Half) -> None:
        """The receiver credits this direction by itself from now on."""
        half.is_settled = True
        self.uncredited -= half.written - half.credited
        half.credited = half.written

    def is_acknowledged(self, stream_id: int) -> bool:
        """Whether all of the stream was delivered."""
        half = self._half(stream_id)
        return half.is_finished and not any(
            isinstance(piece, _Piece) and piece.stream_id == stream_id for piece in self.pending
        )

    def datagram_room(self) -> int:
        """What of `max_waiting_datagrams` is not used up by datagrams under way."""
        waiting = sum(isinstance(piece, bytes) for piece in self.pending)
        return self._link.conditions.max_waiting_datagrams - waiting

    def send_datagram(self, data: bytes) -> bool:
        """Put a datagram into the link."""
        self.pending.append(data)
        return True

    def close(self, code: SessionErrorCode, reason: str) -> None:
        """CONNECTION_CLOSE; it overtakes everything."""
        if self.closed is None:
            self.closed = (code, reason)

    def _half(self, stream_id: int) -> _Half:
        half = self.halves.get(stream_id)
        if half is None:
            half = self.halves[stream_id] = _Half()
        return half


class Link:
    """Two ends and the pieces between them."""

    def __init__(self, conditions: LinkConditions | None = None) -> None:
        self.conditions = conditions or LinkConditions()
        self.client = LinkEnd(self, Role.CLIENT)
        self.server = LinkEnd(self, Role.SERVER)

    def end(self, role: Role) -> LinkEnd:
        """Return the end of one role."""
        return self.client if role is Role.CLIENT else self.server

    def deliver(self, sender: LinkEnd, session: Session, now: float, rng: Random | None) -> bool:
        """Hand one piece of `sender` to `session`; False when there is none.

        `rng` None: the oldest; else any. QUIC keeps no order between packets.
        """
        if not sender.pending or sender.role in self.conditions.stalled:
            return False
        if rng is not None:
            sender.pending.rotate(-rng.randrange(len(sender.pending)))
        piece = sender.pending.popleft()
        if isinstance(piece, _Piece):
            self._deliver_piece(sender, piece, session, now)
        elif isinstance(piece, _Signal):
            self._deliver_signal(sender, piece, session, now)
        else:
            session.receive_datagram(piece, now)
        return True

    def _deliver_piece(self, sender: LinkEnd, piece: _Piece, session: Session, now: float) -> None:
        half = sender._half(piece.stream_id)
        sender.under_way -= len(piece.data)
        half.received += len(piece.data)
        if half.is_settled:
            if piece.data:
                sender.uncredited -= half.written - half.credited
                half.credited = half.written
            return
        # A buffer that changes after the call shows whoever kept it instead of copying.
        buffer = bytearray(piece.data)
        session.receive_stream_data(
            piece.stream_id, piece.offset, memoryview(buffer), piece.fin, now
        )
        buffer[:] = b"\xee" * len(buffer)

    def _deliver_signal(
        self, sender: LinkEnd, signal: _Signal, session: Session, now: float
    ) -> None:
        if signal.is_reset:
            half = sender._half(signal.stream_id)
            sender._settle(half)
            if not half.is_stopped:
                session.receive_reset(signal.stream_id, signal.code, now)
            return
        half = sender.other._half(signal.stream_id)
        if half.reset_code is None and not (half.is_finished and half.received == half.written):
            session.receive_stop(signal.stream_id, signal.code, now)

    def assert_at_rest(self) -> None:
        """Assert that everything written was delivered or dropped, and credited."""
        for end in (self.client, self.server):
            assert not end.pending, f"{end.role.value}: {len(end.pending)} pieces undelivered"
            owed = {
                stream_id: half.written - half.credited
                for stream_id, half in end.halves.items()
                if half.written != half.credited
            }
            assert not owed, f"{end.role.value}: uncredited octets by stream: {owed}"
            assert end.uncredited == 0
