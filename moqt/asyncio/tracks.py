"""Requests about tracks: subscriptions, fetches, a track's status, a track we offer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from moqt import errors
from moqt.asyncio.requests import ItemStream, Request
from moqt.codes import PublishDoneCode
from moqt.session import events

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType
    from typing import Self

    from moqt.asyncio.requests import RequestHost
    from moqt.session.access.authorization import AuthToken
    from moqt.types import Location
    from moqt.wire.filters import LocationFilter, RangeFilter
    from moqt.wire.params import FillParameters
    from moqt.wire.properties import TrackProperties

SubscriptionItem = (
    events.ObjectReceived | events.SubgroupEnded | events.FillEnded | events.EndOfRangeReceived
)
"""What a subscription yields."""

FetchItem = events.ObjectReceived | events.EndOfRangeReceived
"""What a fetch yields."""


class Subscription(ItemStream[SubscriptionItem]):
    """A subscription to one track (MOQT-22 5.1), made by SUBSCRIBE or by accepting a PUBLISH.

    `async with` sends it and waits for SUBSCRIBE_OK; `async for` yields Objects and ends of
    streams, and ends after PUBLISH_DONE with TRACK_ENDED; `done` is then that event. Another end
    raises RequestEnded, the loss of the session SessionClosed. An ObjectReceived counts as
    consumed, so that the peer may send more, when the next item is asked for, or by `consume`.
    """

    def __init__(
        self,
        session: RequestHost,
        what: str,
        timeout_s: float | None,
        command: Callable[[], int],
    ) -> None:
        super().__init__(session, what, timeout_s)
        self._send_command = command
        self._established: events.SubscriptionEstablished | None = None
        self.done: events.SubscriptionEnded | None = None
        """How the publisher ended it; None while it goes on."""
        self.notified: events.StateNotified | None = None
        """The publisher's latest PUBLISH_STATE_NOTIFY (MOQT-22 9.10); None: there was none."""

    @property
    def largest(self) -> Location | None:
        """The track's Largest Object when it was accepted; None: nothing published yet."""
        return self._known.largest

    @property
    def properties(self) -> TrackProperties:
        """The track's properties."""
        return self._known.properties

    @property
    def _known(self) -> events.SubscriptionEstablished:
        if self._established is None:
            raise errors.LocalProtocolError(f"{self._what}: not accepted yet")
        return self._established

    async def update(
        self,
        *,
        forward: bool | None = None,
        priority: int | None = None,
        location_filter: LocationFilter | None = None,
        range_filters: Sequence[RangeFilter] | None = None,
        fill: FillParameters | None = None,
        object_delivery_timeout_ms: int | None = None,
        subgroup_delivery_timeout_ms: int | None = None,
        new_group_request: int | None = None,
        tokens: Sequence[AuthToken] = (),
    ) -> Location | None:
        """Change what is named, and wait for the answer; return the track's Largest Object then.

        `new_group_request` asks for a new Group with at least this ID, 0: any (MOQT-22 9.20.19).
        Raises: LocalProtocolError for that on a track without DYNAMIC_GROUPS; RequestRejected,
        after which the publisher ends the subscription (MOQT-22 9.5.1); TimedOut after
        `request_timeout_s`, ResourceBusy at the peer's limit of unanswered updates.
        Cancelled: the change may or may not come to be.
        """
        update_id = self._session.update_request(
            self.request_id,
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
        return await self._wait_update(update_id)

    async def pause(self) -> None:
        """Ask for no Objects until `resume`; those published meanwhile aren't sent later."""
        await self.update(forward=False)

    async def resume(self) -> None:
        """Ask for Objects again."""
        await self.update(forward=True)

    def _command(self) -> int:
        return self._send_command()

    def _receive_item(self, event: events.Event) -> None:
        match event:
            case events.ObjectReceived():
                self._put(event)
            case events.SubscriptionEstablished():
                self._established = event
                self._is_accepted = True
            case events.StateNotified():
                self.notified = event
            case events.SubscriptionEnded():
                self.done = event
                failure = None
                if event.code is not PublishDoneCode.TRACK_ENDED:
                    failure = errors.RequestEnded(event.code, event.reason)
                self._end(failure)
            case events.TrackMalformed():
                self._end(errors.RequestEnded(PublishDoneCode.MALFORMED_TRACK, event.reason))
            case events.SubgroupEnded() | events.FillEnded() | events.EndOfRangeReceived():
                self._put(event)


class Fetch(ItemStream[FetchItem]):
    """A fetch of a range of one track (MOQT-22 5.2).

    `async with` sends it, and cancels it when it's left before the end; `async for` yields Objects
    and End of Range markers in the order asked for, and ends with the fetch stream. Raises:
    RequestRejected when refused, StreamReset when the publisher cut the stream.
    """

    def __init__(
        self,
        session: RequestHost,
        what: str,
        timeout_s: float | None,
        command: Callable[[], int],
    ) -> None:
        super().__init__(session, what, timeout_s)
        self._send_command = command
        self._established: events.FetchEstablished | None = None

    async def __aenter__(self) -> Self:
        """Send the request; its answer may come after Objects, so it isn't waited for."""
        self._send()
        return self

    async def update(self, *, priority: int) -> None:
        """Change the Subscriber Priority, all that can change of a FETCH (MOQT-22 9.5).

        Raises: RequestRejected, after which the publisher ends the fetch; TimedOut,
        LocalProtocolError once the publisher takes no more updates.
        """
        update_id = self._session.update_request(
            self.request_id,
            forward=None,
            priority=priority,
            location_filter=None,
            range_filters=None,
            fill=None,
        )
        await self._wait_update(update_id)

    async def established(self) -> events.FetchEstablished:
        """Wait for FETCH_OK: where the track ends, its properties.

        Raises: RequestRejected, StreamReset, TimedOut, SessionClosed. Cancelled: the fetch goes on.
        """
        self._raise_if_unsent()
        while self._established is None and not self._is_over:
            await self._signal.wait()
        if self._established is None:
            raise self._failure or errors.LocalProtocolError(
                f"{self._what}: ended without FETCH_OK"
            )
        return self._established

    def _command(self) -> int:
        return self._send_command()

    def _receive_item(self, event: events.Event) -> None:
        match event:
            case events.FetchEstablished():
                self._established = event
                self._is_accepted = True
            case events.FetchEnded():
                failure = None
                if event.reset is not None:
                    raw_code = int(event.reset) if event.reset_code is None else event.reset_code
                    failure = errors.StreamReset(event.reset, raw_code)
                self._end(failure)
            case events.TrackMalformed():
                self._end(errors.RequestEnded(PublishDoneCode.MALFORMED_TRACK, event.reason))
            case events.ObjectReceived() | events.EndOfRangeReceived():
                self._put(event)


@dataclass(frozen=True, slots=True)
class TrackStatus:
    """What a publisher says of a track without sending it. `largest` None: nothing published."""

    largest: Location | None
    properties: TrackProperties | None


class TrackStatusRequest(Request):
    """TRACK_STATUS; `MoqtSession.track_status` is the way to use it."""

    def __init__(
        self, session: RequestHost, what: str, timeout_s: float | None, command: Callable[[], int]
    ) -> None:
        super().__init__(session, what, timeout_s)
        self._send_command = command
        self._status: TrackStatus | None = None

    async def run(self) -> TrackStatus:
        """Ask and wait. Cancelled: the request is cancelled."""
        await self._open()
        self._close()
        if self._status is None:
            raise self._failure or errors.LocalProtocolError(f"{self._what}: no status came")
        return self._status

    def _command(self) -> int:
        return self._send_command()

    def _receive_item(self, event: events.Event) -> None:
        if isinstance(event, events.RequestAccepted):
            self._status = TrackStatus(event.largest, event.properties)
            self._is_accepted = True


class TrackPublication(Request):
    """A track that we offer to the peer by PUBLISH (MOQT-22 5.1).

    `async with` sends it and waits until it is accepted; leaving it withdraws the offer. Objects
    come from the TrackSource.
    """

    def __init__(
        self, session: RequestHost, what: str, timeout_s: float | None, command: Callable[[], int]
    ) -> None:
        super().__init__(session, what, timeout_s)
        self._send_command = command

    async def __aenter__(self) -> Self:
        """Offer the track. Raises: RequestRejected, TimedOut, SessionClosed."""
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
        """Wait until the subscription is over: the track's end was delivered, or the peer left.

        Raises: StreamReset when the peer cancelled it, SessionClosed.
        """
        await self._wait_over()

    def _command(self) -> int:
        return self._send_command()
