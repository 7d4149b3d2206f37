"""What of a retrieval stands still: all, the layer that is waited for, or what was overtaken."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcs.standstill import Findings, Standstill
from tests.kvcs.support import bench, describe

if TYPE_CHECKING:
    from tests.kvcs.support import Bench

NOTHING = Findings()
ALL = tuple((track, layer) for track in range(2) for layer in range(3))
"""Of `bench()`: K and V of three layers of three blocks."""


def watch(
    table: Bench, *, stall_timeout_s: float = 1000.0, overtaken_timeout_s: float = 1000.0
) -> Standstill:
    return Standstill(
        table.assembly,
        stall_timeout_s=stall_timeout_s,
        overtaken_timeout_s=overtaken_timeout_s,
    )


def deliver(table: Bench, track: int, layer: int, count: int = 3) -> None:
    wanted = [o for o in table.objects if o.track == track and o.header.group_id == layer]
    for one in wanted[:count]:
        table.deliver(one)


# Stalls


def test_a_retrieval_that_gets_nothing_stalls_as_a_whole_once_each_timeout() -> None:
    standstill = watch(bench(), stall_timeout_s=5.0)
    assert standstill.look(10.0) == NOTHING
    assert standstill.next_look == 15.0
    assert standstill.look(14.9) == NOTHING
    assert standstill.look(15.0) == Findings(ALL, is_stall=True)
    assert standstill.is_stalled
    assert standstill.look(15.1) == NOTHING  # told once
    assert standstill.next_look == 20.0
    assert standstill.look(20.0).is_stall


def test_while_later_layers_come_the_front_stalls_alone() -> None:
    table = bench()
    standstill = watch(table, stall_timeout_s=5.0)
    standstill.look(10.0)
    deliver(table, 0, 2, count=1)
    standstill.look(11.0)
    assert standstill.look(15.0).is_stall
    deliver(table, 0, 2)
    standstill.look(16.0)
    found = standstill.look(20.0)
    assert found == Findings(((0, 0), (1, 0)), is_stall=True)


def test_what_comes_of_the_front_ends_a_stall() -> None:
    table = bench()
    standstill = watch(table, stall_timeout_s=5.0)
    standstill.look(10.0)
    assert standstill.look(15.0).is_stall
    deliver(table, 0, 0, count=1)
    assert standstill.look(15.5) == NOTHING
    assert not standstill.is_stalled
    assert standstill.next_look == 20.5
    for track in range(2):
        deliver(table, track, 0)
    assert table.assembly.next_usable() is not None
    standstill.look(16.0)
    assert standstill.look(21.0) == Findings(ALL[1:3] + ALL[4:], is_stall=True)


def test_recomputed_objects_are_progress() -> None:
    table = bench()
    standstill = watch(table, stall_timeout_s=5.0)
    standstill.look(10.0)
    last = table.assembly.missing((2,))[0]
    k, _ = table.expected[2]
    tokens = table.descriptor.block_tokens
    assert table.assembly.recomputed(last, k[last.block * tokens :][:tokens])
    standstill.look(12.0)
    assert standstill.look(15.0) == Findings(((0, 0), (1, 0)), is_stall=True)


# Overtaken layers


def test_a_layer_that_brings_nothing_while_a_later_one_of_its_track_has_begun() -> None:
    """K3.3#1: what was overtaken has been published."""
    table = bench()
    standstill = watch(table, overtaken_timeout_s=2.0)
    assert standstill.look(10.0) == NOTHING
    assert standstill.next_look == 1010.0  # nothing has begun
    deliver(table, 0, 1)
    assert standstill.look(11.9) == NOTHING
    assert standstill.next_look == 12.0  # too early: perhaps nothing else will ask again
    assert standstill.look(12.0) == NOTHING
    assert standstill.next_look == 14.0
    found = standstill.look(14.0)
    assert found == Findings(((0, 0),))  # not track 1, and not layer 2


def test_a_layer_that_goes_on_is_left_alone() -> None:
    table = bench()
    standstill = watch(table, overtaken_timeout_s=2.0)
    deliver(table, 0, 1)
    standstill.look(10.0)
    deliver(table, 0, 0, count=1)
    assert standstill.look(12.0) == NOTHING
    assert standstill.look(14.0).layers == ((0, 0),)


def test_a_layer_of_which_an_object_is_under_way_does_not_stand_still() -> None:
    table = bench()
    standstill = watch(table, overtaken_timeout_s=2.0)
    deliver(table, 0, 1)
    slow = next(one for one in table.objects if one.track == 0 and one.header.group_id == 0)
    lease = table.assembly.lease(0, slow.header, "a request")
    assert lease is not None
    for now in (10.0, 12.0, 14.0):
        assert standstill.look(now) == NOTHING
    table.assembly.abandoned(lease)
    standstill.look(16.0)
    assert standstill.look(18.0).layers == ((0, 0),)


def test_a_layer_without_a_tensor_overtakes_nothing() -> None:
    """Its Group is empty, so nothing says that it has begun."""
    table = bench(describe(layer_overrides={2: {"v_head_dim": 0}}))
    standstill = watch(table, overtaken_timeout_s=2.0)
    standstill.look(10.0)
    assert standstill.look(12.0) == standstill.look(14.0) == NOTHING
