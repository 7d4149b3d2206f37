"""What all requests of a session share: waiting for an answer, a queue of events, the end.

Cancellation: every wait here is a future of its own, so a cancelled waiter takes nothing with it.
An event stays in its queue until `__anext__` returns it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Generic, Protocol, Self, TypeVar

from moqt import errors
from moqt.session import events

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

    from moqt.session.access.authorization import AuthToken
    from moqt.session.config import SessionConfig
    from moqt.types import Location, TrackNamespace
    from moqt.wire.filters import LocationFilter, RangeFilter
    from moqt.wire.params import FillParameters

ItemT = TypeVar("ItemT")

_WITH_EXPIRES = (events.SubscriptionEstablished, events.RequestAccepted, events.UpdateAccepted)


class Signal:
    """Wakes everyone who waits for a change; who waits looks again."""

    __slots__ = ("_waiters",)

    def __init__(self) -> None:
        self._waiters: deque[asyncio.Future[None]] = deque()

    async def wait(self) -> None:
        """Wait for the next `fire`. Cancelling leaves no trace."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        finally:
            if waiter in self._waiters:
                self._waiters.remove(waiter)

    def fire(self) -> None:
        """Wake all."""
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)


def rejection(event: events.RequestRejected, what: str, timeout_s: float) -> errors.MoqtError:
    """Return the error that a refused request raises."""
    if event.timed_out:
        return errors.TimedOut(what, timeout_s)
    return errors.RequestRejected(
        event.code,
        event.reason,
        retry_interval_ms=event.retry_interval_ms,
        redirect_uri=event.redirect_uri,
        redirect_name=event.redirect_name,
    )


class RequestHost(Protocol):
    """What a request needs of its session."""

    config: SessionConfig

    @property
    def is_closed(self) -> bool:
        """Whether the session is over."""
        ...

    def raise_if_closed(self) -> None:
        """Raise SessionClosed when the session is over."""

    def register(self, request_id: int, request: Request) -> None:
        """Send the events of `request_id` to `request` from now on."""

    def unregister(self, request_id: int) -> None:
        """Send no more events there."""

    def cancel_request(self, request_id: int) -> None:
        """Cancel a request if the session still has it."""

    def update_request(
        self,
        request_id: int,
        *,
        forward: bool | None,
        priority: int | None,
        location_filter: LocationFilter | None,
        range_filters: Sequence[RangeFilter] | None,
        fill: FillParameters | None,
        object_delivery_timeout_ms: int | None = None,
        subgroup_delivery_timeout_ms: int | None = None,
        new_group_request: int | None = None,
        tokens: Sequence[AuthToken] = (),
    ) -> int:
        """Send REQUEST_UPDATE and return its Request ID."""
        ...

    def refresh_request(self, request_id: int, tokens: Sequence[AuthToken]) -> int:
        """Send a REQUEST_UPDATE that brings tokens alone and return its Request ID."""
        ...

    def update_prefix(
        self, request_id: int, prefix: TrackNamespace | None, *, forward: bool | None = None
    ) -> int:
        """Send REQUEST_UPDATE for a request about a prefix and return its Request ID."""
        ...

    def consume(self, event: events.ObjectReceived) -> None:
        """The application is done with the Object's octets."""

    def count_queued(self, change: int) -> None:
        """Keep count of events that wait in requests; too many end the session."""


