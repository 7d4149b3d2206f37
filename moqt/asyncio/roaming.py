"""Requests that survive GOAWAY: one after the other, read as one (MOQT-22 6.6.1, 9.2).

`Roaming` is what subscriptions, fetches and namespace subscriptions have in common: it opens the
request, follows GOAWAY to the next session, and reads what came on the old one first. They have the
verbs of the requests that they stand for, follow redirects when they are opened, and move by
themselves, whether or not they are iterated.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Generic, Self, TypeVar

from moqt import errors
from moqt.asyncio.namespaces import NamespaceSubscription
from moqt.asyncio.requests import Signal
from moqt.asyncio.tracks import Fetch, Subscription
from moqt.codes import PublishDoneCode, StreamResetCode

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from moqt.asyncio.following import Place, Sessions, Visit
    from moqt.asyncio.session import MoqtSession
    from moqt.session import events
    from moqt.session.receive.sink import ObjectSink
    from moqt.types import FullTrackName, Location, Object, ObjectHeader, Placement

__all__ = ["Gate", "Leg", "Roaming", "gate_of"]

MAX_UNREAD_LEGS: Final = 8
"""Sessions that what lies unread of one request may come from. What each may have unread is bounded
by `SessionConfig`; so that a peer cannot multiply it by GOAWAY, a further move waits for the
reader."""

RequestT = TypeVar("RequestT", Subscription, Fetch, NamespaceSubscription)
ItemT = TypeVar("ItemT")


@dataclass(slots=True, eq=False)
class Leg(Generic[RequestT]):
    """The request at one session."""

    visit: Visit
    name: FullTrackName
    request: RequestT
    gate: Gate | None = None
    is_left: bool = False
    """Whether another leg follows."""
    is_filling: bool = False
    """Whether the fill that a move asked for is under way."""
    streams: dict[tuple[int, int], int] = field(default_factory=dict)
    """Subgroup streams that are open, by Group and Subgroup ID: the Request ID."""
    cut: dict[tuple[int, int], int] = field(default_factory=dict)
    """Those of the leg before that the move cut."""


class Roaming(Generic[RequestT, ItemT]):
    """A request in legs: the first one is read, the last one is open."""

    _overlaps = True
    """Whether the old leg goes on until the next one is accepted at another session."""

    def __init__(self, sessions: Sessions, name: FullTrackName, what: str) -> None:
        self._sessions = sessions
        self._name = name
        self._what = what
        self._legs: deque[Leg[RequestT]] = deque()
        self._ready: deque[ItemT] = deque()
        self._task: asyncio.Task[None] | None = None
        self._is_settled = False
        """Whether no move will come any more."""
        self._failure: errors.MoqtError | None = None
        self._signal = Signal()
        self._moves = 0

    async def __aenter__(self) -> Self:
        """Open it, wherever that leads.

        Raises: as `follow`; what the publisher answers last. Cancelled: nothing is left.
        """
        if self._legs or self._task is not None:
            raise errors.LocalProtocolError(f"{self._what}: entered a second time")
        self._legs.append(await self._open(None, self._name, is_moved=False))
        self._task = asyncio.create_task(self._roam(), name=self._what)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Cancel it if it's open, and give back what was not read."""
        for leg in self._legs:
            leg.request.leave()  # before any wait: the same may be asked for again
        try:
            if self._task is not None:
                self._task.cancel()
                await asyncio.wait((self._task,))
                if not self._task.cancelled():
                    self._task.result()
        finally:
            for leg in self._legs:
                await leg.request.__aexit__(None, None, None)
                leg.visit.leave()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ItemT:
        """Return the next item; the one before is done with.

        Raises, when all items are taken: StopAsyncIteration after a clean end, else what ended it,
        or why it could not move; LocalProtocolError outside of `async with`. Cancelled: nothing
        is lost.
        """
        while True:
            if self._ready:
                return self._ready.popleft()
            leg = self._legs[0] if self._legs else self._newest
            try:
                item = await anext(leg.request)
            except (StopAsyncIteration, errors.MoqtError) as end:
                if leg.is_left:
                    self._legs.popleft()
                    self._legs[0].cut = leg.cut | self._legs[0].cut
                    self._signal.fire()
                elif self._is_settled or leg.request.goaway is None:
                    if self._failure is not None:
                        raise self._failure from end
                    raise
                else:
                    await self._signal.wait()
                continue
            self._deliver(leg, item)

    @property
    def session(self) -> MoqtSession:
        """The session where it is open now, or was last."""
        return self._newest.visit.session

    @property
    def moves(self) -> int:
        """GOAWAYs that it followed."""
        return self._moves

    @property
    def _newest(self) -> Leg[RequestT]:
        if not self._legs:
            raise errors.LocalProtocolError(f"{self._what}: not sent yet; use `async with`")
        return self._legs[-1]

    def _deliver(self, leg: Leg[RequestT], item: Any) -> None:
        self._ready.append(item)

    async def _open(
        self, start: Place | None, name: FullTrackName, *, is_moved: bool
    ) -> Leg[RequestT]:
        """Open the request at `start` or where that leads; None: home."""
        raise NotImplementedError

    def _progress(self) -> int:
        """Return a number that grows with what comes."""
        raise NotImplementedError

    async def _roam(self) -> None:
        config = self._sessions.config
        clock = asyncio.get_running_loop().time
        before, in_a_row = -1, 0
        try:
            while True:
                leg = self._legs[-1]
                since = clock()
                goaway = await leg.request.wait_goaway()
                if goaway is None:
                    return
                while sum(leg.request.has_unread for leg in self._legs) > MAX_UNREAD_LEGS:
                    await self._signal.wait()
                if not await self._should_move(leg, goaway):
                    return
                is_fruitless = self._progress() == before
                is_hasty = clock() - since < config.follow_timeout_s
                in_a_row = in_a_row + 1 if is_fruitless and is_hasty else 1
                before = self._progress()
                if in_a_row > config.max_moves:
                    way = tuple(str(leg.visit.place.uri) for leg in self._legs)
                    reason = f"more than {config.max_moves} moves without an item"
                    raise errors.FollowFailed(reason, way)
                await self._move(leg, goaway)
        except errors.MoqtError as error:
            self._failure = error
            await self._legs[-1].request.wait_over()  # it may go on to the end where it is
        finally:
            self._is_settled = True
            self._legs[-1].visit.leave()
            self._signal.fire()

    async def _should_move(self, leg: Leg[RequestT], goaway: events.GoawayReceived) -> bool:
        """Return whether it is to go on elsewhere: not when it ended by itself."""
        request = leg.request
        return not request.is_over or _is_cut(await request.wait_over())

    async def _target(self, leg: Leg[RequestT], goaway: events.GoawayReceived) -> Place:
        """Return where a GOAWAY asks to go; for one request without a URI, nowhere else."""
        if goaway.request_id is not None and goaway.new_session_uri:
            return await self._sessions.at(
                self._sessions.target(leg.visit.place, goaway.new_session_uri)
            )
        return leg.visit.place

    async def _move(self, leg: Leg[RequestT], goaway: events.GoawayReceived) -> None:
        """Open it at the next session, then cancel it at the old one (MOQT-22 9.2)."""
        place = await self._target(leg, goaway)
        if not self._overlaps or (place is leg.visit.place and not place.is_left):
            leg.request.leave()  # in the same session, or where twice would be once too many
        following = await self._open(place, leg.name, is_moved=True)
        leg.request.leave()
        leg.visit.leave()
        following.cut.update(leg.streams)
        self._legs.append(following)
        self._moves += 1
        leg.is_left = True
        if following.gate is not None:
            following.gate.is_open = True
        self._signal.fire()


