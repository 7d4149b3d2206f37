"""Octets of one stream that nobody may read yet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["MAX_PIECES", "HeldOctets"]

MAX_PIECES: Final = 4096
"""Pieces with gaps between them that one stream may come in; a stream in more is given up."""


class HeldOctets:
    """Copies of what came, in order of arrival; the first may be lent instead of copied.

    What continues the piece before is joined to it, so that a peer who sends octet by octet takes
    no more memory than octets.
    """

    __slots__ = ("_fin", "_lent", "_offsets", "_pieces", "octets")

    def __init__(self) -> None:
        self._offsets: list[int] = []
        self._pieces: list[bytearray] = []
        self._lent: tuple[int, memoryview, bool] | None = None
        self._fin = -1  # the piece that the stream ends with
        self.octets = 0

    def __bool__(self) -> bool:
        return self._lent is not None or bool(self._pieces)

    def __iter__(self) -> Iterator[tuple[int, memoryview, bool]]:
        """Yield offset, octets, and whether the stream ends with them."""
        if self._lent is not None:
            yield self._lent
        for number, (offset, piece) in enumerate(zip(self._offsets, self._pieces, strict=True)):
            yield offset, memoryview(piece), number == self._fin

    def lend(self, offset: int, data: memoryview | bytes, fin: bool) -> None:
        """Hold the first octets that come, uncopied until `own`."""
        self._lent = offset, memoryview(data), fin
        self.octets = len(data)

    def own(self) -> None:
        """Copy what was lent: it's valid no longer."""
        if self._lent is not None:
            lent, self._lent = self._lent, None
            self.octets = 0
            self.add(*lent)

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
