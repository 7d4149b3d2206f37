"""Octets of one stream that nobody may read yet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["MAX_PIECES", "HeldOctets"]

MAX_PIECES: Final = 4096
"""Pieces with gaps between them that one stream may come in; a stream in more is given up."""


class HeldOctets:
    """Copies of what came, in order of arrival.

    What continues the piece before is joined to it, so that a peer who sends octet by octet takes
    no more memory than octets.
    """

    __slots__ = ("_fin", "_offsets", "_pieces", "octets")

    def __init__(self) -> None:
        self._offsets: list[int] = []
        self._pieces: list[bytearray] = []
        self._fin = -1  # the piece that the stream ends with
        self.octets = 0

    def __bool__(self) -> bool:
        return bool(self._pieces)

    def __iter__(self) -> Iterator[tuple[int, memoryview, bool]]:
        """Yield offset, octets, and whether the stream ends with them."""
        for number, (offset, piece) in enumerate(zip(self._offsets, self._pieces, strict=True)):
            yield offset, memoryview(piece), number == self._fin

    def add(self, offset: int, data: memoryview | bytes, fin: bool) -> bool:
        """Keep a copy; False beyond MAX_PIECES."""
        pieces = self._pieces
        if not pieces or offset != self._offsets[-1] + len(pieces[-1]):
            if len(pieces) >= MAX_PIECES:
                return False
            self._offsets.append(offset)
            pieces.append(bytearray())
        pieces[-1] += data
        self.octets += len(data)
        if fin:
            self._fin = len(pieces) - 1
        return True
