"""What all parts of one session share: its transport, limits, clock work, events, and its end."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from moqt.codes import SessionErrorCode
from moqt.session.stats import SessionStats
from moqt.session.timers import Timers

if TYPE_CHECKING:
    from collections.abc import Callable

    from moqt.codes import StreamResetCode
    from moqt.session.config import Role, SessionConfig
    from moqt.session.events import Event
    from moqt.session.receive.budget import ReadBudget
    from moqt.session.transport import Transport
    from moqt.wire.options import SetupOptions


@dataclass(frozen=True, slots=True)
class Ending:
    """Why the session is over. `by_peer`: the peer or the network ended it, not we."""

    code: SessionErrorCode
    reason: str
    by_peer: bool


class Handle(Protocol):
    """A request that the application knows by its Request ID, ours or the peer's."""

    def cancel(self, code: StreamResetCode) -> None:
        """End it from our side, with everything that belongs to it, and emit nothing."""

    def session_over(self) -> None:
        """The session is over: give back what was lent, and emit nothing."""


class SessionContext:
    """Shared by the parts of one session; owned by `Session`.

    A part reports a breach of the protocol either by raising RemoteProtocolError from an input, or
    by `fatal`. Both only mark the end; `Session` takes the parts down when the input returns, so no
    part is ever torn down while it runs.
    """

    def __init__(self, *, role: Role, transport: Transport, config: SessionConfig) -> None:
        self.role = role
        self.transport = transport
        self.config = config
        self.stats = SessionStats()
        self.timers = Timers()
        self.peer_options: SetupOptions | None = None
        """What the peer's SETUP said; None before it is read."""
        self.ending: Ending | None = None
        self.wake: Callable[[], None] = _nobody_to_wake
        """Asks the binding for one `Session.flush` soon. The binding sets it."""
        self.clock: Callable[[], float] | None = None
        """Reads the clock that `now` is of, where known."""
        self.handles: dict[int, Handle] = {}
        """By Request ID: what commands of the application may name."""
        self.budgets: dict[int, ReadBudget] = {}
        """By Request ID: of the requests whose Objects may be consumed."""
        self._events: deque[Event] = deque()

    @property
    def is_closed(self) -> bool:
        """True as soon as the end of the session is decided."""
        return self.ending is not None

    def emit(self, event: Event) -> None:
        """Queue an event; more than `max_events` unread ones end the session."""
        self._events.append(event)
        if len(self._events) > self.config.max_events:
            self.fatal(
                SessionErrorCode.INTERNAL_ERROR,
                f"more than {self.config.max_events} events unread",
            )

    def next_event(self) -> Event | None:
        """Take the oldest event, None when there is none."""
        return self._events.popleft() if self._events else None

    def fatal(self, code: SessionErrorCode, reason: str) -> None:
        """End the session with `code`; the first call counts."""
        self.end(Ending(code, reason, by_peer=False))

    def end(self, ending: Ending) -> None:
        """Mark the end of the session; the first call counts."""
        if self.ending is None:
            self.ending = ending


def _nobody_to_wake() -> None:
    """Stand in for the binding's wake-up while there is none."""
