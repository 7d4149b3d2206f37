"""Octets of a stream in order, for streams that are read as a whole: control and requests."""

from __future__ import annotations


class Reassembly:
    """Turns disjoint ranges in any order into octets in order.

    What waits for a gap is a copy; flow control bounds it, since it is not credited before it is
    in order.
    """

    __slots__ = ("_ahead", "_final_size", "position")

    def __init__(self) -> None:
        self._ahead: dict[int, bytes] = {}
        self._final_size: int | None = None
        self.position = 0
        """How many octets have been given out."""

    @property
    def is_complete(self) -> bool:
        """True when everything up to the FIN has been given out."""
        return self._final_size == self.position

    def push(self, offset: int, data: memoryview | bytes, fin: bool) -> memoryview | bytes:
        """Take a range; return what is in order now, possibly nothing, valid as long as `data`."""
        if fin:
            self._final_size = offset + len(data)
        if offset != self.position:
            if len(data):
                self._ahead[offset] = bytes(data)
            return b""
        self.position += len(data)
        if not self._ahead:
            return data
        out = bytearray(data)
        while (more := self._ahead.pop(self.position, None)) is not None:
            out += more
            self.position += len(more)
        return bytes(out)
