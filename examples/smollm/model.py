"""Forward pass of a Llama-style model in float32 numpy, with its KV cache kept in bfloat16.

What matters here is the seam: `Model.forward` calls `on_layer` the moment a layer has
computed K and V of the new tokens (a producer publishes them), and `wait_for_layer` before a
layer reads its cache (a consumer blocks there until that layer has arrived, while later layers
are still on their way).

Attention always reads K and V back from the bfloat16 cache, also those that were just computed.
So a cache that came over the network and one computed here give the same logits bit for bit, as
long as both runs cut the tokens into the same chunks and use the same number of BLAS threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float32]
Bfloats: TypeAlias = NDArray[Any]  # ml_dtypes.bfloat16, which numpy's type stubs do not know

OnLayer: TypeAlias = Callable[[int, Bfloats, Bfloats], None]
WaitForLayer: TypeAlias = Callable[[int], None]

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes of the model; `width` is the residual stream, `hidden` the feed-forward's inside."""

    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    width: int
    hidden: int
    vocabulary: int
    rope_base: float
    norm_epsilon: float


SMOLLM2_135M = ModelShape(
    layers=30,
    heads=9,
    kv_heads=3,
    head_dim=64,
    width=576,
    hidden=1536,
    vocabulary=49152,
    rope_base=100_000.0,
    norm_epsilon=1e-5,
)


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer's float32 matrices, each [inputs, outputs], and its two norms."""

    attention_norm: Floats
    qkv: Floats
    attention_output: Floats
    feed_forward_norm: Floats
    gate_up: Floats
    down: Floats


@dataclass(frozen=True, slots=True)
class Weights:
    """All weights. `embedding` is [vocabulary, width] and serves as the output matrix too."""

    layers: tuple[LayerWeights, ...]
    embedding: Floats
    output_norm: Floats


class KvCache:
    """K and V of every layer after RoPE, each bfloat16 [capacity, kv_heads, head_dim].

    The arrays belong to the cache and stay where they are, so a receiver may write straight into
    `keys[l][:n]` and `values[l][:n]`. `length` counts tokens whose K and V are there or promised: a
    cache built with `length=n` has a prefix that `wait_for_layer` brings.
    """

    def __init__(self, shape: ModelShape, capacity: int, *, length: int = 0) -> None:
        if not 0 <= length <= capacity:
            raise ValueError(f"length is {length}, expected 0..{capacity} (the capacity)")
        size = (capacity, shape.kv_heads, shape.head_dim)
        self.keys: list[Bfloats] = [np.zeros(size, BFLOAT16) for _ in range(shape.layers)]
        self.values: list[Bfloats] = [np.zeros(size, BFLOAT16) for _ in range(shape.layers)]
        self.capacity = capacity
        self.length = length


