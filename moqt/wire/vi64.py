"""The variable-length integer of MOQT: 1 to 9 octets, 64 bits (MOQT-22 8.1).

The number of leading one bits of the first octet says how many octets follow. This is not the
integer of RFC 9000, which only QUIC itself uses. Nothing else in this package writes integers.
"""

from __future__ import annotations

__all__ = ["LENGTHS", "MASKS", "MAX_OCTETS", "MAX_VI64", "decode", "encode", "encoded_length"]

MAX_VI64 = (1 << 64) - 1
"""The largest value."""

MAX_OCTETS = 9
"""The longest encoding, in octets."""


def _length(first: int) -> int:
    ones = 0
    while ones < 8 and first & (0x80 >> ones):
        ones += 1
    return ones + 1


LENGTHS: tuple[int, ...] = tuple(_length(first) for first in range(256))
"""Octets of the whole integer, by its first octet."""

MASKS: tuple[int, ...] = (0, *((1 << 7 * length) - 1 for length in range(1, 9)), MAX_VI64)
"""The value bits of an integer, by its length in octets."""

_ONE_OCTET = tuple(bytes([value]) for value in range(0x80))
_PREFIXES = tuple((0xFF << (9 - length) & 0xFF) << 8 * (length - 1) for length in range(1, 9))


def encoded_length(value: int) -> int:
    """Return how many octets the shortest form of `value` takes; ValueError beyond 64 bits."""
    if not 0 <= value <= MAX_VI64:
        raise ValueError(f"{value} is not in 0 .. 2^64-1 (MOQT-22 8.1)")
    return min(max(1, (value.bit_length() + 6) // 7), MAX_OCTETS)


def encode(value: int) -> bytes:
    """Return the shortest form of `value`; ValueError beyond 64 bits."""
    if 0 <= value < 0x80:
        return _ONE_OCTET[value]
    if 0x80 <= value < 0x4000:
        return (value | 0x8000).to_bytes(2, "big")
    if 0x4000 <= value < 0x200000:
        return (value | 0xC00000).to_bytes(3, "big")
    length = encoded_length(value)
    if length == MAX_OCTETS:
        return b"\xff" + value.to_bytes(8, "big")
    return (value | _PREFIXES[length - 1]).to_bytes(length, "big")


def decode(data: memoryview | bytes | bytearray, at: int = 0) -> tuple[int, int] | None:
    """Return the value at position `at` and the position behind it; None when octets are missing.

    A form that is longer than needed is legal.
    """
    if at >= len(data):
        return None
    first = data[at]
    if first < 0x80:
        return first, at + 1
    end = at + LENGTHS[first]
    if end > len(data):
        return None
    # What lengths and IDs mostly take; a slice for int.from_bytes costs three times as much.
    if first < 0xC0:
        return (first & 0x3F) << 8 | data[at + 1], end
    if first < 0xE0:
        return (first & 0x1F) << 16 | data[at + 1] << 8 | data[at + 2], end
    return int.from_bytes(data[at:end], "big") & MASKS[end - at], end
