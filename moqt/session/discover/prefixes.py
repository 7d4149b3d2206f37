"""What the two requests about a prefix do alike: SUBSCRIBE_NAMESPACE and SUBSCRIBE_TRACKS.

Both are answered now and later, may have their prefix moved by REQUEST_UPDATE, and must not overlap
another one of their own kind (MOQT-22 3.6, 4.2, 9.5.2, 9.20.20).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from moqt.codes import RequestErrorCode, StreamResetCode
from moqt.errors import LocalProtocolError, ResourceBusy
from moqt.session.events import RequestAccepted, RequestEnded
from moqt.session.request.own_request import OwnRequest
from moqt.session.request.request_stream import ServedHandler
from moqt.session.request.requests import is_out_of_reach
from moqt.session.request.states import Phase
from moqt.wire.messages import RequestError, RequestOk, RequestUpdate

if TYPE_CHECKING:
    from moqt.session.context import SessionContext
    from moqt.session.request.requests import RequestStream
    from moqt.types import TrackNamespace
    from moqt.wire.messages import Message
    from moqt.wire.params import Parameters

__all__ = [
    "OwnPrefix",
    "OwnPrefixes",
    "ServedPrefix",
    "ServedPrefixes",
    "check_not_reserved",
]


def check_not_reserved(namespace: TrackNamespace) -> None:
    """Raise LocalProtocolError for a namespace that no request of ours may be about."""
    if namespace.is_reserved:
        raise LocalProtocolError(f"{namespace} is reserved: it begins with '.' (MOQT-22 2.4.3)")


def _overlap(one: TrackNamespace, other: TrackNamespace) -> bool:
    """ "Shares a common prefix" is read as: one is a prefix of the other (MOQT-22 4.2)."""
    return one.starts_with(other) or other.starts_with(one)


class OwnPrefix(OwnRequest):
    """A request of ours about a prefix."""

    has_forward = False
    """Whether there is a Forward State to update."""

    def __init__(self, context: SessionContext, prefix: TrackNamespace, table: OwnPrefixes) -> None:
        super().__init__(context)
        self.prefix = prefix
        self.moving_to: TrackNamespace | None = None
        """The prefix of an update that is not answered yet."""
        self._move_id = -1
        self._table = table

    def bind(self, stream: RequestStream) -> None:
        """Take the stream, and count as active from now on."""
        super().bind(stream)
        self._table.active[self.request_id] = self

    def covers(self, namespace: TrackNamespace) -> bool:
        """Return whether what comes in `namespace` may come because of this."""
        return namespace.starts_with(self.prefix)

    def check_update(self, parameters: Parameters) -> Parameters:
        """Let a prefix pass, and FORWARD for offers of tracks."""
        prefix, forward = parameters.namespace_prefix, parameters.forward
        super().check_update(replace(parameters, namespace_prefix=None, forward=None))
        if forward is not None and not self.has_forward:
            raise LocalProtocolError("a SUBSCRIBE_NAMESPACE has no Forward State (MOQT-22 9.5)")
        if prefix is not None:
            check_not_reserved(prefix)
            self._check_move(prefix)
        return parameters

    def _check_move(self, prefix: TrackNamespace) -> None:
        if self.moving_to is not None:
            raise ResourceBusy(f"request {self.request_id} is being moved already")
        for other in self._table.active.values():
            if other is self:
                continue
            for taken in (other.prefix, other.moving_to):
                if taken is not None and _overlap(prefix, taken):
                    raise LocalProtocolError(
                        f"{prefix} overlaps {taken}, the prefix of request {other.request_id} "
                        "(MOQT-22 9.5.2)"
                    )

    def note_update(self, update_id: int, parameters: Parameters) -> None:
        """A REQUEST_UPDATE was sent; with a prefix it is a move."""
        if parameters.namespace_prefix is not None:
            self._move_id = update_id
            self.moving_to = parameters.namespace_prefix

    def moved(self, old: TrackNamespace) -> None:
        """The prefix is another one from here on."""

    def on_accepted(self, message: Message, now: float) -> None:
        """What was asked for follows."""
        assert isinstance(message, RequestOk)
        self.context.emit(RequestAccepted(self.request_id, message.parameters.expires_ms))

    def on_update_answered(
        self, update_id: int, message: RequestOk | RequestError, now: float
    ) -> None:
        """The prefix has moved, or the peer ends the request (MOQT-22 9.5.1)."""
        if update_id != self._move_id or self.moving_to is None:
            return
        prefix, self.moving_to = self.moving_to, None
        if isinstance(message, RequestOk):
            old, self.prefix = self.prefix, prefix
            self.moved(old)

    def on_fin(self, now: float) -> None:
        """The peer ends it."""
        self.stream.finish()
        self.end(None)

    def on_ended(self, raw_code: int, now: float) -> None:
        """So it does by a reset."""
        self.end(StreamResetCode.from_wire(raw_code))

    def end(self, reset: StreamResetCode | None) -> None:
        """It is over, and not by a wish of the application."""
        self.release()
        self.context.emit(RequestEnded(self.request_id, reset))

    def release(self) -> None:
        """It is over."""
        self._table.active.pop(self.request_id, None)
        super().release()


class OwnPrefixes:
    """The open requests of ours of one kind, by Request ID."""

    def __init__(self) -> None:
        self.active: dict[int, OwnPrefix] = {}


class ServedPrefixes:
    """The open requests of the peer's of one kind, by Request ID."""

    def __init__(self) -> None:
        self.active: dict[int, ServedPrefix] = {}

    def overlaps(self, prefix: TrackNamespace, *, but: int | None = None) -> bool:
        """Return whether one covers a part of what `prefix` does; `but` is left out."""
        return any(
            _overlap(served.prefix, prefix)
            for request_id, served in self.active.items()
            if request_id != but
        )

    def close(self) -> None:
        """The session is over: stop listening."""
        for served in list(self.active.values()):
            served.end()


