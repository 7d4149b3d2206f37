"""Checks of how a publication can be retrieved (KVCS 5.2, 5.3)."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from kvcs.conformance.check import Check, Finding
from kvcs.geometry import group_id_of, location_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kvcs.conformance.evidence import FetchEvidence, Gap, PublicationEvidence, TrackEvidence
    from moqt.types import Location

__all__ = ["CHECKS"]

SHOWN = 4
"""Locations that one problem names."""


def _some(locations: list[Location], total: int | None = None) -> str:
    count = len(locations) if total is None else total
    shown = ", ".join(map(str, locations[:SHOWN]))
    return shown + (f" and {count - SHOWN} more" if count > SHOWN else "")


def _told(gaps: list[Gap]) -> str:
    return "".join(f"; {gap.status.name} up to {gap.last}" for gap in gaps[:SHOWN])


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
        lacking, some = _not_come(evidence, track, came)
        if lacking:
            yield f"{track.name}: did not come: {_some(some, lacking)}{_told(track.gaps)}"

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


def _not_come(
    evidence: PublicationEvidence, track: TrackEvidence, came: set[Location]
) -> tuple[int, list[Location]]:
    """Return how many Objects that must have come did not, and the first few.

    All of a complete segment must have come, else what is before one that came.
    """
    manifest, entry = evidence.manifest, evidence.segment(track.name)
    if manifest is None or entry is None:
        return 0, []
    is_all_due = entry.complete and not evidence.cut
    last = max(came, default=None)

    def due(layer: int) -> int:
        blocks = evidence.expected_objects(track.name, layer)
        if is_all_due:
            return blocks
        # A collection that was cut may have missed what was being sent beside the last Object.
        if last is None or group_id_of(layer) > last.group_id - (2 if evidence.cut else 0):
            return 0
        return min(blocks, last.object_id) if group_id_of(layer) == last.group_id else blocks

    return _lacking(came, range(manifest.layers), due)


def _lacking(
    came: set[Location], layers: range, due: Callable[[int], int]
) -> tuple[int, list[Location]]:
    """Return how many of the first `due(layer)` blocks of layers are not in `came`; the first few.

    The work is bounded by what came and the number of layers: a manifest may claim any size.
    """
    blocks_of: dict[int, set[int]] = {}
    for at in came:
        blocks_of.setdefault(at.group_id, set()).add(at.object_id)
    total = 0
    some: list[Location] = []
    for layer in layers:
        blocks = due(layer)
        have = blocks_of.get(group_id_of(layer), set())
        lacking = blocks - sum(block < blocks for block in have)
        total += lacking
        block = 0
        while lacking and len(some) < SHOWN and block < blocks:
            if block not in have:
                some.append(location_of(layer, block))
            block += 1
    return total, some


def _fetched(
    evidence: PublicationEvidence, fetch: FetchEvidence, track: TrackEvidence
) -> list[str]:
    """Return what is wrong with the Objects that a FETCH brought."""
    first, last = group_id_of(fetch.first_layer), group_id_of(fetch.last_layer)

    def is_asked(at: Location) -> bool:
        is_block = fetch.blocks is None or at.object_id < fetch.blocks
        return first <= at.group_id <= last and is_block

    where = f"{track.name} layers {fetch.first_layer} to {fetch.last_layer}"
    if fetch.blocks is not None:
        where += f", blocks 0 to {fetch.blocks - 1}"
    if fetch.problem:
        return [f"{where}: {fetch.problem}"]
    came = [record.location for record in fetch.objects]
    known = {record.location for record in track.joined if is_asked(record.location)}
    problems = []
    if beyond := [at for at in came if not is_asked(at)]:
        problems.append(f"{where}: not asked for: {_some(beyond)}")
    if known:
        some = sorted(known - set(came))
        lacking = len(some)
    else:  # nothing came by the subscription: the manifest alone tells what there is
        layers = range(fetch.first_layer, fetch.last_layer + 1)
        lacking, some = _lacking(
            set(came), layers, lambda layer: evidence.expected_objects(track.name, layer)
        )
    if lacking:
        problems.append(f"{where}: did not come: {_some(some, lacking)}{_told(fetch.gaps)}")
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
