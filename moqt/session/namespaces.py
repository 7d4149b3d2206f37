"""PUBLISH_NAMESPACE and SUBSCRIBE_NAMESPACE, ours and the peer's (MOQT-22 4, 9.14 to 9.17)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moqt.codes import RequestErrorCode, SessionErrorCode, StreamResetCode
from moqt.errors import LocalProtocolError, RemoteProtocolError
from moqt.session.events import (
    NamespaceFound,
    NamespaceGone,
    NamespaceOffered,
    NamespaceWithdrawn,
    RequestAccepted,
    RequestEnded,
)
from moqt.session.own_request import OwnRequest
from moqt.session.requests import is_out_of_reach
from moqt.wire.messages import (
    Namespace,
    NamespaceDone,
    PublishNamespace,
    RequestError,
    RequestOk,
    RequestUpdate,
    SubscribeNamespace,
)
from moqt.wire.rules import RequestKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moqt.session.authorization import AuthToken
    from moqt.session.context import SessionContext
    from moqt.session.directory import TrackDirectory
    from moqt.session.requests import Requests, RequestStream
    from moqt.types import TrackNamespace
    from moqt.wire.messages import Message

__all__ = ["Advertisement", "NamespaceOffer", "NamespaceWatch", "Namespaces"]


class Namespaces:
    """All namespace requests of one session."""

    def __init__(
        self, context: SessionContext, requests: Requests, directory: TrackDirectory | None
    ) -> None:
        self._context = context
        self._requests = requests
        self._directory = directory
        self._reports: dict[int, _Report] = {}

    def publish_namespace(
        self, namespace: TrackNamespace, now: float, tokens: Sequence[AuthToken] | None = None
    ) -> int:
        """Tell the peer that we have tracks below `namespace`; return the Request ID."""
        _refuse_reserved(namespace)
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
        self, prefix: TrackNamespace, now: float, tokens: Sequence[AuthToken] | None = None
    ) -> int:
        """Ask the peer for the namespaces below `prefix`; return the Request ID."""
        _refuse_reserved(prefix)
        watch = NamespaceWatch(self._context, prefix)
        watch.bind(
            self._requests.open(
                RequestKind.SUBSCRIBE_NAMESPACE,
                watch,
                lambda request_id: SubscribeNamespace(request_id, prefix),
                now=now,
                tokens=tokens,
            )
        )
        return watch.request_id

    def on_publish_namespace(self, stream: RequestStream, message: PublishNamespace) -> None:
        """Offer the peer's namespace to the application."""
        stream.handler = NamespaceOffer(self._context, stream, message.namespace)

    def on_subscribe_namespace(self, stream: RequestStream, message: SubscribeNamespace) -> None:
        """Answer from the directory, now and later."""
        if self._directory is None:
            refuse(stream, RequestErrorCode.NOT_SUPPORTED, "this endpoint publishes nothing")
        elif self.overlaps(message.prefix):
            refuse(stream, RequestErrorCode.PREFIX_OVERLAP, "overlaps another prefix")
        else:
            report = _Report(self, stream, self._directory)
            stream.handler = report
            self._reports[stream.request_id] = report
            stream.send(RequestOk())
            report.begin(message.prefix)

    def overlaps(self, prefix: TrackNamespace, *, but: int | None = None) -> bool:
        """Return whether a SUBSCRIBE_NAMESPACE of the peer covers a part of what `prefix` does.

        "Shares a common prefix" is read as: one is a prefix of the other (MOQT-22 4.2). `but` is
        the Request ID of the one that is left out.
        """
        return any(
            report.prefix.starts_with(prefix) or prefix.starts_with(report.prefix)
            for request_id, report in self._reports.items()
            if request_id != but
        )

    def forget(self, request_id: int) -> None:
        """A SUBSCRIBE_NAMESPACE of the peer is over."""
        self._reports.pop(request_id, None)

    def wake(self) -> None:
        """Ask for a flush: something was written outside of an input."""
        self._context.wake()

    def close(self) -> None:
        """The session is over: stop listening to the directory."""
        for report in list(self._reports.values()):
            report.end()


def refuse(stream: RequestStream, code: RequestErrorCode, reason: str) -> None:
    """Answer REQUEST_ERROR and FIN (MOQT-22 6.4.2.3)."""
    stream.send(RequestError(code=code, reason=reason))
    stream.finish()


def _refuse_reserved(namespace: TrackNamespace) -> None:
    if namespace.is_reserved:
        raise LocalProtocolError(f"{namespace} is reserved: it begins with '.' (MOQT-22 2.4.3)")


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


