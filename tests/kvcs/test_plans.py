"""What is asked for, in which order, and what instead (KVCS 5.1 to 5.4), without I/O."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcs.discovery import Discovery
from kvcs.errors import NotDeterministic
from kvcs.losses import Losses
from kvcs.names import NamespaceForm, PublicationName, new_publication_id
from kvcs.recovery import Endpoint, OtherPublication, Recovery, Source, StepKind, check_mix
from kvcs.retrieval import FetchRequest, LiveRequest, TrackPlan, manifest_fill
from moqt.codes import RequestErrorCode
from moqt.types import Location, TrackNamespace
from moqt.wire.filters import IdRange, LocationFilter, RangeFilter, RangeFilterKind
from tests.kvcs.support import bench, describe, prefix_of

# Requests for one track


def plan(
    *, first: int = 0, last: int = 7, blocks: int = 4, span_blocks: int = 4, ranges: int = 32
) -> TrackPlan:
    return TrackPlan(
        first_layer=first,
        last_layer=last,
        layers=8,
        blocks=blocks,
        span_blocks=span_blocks,
        max_filter_ranges=ranges,
    )


FIRST_TWO = (RangeFilter(RangeFilterKind.OBJECT_ID, (IdRange(0, 1),)),)


def test_a_track_in_production_is_subscribed_with_a_fill_from_the_first_object() -> None:
    """K5.2#2."""
    assert plan().live() == LiveRequest(LocationFilter.absolute(Location(0, 0)))


def test_a_range_of_layers_in_production_fills_no_further_than_its_last() -> None:
    request = plan(first=2, last=5).live()
    assert request == LiveRequest(LocationFilter.until_group(Location(2, 0), 5))
    resumed = plan().live(first_layer=3)
    assert resumed.fill == LocationFilter.absolute(Location(3, 0))


def test_a_complete_track_is_one_fetch_from_a_to_b() -> None:
    """K5.3#1."""
    request = plan(first=2, last=5).completed()
    assert request == FetchRequest(2, 5, LocationFilter.groups(first=2, last=5))


def test_the_first_blocks_are_filtered_only_where_the_peer_allows_ranges() -> None:
    """K5.3#3."""
    assert plan(blocks=2).completed().filters == FIRST_TWO
    assert plan(blocks=2).live().filters == FIRST_TWO
    assert plan(blocks=2, ranges=0).completed().filters == ()
    assert plan(blocks=4).completed().filters == ()


def test_a_refused_subscription_is_tried_without_filter_then_without_fill() -> None:
    one = plan(blocks=2)
    request: LiveRequest | None = one.live()
    tried = []
    while request is not None:
        tried.append((bool(request.filters), request.fill is not None))
        request = one.live_refused(request, RequestErrorCode.NOT_SUPPORTED)
    assert tried == [(True, True), (False, True), (False, False)]
    assert one.completed().filters == ()


@pytest.mark.parametrize("code", [RequestErrorCode.DOES_NOT_EXIST, RequestErrorCode.UNAUTHORIZED])
def test_a_track_that_is_not_there_is_not_asked_for_in_other_words(code: RequestErrorCode) -> None:
    assert plan().live_refused(plan().live(), code) is None
    assert plan().fetch_failed(plan().completed(), code, range(8)) == ()


def test_a_failed_fill_becomes_one_fetch_a_group_up_to_the_largest() -> None:
    requests = plan().fill_failed(Location(3, 1), [1, 3, 4, 5])
    assert requests == (
        FetchRequest(1, 1, LocationFilter.groups(first=1, last=1)),
        FetchRequest(3, 3, LocationFilter.range(Location(3, 0), Location(3, 1))),
    )
    assert plan().fill_failed(None, [1]) == ()


def test_a_refused_fetch_of_groups_becomes_one_fetch_a_group_then_without_filter() -> None:
    one = plan(first=2, last=5, blocks=2)
    singles = one.fetch_failed(one.completed(), RequestErrorCode.NOT_SUPPORTED, [2, 4, 7])
    assert [(r.first_layer, r.last_layer) for r in singles] == [(2, 2), (4, 4)]
    assert all(r.filters == FIRST_TWO for r in singles)
    (bare,) = one.fetch_failed(singles[0], RequestErrorCode.INVALID_FILTER, [2])
    assert bare == FetchRequest(2, 2, singles[0].location)
    assert one.fetch_failed(bare, RequestErrorCode.NOT_SUPPORTED, [2]) == ()
    assert one.fetch_failed(singles[0], None, [2]) == ()


