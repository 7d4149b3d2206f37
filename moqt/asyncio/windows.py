"""Receive windows that grow while they are what limits the peer, up to a cap.

A window of W octets lets a peer send W a round trip. When the application takes half of it within
one round trip, the path carries more than half of what the window allows, and the window doubles:
so it ends at two to four times bandwidth x that delay, which is what a sender that doubles its rate
each round trip needs. It never shrinks, and counts only what was consumed: a slow reader keeps the
window that it began with, and no window is above its cap.
"""

from __future__ import annotations


class ReceiveWindow:
    """`octets` is the window now; `consumed` lets it grow."""

    __slots__ = ("_consumed", "_max_octets", "_since", "octets")

    def __init__(self, octets: int, *, max_octets: int) -> None:
        self.octets = octets
        self._max_octets = max_octets
        self._consumed = 0
        self._since: float | None = None

    def is_due(self, octets: int) -> bool:
        """Count octets that were consumed; True once half a window was, and `look` is to be
        called."""
        self._consumed += octets
        return self._consumed * 2 >= self.octets and self.octets < self._max_octets

    def look(self, now: float, round_trip_s: float, *, most_octets: int | None = None) -> bool:
        """Double the window if half of it was consumed within a round trip; True: it grew.

        `most_octets`: no further than that.
        """
        since, self._since = self._since, now
        self._consumed = 0
        if since is None or now - since > round_trip_s:
            return False
        wider = min(self._max_octets, 2 * self.octets)
        if most_octets is not None:
            wider = min(wider, most_octets)
        if wider <= self.octets:
            return False
        self.octets = wider
        return True
