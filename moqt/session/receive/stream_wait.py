"""Waits for a data stream that a FETCH or a fill was promised, as long as anything is under way."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from moqt.session.context import SessionContext
    from moqt.session.timers import Timer

__all__ = ["StreamWait"]


class StreamWait:
    """Calls `give_up` when nothing at all came for `stream_header_timeout_s`.

    A publisher may send what is more urgent first, for as long as that takes; a session on which
    nothing moves brings the stream no more.
    """

    __slots__ = ("_context", "_give_up", "_timer")

    def __init__(
        self, context: SessionContext, give_up: Callable[[float], None], *, now: float
    ) -> None:
        self._context = context
        self._give_up = give_up
        self._timer: Timer | None = None
        self._wait(now)

    def cancel(self) -> None:
        """The stream is there, or not awaited any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _progress(self) -> tuple[int, int]:
        stats = self._context.stats
        return stats.streams_received, stats.octets_received

    def _wait(self, now: float) -> None:
        before = self._progress()
        self._timer = self._context.timers.at(
            now + self._context.config.stream_header_timeout_s,
            lambda later: self._check(before, later),
        )

    def _check(self, before: tuple[int, int], now: float) -> None:
        self._timer = None
        if self._progress() == before:
            self._give_up(now)
        else:
            self._wait(now)
