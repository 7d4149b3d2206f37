"""Layers that a later one has overtaken and that stand still."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcs.overtaken import Overtaken
from tests.kvcs.support import bench

if TYPE_CHECKING:
    from tests.kvcs.support import Bench

BLOCKS = [2, 2]


def deliver(table: Bench, track: int, layer: int, count: int = 2) -> None:
    wanted = [o for o in table.objects if o.track == track and o.header.group_id == layer]
    for one in wanted[:count]:
        table.deliver(one)


def test_a_layer_that_brings_nothing_while_a_later_one_of_its_track_has_begun() -> None:
    """K3.3#1: what was overtaken has been published."""
    table = bench()
    overtaken = Overtaken(table.assembly, timeout_s=2.0)
    assert overtaken.look(10.0, BLOCKS) == []
    assert overtaken.next_look is None  # nothing has begun
    deliver(table, 0, 1)
    assert overtaken.look(11.9, BLOCKS) == []
    assert overtaken.next_look == 12.0  # too early: perhaps nothing else will ask again
    assert overtaken.look(12.0, BLOCKS) == []
    assert overtaken.next_look == 14.0
    assert overtaken.look(14.0, BLOCKS) == [(0, 0)]  # not track 1, and not layer 2


def test_a_layer_that_goes_on_is_left_alone() -> None:
    table = bench()
    overtaken = Overtaken(table.assembly, timeout_s=2.0)
    deliver(table, 0, 1)
    overtaken.look(10.0, BLOCKS)
    deliver(table, 0, 0, count=1)
    assert overtaken.look(12.0, BLOCKS) == []
    assert overtaken.look(14.0, BLOCKS) == [(0, 0)]


def test_a_layer_of_which_an_object_is_under_way_does_not_stand_still() -> None:
    table = bench()
    overtaken = Overtaken(table.assembly, timeout_s=2.0)
    deliver(table, 0, 1)
    slow = next(one for one in table.objects if one.track == 0 and one.header.group_id == 0)
    lease = table.assembly.lease(0, slow.header, "a request")
    assert lease is not None
    for now in (10.0, 12.0, 14.0):
        assert overtaken.look(now, BLOCKS) == []
    table.assembly.abandoned(lease)
    overtaken.look(16.0, BLOCKS)
    assert overtaken.look(18.0, BLOCKS) == [(0, 0)]
