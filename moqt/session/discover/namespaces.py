"""The requests of a session about namespaces, ours and the peer's; PUBLISH_NAMESPACE is here too.

MOQT-22 4.1, 9.14. SUBSCRIBE_NAMESPACE stands in `namespace_subscription`, SUBSCRIBE_TRACKS in
`tracks_subscription`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moqt.codes import RequestErrorCode, StreamResetCode
from moqt.errors import LocalProtocolError
from moqt.session.discover.namespace_subscription import (
    NamespaceSubscription,
    ServedNamespaceSubscription,
)
from moqt.session.discover.prefixes import OwnPrefixes, ServedPrefixes, check_not_reserved
from moqt.session.discover.tracks_subscription import (
    ServedTracksSubscription,
    TracksSubscription,
    checked_wish,
)
from moqt.session.events import (
    NamespaceOffered,
    NamespaceWithdrawn,
    RequestAccepted,
    RequestEnded,
)
from moqt.session.request.own_request import OwnRequest
from moqt.session.request.request_stream import ServedHandler
from moqt.session.request.states import Phase
from moqt.wire.filters import FilterRejected
from moqt.wire.messages import (
    PublishNamespace,
    RequestError,
    RequestOk,
    SubscribeNamespace,
    SubscribeTracks,
)
from moqt.wire.rules import RequestKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moqt.session.access.authorization import AuthToken
    from moqt.session.context import SessionContext
    from moqt.session.publish.directory import TrackDirectory
    from moqt.session.publish.publisher import Publisher
    from moqt.session.request.requests import Requests, RequestStream
    from moqt.types import TrackNamespace
    from moqt.wire.messages import Message
    from moqt.wire.params import Parameters

__all__ = ["Advertisement", "NamespaceOffer", "Namespaces"]


class Namespaces:
    """All requests of one session about namespaces and prefixes."""

    def __init__(
        self,
        context: SessionContext,
        requests: Requests,
        directory: TrackDirectory | None,
        publisher: Publisher,
    ) -> None:
        self._context = context
        self._requests = requests
        self._directory = directory
        self._publisher = publisher
        self._namespace_subscriptions = OwnPrefixes()
        self._tracks_subscriptions = OwnPrefixes()
        self._namespace_reports = ServedPrefixes()
        self._track_reports = ServedPrefixes()

    # Ours

    def publish_namespace(
        self, namespace: TrackNamespace, *, tokens: Sequence[AuthToken] | None = None, now: float
    ) -> int:
        """Tell the peer that we have tracks below `namespace`; return the Request ID."""
        check_not_reserved(namespace)
        advertisement = Advertisement(self._context)
        advertisement.bind(
            self._requests.open(
                RequestKind.PUBLISH_NAMESPACE,
                advertisement,
                lambda request_id: PublishNamespace(request_id, namespace),
                now=now,
                tokens=tokens,
            )
        )
        return advertisement.request_id

    def subscribe_namespace(
        self, prefix: TrackNamespace, *, tokens: Sequence[AuthToken] | None = None, now: float
    ) -> int:
        """Ask the peer for the namespaces below `prefix`; return the Request ID."""
        check_not_reserved(prefix)
        subscription = NamespaceSubscription(self._context, prefix, self._namespace_subscriptions)
        subscription.bind(
            self._requests.open(
                RequestKind.SUBSCRIBE_NAMESPACE,
                subscription,
                lambda request_id: SubscribeNamespace(request_id, prefix),
                now=now,
                tokens=tokens,
            )
        )
        return subscription.request_id

    def subscribe_tracks(
        self,
        prefix: TrackNamespace,
        parameters: Parameters,
        *,
        tokens: Sequence[AuthToken] | None = None,
        now: float,
    ) -> int:
        """Ask the peer to offer the tracks below `prefix`; return the Request ID."""
        check_not_reserved(prefix)
        self._check_ranges(parameters)
        subscription = TracksSubscription(self._context, prefix, self._tracks_subscriptions)
        subscription.bind(
            self._requests.open(
                RequestKind.SUBSCRIBE_TRACKS,
                subscription,
                lambda request_id: SubscribeTracks(request_id, prefix, parameters),
                now=now,
                tokens=tokens,
            )
        )
        return subscription.request_id

    def _check_ranges(self, parameters: Parameters) -> None:
        options = self._context.peer_options
        try:
            parameters.check_filters(options.max_filter_ranges if options else 0)
        except FilterRejected as error:
            raise LocalProtocolError(str(error)) from error

    def tracks_subscription_of(self, namespace: TrackNamespace) -> int | None:
        """Return which SUBSCRIBE_TRACKS of ours a PUBLISH in `namespace` belongs to."""
        for request_id, subscription in self._tracks_subscriptions.active.items():
            if subscription.covers(namespace):
                return request_id
        return None

    # The peer's

    def on_publish_namespace(self, stream: RequestStream, message: PublishNamespace) -> None:
        """Offer the peer's namespace to the application."""
        stream.handler = NamespaceOffer(self._context, stream, message.namespace)

    def on_subscribe_namespace(
        self, stream: RequestStream, message: SubscribeNamespace, now: float
    ) -> None:
        """Answer from the directory, now and later."""
        directory = self._admitted(stream, message.prefix, self._namespace_reports)
        if directory is not None:
            ServedNamespaceSubscription(
                stream,
                message.prefix,
                self._namespace_reports,
                directory=directory,
                context=self._context,
            ).start(now)

    def on_subscribe_tracks(
        self, stream: RequestStream, message: SubscribeTracks, now: float
    ) -> None:
        """Offer the tracks of the directory, now and later."""
        directory = self._admitted(stream, message.prefix, self._track_reports)
        if directory is None:
            return
        try:
            wanted = checked_wish(message.parameters, self._context.config.max_filter_ranges)
        except FilterRejected as error:
            stream.refuse(error.code, error.reason)
            return
        ServedTracksSubscription(
            stream,
            message.prefix,
            self._track_reports,
            wanted=wanted,
            directory=directory,
            publisher=self._publisher,
        ).start(now)

    def _admitted(
        self, stream: RequestStream, prefix: TrackNamespace, table: ServedPrefixes
    ) -> TrackDirectory | None:
        if self._directory is None:
            stream.refuse(RequestErrorCode.NOT_SUPPORTED, "this endpoint publishes nothing")
        elif table.overlaps(prefix):
            stream.refuse(RequestErrorCode.PREFIX_OVERLAP, "overlaps another prefix")
        else:
            return self._directory
        return None

    def close(self) -> None:
        """The session is over: stop listening to the directory."""
        self._namespace_reports.close()
        self._track_reports.close()


