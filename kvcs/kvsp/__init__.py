"""KVSP as this project defines it: identity, containers, codecs. Nothing else may compute them."""

from kvcs.kvsp.descriptor import Descriptor
from kvcs.kvsp.identity import Prefix, Scope, Tokens, block_keys, block_keys_sha256
from kvcs.kvsp.shapes import Component, LayerGeometry, Layout

__all__ = [
    "Component",
    "Descriptor",
    "LayerGeometry",
    "Layout",
    "Prefix",
    "Scope",
    "Tokens",
    "block_keys",
    "block_keys_sha256",
]
