"""Stream a transformer's KV cache layer by layer over MOQT (profile KVCS).

`Producer` and `Consumer` are where to begin; `kvcs.blocking` has the same verbs for threads.
Identity and values need no network, so what does is loaded when first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from kvcs.errors import (
    CodecError,
    CompatibilityMismatch,
    ContainerInvalid,
    IncompleteRetrieval,
    InvalidDescriptor,
    InvalidKey,
    InvalidName,
    InvalidTokens,
    KvcsError,
    ManifestInvalid,
    MissingObject,
    NotDeterministic,
    ObjectRejected,
    ProductionError,
    PublicationGone,
    PublicationNotFound,
    PublicationUnusable,
    RejectReason,
    SignatureInvalid,
    TensorMismatch,
    UnknownKey,
)
from kvcs.kvsp.descriptor import Descriptor
from kvcs.kvsp.identity import Prefix, Scope
from kvcs.kvsp.shapes import Component, Layout
from kvcs.names import NamespaceForm

if TYPE_CHECKING:
    from kvcs.config import ConsumerConfig, ProducerConfig
    from kvcs.consumer import Consumer, Retrieval, UsableLayer
    from kvcs.keys import ProducerKey, PublicKey, SigningAlgorithm, TrustedKeys
    from kvcs.publisher import Loan, Producer, Publication, PublicationState, Segment
    from kvcs.recovery import Endpoint, OtherPublication

__all__ = [
    "CodecError",
    "CompatibilityMismatch",
    "Component",
    "Consumer",
    "ConsumerConfig",
    "ContainerInvalid",
    "Descriptor",
    "Endpoint",
    "IncompleteRetrieval",
    "InvalidDescriptor",
    "InvalidKey",
    "InvalidName",
    "InvalidTokens",
    "KvcsError",
    "Layout",
    "Loan",
    "ManifestInvalid",
    "MissingObject",
    "NamespaceForm",
    "NotDeterministic",
    "ObjectRejected",
    "OtherPublication",
    "Prefix",
    "Producer",
    "ProducerConfig",
    "ProducerKey",
    "ProductionError",
    "PublicKey",
    "Publication",
    "PublicationGone",
    "PublicationNotFound",
    "PublicationState",
    "PublicationUnusable",
    "RejectReason",
    "Retrieval",
    "Scope",
    "Segment",
    "SignatureInvalid",
    "SigningAlgorithm",
    "TensorMismatch",
    "TrustedKeys",
    "UnknownKey",
    "UsableLayer",
]

_HOMES = {
    "Consumer": "kvcs.consumer",
    "ConsumerConfig": "kvcs.config",
    "Endpoint": "kvcs.recovery",
    "Loan": "kvcs.publisher",
    "OtherPublication": "kvcs.recovery",
    "Producer": "kvcs.publisher",
    "ProducerConfig": "kvcs.config",
    "ProducerKey": "kvcs.keys",
    "PublicKey": "kvcs.keys",
    "Publication": "kvcs.publisher",
    "PublicationState": "kvcs.publisher",
    "Retrieval": "kvcs.consumer",
    "Segment": "kvcs.publisher",
    "SigningAlgorithm": "kvcs.keys",
    "TrustedKeys": "kvcs.keys",
    "UsableLayer": "kvcs.consumer",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'kvcs' has no attribute {name!r}")
    value: object = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
