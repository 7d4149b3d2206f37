"""Shared memory: what lies in it is found there, what does not is copied once."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import numpy as np
import pytest

from kvcs.errors import TensorMismatch
from kvcs.kvsp.shapes import Layout
from kvcs.striping import shared_arrays, shared_empty
from kvcs.striping.memory import SharedMap, locate
from kvcs.striping.placing import Placing
from tests.kvcs.support import describe, octets_of


def test_arrays_are_found_in_another_mapping_of_the_same_memory() -> None:
    cache = shared_empty((2, 5, 3), "<u4")
    views = [cache, cache[1], cache[:, ::2], cache[::-1, 1:3, ::-1]]
    maps: list[SharedMap] = []
    places = [locate(view, maps) for view in views]
    assert len(maps) == 1
    other = SharedMap.attach(os.dup(maps[0].fd), len(maps[0]))
    cache[...] = np.arange(30).reshape(2, 5, 3)
    for view, place in zip(views, places, strict=True):
        assert place is not None
        seen = other.array(place.shape, "<u4", place.offset, place.strides)
        assert np.array_equal(seen, view)
        seen += 1
        assert np.array_equal(seen, view)
    assert locate(np.zeros(3), maps) is None


def test_an_array_that_leaves_its_memory_is_refused() -> None:
    memory = SharedMap.new(4096)
    with pytest.raises((ValueError, TypeError)):
        memory.array((4097,), "u1", 0, None)
    with pytest.raises(ValueError, match="strides"):
        memory.array((2,), "u1", 0, (4096,))


def test_memory_goes_with_its_last_array() -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    arrays = shared_arrays(describe(), 8)
    k = arrays[0][0]
    assert len(list(Path("/proc/self/fd").iterdir())) > before
    del arrays
    gc.collect()
    k[...] = 1
    del k
    gc.collect()
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.mark.parametrize("layout", Layout)
def test_layers_of_their_own_geometry_have_arrays_that_do_not_overlap(layout: Layout) -> None:
    descriptor = describe(
        layout=layout, layer_overrides={1: {"v_head_dim": 0, "head_dim": 3}}, layers=3
    )
    arrays = shared_arrays(descriptor, 8, range(1, 3))
    assert list(arrays) == [1, 2]
    assert arrays[1][1] is None
    flat = [array for pair in arrays.values() for array in pair if array is not None]
    for value, array in enumerate(flat, 1):
        array.view("u2")[...] = value
    for value, array in enumerate(flat, 1):
        assert set(array.view("u2").reshape(-1).tolist()) == {value}


def test_arrays_outside_get_a_copy_when_the_layer_is_there() -> None:
    descriptor = describe(layers=2)
    inside = shared_arrays(descriptor, 8)
    outside = tuple(np.zeros((9, 2, 8), descriptor.dtype) for _ in "kv")
    placing = Placing(descriptor, range(2), tokens=8, into=[inside[0], (outside[0], outside[1])])
    assert placing.places[0][0].map != placing.places[1][0].map
    place = placing.places[1][1]
    assert place is not None
    written = placing.maps[place.map].array(
        place.shape, descriptor.dtype, place.offset, place.strides
    )
    written.view("u2")[...] = 7
    k, v = placing.arrays(1)
    assert v is not None
    assert octets_of(v) == octets_of(written)
    assert np.shares_memory(v, outside[1])
    assert not octets_of(outside[1][8:]).strip(b"\0")
    assert np.shares_memory(placing.arrays(0)[0], inside[0][0])
    assert k.shape == (8, 2, 8)


def test_too_many_memories_and_wrong_arrays_are_refused() -> None:
    descriptor = describe(layers=130)
    shape, dtype = (4, 2, 8), descriptor.dtype
    into = [(shared_empty(shape, dtype), shared_empty(shape, dtype)) for _ in range(130)]
    with pytest.raises(ValueError, match="260 shared memories, at most 250"):
        Placing(descriptor, range(130), tokens=4, into=into)
    with pytest.raises(TensorMismatch, match="4 tokens, 8 are needed"):
        Placing(descriptor, range(130), tokens=8, into=into)
