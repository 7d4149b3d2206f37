"""KVSP as this project defines it: identity, containers, codecs. Nothing else may compute them."""

from kvcs.kvsp.codecs import CODECS, Codec, CodecRegistry
from kvcs.kvsp.container import Container, LayerSections, layer_digest
from kvcs.kvsp.descriptor import Descriptor
from kvcs.kvsp.identity import Prefix, Scope, Tokens, block_keys, block_keys_sha256
from kvcs.kvsp.shapes import AnyArray, BlockShape, Component, LayerGeometry, Layout
from kvcs.kvsp.tensors import LayerTensor

__all__ = [
    "CODECS",
    "AnyArray",
    "BlockShape",
    "Codec",
    "CodecRegistry",
    "Component",
    "Container",
    "Descriptor",
    "LayerGeometry",
    "LayerSections",
    "LayerTensor",
    "Layout",
    "Prefix",
    "Scope",
    "Tokens",
    "block_keys",
    "block_keys_sha256",
    "layer_digest",
]
