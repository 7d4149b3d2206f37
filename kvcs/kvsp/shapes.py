"""What one layer's tensors look like: components, layouts, element types, sizes (kvsp-1, 1).

numpy knows bfloat16 and float8 only through `ml_dtypes`, and writes such arrays to no buffer:
``memoryview(array)`` raises. Octets of a tensor are therefore always taken from ``.view("u1")``.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Any

import ml_dtypes
import numpy as np

__all__ = ["DTYPES", "AnyArray", "BlockShape", "Component", "LayerGeometry", "Layout", "dtype_of"]

AnyArray = np.ndarray[Any, np.dtype[Any]]

if sys.byteorder != "little":
    raise ImportError("kvcs needs a little-endian machine: tensors are sent as they lie in memory")

DTYPES: dict[str, np.dtype[Any]] = {
    "float32": np.dtype("<f4"),
    "float16": np.dtype("<f2"),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float8_e4m3fn": np.dtype(ml_dtypes.float8_e4m3fn),
    "float8_e5m2": np.dtype(ml_dtypes.float8_e5m2),
    "int8": np.dtype("i1"),
    "uint8": np.dtype("u1"),
}
"""The element types of kvsp-1 by the name that a descriptor gives them; all little-endian."""


def dtype_of(name: str) -> np.dtype[Any]:
    """Return numpy's dtype for a descriptor's `dtype`; KeyError when kvsp-1 has none of it."""
    return DTYPES[name]


class Component(IntEnum):
    """What a track carries; the number is the header's Component field (KVCS 3.2, 3.5)."""

    K = 1
    V = 2
    KV = 3

    @property
    def text(self) -> str:
        """The component as a Track Name spells it: "k", "v" or "kv"."""
        return self.name.lower()

    @property
    def parts(self) -> tuple[Component, ...]:
        """The tensors inside, in the order of their octets: KV is K, then V."""
        return (Component.K, Component.V) if self is Component.KV else (self,)


class Layout(Enum):
    """The order of a tensor's axes. It is stated, never guessed from a shape (kvsp-1, 1)."""

    NHD = "nhd"
    """tokens, heads, dim"""
    HND = "hnd"
    """heads, tokens, dim"""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerGeometry:
    """One layer's K and V tensors, for any number of tokens. Dimensions count elements."""

    kv_heads: int
    head_dim: int
    v_head_dim: int
    """0: the layer has no V tensor, and no Objects in a V track (MLA)."""
    dtype: np.dtype[Any]
    layout: Layout

    def dim(self, component: Component) -> int:
        """Return the elements of one head; K or V only."""
        if component is Component.KV:
            raise ValueError("K and V may differ in their dim: ask for one of them")
        return self.head_dim if component is Component.K else self.v_head_dim

    def has(self, component: Component) -> bool:
        """Return whether this layer has Objects in a track of `component`."""
        return component is not Component.V or self.v_head_dim > 0

    def parts(self, component: Component) -> tuple[Component, ...]:
        """Return the tensors in an Object of `component`, in order; V is left out if there is none.

        Empty for component V of a layer without V.
        """
        return tuple(part for part in component.parts if self.has(part))

    def token_axis(self) -> int:
        """Return which axis of a tensor counts tokens."""
        return 0 if self.layout is Layout.NHD else 1

    def shape(self, component: Component, tokens: int) -> tuple[int, int, int]:
        """Return the shape of a K or V tensor of so many tokens, in the layout's order."""
        dim = self.dim(component)
        if self.layout is Layout.NHD:
            return (tokens, self.kv_heads, dim)
        return (self.kv_heads, tokens, dim)

    def raw_octets(self, component: Component, tokens: int) -> int:
        """Return the length of the raw Data: tokens x heads x dim x itemsize, K and V summed."""
        elements = sum(map(self.dim, component.parts))
        return tokens * self.kv_heads * elements * self.dtype.itemsize

    def empty(self, component: Component, tokens: int) -> AnyArray:
        """Return a new, uninitialised, C-contiguous array for a K or V tensor."""
        return np.empty(self.shape(component, tokens), self.dtype)


@dataclass(frozen=True, slots=True)
class BlockShape:
    """One Object's raw Data: so many tokens of one component in one layer. Sizes in octets."""

    geometry: LayerGeometry
    component: Component
    tokens: int

    sections: tuple[int, ...] = field(init=False, compare=False)
    """The length of each raw section in order: K, then V; none for a V that does not exist."""
    raw_octets: int = field(init=False, compare=False)
    """The length of the raw Data, all sections together."""

    def __post_init__(self) -> None:
        parts = self.geometry.parts(self.component)
        sections = tuple(self.geometry.raw_octets(part, self.tokens) for part in parts)
        object.__setattr__(self, "sections", sections)
        object.__setattr__(self, "raw_octets", sum(sections))

    @property
    def itemsize(self) -> int:
        """Octets of one element."""
        return self.geometry.dtype.itemsize
