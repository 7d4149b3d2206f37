"""Finding the datagram size that a path carries: RFC 8899 (DPLPMTUD) as RFC 9000 14.3 uses it.

A state machine without I/O and without a clock: it says which probe to send next, and is told what
became of it. Sizes are octets of UDP payload, times seconds of one monotonic clock.

- It begins with 1200, which the handshake has confirmed, and searches up to `limit`. Only a probe
  that was acknowledged raises `size`.
- The first two probes are out at once, of the largest and of the smallest plateau: the one finds
  what loopback and networks of jumbo frames carry, the other what the Internet does, in one round
  trip. A socket that refuses a probe (EMSGSIZE) answers at once, so the largest is soon one that
  its interface takes. Is that lost, the search goes up from plateau to plateau; between the last
  two it bisects, until the rest is not worth it.
- A size is given up after `MAX_PROBES` lost probes in a row (RFC 8899 5.1.2). The search is
  repeated after `RAISE_S`.
- Black holes (RFC 8899 4.3): when many large packets were lost and none arrives, or timeouts follow
  each other, probes of the size in use say whether the path still carries it. Timeouts, and a
  socket that refuses a packet, end its use until then. When all those probes are lost, 1200 it is,
  and the search begins anew after a pause, which doubles with each black hole within `RAISE_S`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["BASE_OCTETS", "PathMtu", "Probe", "tolerance"]

BASE_OCTETS = 1200
"""BASE_PLPMTU: what every QUIC path carries (RFC 9000 14)."""

PLATEAUS = (1452, 1472, 8952, 16336, 65488)
"""Ethernet with IPv6 and IPv4; jumbo frames of 9000; loopback of macOS and of Linux, with IPv6. Any
other limit, the peer's or the user's, is tried as well."""

MAX_PROBES = 3
"""Lost in a row before a size is given up (RFC 8899 5.1.2)."""

MAX_OUTSTANDING = 2
"""Probes on the way at once."""

RAISE_S = 600.0
"""PMTU_RAISE_TIMER: how long a result holds before a larger size is looked for (RFC 8899 5.1.1)."""

PAUSE_S = 1.0
"""After a black hole, before a new search; twice as long after each further one."""

SUSPICIOUS_LOSSES = 10
"""So many packets lost since one as large was acknowledged: the size is confirmed again."""

TOLERANCE_DIVISOR = 64
LEAST_TOLERANCE = 8


@dataclass(frozen=True, slots=True)
class Probe:
    """A datagram of `octets` to send, of PING and PADDING. `search` tells searches apart."""

    octets: int
    search: int


def tolerance(octets: int) -> int:
    """How much larger a datagram must be to be worth looking for: a 64th."""
    return max(LEAST_TOLERANCE, octets // TOLERANCE_DIVISOR)


class PathMtu:
    """The search on one path. `size` is what packets may take up now."""

    def __init__(self, *, limit: int) -> None:
        self._limit = limit
        self._search = 0
        self._pause_s = PAUSE_S
        self._paused_at: float | None = None
        self._begin(at=-math.inf)

    def _begin(self, *, at: float) -> None:
        self.size = BASE_OCTETS
        self._search += 1  # what is still out says nothing any more
        self._is_resting = False
        self._search_at = at
        self._ceiling = self._limit
        self._outstanding: set[int] = set()
        self._losses: dict[int, int] = {}
        self._confirming: int | None = None
        self._suspicious = 0
        self._largest_lost = 0

    @property
    def is_settled(self) -> bool:
        """Whether the search is over, and nothing puts its result in doubt."""
        return self._is_resting and self._confirming is None

    def lower_limit(self, octets: int) -> None:
        """Search no further than `octets`: the peer's max_udp_payload_size (RFC 9000 18.2)."""
        self._limit = max(BASE_OCTETS, min(self._limit, octets))
        self._ceiling = min(self._ceiling, self._limit)
        self.size = min(self.size, self._limit)

    def reset(self) -> None:
        """Another path is used from now on: nothing is known of it."""
        self._pause_s = PAUSE_S
        self._begin(at=-math.inf)

    # --- probes ---

    def next_probe(self, now: float) -> Probe | None:
        """Return the probe to send now; what becomes of it is to be told. None: there is none."""
        if len(self._outstanding) >= MAX_OUTSTANDING:
            return None
        if self._confirming is not None:
            wanted: tuple[int, ...] = (self._confirming,)
        elif now < self._search_at:
            return None
        elif self._is_narrowed_down:
            self._rest(now)
            return None
        else:
            self._is_resting = False
            wanted = self._untried()
        for octets in wanted:
            if octets not in self._outstanding:
                self._outstanding.add(octets)
                return Probe(octets, self._search)
        return None

    @property
    def _is_narrowed_down(self) -> bool:
        if self._ceiling == self._limit:  # not refuted
            return self.size >= self._limit
        return self._ceiling - self.size <= tolerance(self.size)

    def _rest(self, now: float) -> None:
        self._is_resting = True
        self._search_at = now + RAISE_S if self.size < self._limit else math.inf
        self._ceiling = self._limit
        self._losses.clear()

    def _untried(self) -> tuple[int, ...]:
        size, ceiling = self.size, self._ceiling
        plateaus = [octets for octets in PLATEAUS if size < octets <= ceiling]
        if ceiling == self._limit and ceiling not in plateaus:
            plateaus.append(ceiling)
        if plateaus:
            top, bottom = plateaus[-1], plateaus[0]
            return (bottom,) if top in self._losses else (top, bottom)
        return ((size + ceiling + 1) // 2,)

    def on_acked(self, probe: Probe) -> None:
        """The path carries it."""
        if probe.search != self._search:
            return
        octets = probe.octets
        self._outstanding.discard(octets)
        if octets >= self.size:
            self._suspicious = self._largest_lost = 0
        if self._confirming is not None and octets >= self._confirming:
            self._confirming = None
        self.size = max(self.size, octets)
        self._losses = {tried: lost for tried, lost in self._losses.items() if tried > self.size}

    def on_lost(self, probe: Probe, now: float) -> None:
        """It was declared lost, which doesn't yet say that the path doesn't carry it."""
        octets = probe.octets
        if probe.search != self._search or octets not in self._outstanding:
            return
        self._outstanding.discard(octets)
        self._losses[octets] = self._losses.get(octets, 0) + 1
        if self._losses[octets] >= MAX_PROBES:
            self._refute(octets, now)

    def on_too_large(self, octets: int | None, now: float) -> int | None:
        """The socket refused a datagram of so many octets. Return them if it was a probe.

        None: it doesn't say of how many; the largest one on the way is the likeliest. Again for one
        that is larger than `size` by now, nothing happens.
        """
        if octets is None:
            octets = max((self.size, *self._outstanding))
        if octets in self._outstanding:
            self._outstanding.discard(octets)
            self._refute(octets, now)
            return octets
        if octets <= self.size:
            self._suspect(in_use=False)
        return None

    def _refute(self, octets: int, now: float) -> None:
        if octets == self._confirming:
            self._fall_back(now)
        elif octets > self.size:
            self._ceiling = min(self._ceiling, octets - 1)
            self._losses = {
                tried: lost for tried, lost in self._losses.items() if tried <= self._ceiling
            }

    # --- black holes ---

    @property
    def is_suspicious(self) -> bool:
        """Whether large packets were lost, and none acknowledged since: `on_packet_acked` is
        needed."""
        return self._largest_lost > 0

    def on_packets_lost(self, sizes: Iterable[int]) -> None:
        """Packets of so many octets, none of them probes, were lost."""
        large = [octets for octets in sizes if octets > BASE_OCTETS]
        if large and self.size > BASE_OCTETS:
            self._largest_lost = max(self._largest_lost, *large)
            self._suspicious += len(large)
            if self._suspicious >= SUSPICIOUS_LOSSES:
                self._suspect(in_use=True)

    def on_packet_acked(self, octets: int) -> None:
        """A packet of so many octets arrived: what was lost and is not larger, was so by chance."""
        if octets >= self._largest_lost:
            self._suspicious = self._largest_lost = 0
            if self._confirming == self.size:
                self._confirming = None

    def doubt(self) -> None:
        """Nothing arrives any more, or the path may be another: 1200 until `size` is confirmed."""
        self._suspect(in_use=False)

    def _suspect(self, *, in_use: bool) -> None:
        if self._confirming is None and self.size > BASE_OCTETS:
            self._confirming = self.size
            self._losses.pop(self.size, None)
            self._suspicious = 0
        if not in_use:
            self.size = BASE_OCTETS

    def _fall_back(self, now: float) -> None:
        if self._paused_at is not None and now - self._paused_at < RAISE_S:
            self._pause_s = min(2 * self._pause_s, RAISE_S)
        else:
            self._pause_s = PAUSE_S
        self._paused_at = now
        self._begin(at=now + self._pause_s)
