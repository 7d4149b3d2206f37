"""Sessions by address, and requests that are followed from one to the next (MOQT-22 9.2, 9.4).

A peer sends a request elsewhere by REDIRECT, and a session by GOAWAY. `Sessions` knows which
session stands for an address now; `follow` opens one request wherever it is to be had.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, TypeVar

from moqt import errors
from moqt.asyncio.requests import Signal
from moqt.asyncio.token_scope import TokenScope
from moqt.codes import RequestErrorCode, SessionErrorCode
from moqt.uri import MoqtUri

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from contextlib import AbstractAsyncContextManager
    from types import TracebackType

    from moqt.asyncio.session import MoqtSession
    from moqt.session.access.authorization import AuthToken
    from moqt.types import FullTrackName

__all__ = ["FollowConfig", "Place", "Sessions", "Visit", "follow"]

_log = logging.getLogger(__name__)

ResultT = TypeVar("ResultT")


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowConfig:
    """Every limit of a client that follows. Raises: ValueError for one that is too small."""

    max_redirects: int = 8
    """REDIRECTs that one request follows; one more raises FollowFailed."""

    max_retries: int = 8
    """Repetitions of one request that a Retry Interval invites to; then its rejection is raised."""

    follow_timeout_s: float = 60.0
    """Time for one request with all its redirects, new sessions and repetitions. A Retry Interval
    that does not fit into what is left of it is not waited for: the rejection is raised."""

    max_moves: int = 8
    """GOAWAYs in a row that one request follows without getting anything in between, each within
    `follow_timeout_s` of the one before. And those that a client follows while it asks for nothing;
    its next request then makes a new session."""

    max_sessions: int = 16
    """Sessions held at once: the current one, those that redirects led to, those being left. At the
    limit the oldest that nothing uses is closed; if all are in use, ResourceBusy is raised."""

    max_tracked_groups: int = 1024
    """Groups of one subscription, the newest, of which is kept what has come. A move asks for what
    lacks in them, and no further back."""

    namespace_settle_s: float = 2.0
    """How long after a move namespaces that the new session has not reported count as there."""

    def __post_init__(self) -> None:
        for name in ("max_sessions", "max_moves", "max_tracked_groups"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, expected 1 or more")
        for name in ("max_redirects", "max_retries", "follow_timeout_s", "namespace_settle_s"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}, expected 0 or more")


class Place:
    """One session, the address it was made for, and whether anything of ours is open there."""

    def __init__(self, uri: MoqtUri, session: MoqtSession, stack: AsyncExitStack) -> None:
        self.uri = uri
        self.session = session
        self.stack = stack
        self.visits: set[Visit] = set()
        """What is open there: it is not closed as unused meanwhile."""
        self.was_used = False
        self.unused_moves = 0
        """GOAWAYs in a row that led here from sessions on which nothing was asked for."""
        self.next: Place | None = None
        """Where its GOAWAY led, once somebody went there."""
        self.changed = Signal()

    @property
    def is_left(self) -> bool:
        """Whether no request is to be opened there any more (MOQT-22 9.2)."""
        return self.session.is_closed or self.session.goaway_received is not None

    def visit(self) -> Visit:
        """Return a visit that has begun: something of ours is open there until it is left."""
        visit = Visit(self)
        self.visits.add(visit)
        self.was_used = True
        return visit


class Visit:
    """Something of ours that is open at a session. Leave it by `async with`, or by `leave`."""

    __slots__ = ("place",)

    def __init__(self, place: Place) -> None:
        self.place = place

    @property
    def session(self) -> MoqtSession:
        """The session that it is at."""
        return self.place.session

    def leave(self) -> None:
        """It is open there no more: the session may be closed. Harmless twice."""
        self.place.visits.discard(self)
        self.place.changed.fire()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Leave it."""
        self.leave()


