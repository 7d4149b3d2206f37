"""How late an Object may be, and how long a Subgroup may stay unacknowledged (MOQT-22 5.2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from moqt.wire.properties import ObjectProperties

if TYPE_CHECKING:
    from moqt.session.context import SessionContext
    from moqt.session.outbound import SubgroupCursor
    from moqt.session.timers import Timer
    from moqt.wire.properties import TrackProperties

__all__ = ["NEVER", "NO_TIMEOUTS", "DeliveryTimeouts", "SubgroupDeadlines", "smaller_ms"]


@dataclass(frozen=True, slots=True)
class DeliveryTimeouts:
    """Both delivery timeouts, in milliseconds; 0: none."""

    object_ms: int = 0
    subgroup_ms: int = 0

    @classmethod
    def of_track(cls, properties: TrackProperties) -> DeliveryTimeouts:
        """Return what the Track Properties say."""
        return _of(properties.object_delivery_timeout_ms, properties.subgroup_delivery_timeout_ms)

    def overridden(self, properties: bytes) -> DeliveryTimeouts:
        """Return what the encoded properties of a Subgroup's first Object make of these."""
        found = ObjectProperties.parse(properties)
        object_ms, subgroup_ms = (
            found.object_delivery_timeout_ms,
            found.subgroup_delivery_timeout_ms,
        )
        return _of(
            self.object_ms if object_ms is None else object_ms,
            self.subgroup_ms if subgroup_ms is None else subgroup_ms,
        )

    def updated(self, object_ms: int | None, subgroup_ms: int | None) -> DeliveryTimeouts:
        """Return these with what a message names; None keeps a value."""
        return _of(
            self.object_ms if object_ms is None else object_ms,
            self.subgroup_ms if subgroup_ms is None else subgroup_ms,
        )

    def datagram_ms(self, other: DeliveryTimeouts) -> int:
        """Return what holds for an Object in a datagram: the smallest of all."""
        return smaller_ms(
            smaller_ms(self.object_ms, other.object_ms),
            smaller_ms(self.subgroup_ms, other.subgroup_ms),
        )


NO_TIMEOUTS: Final = DeliveryTimeouts()

NEVER: Final = float("inf")
"""The time of what was published without a clock: it is never late."""


def _of(object_ms: int | None, subgroup_ms: int | None) -> DeliveryTimeouts:
    # Always the same value for "none", so that the send path may compare by identity.
    if not object_ms and not subgroup_ms:
        return NO_TIMEOUTS
    return DeliveryTimeouts(object_ms or 0, subgroup_ms or 0)


def smaller_ms(one: int, other: int) -> int:
    """Return the smaller of two timeouts of which 0 is none."""
    return min(one, other) if one and other else one or other


class SubgroupDeadlines:
    """SUBGROUP_DELIVERY_TIMEOUT: one timer for each stream of a Subgroup that is complete.

    It runs on when the stream has ended by FIN and its subscription is over: what QUIC has not
    delivered by then is given up. Streams that were acknowledged are forgotten once they are the
    majority, so that no more are held than QUIC has streams open, twice, and 64.
    """

    def __init__(self, context: SessionContext) -> None:
        self._context = context
        self._timers: dict[SubgroupCursor, Timer] = {}
        self._sweep_at = 64

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
        self._sweep_at = max(64, 2 * len(self._timers))
