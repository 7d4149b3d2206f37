"""`MoqtSession`: one MOQT session as an application sees it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Protocol

from moqt import errors
from moqt.asyncio.info import ConnectionInfo, connection_info
from moqt.asyncio.namespaces import AcceptedNamespace, Offer, Offers, TracksSubscription
from moqt.asyncio.requests import Request, Signal
from moqt.asyncio.verbs import SessionVerbs
from moqt.codes import RequestErrorCode, SessionErrorCode
from moqt.session import events
from moqt.uri import MoqtUri

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moqt.asyncio.binding import Driver
    from moqt.session.authorization import AuthToken
    from moqt.session.config import SessionConfig
    from moqt.session.core import Session
    from moqt.session.request_goaway import ServedRequest
    from moqt.session.stats import SessionStats
    from moqt.types import FullTrackName, TrackNamespace
    from moqt.wire.filters import LocationFilter, RangeFilter
    from moqt.wire.options import SetupOptions
    from moqt.wire.params import FillParameters


class SessionKeeper(Protocol):
    """Who made a session and holds what it runs on."""

    def session_established(self, session: MoqtSession) -> None:
        """Both SETUPs are done."""

    def session_finished(self, session: MoqtSession) -> None:
        """Nothing more will be sent: its share of the socket is free."""


class MoqtSession(SessionVerbs):
    """A session of `connect` or `serve`. Everything runs on the thread of its event loop.

    Each request is an object of its own; losing the session ends them all with SessionClosed. No
    method but those marked `async` waits.
    """

    def __init__(
        self,
        session: Session,
        driver: Driver,
        *,
        config: SessionConfig,
        takes_offers: bool,
        keeper: SessionKeeper,
    ) -> None:
        self.config = config
        self._session = session
        self._driver = driver
        self._keeper = keeper
        self._requests: dict[int, Request] = {}
        self._offers = Offers() if takes_offers else None
        self._ended: events.SessionEnded | None = None
        self._goaway: events.GoawayReceived | None = None
        self._is_established = False
        self._queued = 0
        self._signal = Signal()

    def __repr__(self) -> str:
        state = "closed" if self.is_closed else "open" if self._is_established else "opening"
        return f"<MoqtSession {self.remote_address} {state}>"

    # --- queries ---

    @property
    def is_established(self) -> bool:
        """Whether both SETUPs are done."""
        return self._is_established

    @property
    def is_closed(self) -> bool:
        """Whether the session is over."""
        return self._ended is not None

    @property
    def end(self) -> events.SessionEnded | None:
        """How the session ended; None while it lasts."""
        return self._ended

    @property
    def peer_options(self) -> SetupOptions | None:
        """What the peer announced; None before its SETUP."""
        return self._session.peer_options

    @property
    def own_options(self) -> SetupOptions:
        """What we announced."""
        return self._session.own_options

    @property
    def stats(self) -> SessionStats:
        """Counters: cheap to read, shared with the session."""
        return self._session.stats

    @property
    def goaway_received(self) -> events.GoawayReceived | None:
        """Set when the peer asked to move the session elsewhere (MOQT-22 6.6.1)."""
        return self._goaway

    @property
    def accepted_namespaces(self) -> frozenset[TrackNamespace]:
        """The peer's PUBLISH_NAMESPACE that we accepted and neither side has ended."""
        return frozenset(
            request.namespace
            for request in self._requests.values()
            if isinstance(request, AcceptedNamespace)
        )

    @property
    def remote_address(self) -> str:
        """The peer's address as host:port, for messages."""
        address = self._driver.connection.get_peer_address()
        if address is None:
            return "unknown"
        host, port = address[0], address[1]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    @property
    def connection_info(self) -> ConnectionInfo:
        """What the QUIC and TLS handshakes settled."""
        return connection_info(self._driver)

    # --- the end ---

    def goaway(
        self, uri: str = "", *, timeout_ms: int | None = None, request_id: int | None = None
    ) -> None:
        """Ask the peer to move to `uri` (empty: the same one) and to close (MOQT-22 6.6.1).

        `request_id`: only that request is to be made again there, one of ours or of
        `served_requests`; when the time is over it is reset with GOING_AWAY.

        Raises: LocalProtocolError for what is no moqt:// address: the scheme stays (MOQT-22 9.2).
        """
        self.raise_if_closed()
        if uri:
            try:
                MoqtUri.parse(uri)
            except ValueError as error:
                raise errors.LocalProtocolError(f"GOAWAY: New Session URI: {error}") from error
        self._session.goaway(uri, timeout_ms, request_id=request_id, now=time.monotonic())
        self._driver.wake()

    def served_requests(self, name: FullTrackName | None = None) -> tuple[ServedRequest, ...]:
        """Return the peer's subscriptions and fetches that we serve, of one track or of all."""
        return self._session.served_requests(name)

    async def close(
        self, code: SessionErrorCode = SessionErrorCode.NO_ERROR, reason: str = ""
    ) -> None:
        """Close the session and its connection.

        CONNECTION_CLOSE has left when this waits; it waits `close_linger_s` at most, to repeat it.
        Cancelled: the session is closed nevertheless.
        """
        self.close_now(code, reason)
        await self._driver.wait_finished()

    def close_now(
        self, code: SessionErrorCode = SessionErrorCode.NO_ERROR, reason: str = ""
    ) -> None:
        """Close without waiting: CONNECTION_CLOSE has left when this returns."""
        if not self._session.is_closed:
            self._session.close(code, reason, now=time.monotonic())
        self._driver.pump_now()

    def abort(self) -> None:
        """Drop session and connection at once: the peer isn't told, nothing of ours is left."""
        self._driver.abort()

    async def wait_finished(self) -> None:
        """Wait until the connection has nothing more to send, after its end."""
        await self._driver.wait_finished()

    async def wait_closed(self) -> events.SessionEnded:
        """Wait until the session is over and return how it ended. Cancelling leaves no trace."""
        while self._ended is None:
            await self._signal.wait()
        return self._ended

    async def wait_goaway(self) -> events.GoawayReceived | None:
        """Wait until the peer asks to move the session; None: it is over, and that was not asked.

        Cancelling leaves no trace.
        """
        while self._goaway is None and self._ended is None:
            await self._signal.wait()
        return self._goaway

    async def wait_established(self) -> None:
        """Wait until both SETUPs are done. Raises: SessionClosed. Cancelling leaves no trace."""
        while not self._is_established:
            self.raise_if_closed()
            await self._signal.wait()

    # --- for requests ---

    def raise_if_closed(self) -> None:
        """Raise SessionClosed when the session is over."""
        if self._ended is None and self._session.is_closed:
            self._driver.pump_now()  # the event that says so has not been handed out yet
        if self._ended is not None:
            raise self._closed_error(self._ended)

    def register(self, request_id: int, request: Request) -> None:
        """Send the events of `request_id` to `request` from now on."""
        self._requests[request_id] = request

    def unregister(self, request_id: int) -> None:
        """Send no more events there."""
        self._requests.pop(request_id, None)

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

    def drop_token(self, token: AuthToken) -> None:
        """The application is done with a token: the peer is asked to forget it, by and by."""
        self._session.drop_token(token)

    def consume(self, event: events.ObjectReceived) -> None:
        """The application is done with the Object's octets."""
        if not self._session.is_closed:
            self._session.consume(event.request_id, event.object)

    def count_queued(self, change: int) -> None:
        """Keep count of events that wait in requests; too many end the session."""
        self._queued += change
        if self._queued > self.config.max_events and not self._session.is_closed:
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
            case events.SessionEstablished():
                self._is_established = True
                self._keeper.session_established(self)
                self._signal.fire()
            case events.SessionEnded():
                self._end(event)
            case events.GoawayReceived(request_id=None):
                self._goaway = event
                for request in list(self._requests.values()):
                    request.receive(event)
                self._signal.fire()
            case events.PublicationOffered() | events.NamespaceOffered():
                self._take_offer(event)
            case _:
                self._hand_over(event)

    def on_finished(self) -> None:
        """The connection has nothing left to send."""
        if self._ended is None:
            loss = self._driver.loss
            code = loss.code if loss is not None else SessionErrorCode.INTERNAL_ERROR
            reason = loss.reason if loss is not None else "connection dropped"
            by_peer = loss.by_peer if loss is not None else False
            self._end(events.SessionEnded(code, reason, by_peer))
        self._keeper.session_finished(self)

    def _hand_over(self, event: events.Event) -> None:
        request_id: int | None = getattr(event, "request_id", None)
        request = self._requests.get(request_id) if request_id is not None else None
        if request is not None:
            request.receive(event)
        elif isinstance(event, events.ObjectReceived):
            self.consume(event)
        elif isinstance(event, events.NamespaceWithdrawn | events.RequestEnded):
            tracks = self._tracks_of(event) if isinstance(event, events.RequestEnded) else None
            if tracks is not None:
                tracks.withdraw(event.request_id)
            elif self._offers is not None:
                self._offers.withdraw(event.request_id)

    def _take_offer(self, offer: Offer) -> None:
        if isinstance(offer, events.PublicationOffered) and (tracks := self._tracks_of(offer)):
            is_taken = tracks.put(offer)
        elif self._offers is not None:
            is_taken = self._offers.put(offer)
        else:
            self.reject(offer, RequestErrorCode.UNINTERESTED, "no offers are taken here")
            return
        if not is_taken:
            self.reject(offer, RequestErrorCode.EXCESSIVE_LOAD, "too many offers wait")

    def _tracks_of(
        self, event: events.PublicationOffered | events.RequestEnded
    ) -> TracksSubscription | None:
        """Return the SUBSCRIBE_TRACKS that an offer belongs to."""
        request = None if event.tracks_id is None else self._requests.get(event.tracks_id)
        return request if isinstance(request, TracksSubscription) else None

    def _end(self, event: events.SessionEnded) -> None:
        if self._ended is not None:
            return
        self._ended = event
        for request in list(self._requests.values()):
            request.lose(self._closed_error(event))
        self._requests.clear()
        if self._offers is not None:
            self._offers.close()
        self._signal.fire()

    @staticmethod
    def _closed_error(event: events.SessionEnded) -> errors.SessionClosed:
        return errors.SessionClosed(event.code, event.reason, by_peer=event.by_peer)
