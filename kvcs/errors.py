"""Everything that kvcs raises.

KvcsError
|- InvalidName            .field     a namespace or Track Name breaks KVCS 3.1 or 3.2
|- InvalidDescriptor      .path      a Compatibility Descriptor is not one (kvsp-1, 1)
|- InvalidTokens                     token ids or their number cannot be used (kvsp-1, 3)
|- InvalidKey                        a scope key, producer key or key file cannot be used
|- TensorMismatch                    an array is not what the descriptor says
|- ProductionError                   a layer, segment or publication is used out of turn
|- CodecError                        a codec refused Data or does not exist
|- ContainerInvalid       .field     a KVSB container is not acceptable (kvsp-1, 5)
|- ObjectRejected         .reason    one Object failed a check: it counts as missing (KVCS 3.5)
|- PublicationNotFound               no publication of this prefix or a shorter one
|- PublicationUnusable               discard the publication, try another
|  |- ManifestInvalid     .path      KVCS 3.6
|  |- CompatibilityMismatch          KVCS 3.6
|  |- SignatureInvalid    .key_id    KVCS 3.6
|  |  `- UnknownKey       .key_id    signed, but by a key that is not trusted
|  |- NotDeterministic               two publications may not be mixed (KVCS 5.4)
|  `- PublicationGone                it was withdrawn, stopped or evicted
|- IncompleteRetrieval    .missing   retry or recompute (KVCS 5.4)
`- WorkerLost                        the processes of a striped consumer end again and again
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvcs.kvsp.shapes import Component

__all__ = [
    "CodecError",
    "CompatibilityMismatch",
    "ContainerInvalid",
    "IncompleteRetrieval",
    "InvalidDescriptor",
    "InvalidKey",
    "InvalidName",
    "InvalidTokens",
    "KvcsError",
    "ManifestInvalid",
    "MissingObject",
    "NotDeterministic",
    "ObjectRejected",
    "ProductionError",
    "PublicationGone",
    "PublicationNotFound",
    "PublicationUnusable",
    "RejectReason",
    "SignatureInvalid",
    "TensorMismatch",
    "UnknownKey",
    "WorkerLost",
]

MISSING_SHOWN = 8
"""How many missing Objects the text of `IncompleteRetrieval` names; `.missing` has them all."""


class RejectReason(Enum):
    """Why an Object was discarded and counts as missing; one for each check (KVCS 3.5)."""

    STATUS = "status"
    """It stands where content was expected, but says that there is none."""
    LAYER_OUT_OF_RANGE = "layer out of range"
    """Its Group ID is not a layer of the descriptor."""
    BLOCK_OUT_OF_RANGE = "block out of range"
    """Its Object ID is not a block of the segment."""
    HEADER_TRUNCATED = "header truncated"
    """The payload is shorter than the 68 octets of a header."""
    MAGIC = "magic"
    VERSION = "version"
    COMPONENT = "component"
    """The header's component is not the track's."""
    LAYER = "layer"
    """The header's layer is not the Group ID."""
    BLOCK_INDEX = "block index"
    """The header's block index is not the Object ID."""
    TOKEN_START = "token start"
    TOKEN_COUNT = "token count"
    CODEC = "codec"
    """The header's codec is not the track's."""
    DATA_LENGTH = "data length"
    """Header and Data Length do not account for the whole payload."""
    DATA_SIZE = "data size"
    """Data of this length cannot decode to one block of this layer."""
    DATA_DIGEST = "data digest"
    MANIFEST_DIGEST = "manifest digest"
    """The Data Digest is not the one that the manifest lists."""
    DECODED_SIZE = "decoded size"
    """Data would decode to another number of octets than one block of this layer has."""
    DECODE_FAILED = "decode failed"


class KvcsError(Exception):
    """Base of all errors of this package."""


class InvalidName(KvcsError, ValueError):
    """One name: a namespace or Track Name is not of this profile; `field` says which part."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field


class InvalidDescriptor(KvcsError, ValueError):
    """One descriptor: it cannot be used; `path` is where, as in `$.layer_overrides.3.head_dim`."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"Compatibility Descriptor {path}: {problem}")
        self.path = path