class Model:
    """RMSNorm, RoPE, grouped-query attention and SwiGLU over `weights`."""

    def __init__(self, shape: ModelShape, weights: Weights) -> None:
        self.shape = shape
        self.weights = weights
        self._frequencies = 1.0 / shape.rope_base ** (
            np.arange(0, shape.head_dim, 2, dtype=np.float64) / shape.head_dim
        )

    def forward(
        self,
        tokens: Sequence[int],
        cache: KvCache,
        *,
        on_layer: OnLayer | None = None,
        wait_for_layer: WaitForLayer | None = None,
    ) -> Floats:
        """Run `tokens` behind what `cache` holds, append to it, and return the last token's logits.

        `on_layer(layer, k, v)` gets views of the cache, [len(tokens), kv_heads, head_dim], which
        nobody overwrites. `wait_for_layer(layer)` returns when that layer's prefix is in the cache.
        Raises: ValueError for no tokens, and for more tokens than the cache has room for.
        """
        first, stop = cache.length, cache.length + len(tokens)
        if not tokens or stop > cache.capacity:
            raise ValueError(
                f"{len(tokens)} tokens behind {first}, expected 1..{cache.capacity - first}"
            )
        x: Floats = self.weights.embedding[np.asarray(tokens)]
        rotation = self._rotation(first, stop)
        for layer in range(self.shape.layers):
            x = self._layer(
                layer, x, cache, rotation, on_layer=on_layer, wait_for_layer=wait_for_layer
            )
        cache.length = stop
        last = _rms_norm(x[-1:], self.weights.output_norm, self.shape.norm_epsilon)
        logits: Floats = (self.weights.embedding @ last[0]).astype(np.float32, copy=False)
        return logits

    def prefill(
        self,
        tokens: Sequence[int],
        cache: KvCache,
        *,
        chunk_tokens: int,
        on_layer: OnLayer | None = None,
    ) -> Floats:
        """Run a prompt in chunks of `chunk_tokens` (the last may be shorter); logits of its end."""
        if chunk_tokens < 1 or not tokens:
            raise ValueError(
                f"{len(tokens)} tokens in chunks of {chunk_tokens}, expected >= 1 each"
            )
        for start in range(0, len(tokens), chunk_tokens):
            logits = self.forward(tokens[start : start + chunk_tokens], cache, on_layer=on_layer)
        return logits

    def decode(self, logits: Floats, cache: KvCache, *, new_tokens: int) -> list[int]:
        """Continue greedily for `new_tokens` tokens from the logits of the last prompt token."""
        produced = [int(logits.argmax())]
        while len(produced) < new_tokens:
            produced.append(int(self.forward(produced[-1:], cache).argmax()))
        return produced

    def _layer(
        self,
        layer: int,
        x: Floats,
        cache: KvCache,
        rotation: tuple[Floats, Floats],
        *,
        on_layer: OnLayer | None,
        wait_for_layer: WaitForLayer | None,
    ) -> Floats:
        shape, weights = self.shape, self.weights.layers[layer]
        first, stop = cache.length, cache.length + len(x)
        normed = _rms_norm(x, weights.attention_norm, shape.norm_epsilon)
        q, k, v = np.split(
            (normed @ weights.qkv).reshape(len(x), -1, shape.head_dim),
            [shape.heads, shape.heads + shape.kv_heads],
            axis=1,
        )
        new_keys, new_values = cache.keys[layer][first:stop], cache.values[layer][first:stop]
        new_keys[:] = _rotate(k, rotation)
        new_values[:] = v
        if on_layer is not None:
            on_layer(layer, new_keys, new_values)
        if wait_for_layer is not None:
            wait_for_layer(layer)
        mixed = self._attend(
            _rotate(q, rotation),
            _widen(cache.keys[layer][:stop]),
            _widen(cache.values[layer][:stop]),
        )
        x = x + mixed @ weights.attention_output
        normed = _rms_norm(x, weights.feed_forward_norm, shape.norm_epsilon)
        gate, up = np.split(normed @ weights.gate_up, 2, axis=1)
        x = x + (gate / (1.0 + np.exp(-gate)) * up) @ weights.down
        return x

    def _attend(self, q: Floats, k: Floats, v: Floats) -> Floats:
        """Causal attention of the last len(q) tokens over all of k and v, by groups of heads."""
        new, total = len(q), len(k)
        group = self.shape.heads // self.shape.kv_heads
        # [kv_heads, group * new, dim] so that one matrix product a KV head serves its whole group.
        by_group = q.reshape(new, self.shape.kv_heads, group, -1).transpose(1, 2, 0, 3)
        grouped = by_group.reshape(self.shape.kv_heads, group * new, -1)
        scores: Floats = grouped @ k.transpose(1, 2, 0) * np.float32(self.shape.head_dim**-0.5)
        if new > 1:
            visible = np.tri(new, total, total - new, dtype=bool)
            scores = np.where(np.tile(visible, (group, 1)), scores, np.float32(-np.inf))
        scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
        scores /= scores.sum(axis=-1, keepdims=True)
        mixed: Floats = scores @ v.transpose(1, 0, 2)
        by_head: Floats = mixed.reshape(self.shape.kv_heads, group, new, -1)
        result: Floats = by_head.transpose(2, 0, 1, 3).reshape(new, -1)
        return result

    def _rotation(self, first: int, stop: int) -> tuple[Floats, Floats]:
        """Cosine and sine of positions first..stop-1, each [tokens, 1, head_dim / 2]."""
        angles = np.outer(np.arange(first, stop), self._frequencies)[:, None, :]
        return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def _rotate(x: Floats, rotation: tuple[Floats, Floats]) -> Floats:
    # GGUF files of the llama architecture permute the rows of Q and K: (2i, 2i + 1) is a pair.
    cosine, sine = rotation
    even, odd = x[..., 0::2], x[..., 1::2]
    rotated = np.empty_like(x)
    rotated[..., 0::2] = even * cosine - odd * sine
    rotated[..., 1::2] = even * sine + odd * cosine
    return rotated


def _rms_norm(x: Floats, weight: Floats, epsilon: float) -> Floats:
    result: Floats = x / np.sqrt(np.square(x).mean(axis=-1, keepdims=True) + epsilon) * weight
    return result


def _widen(x: Bfloats) -> Floats:
    # A bfloat16 is the upper half of the float32; four times as fast as astype.
    wide: Floats = (x.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)
    return wide
