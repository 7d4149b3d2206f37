"""How many packets the bulk path took part in: the evidence that cases ran over it."""

from __future__ import annotations

from dataclasses import dataclass

from moqt.asyncio.bulk.connection import BulkConnection
from moqt.asyncio.bulk.reader import BulkReader

__all__ = ["BulkCount", "BulkPackets"]


@dataclass(frozen=True, slots=True)
class BulkPackets:
    """Packets that the bulk path wrote, opened, and left unopened to aioquic."""

    written: int = 0
    opened: int = 0
    left: int = 0

    def __add__(self, other: BulkPackets) -> BulkPackets:
        return BulkPackets(
            self.written + other.written, self.opened + other.opened, self.left + other.left
        )


class BulkCount:
    """Counts those of all connections of this process while it is entered."""

    def __init__(self) -> None:
        self.packets = BulkPackets()
        self._note_sent = BulkConnection.note_sent
        self._note_numbers = BulkReader._note_numbers
        self._leave_to_aioquic = BulkReader._leave_to_aioquic

    def __enter__(self) -> BulkCount:
        count, on_sent, on_numbers = self, self._note_sent, self._note_numbers
        on_left = self._leave_to_aioquic

        def note_sent(
            connection: BulkConnection,
            first_number: int,
            next_number: int,
            octets: int,
            now: float,
        ) -> None:
            count.packets += BulkPackets(written=next_number - first_number)
            on_sent(connection, first_number, next_number, octets, now)

        def note_numbers(reader: BulkReader, now: float) -> None:
            count.packets += BulkPackets(opened=reader._next_number - reader._first_number)
            on_numbers(reader, now)

        def leave_to_aioquic(reader: BulkReader, datagram: memoryview, now: float) -> None:
            count.packets += BulkPackets(left=1)
            on_left(reader, datagram, now)

        BulkConnection.note_sent = note_sent  # type: ignore[method-assign,assignment]
        BulkReader._note_numbers = note_numbers  # type: ignore[method-assign,assignment]
        BulkReader._leave_to_aioquic = leave_to_aioquic  # type: ignore[method-assign,assignment]
        return self

    def __exit__(self, *_: object) -> None:
        BulkConnection.note_sent = self._note_sent  # type: ignore[method-assign]
        BulkReader._note_numbers = self._note_numbers  # type: ignore[method-assign]
        BulkReader._leave_to_aioquic = self._leave_to_aioquic  # type: ignore[method-assign]
