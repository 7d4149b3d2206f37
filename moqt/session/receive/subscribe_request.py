"""Request streams of subscriptions: our SUBSCRIBE and the peer's PUBLISH (MOQT-22 9.6-9.10)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moqt.codes import PublishDoneCode, RequestErrorCode, StreamResetCode
from moqt.errors import LocalProtocolError
from moqt.session.events import (
    PublicationOffered,
    RequestEnded,
    RequestRejected,
    StateNotified,
    UpdateAccepted,
    UpdateRejected,
)
from moqt.session.request.own_request import OwnRequest, Updatable
from moqt.session.request.request_stream import ServedHandler
from moqt.session.request.states import Phase
from moqt.wire.messages import (
    PublishDone,
    PublishStateNotify,
    RequestError,
    RequestOk,
    RequestUpdate,
    SubscribeOk,
)

if TYPE_CHECKING:
    from moqt.session.context import SessionContext
    from moqt.session.receive.sink import ObjectSink
    from moqt.session.receive.subscriber import Subscriber
    from moqt.session.receive.subscription import Subscription
    from moqt.session.request.requests import RequestStream
    from moqt.wire.messages import Message, Publish
    from moqt.wire.params import Parameters
    from moqt.wire.properties import TrackProperties

__all__ = ["PublicationOffer", "SubscribeRequest", "TrackHandle"]


class TrackHandle(Updatable):
    """What the two kinds of subscription do alike once there is a Subscription."""

    context: SessionContext
    subscription: Subscription | None
    _sent_updates: dict[int, Parameters]

    def check_update(self, parameters: Parameters) -> Parameters:
        """Only an Established subscription is updated."""
        if self.subscription is None:
            raise LocalProtocolError(f"request {self.stream.request_id} is not Established")
        return self.subscription.check_update(parameters)

    def note_update(self, update_id: int, parameters: Parameters) -> None:
        """A REQUEST_UPDATE was sent."""
        assert self.subscription is not None  # only an Established one is updated
        self._sent_updates[update_id] = parameters
        if parameters.fill is not None:
            self.subscription.expect_fill(update_id, parameters.fill)

    def update_answered(self, update_id: int, message: RequestOk | RequestError) -> None:
        """An update took effect, or not."""
        subscription = self.subscription
        parameters = self._sent_updates.pop(update_id, None)
        if subscription is None or parameters is None:
            return
        if isinstance(message, RequestOk):
            subscription.apply(parameters)
            subscription.narrow(parameters, message.parameters.largest)
        else:
            subscription.forget_fill(update_id)

    def settle_fill(self, update_id: int, message: RequestOk, now: float) -> None:
        """Report the end of a fill that an accepted update asked for and that brings nothing."""
        if self.subscription is not None:
            self.subscription.settle_fill(update_id, message.parameters.largest, now)


def refusal(properties: TrackProperties) -> str | None:
    """Return why a track with these properties must not be used (MOQT-22 3.7, 12.1), or None."""
    if properties.mandatory_types:
        kinds = ", ".join(f"0x{kind:x}" for kind in properties.mandatory_types)
        return f"unknown mandatory track property {kinds}"
    return None


def state_notified(request_id: int, message: PublishStateNotify) -> StateNotified:
    """Return the event for a PUBLISH_STATE_NOTIFY on the stream of a subscription."""
    said = message.parameters
    return StateNotified(request_id, said.largest, said.forward, said.location_filter)


class SubscribeRequest(TrackHandle, OwnRequest):
    """A SUBSCRIBE of ours."""

    subscription: Subscription

    def __init__(self, context: SessionContext) -> None:
        super().__init__(context)
        self._sent_updates = {}

    def on_accepted(self, message: Message, now: float) -> None:
        """SUBSCRIBE_OK."""
        assert isinstance(message, SubscribeOk)
        reason = refusal(message.properties)
        if reason is not None:
            self.stream.cancel(StreamResetCode.CANCELLED)
            self.subscription.refuse(message.track_alias)
            self.fail(
                RequestRejected(self.request_id, RequestErrorCode.UNSUPPORTED_EXTENSION, reason)
            )
            return
        parameters = message.parameters
        self.subscription.establish(
            message.track_alias, parameters.largest, message.properties, parameters.expires_ms, now
        )
        if message.properties.malformation is not None:
            self.subscription.on_fault(
                message.properties.malformation, StreamResetCode.MALFORMED_TRACK
            )

    def on_more(self, message: Message, now: float) -> None:
        """PUBLISH_DONE, or a change that needs no action."""
        if isinstance(message, PublishDone):
            self.subscription.on_publish_done(message, now)
        else:
            assert isinstance(message, PublishStateNotify)
            self.context.emit(state_notified(self.request_id, message))

    def on_update_answered(
        self, update_id: int, message: RequestOk | RequestError, now: float
    ) -> None:
        """An update took effect, or not."""
        self.update_answered(update_id, message)

    def after_update(self, update_id: int, message: RequestOk, now: float) -> None:
        """The event of an accepted update is out."""
        self.settle_fill(update_id, message, now)

    def on_fin(self, now: float) -> None:
        """Without PUBLISH_DONE it is a failure (MOQT-22 6.4.2.2)."""
        if not self.subscription.is_done:
            self.stream.cancel(StreamResetCode.CANCELLED)
            self.subscription.end(
                PublishDoneCode.INTERNAL_ERROR, "the stream ended without PUBLISH_DONE"
            )

    def on_ended(self, raw_code: int, now: float) -> None:
        """The publisher cancelled."""
        self.subscription.end_by_peer(raw_code)

    def release(self) -> None:
        """It is over before it was Established."""
        self.subscription.release(StreamResetCode.CANCELLED)

    def cancel(self, code: StreamResetCode) -> None:
        """End it from our side; no event."""
        self.subscription.cancel(code)

    def session_over(self) -> None:
        """The session is over."""
        self.subscription.session_over()


class PublicationOffer(TrackHandle, ServedHandler):
    """A PUBLISH of the peer: an offer, and once it is accepted a subscription."""

    def __init__(
        self,
        subscriber: Subscriber,
        context: SessionContext,
        stream: RequestStream,
        message: Publish,
    ) -> None:
        self.context = context
        self.stream = stream
        self.message = message
        self.subscription = None
        self._subscriber = subscriber
        self._sent_updates = {}
        self._done: PublishDone | None = None
        self._owed = 0
        self._is_rejected = False
        self._tracks_id = subscriber.tracks_subscription_of(message.name.namespace)
        context.handles[stream.request_id] = self
        parameters = message.parameters
        context.emit(
            PublicationOffered(
                stream.request_id,
                message.name,
                message.track_alias,
                parameters.largest,
                parameters.forward is not False,
                parameters.group_order,
                message.properties,
                self._tracks_id,
            )
        )

    # Answers of the application

    @property
    def is_answered(self) -> bool:
        """True once the application accepted or rejected it."""
        return self.subscription is not None or self._is_rejected

    @property
    def is_open(self) -> bool:
        """True while it is a subscription that may be updated."""
        return (
            self.subscription is not None
            and not self.subscription.is_done
            and self.stream.is_send_open
        )

    def accept(self, sink: ObjectSink | None, now: float) -> None:
        """PUBLISH_OK; Objects that came early are taken now."""
        message = self.message
        subscription = self._subscriber.create(self.stream, message.name, sink)
        self.subscription = subscription
        subscription.apply(message.parameters)
        self.stream.phase = Phase.PENDING
        for _ in range(1 + self._owed):
            self.stream.send(RequestOk())
        parameters = message.parameters
        subscription.establish(
            message.track_alias, parameters.largest, message.properties, parameters.expires_ms, now
        )
        if self._done is not None:
            subscription.on_publish_done(self._done, now)

    def reject(self, error: RequestError) -> None:
        """REQUEST_ERROR; streams that it has opened are stopped."""
        self.stream.phase = Phase.PENDING
        self._is_rejected = True
        self.stream.refuse_with(error)
        self._drop()

    def _drop(self) -> None:
        self.context.handles.pop(self.stream.request_id, None)
        self._subscriber.drop_alias(self.message.track_alias)

    # Handle

    def cancel(self, code: StreamResetCode) -> None:
        """End it from our side; no event."""
        if self.subscription is not None:
            self.subscription.cancel(code)
        else:
            self.stream.cancel(code)
            self._drop()

    def session_over(self) -> None:
        """The session is over."""
        if self.subscription is not None:
            self.subscription.session_over()

    # RequestHandler

    def on_message(self, stream: RequestStream, message: Message, now: float) -> None:
        """Take what the publisher says on its stream."""
        if isinstance(message, RequestUpdate):
            # The publisher's own update changes nothing that we keep.
            if self.subscription is None:
                self._owed += 1
            else:
                stream.send(RequestOk())
        elif isinstance(message, PublishDone):
            if self.subscription is None:
                self._done = message
                stream.phase = Phase.ENDED
            else:
                self.subscription.on_publish_done(message, now)
        elif isinstance(message, PublishStateNotify):
            if self.subscription is not None:
                self.context.emit(state_notified(stream.request_id, message))
        elif isinstance(message, RequestOk | RequestError):
            self._take_answer(stream.pending_updates.popleft(), message, now)

    def refuse_update(self, stream: RequestStream, error: RequestError, now: float) -> None:
        """The publisher's update is refused: an open offer with it, a subscription goes on."""
        if self.subscription is not None:
            stream.send(error)
        elif self._done is None:
            self.reject(error)
            self.context.emit(RequestEnded(stream.request_id, tracks_id=self._tracks_id))

    def _take_answer(self, update_id: int, message: RequestOk | RequestError, now: float) -> None:
        request_id = self.stream.request_id
        self.update_answered(update_id, message)
        if isinstance(message, RequestOk):
            said = message.parameters
            self.context.emit(UpdateAccepted(request_id, update_id, said.largest, said.expires_ms))
            self.settle_fill(update_id, message, now)
        else:
            self.context.emit(UpdateRejected(request_id, update_id, message.code, message.reason))

    def on_peer_fin(self, stream: RequestStream, now: float) -> None:
        """The publisher still owed PUBLISH_DONE, unless it has sent it."""
        if self.subscription is not None:
            if not self.subscription.is_done:
                stream.cancel(StreamResetCode.CANCELLED)
                self.subscription.end(
                    PublishDoneCode.INTERNAL_ERROR, "the stream ended without PUBLISH_DONE"
                )
        elif self._done is None:
            stream.cancel(StreamResetCode.CANCELLED)
            self._withdraw(None)

    def on_cancelled(self, stream: RequestStream, raw_code: int, now: float) -> None:
        """The publisher cancelled."""
        if self.subscription is not None:
            self.subscription.end_by_peer(raw_code)
        else:
            self._withdraw(StreamResetCode.from_wire(raw_code))

    def _withdraw(self, reset: StreamResetCode | None) -> None:
        self._drop()
        self.context.emit(RequestEnded(self.stream.request_id, reset, self._tracks_id))
