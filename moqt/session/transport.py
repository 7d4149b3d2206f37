"""The narrow border between a session and QUIC.

A `Transport` is what a `Session` needs of one QUIC connection; what arrives goes the other way, by
the session's `receive_*` methods. Rules that every implementation keeps:

- No call blocks, does I/O, or calls back into the session. They note what is to be sent.
- No call raises for a stream that is already gone (reset, stopped, closed): it does nothing.
- `write` may copy the buffers or keep references to them until they are acknowledged. The caller
  never changes an octet that it handed over. Whoever lends memory learns that it is free again by
  the last reference going away, so a transport drops references as soon as it can.
- Windows are extended by `credit` alone, never by the transport itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moqt.codes import SessionErrorCode, StreamResetCode


class Transport(Protocol):
    """What a session asks of its QUIC connection. Stream IDs are QUIC's (RFC 9000 2.1)."""

    def open(self, *, bidirectional: bool) -> int | None:
        """Open a stream and return its ID; None while the peer's stream limit is reached.

        When the limit is raised the binding calls `Session.flush` again.
        """

    def send_room(self) -> int:
        """How many octets are worth handing over now, so that QUIC can send them soon.

        Zero or less: what is buffered suffices, or connection flow control is used up. It shrinks
        with each `write` and grows as QUIC sends and acknowledges. Asked once in each flush, which
        subtracts what it writes.
        """

    def stream_room(self, stream_id: int) -> int:
        """How many more octets the peer's flow control takes on this stream."""

    def write(self, stream_id: int, buffers: Sequence[memoryview | bytes], fin: bool) -> None:
        """Append octets to a stream, then FIN if `fin`.

        Control and request streams are written regardless of `send_room`; Objects only within it
        and within `stream_room`.
        """

    def is_acknowledged(self, stream_id: int) -> bool:
        """Whether the peer has acknowledged all that was written on this stream, and its FIN.

        Asked of streams that were ended by FIN. True also for one that is gone.
        """

    def credit(self, stream_id: int, octets: int) -> None:
        """Let the peer send `octets` more on this stream and on the connection."""

    def reset(self, stream_id: int, code: StreamResetCode) -> None:
        """RESET_STREAM: give up our sending direction; what is unsent is dropped."""

    def stop(self, stream_id: int, code: StreamResetCode) -> None:
        """STOP_SENDING: give up our receiving direction. Credit for late data is automatic."""

    def datagram_room(self) -> int:
        """How many datagrams are worth handing over now, so that few of them wait in QUIC."""

    def send_datagram(self, data: bytes) -> bool:
        """Send an unreliable datagram; False when it was dropped (too large, queue full)."""

    def close(self, code: SessionErrorCode, reason: str) -> None:
        """Close the connection with an application code."""