class Request:
    """One request of ours, from its sending to its end."""

    def __init__(self, session: RequestHost, what: str, timeout_s: float | None) -> None:
        self._session = session
        self._what = what
        self._timeout_s = timeout_s
        self._request_id: int | None = None
        self._is_accepted = False
        self._failure: errors.MoqtError | None = None
        self._is_over = False
        self._signal = Signal()
        self._updates: dict[int, errors.MoqtError | events.UpdateAccepted | None] = {}
        self.expires_ms: int | None = None
        """How long it lives from the peer's last word on it, unless `refresh` renews it; None: not
        known, or for ever (MOQT-22 9.20.16)."""
        self.goaway: events.GoawayReceived | None = None
        """Set when the peer asked to move this request, or its session, elsewhere (MOQT-22 6.6.1);
        its own `request_id` tells which."""

    @property
    def request_id(self) -> int:
        """The Request ID; LocalProtocolError before the request is sent."""
        if self._request_id is None:
            raise errors.LocalProtocolError(f"{self._what}: not sent yet; use `async with`")
        return self._request_id

    @property
    def is_over(self) -> bool:
        """Whether it was refused, ended, cancelled, or lost with its session."""
        return self._is_over

    # --- sending and answer ---

    def _command(self) -> int:
        """Send the request and return its ID; subclasses say how."""
        raise NotImplementedError

    async def _open(self) -> None:
        self._send()
        await self._wait_answer()

    def _send(self) -> None:
        if self._request_id is not None:
            raise errors.LocalProtocolError(f"{self._what}: entered a second time")
        self._session.raise_if_closed()
        self._request_id = self._command()
        self._session.register(self._request_id, self)

    async def _wait_answer(self) -> None:
        try:
            async with asyncio.timeout(self._timeout_s):
                while not self._is_accepted and self._failure is None:
                    await self._signal.wait()
        except TimeoutError:
            self._close()
            raise errors.TimedOut(self._what, self._timeout_s or 0.0) from None
        except BaseException:
            self._close()
            raise
        if not self._is_accepted and self._failure is not None:
            raise self._failure

    def _raise_if_unsent(self) -> None:
        """Raise LocalProtocolError before the request is sent: nothing would ever come."""
        _ = self.request_id

    async def wait_goaway(self) -> events.GoawayReceived | None:
        """Wait until the peer asks to move this request or its session.

        None: it is over, and that was not asked. Cancelling leaves no trace.
        """
        self._raise_if_unsent()
        while self.goaway is None and not self._is_over:
            await self._signal.wait()
        return self.goaway

    async def wait_over(self) -> errors.MoqtError | None:
        """Wait until it is over; return what ended it, None for a clean end or one of ours.

        What came before may still lie unread. Cancelling leaves no trace.
        """
        self._raise_if_unsent()
        while not self._is_over:
            await self._signal.wait()
        return self._failure

    async def _wait_over(self) -> None:
        self._raise_if_unsent()
        while not self._is_over:
            await self._signal.wait()
        if self._failure is not None:
            raise self._failure

    # --- events, called by the session ---

    def receive(self, event: events.Event) -> None:
        """Take an event of this request."""
        if isinstance(event, _WITH_EXPIRES) and event.expires_ms is not None:
            self.expires_ms = event.expires_ms or None
        match event:
            case events.ObjectReceived():  # first, since most are
                self._receive_item(event)
            case events.RequestRejected():
                timeout_s = self._session.config.request_timeout_s
                self._end(rejection(event, self._what, timeout_s))
            case events.UpdateAccepted():
                if event.update_id in self._updates:  # else nobody waits for it any more
                    self._updates[event.update_id] = event
            case events.UpdateRejected():
                refusal = errors.RequestRejected(event.code, event.reason)
                for update_id, answer in self._updates.items():
                    if update_id <= event.update_id and answer is None:
                        self._updates[update_id] = refusal
            case events.GoawayReceived():
                self.goaway = self.goaway or event
            case events.RequestEnded():
                failure = None
                if event.reset is not None:
                    failure = errors.StreamReset(event.reset, int(event.reset))
                self._end(failure)
            case _:
                self._receive_item(event)
        self._signal.fire()

    def _receive_item(self, event: events.Event) -> None:
        if isinstance(event, events.RequestAccepted):
            self._is_accepted = True

    def lose(self, failure: errors.SessionClosed) -> None:
        """The session is over."""
        self._end(failure)
        self._signal.fire()

    def _end(self, failure: errors.MoqtError | None) -> None:
        if not self._is_over:
            self._is_over = True
            self._failure = failure
            if self._request_id is not None:
                self._session.unregister(self._request_id)

    # --- updates and the end ---

    async def refresh(self, tokens: Sequence[AuthToken]) -> None:
        """Renew the request's authorization; `expires_ms` is then the peer's answer.

        Raises: RequestRejected, after which the request is over; TimedOut, SessionClosed,
        ResourceBusy at the peer's limit of unanswered updates.
        """
        await self._wait_update(self._session.refresh_request(self.request_id, tokens))

    async def _wait_update(self, update_id: int) -> Location | None:
        self._updates[update_id] = None
        timeout_s = self._session.config.request_timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                while self._updates[update_id] is None and not self._is_over:
                    await self._signal.wait()
        except TimeoutError:
            raise errors.TimedOut(f"{self._what}: update", timeout_s) from None
        finally:
            answer = self._updates.pop(update_id)
        if isinstance(answer, errors.MoqtError):
            raise answer
        if answer is None:
            raise self._failure or errors.LocalProtocolError(f"{self._what}: over already")
        return answer.largest

    def _close(self) -> None:
        """Cancel if it's still open. No wait, so it can't be interrupted."""
        if not self._is_over and self._request_id is not None:
            self._session.cancel_request(self._request_id)
            self._end(None)
            self._signal.fire()


