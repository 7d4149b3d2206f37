"""SUBSCRIBE_NAMESPACE, ours and the peer's (MOQT-22 4.2, 9.15 to 9.17)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moqt.codes import SessionErrorCode, StreamResetCode
from moqt.errors import RemoteProtocolError
from moqt.session.discover.prefixes import OwnPrefix, OwnPrefixes, ServedPrefix, ServedPrefixes
from moqt.session.events import NamespaceFound, NamespaceGone
from moqt.wire.messages import Namespace, NamespaceDone

if TYPE_CHECKING:
    from moqt.session.context import SessionContext
    from moqt.session.publish.directory import TrackDirectory
    from moqt.session.request.requests import RequestStream
    from moqt.types import TrackNamespace
    from moqt.wire.messages import Message

__all__ = ["NamespaceSubscription", "ServedNamespaceSubscription"]


class NamespaceSubscription(OwnPrefix):
    """A SUBSCRIBE_NAMESPACE of ours."""

    def __init__(self, context: SessionContext, prefix: TrackNamespace, table: OwnPrefixes) -> None:
        super().__init__(context, prefix, table)
        self._known: dict[TrackNamespace, None] = {}

    def on_more(self, message: Message, now: float) -> None:
        """A namespace came or went."""
        assert isinstance(message, Namespace | NamespaceDone)
        try:
            namespace = self.prefix + message.suffix
        except ValueError as error:
            raise RemoteProtocolError(SessionErrorCode.PROTOCOL_VIOLATION, str(error)) from error
        if isinstance(message, Namespace):
            self._found(namespace)
        elif namespace in self._known:
            self._gone(namespace)
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
            self.end(StreamResetCode.EXCESSIVE_LOAD)
            return
        self._known[namespace] = None
        self.context.emit(NamespaceFound(self.request_id, namespace))

    def _gone(self, namespace: TrackNamespace) -> None:
        del self._known[namespace]
        self.context.emit(NamespaceGone(self.request_id, namespace))

    def moved(self, old: TrackNamespace) -> None:
        """What no suffix of the new prefix can name is withdrawn; nobody could say it later."""
        for namespace in [one for one in self._known if not one.starts_with(self.prefix)]:
            self._gone(namespace)

    def end(self, reset: StreamResetCode | None) -> None:
        """The end of the stream counts as NAMESPACE_DONE for all (MOQT-22 4.2.2)."""
        for namespace in list(self._known):
            self._gone(namespace)
        super().end(reset)


class ServedNamespaceSubscription(ServedPrefix):
    """A SUBSCRIBE_NAMESPACE of the peer's."""

    def __init__(
        self,
        stream: RequestStream,
        prefix: TrackNamespace,
        table: ServedPrefixes,
        *,
        directory: TrackDirectory,
        context: SessionContext,
    ) -> None:
        super().__init__(stream, prefix, table)
        self._directory = directory
        self._context = context

    def begin(self, now: float) -> None:
        """Report all that is there, and listen for what comes."""
        for namespace in self._directory.namespaces(self.prefix):
            self.stream.send(Namespace(namespace.suffix_after(self.prefix)))
        if self.stream.is_send_open:
            self._directory.listen(self.prefix, self)

    def stop(self) -> None:
        """Listen no more."""
        self._directory.unlisten(self.prefix, self)

    # NamespaceListener

    def namespace_added(self, namespace: TrackNamespace) -> None:
        """Report it."""
        self.stream.send(Namespace(namespace.suffix_after(self.prefix)))
        self._context.wake()

    def namespace_removed(self, namespace: TrackNamespace) -> None:
        """Report that it is gone."""
        self.stream.send(NamespaceDone(namespace.suffix_after(self.prefix)))
        self._context.wake()
