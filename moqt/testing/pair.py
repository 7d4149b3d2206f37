"""Two sessions, client and server, on one link with a virtual clock."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from moqt.codes import SessionErrorCode
from moqt.session.config import Role, SessionConfig
from moqt.session.core import Session
from moqt.testing.link import Link, LinkConditions

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random

    from moqt.session.access.authorization import Admission, AuthToken
    from moqt.session.events import Event
    from moqt.session.publish.directory import TrackDirectory

__all__ = ["SessionPair"]

EventT = TypeVar("EventT")


class SessionPair:
    """Both ends of a session, driven to rest by `run`.

    `now` is the clock; it moves by `advance` alone. `rng`: pieces are delivered in random order.
    Events collect in `events[role]`; `take` gives those of one class.
    """

    def __init__(
        self,
        *,
        client_config: SessionConfig | None = None,
        server_config: SessionConfig | None = None,
        client_directory: TrackDirectory | None = None,
        server_directory: TrackDirectory | None = None,
        conditions: LinkConditions | None = None,
        rng: Random | None = None,
        start: bool = True,
        server_admission: Admission | None = None,
        client_request_tokens: Sequence[AuthToken] = (),
    ) -> None:
        self.now = 0.0
        self.rng = rng
        self.link = Link(conditions)
        self.client = Session(
            role=Role.CLIENT,
            transport=self.link.client,
            config=client_config or SessionConfig(),
            directory=client_directory,
            path="/kv",
            authority="host.example",
            request_tokens=client_request_tokens,
            clock=lambda: self.now,
        )
        self.server = Session(
            role=Role.SERVER,
            transport=self.link.server,
            config=server_config or SessionConfig(),
            directory=server_directory,
            admission=server_admission,
            clock=lambda: self.now,
        )
        self.events: dict[Role, list[Event]] = {Role.CLIENT: [], Role.SERVER: []}
        if start:
            self.client.start(self.now)
            self.server.start(self.now)
            self.run()

    @property
    def sessions(self) -> tuple[Session, Session]:
        """Client and server."""
        return self.client, self.server

    def run(self, max_pieces: int | None = None) -> int:
        """Deliver until nothing is under way, or `max_pieces` were; return how many were."""
        delivered = 0
        while True:
            self.flush()
            moved = self._deliver_one()
            if not moved:
                return delivered
            delivered += 1
            if max_pieces is not None and delivered >= max_pieces:
                self.flush()
                return delivered

    def _deliver_one(self) -> bool:
        link, now, rng = self.link, self.now, self.rng
        turns = [(link.client, self.server), (link.server, self.client)]
        if rng is not None:
            rng.shuffle(turns)
        return any(link.deliver(sender, session, now, rng) for sender, session in turns)

    def flush(self) -> None:
        """Do what a binding does after each input."""
        for session in self.sessions:
            session.flush(self.now)
        self._pass_on_close()
        for role, session in zip(Role, self.sessions, strict=True):
            while (event := session.next_event()) is not None:
                self.events[role].append(event)

    def _pass_on_close(self) -> None:
        for end, session in ((self.link.client, self.server), (self.link.server, self.client)):
            if end.closed is not None and not session.is_closed:
                session.connection_lost(end.closed[0], end.closed[1], by_peer=True, now=self.now)

    def cut(self) -> None:
        """The network is gone: both ends lose the connection, nothing more is delivered."""
        for end, session in zip((self.link.client, self.link.server), self.sessions, strict=True):
            end.pending.clear()
            session.connection_lost(
                SessionErrorCode.INTERNAL_ERROR, "idle timeout", by_peer=True, now=self.now
            )
        self.flush()

    def advance(self, seconds: float) -> None:
        """Let time pass, timer by timer, delivering in between."""
        end = self.now + seconds
        while True:
            deadlines = [s.next_deadline for s in self.sessions if s.next_deadline is not None]
            deadline = min(deadlines, default=None)
            if deadline is None or deadline > end:
                break
            self.now = max(self.now, deadline)
            for session in self.sessions:
                session.handle_timeout(self.now)
            self.run()
        self.now = end

    def take(self, role: Role, kind: type[EventT]) -> list[EventT]:
        """Return the events of one class at one end so far, and forget them."""
        found: list[EventT] = [event for event in self.events[role] if isinstance(event, kind)]
        self.events[role] = [e for e in self.events[role] if not isinstance(e, kind)]
        return found
