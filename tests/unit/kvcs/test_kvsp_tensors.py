"""Arrays cut into raw sections and filled from them, whatever their strides."""

from __future__ import annotations

import gc
import weakref
from typing import TYPE_CHECKING

import numpy as np
import pytest

from kvcs.errors import TensorMismatch
from kvcs.kvsp import AnyArray, Component, LayerGeometry, LayerTensor, Layout
from kvcs.kvsp.shapes import DTYPES

if TYPE_CHECKING:
    from collections.abc import Callable

TOKENS = 64
BLOCK = 16
BLOCKS = 4


def geometry(
    layout: Layout = Layout.NHD, dtype: str = "bfloat16", *, dim: int = 32, v_dim: int = 8
) -> LayerGeometry:
    return LayerGeometry(
        kv_heads=3, head_dim=dim, v_head_dim=v_dim, dtype=DTYPES[dtype], layout=layout
    )


def every_octet(layer: LayerGeometry, component: Component = Component.K) -> AnyArray:
    """An array of random octets: for floats that includes NaNs of many payloads."""
    octets = np.random.default_rng(7).bytes(layer.raw_octets(component, TOKENS))
    return np.frombuffer(octets, layer.dtype).reshape(layer.shape(component, TOKENS)).copy()


def block_of(array: AnyArray, layout: Layout, first_token: int, tokens: int = BLOCK) -> bytes:
    """The raw section as its definition says, element by element."""
    axis = 0 if layout is Layout.NHD else 1
    return np.take(array, range(first_token, first_token + tokens), axis=axis).tobytes()


STRIDES: dict[str, Callable[[AnyArray], AnyArray]] = {
    "contiguous": lambda a: a,
    "Fortran": np.asfortranarray,
    "every second token": lambda a: np.repeat(a, 2, axis=0)[::2],
    "inside wider heads": lambda a: np.concatenate([a, a], axis=2)[:, :, : a.shape[2]],
    "inside more heads": lambda a: np.concatenate([a, a], axis=1)[:, : a.shape[1]],
    "backwards": lambda a: a[::-1].copy()[::-1],
    "dim backwards": lambda a: a[:, :, ::-1].copy()[:, :, ::-1],
    "transposed": lambda a: a.transpose(1, 0, 2).copy().transpose(1, 0, 2),
}


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("strides", STRIDES)
@pytest.mark.parametrize("copy", [True, False])
def test_blocks_are_cut_from_any_strides(layout: Layout, strides: str, copy: bool) -> None:
    layer = geometry(layout)
    array = every_octet(layer)
    tensor = LayerTensor(STRIDES[strides](array), layer, Component.K)
    blocks = tensor.cut(first_token=BLOCK, block_tokens=BLOCK, blocks=3, copy=copy)
    assert [bytes(block) for block in blocks] == [
        block_of(array, layout, first) for first in (16, 32, 48)
    ]
    assert all(block.readonly and block.format == "B" and block.ndim == 1 for block in blocks)


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("strides", STRIDES)
def test_blocks_are_put_into_any_strides(layout: Layout, strides: str) -> None:
    layer = geometry(layout)
    source = every_octet(layer)
    target = STRIDES[strides](np.zeros_like(source))
    tensor = LayerTensor(target, layer, Component.K)
    for first in range(0, TOKENS, BLOCK):
        raw = block_of(source, layout, first)
        runs = tensor.destinations(first, BLOCK)
        if runs is None:
            tensor.scatter(memoryview(raw), first, BLOCK)
            continue
        assert sum(map(len, runs)) == len(raw)
        at = 0
        for run in runs:
            run[:] = raw[at : at + len(run)]
            at += len(run)
    assert target.tobytes() == source.tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("component", [Component.K, Component.V])
def test_every_dtype_keeps_every_bit(dtype: str, layout: Layout, component: Component) -> None:
    layer = geometry(layout, dtype)
    source = every_octet(layer, component)
    target = layer.empty(component, TOKENS)
    blocks = LayerTensor(source, layer, component).cut(
        first_token=0, block_tokens=BLOCK, blocks=BLOCKS, copy=True
    )
    into = LayerTensor(target, layer, component)
    for index, block in enumerate(blocks):
        into.scatter([block[:7], block[7:]], index * BLOCK, BLOCK)
    assert target.tobytes() == source.tobytes()


def test_runs_are_as_long_as_strides_allow() -> None:
    nhd, hnd = geometry(), geometry(Layout.HND)
    whole = LayerTensor(nhd.empty(Component.K, TOKENS), nhd, Component.K)
    assert [len(run) for run in whole.destinations(0, BLOCK) or ()] == [BLOCK * 3 * 32 * 2]
    heads = LayerTensor(hnd.empty(Component.K, TOKENS), hnd, Component.K)
    assert [len(run) for run in heads.destinations(0, BLOCK) or ()] == [BLOCK * 32 * 2] * 3
    assert len(heads.destinations(0, TOKENS) or ()) == 1
    wide = np.zeros((TOKENS, 3, 64), nhd.dtype)[:, :, :32]
    assert LayerTensor(wide, nhd, Component.K).destinations(0, BLOCK) is None
    assert LayerTensor(wide, nhd, Component.K).destinations(0, 0) == []


