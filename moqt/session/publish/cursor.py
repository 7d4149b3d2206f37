"""What the scheduler chooses among: the cursors of a request that have something to write."""

from __future__ import annotations

from enum import Enum
from heapq import heapify
from typing import TYPE_CHECKING, Protocol

__all__ = ["Cursor", "CursorState", "Flow"]


class CursorState(Enum):
    """What a cursor has to do next."""

    READY = "something to write"
    IDLE = "nothing until its Subgroup grows"
    FINISHED = "all is written: FIN"
    CUT = "it ends although something is left out: reset"
    BEHIND = "its next Object was evicted: reset"
    LATE = "its next Object is older than OBJECT_DELIVERY_TIMEOUT: reset"


if TYPE_CHECKING:

    class CursorOwner(Protocol):
        """The request that a cursor writes for."""

        @property
        def subscriber_priority(self) -> int:
            """0 to 255, lower is more urgent."""

        def cursor_left(self, cursor: Cursor, state: CursorState) -> None:
            """The scheduler has let go of it: IDLE, or over. Called within `Scheduler.flush`."""

        def stopped(self, cursor: Cursor) -> None:
            """The peer sent STOP_SENDING for its stream, which is still open."""


class Cursor:
    """What of one request is sent in one way: a data stream, or all its datagrams.

    No ABC, whose `isinstance` is slow: the scheduler asks for each piece.
    """

    __slots__ = ("flow", "is_dead", "is_open", "owner", "publisher_priority", "stream_id")

    def __init__(self, flow: Flow, owner: CursorOwner) -> None:
        self.flow = flow
        self.owner = owner
        self.stream_id: int | None = None
        """None until the stream is open, and for datagrams."""
        self.is_open = False
        """Whether it needs no stream, or has one."""
        self.publisher_priority = 0
        self.is_dead = False
        """Set by `Scheduler.discard`: it is never written again."""

    @property
    def urgency(self) -> tuple[int, int]:
        """Subscriber Priority, then Publisher Priority; the smaller goes first (MOQT-22 5.1)."""
        return self.owner.subscriber_priority, self.publisher_priority

    @property
    def order(self) -> tuple[int, int, int, int]:
        """Where it stands among the cursors of its request that are as urgent."""
        raise NotImplementedError

    def prepare(self) -> CursorState:
        """Find out what is next; READY means that there is something to hand over."""
        raise NotImplementedError


class Flow:
    """The cursors of one request that have something to write."""

    __slots__ = ("has_stalled_entry", "is_stalled", "opened", "queued", "ticket", "unopened")

    def __init__(self) -> None:
        self.opened: list[Cursor] = []
        """Those with a stream, and the datagrams; few."""
        self.unopened: list[tuple[tuple[int, int], tuple[int, int, int, int], int, Cursor]] = []
        """A heap of those without one; as many as Groups wait."""
        self.ticket = 0
        """The entry that stands for this flow in one of the scheduler's heaps."""
        self.queued: tuple[int, int] | None = None
        """The urgency of its entry in the heap of flows that can be written."""
        self.is_stalled = False
        """Its unopened cursors wait for a place to open a stream."""
        self.has_stalled_entry = False

    def best(self, *, may_open: bool) -> Cursor | None:
        """Return the cursor to write next; only those with a stream unless `may_open`."""
        best = None
        if len(self.opened) == 1:
            best = self.opened[0]
        elif self.opened:
            best = min(self.opened, key=lambda cursor: (cursor.urgency, cursor.order))
        if may_open and self.unopened:
            urgency, order, _, first = self.unopened[0]
            if best is None or (urgency, order) < (best.urgency, best.order):
                return first
        return best

    def rebuild(self) -> None:
        """Drop dead cursors and take changed priorities in."""
        self.unopened = [
            (cursor.urgency, cursor.order, number, cursor)
            for _, _, number, cursor in self.unopened
            if not cursor.is_dead
        ]
        heapify(self.unopened)
