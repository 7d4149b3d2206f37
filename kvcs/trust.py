"""Which manifests a consumer believes (KVCS 3.6, 5.2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvcs.errors import SignatureInvalid
from kvcs.manifest import Manifest

if TYPE_CHECKING:
    from kvcs.keys import TrustedKeys

__all__ = ["Trust"]


@dataclass(frozen=True, slots=True)
class Trust:
    """A consumer's policy.

    With `keys`, a signed manifest must hold against one of them. Without, signatures are not
    looked at. `require_signature`: unsigned publications are refused, and a layer is usable only
    when the signed manifest lists its digests. Raises ValueError for a requirement without keys.
    """

    keys: TrustedKeys | None = None
    require_signature: bool = False

    def __post_init__(self) -> None:
        if self.require_signature and not self.keys:
            raise ValueError("require_signature needs trusted_keys to check signatures against")

    def read(
        self, octets: bytes | memoryview, *, is_signed: bool, compatibility_id: bytes
    ) -> tuple[Manifest, bytes | None]:
        """Return the manifest of one Object of a manifest track, checked as KVCS 3.6 demands.

        With it the kid that it is signed with, None when it is not signed.
        Raises: ManifestInvalid, CompatibilityMismatch, SignatureInvalid, UnknownKey.
        """
        key_id: bytes | None = None
        if is_signed:
            from kvcs.cose import SignedManifest  # brings cbor2: only this needs it

            signed = SignedManifest.parse(octets)
            key_id = signed.key_id
            text: bytes | memoryview = (
                signed.payload if self.keys is None else signed.verify(self.keys)
            )
        else:
            self.check_unsigned()
            text = octets
        manifest = Manifest.load(text)
        manifest.check_compatibility(compatibility_id)
        return manifest, key_id

    def check_unsigned(self) -> None:
        """Raise SignatureInvalid when a publication without manifest.cose is not acceptable."""
        if self.require_signature:
            raise SignatureInvalid("the publication has none, and signatures are required")
