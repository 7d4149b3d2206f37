"""QUIC's error codes by name (RFC 9000 20.1, RFC 9001 4.8)."""

from __future__ import annotations

from aioquic.quic.packet import QuicErrorCode
from aioquic.tls import AlertDescription

__all__ = ["error_name", "tls_alert"]

_TLS_ALERTS = 0x100
"""The first of the 256 codes that are TLS's alerts."""


def tls_alert(code: int) -> AlertDescription | None:
    """Return the TLS alert that a transport error code stands for; None: it is none known."""
    try:
        return AlertDescription(code - _TLS_ALERTS)
    except ValueError:
        return None


def error_name(code: int) -> str:
    """Return what a transport error code says."""
    if _TLS_ALERTS <= code < 2 * _TLS_ALERTS:
        alert = tls_alert(code)
        return f"TLS alert {code - _TLS_ALERTS if alert is None else alert.name}"
    try:
        return f"QUIC error {QuicErrorCode(code).name}"
    except ValueError:
        return f"QUIC error 0x{code:x}"