class NamespaceWatch(OwnRequest):
    """A SUBSCRIBE_NAMESPACE of ours."""

    def __init__(self, context: SessionContext, prefix: TrackNamespace) -> None:
        super().__init__(context)
        self._prefix = prefix
        self._known: dict[TrackNamespace, None] = {}

    def on_accepted(self, message: Message, now: float) -> None:
        """Namespaces follow."""
        assert isinstance(message, RequestOk)
        self.context.emit(RequestAccepted(self.request_id, message.parameters.expires_ms))

    def on_more(self, message: Message, now: float) -> None:
        """A namespace came or went."""
        assert isinstance(message, Namespace | NamespaceDone)
        try:
            namespace = self._prefix + message.suffix
        except ValueError as error:
            raise RemoteProtocolError(SessionErrorCode.PROTOCOL_VIOLATION, str(error)) from error
        if isinstance(message, Namespace):
            self._found(namespace)
        elif namespace in self._known:
            del self._known[namespace]
            self.context.emit(NamespaceGone(self.request_id, namespace))
        else:
            raise RemoteProtocolError(
                SessionErrorCode.PROTOCOL_VIOLATION,
                f"NAMESPACE_DONE for {namespace} without NAMESPACE",
            )

    def _found(self, namespace: TrackNamespace) -> None:
        if namespace in self._known:
            return
        if len(self._known) >= self.context.config.max_namespaces:
            self.stream.cancel(StreamResetCode.EXCESSIVE_LOAD)
            self._end(StreamResetCode.EXCESSIVE_LOAD)
            return
        self._known[namespace] = None
        self.context.emit(NamespaceFound(self.request_id, namespace))

    def on_fin(self, now: float) -> None:
        """The end of the stream counts as NAMESPACE_DONE for all (MOQT-22 4.2.2)."""
        self.stream.finish()
        self._end(None)

    def on_ended(self, raw_code: int, now: float) -> None:
        """So does a reset."""
        self._end(StreamResetCode.from_wire(raw_code))

    def _end(self, reset: StreamResetCode | None) -> None:
        self.release()
        for namespace in self._known:
            self.context.emit(NamespaceGone(self.request_id, namespace))
        self._known.clear()
        self.context.emit(RequestEnded(self.request_id, reset))


class NamespaceOffer:
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
        self._stream.send(error)
        self._stream.finish()
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
        self._context.emit(NamespaceWithdrawn(stream.request_id, self._namespace))

    def on_peer_fin(self, stream: RequestStream, now: float) -> None:
        """No more updates; the advertisement stays."""

    def on_cancelled(self, stream: RequestStream, raw_code: int, now: float) -> None:
        """The peer withdraws it."""
        self._release()
        self._context.emit(NamespaceWithdrawn(stream.request_id, self._namespace))

    def on_timeout(self, stream: RequestStream, now: float) -> None:
        """Not for a request of the peer's."""


class _Report:
    """A SUBSCRIBE_NAMESPACE of the peer, answered from the directory."""

    def __init__(
        self, namespaces: Namespaces, stream: RequestStream, directory: TrackDirectory
    ) -> None:
        self._namespaces = namespaces
        self._stream = stream
        self._directory = directory
        self.prefix: TrackNamespace

    def begin(self, prefix: TrackNamespace) -> None:
        """Report all that is there, and listen for what comes."""
        self.prefix = prefix
        for namespace in self._directory.namespaces(prefix):
            self._stream.send(Namespace(namespace.suffix_after(prefix)))
        if self._stream.is_send_open:
            self._directory.listen(prefix, self)

    def end(self) -> None:
        """Report nothing more."""
        self._directory.unlisten(self.prefix, self)
        self._namespaces.forget(self._stream.request_id)

    # NamespaceListener

    def namespace_added(self, namespace: TrackNamespace) -> None:
        """Report it."""
        self._stream.send(Namespace(namespace.suffix_after(self.prefix)))
        self._namespaces.wake()

    def namespace_removed(self, namespace: TrackNamespace) -> None:
        """Report that it is gone."""
        self._stream.send(NamespaceDone(namespace.suffix_after(self.prefix)))
        self._namespaces.wake()

    # RequestHandler

    def on_message(self, stream: RequestStream, message: Message, now: float) -> None:
        """An update moves the prefix; a bad one ends the request (MOQT-22 9.5.2, 9.20.20)."""
        assert isinstance(message, RequestUpdate)
        prefix = message.parameters.namespace_prefix
        if prefix is None or prefix == self.prefix:
            stream.send(RequestOk())
            return
        self.end_listening()
        if is_out_of_reach(prefix):
            refuse(stream, RequestErrorCode.DOES_NOT_EXIST, "reserved name (MOQT-22 2.4.3)")
        elif self._namespaces.overlaps(prefix, but=stream.request_id):
            refuse(stream, RequestErrorCode.PREFIX_OVERLAP, "overlaps another prefix")
        else:
            stream.send(RequestOk())
            self.begin(prefix)
            return
        self.end()

    def refuse_update(self, stream: RequestStream, error: RequestError, now: float) -> None:
        """Answer so, and end the request (MOQT-22 9.5.1)."""
        stream.send(error)
        stream.finish()
        self.end()

    def end_listening(self) -> None:
        """Stop listening under the present prefix."""
        self._directory.unlisten(self.prefix, self)

    def on_peer_fin(self, stream: RequestStream, now: float) -> None:
        """No more updates; reports go on."""

    def on_cancelled(self, stream: RequestStream, raw_code: int, now: float) -> None:
        """The peer wants no more reports."""
        self.end()

    def on_timeout(self, stream: RequestStream, now: float) -> None:
        """Not for a request of the peer's."""
