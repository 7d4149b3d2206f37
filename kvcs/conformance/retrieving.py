"""Checks of how a publication can be retrieved (KVCS 5.2, 5.3)."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from kvcs.conformance.check import Check, Finding
from kvcs.geometry import group_id_of, location_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvcs.conformance.evidence import FetchEvidence, PublicationEvidence, TrackEvidence
    from moqt.types import Location

__all__ = ["CHECKS"]

SHOWN = 4
"""Locations that one problem names."""


def _some(locations: list[Location]) -> str:
    shown = ", ".join(map(str, locations[:SHOWN]))
    return shown + (f" and {len(locations) - SHOWN} more" if len(locations) > SHOWN else "")


def _exactly_once(evidence: PublicationEvidence) -> Finding:
    """Next Object with a fill from {0,0}: every Object once."""

    def problems(track: TrackEvidence) -> Iterator[str]:
        if track.fill_refusal:
            yield f"{track.name}: a subscription with a fill was refused: {track.fill_refusal}"
            return
        if track.failure:
            yield f"{track.name}: the subscription ended: {track.failure}"
        yield from (f"{track.name}: {reset}" for reset in track.resets)
        came: set[Location] = set()
        twice: list[Location] = []
        for record in track.joined:
            if record.location in came:
                twice.append(record.location)
            came.add(record.location)
        if twice:
            yield f"{track.name}: came twice: {_some(twice)}"
        missing = [at for at in _due(evidence, track, came) if at not in came]
        if missing:
            told = "".join(f"; {gap.status.name} up to {gap.last}" for gap in track.gaps[:SHOWN])
            yield f"{track.name}: did not come: {_some(missing)}{told}"

    def results() -> Iterator[str | None]:
        for track in evidence.tracks.values():
            if track.refusal:
                continue
            found = list(problems(track))
            if found:
                yield from found
            elif track.objects or track.done is not None:
                yield None

    return Finding.of(results(), if_none="no track could be subscribed to")


def _due(
    evidence: PublicationEvidence, track: TrackEvidence, came: set[Location]
) -> Iterator[Location]:
    """Yield every Object that must have come: all of a complete segment, else what is behind one
    that came."""
    manifest, entry = evidence.manifest, evidence.segment(track.name)
    if manifest is None or entry is None:
        return
    last = max(came, default=None)
    is_all_due = entry.complete and not evidence.cut
    for layer in range(manifest.layers):
        for block in range(evidence.expected_objects(track.name, layer)):
            at = location_of(layer, block)
            if not is_all_due and (last is None or at > last or _is_on_its_way(evidence, at, last)):
                return
            yield at


def _is_on_its_way(evidence: PublicationEvidence, at: Location, last: Location) -> bool:
    """Whether a collection that was cut may have missed what was being sent beside `last`."""
    return bool(evidence.cut) and at.group_id >= last.group_id - 1


def _fetched(
    evidence: PublicationEvidence, fetch: FetchEvidence, track: TrackEvidence
) -> list[str]:
    """Return what is wrong with the Objects that a FETCH brought."""
    wanted = range(fetch.blocks) if fetch.blocks is not None else None
    known = {record.location for record in track.joined}
    if not known:  # nothing came by the subscription: the manifest alone tells
        known = {
            location_of(layer, block)
            for layer in range(fetch.first_layer, fetch.last_layer + 1)
            for block in range(evidence.expected_objects(track.name, layer))
        }
    first, last = group_id_of(fetch.first_layer), group_id_of(fetch.last_layer)

    def is_asked(at: Location) -> bool:
        return first <= at.group_id <= last and (wanted is None or at.object_id in wanted)

    where = f"{track.name} layers {fetch.first_layer} to {fetch.last_layer}"
    if fetch.blocks is not None:
        where += f", blocks 0 to {fetch.blocks - 1}"
    if fetch.problem:
        return [f"{where}: {fetch.problem}"]
    came = [record.location for record in fetch.objects]
    problems = []
    if beyond := [at for at in came if not is_asked(at)]:
        problems.append(f"{where}: not asked for: {_some(beyond)}")
    if missing := sorted({at for at in known if is_asked(at)} - set(came)):
        told = "".join(f"; {gap.status.name} up to {gap.last}" for gap in fetch.gaps[:SHOWN])
        problems.append(f"{where}: did not come: {_some(missing)}{told}")
    return problems


def _fetch_results(
    evidence: PublicationEvidence, fetches: list[tuple[TrackEvidence, FetchEvidence | None]]
) -> Finding:
    def results() -> Iterator[str | None]:
        for track, fetch in fetches:
            if fetch is None:
                continue
            problems = _fetched(evidence, fetch, track)
            yield from problems
            if not problems:
                yield None

    return Finding.of(results(), if_none="there was nothing to fetch")


def _fetch_range(evidence: PublicationEvidence) -> Finding:
    fetches = [(track, track.fetch) for track in evidence.tracks.values()]
    return _fetch_results(evidence, fetches)


def _fetch_order(evidence: PublicationEvidence) -> Finding:
    def results() -> Iterator[str | None]:
        for track in evidence.tracks.values():
            if track.fetch is None or not track.fetch.objects:
                continue
            came = [record.location for record in track.fetch.objects]
            wrong = [after for before, after in pairwise(came) if after <= before]
            yield f"{track.name}: out of order: {_some(wrong)}" if wrong else None

    return Finding.of(results(), if_none="nothing was fetched")


def _filtered(evidence: PublicationEvidence) -> Finding:
    if not evidence.max_filter_ranges:
        return Finding(0, note="the peer announces no MAX_FILTER_RANGES")
    fetches = [(track, track.filtered) for track in evidence.tracks.values()]
    return _fetch_results(evidence, fetches)


CHECKS = (
    Check("exactly-once", "KVCS 5.2", "Next Object and a fill: each Object once", _exactly_once),
    Check("fetch-range", "KVCS 5.3", "FETCH of layers brings exactly these", _fetch_range),
    Check("fetch-order", "KVCS 5.3", "FETCH brings Groups in ascending order", _fetch_order),
    Check("objectid-filter", "KVCS 5.3", "OBJECTID_FILTER brings the first blocks", _filtered),
)
