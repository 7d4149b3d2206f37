"""Requests about namespaces, and what the peer offers us."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from moqt.asyncio.requests import ItemStream, Request, Signal
from moqt.session import events

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Self

    from moqt.asyncio.requests import RequestHost

NamespaceItem = events.NamespaceFound | events.NamespaceGone
"""What a namespace subscription yields."""

Offer = events.PublicationOffered | events.NamespaceOffered
"""What a peer may offer: one track, or a namespace to ask for tracks in."""

MAX_WAITING_OFFERS = 256
"""Offers of one session that wait for `MoqtSession.offers`; more are refused."""


class NamespaceSubscription(ItemStream[NamespaceItem]):
    """SUBSCRIBE_NAMESPACE: which namespaces there are under a prefix, now and later.

    `async with` sends it and waits for its answer; `async for` yields NamespaceFound and
    NamespaceGone, and ends when the publisher ends it. A publisher tells what it has first, but
    nothing says where that ends.
    """

    def __init__(
        self, session: RequestHost, what: str, timeout_s: float | None, command: Callable[[], int]
    ) -> None:
        super().__init__(session, what, timeout_s)
        self._send_command = command

    def _command(self) -> int:
        return self._send_command()

    def _receive_item(self, event: events.Event) -> None:
        match event:
            case events.RequestAccepted():
                self._is_accepted = True
            case events.NamespaceFound() | events.NamespaceGone():
                self._put(event)


class NamespacePublication(Request):
    """PUBLISH_NAMESPACE: we have tracks under this namespace.

    `async with` sends it and waits until it's accepted; leaving it withdraws the namespace.
    """

    def __init__(
        self, session: RequestHost, what: str, timeout_s: float | None, command: Callable[[], int]
    ) -> None:
        super().__init__(session, what, timeout_s)
        self._send_command = command

    async def __aenter__(self) -> Self:
        """Announce it. Raises: RequestRejected, TimedOut, SessionClosed."""
        await self._open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Withdraw it if the peer still has it. It doesn't wait."""
        self._close()

    async def wait_ended(self) -> None:
        """Wait until the peer gives it up. Raises: StreamReset, SessionClosed."""
        await self._wait_over()

    def _command(self) -> int:
        return self._send_command()

    def _receive_item(self, event: events.Event) -> None:
        match event:
            case events.RequestAccepted():
                self._is_accepted = True
            case events.NamespaceWithdrawn():
                self._end(None)


class Offers:
    """The peer's offers, in order: an async iterator. It ends with the session."""

    def __init__(self) -> None:
        self._waiting: deque[Offer] = deque()
        self._signal = Signal()
        self._is_over = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Offer:
        """Return the next offer, to accept or reject. Cancelled: none is lost."""
        while not self._waiting:
            if self._is_over:
                raise StopAsyncIteration
            await self._signal.wait()
        return self._waiting.popleft()

    def put(self, offer: Offer) -> bool:
        """Queue an offer; False when too many wait."""
        if len(self._waiting) >= MAX_WAITING_OFFERS:
            return False
        self._waiting.append(offer)
        self._signal.fire()
        return True

    def withdraw(self, request_id: int) -> None:
        """The peer took an offer back: it needs no answer."""
        self._waiting = deque(offer for offer in self._waiting if offer.request_id != request_id)

    def close(self) -> None:
        """The session is over; what waits can't be answered any more."""
        self._waiting.clear()
        self._is_over = True
        self._signal.fire()


class AcceptedNamespace(Request):
    """A namespace of the peer's that we accepted: it's over when the peer withdraws it."""

    def __init__(self, session: RequestHost, offer: events.NamespaceOffered) -> None:
        super().__init__(session, f"namespace {offer.namespace}", None)
        self.namespace = offer.namespace
        self._request_id = offer.request_id
        self._is_accepted = True

    async def wait_withdrawn(self) -> None:
        """Wait until the peer withdraws it. Raises: SessionClosed."""
        await self._wait_over()

    def revoke(self) -> None:
        """Take the acceptance back."""
        self._close()

    def _receive_item(self, event: events.Event) -> None:
        if isinstance(event, events.NamespaceWithdrawn):
            self._end(None)
