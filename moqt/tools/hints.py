"""What to do about a session that did not come to be, by what went wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moqt.errors import (
    ConnectFailed,
    ConnectProblem,
    RequestRejected,
    SessionClosed,
    TimedOut,
)

if TYPE_CHECKING:
    from moqt.errors import MoqtError

__all__ = ["connect_hint"]

_PACKETS = "--qlog DIR shows every packet"
_DENIALS = frozenset({"UNAUTHORIZED", "MALFORMED_AUTH_TOKEN", "EXPIRED_AUTH_TOKEN"})
"""Codes of requests and of sessions alike."""


def connect_hint(error: MoqtError, *, insecure: str, is_quic_ready: bool = False) -> str:
    """Return a hint on `error`. `insecure`: the tool's option that trusts any certificate.

    `is_quic_ready`: the QUIC handshake was done.
    """
    match error:
        case ConnectFailed(problem=ConnectProblem.UNTRUSTED):
            return f"--ca FILE names what to trust; {insecure} looks without verifying"
        case ConnectFailed(problem=ConnectProblem.CERTIFICATE):
            return f"the certificate itself does not do; {insecure} looks without verifying"
        case ConnectFailed(problem=ConnectProblem.PROTOCOL):
            return "it answers QUIC, but offers no draft that this package speaks"
        case ConnectFailed(problem=ConnectProblem.NAME):
            return "is the host's name right? an address will do as well"
        case ConnectFailed(problem=ConnectProblem.HANDSHAKE):
            return f"it answers, so host and port are right; {_PACKETS}"
        case TimedOut() if is_quic_ready:
            return "it speaks QUIC, but sends no SETUP: does it speak another draft of MOQT?"
        case ConnectFailed() | TimedOut():
            return f"is it running, is UDP let through, is the port right? {_PACKETS}"
        case RequestRejected() | SessionClosed() if error.code.name in _DENIALS:
            return "--token-file FILE gives the token that is asked for"
    return "--qlog DIR shows what was said up to then"
