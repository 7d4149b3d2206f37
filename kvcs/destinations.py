"""Where a retrieval's tensors are: the caller's arrays, or arrays allocated once (KVCS 5.4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.lib.array_utils import byte_bounds

from kvcs.errors import TensorMismatch
from kvcs.kvsp.shapes import AnyArray, BlockShape, Component, Layout
from kvcs.kvsp.tensors import MIN_RUN_OCTETS, LayerTensor
from kvcs.wanted import LayerMemory

if TYPE_CHECKING:
    from concurrent.futures import Executor, Future

    from kvcs.kvsp.descriptor import Descriptor

__all__ = ["Destinations", "Into", "LayerArrays"]

LayerArrays: TypeAlias = "tuple[AnyArray, AnyArray | None]"
"""K and V of one layer; V None where the layer has none."""

Into: TypeAlias = "Mapping[int, LayerArrays] | Sequence[LayerArrays]"
"""By layer, or in the order of the layers asked for."""


MAX_OVERLAP_WORK = 10_000
"""Bound on numpy's search for an octet that two strided arrays share; some layouts need more, and
are trusted."""


PREPARED_LAYERS = 2
"""Layers that are allocated before their first Object comes."""

PAGE_OCTETS = 4096
"""The smallest unit in which systems give memory."""


class Destinations:
    """The K and V arrays of the layers `first_layer` to `last_layer`, `tokens` tokens of each.

    `into`: arrays that the caller owns; each has the descriptor's layout and dtype, and `tokens`
    tokens or more, of which the first `tokens` are written. None: each layer's arrays are allocated
    when its first Object arrives, or shortly before by `threads`.
    Raises: TensorMismatch for arrays that do not fit, or share memory with each other.
    """

    def __init__(
        self,
        descriptor: Descriptor,
        *,
        first_layer: int,
        last_layer: int,
        tokens: int,
        into: Into | None = None,
        threads: Executor | None = None,
    ) -> None:
        self.tokens = tokens
        self._descriptor = descriptor
        self._tensors: dict[int, dict[Component, LayerTensor]] = {}
        self._threads = threads
        self._is_given = into is not None
        self._stop_layer = last_layer + 1
        self._next_prepared = first_layer
        self._prepared: dict[int, Future[dict[Component, LayerTensor]]] = {}
        if into is None:
            return
        layers = range(first_layer, last_layer + 1)
        if isinstance(into, Mapping):
            missing = [layer for layer in layers if layer not in into]
            if missing:
                raise TensorMismatch(f"into: no arrays for layer {missing[0]}")
            arrays = {layer: into[layer] for layer in layers}
        else:
            if len(into) != len(layers):
                raise TensorMismatch(
                    f"into: {len(into)} pairs of arrays for {len(layers)} layers "
                    f"({first_layer}..{last_layer})"
                )
            arrays = dict(zip(layers, into, strict=True))
        for layer, pair in arrays.items():
            if not isinstance(pair, (tuple, list)) or len(pair) != 2:
                raise TensorMismatch(f"into: layer {layer} needs a pair of arrays, K and V")
            self._tensors[layer] = self._checked(layer, *pair)
        self._refuse_shared_memory()

    def tensor(self, layer: int, component: Component) -> LayerTensor:
        """Return the array of K or V of a layer; it is allocated now if it was not yet."""
        tensors = self._tensors.get(layer)
        if tensors is None:
            tensors = self._tensors[layer] = self._allocated(layer)
        return tensors[component]

    def prepare(self, layer: int) -> None:
        """Begin to allocate a layer and the next ones in the background, where that is ours to do.

        The system gives memory when it is first written to, which takes longer than all else that
        is done to it: a thread does that before Objects come.
        """
        if self._threads is None or self._is_given:
            return
        for ahead in range(layer, min(layer + PREPARED_LAYERS, self._stop_layer)):
            if ahead >= self._next_prepared:
                self._next_prepared = ahead + 1
                if ahead not in self._tensors:
                    self._prepared[ahead] = self._threads.submit(self._touched, ahead)

    def _allocated(self, layer: int) -> dict[Component, LayerTensor]:
        prepared = self._prepared.pop(layer, None)
        self.prepare(layer + 1)
        if prepared is None or prepared.cancel():
            return self._empty(layer)
        return prepared.result()  # it is at work on it, or done

    def _empty(self, layer: int) -> dict[Component, LayerTensor]:
        geometry = self._descriptor.geometry(layer)
        return {
            part: LayerTensor(geometry.empty(part, self.tokens), geometry, part)
            for part in geometry.parts(Component.KV)
        }

    def _touched(self, layer: int) -> dict[Component, LayerTensor]:
        """Allocate a layer so that the system gives the memory now. Runs in a thread."""
        tensors = self._empty(layer)
        for tensor in tensors.values():
            tensor.array.reshape(-1).view("u1")[::PAGE_OCTETS] = 0
        return tensors

    def arrays(self, layer: int) -> LayerArrays:
        """Return K and V of a layer, exactly `tokens` tokens; views of the caller's arrays."""
        k = self._shown(layer, Component.K)
        if not self._descriptor.geometry(layer).has(Component.V):
            return k, None
        return k, self._shown(layer, Component.V)

    def drop(self, layer: int) -> None:
        """Forget a layer's arrays: they were handed over."""
        self._tensors.pop(layer, None)

    def close(self) -> None:
        """Prepare nothing more."""
        self._stop_layer = 0
        for prepared in self._prepared.values():
            prepared.cancel()
        self._prepared.clear()

    def memory(
        self, layer: int, shape: BlockShape, *, first_token: int, blocks: int
    ) -> LayerMemory:
        """Return the memory of `blocks` blocks from `first_token` on, in runs through all blocks.

        One for each tensor in layout NHD, one for each head in HND; none where strides leave gaps,
        or runs of a block that are too short to be worth while. It is the arrays' own.
        """
        views: list[memoryview] = []
        octets: list[int] = []
        for part, section in zip(
            shape.geometry.parts(shape.component), shape.sections, strict=True
        ):
            array = self.tensor(layer, part).array
            rows = [array] if self._descriptor.layout is Layout.NHD else list(array)
            run = section // len(rows)
            if not all(row.flags.c_contiguous for row in rows) or (
                len(rows) > 1 and run < MIN_RUN_OCTETS
            ):
                return LayerMemory((), ())
            start = first_token // shape.tokens * run
            views += [row.reshape(-1).view("u1").data[start : start + blocks * run] for row in rows]
            octets += [run] * len(rows)
        return LayerMemory(tuple(views), tuple(octets))

    def runs(
        self, layer: int, shape: BlockShape, first_token: int
    ) -> tuple[memoryview, ...] | None:
        """Return the arrays' own memory for one block, K then V, in raw order.

        None when strides leave no runs worth while: receive elsewhere and `write` then.
        """
        runs: list[memoryview] = []
        for part in shape.geometry.parts(shape.component):
            found = self.tensor(layer, part).destinations(first_token, shape.tokens)
            if found is None:
                return None
            runs += found
        return tuple(runs)

    def write(
        self, layer: int, shape: BlockShape, first_token: int, raw: tuple[memoryview, ...]
    ) -> None:
        """Write a block's raw sections to their place, whatever its strides."""
        whole = raw[0] if len(raw) == 1 else memoryview(b"".join(raw))
        parts = shape.geometry.parts(shape.component)
        start = 0
        for part, octets in zip(parts, shape.sections, strict=True):
            section = whole[start : start + octets]
            self.tensor(layer, part).scatter(section, first_token, shape.tokens)
            start += octets

    def _shown(self, layer: int, component: Component) -> AnyArray:
        array = self.tensor(layer, component).array
        if self._descriptor.geometry(layer).layout is Layout.NHD:
            return array[: self.tokens]
        return array[:, : self.tokens]

    def _refuse_shared_memory(self) -> None:
        """Refuse arrays that would be written over each other: Objects come in any order."""
        placed = [
            (*byte_bounds(shown), shown, f"{part.text} array of layer {layer}")
            for layer, tensors in self._tensors.items()
            for part in tensors
            if (shown := self._shown(layer, part)).size
        ]
        placed.sort(key=lambda one: one[:2])
        for at, (_, stop, array, what) in enumerate(placed):
            for start, _, other, other_what in placed[at + 1 :]:
                if start >= stop:
                    break
                if _shares_memory(array, other):
                    raise TensorMismatch(f"into: {what} shares memory with {other_what}")

    def _checked(self, layer: int, k: AnyArray, v: AnyArray | None) -> dict[Component, LayerTensor]:
        geometry = self._descriptor.geometry(layer)
        if (v is not None) != geometry.has(Component.V):
            expected = "a V array" if geometry.has(Component.V) else "no V array (v_head_dim 0)"
            raise TensorMismatch(f"into: layer {layer} needs {expected}")
        tensors = {}
        for component, array in ((Component.K, k), (Component.V, v)):
            if array is None:
                continue
            tensor = LayerTensor(array, geometry, component)
            tensor.check_writable()
            if tensor.tokens < self.tokens:
                raise TensorMismatch(
                    f"into: {component.text} array of layer {layer} has {tensor.tokens} tokens, "
                    f"{self.tokens} are needed"
                )
            tensors[component] = tensor
        return tensors


def _shares_memory(one: AnyArray, other: AnyArray) -> bool:
    try:
        # the stubs know only two of the numbers that may stand here
        return np.shares_memory(one, other, max_work=MAX_OVERLAP_WORK)  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return False
