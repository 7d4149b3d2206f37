"""Keeps a subscription open once its track has ended, for a peer that needs it (see `quirks`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moqt.session.quirks import fetches_beside_subscription

if TYPE_CHECKING:
    from collections.abc import Callable

    from moqt.session.context import SessionContext
    from moqt.session.timers import Timer

__all__ = ["Linger"]


class Linger:
    """Whether PUBLISH_DONE of one subscription waits yet, for `ended_linger_s` at most."""

    __slots__ = ("_context", "_end", "_is_over", "_timer")

    def __init__(self, context: SessionContext, end: Callable[[], None]) -> None:
        """`end` is called once when the time is over."""
        self._context = context
        self._end = end
        self._timer: Timer | None = None
        self._is_over = False

    def holds(self) -> bool:
        """Return whether PUBLISH_DONE waits; the time runs from the first call on."""
        clock = self._context.clock
        if self._is_over or clock is None:
            return False
        if self._timer is None:
            if not fetches_beside_subscription(self._context.peer_options):
                return False
            deadline = clock() + self._context.config.ended_linger_s
            self._timer = self._context.timers.at(deadline, self._expire)
        return True

    def _expire(self, now: float) -> None:
        self._is_over = True
        self._end()

    def cancel(self) -> None:
        """The subscription is over."""
        self._is_over = True
        if self._timer is not None:
            self._timer.cancel()