def test_missing_blocks_are_asked_for_as_far_as_they_reach() -> None:
    requests = plan().missing({5: [3, 1], 2: [0], 3: []})
    assert requests == (
        FetchRequest(2, 2, LocationFilter.range(Location(2, 0), Location(2, 0))),
        FetchRequest(5, 5, LocationFilter.range(Location(5, 1), Location(5, 3))),
    )


def test_the_current_manifest_is_filled_by_relative_start_one() -> None:
    """K5.2#5."""
    assert manifest_fill() == LocationFilter.relative(1)


# Discovery


def discovery(
    blocks: int = 6, *, max_publications: int = 32
) -> tuple[Discovery, dict[int, PublicationName]]:
    prefix = prefix_of(describe(), blocks)
    names = {
        n: PublicationName(
            scope_id=prefix.scope_id,
            compatibility_id=prefix.compatibility_id,
            anchor_key=prefix.anchor_key(n),
            publication_id=new_publication_id(),
        )
        for n in range(1, blocks + 1)
    }
    return Discovery(prefix, settle_s=1.0, max_publications=max_publications), names


def test_the_longest_prefix_is_asked_for_first_and_alone() -> None:
    """K5.1#1."""
    found, _ = discovery()
    (candidate,) = found.take_due(0.0)
    assert candidate.blocks == 6
    assert found.take_due(0.0) == ()
    found.answered(candidate, 5.0)
    assert found.take_due(5.5) == ()
    assert found.next_deadline(5.5) == 6.0
    assert [c.blocks for c in found.take_due(6.0)] == [5, 4, 3, 2]


def test_the_longest_prefix_that_has_a_publication_wins() -> None:
    found, names = discovery()
    (longest,) = found.take_due(0.0)
    found.failed(longest)
    five, four, *_ = found.take_due(0.0)
    found.answered(five, 0.0)
    found.answered(four, 0.0)
    assert found.found(four, names[4].namespace())
    assert found.next(0.5) is None  # five may still report one
    best = found.next(1.0)
    assert best is not None
    assert best.blocks == 4
    assert found.found(five, names[5].namespace())
    best = found.next(1.0)
    assert best is not None
    assert (best.blocks, best.name) == (5, names[5])


def test_publications_of_one_prefix_are_tried_in_turn_and_late_ones_too() -> None:
    """K5.1#2."""
    found, names = discovery(blocks=1)
    (candidate,) = found.take_due(0.0)
    found.answered(candidate, 0.0)
    first, second = (
        names[1].namespace(),
        TrackNamespace((*names[1].namespace().fields[:4], b"2" * 16)),
    )
    found.found(candidate, first)
    found.found(candidate, second)
    one = found.next(0.0)
    assert one is not None
    assert one.namespace == first
    assert found.others() == ()
    found.tried(one)
    assert [other.namespace for other in found.others()] == [second]
    two = found.next(0.0)
    assert two is not None
    assert two.namespace == second
    found.gone(candidate, second)
    assert found.next(9.0) is None
    assert not found.is_exhausted
    found.failed(candidate)
    assert found.is_exhausted


def test_what_is_not_a_publication_of_the_prefix_is_ignored() -> None:
    found, names = discovery(max_publications=1)
    (candidate,) = found.take_due(0.0)
    assert not found.found(candidate, names[5].namespace())
    assert not found.found(candidate, TrackNamespace(names[6].namespace().fields[:4]))
    assert not found.found(candidate, TrackNamespace((*names[6].namespace().fields, b"x")))
    assert found.found(candidate, names[6].namespace())
    assert found.found(candidate, names[6].namespace())
    fields = names[6].namespace().fields[:4]
    assert not found.found(candidate, TrackNamespace((*fields, bytes(16))))  # one too many


def test_prefixes_are_bounded_and_written_in_the_form_asked_for() -> None:
    prefix = prefix_of(describe(), 6)
    found = Discovery(prefix, form=NamespaceForm.HEX, max_prefixes=2)
    (longest,) = found.take_due(0.0)
    assert longest.namespace_prefix.fields[3] == prefix.anchor_key().hex().encode()
    found.failed(longest)
    assert [candidate.blocks for candidate in found.take_due(0.0)] == [5]


# Recovery

OTHERS: list[Source] = [Endpoint("moqt://b/"), OtherPublication(TrackNamespace((b"x",)))]