class ItemStream(Request, Generic[ItemT]):
    """A request that yields items: `async with` sends and cancels it, `async for` takes from it.

    One task iterates at a time. What lies unread is bounded by `SessionConfig.max_buffered_octets`
    and, with everything else of the session, by `max_events`.
    """

    def __init__(self, session: RequestHost, what: str, timeout_s: float | None) -> None:
        super().__init__(session, what, timeout_s)
        self._items: deque[ItemT] = deque()
        self._in_hand: ItemT | None = None
        self.admit: Callable[[ItemT], bool] | None = None
        """Looks at what arrives, before it is queued; what it refuses is dropped as if read."""

    async def __aenter__(self) -> Self:
        """Send the request and wait for its answer.

        Raises: RequestRejected, TimedOut, SessionClosed; ResourceBusy at a limit of ours.
        Cancelled: the request is cancelled, nothing is left.
        """
        await self._open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Cancel the request if it's open, and give back what was not read. It doesn't wait."""
        self._close()
        self._give_back()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ItemT:
        """Return the next item; the one before is done with.

        Raises, when all items are taken: StopAsyncIteration after a clean end, else what ended it;
        LocalProtocolError outside of `async with`. Cancelled: nothing is lost.
        """
        self._finish_item()
        while not self._items:
            self._raise_if_unsent()
            if self._is_over:
                if self._failure is not None:
                    raise self._failure
                raise StopAsyncIteration
            await self._signal.wait()
        item = self._items.popleft()
        self._session.count_queued(-1)
        self._in_hand = item
        return item

    @property
    def has_unread(self) -> bool:
        """Whether items wait to be taken."""
        return bool(self._items)

    def leave(self) -> None:
        """Cancel the request if it's open, but keep what has come to be read. It doesn't wait."""
        self._close()

    def _put(self, item: ItemT) -> None:
        if self.admit is not None and not self.admit(item):
            self._credit(item)
            return
        self._items.append(item)
        self._session.count_queued(1)

    def _finish_item(self) -> None:
        item, self._in_hand = self._in_hand, None
        self._credit(item)

    def _credit(self, item: ItemT | None) -> None:
        """Say that an item's octets are done with, if they're in memory of the session."""
        if isinstance(item, events.ObjectReceived) and item.object.payload is not None:
            self._session.consume(item)

    def consume(self, item: ItemT) -> None:
        """Say now, rather than with the next item, that the item's octets are done with."""
        if item is self._in_hand:
            self._finish_item()

    def _give_back(self) -> None:
        self._finish_item()
        for item in self._items:
            self._credit(item)
        self._session.count_queued(-len(self._items))
        self._items.clear()
