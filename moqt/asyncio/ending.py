"""Why a connection is over, as far as QUIC, TLS or the silence on the path tell."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from moqt.asyncio.quic_errors import error_name, tls_alert
from moqt.codes import SessionErrorCode

if TYPE_CHECKING:
    from aioquic.quic.events import ConnectionTerminated
    from aioquic.tls import AlertDescription

    from moqt.asyncio.connection import HeldConnection

__all__ = ["Loss", "describe_end", "silence"]

_IDLE_TIMEOUT = "Idle timeout"
"""How aioquic 1.7 says that the connection timed out."""


@dataclass(frozen=True, slots=True)
class Loss:
    """Why a connection is over. `by_peer`: by the peer or the network. `alert`: TLS's, if any.
    `is_answered`: the peer was heard."""

    code: SessionErrorCode
    reason: str
    by_peer: bool
    alert: AlertDescription | None = None
    timed_out: bool = False
    is_answered: bool = False


def silence(idle_s: float) -> str:
    """Return what to say of a peer that was not heard for so long."""
    return f"idle timeout: nothing received for {idle_s:g} s"


def describe_end(event: ConnectionTerminated, connection: HeldConnection, idle_s: float) -> Loss:
    """Return what `event`, the end of `connection`, means; `idle_s`: its idle timeout."""
    by_peer = connection.is_closed_by_peer
    if event.frame_type is None:
        told = SessionErrorCode.from_wire(event.error_code)
        return Loss(told, event.reason_phrase, by_peer, is_answered=True)
    code = SessionErrorCode.INTERNAL_ERROR
    if event.reason_phrase == _IDLE_TIMEOUT and connection.is_terminated:
        return Loss(code, silence(idle_s), by_peer=True, timed_out=True)
    name = error_name(event.error_code)
    reason = f"{name}: {event.reason_phrase}" if event.reason_phrase else name
    alert = tls_alert(event.error_code)
    return Loss(code, reason, by_peer, alert=alert, is_answered=True)
