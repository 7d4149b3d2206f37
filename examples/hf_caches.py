"""Caches for Hugging Face transformers 5.x: one publishes what a model adds, one waits for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from transformers.cache_utils import DynamicCache

from kvcs.integrations.torch import to_numpy, to_torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch
    from numpy.typing import NDArray


class PublishingCache(DynamicCache):
    """Calls `on_layer(layer, k, v)` the moment a forward pass has made a layer's new K and V.

    k and v are [kv_heads, new tokens, head_dim] after RoPE, sharing the model's memory: whoever
    wants to keep them copies them during the call. The batch has one sequence.
    """

    def __init__(
        self, config: Any, on_layer: Callable[[int, NDArray[Any], NDArray[Any]], None]
    ) -> None:
        super().__init__(config=config)
        self._on_layer = on_layer

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, **others: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        self._on_layer(layer_idx, to_numpy(key_states[0]), to_numpy(value_states[0]))
        return super().update(key_states, value_states, layer_idx, **others)


class StreamedCache(DynamicCache):
    """A cache whose prefix arrives while the model runs: layer l waits for layer l alone.

    `layers[l]` holds K and V of the prefix, [kv_heads, prefix_tokens, head_dim], once
    `wait_for_layer(l)` returned. How long the prefix is, is known before: positions and masks need
    no tensor. For models whose layers all attend to the whole prefix.
    """

    def __init__(
        self,
        config: Any,
        prefix: Sequence[tuple[NDArray[Any], NDArray[Any]]],
        wait_for_layer: Callable[[int], None],
    ) -> None:
        super().__init__(config=config)
        self._prefix = prefix
        self._wait_for_layer = wait_for_layer
        self._is_loaded = [False] * len(prefix)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        if self._is_loaded[layer_idx]:
            return int(super().get_seq_length(layer_idx))
        return self._prefix[layer_idx][0].shape[1]

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return self.get_seq_length(layer_idx) + query_length, 0

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, **others: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if not self._is_loaded[layer_idx]:
            self._wait_for_layer(layer_idx)
            k, v = (to_torch(array)[None] for array in self._prefix[layer_idx])
            super().update(k, v, layer_idx)
            self._is_loaded[layer_idx] = True
        return super().update(key_states, value_states, layer_idx, **others)
