"""The KVSB block container and the layer digest (kvsp-1, 5)."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvcs.errors import CodecError, ContainerInvalid
from kvcs.kvsp.codecs import CODECS, RAW, Codec, Octets
from kvcs.kvsp.identity import ID_OCTETS
from kvcs.kvsp.shapes import BlockShape, Component

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvcs.kvsp.descriptor import Descriptor

__all__ = ["Container", "LayerSections", "layer_digest", "pack_container", "parse_container"]

_MAGIC = b"KVSB"
_VERSION = 1
_HEAD = struct.Struct(">4sBBHIIQ32s32s")
_ENTRY = struct.Struct(">II32s")
_MAX_U64 = 2**64 - 1


@dataclass(frozen=True, slots=True)
class LayerSections:
    """The raw K and V section of one block in one layer; `v` is empty when there is no V tensor."""

    k: Octets
    v: Octets = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """A container that passed all checks. Sections of codec raw are views into what was parsed."""

    first_layer: int
    token_start: int
    block_key: bytes
    codec: Codec
    layers: tuple[LayerSections, ...]


def layer_digest(k: Octets, v: Octets = b"") -> bytes:
    """Return SHA-256(K section || V section) of the raw sections (kvsp-1, 5)."""
    digest = hashlib.sha256(k)
    digest.update(v)
    return digest.digest()


def _shapes(descriptor: Descriptor, layer: int) -> tuple[BlockShape, BlockShape | None]:
    geometry = descriptor.geometry(layer)
    k = BlockShape(geometry, Component.K, descriptor.block_tokens)
    v = BlockShape(geometry, Component.V, descriptor.block_tokens)
    return k, v if geometry.has(Component.V) else None


def pack_container(
    descriptor: Descriptor,
    layers: Sequence[LayerSections],
    *,
    block_key: bytes,
    token_start: int,
    first_layer: int = 0,
    codec: Codec = RAW,
) -> bytes:
    """Return the container of one block: `layers` from `first_layer` on, raw sections given.

    Raises: ContainerInvalid when the layers, key or token start do not fit the descriptor;
    CodecError when a section has the wrong length.
    """
    _check_range(descriptor, first_layer, len(layers))
    _check_place(descriptor, block_key, token_start)
    table: list[bytes] = []
    body: list[Octets] = []
    for layer, sections in enumerate(layers, first_layer):
        k_shape, v_shape = _shapes(descriptor, layer)
        k = codec.encode([sections.k], k_shape)
        if v_shape is None and len(sections.v):
            raise ContainerInvalid(f"layer {layer}", "the descriptor has no V tensor here")
        v = codec.encode([sections.v], v_shape) if v_shape else []
        digest = layer_digest(sections.k, sections.v)
        table.append(_ENTRY.pack(sum(map(len, k)), sum(map(len, v)), digest))
        body += (*k, *v)
    head = _HEAD.pack(
        _MAGIC,
        _VERSION,
        0,
        codec.value,
        len(layers),
        descriptor.block_tokens,
        token_start,
        descriptor.compatibility_id,
        block_key,
    )
    return b"".join((head, *table, *body))


def parse_container(
    octets: Octets,
    descriptor: Descriptor,
    *,
    block_key: bytes | None = None,
    token_start: int | None = None,
    first_layer: int = 0,
    layer_count: int | None = None,
) -> Container:
    """Return the content of a container after every check: fields, lengths, sizes, digests.

    `block_key` and `token_start` are compared when given. The container must hold `layer_count`
    layers from `first_layer` on; by default all from there to the last.
    Raises: ContainerInvalid.
    """
    view = memoryview(octets).toreadonly()
    if len(view) < _HEAD.size:
        raise ContainerInvalid("head", f"{len(view)} octets, expected at least {_HEAD.size}")
    magic, version, flags, codec_value, layers, tokens, start, compatibility_id, key = (
        _HEAD.unpack_from(view)
    )
    expected_layers = descriptor.layers - first_layer if layer_count is None else layer_count
    _expect("magic", magic, _MAGIC)
    _expect("version", version, _VERSION)
    _expect("flags", flags, 0)
    _expect("layers", layers, expected_layers)
    _expect("token count", tokens, descriptor.block_tokens)
    _expect("Compatibility ID", compatibility_id, descriptor.compatibility_id)
    if block_key is not None:
        _expect("Block Key", key, block_key)
    if token_start is not None:
        _expect("token start", start, token_start)
    _check_range(descriptor, first_layer, layers)
    _check_place(descriptor, key, start)
    try:
        codec = CODECS.by_value(codec_value)
    except CodecError as error:
        raise ContainerInvalid("codec", str(error)) from error
    if len(view) < _HEAD.size + layers * _ENTRY.size:
        raise ContainerInvalid("table", f"{len(view)} octets end in the table of {layers} layers")
    entries = [
        _ENTRY.unpack_from(view, _HEAD.size + index * _ENTRY.size) for index in range(layers)
    ]
    at = _HEAD.size + layers * _ENTRY.size
    _expect("length", len(view), at + sum(k + v for k, v, _ in entries))
    read: list[LayerSections] = []
    for layer, (k_octets, v_octets, digest) in enumerate(entries, first_layer):
        k_shape, v_shape = _shapes(descriptor, layer)
        middle, end = at + k_octets, at + k_octets + v_octets
        k = _decode(codec, view[at:middle], k_shape, f"layer {layer} K")
        if v_shape is None:
            _expect(f"layer {layer} V length", v_octets, 0)
            v: Octets = b""
        else:
            v = _decode(codec, view[middle:end], v_shape, f"layer {layer} V")
        if layer_digest(k, v) != digest:
            raise ContainerInvalid(f"layer {layer} digest", "K and V have another SHA-256")
        read.append(LayerSections(k, v))
        at = end
    return Container(
        first_layer=first_layer, token_start=start, block_key=key, codec=codec, layers=tuple(read)
    )


def _decode(codec: Codec, data: memoryview, shape: BlockShape, field: str) -> memoryview:
    try:
        codec.check_data_octets(len(data), shape)
        return data if codec is RAW else codec.decode(data, shape)
    except CodecError as error:
        raise ContainerInvalid(field, str(error)) from error


def _expect(field: str, came: object, expected: object) -> None:
    if came != expected:
        shown = [v.hex() if isinstance(v, bytes) else v for v in (came, expected)]
        raise ContainerInvalid(field, f"is {shown[0]}, expected {shown[1]}")


def _check_range(descriptor: Descriptor, first_layer: int, layers: int) -> None:
    if first_layer < 0 or layers < 1 or first_layer + layers > descriptor.layers:
        raise ContainerInvalid(
            "layers",
            f"{layers} from layer {first_layer} on are not among the {descriptor.layers} there are",
        )


def _check_place(descriptor: Descriptor, block_key: bytes, token_start: int) -> None:
    if len(block_key) != ID_OCTETS:
        raise ContainerInvalid("Block Key", f"has {len(block_key)} octets, expected {ID_OCTETS}")
    if not 0 <= token_start <= _MAX_U64 or token_start % descriptor.block_tokens:
        raise ContainerInvalid(
            "token start", f"is {token_start}, expected a multiple of {descriptor.block_tokens}"
        )