class Sessions:
    """Sessions by address, made when they are first needed.

    One address is home: where it began, until a GOAWAY there names another. After a GOAWAY the new
    session is made at once; the old one is closed with NO_ERROR when nothing of ours is open there
    any more (MOQT-22 6.6.1), or by its peer. `close` ends all, and the tasks that watch.
    """

    def __init__(
        self,
        home: MoqtUri,
        dial: Callable[[MoqtUri], AbstractAsyncContextManager[MoqtSession]],
        config: FollowConfig,
        *,
        token_scope: TokenScope | None = None,
    ) -> None:
        self.config = config
        self._scope = token_scope or TokenScope(home)
        self.last_home: Place | None = None
        """The session with home that was used last, whatever became of it."""
        self._first = self._home = home
        self._dial = dial
        self._places: dict[str, Place] = {}
        self._leaving: dict[Place, None] = {}
        self._dialing: dict[str, asyncio.Task[Place]] = {}
        self._watchers: set[asyncio.Task[None]] = set()
        self._is_closed = False

    @property
    def count(self) -> int:
        """Sessions that are held: being made, in use, being left."""
        return len(self._dialing) + len(self._places) + len(self._leaving)

    def tokens_for(
        self, session: MoqtSession, tokens: Sequence[AuthToken] | None
    ) -> Sequence[AuthToken] | None:
        """Return which tokens of a request a session may see: those of `dial` for None.

        Whom a peer names sees none: they are for the authorities that the application named.
        """
        if tokens is None:
            return None
        uri = MoqtUri.parse(f"moqt://{session.own_options.authority}")
        return tokens if self._scope.covers(uri) else ()

    def rejected(self, place: Place, error: errors.RequestRejected) -> errors.RequestRejected:
        """Return the error for a request that was refused at `place`: it says where that is."""
        if self._scope.is_home(place.uri):
            return error
        return errors.RequestRejected(
            error.code,
            error.reason,
            retry_interval_ms=error.retry_interval_ms,
            redirect_uri=error.redirect_uri,
            redirect_name=error.redirect_name,
            address=place.uri.shown,
            hint=self._hint(place.uri, error.code),
        )

    def _hint(self, uri: MoqtUri, code: RequestErrorCode | SessionErrorCode) -> str:
        if code.name != "UNAUTHORIZED" or self._scope.covers(uri):
            return ""
        return f"tokens are shown only at {self._scope}"

    async def home(self) -> Place:
        """Return the session with home. Raises: as `at`."""
        try:
            place = await self.at(self._home)
        except (errors.ConnectFailed, errors.TimedOut):
            self._home = self._first  # where a GOAWAY led is gone: next time from the beginning
            raise
        self.last_home = place
        return place

    async def at(self, uri: MoqtUri) -> Place:
        """Return a session for an address, on which requests may be opened.

        Raises: ConnectFailed, TimedOut, SessionClosed, FollowFailed, ResourceBusy. Cancelled: a
        session that is being made stays, for whoever asks next.
        """
        place = self._places.get(_key(uri))
        if place is None or place.session.is_closed:
            place = await self._connected(uri)
        return await self.usable(place)

    async def usable(self, place: Place) -> Place:
        """Return `place`, or where its GOAWAYs lead. Raises: as `at`."""
        way = [str(place.uri)]
        while place.is_left:
            if len(way) > self.config.max_moves:
                raise errors.FollowFailed(f"more than {self.config.max_moves} moves", tuple(way))
            if place.next is None or place.next.session.is_closed:
                place.next = await self._successor(place)
                place.next.unused_moves = 0 if place.was_used else place.unused_moves + 1
            place = place.next
            way.append(str(place.uri))
        return place

    async def _successor(self, place: Place) -> Place:
        goaway = place.session.goaway_received
        uri = self.target(place, goaway.new_session_uri if goaway is not None else "")
        known = self._places.get(_key(uri))
        if known is not None and not known.is_left:
            return known
        return await self._connected(uri)

    def target(self, place: Place, uri: str) -> MoqtUri:
        """Return the address that the peer at `place` names; empty: its own (MOQT-22 9.4.1).

        Raises: FollowFailed for what is no moqt:// address.
        """
        if not uri:
            return place.uri
        try:
            return MoqtUri.parse(uri)
        except ValueError as error:
            raise errors.FollowFailed(str(error), (str(place.uri), uri)) from error

    async def _connected(self, uri: MoqtUri) -> Place:
        """Return a new session, one for all who wait for this address."""
        if self._is_closed:
            raise _closed()
        key = _key(uri)
        task = self._dialing.get(key)
        if task is None:
            task = self._dialing[key] = asyncio.create_task(
                self._make(uri), name=f"dial {uri.shown}"
            )
            task.add_done_callback(lambda done: self._made(key, done))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if task.cancelled() and current is not None and not current.cancelling():
                raise _closed() from None  # `close` cancelled it, and nobody whoever waits here
            raise

    def _made(self, key: str, done: asyncio.Task[Place]) -> None:
        del self._dialing[key]
        if not done.cancelled() and (error := done.exception()) is not None:
            _log.info("%s", error)  # also where nobody waits for it any more

    async def _make(self, uri: MoqtUri) -> Place:
        await self._make_room()
        async with AsyncExitStack() as stack:
            try:
                session = await stack.enter_async_context(self._dial(uri))
            except OSError as error:  # no socket can be had
                raise errors.ConnectFailed(uri.authority, error.strerror or str(error)) from error
            except errors.SessionClosed as error:
                if self._scope.is_home(uri):
                    raise
                raise errors.SessionClosed(
                    error.code,
                    error.reason,
                    by_peer=error.by_peer,
                    address=uri.shown,
                    hint=self._hint(uri, error.code),
                ) from error
            place = Place(uri, session, stack.pop_all())
        old = self._places.get(_key(uri))
        if old is not None:
            self._leaving[old] = None
        self._places[_key(uri)] = place
        task = asyncio.create_task(self._watch(place), name=f"watch {uri.shown}")
        self._watchers.add(task)
        task.add_done_callback(self._watchers.discard)
        return place

    async def _make_room(self) -> None:
        limit = self.config.max_sessions
        while self.count > limit:  # the one that is being made counts already
            home = _key(self._home)
            idle = [p for key, p in self._places.items() if not p.visits and key != home]
            if not idle:
                raise errors.ResourceBusy(f"max_sessions is {limit}, and all are in use")
            await self._drop(idle[0])

    async def _watch(self, place: Place) -> None:
        """Wait until a session is over or is to be left; move home; close it when it's unused."""
        goaway = await place.session.wait_goaway()
        is_home = _key(place.uri) == _key(self._home)
        is_worth_it = is_home and place.unused_moves < self.config.max_moves
        if goaway is not None and (is_worth_it or place.visits):
            try:
                following = await self.usable(place)
                if is_home:
                    self._home = following.uri
                    self.last_home = following
            except errors.MoqtError as error:
                _log.info("after GOAWAY of %s: %s", place.uri.shown, error)
        if self._places.get(_key(place.uri)) is place:
            del self._places[_key(place.uri)]
            self._leaving[place] = None
        while place.visits:  # whoever uses a session that is over leaves it, too
            await place.changed.wait()
        await self._drop(place)

    async def _drop(self, place: Place) -> None:
        """Close a session with NO_ERROR, and forget it."""
        if self._places.get(_key(place.uri)) is place:
            del self._places[_key(place.uri)]
        self._leaving.pop(place, None)
        await place.stack.aclose()

    async def close(self) -> None:
        """Close all sessions, and end the tasks that watch them; cancelled, too."""
        self._is_closed = True
        tasks = (*self._dialing.values(), *self._watchers)
        for task in tasks:
            task.cancel()
        try:
            await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            places = (*self._places.values(), *self._leaving)
            self._places.clear()
            self._leaving.clear()
            async with AsyncExitStack() as stack:  # each one, even if cancelled in between
                for place in places:
                    stack.push_async_callback(place.stack.aclose)