class Advertisement(OwnRequest):
    """A PUBLISH_NAMESPACE of ours; valid while its stream is open."""

    def on_accepted(self, message: Message, now: float) -> None:
        """The peer will send us requests for it."""
        assert isinstance(message, RequestOk)
        self.context.emit(RequestAccepted(self.request_id, message.parameters.expires_ms))

    def on_ended(self, raw_code: int, now: float) -> None:
        """The peer takes its acceptance back."""
        self.release()
        self.context.emit(RequestEnded(self.request_id, StreamResetCode.from_wire(raw_code)))


class NamespaceOffer(ServedHandler):
    """A PUBLISH_NAMESPACE of the peer; the application accepts or rejects it."""

    def __init__(
        self, context: SessionContext, stream: RequestStream, namespace: TrackNamespace
    ) -> None:
        self._context = context
        self._stream = stream
        self._namespace = namespace
        self.is_answered = False
        self._owed = 0
        context.handles[stream.request_id] = self
        context.emit(NamespaceOffered(stream.request_id, namespace))

    def accept(self) -> None:
        """Answer REQUEST_OK, and the updates that came meanwhile."""
        self.is_answered = True
        for _ in range(1 + self._owed):
            self._stream.send(RequestOk())

    def reject(self, error: RequestError) -> None:
        """Answer REQUEST_ERROR."""
        self.is_answered = True
        self._stream.refuse_with(error)
        self._release()

    def cancel(self, code: StreamResetCode) -> None:
        """Revoke the acceptance; no event."""
        self._stream.cancel(code)
        self._release()

    def session_over(self) -> None:
        """The session is over."""

    def _release(self) -> None:
        self._context.handles.pop(self._stream.request_id, None)

    def on_message(self, stream: RequestStream, message: Message, now: float) -> None:
        """An update can only bring a token, which changes nothing here."""
        if self.is_answered:
            stream.send(RequestOk())
        else:
            self._owed += 1

    def refuse_update(self, stream: RequestStream, error: RequestError, now: float) -> None:
        """Answer so, and end the request (MOQT-22 9.5.1)."""
        self.reject(error)
        stream.phase = Phase.ENDED  # what the peer sent before it knew has no meaning any more
        self._context.emit(NamespaceWithdrawn(stream.request_id, self._namespace))

    def on_cancelled(self, stream: RequestStream, raw_code: int, now: float) -> None:
        """The peer withdraws it."""
        self._release()
        self._context.emit(NamespaceWithdrawn(stream.request_id, self._namespace))
