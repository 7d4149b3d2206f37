"""How long a Subgroup may stay unacknowledged: SUBGROUP_DELIVERY_TIMEOUT (MOQT-22 5.2)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from moqt.session.publish.timeouts import NEVER, smaller_ms

if TYPE_CHECKING:
    from moqt.session.context import SessionContext
    from moqt.session.publish.outbound import SubgroupCursor
    from moqt.session.timers import Timer

__all__ = ["SubgroupDeadlines"]

_SWEEP_FROM: Final = 64
"""Timers from which on those of acknowledged streams are looked for."""


class SubgroupDeadlines:
    """SUBGROUP_DELIVERY_TIMEOUT: one timer for each stream of a Subgroup that is complete.

    It runs on when the stream has ended by FIN and its subscription is over: what QUIC has not
    delivered by then is given up. Streams that were acknowledged are forgotten once they are the
    majority, so that no more are held than QUIC has streams open, twice, and
    `_SWEEP_FROM`.
    """

    def __init__(self, context: SessionContext) -> None:
        self._context = context
        self._timers: dict[SubgroupCursor, Timer] = {}
        self._sweep_at = _SWEEP_FROM

    def __len__(self) -> int:
        return len(self._timers)

    def watch(self, cursor: SubgroupCursor) -> None:
        """Set the timer for a cursor whose Subgroup is complete, as its timeouts are now."""
        self.drop(cursor)
        subgroup = cursor.subgroup
        limit_ms = smaller_ms(subgroup.timeouts.subgroup_ms, cursor.timeouts.subgroup_ms)
        if not limit_ms or subgroup.closed_at == NEVER:
            return
        if len(self._timers) >= self._sweep_at:
            self._sweep()
        self._timers[cursor] = self._context.timers.at(
            subgroup.closed_at + limit_ms / 1000, lambda _: self._expire(cursor)
        )
        self._context.wake()  # it may be set between two inputs

    def drop(self, cursor: SubgroupCursor) -> None:
        """The stream was reset, or will never be opened."""
        timer = self._timers.pop(cursor, None)
        if timer is not None:
            timer.cancel()

    def _expire(self, cursor: SubgroupCursor) -> None:
        del self._timers[cursor]
        cursor.expire()

    def _sweep(self) -> None:
        transport = self._context.transport
        for cursor in list(self._timers):
            if cursor.is_finished and (
                cursor.stream_id is None or transport.is_acknowledged(cursor.stream_id)
            ):
                self.drop(cursor)
        self._sweep_at = max(_SWEEP_FROM, 2 * len(self._timers))