def _closed() -> errors.SessionClosed:
    return errors.SessionClosed(SessionErrorCode.NO_ERROR, "the client is closed", by_peer=False)


def _key(uri: MoqtUri) -> str:
    """Return what tells addresses apart; a fragment stays with us (MOQT-22 6.1.1)."""
    return f"{uri.host.lower()} {uri.port} {uri.path_and_query}"


async def follow(
    sessions: Sessions,
    start: Place | None,
    target: FullTrackName,
    attempt: Callable[[MoqtSession, FullTrackName], Awaitable[ResultT]],
    *,
    what: str,
) -> tuple[Visit, FullTrackName, ResultT]:
    """Open a request wherever it is to be had; return where that is, its target, what it gave.

    `attempt` opens it at a session and returns once it is accepted; it leaves nothing when it
    fails. REDIRECTs are followed, a Retry Interval is waited for and the request repeated as sent,
    a request that meets a GOAWAY goes to the next session. `start` None: home. The caller
    leaves the visit when the request is over.
    Raises: RequestRejected when nothing more is to be tried, FollowFailed for a circle or too long
    a way, TimedOut after `follow_timeout_s`, and as `Sessions.at`. Cancelled: nothing is left.
    Source: MOQT-22 9.2, 9.4, 12.3.
    """
    config = sessions.config
    loop = asyncio.get_running_loop()
    deadline = loop.time() + config.follow_timeout_s
    place = start
    way: list[str] = []
    retries = 0
    try:
        async with asyncio.timeout_at(deadline):
            while True:
                place = await (sessions.home() if place is None else sessions.usable(place))
                if not way:
                    way.append(_step(place, target))
                try:
                    async with AsyncExitStack() as stack:
                        visit = await stack.enter_async_context(place.visit())
                        result = await attempt(place.session, target)
                        stack.pop_all()
                        return visit, target, result
                except errors.RequestRejected as error:
                    if error.redirect_name is not None:
                        target = error.redirect_name
                        place = await sessions.at(sessions.target(place, error.redirect_uri or ""))
                        _note_step(way, _step(place, target), config.max_redirects)
                        continue
                    retries += 1
                    can_retry = retries <= config.max_retries
                    if can_retry and error.code is RequestErrorCode.GOING_AWAY and place.is_left:
                        continue
                    wait_s = (error.retry_interval_ms or 0) / 1000
                    is_invited = error.retry_interval_ms is not None
                    if not can_retry or not is_invited or loop.time() + wait_s >= deadline:
                        raise sessions.rejected(place, error) from error.__cause__
                    await _pause(wait_s)
                except (errors.SessionClosed, errors.SessionLeaving):
                    retries += 1
                    if place.session.goaway_received is None or retries > config.max_retries:
                        raise
    except TimeoutError:
        raise errors.TimedOut(what, config.follow_timeout_s) from None


async def _pause(seconds: float) -> None:
    await asyncio.sleep(seconds)


def _step(place: Place, target: FullTrackName) -> str:
    return f"{place.uri} {target}"


def _note_step(way: list[str], step: str, limit: int) -> None:
    is_circle = step in way
    way.append(step)
    if is_circle:
        raise errors.FollowFailed("the redirects lead in a circle", tuple(way))
    if len(way) > limit + 1:
        raise errors.FollowFailed(f"more than {limit} redirects", tuple(way))
