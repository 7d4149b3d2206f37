"""What one connection gave to its socket and got from it: counted once a run, never by packet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moqt.asyncio.endpoint import Datagram

__all__ = ["Traffic"]


@dataclass(slots=True)
class Traffic:
    """Counters of a driver. Octets are UDP payload.

    `datagrams_sent`, `octets_sent`: handed to the socket, which may drop them.
    `datagrams_received`, `octets_received`: given to the connection, whatever it made of them.
    `wakeups`: how often the driver worked. `overflows`: how often the socket's buffer was full.
    """

    datagrams_sent: int = 0
    octets_sent: int = 0
    datagrams_received: int = 0
    octets_received: int = 0
    wakeups: int = 0
    overflows: int = 0

    def note_received(self, octets: int, segment_octets: int) -> None:
        """Count datagrams of so many octets each, of which the last may be shorter."""
        self.datagrams_received += -(-octets // segment_octets)
        self.octets_received += octets

    def note_sent(self, octets: int, segment_octets: int) -> None:
        """Count datagrams of so many octets each, of which the last may be shorter."""
        self.datagrams_sent += -(-octets // segment_octets)
        self.octets_sent += octets

    def note_list_sent(self, datagrams: Sequence[Datagram]) -> None:
        """Count datagrams of any size: those that aioquic's own code built, one by one."""
        self.datagrams_sent += len(datagrams)
        self.octets_sent += sum([len(data) for data, _ in datagrams])
