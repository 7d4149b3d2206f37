"""Scope ID, Block Keys and Anchor Keys: what names content without showing it (kvsp-1, 2 and 3)."""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import numpy as np

from kvcs.errors import InvalidKey, InvalidTokens

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from kvcs.kvsp.descriptor import Descriptor

__all__ = ["ID_OCTETS", "Prefix", "Scope", "Tokens", "block_keys", "block_keys_sha256"]

ID_OCTETS = 32
"""Length of a Compatibility ID, Scope ID or Block Key."""

MIN_SCOPE_KEY_OCTETS = 16
MAX_SCOPE_KEY_OCTETS = 64

MAX_TOKEN_ID = 2**32 - 1

Tokens: TypeAlias = "Sequence[int] | NDArray[np.integer[Any]]"
"""Token ids; an integer array of one axis is taken without a loop."""


@dataclass(frozen=True, slots=True, repr=False)
class Scope:
    """A scope key, the secret that a set of producers and consumers shares (kvsp-1, 2).

    `key` has 16 to 64 octets. It is in no text that this object makes: repr shows the Scope ID.
    Raises: InvalidKey for another length.
    """

    key: bytes
    scope_id: bytes = field(init=False, compare=False)
    """HMAC-SHA-256(key, "kvsp-1 scope id"); 32 octets; public."""

    def __post_init__(self) -> None:
        if not isinstance(self.key, bytes):
            raise InvalidKey(f"a scope key is bytes, got {type(self.key).__name__}")
        if not MIN_SCOPE_KEY_OCTETS <= len(self.key) <= MAX_SCOPE_KEY_OCTETS:
            raise InvalidKey(
                f"a scope key has {MIN_SCOPE_KEY_OCTETS} to {MAX_SCOPE_KEY_OCTETS} octets, "
                f"got {len(self.key)}"
            )
        object.__setattr__(self, "scope_id", hmac.digest(self.key, b"kvsp-1 scope id", "sha256"))

    @classmethod
    def generate(cls) -> Self:
        """Return a new scope with a random key of 32 octets."""
        return cls(secrets.token_bytes(32))

    @classmethod
    def from_hex(cls, text: str) -> Self:
        """Return the scope whose key is `text` in hexadecimal."""
        try:
            return cls(bytes.fromhex(text.strip()))
        except ValueError as error:
            if isinstance(error, InvalidKey):
                raise
            raise InvalidKey(
                "a scope key in text form is hexadecimal digits, two an octet"
            ) from None

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> Self:
        """Return the scope whose key a file holds in hexadecimal. Raises: OSError, InvalidKey."""
        with Path(path).open("rb") as file:
            octets = file.read(4 * MAX_SCOPE_KEY_OCTETS)
        try:
            return cls.from_hex(octets.decode("ascii"))
        except UnicodeDecodeError:
            raise InvalidKey(f"{path}: not a scope key in hexadecimal") from None

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the key in hexadecimal to a new file that only its owner can read.

        Raises: FileExistsError rather than overwrite a key.
        """
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(self.key.hex() + "\n")

    def __repr__(self) -> str:
        return f"Scope(scope_id={self.scope_id.hex()}, key=...)"


def _token_octets(tokens: Tokens) -> bytes:
    """Return u32(token) for each token; InvalidTokens names the first one that does not fit."""
    try:
        array = np.asarray(tokens)
    except (ValueError, OverflowError) as error:
        raise InvalidTokens(f"tokens are a flat sequence of integers: {error}") from error
    if array.ndim != 1:
        raise InvalidTokens(f"tokens have one axis, got shape {array.shape}")
    if not array.size:
        return b""
    if array.dtype.kind not in "iu":
        raise InvalidTokens(
            f"token ids are integers from 0 to {MAX_TOKEN_ID}, got elements of {array.dtype}"
        )
    if array.min() < 0 or array.max() > MAX_TOKEN_ID:
        position = int(np.argmax((array < 0) | (array > MAX_TOKEN_ID)))
        raise InvalidTokens(
            f"token {position} is {array[position]}, expected 0 to {MAX_TOKEN_ID} (kvsp-1, 3)"
        )
    return array.astype(">u4").tobytes()


def block_keys(
    scope: Scope,
    descriptor: Descriptor,
    tokens: Tokens,
    extras: Mapping[int, bytes] | None = None,
) -> list[bytes]:
    """Return the Block Key of each full block; a shorter last block has none (kvsp-1, 3).

    `extras` gives, by block index, octets for content that token ids do not identify.
    Raises: InvalidTokens.
    """
    octets = _token_octets(tokens)
    size = 4 * descriptor.block_tokens
    extras = extras or {}
    touched = -(-len(octets) // size)
    for block in extras:
        if not 0 <= block < touched:
            raise InvalidTokens(f"extras name block {block}, the tokens reach {touched} blocks")
    keys: list[bytes] = []
    parent = descriptor.compatibility_id
    for block in range(len(octets) // size):
        extra = extras.get(block, b"")
        parent = hmac.digest(
            scope.key,
            b"".join(
                (
                    b"kvsp-1 block",
                    parent,
                    len(extra).to_bytes(4, "big"),
                    extra,
                    octets[block * size : (block + 1) * size],
                )
            ),
            "sha256",
        )
        keys.append(parent)
    return keys


def block_keys_sha256(keys: Sequence[bytes]) -> bytes:
    """Return the SHA-256 of the keys' concatenation, as a manifest lists it (KVCS 3.6)."""
    return hashlib.sha256(b"".join(keys)).digest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefix:
    """A token prefix under one descriptor in one scope: everything that names its content.

    It holds neither the tokens nor the scope key, so it may be kept and shown.
    """

    descriptor: Descriptor
    scope_id: bytes
    keys: tuple[bytes, ...] = field(repr=False)
    """One Block Key for each full block; at least one."""

    @classmethod
    def of(
        cls,
        scope: Scope,
        descriptor: Descriptor,
        tokens: Tokens,
        extras: Mapping[int, bytes] | None = None,
    ) -> Self:
        """Return the prefix of all full blocks of `tokens`.

        Raises: InvalidTokens when an id is out of range or there is not one full block.
        """
        keys = block_keys(scope, descriptor, tokens, extras)
        if not keys:
            raise InvalidTokens(
                f"{len(tokens)} tokens are less than one block of {descriptor.block_tokens}: only "
                "full blocks have a key and are transferred (kvsp-1, 3)"
            )
        return cls(descriptor=descriptor, scope_id=scope.scope_id, keys=tuple(keys))

    @property
    def compatibility_id(self) -> bytes:
        """The descriptor's Compatibility ID."""
        return self.descriptor.compatibility_id

    @property
    def blocks(self) -> int:
        """How many full blocks the prefix has."""
        return len(self.keys)

    @property
    def tokens(self) -> int:
        """How many tokens the full blocks cover."""
        return self.blocks * self.descriptor.block_tokens

    def anchor_key(self, blocks: int | None = None) -> bytes:
        """Return the Anchor Key of the first `blocks` blocks; by default of all."""
        blocks = self.blocks if blocks is None else blocks
        if not 1 <= blocks <= self.blocks:
            raise InvalidTokens(f"expected 1 to {self.blocks} blocks, got {blocks}")
        return self.keys[blocks - 1]

    def block_keys_sha256(self, first_block: int, blocks: int) -> bytes:
        """Return the digest of a segment's Block Keys, as manifests list it (KVCS 3.6)."""
        if first_block < 0 or blocks < 1 or first_block + blocks > self.blocks:
            raise InvalidTokens(
                f"blocks {first_block}..{first_block + blocks - 1} are not all in the prefix of "
                f"{self.blocks}"
            )
        return block_keys_sha256(self.keys[first_block : first_block + blocks])
