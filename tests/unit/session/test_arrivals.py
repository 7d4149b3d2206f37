"""moqt.session.receive.arrivals: what a subscription still lacks after any order of arrival."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moqt.codes import ObjectStatus
from moqt.session.receive.arrivals import Arrivals
from moqt.types import Location, ObjectHeader
from moqt.wire.filters import LocationFilter, LocationRange
from moqt.wire.params import FillParameters
from moqt.wire.vi64 import MAX_VI64

NEXT = LocationFilter.next_object()


def begun(
    largest: Location | None = None,
    location_filter: LocationFilter | None = None,
    fill: LocationFilter | None = None,
    *,
    max_groups: int = 16,
) -> Arrivals:
    arrivals = Arrivals(max_groups)
    parameters = None if fill is None else FillParameters(location_filter=fill)
    arrivals.begin(largest, location_filter=location_filter, fill=parameters, forward=True)
    return arrivals


def take(
    arrivals: Arrivals,
    group_id: int,
    object_id: int,
    *,
    is_moved: bool = False,
    status: ObjectStatus = ObjectStatus.NORMAL,
) -> bool:
    header = ObjectHeader(group_id, object_id, 0, 128, 0, status)
    return arrivals.take(header, is_moved=is_moved)


def start_of(arrivals: Arrivals) -> Location:
    filters = arrivals.remainder()
    assert filters is not None
    return Location(filters[1].start_group, filters[1].start_object)


@pytest.mark.parametrize(
    ("largest", "location_filter", "fill", "start"),
    [
        (None, None, None, (0, 0)),
        (Location(3, 4), None, None, (3, 5)),
        (Location(3, 4), NEXT, None, (3, 5)),
        (Location(3, 4), NEXT, LocationFilter.absolute(Location(1, 2)), (1, 2)),
        (Location(3, 4), NEXT, LocationFilter.relative(1), (3, 0)),
        (Location(3, 4), LocationFilter.absolute(Location(5, 0)), None, (5, 0)),
        (Location(3, 4), LocationFilter.absolute(Location(1, 0)), None, (3, 5)),
        (None, NEXT, LocationFilter.absolute(Location(1, 2)), (0, 0)),
    ],
)
def test_before_anything_has_come_all_that_was_asked_for_lacks(
    largest: Location | None,
    location_filter: LocationFilter | None,
    fill: LocationFilter | None,
    start: tuple[int, int],
) -> None:
    arrivals = begun(largest, location_filter, fill)
    assert start_of(arrivals) == Location(*start)


def test_groups_that_are_whole_are_not_asked_for_again() -> None:
    arrivals = begun()
    for object_id in range(3):
        assert take(arrivals, 0, object_id)
    assert start_of(arrivals) == Location(0, 3)
    arrivals.end_group(0)
    assert start_of(arrivals) == Location(1, 0)
    take(arrivals, 1, 0)
    take(arrivals, 1, 2, status=ObjectStatus.END_OF_GROUP)
    assert start_of(arrivals) == Location(1, 1)
    take(arrivals, 1, 1)
    assert start_of(arrivals) == Location(2, 0)


def test_after_a_move_only_what_is_new_and_due_counts() -> None:
    arrivals = begun(Location(4, 1), NEXT, LocationFilter.groups(first=0, last=1))
    assert take(arrivals, 0, 0)
    assert not take(arrivals, 0, 0, is_moved=True)
    assert take(arrivals, 1, 7, is_moved=True)
    assert not take(arrivals, 2, 0, is_moved=True)
    assert not take(arrivals, 4, 1, is_moved=True)
    assert arrivals.is_new(Location(4, 2))
    assert take(arrivals, 4, 2, is_moved=True)
    assert not arrivals.is_new(Location(4, 2))
    assert arrivals.count == 3


def test_an_end_is_kept() -> None:
    whole = begun(None, LocationFilter.groups(first=1, last=2))
    both = LocationFilter.groups(first=1, last=2)
    assert whole.remainder() == (both, both)
    exact = begun(None, LocationFilter.range(Location(1, 1), Location(2, 3)))
    take(exact, 1, 1)
    wanted = LocationFilter.range(Location(1, 2), Location(2, 3))
    assert exact.remainder() == (wanted, wanted)
    for object_id in range(2, 5):
        take(exact, 1, object_id)
    exact.end_group(1)
    for object_id in range(4):
        take(exact, 2, object_id)
    last = LocationFilter.range(Location(2, 3), Location(2, 3))
    assert exact.remainder() == (last, last)


def test_nothing_is_due_while_paused() -> None:
    arrivals = begun()
    arrivals.pause()
    assert arrivals.remainder() is None
    assert not take(arrivals, 0, 0, is_moved=True)
    arrivals.expect_all()
    assert take(arrivals, 0, 0, is_moved=True)
    arrivals.begin(Location(0, 0), location_filter=None, fill=None, forward=True)
    assert start_of(arrivals) == Location(0, 1)
    arrivals.begin(Location(0, 0), location_filter=None, fill=None, forward=False)
    assert arrivals.remainder() is None


def test_only_so_many_groups_are_kept() -> None:
    arrivals = begun(max_groups=2)
    for group_id in range(1, 5):
        take(arrivals, group_id, 1)
    assert start_of(arrivals) == Location(3, 0)
    assert not take(arrivals, 2, 0, is_moved=True)
    assert take(arrivals, 3, 0, is_moved=True)


@given(
    order=st.permutations([(group_id, n) for group_id in range(3) for n in range(4)]),
    come=st.integers(0, 12),
    ended=st.sets(st.integers(0, 2)),
)
def test_a_move_at_any_point_brings_each_object_once(
    order: list[tuple[int, int]], come: int, ended: set[int]
) -> None:
    """What has come, and what the remainder covers and is new, are all Objects, each once."""
    arrivals = begun(None, None)
    for place in order[:come]:
        assert take(arrivals, *place)
    for group_id in ended:
        if {(group_id, n) for n in range(4)} <= set(order[:come]):
            arrivals.end_group(group_id)
    filters = arrivals.remainder()
    assert filters is not None
    live, filled = filters
    assert live == NEXT
    covered = LocationRange(Location(filled.start_group, filled.start_object))
    again = [
        place
        for place in sorted(order)
        if Location(*place) in covered and take(arrivals, *place, is_moved=True)
    ]
    assert sorted(order[:come] + again) == sorted(order)


def test_a_gap_too_many_does_not_cost_its_width() -> None:
    """A publisher that leaves wide gaps would have us count to 2^60 when a move asks what lacks."""
    arrivals = begun()
    for object_id in (0, 1 << 60, *range((1 << 60) + 2, (1 << 60) + 3000, 2)):
        assert take(arrivals, 0, object_id)
    assert start_of(arrivals) > Location(0, 1 << 60)


def test_nothing_lacks_behind_the_last_object_that_can_be() -> None:
    arrivals = begun()
    assert take(arrivals, 0, 0)
    assert take(arrivals, 0, MAX_VI64)
    assert start_of(arrivals) == Location(0, 1)
    full = begun(Location(0, MAX_VI64 - 1))
    assert take(full, 0, MAX_VI64)
    assert start_of(full) == Location(1, 0)
