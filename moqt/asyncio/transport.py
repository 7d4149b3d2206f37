"""`moqt.session.transport.Transport` over aioquic.

The bulk path refers to the caller's buffers until they are acknowledged; aioquic's own path copies
them, so references end with `write`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from moqt.asyncio.connection import HeldConnection
    from moqt.codes import SessionErrorCode, StreamResetCode

MAX_REASON_OCTETS = 512
"""A longer reason is cut: CONNECTION_CLOSE must fit into one packet."""


WORTH_ASKING_OCTETS = 32 * 1024
"""Less room than this is none while QUIC has as much to send: it grows meanwhile."""

DATAGRAMS_AHEAD = 16
"""Datagrams that a session lets wait in QUIC beyond its congestion window; further ones wait in the
session, where they may be overtaken, and dropped when they are late (MOQT-22 5.2)."""


class QuicTransport:
    """What a session may ask of its connection; `wake` schedules one transmit soon."""

    def __init__(self, connection: HeldConnection, wake: Callable[[], None]) -> None:
        self._connection = connection
        self._config = connection.transport_config
        self._wake = wake
        self._reserve: int | None = None  # known once the peer's window is

    def open(self, *, bidirectional: bool) -> int | None:
        """Open a stream; None while the peer's limit is reached, or when the connection is over."""
        if self._connection.is_over:
            return None
        return self._connection.open_stream(bidirectional=bidirectional)

    def send_room(self) -> int:
        """What QUIC can send soon: its window's room and a little ahead, less what waits in it."""
        connection = self._connection
        config = self._config
        mark = min(
            connection.sendable_octets + config.send_ahead_octets, config.max_send_buffer_octets
        )
        unsent = connection.unsent_octets
        room = mark - unsent
        if room < WORTH_ASKING_OCTETS <= unsent:
            return 0
        return min(room, connection.peer_credit - self._kept_back())

    def _kept_back(self) -> int:
        # A peer grants more once a part of its window is consumed, half of it mostly: a reserve
        # of more than a quarter could keep Objects below that for ever.
        if self._reserve is None:
            window = self._connection.peer_window_octets
            if not window:
                return 0
            self._reserve = min(self._config.control_reserve_octets, window // 4)
        return self._reserve

    def stream_room(self, stream_id: int) -> int:
        """What the peer's stream and connection windows still take on this stream."""
        return self._connection.stream_credit(stream_id)

    def write(self, stream_id: int, buffers: Sequence[memoryview | bytes], fin: bool) -> None:
        """Put `buffers` at the stream's end; they must not change any more."""
        self._connection.append(stream_id, buffers, fin)
        self._wake()

    def credit(self, stream_id: int, octets: int) -> None:
        """Grant `octets` more; a frame goes out once it's worth one."""
        if self._connection.credit(stream_id, octets):
            self._wake()

    def reset(self, stream_id: int, code: StreamResetCode) -> None:
        """RESET_STREAM; unsent octets are dropped."""
        self._connection.drop(stream_id, int(code))
        self._wake()

    def stop(self, stream_id: int, code: StreamResetCode) -> None:
        """STOP_SENDING; what still arrives is discarded and credited."""
        self._connection.stop(stream_id, int(code))
        self._wake()

    def is_acknowledged(self, stream_id: int) -> bool:
        """Whether the peer has all of a stream that was ended by FIN, or the stream is gone."""
        return self._connection.is_acknowledged(stream_id)

    def datagram_room(self) -> int:
        """What the congestion window has room for, a few at least, less those that wait."""
        connection = self._connection
        mark = max(DATAGRAMS_AHEAD, connection.sendable_octets // connection.datagram_size)
        return min(mark, self._config.max_queued_datagrams) - connection.waiting_datagrams

    def send_datagram(self, data: bytes) -> bool:
        """Queue an unreliable datagram; False when it's too large, or the queue is full."""
        is_queued = self._connection.queue_datagram(data)
        if is_queued:
            self._wake()
        return is_queued

    def close(self, code: SessionErrorCode, reason: str) -> None:
        """CONNECTION_CLOSE with an application code; it leaves with the next transmit."""
        short = reason.encode(errors="replace")[:MAX_REASON_OCTETS].decode(errors="ignore")
        self._connection.close(error_code=int(code), reason_phrase=short)
        self._wake()
