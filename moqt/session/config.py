"""Every limit of a session, with its unit in its name."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import Enum
from typing import Final

from moqt.wire.properties import MANDATORY_FIRST, MANDATORY_LAST

MEBI = 1 << 20

_AT_LEAST_ONE: Final = frozenset(
    {
        "max_active_streams",
        "max_buffered_octets",
        "max_events",
        "max_open_streams",
        "max_waiting_datagrams",
        "write_octets",
    }
)
"""Limits that nothing would work with at 0."""


class Role(Enum):
    """Who opened the connection. Request IDs and some checks depend on it (MOQT-22 6.4.2.1)."""

    CLIENT = "client"
    SERVER = "server"


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionConfig:
    """Limits and announcements of one endpoint. All are per session.

    Raises: ValueError for a limit or time below 0, or one of 0 that must be more.
    """

    implementation: str = "kvcs-moqt/0.1"
    """MOQT_IMPLEMENTATION; empty: not sent (MOQT-22 9.1)."""

    max_filter_ranges: int = 32
    """MAX_FILTER_RANGES announced and enforced: Ranges over all filters of one request."""

    max_request_updates: int = 16
    """MAX_REQUEST_UPDATES announced and enforced: unanswered updates on one stream; 0 = any."""

    max_auth_token_cache_octets: int = 4096
    """MAX_AUTH_TOKEN_CACHE_SIZE announced and enforced: what a peer may have us remember of its
    tokens, 16 octets and the value for each. The default holds a few tokens of any usual size, and
    costs a server with a thousand sessions at most 4 MiB; 0: none are remembered."""

    max_requests: int = 1024
    """Open requests that a peer may have; more are refused with EXCESSIVE_LOAD."""

    max_fills: int = 64
    """Fills of one subscription that a peer may have open at once; the update that asks for more is
    refused with EXCESSIVE_LOAD, and ends the subscription as any refused update does."""

    max_pending_requests: int = 4096
    """Our own requests that may be open at once; more raise ResourceBusy."""

    max_object_octets: int = 256 * MEBI
    """The largest payload accepted; a larger one cancels its request."""

    max_buffered_octets: int = 8 * MEBI
    """Payload octets of one request that may lie unread before its credit stops."""

    max_unread_octets: int = 64 * MEBI
    """Payload octets of one request that may lie unread in whole Objects. Flow control keeps an
    honest peer below it: `max_buffered_octets` and the connection's receive window together. One
    that resets streams to get its window back loses the request with EXCESSIVE_LOAD."""

    max_stray_octets: int = 64 * MEBI
    """Octets held for streams whose Track Alias or Request ID is not known yet: until SUBSCRIBE_OK
    is there, or the packet with a stream's first octets, which may have to be sent again while a
    window's worth comes. They are not credited, so that the connection's receive window is the
    bound while it is smaller. Streams beyond it are stopped."""

    max_stray_streams: int = 64
    """Streams held for the same reason; more are stopped."""

    stray_timeout_s: float = 5.0
    """How long such a stream is held before it is stopped."""

    max_lag_octets: int = 8192 * MEBI
    """How far a subscription may fall behind its track: octets published, wanted, and not yet
    handed to QUIC. Beyond it the subscription ends with TOO_FAR_BEHIND (MOQT-22 5.2). Lag costs no
    memory of its own, since what is retained is shared by all subscribers; what a subscriber pins
    by itself is one Object for each of its open streams. Looked at in steps of 1/64 of it."""

    max_active_streams: int = 8
    """Object streams written in turn by this session; further Groups wait in order of priority.
    More urgent Objects may open up to as many again, and what waits for the peer's stream flow
    control does not count."""

    max_open_streams: int = 1024
    """Object streams open at once in this session, idle and blocked ones included; further ones
    wait. Each may hold the one Object that it is in the middle of beyond its eviction."""

    write_octets: int = 256 * 1024
    """The piece of an Object handed to QUIC at once; a more urgent Object waits for one piece. One
    that ends an Object may have an eighth more, so that headers do not make two pieces of it."""

    max_waiting_datagrams: int = 64
    """Objects that wait to be sent in datagrams, for each subscription; of more, the one that would
    go last is dropped."""

    peer_lacks: frozenset[int] = frozenset()
    """Mandatory Track Properties (0x4000 to 0x7FFF) that the peer is known not to understand. Its
    SUBSCRIBE and FETCH for a track that has one are refused with UNSUPPORTED_EXTENSION, and such a
    track is not offered (MOQT-22 3.7)."""

    max_request_stream_octets: int = 1 * MEBI
    """Unsent octets on one request stream (NAMESPACE messages above all); beyond it the request is
    cancelled with EXCESSIVE_LOAD."""

    max_namespaces: int = 65536
    """Namespaces that one SUBSCRIBE_NAMESPACE of ours may have reported and not withdrawn."""

    max_events: int = 65536
    """Events not yet taken by the application. Objects are bounded by `max_buffered_octets`
    already; a peer that causes more events than this loses the session."""

    setup_timeout_s: float = 10.0
    """Time for the peer's SETUP after the handshake; then CONTROL_MESSAGE_TIMEOUT."""

    request_timeout_s: float = 30.0
    """Time for the first answer to a request of ours; then it is cancelled with `TimedOut`."""

    stream_header_timeout_s: float = 30.0
    """Time for the rest of a header that has begun, of an incoming data stream or of an Object on
    it; then the stream is stopped. And for a promised FETCH or fill stream to come while nothing
    else does."""

    lost_fill_timeout_s: float = 1.0
    """How long a fill's stream is waited for once some stream was reset before it said whose it is:
    it may have been the fill's."""

    done_timeout_s: float = 10.0
    """After PUBLISH_DONE: time for the streams it counted to arrive (MOQT-22 9.9). Where a delivery
    timeout is larger it counts, up to an hour."""

    ended_linger_s: float = 10.0
    """How long a subscription stays open once its track has ended, for a peer that fetches only
    beside a subscription (`moqt/session/quirks.py`)."""

    goaway_timeout_ms: int = 10_000
    """Timeout put into a GOAWAY of ours when the caller names none."""

    def __post_init__(self) -> None:
        for name in (field.name for field in fields(self)):
            value = getattr(self, name)
            least = 1 if name in _AT_LEAST_ONE else 0
            # Written so that NaN is refused too.
            if isinstance(value, int | float) and not value >= least:
                raise ValueError(f"{name} is {value}, expected {least} or more")
        for kind in self.peer_lacks:
            if not MANDATORY_FIRST <= kind <= MANDATORY_LAST:
                raise ValueError(
                    f"peer_lacks has 0x{kind:x}, expected 0x{MANDATORY_FIRST:x} to "
                    f"0x{MANDATORY_LAST:x}"
                )
