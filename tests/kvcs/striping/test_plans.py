"""What is asked for a part of a track: its blocks of every Group, and no others."""

from __future__ import annotations

from kvcs.retrieval import FetchRequest, TrackPlan
from moqt.codes import RequestErrorCode
from moqt.types import Location
from moqt.wire.filters import IdRange, LocationFilter, RangeFilter, RangeFilterKind

MIDDLE = (RangeFilter(RangeFilterKind.OBJECT_ID, (IdRange(3, 5),)),)


def plan(*, ranges: int = 32) -> TrackPlan:
    """Blocks 3 to 5 of 9, layers 0 to 3."""
    return TrackPlan(
        first_layer=0,
        last_layer=3,
        layers=4,
        first_block=3,
        is_part=True,
        blocks=6,
        span_blocks=9,
        max_filter_ranges=ranges,
    )


def test_one_range_of_object_ids_keeps_the_rest_away() -> None:
    assert plan().completed() == FetchRequest(0, 3, LocationFilter.groups(first=0, last=3), MIDDLE)
    assert plan().live().filters == MIDDLE
    assert plan(ranges=0).live().filters == ()


def test_groups_are_fetched_from_the_first_block_of_the_part_to_its_last() -> None:
    one = plan()
    singles = one.fetch_failed(one.completed(), RequestErrorCode.NOT_SUPPORTED, [1, 2])
    for single, layer in zip(singles, (1, 2), strict=True):
        assert single.location == LocationFilter.range(Location(layer, 3), Location(layer, 5))


def test_what_a_fill_did_not_bring_of_the_newest_group_may_be_nothing_of_the_part() -> None:
    assert plan().fill_failed(Location(1, 2), [1]) == ()
    (request,) = plan().fill_failed(Location(1, 4), [1])
    assert request.location == LocationFilter.range(Location(1, 3), Location(1, 4))
    (request,) = plan(ranges=0).fill_failed(Location(1, 8), [1])
    assert request.location == LocationFilter.range(Location(1, 3), Location(1, 5))