class InvalidTokens(KvcsError, ValueError):
    """One call: the token ids, their number or their extras cannot be used."""


class InvalidKey(KvcsError, ValueError):
    """One key: it cannot be read or used. The text never holds key octets."""


class TensorMismatch(KvcsError, ValueError):
    """One call: an array's shape, dtype or strides are not what the descriptor says."""


class ProductionError(KvcsError):
    """One call: it is out of turn or over a named limit. Nothing was published."""


class CodecError(KvcsError):
    """One Object: a codec refused it. `reason` is what an Object is rejected with."""

    def __init__(self, problem: str, *, reason: RejectReason = RejectReason.DECODE_FAILED) -> None:
        super().__init__(problem)
        self.reason = reason


class ContainerInvalid(KvcsError, ValueError):
    """One container: a KVSB container failed a check; `field` says which (kvsp-1, 5)."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"container {field}: {problem}")
        self.field = field


class ObjectRejected(KvcsError):
    """One Object: it failed a check and counts as missing; nothing else is touched (KVCS 3.5)."""

    def __init__(self, reason: RejectReason, problem: str) -> None:
        super().__init__(problem)
        self.reason = reason


class PublicationNotFound(KvcsError):
    """One retrieval: nobody publishes this prefix or a shorter one."""


class PublicationUnusable(KvcsError):
    """One publication: discard it, try another."""


class ManifestInvalid(PublicationUnusable):
    """One publication: its manifest breaks KVCS 3.6; `path` is where, as in `$.segments[1]`."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"manifest {path}: {problem}")
        self.path = path


class CompatibilityMismatch(PublicationUnusable):
    """One publication: "compat" has another Compatibility ID than the namespace (KVCS 3.6)."""

    def __init__(self, *, expected: bytes, computed: bytes) -> None:
        super().__init__(
            f"manifest $.compat: its Compatibility ID is {computed.hex()}, the namespace has "
            f"{expected.hex()} (KVCS 3.6)"
        )
        self.expected = expected
        self.computed = computed


class SignatureInvalid(PublicationUnusable):
    """One publication: a manifest's signature does not hold; `key_id` is None if none was read."""

    def __init__(self, problem: str, *, key_id: bytes | None = None) -> None:
        super().__init__(f"manifest.cose: {problem}")
        self.key_id = key_id


class UnknownKey(SignatureInvalid):
    """One publication: its manifest is signed by a key that this consumer does not trust."""

    def __init__(self, key_id: bytes) -> None:
        shown = key_id[:32].hex() + ("..." if len(key_id) > 32 else "")
        super().__init__(f"no trusted key has the kid {shown!r}", key_id=key_id)


class NotDeterministic(PublicationUnusable):
    """One publication: its Objects may not fill gaps of another's (KVCS 5.4)."""


class PublicationGone(PublicationUnusable):
    """One publication: it was withdrawn, stopped or evicted by its publisher."""


@dataclass(frozen=True, slots=True, order=True)
class MissingObject:
    """One Object that a retrieval lacks. `block` counts from the segment's first block."""

    segment: int
    layer: int
    component: Component
    block: int
    reason: RejectReason | None = field(default=None, compare=False)
    """Why the Object that came was rejected; None when none came."""

    def __str__(self) -> str:
        where = (
            f"segment {self.segment} layer {self.layer} {self.component.text} block {self.block}"
        )
        return where if self.reason is None else f"{where} ({self.reason.value})"


class IncompleteRetrieval(KvcsError):
    """One retrieval: Objects are missing; every usable layer was handed over before (KVCS 5.4)."""

    def __init__(self, missing: tuple[MissingObject, ...], problem: str = "") -> None:
        shown = ", ".join(map(str, missing[:MISSING_SHOWN]))
        more = f" and {len(missing) - MISSING_SHOWN} more" if len(missing) > MISSING_SHOWN else ""
        super().__init__(
            f"{len(missing)} Objects are missing: {shown}{more}"
            + (f"; {problem}" if problem else "")
        )
        self.missing = missing
        self.problem = problem


class WorkerLost(KvcsError):
    """One retrieval: a worker process of `StripedConsumer` ended, and what replaced it, too."""
