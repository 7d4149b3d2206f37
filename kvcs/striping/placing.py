"""Where the tensors of a striped retrieval are: in shared memory, the caller's or our own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvcs.destinations import Destinations
from kvcs.striping.channel import MAX_DESCRIPTORS
from kvcs.striping.memory import ArrayPlace, SharedMap, locate, shared_arrays

if TYPE_CHECKING:
    from kvcs.destinations import Into, LayerArrays
    from kvcs.kvsp.descriptor import Descriptor
    from kvcs.kvsp.shapes import AnyArray

__all__ = ["Placing"]


class Placing:
    """The K and V arrays of `layers`, `tokens` tokens of each, and where workers find them.

    Arrays of `into` outside of shared memory have copies inside, from which `arrays` fills them.
    Raises: TensorMismatch as `Destinations`, ValueError for too many shared memories, OSError.
    """

    def __init__(
        self, descriptor: Descriptor, layers: range, *, tokens: int, into: Into | None
    ) -> None:
        self.maps: list[SharedMap] = []
        """Shared memories, to be handed to workers."""
        self.places: dict[int, tuple[ArrayPlace, ArrayPlace | None]] = {}
        """By layer: K, and V where there is one."""
        self._copied: dict[int, LayerArrays] = {}

        def destinations(arrays: Into | None) -> Destinations:
            return Destinations(
                descriptor, first_layer=layers[0], last_layer=layers[-1], tokens=tokens, into=arrays
            )

        if into is None:
            self._shown = destinations(shared_arrays(descriptor, tokens, layers))
        else:
            self._shown = destinations(into)
        apart = [layer for layer in layers if not self._locate(layer, self._shown.arrays(layer))]
        if apart:
            self._copied = shared_arrays(descriptor, tokens, apart)
            for layer, arrays in self._copied.items():
                self._locate(layer, arrays)
        if len(self.maps) > MAX_DESCRIPTORS:
            raise ValueError(
                f"into: arrays lie in {len(self.maps)} shared memories, at most {MAX_DESCRIPTORS}; "
                "shared_arrays puts all layers into one"
            )

    def arrays(self, layer: int) -> LayerArrays:
        """Return K and V of a layer that is there; called once a layer."""
        shown = self._shown.arrays(layer)
        for theirs, ours in zip(shown, self._copied.pop(layer, ()), strict=False):
            if theirs is not None and ours is not None:
                np.copyto(theirs, ours)
        self._shown.drop(layer)
        return shown

    def _locate(self, layer: int, arrays: LayerArrays) -> bool:
        def place(array: AnyArray) -> ArrayPlace | None:
            return locate(array, self.maps)

        k = place(arrays[0])
        v = None if arrays[1] is None else place(arrays[1])
        if k is None or (v is None) != (arrays[1] is None):
            return False
        self.places[layer] = (k, v)
        return True
