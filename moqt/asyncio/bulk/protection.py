"""What reader and writer have in common: header protection of many packets at once (RFC 9001 5.4),
and octets put together."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aioquic._crypto import HeaderProtection

SAMPLE_OCTETS = 16

TAG_OCTETS = 16
"""Of each AEAD that QUIC uses."""

_CHACHA20_PADDING = bytes(11)


def header_masks(protection: HeaderProtection, samples: bytes) -> bytes:
    """Return the masks for samples, both 16 octets apart; the first five octets of each count."""
    if protection._is_chacha20:
        starts = range(0, len(samples), SAMPLE_OCTETS)
        found = [protection._mask(samples[at : at + SAMPLE_OCTETS]) for at in starts]
        return b"".join([mask + _CHACHA20_PADDING for mask in found])
    return protection._encryptor.update(samples)


def gather(scratch: memoryview, pieces: Sequence[memoryview | bytes]) -> memoryview:
    """Return the pieces one after another, in `scratch`.

    Joined to `bytes`, a batch would be just large enough for the allocator to ask the system for
    memory, and give it back, each time.
    """
    at = 0
    for piece in pieces:
        end = at + len(piece)
        scratch[at:end] = piece
        at = end
    return scratch[:at]
