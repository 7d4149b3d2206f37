"""The Compatibility Descriptor: which producers' caches a consumer can use (kvsp-1, 1)."""

from __future__ import annotations

import hashlib
import re
import reprlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

import rfc8785

from kvcs import ijson
from kvcs.errors import InvalidDescriptor
from kvcs.ijson import read_integer, read_object, read_text
from kvcs.kvsp.shapes import DTYPES, Component, LayerGeometry, Layout

if TYPE_CHECKING:
    import numpy as np

    from kvcs.ijson import JsonValue

__all__ = ["MAX_DESCRIPTOR_OCTETS", "Descriptor"]

MAX_DESCRIPTOR_OCTETS = 65536
"""The longest JSON text of a descriptor that is read."""

MAX_LAYERS = 65535
MAX_BLOCK_TOKENS = 65535

MAX_DATA_OCTETS = 2**32 - 1
"""K and V of one block in one layer must fit an Object's 32-bit Data Length (KVCS 3.5)."""

_LAYER_INDEX = re.compile(r"0|[1-9][0-9]*")


class Descriptor:
    """A Compatibility Descriptor: an immutable JSON object whose members all count, known or not.

    Two descriptors are equal when their canonical forms are, so a dict key is safe.
    `layer_overrides` maps a layer to the geometry members that differ there; they are laid over the
    descriptor's own before defaults apply. A member given as None is left out.

    Raises: InvalidDescriptor, with the path of what is wrong.
    Source: kvsp-1, 1.
    """

    __slots__ = ("_compatibility_id", "_dtype", "_geometry", "_jcs", "_layout", "_members", "_own")

    def __init__(
        self,
        *,
        model: str,
        layers: int,
        block_tokens: int,
        kv_heads: int,
        head_dim: int,
        dtype: str,
        v_head_dim: int | None = None,
        layout: Layout | None = None,
        shard: Mapping[str, int] | None = None,
        layer_overrides: Mapping[int, Mapping[str, int]] | None = None,
        **others: JsonValue,
    ) -> None:
        members: dict[str, Any] = {
            "model": model,
            "layers": layers,
            "block_tokens": block_tokens,
            "kv_heads": kv_heads,
            "head_dim": head_dim,
            "dtype": dtype,
            "v_head_dim": v_head_dim,
            "layout": None if layout is None else layout.value,
            "shard": shard,
            "layer_overrides": None
            if layer_overrides is None
            else {str(layer): dict(geometry) for layer, geometry in layer_overrides.items()},
            **others,
        }
        self._set({name: member for name, member in members.items() if member is not None})

    @classmethod
    def from_dict(cls, members: Mapping[str, Any]) -> Self:
        """Return the descriptor with exactly these members; an explicit null is kept and counts."""
        descriptor = cls.__new__(cls)
        descriptor._set(members)
        return descriptor

    @classmethod
    def from_json(cls, text: bytes | str) -> Self:
        """Return the descriptor of a JSON text, read strictly (RFC 7493)."""
        try:
            members = ijson.parse(text, max_octets=MAX_DESCRIPTOR_OCTETS)
        except ijson.IJsonError as error:
            raise InvalidDescriptor(error.path, error.problem) from error
        return cls.from_dict(members)

    def _set(self, given: object) -> None:
        if not isinstance(given, Mapping):
            raise InvalidDescriptor("$", f"expected an object, got {type(given).__name__}")
        try:
            self._read(ijson.check(given))
        except ijson.IJsonError as error:
            raise InvalidDescriptor(error.path, error.problem) from error

    def _read(self, members: dict[str, Any]) -> None:
        read_text(members, "model")
        layers = read_integer(members, "layers", 1, MAX_LAYERS)
        block_tokens = read_integer(members, "block_tokens", 1, MAX_BLOCK_TOKENS)
        self._members = members
        self._dtype = _dtype(members)
        self._layout = _layout(members)
        _check_shard(members)
        self._own = self._read_geometry({}, "$", block_tokens)
        self._geometry: dict[int, LayerGeometry] = {}
        for index, override in _overrides(members).items():
            path = f"$.layer_overrides.{index}"
            if not _LAYER_INDEX.fullmatch(index) or len(index) > 5 or int(index) >= layers:
                raise InvalidDescriptor(path, f"expected a layer from 0 to {layers - 1}")
            self._geometry[int(index)] = self._read_geometry(
                read_object(override, path), path, block_tokens
            )
        self._jcs = rfc8785.dumps(members)
        if len(self._jcs) > MAX_DESCRIPTOR_OCTETS:
            raise InvalidDescriptor(
                "$", f"{len(self._jcs)} octets are over the bound of {MAX_DESCRIPTOR_OCTETS}"
            )
        self._compatibility_id = hashlib.sha256(self._jcs).digest()

    def _read_geometry(
        self, override: dict[str, Any], path: str, block_tokens: int
    ) -> LayerGeometry:
        def read(name: str, low: int) -> int:
            if name in override:
                return read_integer(override, name, low, MAX_DATA_OCTETS, path)
            return read_integer(self._members, name, low, MAX_DATA_OCTETS)

        kv_heads = read("kv_heads", 1)
        head_dim = read("head_dim", 1)
        has_v_head_dim = "v_head_dim" in override or "v_head_dim" in self._members
        geometry = LayerGeometry(
            kv_heads=kv_heads,
            head_dim=head_dim,
            v_head_dim=read("v_head_dim", 0) if has_v_head_dim else head_dim,
            dtype=self._dtype,
            layout=self._layout,
        )
        octets = geometry.raw_octets(Component.KV, block_tokens)
        if octets > MAX_DATA_OCTETS:
            raise InvalidDescriptor(
                path, f"a block has {octets} octets in one layer, at most {MAX_DATA_OCTETS} fit"
            )
        return geometry

    @property
    def model(self) -> str:
        """The weights' identity."""
        return str(self._members["model"])

    @property
    def layers(self) -> int:
        """L: how many layers hold a token-addressed cache."""
        return int(self._members["layers"])

    @property
    def block_tokens(self) -> int:
        """Tokens in one block."""
        return int(self._members["block_tokens"])

    @property
    def dtype(self) -> np.dtype[Any]:
        """The element type, as numpy knows it."""
        return self._dtype

    @property
    def layout(self) -> Layout:
        """The order of a tensor's axes; NHD when the descriptor does not say."""
        return self._layout

    @property
    def compatibility_id(self) -> bytes:
        """SHA-256 of the canonical form; 32 octets."""
        return self._compatibility_id

    def geometry(self, layer: int) -> LayerGeometry:
        """Return the shape of one layer's tensors; IndexError when there is no such layer."""
        if not 0 <= layer < self.layers:
            raise IndexError(f"layer {layer} is not one of 0..{self.layers - 1}")
        return self._geometry.get(layer, self._own)

    def jcs(self) -> bytes:
        """Return the canonical JSON serialization (RFC 8785)."""
        return self._jcs

    def to_dict(self) -> dict[str, Any]:
        """Return a copy of all members, known and unknown."""
        copy: dict[str, Any] = ijson.check(self._members)
        return copy

    def __eq__(self, other: object) -> bool:
        return self._jcs == other._jcs if isinstance(other, Descriptor) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._jcs)

    def __repr__(self) -> str:
        return f"Descriptor.from_json({self._jcs.decode()!r})"

    def __reduce__(self) -> tuple[Any, tuple[bytes]]:
        return (Descriptor.from_json, (self._jcs,))


def _dtype(members: dict[str, Any]) -> np.dtype[Any]:
    name = read_text(members, "dtype")
    if name not in DTYPES:
        raise InvalidDescriptor(
            "$.dtype", f"expected one of {', '.join(DTYPES)}, got {reprlib.repr(name)}"
        )
    return DTYPES[name]


def _layout(members: dict[str, Any]) -> Layout:
    if "layout" not in members:
        return Layout.NHD
    for layout in Layout:
        if members["layout"] == layout.value:
            return layout
    shown = reprlib.repr(members["layout"])
    raise InvalidDescriptor("$.layout", f'expected "nhd" or "hnd", got {shown}')


def _check_shard(members: dict[str, Any]) -> None:
    if "shard" not in members:
        return
    shard = read_object(members["shard"], "$.shard")
    size = read_integer(shard, "size", 1, MAX_DATA_OCTETS, "$.shard")
    read_integer(shard, "rank", 0, size - 1, "$.shard")


def _overrides(members: dict[str, Any]) -> dict[str, Any]:
    return read_object(members.get("layer_overrides", {}), "$.layer_overrides")
