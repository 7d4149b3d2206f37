"""What is kept of a track to judge it is bounded over the whole track, not for each Group."""

from __future__ import annotations

import pytest

from moqt.session.receive import track_state
from moqt.session.receive.malformed import MalformedTrack
from moqt.session.receive.track_state import TrackState
from moqt.types import FullTrackName, Object, ObjectHeader, TrackNamespace
from moqt.wire.fields import KeyValue
from moqt.wire.properties import ObjectProperties, PropertyType

NAME = FullTrackName(TrackNamespace((b"live",)), b"camera")


def header(group_id: int, object_id: int, subgroup_id: int = 0, **gaps: int) -> ObjectHeader:
    kinds = {"group": PropertyType.PRIOR_GROUP_ID_GAP, "objects": PropertyType.PRIOR_OBJECT_ID_GAP}
    pairs = tuple(KeyValue(kinds[name], gap) for name, gap in gaps.items())
    return ObjectHeader(
        group_id,
        object_id,
        subgroup_id,
        128,
        0,
        properties=ObjectProperties(pairs).serialize() if pairs else b"",
    )


def see(track: TrackState, *headers: ObjectHeader) -> None:
    for one in headers:
        track.see(Object(one, None))


def test_subgroups_are_counted_over_all_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(track_state, "MAX_SUBGROUPS", 8)
    track = TrackState(NAME)
    for group_id in range(5):
        for subgroup_id in range(3):
            track.begin_subgroup(header(group_id, 0, subgroup_id))
    kept = {group_id: len(group.subgroups) for group_id, group in track._groups.items()}
    assert kept == {3: 3, 4: 3}, "the Groups seen first made room"
    for subgroup_id in range(20):
        track.begin_subgroup(header(4, 0, subgroup_id))
    assert sum(len(group.subgroups) for group in track._groups.values()) == 8
    assert list(track._groups) == [4], "one Group alone has no more than its track"


def test_gaps_are_counted_over_all_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(track_state, "MAX_GAPS", 4)
    monkeypatch.setattr(track_state, "MAX_GROUPS", 2)
    track = TrackState(NAME)
    see(track, *(header(1, object_id, objects=1) for object_id in (2, 4, 6)))
    see(track, *(header(2, object_id, objects=1) for object_id in (2, 4, 6)))
    assert [len(group.absent) for group in track._groups.values()] == [3, 1]
    see(track, header(3, 0), header(4, 3, objects=3))
    assert [len(group.absent) for group in track._groups.values()] == [0, 1], "room is given back"


def test_a_new_group_is_judged_by_the_gaps_of_groups_alone() -> None:
    """10.8#1: a thousand Groups without a gap are not looked through for each new one."""

    class Silent(dict[int, track_state.GroupState]):
        def items(self) -> object:  # type: ignore[override]
            raise AssertionError("a look at all Groups")

    track = TrackState(NAME)
    see(track, header(9, 0, group=2))
    track._groups = Silent(track._groups)
    see(track, header(6, 0), header(10, 0))
    with pytest.raises(MalformedTrack, match="Group 8 came, and Group 9 says"):
        see(track, header(8, 0))


def test_the_gap_of_a_forgotten_group_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(track_state, "MAX_GROUPS", 1)
    track = TrackState(NAME)
    see(track, header(9, 0, group=2), header(10, 0), header(8, 0))
    assert list(track._groups) == [8]
