"""How often a tensor's octets are copied and hashed on their way: as seldom as can be."""

from __future__ import annotations

import hashlib
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from kvcs import payload as payload_module
from kvcs.destinations import PREPARED_LAYERS, Destinations
from kvcs.geometry import SegmentSpan
from kvcs.jobs import SharedRun, run_here
from kvcs.kvsp.codecs import RAW
from kvcs.kvsp.shapes import Component, LayerGeometry, Layout
from kvcs.production import Encoding, PreparedLayer, SegmentPlan, prepare_layer
from tests.kvcs.support import bench, describe, octets_of, tensors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kvcs.jobs import Run
    from kvcs.kvsp.shapes import AnyArray

BLOCKS = 16
MANY: dict[str, Any] = {"block_tokens": 16, "kv_heads": 8, "head_dim": 128}
"""With 16 blocks: K and V of a layer have 512 KiB each, an Object has 32."""


def plan(layout: Layout = Layout.NHD, *, joint: bool = False) -> SegmentPlan:
    return SegmentPlan(
        descriptor=describe(layers=2, layout=layout, **MANY),
        span=SegmentSpan(segment=0, first_block=0, blocks=BLOCKS),
        encodings=(Encoding(RAW, joint),),
    )


def peak_of(action: Callable[[], PreparedLayer]) -> tuple[PreparedLayer, int]:
    """Return the most octets that were allocated at once."""
    tracemalloc.start()
    try:
        made = action()
        return made, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def shared_octets(made: PreparedLayer, *arrays: AnyArray | None) -> int:
    """Return how many octets of Data lie in the arrays."""
    return sum(
        len(data)
        for group in made.groups
        for _, *buffers in group.payloads
        for data in buffers
        if any(
            array is not None and np.shares_memory(np.frombuffer(data, "u1"), array.view("u1"))
            for array in arrays
        )
    )


@pytest.fixture(params=["here", "threads"])
def run(request: pytest.FixtureRequest) -> Iterator[Run]:
    if request.param == "here":
        yield run_here
        return
    with ThreadPoolExecutor(2) as pool:
        yield SharedRun(pool, 2)


@pytest.mark.parametrize("joint", [False, True], ids=["k and v", "kv"])
def test_borrowed_contiguous_blocks_are_not_copied(run: Run, joint: bool) -> None:
    made = plan(joint=joint)
    k, v = tensors(made.descriptor, 0, BLOCKS)
    octets = made.layer_octets(0)
    prepared, peak = peak_of(lambda: prepare_layer(made, 0, k, v, borrow=True, run=run))
    assert shared_octets(prepared, k, v) == octets
    assert peak < octets / 4


@pytest.mark.parametrize(
    ("layout", "borrow"),
    [(Layout.NHD, False), (Layout.HND, False), (Layout.HND, True)],
    ids=["copied", "copied strided", "borrowed strided"],
)
def test_everything_else_is_copied_once(run: Run, layout: Layout, borrow: bool) -> None:
    made = plan(layout)
    k, v = tensors(made.descriptor, 0, BLOCKS)
    octets = made.layer_octets(0)
    prepared, peak = peak_of(lambda: prepare_layer(made, 0, k, v, borrow=borrow, run=run))
    assert shared_octets(prepared, k, v) == 0
    assert octets <= peak < octets * 1.25
    first = b"".join(bytes(payload[1]) for payload in prepared.groups[0].payloads[:1])
    assert first == octets_of(k[:16] if layout is Layout.NHD else k[:, :16])


def test_threads_prepare_what_one_would(run: Run) -> None:
    made = plan(Layout.HND)
    k, v = tensors(made.descriptor, 1, BLOCKS)
    ours, theirs = prepare_layer(made, 1, k, v, run=run), prepare_layer(made, 1, k, v)
    for one, other in zip(ours.groups, theirs.groups, strict=True):
        assert one.digests == other.digests
        assert [b"".join(p) for p in one.payloads] == [b"".join(p) for p in other.payloads]


