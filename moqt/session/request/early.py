"""Request streams that arrive before the peer's SETUP (MOQT-22 6.3)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from moqt.session.receive.held import HeldOctets

if TYPE_CHECKING:
    from moqt.session.context import SessionContext

__all__ = ["EarlyStreams"]


if TYPE_CHECKING:

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
        self.streams: dict[int, HeldOctets] = {}
        """Those that wait, by stream ID."""
        self._octets = 0

    def hold(self, stream_id: int, offset: int, data: memoryview | bytes, fin: bool) -> bool:
        """Keep a copy; False when that would pass a limit: the stream is to be cancelled."""
        held = self.streams.get(stream_id)
        if held is None:
            if len(self.streams) >= self._config.max_stray_streams:
                return False
            held = self.streams[stream_id] = HeldOctets()
        if self._octets + len(data) > self._config.max_stray_octets or not held.add(
            offset, data, fin
        ):
            self.drop(stream_id)
            return False
        self._octets += len(data)
        return True

    def drop(self, stream_id: int) -> None:
        """Forget a stream."""
        held = self.streams.pop(stream_id, None)
        if held is not None:
            self._octets -= held.octets

    def release(self, receive: _Receive, now: float) -> None:
        """Give everything back, the oldest stream first."""
        streams, self.streams, self._octets = self.streams, {}, 0
        for stream_id, held in streams.items():
            for offset, data, fin in held:
                receive(stream_id, offset, data, fin, now)
