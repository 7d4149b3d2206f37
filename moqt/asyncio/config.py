"""Every limit of a QUIC connection and its socket, with its unit in its name."""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

KIBI = 1 << 10
MEBI = 1 << 20

SMALLEST_DATAGRAM_OCTETS = 1200
"""What every QUIC path carries (RFC 9000 14); the handshake uses no larger one."""

LARGEST_DATAGRAM_OCTETS = 65527
"""What a UDP datagram holds (RFC 9000 18.2)."""

MAX_SEGMENTS = 64
MAX_SEGMENTED_OCTETS = 65000
"""What Linux cuts into datagrams, or joins, in one call: so many, of so many octets together."""

RUN_CALLS = 8
"""Datagrams of one size to or from one peer are dealt with together, as many as so many calls take:
what belongs to none of them costs Python once a run, and so much stays in a core's cache."""

RUN_OCTETS = RUN_CALLS * 64 * KIBI

LARGEST_STOCK_DATAGRAM_OCTETS = 16383
"""aioquic writes the length of a STREAM frame in two octets, so none that it writes is longer."""

FAST_PATH_VARIABLE = "MOQT_FAST_PATH"
"""The environment variable that `TransportConfig.fast_path` goes by where it is None."""


def datagrams_in_call(octets: int) -> int:
    """Return how many datagrams of so many octets one call of the system takes."""
    return max(1, min(MAX_SEGMENTS, MAX_SEGMENTED_OCTETS // octets))


class CongestionControl(Enum):
    """Which congestion controller is used."""

    CUBIC = "cubic"
    """RFC 9438 with HyStart++ (RFC 9406): `moqt.asyncio.cubic`."""

    RENO = "reno"
    """RFC 9002's, as aioquic has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportConfig:
    """Limits of one endpoint's QUIC connections. All are per connection.

    Raises: ValueError for a datagram size outside 1200..65527, a window or time that is not
    positive, or anything negative; TypeError for a `qlog_dir` that is no path.
    """

    connection_window_octets: int = 16 * MEBI
    """What the peer may send beyond what was credited, over all streams, at first; half of the
    socket's receive buffer, as granted, but 1 MiB at least, if that is less and it may grow. While
    the peer fills it within a round trip of 5 ms or more and the data is read at once, it doubles
    up to `max_connection_window_octets`."""

    max_connection_window_octets: int | None = 64 * MEBI
    """It bounds the memory that unread data can take. 64 MiB carry 1 Gbit/s over 250 ms. None, or
    less than the window: the window doesn't grow."""

    stream_window_octets: int = 6 * MEBI
    """The same as `connection_window_octets` for one stream."""

    max_stream_window_octets: int | None = 32 * MEBI
    """The same as `max_connection_window_octets` for one stream."""

    max_bidirectional_streams: int = 1088
    """Request streams that the peer may have open at once: `SessionConfig.max_requests`, and a few
    more, so that a request too many is answered rather than held back."""

    max_unidirectional_streams: int = 256
    """Control and Object streams that the peer may have open at once."""

    send_ahead_octets: int = 256 * KIBI
    """What may be handed to QUIC beyond what it lets out at once. Enough to keep the link busy
    until the next wake-up; an Object handed over can't be overtaken any more."""

    max_send_buffer_octets: int = 8 * MEBI
    """The most that may wait unsent in QUIC, however fast it sends."""

    control_reserve_octets: int = 64 * KIBI
    """Of the peer's connection window: what Objects leave to control and request streams, though
    never more than a quarter of the window."""

    max_queued_datagrams: int = 256
    """Unreliable datagrams that may wait to be sent; more are dropped."""

    max_datagram_octets: int = LARGEST_DATAGRAM_OCTETS
    """UDP payload: a connection begins with 1200, and searches for what its path carries up to this
    and to what the peer takes (RFC 8899, RFC 9000 14.3). 1200: it sends no larger ones."""

    congestion_control: CongestionControl = CongestionControl.CUBIC
    """Who decides how much is on its way; one for each path."""

    fast_path: bool | None = None
    """Whether packets of Objects are written and read by the batch. Without it, aioquic's packet
    code does that, some five times slower; what is on the wire is QUIC version 1 either way. None:
    True, unless the environment variable MOQT_FAST_PATH is 0."""

    handshake_timeout_s: float = 10.0
    """For the QUIC handshake; and again for the peer's SETUP after it, where it is shorter than
    `SessionConfig.setup_timeout_s`."""

    idle_timeout_s: float = 30.0
    """A connection on which nothing is received for so long is lost. The peer's own, if shorter,
    rules. Where a round trip was measured that is longer than a third of it, as after this process
    was stopped for a while, it may take twice as long (RFC 9000 10.1)."""

    keep_alive_s: float = 5.0
    """A PING is sent after so long without a datagram from the peer (never later than a third of
    the idle timeout); 0: none is sent."""

    close_linger_s: float = 0.1
    """How long a closed connection's socket stays to repeat its CONNECTION_CLOSE, at most."""

    socket_buffer_octets: int = 4 * MEBI
    """SO_RCVBUF and SO_SNDBUF asked for; the system may grant less."""

    max_connections: int = 1024
    """Connections that a server holds at once, half-open ones included; more are not answered."""

    qlog_dir: str | os.PathLike[str] | None = None
    """Where a qlog of each connection is written when it is over; None: none is. It holds no
    payloads and no tokens. Tracing costs time for every packet."""

    qlog_max_events: int = 32768
    """Of QUIC, and of MOQT, so many events of a connection are kept, in memory until it is over:
    the first half and the newest."""

    @property
    def is_fast_path(self) -> bool:
        """What `fast_path` comes to. A traced connection has none: aioquic makes the qlog."""
        if self.qlog_dir is not None:
            return False
        if self.fast_path is None:
            return os.environ.get(FAST_PATH_VARIABLE, "1") != "0"
        return self.fast_path

    @property
    def largest_connection_window_octets(self) -> int:
        """What the connection's window grows to, at most."""
        return max(self.connection_window_octets, self.max_connection_window_octets or 0)

    @property
    def largest_stream_window_octets(self) -> int:
        """What a stream's window grows to, at most."""
        return max(self.stream_window_octets, self.max_stream_window_octets or 0)

    def __post_init__(self) -> None:
        if self.qlog_dir is not None:
            Path(self.qlog_dir)  # TypeError now, rather than from every connection
        if not isinstance(self.congestion_control, CongestionControl):
            raise TypeError(
                f"congestion_control is {self.congestion_control!r}, expected a CongestionControl"
            )
        if self.fast_path not in (True, False, None):
            raise TypeError(f"fast_path is {self.fast_path!r}, expected True, False or None")
        if not SMALLEST_DATAGRAM_OCTETS <= self.max_datagram_octets <= LARGEST_DATAGRAM_OCTETS:
            raise ValueError(
                f"max_datagram_octets is {self.max_datagram_octets}, expected "
                f"{SMALLEST_DATAGRAM_OCTETS} to {LARGEST_DATAGRAM_OCTETS}"
            )
        for name in (
            "connection_window_octets",
            "stream_window_octets",
            "send_ahead_octets",
            "handshake_timeout_s",
            "idle_timeout_s",
            "qlog_max_events",
        ):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} is {getattr(self, name)}, expected more than 0")
        for name in (
            "max_bidirectional_streams",
            "max_unidirectional_streams",
            "max_send_buffer_octets",
            "control_reserve_octets",
            "max_queued_datagrams",
            "keep_alive_s",
            "close_linger_s",
            "socket_buffer_octets",
            "max_connections",
        ):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}, expected 0 or more")
        for name in ("max_connection_window_octets", "max_stream_window_octets"):
            octets = getattr(self, name)
            if octets is not None and octets <= 0:
                raise ValueError(f"{name} is {octets}, expected more than 0, or None")