def steps(recovery: Recovery, now: float, *, is_connected: bool) -> list[StepKind]:
    kinds = []
    while (step := recovery.next_step(now, is_connected=is_connected)) is not None:
        kinds.append(step.kind)
    return kinds


def test_sources_are_tried_in_order_and_recomputing_last() -> None:
    recovery = Recovery(sources=OTHERS, can_recompute=True, deadline_s=10.0)
    assert recovery.next_step(0.0, is_connected=True) is None
    recovery.begin(0.0)
    tail = [StepKind.SOURCE, StepKind.SOURCE, StepKind.RECOMPUTE]
    assert steps(recovery, 0.0, is_connected=True) == [StepKind.AGAIN, *tail]
    recovery.end()
    recovery.begin(0.0)
    assert steps(recovery, 0.0, is_connected=False) == [StepKind.RECONNECT, *tail]


def test_no_attempt_is_made_after_the_deadline() -> None:
    """K5.4#5."""
    recovery = Recovery(sources=OTHERS, can_recompute=False, deadline_s=10.0)
    recovery.begin(5.0)
    recovery.begin(9.0)
    assert recovery.deadline == 15.0
    assert recovery.next_step(14.9, is_connected=True) is not None
    assert recovery.next_step(15.0, is_connected=True) is None


def test_the_clock_stops_while_nothing_counts_as_missing_and_attempts_are_not_made_twice() -> None:
    recovery = Recovery(sources=OTHERS, can_recompute=False, deadline_s=10.0)
    recovery.begin(0.0)
    recovery.next_step(0.0, is_connected=True)
    recovery.pause(4.0)
    assert not recovery.is_running
    assert recovery.next_step(4.0, is_connected=True) is None
    recovery.begin(100.0)
    assert recovery.deadline == 106.0
    assert steps(recovery, 100.0, is_connected=True) == [StepKind.SOURCE, StepKind.SOURCE]
    recovery.end()
    recovery.begin(200.0)
    assert recovery.deadline == 210.0


def test_sources_found_meanwhile_come_before_recomputing() -> None:
    recovery = Recovery(can_recompute=True, deadline_s=10.0)
    recovery.begin(0.0)
    recovery.add_sources(OTHERS)
    recovery.add_sources(OTHERS)
    assert steps(recovery, 0.0, is_connected=True) == [
        StepKind.AGAIN,
        StepKind.SOURCE,
        StepKind.SOURCE,
        StepKind.RECOMPUTE,
    ]


@given(ours=st.booleans(), theirs=st.booleans())
def test_two_publications_are_mixed_only_when_both_are_deterministic(
    ours: bool, theirs: bool
) -> None:
    """K5.4#3."""
    if ours and theirs:
        check_mix(ours_deterministic=True, theirs_deterministic=True)
    else:
        with pytest.raises(NotDeterministic):
            check_mix(ours_deterministic=ours, theirs_deterministic=theirs)


# Losses


def test_lost_objects_are_recovered_or_given_up_and_told_apart() -> None:
    table = bench()
    losses = Losses(table.assembly)
    assert losses.add(0, 0, 1)
    assert losses.add(1, 2)
    assert not losses.add(1, 2, 0)
    assert not losses.add(0, 7)
    assert losses.includes(0, 0, 1)
    assert not losses.includes(0, 0, 0)
    assert losses.count == 4
    assert losses.by_track() == {0: {0: [1]}, 1: {2: [0, 1, 2]}}
    for one in table.objects:
        if (one.track, one.header.group_id) == (0, 0):
            table.deliver(one)
    losses.settle()
    assert losses.by_track() == {1: {2: [0, 1, 2]}}
    losses.give_up()
    assert not losses
    assert not losses.add(1, 2)
    assert losses.count == 3
    assert not losses.is_all_given_up()  # what was never lost may still come
    for one in table.objects:
        if (one.track, one.header.group_id) != (1, 2):
            table.deliver(one)
    assert losses.is_all_given_up()


def test_a_block_given_up_before_its_layer_is_lost_is_tried_once_more() -> None:
    table = bench()
    losses = Losses(table.assembly)
    losses.add(0, 0, 1)
    losses.give_up()
    assert not losses.add(0, 0, 1)
    assert losses.add(0, 0)
    losses.give_up()
    assert not losses.add(0, 0)
    assert not losses.is_all_given_up()
