"""Request streams that arrive before the peer's SETUP (MOQT-22 6.3)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from moqt.session.context import SessionContext

__all__ = ["EarlyStreams"]


class _Receive(Protocol):
    def __call__(
        self, stream_id: int, offset: int, data: memoryview | bytes, fin: bool, now: float
    ) -> None:
        """Take octets of a request stream."""


class EarlyStreams:
    """Holds octets of request streams, uncredited, until SETUP says what may be in them.

    Bounded by `max_stray_streams` and `max_stray_octets`, counted beside those of data streams.
    """

    def __init__(self, context: SessionContext) -> None:
        self._config = context.config
        self._chunks: list[tuple[int, int, bytes, bool]] = []
        self._octets = 0

    def __bool__(self) -> bool:
        return bool(self._chunks)

    def hold(self, stream_id: int, offset: int, data: memoryview | bytes, fin: bool) -> bool:
        """Keep a copy; False when that would pass a limit: the stream is to be cancelled."""
        streams = {held for held, _, _, _ in self._chunks} | {stream_id}
        if (
            self._octets + len(data) > self._config.max_stray_octets
            or len(streams) > self._config.max_stray_streams
        ):
            self.drop(stream_id)
            return False
        self._chunks.append((stream_id, offset, bytes(data), fin))
        self._octets += len(data)
        return True

    def drop(self, stream_id: int) -> None:
        """Forget a stream."""
        self._chunks = [chunk for chunk in self._chunks if chunk[0] != stream_id]
        self._octets = sum(len(data) for _, _, data, _ in self._chunks)

    def release(self, receive: _Receive, now: float) -> None:
        """Give everything back, in order of arrival."""
        chunks, self._chunks, self._octets = self._chunks, [], 0
        for stream_id, offset, data, fin in chunks:
            receive(stream_id, offset, data, fin, now)
