"""manifest.cose: a manifest inside a COSE_Sign1 structure (KVCS 3.6, RFC 9052).

pycose builds the structure. Two things it does not do here. It signs ES256 with a pure-Python
package whose authors warn that its timing shows the key, so signatures come from `cryptography`.
And it parses every header it knows, keys included, out of octets that anyone may have sent, with
errors of many kinds, so on receipt only the three headers that matter are read, by `kvcs.cbor`.

The kid is sent in the protected header, so that nobody on the way can swap it and make a good
manifest look like one of an unknown key. On receipt it may be in either header. "alg" counts in the
protected header only (RFC 9052 3.1: it must be authenticated), and must be the key's own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import cbor2

from kvcs import cbor
from kvcs.errors import SignatureInvalid, UnknownKey
from kvcs.keys import ProducerKey, SigningAlgorithm, TrustedKeys
from kvcs.manifest import MAX_MANIFEST_OCTETS

__all__ = ["MAX_COSE_OCTETS", "SignedManifest", "sign", "verify"]

MAX_COSE_OCTETS = MAX_MANIFEST_OCTETS + 4096
"""The longest structure read by default: a manifest and room for headers and signature."""

_SIGN1_TAG = 18
_BY_NUMBER = {algorithm.value: algorithm for algorithm in SigningAlgorithm}

_ALG, _CRIT, _KID = 1, 2, 4
"""Header labels (RFC 9052 3.1)."""


def _to_be_signed(protected: bytes, payload: bytes) -> bytes:
    """Return the Sig_structure (RFC 9052 4.4)."""
    return cbor2.dumps(["Signature1", protected, b"", payload])


@dataclass(frozen=True, slots=True)
class SignedManifest:
    """A COSE_Sign1 structure that was read. Nothing in it can be trusted before `verify`."""

    payload: bytes = field(repr=False)
    """The manifest's JSON text, unverified."""
    key_id: bytes
    algorithm: SigningAlgorithm
    _protected: bytes = field(repr=False)
    _signature: bytes = field(repr=False)

    @classmethod
    def parse(
        cls, octets: bytes | memoryview, *, max_octets: int = MAX_COSE_OCTETS
    ) -> SignedManifest:
        """Read a COSE_Sign1 structure, tagged or not. Raises: SignatureInvalid."""
        protected, unprotected, payload, signature = _structure(octets, max_octets)
        authentic = _cbor(protected, "its protected header is") if protected else {}
        if not isinstance(authentic, dict):
            raise SignatureInvalid("its protected header is not a map")
        for label in (_ALG, _CRIT, _KID):
            if label in authentic and label in unprotected:
                raise SignatureInvalid(f"header {label} is in both headers")
        key_id = authentic.get(_KID, unprotected.get(_KID))
        if not isinstance(key_id, bytes):
            raise SignatureInvalid("no kid header of octets (KVCS 3.6)")
        if _CRIT in authentic or _CRIT in unprotected:
            raise SignatureInvalid("it has critical headers, none is known here", key_id=key_id)
        number = authentic.get(_ALG)
        algorithm = _BY_NUMBER.get(number) if isinstance(number, int) else None
        if algorithm is None:
            raise SignatureInvalid(
                "its protected header names no algorithm of ES256 and EdDSA (KVCS 3.6)",
                key_id=key_id,
            )
        return cls(payload, key_id, algorithm, protected, signature)

    def verify(self, trusted: TrustedKeys) -> bytes:
        """Return the payload, now known to be signed by a trusted key.

        Raises: UnknownKey, SignatureInvalid.
        """
        key = trusted.get(self.key_id)
        if key is None:
            raise UnknownKey(self.key_id)
        if key.algorithm is not self.algorithm:
            raise SignatureInvalid(
                f"it names {self.algorithm.name}, its key is for {key.algorithm.name}",
                key_id=self.key_id,
            )
        if not key.is_signature(self._signature, _to_be_signed(self._protected, self.payload)):
            raise SignatureInvalid(
                f"the signature of kid {self.key_id.hex()} does not hold", key_id=self.key_id
            )
        return self.payload


def _cbor(octets: bytes | memoryview, what: str) -> Any:
    """Return the one CBOR item that `octets` are."""
    try:
        return cbor.parse(octets)
    except cbor.CborError as error:
        raise SignatureInvalid(f"{what} not one CBOR item: {error}") from error


def _structure(octets: bytes | memoryview, max_octets: int) -> tuple[bytes, Any, bytes, bytes]:
    if len(octets) > max_octets:
        raise SignatureInvalid(f"{len(octets)} octets are over the bound of {max_octets}")
    value = _cbor(octets, "it is")
    if isinstance(value, cbor.Tagged):
        if value.number != _SIGN1_TAG:
            raise SignatureInvalid(f"CBOR tag {value.number}, expected {_SIGN1_TAG} or none")
        value = value.value
    if not isinstance(value, list) or len(value) != 4:
        raise SignatureInvalid("not an array of 4, as COSE_Sign1 is")
    protected, unprotected, payload, signature = value
    if not (
        isinstance(protected, bytes)
        and isinstance(unprotected, dict)
        and isinstance(payload, bytes)
        and isinstance(signature, bytes)
    ):
        raise SignatureInvalid("its elements are not octets, map, octets, octets")
    return protected, unprotected, payload, signature


def sign(payload: bytes, key: ProducerKey) -> bytes:
    """Return a tagged COSE_Sign1 structure with `payload`, a manifest's JSON text, signed."""
    # Here, because all that pycose brings takes 2.5 MiB, and only who signs has a use for it.
    from pycose import headers
    from pycose.algorithms import EdDSA, Es256
    from pycose.messages.sign1message import Sign1Message

    algorithms = {SigningAlgorithm.ES256: Es256, SigningAlgorithm.EDDSA: EdDSA}
    message = Sign1Message(
        phdr={headers.Algorithm: algorithms[key.algorithm], headers.KID: key.key_id},
        payload=payload,
    )
    message.signature = key.sign(_to_be_signed(message.phdr_encoded, payload))
    encoded: bytes = message.encode(tag=True, sign=False)
    return encoded


def verify(
    octets: bytes | memoryview, trusted: TrustedKeys, *, max_octets: int = MAX_COSE_OCTETS
) -> bytes:
    """Return the manifest's JSON text out of a COSE_Sign1 structure signed by a trusted key.

    Raises: UnknownKey, SignatureInvalid.
    """
    return SignedManifest.parse(octets, max_octets=max_octets).verify(trusted)
