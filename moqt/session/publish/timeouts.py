"""How late an Object may be: both delivery timeouts, from whatever names them (MOQT-22 5.2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from moqt.wire.properties import ObjectProperties

if TYPE_CHECKING:
    from moqt.wire.properties import TrackProperties

__all__ = ["NEVER", "NO_TIMEOUTS", "DeliveryTimeouts", "smaller_ms"]


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
        return self.updated(found.object_delivery_timeout_ms, found.subgroup_delivery_timeout_ms)

    def updated(self, object_ms: int | None, subgroup_ms: int | None) -> DeliveryTimeouts:
        """Return these with what a message or property names; None keeps a value."""
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
