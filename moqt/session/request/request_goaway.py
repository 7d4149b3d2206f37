"""GOAWAY on a request stream: that one request is to move (MOQT-22 6.6.1, 9.2)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from moqt.codes import StreamResetCode
from moqt.errors import LocalProtocolError
from moqt.session.config import Role
from moqt.session.request.states import Phase
from moqt.wire.framing import encode_message
from moqt.wire.messages import Goaway

if TYPE_CHECKING:
    from moqt.session.request.requests import Requests, RequestStream
    from moqt.types import FullTrackName
    from moqt.wire.rules import RequestKind

__all__ = ["ServedRequest", "send_goaway"]


@dataclass(frozen=True, slots=True)
class ServedRequest:
    """A subscription or fetch that is served here.

    `request_id` is the peer's for SUBSCRIBE and FETCH, ours for a PUBLISH; `kind` tells which.
    """

    request_id: int
    kind: RequestKind
    name: FullTrackName


def send_goaway(
    requests: Requests, request_id: int, uri: str, timeout_ms: int, *, now: float
) -> None:
    """Ask the peer to make a request again at `uri`, and reset it when the time is over.

    Raises: LocalProtocolError for a request that is over or was asked already, and for a URI that
    is too long or comes from a client (MOQT-22 9.2).
    """
    context = requests.context
    stream = requests.find(request_id)
    if stream is None or not stream.is_send_open:
        raise LocalProtocolError(f"request {request_id} is over, or takes no message any more")
    if stream.goaway_sent:
        raise LocalProtocolError(f"request {request_id}: GOAWAY was sent already (MOQT-22 9.2)")
    if uri and context.role is Role.CLIENT:
        raise LocalProtocolError("a client sends GOAWAY without a URI (MOQT-22 9.2)")
    try:
        octets = encode_message(Goaway(uri, timeout_ms))
    except ValueError as error:
        raise LocalProtocolError(f"GOAWAY: {error}") from error
    stream.goaway_sent = True
    stream.send_octets(octets)
    if timeout_ms:
        stream.goaway_timer = context.timers.at(now + timeout_ms / 1000, partial(_cut, stream))


def _cut(stream: RequestStream, now: float) -> None:
    """The peer had its time: reset, as if it had cancelled (MOQT-22 9.2)."""
    handler, phase = stream.handler, stream.phase
    stream.cancel(StreamResetCode.GOING_AWAY)
    if handler is not None and (stream.is_ours or phase is not Phase.ENDED):
        handler.on_cancelled(stream, StreamResetCode.GOING_AWAY, now)
