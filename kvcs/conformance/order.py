"""Checks of Groups, their order and their ends (KVCS 3.3)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcs.conformance.check import Check, Finding
from kvcs.conformance.evidence import Way
from kvcs.geometry import DATA_SUBGROUP_ID
from moqt.codes import ObjectStatus, PublishDoneCode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvcs.conformance.evidence import ObjectRecord, PublicationEvidence, TrackEvidence
    from moqt.types import Location

__all__ = ["CHECKS", "ORDER_SLACK_S"]

ORDER_SLACK_S = 2.0
"""Groups travel on streams of their own, so a later one may overtake by a retransmission or so;
what is behind it by more than this was published behind it."""

_NO_OBJECT = "no Object came"


def _where(track: TrackEvidence, record: ObjectRecord) -> str:
    return f"{track.name} Group {record.location.group_id} Object {record.location.object_id}"


def _group_ids(evidence: PublicationEvidence) -> Finding:
    manifest = evidence.manifest
    if manifest is None:
        return Finding(0, note="no manifest came")

    def results() -> Iterator[str | None]:
        for track in evidence.tracks.values():
            for record in track.received:
                yield (
                    None
                    if record.location.group_id < manifest.layers
                    else (f"{_where(track, record)}: there are {manifest.layers} layers")
                )

    return Finding.of(results(), if_none=_NO_OBJECT)


def _group_order(evidence: PublicationEvidence) -> Finding:
    def results(track: TrackEvidence) -> Iterator[str | None]:
        first: dict[int, float] = {}
        for record in track.joined:
            if record.way is Way.LIVE:
                first.setdefault(record.location.group_id, record.arrived_s)
        earliest_later = float("inf")
        for group_id in sorted(first, reverse=True):
            late_s = first[group_id] - earliest_later
            yield (
                None
                if late_s <= ORDER_SLACK_S
                else (f"{track.name} Group {group_id} came {late_s:.1f} s after a Group behind it")
            )
            earliest_later = min(earliest_later, first[group_id])

    return Finding.of(
        (result for track in evidence.tracks.values() for result in results(track)),
        if_none="no Object came live",
    )


def _subgroups(evidence: PublicationEvidence) -> Finding:
    def problem(track: TrackEvidence, record: ObjectRecord) -> str | None:
        if record.subgroup_id == DATA_SUBGROUP_ID:
            return None
        if record.subgroup_id is None:
            return f"{_where(track, record)} is in no Subgroup: it came as a datagram"
        return f"{_where(track, record)} is in Subgroup {record.subgroup_id}, expected 0"

    return Finding.of(
        (problem(track, record) for track in evidence.tracks.values() for record in track.received),
        if_none=_NO_OBJECT,
    )


def _ascending(evidence: PublicationEvidence) -> Finding:
    def results(track: TrackEvidence) -> Iterator[str | None]:
        last: dict[tuple[int, Way], int] = {}
        for record in track.objects:
            group_id, object_id = record.location.group_id, record.location.object_id
            before = last.get((group_id, record.way), -1)
            yield (
                None
                if object_id > before
                else (f"{_where(track, record)} came after Object {before}")
            )
            last[group_id, record.way] = object_id

    return Finding.of(
        (result for track in evidence.tracks.values() for result in results(track)),
        if_none=_NO_OBJECT,
    )


def _ends_of_group(evidence: PublicationEvidence) -> Finding:
    """Status Objects come by the subscription alone: for Groups whose last Object came live."""

    def results(track: TrackEvidence) -> Iterator[str | None]:
        seen: dict[int, set[int]] = {}
        filled = _filled(track)
        live: dict[int, int] = {}
        ends: dict[int, int] = {}
        for record in track.objects:
            group_id, object_id = record.location.group_id, record.location.object_id
            if record.status is ObjectStatus.END_OF_GROUP:
                ends[group_id] = object_id
            elif record.status is ObjectStatus.NORMAL:
                seen.setdefault(group_id, set()).add(object_id)
                if record.way is Way.LIVE and record.location not in filled:
                    live[group_id] = max(live.get(group_id, -1), object_id)
        for group_id in sorted({*live, *ends}):
            blocks = evidence.expected_objects(track.name, group_id)
            where = f"{track.name} Group {group_id}"
            if group_id in ends:
                at = ends[group_id]
                yield (
                    None
                    if at == blocks
                    else (f"{where}: End of Group is Object {at}, the Group has {blocks} Objects")
                )
            elif (
                len(seen[group_id]) >= blocks > 0
                and live[group_id] == max(seen[group_id])
                and not _may_come_yet(evidence, group_id, live)
            ):
                yield f"{where}: all its Objects came live, and no End of Group"

    return Finding.of(
        (result for track in evidence.tracks.values() for result in results(track)),
        if_none="no Group ended after the subscription",
    )


def _filled(track: TrackEvidence) -> set[Location]:
    """Return what was published before the subscription, even if it came live as well."""
    return {record.location for record in track.joined if record.way is Way.FILL}


def _may_come_yet(evidence: PublicationEvidence, group_id: int, live: dict[int, int]) -> bool:
    return bool(evidence.cut) and group_id == max(live)


def _ends_of_track(evidence: PublicationEvidence) -> Finding:
    def results() -> Iterator[str | None]:
        for track in evidence.tracks.values():
            entry = evidence.segment(track.name)
            if entry is None or track.refusal:
                continue
            last = max((record.location for record in track.received), default=None)
            ends = [r for r in track.objects if r.status is ObjectStatus.END_OF_TRACK]
            if ends:
                is_behind = last is None or ends[-1].location > last
                yield (
                    None if is_behind else f"{_where(track, ends[-1])}: End of Track before {last}"
                )
            elif entry.complete and last is not None and not evidence.cut:
                is_last_live = any(r.location == last and r.way is Way.LIVE for r in track.joined)
                if is_last_live and last not in _filled(track):
                    yield f"{track.name}: the last Object came live, and no End of Track"
                elif track.done is PublishDoneCode.TRACK_ENDED or _fetch_says_ended(track):
                    yield None
                else:
                    yield (
                        f"{track.name}: its segment is complete, but neither PUBLISH_DONE "
                        "nor FETCH_OK says that it ended"
                    )

    return Finding.of(results(), if_none="no track ended")


def _fetch_says_ended(track: TrackEvidence) -> bool:
    return track.fetch is not None and track.fetch.ends_track


CHECKS = (
    Check("group-ids", "KVCS 3.3", "Group IDs are layers, 0 to L-1", _group_ids),
    Check("group-order", "KVCS 3.3", "Group g is published before Group g+1", _group_order),
    Check("one-subgroup", "KVCS 3.3", "all Objects are in Subgroup 0", _subgroups),
    Check("object-order", "KVCS 3.3", "Objects of a Group come in ascending order", _ascending),
    Check("end-of-group", "KVCS 3.3", "End of Group after the last Object", _ends_of_group),
    Check("end-of-track", "KVCS 3.3", "End of Track after the last Group", _ends_of_track),
)
