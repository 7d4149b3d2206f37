"""Requests about namespaces, and what the peer offers us."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

from moqt.asyncio.requests import ItemStream, Request, Signal
from moqt.session import events

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import TracebackType
    from typing import Self

    from moqt.asyncio.requests import RequestHost
    from moqt.types import TrackNamespace

NamespaceItem = events.NamespaceFound | events.NamespaceGone
"""What a namespace subscription yields."""

TrackItem = events.PublicationOffered | events.TrackSkipped
"""What a SUBSCRIBE_TRACKS yields."""

Offer = events.PublicationOffered | events.NamespaceOffered
"""What a peer may offer: one track, or a namespace to ask for tracks in."""

MAX_WAITING_OFFERS = 256
"""Offers of one session that wait for `MoqtSession.offers`, and in each TracksSubscription; more
are refused."""


class Advertised(Protocol):
    """A session, as far as its peer's namespaces go."""

    @property
    def accepted_namespaces(self) -> frozenset[TrackNamespace]:
        """The peer's PUBLISH_NAMESPACE that we accepted and neither side has ended."""
        ...


AdvertisedT = TypeVar("AdvertisedT", bound=Advertised)


def sessions_to_ask(
    sessions: Iterable[AdvertisedT], namespace: TrackNamespace
) -> list[AdvertisedT]:
    """Return which sessions to ask for a track in exactly `namespace` (MOQT-22 4.1).

    For an application with several sessions: those whose peers advertised just that namespace and
    were accepted, if there are any; else all of them, since nobody has to advertise.
    """
    all_sessions = list(sessions)
    advertisers = [one for one in all_sessions if namespace in one.accepted_namespaces]
    return advertisers or all_sessions


@dataclass(frozen=True, slots=True)
class NamespaceListing:
    """The namespaces that there were. `first_at`: when the first came, of `time.monotonic`."""

    namespaces: tuple[TrackNamespace, ...]
    first_at: float | None


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

    async def listing(
        self, *, listen_s: float, limit: int, settle_s: float | None = None
    ) -> NamespaceListing:
        """Return the namespaces that there are now; those that are gone meanwhile are left out.

        It listens for `listen_s`, or until nothing has come for `settle_s`, or until it has found
        `limit` of them: nothing else says that the list is whole. Raises: as `async for`.
        """
        found: dict[TrackNamespace, None] = {}
        first_at = None
        with suppress(TimeoutError, StopAsyncIteration):
            async with asyncio.timeout(listen_s):
                while len(found) < limit:
                    async with asyncio.timeout(settle_s):
                        item = await anext(self)
                    if isinstance(item, events.NamespaceGone):
                        found.pop(item.namespace, None)
                        continue
                    if first_at is None:
                        first_at = time.monotonic()
                    found[item.namespace] = None
        return NamespaceListing(tuple(found), first_at)

    async def move(self, prefix: TrackNamespace) -> None:
        """Watch `prefix` instead, and wait for the answer (MOQT-22 9.20.20).

        What was reported and lies outside of it is then reported gone. Raises: LocalProtocolError
        for a prefix that overlaps another one of ours; RequestRejected, after which the publisher
        ends the request; ResourceBusy while another move is unanswered.
        """
        await self._wait_update(self._session.update_prefix(self.request_id, prefix))

    def _command(self) -> int:
        return self._send_command()

    def _receive_item(self, event: events.Event) -> None:
        match event:
            case events.RequestAccepted():
                self._is_accepted = True
            case events.NamespaceFound() | events.NamespaceGone():
                self._put(event)


class TracksSubscription(ItemStream[TrackItem]):
    """SUBSCRIBE_TRACKS: an offer of each track under a prefix, now and later (MOQT-22 3.6).

    `async with` sends it and waits for its answer. `async for` yields PublicationOffered, to be
    answered by `MoqtSession.accept` or `reject`, and TrackSkipped for a track that is not offered
    and may be subscribed to. No `takes_offers` is needed. Leaving it refuses what was not read;
    what was accepted goes on. At most `MAX_WAITING_OFFERS` wait here; more are refused.
    """

    def __init__(
        self,
        session: RequestHost,
        what: str,
        timeout_s: float | None,
        *,
        command: Callable[[], int],
        decline: Callable[[events.PublicationOffered], None],
    ) -> None:
        super().__init__(session, what, timeout_s)
        self._send_command = command
        self._decline = decline
        self._waiting = 0

    async def move(self, prefix: TrackNamespace) -> None:
        """Ask for the tracks under `prefix` instead; offers that were made are not touched.

        Raises: as `NamespaceSubscription.move`.
        """
        await self._wait_update(self._session.update_prefix(self.request_id, prefix))

    async def set_forward(self, forward: bool) -> None:
        """Have the offers that follow begin with this Forward State. Raises: as `move`."""
        await self._wait_update(self._session.update_prefix(self.request_id, None, forward=forward))

    def put(self, offer: events.PublicationOffered) -> bool:
        """Queue an offer; False when too many wait."""
        if self._waiting >= MAX_WAITING_OFFERS:
            return False
        self._waiting += 1
        self._put(offer)
        self._signal.fire()
        return True

    def withdraw(self, request_id: int) -> None:
        """The publisher took an offer back: it needs no answer."""
        for item in self._items:
            if isinstance(item, events.PublicationOffered) and item.request_id == request_id:
                self._items.remove(item)
                self._waiting -= 1
                self._session.count_queued(-1)
                return

    async def __anext__(self) -> TrackItem:
        """Return the next item; see `ItemStream`."""
        item = await super().__anext__()
        if isinstance(item, events.PublicationOffered):
            self._waiting -= 1
        return item

    def _command(self) -> int:
        return self._send_command()

    def _receive_item(self, event: events.Event) -> None:
        match event:
            case events.RequestAccepted():
                self._is_accepted = True
            case events.TrackSkipped():
                self._put(event)

    def _give_back(self) -> None:
        for item in self._items:
            if isinstance(item, events.PublicationOffered):
                self._decline(item)
        self._waiting = 0
        super()._give_back()


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
