"""Header protection of many packets at once (RFC 9001 5.4), for reader and writer."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
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
