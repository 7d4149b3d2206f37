"""Producer keys: what signs manifests, and which ones a consumer trusts (KVCS 3.6)."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeAlias

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.asymmetric.utils import (
    decode_dss_signature,
    encode_dss_signature,
)
from cryptography.hazmat.primitives.hashes import SHA256

from kvcs.errors import InvalidKey

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["ProducerKey", "PublicKey", "SigningAlgorithm", "TrustedKeys"]

MAX_KEY_ID_OCTETS = 64
MAX_PEM_OCTETS = 16384

_P256_OCTETS = 32
_PrivateKey: TypeAlias = ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey
_VerifyKey: TypeAlias = ec.EllipticCurvePublicKey | ed25519.Ed25519PublicKey


class SigningAlgorithm(Enum):
    """The COSE algorithms of KVCS 3.6; the value is the COSE algorithm number (RFC 9053)."""

    ES256 = -7
    """ECDSA on P-256 with SHA-256."""
    EDDSA = -8
    """Ed25519."""


def _algorithm_of(key: object) -> SigningAlgorithm:
    if isinstance(key, (ed25519.Ed25519PrivateKey, ed25519.Ed25519PublicKey)):
        return SigningAlgorithm.EDDSA
    if isinstance(key, (ec.EllipticCurvePrivateKey, ec.EllipticCurvePublicKey)):
        if isinstance(key.curve, ec.SECP256R1):
            return SigningAlgorithm.ES256
        raise InvalidKey(f"a key on curve {key.curve.name}: expected P-256 or Ed25519")
    raise InvalidKey(f"a {type(key).__name__}: expected a P-256 or an Ed25519 key")


def _default_key_id(key: _VerifyKey) -> bytes:
    """The first 16 octets of SHA-256 over the SubjectPublicKeyInfo: both ends can compute it."""
    der = key.public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return hashlib.sha256(der).digest()[:16]


def _check_key_id(key_id: bytes) -> bytes:
    if not 1 <= len(key_id) <= MAX_KEY_ID_OCTETS:
        raise InvalidKey(f"a kid has 1 to {MAX_KEY_ID_OCTETS} octets, got {len(key_id)}")
    return key_id


def _read(path: str | os.PathLike[str]) -> bytes:
    with Path(path).open("rb") as file:
        return file.read(MAX_PEM_OCTETS)


@dataclass(frozen=True, slots=True)
class PublicKey:
    """A key that verifies manifests, and the kid that they name it by."""

    key: _VerifyKey = field(repr=False)
    key_id: bytes = b""
    """Empty on construction: derived from the key."""

    def __post_init__(self) -> None:
        _algorithm_of(self.key)
        object.__setattr__(self, "key_id", _check_key_id(self.key_id or _default_key_id(self.key)))

    @property
    def algorithm(self) -> SigningAlgorithm:
        """The one algorithm that this key is for."""
        return _algorithm_of(self.key)

    @classmethod
    def from_pem(cls, pem: bytes, *, key_id: bytes = b"") -> Self:
        """Return the key of a PEM "PUBLIC KEY". Raises: InvalidKey."""
        try:
            key = serialization.load_pem_public_key(pem)
        except (ValueError, UnsupportedAlgorithm) as error:
            is_private = b"PRIVATE KEY-----" in pem
            found = "this is a private key" if is_private else "not a PEM public key"
            raise InvalidKey(found) from error
        _algorithm_of(key)
        assert isinstance(key, (ec.EllipticCurvePublicKey, ed25519.Ed25519PublicKey))
        return cls(key, key_id)

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, key_id: bytes = b"") -> Self:
        """Read a PEM file. Raises: OSError, InvalidKey."""
        return cls.from_pem(_read(path), key_id=key_id)

    def to_pem(self) -> bytes:
        """Return the key as a PEM "PUBLIC KEY"."""
        return self.key.public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )

    def is_signature(self, signature: bytes, signed: bytes) -> bool:
        """Return whether `signature`, in COSE's form, is this key's over `signed`."""
        try:
            if isinstance(self.key, ed25519.Ed25519PublicKey):
                self.key.verify(signature, signed)
                return True
            if len(signature) != 2 * _P256_OCTETS:
                return False
            r = int.from_bytes(signature[:_P256_OCTETS], "big")
            s = int.from_bytes(signature[_P256_OCTETS:], "big")
            self.key.verify(encode_dss_signature(r, s), signed, ec.ECDSA(SHA256()))
        except InvalidSignature:
            return False
        return True


class ProducerKey:
    """A private key that signs manifests. No text that this object makes shows it."""

    __slots__ = ("_private", "public")

    def __init__(self, private: _PrivateKey, *, key_id: bytes = b"") -> None:
        _algorithm_of(private)
        self._private = private
        self.public = PublicKey(private.public_key(), key_id)

    @property
    def key_id(self) -> bytes:
        """The kid that signed manifests name."""
        return self.public.key_id

    @property
    def algorithm(self) -> SigningAlgorithm:
        """The one algorithm that this key is for."""
        return self.public.algorithm

    @classmethod
    def generate(
        cls, algorithm: SigningAlgorithm = SigningAlgorithm.EDDSA, *, key_id: bytes = b""
    ) -> Self:
        """Return a new random key."""
        if algorithm is SigningAlgorithm.EDDSA:
            return cls(ed25519.Ed25519PrivateKey.generate(), key_id=key_id)
        return cls(ec.generate_private_key(ec.SECP256R1()), key_id=key_id)

    @classmethod
    def from_pem(cls, pem: bytes, *, password: bytes | None = None, key_id: bytes = b"") -> Self:
        """Return the key of a PEM private key. Raises: InvalidKey, whose text shows none of it."""
        try:
            key = serialization.load_pem_private_key(pem, password)
        except TypeError:
            how = (
                "needs a password" if password is None else "is not encrypted, a password is given"
            )
            raise InvalidKey(f"the private key {how}") from None
        except (ValueError, UnsupportedAlgorithm):
            is_public = b"PUBLIC KEY-----" in pem
            what = (
                "this is a public key"
                if is_public
                else "no PEM private key found, or another password"
            )
            raise InvalidKey(what) from None
        _algorithm_of(key)
        assert isinstance(key, (ec.EllipticCurvePrivateKey, ed25519.Ed25519PrivateKey))
        return cls(key, key_id=key_id)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        password: bytes | None = None,
        key_id: bytes = b"",
    ) -> Self:
        """Read a PEM file. Raises: OSError, InvalidKey."""
        return cls.from_pem(_read(path), password=password, key_id=key_id)

    def save(self, path: str | os.PathLike[str], *, password: bytes | None = None) -> None:
        """Write a PKCS #8 PEM file that only its owner can read.

        Raises: FileExistsError rather than overwrite a key.
        """
        pem = self._private.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(password)
            if password
            else serialization.NoEncryption(),
        )
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(pem)

    def sign(self, signed: bytes) -> bytes:
        """Return the signature over `signed` in COSE's form: for ES256 r and s, 32 octets each."""
        if isinstance(self._private, ed25519.Ed25519PrivateKey):
            return self._private.sign(signed)
        r, s = decode_dss_signature(self._private.sign(signed, ec.ECDSA(SHA256())))
        return r.to_bytes(_P256_OCTETS, "big") + s.to_bytes(_P256_OCTETS, "big")

    def __repr__(self) -> str:
        return f"ProducerKey({self.algorithm.name}, kid={self.key_id.hex()})"


class TrustedKeys:
    """The public keys whose manifests a consumer accepts, by kid."""

    __slots__ = ("_keys",)

    def __init__(self, keys: Iterable[PublicKey] = ()) -> None:
        self._keys: dict[bytes, PublicKey] = {}
        for key in keys:
            self.add(key)

    def add(self, key: PublicKey) -> None:
        """Trust one more key. Raises: InvalidKey when its kid already names another key."""
        known = self._keys.setdefault(key.key_id, key)
        if known.to_pem() != key.to_pem():
            raise InvalidKey(f"two keys have the kid {key.key_id.hex()}")

    def get(self, key_id: bytes) -> PublicKey | None:
        """Return the key of a kid, or None."""
        return self._keys.get(key_id)

    def to_pems(self) -> tuple[tuple[bytes, bytes], ...]:
        """Return kid and PEM of each key; `PublicKey.from_pem` reads them."""
        return tuple((key_id, key.to_pem()) for key_id, key in self._keys.items())

    def __len__(self) -> int:
        return len(self._keys)

    def __repr__(self) -> str:
        return f"TrustedKeys({', '.join(key_id.hex() for key_id in self._keys)})"
