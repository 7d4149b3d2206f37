"""Which packets have come, so that none is taken twice (RFC 9000 12.3)."""

from __future__ import annotations

from aioquic.quic.recovery import QuicPacketNumberWindow

WINDOW_PACKETS = 4096
"""A packet whose number is so far below the largest received is taken for a duplicate. aioquic's
128 are 15 ms at 100 Mbit/s: what is later than that would have to be sent again and again."""


class ReceivedNumbers(QuicPacketNumberWindow):
    """Stands in for aioquic's window: an octet for each number rather than a set of numbers, which
    takes 200 times the memory, and a run of them is noted at once."""

    def __init__(self) -> None:  # nothing of the other's: all that it has is overridden
        self._came = bytearray(WINDOW_PACKETS)  # by the number's remainder
        self._end = 0  # one above the largest

    def add(self, packet_number: int) -> None:
        """Note a packet."""
        self.add_run(packet_number, packet_number + 1)

    def add_run(self, first: int, stop: int) -> None:
        """Note packets `first` to `stop` - 1."""
        end = self._end
        if stop > end:
            self._end = stop
            if first > end:
                self._set(max(end, stop - WINDOW_PACKETS), first, b"\0")
        self._set(max(first, self._end - WINDOW_PACKETS), stop, b"\1")

    def _set(self, first: int, stop: int, value: bytes) -> None:
        if first >= stop:
            return
        start = first % WINDOW_PACKETS
        there = min(stop - first, WINDOW_PACKETS - start)
        self._came[start : start + there] = value * there
        if rest := stop - first - there:
            self._came[:rest] = value * rest

    def __contains__(self, packet_number: int) -> bool:
        return packet_number < self._end - WINDOW_PACKETS or (
            packet_number < self._end and bool(self._came[packet_number % WINDOW_PACKETS])
        )
