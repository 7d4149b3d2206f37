"""A pacer whose bursts a millisecond timer can keep.

aioquic's own pacer lets at most 16 datagrams out, then asks for a timer of some tens of
microseconds. asyncio rounds that up to a millisecond; uvloop fires early and spins. This one is a
token bucket in octets that holds 128 KiB, or 2 ms worth of the rate if that is more, and never asks
for less than a millisecond. The rate is 1.25 congestion windows a round trip (RFC 9002 7.7), so
that pacing is never what limits the connection.
"""

from __future__ import annotations

RATE_FACTOR = 1.25
BURST_OCTETS = 128 * 1024
BURST_S = 0.002
TICK_S = 0.001
MIN_RTT_S = 0.0005


class BurstPacer:
    """Takes the place of `aioquic.quic.recovery.QuicPacketPacer`, with the same three methods."""

    def __init__(self, *, max_datagram_size: int) -> None:
        self.max_datagram_size = max_datagram_size
        self.rate: float | None = None
        """Octets a second; None until there is a round trip to go by: nothing is held back."""
        self.burst_octets = BURST_OCTETS
        """What may leave at once after a pause."""
        self._tokens = float(BURST_OCTETS)
        self._filled_at = 0.0

    def update_rate(self, congestion_window: int, smoothed_rtt: float) -> None:
        """Follow the congestion controller: octets, seconds."""
        self.rate = RATE_FACTOR * congestion_window / max(smoothed_rtt, MIN_RTT_S)
        self.burst_octets = max(BURST_OCTETS, int(self.rate * BURST_S))

    def next_send_time(self, now: float) -> float | None:
        """Return None when a datagram may go now, else when to ask again."""
        rate = self.rate
        if rate is None:
            return None
        if now > self._filled_at:
            self._tokens = min(self.burst_octets, self._tokens + (now - self._filled_at) * rate)
            self._filled_at = now
        if self._tokens >= 0:
            return None
        return now + max(TICK_S, -self._tokens / rate)

    def update_after_send(self, now: float) -> None:
        """Account for one datagram, sent at `now`."""
        if self.rate is not None:
            self._tokens -= self.max_datagram_size