@pytest.mark.parametrize("codec", ["raw", "zstd"])
@pytest.mark.parametrize("joint", [False, True], ids=["k and v", "kv"])
def test_each_octet_of_data_is_hashed_once_on_each_side(
    monkeypatch: pytest.MonkeyPatch, codec: str, joint: bool
) -> None:
    """Producer: header, manifest and joint layer digest are one hash. Consumer: so are theirs."""
    hashed: list[int] = []

    class Counting:
        def __init__(self, data: bytes | memoryview = b"") -> None:
            hashed.append(len(data))
            self._hash = hashlib.sha256(data)

        def update(self, data: bytes | memoryview) -> None:
            hashed.append(len(data))
            self._hash.update(data)

        def digest(self) -> bytes:
            return self._hash.digest()

    class Stand:
        sha256 = Counting

    monkeypatch.setattr(payload_module, "hashlib", Stand)
    table = bench(codec=codec, joint=joint)
    data = sum(len(one.payload) - payload_module.HEADER_OCTETS for one in table.objects)
    assert sum(hashed) == data
    hashed.clear()
    for one in table.objects:
        table.deliver(one)
    for (track, layer), digests in table.digests.items():
        assert table.assembly.list_digests(track, layer, digests) == []
    assert table.usable() == [0, 1, 2]
    assert sum(hashed) == data


# Destinations


@pytest.mark.parametrize("layout", Layout)
def test_objects_go_to_the_caller_s_arrays_without_another_copy(layout: Layout) -> None:
    descriptor = describe(layout=layout, **MANY)
    into = [
        (k.copy(), v.copy())
        for k, v in (tensors(descriptor, layer, 3) for layer in range(3))
        if v is not None
    ]
    table = bench(descriptor, into=into)
    for one in table.objects:
        lease = table.assembly.lease(one.track, one.header, None)
        assert lease is not None
        target = into[one.header.group_id][one.track].view("u1")
        places = [np.frombuffer(buffer, "u1") for buffer in lease.buffers[1:]]
        assert all(np.shares_memory(place, target) for place in places)
        assert sum(map(len, places)) == len(one.payload) - payload_module.HEADER_OCTETS
        table.finish(one, lease)
    assert table.usable() == [0, 1, 2]


def destinations(threads: ThreadPoolExecutor | None, *, layers: int = 5) -> Destinations:
    return Destinations(
        describe(layers=layers, **MANY),
        first_layer=0,
        last_layer=layers - 1,
        tokens=BLOCKS * 16,
        threads=threads,
    )


def test_layers_are_allocated_once_shortly_before_they_are_needed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[Component] = []
    empty = LayerGeometry.empty

    def count(geometry: LayerGeometry, component: Component, tokens: int) -> AnyArray:
        made.append(component)
        return empty(geometry, component, tokens)

    monkeypatch.setattr(LayerGeometry, "empty", count)
    with ThreadPoolExecutor(1) as threads:
        places = destinations(threads)
        places.prepare(0)
        threads.submit(int).result()  # behind what was asked for
        assert len(made) == 2 * PREPARED_LAYERS
        for layer in range(5):
            k = places.tensor(layer, Component.K)
            v = places.tensor(layer, Component.V)
            assert places.tensor(layer, Component.K) is k
            assert not np.shares_memory(k.array, v.array)
            threads.submit(int).result()
            assert len(made) == 2 * min(layer + 1 + PREPARED_LAYERS, 5)
    assert len(made) == 10


def test_a_thread_that_is_busy_elsewhere_is_not_waited_for() -> None:
    import threading

    gate = threading.Event()
    with ThreadPoolExecutor(1) as threads:
        threads.submit(gate.wait)
        places = destinations(threads)
        places.prepare(0)
        assert places.tensor(0, Component.K).tokens == BLOCKS * 16
        places.close()
        gate.set()
    assert places.tensor(4, Component.V).tokens == BLOCKS * 16


def test_the_caller_s_arrays_are_not_allocated_again() -> None:
    descriptor = describe(layers=2, **MANY)
    into = {layer: tensors(descriptor, layer, BLOCKS) for layer in range(2)}
    before = octets_of(into[0][0])
    with ThreadPoolExecutor(1) as threads:
        places = Destinations(
            descriptor, first_layer=0, last_layer=1, tokens=BLOCKS * 16, into=into, threads=threads
        )
        places.prepare(0)
        assert places.tensor(0, Component.K).array is into[0][0]
    assert octets_of(into[0][0]) == before