class ServedPrefix(ServedHandler):
    """A request of the peer's about a prefix, answered from the directory, now and later."""

    def __init__(
        self, stream: RequestStream, prefix: TrackNamespace, table: ServedPrefixes
    ) -> None:
        self.stream = stream
        self.prefix = prefix
        self._table = table

    def start(self, now: float) -> None:
        """Answer OK, then what is there and what comes."""
        self.stream.handler = self
        self._table.active[self.stream.request_id] = self
        self.stream.send(RequestOk())
        self.begin(now)

    def end(self) -> None:
        """Say nothing more."""
        self.stop()
        self._table.active.pop(self.stream.request_id, None)

    # What a subclass adds

    def begin(self, now: float) -> None:
        """Say what there is under `prefix`, and listen."""
        raise NotImplementedError

    def stop(self) -> None:
        """Listen no more. Harmless twice."""
        raise NotImplementedError

    def updated(self, parameters: Parameters) -> RequestError | None:
        """Take what else an update says; return what refuses it, or None."""
        return None

    # RequestHandler

    def on_message(self, stream: RequestStream, message: Message, now: float) -> None:
        """An update may move the prefix; a bad one ends the request (MOQT-22 9.5.1, 9.20.20)."""
        assert isinstance(message, RequestUpdate)  # by the transition table
        prefix = message.parameters.namespace_prefix
        fault = self._fault(prefix) or self.updated(message.parameters)
        if fault is not None:
            self.refuse_update(stream, fault, now)
            return
        stream.send(RequestOk())
        if prefix is not None and prefix != self.prefix:
            self.stop()
            self.prefix = prefix
            self.begin(now)

    def _fault(self, prefix: TrackNamespace | None) -> RequestError | None:
        if prefix is None:
            return None
        if is_out_of_reach(prefix):
            return RequestError(
                code=RequestErrorCode.DOES_NOT_EXIST, reason="reserved name (MOQT-22 2.4.3)"
            )
        if self._table.overlaps(prefix, but=self.stream.request_id):
            return RequestError(
                code=RequestErrorCode.PREFIX_OVERLAP, reason="overlaps another prefix"
            )
        return None

    def refuse_update(self, stream: RequestStream, error: RequestError, now: float) -> None:
        """Answer so, and end the request (MOQT-22 9.5.1)."""
        stream.refuse_with(error)
        stream.phase = Phase.ENDED  # what the peer sent before it knew has no meaning any more
        self.end()

    def on_cancelled(self, stream: RequestStream, raw_code: int, now: float) -> None:
        """The peer wants no more of it."""
        self.end()
