"""Arrays that callers hand over by mistake: the error says what, and nothing is written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from kvcs.destinations import Destinations
from kvcs.errors import TensorMismatch
from kvcs.kvsp.shapes import Component
from kvcs.kvsp.tensors import LayerTensor
from tests.kvcs.support import describe

if TYPE_CHECKING:
    from kvcs.kvsp.shapes import AnyArray

DESCRIPTOR = describe(layers=3)
TOKENS = 8


def empty() -> AnyArray:
    return DESCRIPTOR.geometry(0).empty(Component.K, TOKENS)


def place(into: Any) -> Destinations:
    return Destinations(DESCRIPTOR, first_layer=0, last_layer=2, tokens=TOKENS, into=into)


def test_one_pair_for_all_layers_is_refused() -> None:
    with pytest.raises(
        TensorMismatch, match=r"(k|v) array of layer \d shares memory with \1 array of"
    ):
        place([(empty(), empty())] * 3)


def test_one_array_for_k_and_v_is_refused() -> None:
    shared = empty()
    with pytest.raises(TensorMismatch, match="shares memory"):
        place([(empty(), empty()), (shared, shared), (empty(), empty())])


def test_layers_interleaved_in_one_pool_are_taken() -> None:
    pool = np.zeros((TOKENS, 3, 2, *empty().shape[1:]), empty().dtype)
    destinations = place([(pool[:, layer, 0], pool[:, layer, 1]) for layer in range(3)])
    k, v = destinations.arrays(1)
    assert np.shares_memory(k, pool)
    assert v is not None


def test_arrays_that_overlap_behind_the_wanted_tokens_are_taken() -> None:
    pool = np.zeros((7 * TOKENS, *empty().shape[1:]), empty().dtype)
    views = [pool[at * TOKENS : (at + 2) * TOKENS] for at in range(6)]
    place([(views[2 * layer], views[2 * layer + 1]) for layer in range(3)])


@pytest.mark.parametrize("pair", [None, 5, (1, 2, 3), np.zeros((3, 2, 8))])
def test_what_is_no_pair_is_refused(pair: object) -> None:
    with pytest.raises(TensorMismatch, match="layer 0 needs a pair of arrays, K and V"):
        place([pair] * 3)


def test_a_list_is_no_tensor() -> None:
    with pytest.raises(TensorMismatch, match="expected a numpy array, got list"):
        LayerTensor([[[0.0]]], DESCRIPTOR.geometry(0), Component.K)  # type: ignore[arg-type]
