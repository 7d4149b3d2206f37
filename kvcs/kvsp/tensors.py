"""One layer's K or V array, cut into the raw sections of blocks, and filled from them.

Nothing is guessed: the array's axes are in the descriptor's layout, its dtype is the descriptor's.
Strides may be any; they only decide whether octets can stay where they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvcs.errors import TensorMismatch
from kvcs.kvsp.shapes import AnyArray, Component, LayerGeometry, Layout

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["MIN_RUN_OCTETS", "LayerTensor"]

MIN_RUN_OCTETS = 512
"""Shorter runs are not offered as destinations: each costs more than copying the octets again."""


class LayerTensor:
    """A K or V array of one layer, checked once against its geometry.

    Shape [tokens, heads, dim] in layout NHD, [heads, tokens, dim] in HND; any number of tokens.
    Raises: TensorMismatch when axes, shape or dtype differ, or the array is not little-endian.
    Source: KVCS 3.5, kvsp-1, 4.
    """

    __slots__ = ("_axis", "_bits", "_flat", "_geometry", "array", "component", "tokens")

    def __init__(self, array: AnyArray, geometry: LayerGeometry, component: Component) -> None:
        self.array = array
        self.component = component
        self._geometry = geometry
        self._axis = geometry.token_axis()
        axes = "tokens, heads, dim" if geometry.layout is Layout.NHD else "heads, tokens, dim"
        what = f"{component.text} array in layout {geometry.layout.value!r} ({axes})"
        if not isinstance(array, np.ndarray):
            raise TensorMismatch(f"{what}: expected a numpy array, got {type(array).__name__}")
        if array.ndim != 3:
            raise TensorMismatch(f"{what}: expected 3 axes, got shape {array.shape}")
        self.tokens: int = array.shape[self._axis]
        expected = geometry.shape(component, self.tokens)
        if array.shape != expected:
            shown = ["tokens" if axis == self._axis else n for axis, n in enumerate(expected)]
            raise TensorMismatch(
                f"{what}: expected shape ({', '.join(map(str, shown))}), got {array.shape}"
            )
        if array.dtype != geometry.dtype:
            order = " in big-endian order" if array.dtype.byteorder == ">" else ""
            raise TensorMismatch(
                f"{what}: expected dtype {geometry.dtype.name}, got {array.dtype.name}{order}"
            )
        # numpy copies bfloat16 and float8 element by element, integers of the same width by memcpy
        self._bits: AnyArray = array.view(f"u{array.itemsize}")
        self._flat: memoryview | None = None

    def _tokens(self, first_token: int, tokens: int) -> AnyArray:
        """Return the array's view of a range of tokens."""
        if first_token < 0 or tokens < 0 or first_token + tokens > self.tokens:
            raise TensorMismatch(
                f"{self.component.text} array has {self.tokens} tokens, "
                f"{first_token}..{first_token + tokens - 1} asked for"
            )
        stop = first_token + tokens
        if self._axis == 0:
            return self._bits[first_token:stop]
        return self._bits[:, first_token:stop]

    def cut(
        self, *, first_token: int, block_tokens: int, blocks: int, copy: bool
    ) -> list[memoryview]:
        """Return the raw section of each of `blocks` blocks, in order: `sections`, cut.

        Raises: TensorMismatch when the array has fewer tokens.
        """
        octets = self.sections(first_token, block_tokens, blocks, copy=copy)
        size = self._geometry.raw_octets(self.component, block_tokens)
        return [octets[block * size : (block + 1) * size] for block in range(blocks)]

    def sections(
        self, first_token: int, block_tokens: int, blocks: int, *, copy: bool
    ) -> memoryview:
        """Return the raw sections of `blocks` blocks, one after the other: flat read-only octets.

        With `copy` the octets are the caller's of this moment, in new memory. Without it they are
        the array's own where blocks are contiguous in it, else copied too. The exporter,
        `result.obj`, lives until the last slice of them is gone: what lends its array watches that
        object.
        Raises: TensorMismatch when the array has fewer tokens.
        """
        tokens = block_tokens * blocks
        view = self._tokens(first_token, tokens)
        if self._axis == 1 and blocks > 1:
            heads, _, dim = view.shape
            if view.size:
                view = view.reshape(heads, blocks, block_tokens, dim).transpose(1, 0, 2, 3)
        contiguous = np.array(view, order="C", copy=True) if copy else np.ascontiguousarray(view)
        octets: memoryview = contiguous.reshape(-1).view(np.uint8).data.toreadonly()
        return octets

    def destinations(self, first_token: int, tokens: int) -> list[memoryview] | None:
        """Return the array's own memory for one block's raw section, as runs in raw order.

        The runs are writable, flat octets, together as long as the section. None when strides leave
        no whole runs of at least MIN_RUN_OCTETS: receive into scratch and `scatter` then.
        Raises: TensorMismatch when the array cannot be written or its elements share memory.
        """
        if self._flat is None:
            self.check_writable()
            if self._axis == 0 and self._bits.flags.c_contiguous:
                self._flat = self._bits.reshape(-1).view(np.uint8).data
        view = self._tokens(first_token, tokens)
        if not view.size:
            return []
        if self._flat is not None:
            start = first_token * self._bits.strides[0]
            return [self._flat[start : start + view.nbytes]]
        inner = view.itemsize
        axis = 3
        while axis and (view.shape[axis - 1] == 1 or view.strides[axis - 1] == inner):
            axis -= 1
            inner *= view.shape[axis]
        if axis and inner < MIN_RUN_OCTETS:
            return None
        return [
            view[index].reshape(-1).view(np.uint8).data for index in np.ndindex(view.shape[:axis])
        ]

    def scatter(
        self, raw: Sequence[memoryview] | memoryview, first_token: int, tokens: int
    ) -> None:
        """Write one block's raw section into the array, whatever its strides.

        Raises: TensorMismatch when the array cannot be written; ValueError for another length.
        """
        self.check_writable()
        view = self._tokens(first_token, tokens)
        octets = raw if isinstance(raw, memoryview) else b"".join(raw)
        view[...] = np.frombuffer(octets, np.uint8).view(view.dtype).reshape(view.shape)

    def check_writable(self) -> None:
        """Check that blocks can be written. Raises: TensorMismatch."""
        if not self.array.flags.writeable:
            raise TensorMismatch(f"{self.component.text} array is read-only")
        steps = zip(self.array.shape, self.array.strides, strict=True)
        if self.array.size and any(n > 1 and stride == 0 for n, stride in steps):
            raise TensorMismatch(f"{self.component.text} array repeats memory (a stride is 0)")
