"""What requests and the driver need of a session, and no application does."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from moqt import errors
from moqt.asyncio.namespaces import Offer, Offers, TracksSubscription
from moqt.asyncio.requests import Request, RequestHost, Signal
from moqt.codes import RequestErrorCode, SessionErrorCode
from moqt.session import events

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from moqt.asyncio.binding import Driver
    from moqt.session.access.authorization import AuthToken
    from moqt.session.config import SessionConfig
    from moqt.session.core import Session
    from moqt.types import TrackNamespace
    from moqt.wire.filters import LocationFilter, RangeFilter
    from moqt.wire.params import FillParameters

__all__ = ["RequestDesk"]


class RequestDesk(RequestHost):
    """The requests of one session: their commands go in here, its events come out.

    `established` and `finished` are called once each, for whoever made the session.
    """

    def __init__(
        self,
        session: Session,
        driver: Driver,
        *,
        config: SessionConfig,
        takes_offers: bool,
        established: Callable[[], None],
        finished: Callable[[], None],
    ) -> None:
        self.config = config
        self.requests: dict[int, Request] = {}
        """By Request ID: what is open, and what waits for its answer."""
        self.offers = Offers() if takes_offers else None
        self.ended: events.SessionEnded | None = None
        """How the session ended; None while it lasts."""
        self.goaway: events.GoawayReceived | None = None
        """The peer's GOAWAY for the whole session."""
        self.is_established = False
        self.queued = 0
        """Events that lie unread in requests."""
        self.signal = Signal()
        """Fires when any of that changes."""
        self._session = session
        self._driver = driver
        self._established = established
        self._finished = finished

    @property
    def is_closed(self) -> bool:
        """Whether the session is over."""
        return self.ended is not None

    def raise_if_closed(self) -> None:
        """Raise SessionClosed when the session is over."""
        if self.ended is None and self._session.is_closed:
            self._driver.pump_now()  # the event that says so has not been handed out yet
        if self.ended is not None:
            raise _closed_error(self.ended)

    # --- for requests ---

    def register(self, request_id: int, request: Request) -> None:
        """Send the events of `request_id` to `request` from now on."""
        self.requests[request_id] = request

    def unregister(self, request_id: int) -> None:
        """Send no more events there."""
        self.requests.pop(request_id, None)

    def cancel_request(self, request_id: int) -> None:
        """Cancel a request if the session still has it."""
        if not self._session.is_closed:
            self._session.cancel(request_id, now=time.monotonic())
            self._driver.wake()

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
        self.raise_if_closed()
        update_id = self._session.update(
            request_id,
            forward=forward,
            priority=priority,
            location_filter=location_filter,
            range_filters=range_filters,
            fill=fill,
            object_delivery_timeout_ms=object_delivery_timeout_ms,
            subgroup_delivery_timeout_ms=subgroup_delivery_timeout_ms,
            new_group_request=new_group_request,
            tokens=tokens,
        )
        self._driver.wake()
        return update_id

    def update_prefix(
        self, request_id: int, prefix: TrackNamespace | None, *, forward: bool | None = None
    ) -> int:
        """Send REQUEST_UPDATE for a request about a prefix and return its Request ID."""
        self.raise_if_closed()
        update_id = self._session.update_prefix(request_id, prefix, forward=forward)
        self._driver.wake()
        return update_id

    def refresh_request(self, request_id: int, tokens: Sequence[AuthToken]) -> int:
        """Send a REQUEST_UPDATE that brings tokens alone and return its Request ID."""
        self.raise_if_closed()
        update_id = self._session.refresh(request_id, tokens)
        self._driver.wake()
        return update_id

    def consume(self, event: events.ObjectReceived) -> None:
        """The application is done with the Object's octets."""
        if not self._session.is_closed:
            self._session.consume(event.request_id, event.object)

    def count_queued(self, change: int) -> None:
        """Keep count of events that wait in requests; too many end the session."""
        self.queued += change
        if self.queued > self.config.max_events and not self._session.is_closed:
            self._session.close(
                SessionErrorCode.INTERNAL_ERROR,
                f"more than {self.config.max_events} events unread",
                now=time.monotonic(),
            )
            self._driver.wake()

    # --- for the driver ---

    def on_event(self, event: events.Event) -> None:
        """Hand an event to its request."""
        match event:
            case events.ObjectReceived():  # first, since most are
                self._hand_over(event)
            case events.SessionEstablished():
                self.is_established = True
                self._established()
                self.signal.fire()
            case events.SessionEnded():
                self._end(event)
            case events.GoawayReceived(request_id=None):
                self.goaway = event
                for request in list(self.requests.values()):
                    request.receive(event)
                self.signal.fire()
            case events.PublicationOffered() | events.NamespaceOffered():
                self._take_offer(event)
            case _:
                self._hand_over(event)

    def on_finished(self) -> None:
        """The connection has nothing left to send."""
        if self.ended is None:
            loss = self._driver.loss
            code = loss.code if loss is not None else SessionErrorCode.INTERNAL_ERROR
            reason = loss.reason if loss is not None else "connection dropped"
            by_peer = loss.by_peer if loss is not None else False
            self._end(events.SessionEnded(code, reason, by_peer))
        self._finished()

    def _hand_over(self, event: events.Event) -> None:
        request_id: int | None = getattr(event, "request_id", None)
        request = self.requests.get(request_id) if request_id is not None else None
        if request is not None:
            request.receive(event)
        elif isinstance(event, events.ObjectReceived):
            self.consume(event)
        elif isinstance(event, events.NamespaceWithdrawn | events.RequestEnded):
            tracks = self._tracks_of(event) if isinstance(event, events.RequestEnded) else None
            if tracks is not None:
                tracks.withdraw(event.request_id)
            elif self.offers is not None:
                self.offers.withdraw(event.request_id)

    def _take_offer(self, offer: Offer) -> None:
        if isinstance(offer, events.PublicationOffered) and (tracks := self._tracks_of(offer)):
            is_taken = tracks.put(offer)
        elif self.offers is not None:
            is_taken = self.offers.put(offer)
        else:
            self._reject(offer, RequestErrorCode.UNINTERESTED, "no offers are taken here")
            return
        if not is_taken:
            self._reject(offer, RequestErrorCode.EXCESSIVE_LOAD, "too many offers wait")

    def _reject(self, offer: Offer, code: RequestErrorCode, reason: str) -> None:
        if not self.is_closed:
            self._session.reject(offer.request_id, code, reason, now=time.monotonic())
            self._driver.wake()

    def _tracks_of(
        self, event: events.PublicationOffered | events.RequestEnded
    ) -> TracksSubscription | None:
        """Return the SUBSCRIBE_TRACKS that an offer belongs to."""
        request = None if event.tracks_id is None else self.requests.get(event.tracks_id)
        return request if isinstance(request, TracksSubscription) else None

    def _end(self, event: events.SessionEnded) -> None:
        if self.ended is not None:
            return
        self.ended = event
        for request in list(self.requests.values()):
            request.lose(_closed_error(event))
        self.requests.clear()
        if self.offers is not None:
            self.offers.close()
        self.signal.fire()


def _closed_error(event: events.SessionEnded) -> errors.SessionClosed:
    return errors.SessionClosed(event.code, event.reason, by_peer=event.by_peer)
