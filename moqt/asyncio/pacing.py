"""A pacer whose bursts a millisecond timer can keep.

aioquic's own pacer lets at most 16 datagrams out, then asks for a timer of some tens of
microseconds. asyncio rounds that up to a millisecond; uvloop fires early and spins. This one is a
token bucket in octets that holds `BURST_S` of the rate, and never asks for less than a millisecond.
So a slow path, whose queue may be short, gets short bursts, and a fast one pays for few timers. Who
was held back and comes late, because the machine is busy, may catch up on `LATE_S`: the path's
queue has drained meanwhile. Who had nothing to send may not.

The rate is 1.25 congestion windows a round trip (RFC 9002 7.7), so that pacing is never what limits
the connection; two while the window doubles each round trip, which it could not at less. Within a
machine nothing is paced: there is no queue but the receiver's buffer, and each pause is a wake-up.
"""

from __future__ import annotations

RATE_FACTOR = 1.25
"""Congestion windows a round trip (RFC 9002 7.7)."""

DOUBLING_RATE_FACTOR = 2.0
"""The same while the window doubles."""

BURST_S = 0.002
"""Of the rate, what may leave at once."""

LATE_S = 0.010
"""The same for who was held back and comes late."""

SMALLEST_BURST_OCTETS = 16 * 1500
SMALLEST_BURST_DATAGRAMS = 16
"""A burst is at least so many octets, or datagrams if they are larger, however slow the path: as
aioquic's own."""

TICK_S = 0.001
"""No timer is asked for less."""

MIN_RTT_S = 0.0005
"""A shorter round trip counts as so long: on loopback the rate would be no limit."""

UNPACED_BURST_OCTETS = 128 * 1024
"""What may leave at once while there is no rate yet."""

LARGEST_NETWORK_DATAGRAM_OCTETS = 16 * 1024
"""No network carries larger ones, jumbo frames included: the path is within the machine."""

LOCAL_BURST_OCTETS = 4 * 1024 * 1024
"""What may leave at once on such a path."""


class BurstPacer:
    """Takes the place of `aioquic.quic.recovery.QuicPacketPacer`, with the same three methods, and
    `available` and `spend` for who sends many datagrams at once."""

    def __init__(self, *, max_datagram_size: int) -> None:
        self.max_datagram_size = max_datagram_size
        """Of what aioquic writes."""
        self.path_datagram_octets = max_datagram_size
        """What the path carries, which may be more; the next `update_rate` heeds it."""
        self.is_doubling = False
        """Whether the congestion window doubles each round trip; the next `update_rate` heeds
        it."""
        self.rate: float | None = None
        """Octets a second; None until there is a round trip to go by: nothing is held back."""
        self.burst_octets = UNPACED_BURST_OCTETS
        """What may leave at once after a pause."""
        self._tokens = 0.0
        self._is_held = False
        self._filled_at = 0.0

    def update_rate(self, congestion_window: int, smoothed_rtt: float) -> None:
        """Follow the congestion controller: octets, seconds."""
        if self.path_datagram_octets > LARGEST_NETWORK_DATAGRAM_OCTETS:
            self.rate, self.burst_octets = None, LOCAL_BURST_OCTETS
            return
        factor = DOUBLING_RATE_FACTOR if self.is_doubling else RATE_FACTOR
        self.rate = factor * congestion_window / max(smoothed_rtt, MIN_RTT_S)
        self.burst_octets = max(
            SMALLEST_BURST_OCTETS,
            SMALLEST_BURST_DATAGRAMS * self.path_datagram_octets,
            int(self.rate * BURST_S),
        )

    def next_send_time(self, now: float) -> float | None:
        """Return None when a datagram may go now, else when to ask again."""
        rate = self.rate
        if rate is None:
            return None
        if now > self._filled_at:
            most = max(self.burst_octets, LATE_S * rate) if self._is_held else self.burst_octets
            self._tokens = min(most, self._tokens + (now - self._filled_at) * rate)
            self._filled_at = now
        self._is_held = self._tokens <= 0
        if not self._is_held:
            return None
        return now + max(TICK_S, -self._tokens / rate)

    def available(self, now: float) -> int:
        """Octets that may go now, at most `burst_octets` unless held back before; positive exactly
        when `next_send_time` returns None. The last datagram may exceed it: the next ones wait."""
        if self.rate is None:
            return self.burst_octets
        return max(1, int(self._tokens)) if self.next_send_time(now) is None else 0

    def spend(self, octets: int, now: float) -> None:
        """Account for `octets` in any number of datagrams, sent at `now`."""
        if self.rate is not None:
            self._tokens -= octets

    def update_after_send(self, now: float) -> None:
        """Account for one datagram, sent at `now`."""
        if self.rate is not None:
            self._tokens -= self.max_datagram_size
