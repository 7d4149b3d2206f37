"""Reading CBOR (RFC 8949) that anyone may have sent: plain values, tags left as they are.

cbor2 gives known tags a meaning while it reads (regular expressions, e-mails, decimals of any
exponent), so that octets of a peer choose which code runs and which of many errors it raises.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

__all__ = ["MAX_DEPTH", "CborError", "Tagged", "parse"]

MAX_DEPTH = 16
"""Arrays, maps and tags inside each other; deeper values are refused."""

_INDEFINITE = 31
_BREAK = 0xFF
_SIMPLE = {20: False, 21: True, 22: None}
_FLOATS = {25: struct.Struct(">e"), 26: struct.Struct(">f"), 27: struct.Struct(">d")}


class CborError(ValueError):
    """Octets are not one CBOR item, or hold something that is not read here."""


@dataclass(frozen=True, slots=True)
class Tagged:
    """A value behind a tag, whatever the tag means."""

    number: int
    value: Any


def parse(octets: bytes | memoryview) -> Any:
    """Return the one item that `octets` are, made of Python's plain types and `Tagged`.

    Keys of maps are integers or text, as COSE labels are, and no two are equal. Work and memory are
    bounded by the length. Raises: CborError.
    """
    reader = _Reader(memoryview(octets))
    value = reader.item(0)
    if reader.at != len(octets):
        raise CborError(f"{len(octets) - reader.at} octets more")
    return value


class _Reader:
    def __init__(self, view: memoryview) -> None:
        self.view = view
        self.at = 0

    def item(self, depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise CborError(f"nested deeper than {MAX_DEPTH}")
        first = self._take(1)[0]
        major, info = first >> 5, first & 0x1F
        match major:
            case 0:
                return self._argument(info)
            case 1:
                return -1 - self._argument(info)
            case 2:
                return self._string(major, info)
            case 3:
                return self._text(self._string(major, info))
            case 4:
                return [self.item(depth + 1) for _ in self._elements(info)]
            case 5:
                return self._map(info, depth)
            case 6:
                number = self._argument(info)
                return Tagged(number, self.item(depth + 1))
        if info in _FLOATS:
            return _FLOATS[info].unpack(self._take(_FLOATS[info].size))[0]
        if info in _SIMPLE:
            return _SIMPLE[info]
        raise CborError(f"octet 0x{first:02x} at {self.at - 1} begins nothing that is read here")

    def _take(self, length: int) -> memoryview:
        end = self.at + length
        if end > len(self.view):
            raise CborError(f"it ends at octet {len(self.view)}, inside an item")
        taken = self.view[self.at : end]
        self.at = end
        return taken

    def _argument(self, info: int) -> int:
        if info < 24:
            return info
        if info > 27:
            raise CborError(f"additional information {info} at {self.at - 1} is not a number")
        return int.from_bytes(self._take(1 << info - 24), "big")

    def _elements(self, info: int) -> Any:
        """Yield once for each element of an array or map."""
        if info != _INDEFINITE:
            for _ in range(self._argument(info)):
                yield
            return
        while not self._is_broken():
            yield

    def _is_broken(self) -> bool:
        if self._take(1)[0] == _BREAK:
            return True
        self.at -= 1
        return False

    def _string(self, major: int, info: int) -> bytes:
        if info != _INDEFINITE:
            return bytes(self._take(self._argument(info)))
        chunks = []
        while not self._is_broken():
            first = self._take(1)[0]
            if first >> 5 != major:
                raise CborError(f"a string at {self.at - 1} has a piece of another type")
            chunks.append(self._take(self._argument(first & 0x1F)))
        return b"".join(chunks)

    def _text(self, octets: bytes) -> str:
        try:
            return octets.decode()
        except UnicodeDecodeError as error:
            raise CborError(f"text before octet {self.at} is not UTF-8") from error

    def _map(self, info: int, depth: int) -> dict[int | str, Any]:
        members: dict[int | str, Any] = {}
        for _ in self._elements(info):
            key = self.item(depth + 1)
            if type(key) not in (int, str):
                raise CborError(f"a key before octet {self.at} is neither an integer nor text")
            if key in members:
                raise CborError(f"key {key!r} is given twice")
            members[key] = self.item(depth + 1)
        return members
