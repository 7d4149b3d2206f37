"""CUBIC (RFC 9438) with HyStart++ (RFC 9406), at a cost per ACK rather than per packet.

aioquic's own controller grows its window for packets that were sent before a loss, reduces it from
the octets in flight, and does all its maths for each acknowledged packet. Here a packet costs three
additions; the window is moved once an ACK, in `on_rtt_measurement`:

- slow start by the octets acknowledged, until the round trips of a round grow (HyStart++), then at
  a quarter of that for five rounds, and back if the growth was a mistake;
- congestion avoidance by RFC 9438 4.2 to 4.5: the larger of the cubic and the Reno-friendly window;
- neither while the window is not what limits the sender (RFC 9002 7.8): the cubic's clock stands
  still meanwhile, so a pause is not followed by a leap;
- a congestion event, at most one a round trip, multiplies the window by 0.7; what turns out to
  have been none is undone (RFC 9438 4.9.2), which `moqt.asyncio.recovery` finds out.

Windows are octets, times seconds. `register` makes it known to aioquic as `NAME`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aioquic.quic.congestion.base import (
    K_INITIAL_WINDOW,
    K_MINIMUM_WINDOW,
    QuicCongestionControl,
    register_congestion_control,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aioquic.quic.packet_builder import QuicSentPacket

NAME = "moqt-cubic"

BETA = 0.7
"""RFC 9438 4.6: what is left of the window after a loss."""

C = 0.4
"""RFC 9438 5.1: segments / s^3."""

RENO_ALPHA = 3 * (1 - BETA) / (1 + BETA)
"""RFC 9438 4.3: as fast as Reno on average, with BETA."""

INITIAL_WINDOW_OCTETS = 14720
"""RFC 9002 7.2: the first window is ten datagrams, but no more than this, or than two."""

BURST_SLACK_DATAGRAMS = 3
"""In flight up to so much less than the window still counts as a window that limits."""

MIN_RTT_THRESHOLD_S = 0.004
MAX_RTT_THRESHOLD_S = 0.016
RTT_DIVISOR = 8
RTT_SAMPLES = 8
SLOW_GROWTH_DIVISOR = 4
SLOW_ROUNDS = 5
"""RFC 9406 4.3, where they are MIN_RTT_THRESH, MAX_RTT_THRESH, MIN_RTT_DIVISOR, N_RTT_SAMPLE,
CSS_GROWTH_DIVISOR and CSS_ROUNDS."""

FOREVER_S = float("inf")


@dataclass(frozen=True, slots=True)
class _Before:
    """The state that a congestion event changed."""

    congestion_window: int
    ssthresh: int | None
    w_max: float
    k: float
    epoch_began_at: float | None
    w_reno: float
    reno_window: int


class HyStart:
    """When slow start has found the path's rate, by round trips that grow (RFC 9406 4.2).

    RFC 9406 compares the least of a round's first samples with that of the round before, and so
    sees a queue when it has lasted for a round, in which the window has doubled. Here each
    `RTT_SAMPLES` samples in a row that take an eighth of a round are compared, which is when it
    grows.
    """

    __slots__ = (
        "_base_rtt",
        "_few_began_at",
        "_few_min",
        "_last_round_min",
        "_round_began_at",
        "_round_min",
        "_samples",
        "_slow_rounds_left",
    )

    def __init__(self) -> None:
        self._round_began_at = 0.0
        self._last_round_min = FOREVER_S
        self._round_min = FOREVER_S
        self._samples = 0
        self._few_min = FOREVER_S
        self._few_began_at = 0.0
        self._base_rtt = FOREVER_S
        self._slow_rounds_left = 0

    @property
    def is_slow(self) -> bool:
        """Whether growth is slowed down, to see whether the path is really full (CSS)."""
        return self._slow_rounds_left > 0

    def on_sample(self, *, now: float, rtt: float) -> bool:
        """Take a round trip of a packet acknowledged now; True: slow start is over."""
        if now - rtt >= self._round_began_at:  # sent in this round, acknowledged: the next begins
            self._round_began_at = now
            self._last_round_min = self._round_min
            self._round_min = FOREVER_S
            if self.is_slow:
                self._slow_rounds_left -= 1
                if self._slow_rounds_left == 0:
                    return True
        self._round_min = min(self._round_min, rtt)
        if self._samples == 0:
            self._few_min, self._few_began_at = rtt, now
        self._samples += 1
        self._few_min = min(self._few_min, rtt)
        if self._samples < RTT_SAMPLES or now - self._few_began_at < rtt / RTT_DIVISOR:
            return False
        self._samples = 0
        if self.is_slow:
            if self._few_min < self._base_rtt:  # it was no queue after all
                self._slow_rounds_left = 0
        elif self._last_round_min < FOREVER_S:
            threshold = max(
                MIN_RTT_THRESHOLD_S, min(self._last_round_min / RTT_DIVISOR, MAX_RTT_THRESHOLD_S)
            )
            if self._few_min >= self._last_round_min + threshold:
                self._base_rtt = self._few_min
                self._slow_rounds_left = SLOW_ROUNDS
        return False


class Cubic(QuicCongestionControl):
    """aioquic's `QuicCongestionControl`: `bytes_in_flight`, `congestion_window`, `ssthresh`."""

    def __init__(self, *, max_datagram_size: int) -> None:
        super().__init__(max_datagram_size=max_datagram_size)
        self.bytes_in_flight = 0
        self.congestion_window = 0
        self.ssthresh = None
        self._mds = max_datagram_size
        self._recovery_began_at = 0.0
        """Packets sent until then belong to the last congestion event."""
        self._acked = 0
        """Octets sent after it and acknowledged, that the window has not grown by yet."""
        self._updated_at = 0.0
        self._peak = 0
        """The most that was in flight in this round trip, which began at `_peak_since`."""
        self._peak_since = 0.0
        self._hystart = HyStart()
        self._srtt = 0.0
        self._w_max = 0.0
        self._k = 0.0
        self._epoch_began_at: float | None = None
        self._w_reno = 0.0
        self._reno_window = 0
        """The window at the epoch's loss: beyond it Reno's own rate of growth applies."""
        self._before: _Before | None = None
        self._max_datagram_size = max_datagram_size

    @property
    def _max_datagram_size(self) -> int:  # aioquic's name for it
        return self._mds

    @_max_datagram_size.setter
    def _max_datagram_size(self, octets: int) -> None:
        """Follow the path's datagram size; RFC 9002 7.2: the first window follows, too."""
        self._mds = octets
        least = self._least_window
        if self.ssthresh is None:
            least = max(least, min(K_INITIAL_WINDOW * octets, INITIAL_WINDOW_OCTETS))
        self.congestion_window = max(self.congestion_window, least)

    @property
    def _least_window(self) -> int:
        return K_MINIMUM_WINDOW * self._mds

    @property
    def is_in_slow_start(self) -> bool:
        """Whether the window doubles each round trip."""
        return self.ssthresh is None or self.congestion_window < self.ssthresh

    # --- once a packet ---

    def on_packet_sent(self, *, packet: QuicSentPacket) -> None:
        """Count a packet that is in flight from now on."""
        self.bytes_in_flight += packet.sent_bytes

    def on_packet_acked(self, *, now: float, packet: QuicSentPacket) -> None:
        """Count a packet that has arrived; the window follows in `on_rtt_measurement`."""
        octets = packet.sent_bytes
        self.bytes_in_flight -= octets
        sent_at: Any = packet.sent_time  # no packet in flight is without
        if sent_at > self._recovery_began_at:
            self._acked += octets

    # --- once an ACK ---

    def on_rtt_measurement(self, *, now: float, rtt: float) -> None:
        """Move the window by what was acknowledged since the last call."""
        self._srtt = rtt if self._srtt == 0 else self._srtt * 0.875 + rtt * 0.125
        acked, self._acked = self._acked, 0
        elapsed, self._updated_at = now - self._updated_at, now
        window = self.congestion_window
        is_slow_start = self.is_in_slow_start
        if is_slow_start and self.ssthresh is None and self._hystart.on_sample(now=now, rtt=rtt):
            self.ssthresh = window
            is_slow_start = False
        if not acked:
            return
        # In flight falls by ACKs alone, so it was highest just before one. ACKs come in bunches:
        # what counts is the highest of a round trip.
        peak = self.bytes_in_flight + acked
        if now - rtt >= self._peak_since:
            self._peak_since, self._peak = now, peak
        else:
            self._peak = peak = max(peak, self._peak)
        if is_slow_start:
            if peak * 2 >= window:  # while the window doubles, what is in flight can't keep up
                self._grow_exponentially(acked)
        elif peak + max(BURST_SLACK_DATAGRAMS * self._mds, window // 8) >= window:
            self._grow_by_time(acked, now)
        elif self._epoch_began_at is not None:
            self._epoch_began_at += elapsed

    def _grow_exponentially(self, acked: int) -> None:
        if self.ssthresh is None:
            self.congestion_window += (
                acked // SLOW_GROWTH_DIVISOR if self._hystart.is_slow else acked
            )
        else:
            self.congestion_window = min(
                self.congestion_window + acked, max(self.ssthresh, self.congestion_window)
            )

    def _grow_by_time(self, acked: int, now: float) -> None:
        window = self.congestion_window
        if self._epoch_began_at is None:
            self._begin_epoch(now)
        assert self._epoch_began_at is not None
        t = now - self._epoch_began_at
        alpha = RENO_ALPHA if self._w_reno < self._reno_window else 1.0
        self._w_reno += alpha * self._mds * acked / window
        if self._w_cubic(t) < self._w_reno:
            self.congestion_window = max(window, int(self._w_reno))
            return
        target = min(max(window, self._w_cubic(t + self._srtt)), 1.5 * window)
        self.congestion_window = window + int((target - window) * min(1.0, acked / window))

    def _begin_epoch(self, now: float) -> None:
        window = self.congestion_window
        self._epoch_began_at = now
        self._w_reno = float(window)
        if self._w_max <= window:
            self._w_max = float(window)
        self._reno_window = max(self._reno_window, window)
        self._k = float(((self._w_max - window) / self._mds / C) ** (1 / 3))

    def _w_cubic(self, t: float) -> float:
        """RFC 9438 4.2, in octets."""
        return float(C * (t - self._k) ** 3 * self._mds + self._w_max)

    # --- losses ---

    def on_packets_expired(self, *, packets: Iterable[QuicSentPacket]) -> None:
        """Forget packets that are neither acknowledged nor lost."""
        for packet in packets:
            self.bytes_in_flight -= packet.sent_bytes

    def on_packets_lost(self, *, now: float, packets: Iterable[QuicSentPacket]) -> None:
        """Forget lost packets; reduce the window once a round trip."""
        last_sent_at = 0.0
        for packet in packets:
            self.bytes_in_flight -= packet.sent_bytes
            sent_at: Any = packet.sent_time
            last_sent_at = max(last_sent_at, sent_at)
        if last_sent_at <= self._recovery_began_at:
            return
        window = self.congestion_window
        self._before = _Before(
            window,
            self.ssthresh,
            self._w_max,
            self._k,
            self._epoch_began_at,
            self._w_reno,
            self._reno_window,
        )
        self._recovery_began_at = now
        self._acked = 0
        # Fast convergence (RFC 9438 4.7): below the last peak, leave room to others.
        self._w_max = window * (1 + BETA) / 2 if window < self._w_max else float(window)
        self._reno_window = window
        self.ssthresh = self.congestion_window = max(int(window * BETA), self._least_window)
        self._epoch_began_at = None

    def on_persistent_congestion(self) -> None:
        """Begin again: nothing arrived for a long time (RFC 9002 7.6.2)."""
        self.congestion_window = self._least_window
        self._recovery_began_at = 0.0
        self._epoch_began_at = None
        self._before = None

    def undo(self) -> bool:
        """The last congestion event was none: all its packets arrived. Returns False where there is
        nothing to undo."""
        before, self._before = self._before, None
        if before is None:
            return False
        self.congestion_window = max(self.congestion_window, before.congestion_window)
        self.ssthresh = before.ssthresh
        self._w_max = before.w_max
        self._k = before.k
        self._epoch_began_at = before.epoch_began_at
        self._w_reno = before.w_reno
        self._reno_window = before.reno_window
        self._recovery_began_at = 0.0
        return True

    def get_log_data(self) -> dict[str, Any]:
        """Return what qlog shows of it."""
        return {**super().get_log_data(), "cubic-wmax": int(self._w_max)}


def register() -> None:
    """Make it known to aioquic as `NAME`; again does no harm."""
    register_congestion_control(NAME, Cubic)
