"""What went over the streams of our sessions: the evidence for what peers do otherwise."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moqt.asyncio.transport import QuicTransport
from moqt.session.core import Session

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["Wiretap"]

UNIDIRECTIONAL = 0x2
SETUP = b"\xaf\x00"
"""What a control stream begins with."""

MAX_OCTETS = 4096
"""Octets of each stream that are kept, from its beginning."""

MAX_STREAMS = 4096
"""Streams that are kept, over all sessions."""


class Wiretap:
    """Keeps the beginning of each stream that peers wrote, in order of their first octet."""

    def __init__(self) -> None:
        self.resets: list[int] = []
        """Codes of the data streams that peers reset, in order; the first `MAX_STREAMS`."""
        self._streams: dict[tuple[int, int], bytearray] = {}
        self._receive_stream_data = Session.receive_stream_data
        self._receive_reset = Session.receive_reset
        self._write = QuicTransport.write
        self._sent: dict[tuple[int, int], bytearray] = {}

    def __enter__(self) -> Wiretap:
        tap, on_data, on_reset = self, self._receive_stream_data, self._receive_reset

        def receive_stream_data(
            session: Session,
            stream_id: int,
            offset: int,
            data: memoryview | bytes,
            fin: bool,
            now: float,
        ) -> None:
            tap.take(id(session), stream_id, offset, bytes(data))
            on_data(session, stream_id, offset, data, fin, now)

        def receive_reset(session: Session, stream_id: int, raw_code: int, now: float) -> None:
            if stream_id & UNIDIRECTIONAL and len(tap.resets) < MAX_STREAMS:
                tap.resets.append(raw_code)
            on_reset(session, stream_id, raw_code, now)

        write = self._write

        def tapped_write(
            transport: QuicTransport,
            stream_id: int,
            buffers: Sequence[memoryview | bytes],
            fin: bool,
        ) -> None:
            if not stream_id & UNIDIRECTIONAL:
                sent = tap._sent.setdefault((id(transport), stream_id), bytearray())
                sent += b"".join(map(bytes, buffers))[: MAX_OCTETS - len(sent)]
            write(transport, stream_id, buffers, fin)

        QuicTransport.write = tapped_write  # type: ignore[method-assign,assignment]
        Session.receive_stream_data = receive_stream_data  # type: ignore[method-assign,assignment]
        Session.receive_reset = receive_reset  # type: ignore[method-assign,assignment]
        return self

    def __exit__(self, *_: object) -> None:
        Session.receive_stream_data = self._receive_stream_data  # type: ignore[method-assign]
        Session.receive_reset = self._receive_reset  # type: ignore[method-assign]
        QuicTransport.write = self._write  # type: ignore[method-assign]

    def take(self, session: int, stream_id: int, offset: int, data: bytes) -> None:
        """Keep octets of a stream; what comes out of order is put in its place."""
        key = (session, stream_id)
        if offset >= MAX_OCTETS or (key not in self._streams and len(self._streams) == MAX_STREAMS):
            return
        stream = self._streams.setdefault(key, bytearray())
        data = data[: MAX_OCTETS - offset]
        if len(stream) < offset + len(data):
            stream.extend(bytes(offset + len(data) - len(stream)))
        stream[offset : offset + len(data)] = data

    def setup(self) -> bytes:
        """Return what came on the first unidirectional stream: the control stream."""
        return next(
            bytes(o) for (_, stream_id), o in self._streams.items() if stream_id & UNIDIRECTIONAL
        )

    def data(self) -> bytes:
        """Return what came on the data stream that began last; b"" for none."""
        found = [
            bytes(octets)
            for (_, stream_id), octets in self._streams.items()
            if stream_id & UNIDIRECTIONAL and not octets.startswith(SETUP)
        ]
        return found[-1] if found else b""

    def replies(self) -> Iterator[bytes]:
        """Yield what came on request streams, one after the other."""
        for (_, stream_id), octets in self._streams.items():
            if not stream_id & UNIDIRECTIONAL:
                yield bytes(octets)

    def sent(self) -> bytes:
        """Return what we wrote on the request stream that was begun last."""
        return bytes(list(self._sent.values())[-1])

    def reply(self, position: int = -1) -> bytes:
        """Return what came on one request stream; the last one by default, b"" for none."""
        found = list(self.replies())
        return found[position] if found else b""