def test_a_copy_is_of_the_moment_and_a_loan_is_not() -> None:
    layer = geometry()
    array = every_octet(layer)
    before = array.tobytes()
    tensor = LayerTensor(array, layer, Component.K)
    copied = tensor.cut(first_token=0, block_tokens=BLOCK, blocks=BLOCKS, copy=True)
    lent = tensor.cut(first_token=0, block_tokens=BLOCK, blocks=BLOCKS, copy=False)
    array.view("u1")[...] = 0
    assert b"".join(copied) == before
    assert b"".join(lent) == bytes(len(before))


def test_the_exporter_lives_as_long_as_the_last_slice() -> None:
    layer = geometry()
    tensor = LayerTensor(every_octet(layer), layer, Component.K)
    blocks = tensor.cut(first_token=0, block_tokens=BLOCK, blocks=BLOCKS, copy=False)
    assert len({id(block.obj) for block in blocks}) == 1
    ended = weakref.ref(blocks[0].obj)
    last = blocks[-1][5:9]
    del blocks
    gc.collect()
    assert ended() is not None
    del last
    gc.collect()
    assert ended() is None


def test_one_block_of_heads_first_is_lent_without_a_copy() -> None:
    layer = geometry(Layout.HND)
    array = every_octet(layer)
    (block,) = LayerTensor(array, layer, Component.K).cut(
        first_token=0, block_tokens=TOKENS, blocks=1, copy=False
    )
    array.view("u1")[...] = 9
    assert bytes(block) == b"\x09" * len(block)


def test_no_v_tensor_has_empty_sections() -> None:
    for layout in Layout:
        layer = geometry(layout, v_dim=0)
        tensor = LayerTensor(layer.empty(Component.V, TOKENS), layer, Component.V)
        blocks = tensor.cut(first_token=0, block_tokens=BLOCK, blocks=BLOCKS, copy=False)
        assert [len(block) for block in blocks] == [0] * BLOCKS
        assert tensor.destinations(0, BLOCK) == []


def test_what_does_not_fit_the_descriptor_is_refused_with_both_sides() -> None:
    layer = geometry()
    good = layer.empty(Component.K, TOKENS)
    with pytest.raises(TensorMismatch, match="expected 3 axes"):
        LayerTensor(good[0], layer, Component.K)
    with pytest.raises(TensorMismatch, match=r"\(tokens, 3, 32\), got \(3, 64, 32\)"):
        LayerTensor(good.transpose(1, 0, 2), layer, Component.K)
    with pytest.raises(TensorMismatch, match="expected dtype bfloat16, got uint16"):
        LayerTensor(good.view("u2"), layer, Component.K)
    floats = geometry(dtype="float32")
    swapped = np.zeros(floats.shape(Component.K, TOKENS), ">f4")
    with pytest.raises(TensorMismatch, match="big-endian"):
        LayerTensor(swapped, floats, Component.K)
    tensor = LayerTensor(good, layer, Component.K)
    for first, blocks in ((0, 5), (-1, 1), (63, 1)):
        with pytest.raises(TensorMismatch, match="has 64 tokens"):
            tensor.cut(first_token=first, block_tokens=BLOCK, blocks=blocks, copy=True)


def test_memory_that_cannot_be_written_is_no_destination() -> None:
    layer = geometry()
    locked = layer.empty(Component.K, TOKENS)
    locked.flags.writeable = False
    with pytest.raises(TensorMismatch, match="read-only"):
        LayerTensor(locked, layer, Component.K).destinations(0, BLOCK)
    row = np.zeros((1, 3, 32), layer.dtype)
    shared = np.lib.stride_tricks.as_strided(row, (TOKENS, 3, 32), (0, *row.strides[1:]))
    with pytest.raises(TensorMismatch, match="repeats memory"):
        LayerTensor(shared, layer, Component.K).scatter(memoryview(b""), 0, BLOCK)
    repeated = LayerTensor(np.broadcast_to(row, (TOKENS, 3, 32)), layer, Component.K)
    blocks = repeated.cut(first_token=0, block_tokens=BLOCK, blocks=1, copy=False)
    assert len(blocks[0]) == BLOCK * 3 * 32 * 2


def test_a_section_of_another_length_is_not_scattered() -> None:
    layer = geometry()
    tensor = LayerTensor(layer.empty(Component.K, TOKENS), layer, Component.K)
    with pytest.raises(ValueError, match="reshape"):
        tensor.scatter(memoryview(bytes(64)), 0, BLOCK)
