"""Counters of one session: plain integers, cheap to read at any time."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class SessionStats:
    """What a session did and holds. `open_*` and `*_held` return to zero, the rest only grows.

    Octets of Objects count payloads; everything else of a stream is not counted.
    """

    objects_received: int = 0
    octets_received: int = 0
    objects_sent: int = 0
    octets_sent: int = 0
    datagrams_received: int = 0
    datagrams_dropped: int = 0
    datagrams_sent: int = 0
    datagrams_unsent: int = 0
    """Objects for datagrams that were not sent: too late, too many, or not taken by QUIC."""

    requests_sent: int = 0
    requests_received: int = 0
    requests_refused: int = 0
    """Requests of the peer that we answered with REQUEST_ERROR."""

    open_requests: int = 0
    """Request streams, ours and the peer's, that are open in some direction."""
    open_streams_received: int = 0
    """Incoming data streams that have not ended."""
    open_streams_sent: int = 0
    """Outgoing data streams that have not ended."""

    streams_received: int = 0
    streams_sent: int = 0
    streams_reset: int = 0
    """Incoming data streams that the peer reset."""
    streams_stopped: int = 0
    """Incoming data streams that we stopped."""
    streams_reset_by_us: int = 0
    """Outgoing data streams that we reset."""

    stray_streams_held: int = 0
    """Incoming streams whose Track Alias or Request ID is not known yet."""
    stray_octets_held: int = 0
    octets_unread: int = 0
    """Payload octets in memory of the session that wait for `Session.consume`."""
    octets_withheld: int = 0
    """Received octets whose credit is held back."""
