"""The columns of a Subgroup against a plain list of its Objects."""

from __future__ import annotations

import gc
import weakref
from random import Random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from moqt.codes import ObjectStatus
from moqt.session.publish.history import StoredObject, StoredSubgroup
from moqt.session.publish.payloads import EqualPayloads
from moqt.types import ObjectHeader


def write(subgroup: StoredSubgroup, stored: StoredObject) -> None:
    special = stored if stored.special_header is not None else None
    subgroup.append(stored.object_id, stored.octets, stored.payload, stored.published_at, special)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32))
def test_columns_give_what_was_stored_wherever_evicted(seed: int) -> None:
    rng = Random(seed)
    subgroup = StoredSubgroup(7, 3, publisher_priority=9, ends_group=False)
    stored: list[StoredObject] = []
    evicted = 0
    object_id = -1
    if at_once := rng.choice((0, 1, 100)):
        payloads = EqualPayloads(at_once, [rng.randbytes(3 * at_once), rng.randbytes(at_once)])
        subgroup.append_all(payloads, 0.5)
        stored += [
            StoredObject(subgroup, number, 4, payloads[number], 0.5) for number in range(at_once)
        ]
        object_id = at_once - 1
    for _ in range(40):
        for _ in range(rng.randrange(30)):
            object_id += rng.choice((1, 1, 1, 5))
            parts = tuple(bytes([object_id % 256]) * rng.randint(1, 9) for _ in range(3))
            payload: tuple[memoryview | bytes, ...] = parts[: rng.randrange(4)]
            octets = sum(map(len, payload))
            header = None
            if rng.random() < 0.1:
                header = ObjectHeader(7, object_id, 3, 9, octets, properties=b"\x02\x01")
            elif not octets and rng.random() < 0.5:
                header = ObjectHeader(7, object_id, 3, 9, 0, ObjectStatus.END_OF_GROUP)
            one = StoredObject(subgroup, object_id, octets, payload, float(object_id), header)
            write(subgroup, one)
            stored.append(one)
        if len(stored) > evicted:
            count = rng.randint(1, len(stored) - evicted)
            gone = stored[evicted : evicted + count]
            assert subgroup.evict(count) == sum(one.octets for one in gone)
            evicted += count
        assert (subgroup.first_index, subgroup.end_index) == (evicted, len(stored))
        assert subgroup.count == len(stored) - evicted
        kept = stored[evicted:]
        assert [subgroup.at(index) for index in range(evicted, len(stored))] == kept
        assert [subgroup.object_id_at(evicted + at) for at in range(len(kept))] == [
            one.object_id for one in kept
        ]
        assert subgroup.at(len(stored)) is None
        for wanted in (0, object_id // 2, object_id, object_id + 1):
            found = [at for at, one in enumerate(kept) if one.object_id >= wanted]
            assert subgroup.index_of(wanted) == evicted + (found[0] if found else len(kept))
    assert subgroup.octets == sum(one.octets for one in stored)


def test_header_of_an_object_is_that_of_its_subgroup() -> None:
    subgroup = StoredSubgroup(7, 3, publisher_priority=9, ends_group=False)
    subgroup.append(4, 2, (b"ab",), 1.0)
    stored = subgroup.at(0)
    assert stored is not None
    assert stored.header == ObjectHeader(7, 4, 3, 9, 2)
    assert stored.is_normal


def test_the_memory_of_each_evicted_object_is_free_at_once() -> None:
    """Rows are cut off by the hundred; what a row refers to is not kept until then."""
    subgroup = StoredSubgroup(0, 0, publisher_priority=0, ends_group=False)
    freed: list[int] = []
    for object_id in range(200):
        lent = np.zeros(10, dtype="u1")
        weakref.finalize(lent, freed.append, object_id)
        subgroup.append(object_id, 10, (memoryview(lent.data),), 0.0)
        del lent
    in_flight = subgroup.at(1)
    for object_id in range(200):
        subgroup.evict(1)
        gc.collect(0)
        assert freed == [one for one in range(object_id + 1) if one != 1]
    del in_flight
    assert freed[-1] == 1