def _is_cut(failure: errors.MoqtError | None) -> bool:
    """Return whether a request ended because its session or publisher is going away."""
    match failure:
        case errors.SessionClosed():
            return True
        case errors.StreamReset():
            return failure.code is StreamResetCode.GOING_AWAY
        case errors.RequestEnded():
            return failure.code is PublishDoneCode.GOING_AWAY
    return False


class Gate:
    """The application's sink, asked only for Objects that are new, and by one leg at a time."""

    def __init__(
        self, sink: ObjectSink, is_new: Callable[[Location], bool] | None, *, is_open: bool
    ) -> None:
        self.is_open = is_open
        """Until the old leg is cancelled, it may hold the place of an Object that comes here."""
        self._sink = sink
        self._is_new = is_new

    def place(self, header: ObjectHeader, *, from_fill: bool) -> Placement | None:
        """Ask the application; None, which is memory of its own, while that is not due."""
        if not self.is_open or (self._is_new is not None and not self._is_new(header.location)):
            return None
        return self._sink.place(header, from_fill=from_fill)

    def abandoned(self, placement: Placement) -> None:
        """Give a place back."""
        self._sink.abandoned(placement)

    def drop(self, obj: Object) -> None:
        """An Object is not handed on: give its place back, if it has one."""
        if obj.placement is not None:
            self._sink.abandoned(obj.placement)


def gate_of(
    sink: ObjectSink | None, is_new: Callable[[Location], bool] | None, *, is_open: bool
) -> Gate | None:
    """Return the gate before a sink; without a sink there is none to guard."""
    return None if sink is None else Gate(sink, is_new, is_open=is_open)
