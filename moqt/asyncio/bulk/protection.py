"""Header protection of many packets at once (RFC 9001 5.4)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aioquic._crypto import HeaderProtection

SAMPLE_OCTETS = 16

TAG_OCTETS = 16
"""Of each AEAD that QUIC uses."""

_CHACHA20_PADDING = bytes(11)


def header_masks(protection: HeaderProtection, samples: Sequence[memoryview | bytearray]) -> bytes:
    """Return a mask for each sample, 16 octets apart; the first five octets of each count."""
    if protection._is_chacha20:
        return b"".join([protection._mask(bytes(one)) + _CHACHA20_PADDING for one in samples])
    return protection._encryptor.update(b"".join(samples))
