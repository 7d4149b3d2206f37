"""Each check fails for what it is there for, and no other does; without a network."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from kvcs.conformance import CHECKS, Finding, Verdict, judge
from kvcs.conformance.check import MAX_PROBLEMS
from kvcs.conformance.evidence import Way
from kvcs.conformance.reading import ManifestReading, read_manifest
from kvcs.geometry import end_of_track
from kvcs.kvsp.shapes import Component
from moqt.codes import ObjectStatus
from moqt.types import Location, TrackNamespace
from tests.kvcs.conformance.built import KV, K, V, built, index_of, spoil, status

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvcs.conformance import PublicationEvidence
    from kvcs.conformance.evidence import ObjectRecord
    from kvcs.manifest import Manifest, SegmentEntry


CASES: list[tuple[str, set[str], Callable[[PublicationEvidence], None]]] = []


def case(*failing: str) -> Callable[[Callable[[PublicationEvidence], None]], None]:
    """Plant something that fails these checks and no others."""

    def add(change: Callable[[PublicationEvidence], None]) -> None:
        CASES.append((change.__name__, set(failing), change))

    return add


def entries(evidence: PublicationEvidence, change: Callable[[SegmentEntry], SegmentEntry]) -> None:
    """Change the segment's entry in every version."""

    def changed(manifest: Manifest) -> Manifest:
        return replace(manifest, segments=tuple(map(change, manifest.segments)))

    versions(evidence, changed)


def versions(
    evidence: PublicationEvidence,
    change: Callable[[Manifest], Manifest],
    *,
    only: int | None = None,
) -> None:
    for index, version in enumerate(evidence.manifests):
        manifest = version.reading.manifest
        if manifest is not None and only in (None, index):
            reading = replace(version.reading, manifest=change(manifest))
            evidence.manifests[index] = replace(version, reading=reading)


def version_header(evidence: PublicationEvidence, index: int, **changes: Any) -> None:
    version = evidence.manifests[index]
    evidence.manifests[index] = replace(version, header=version.header._replace(**changes))


def field(name: str, value: Any) -> Callable[[ObjectRecord], ObjectRecord]:
    """Change a header field of an Object that came once."""

    def change(record: ObjectRecord) -> ObjectRecord:
        assert record.header is not None
        return replace(record, header=record.header._replace(**{name: value}))

    return change


@case("namespace-fields")
def four_fields(evidence: PublicationEvidence) -> None:
    evidence.namespace = TrackNamespace(evidence.namespace.fields[:4])


@case("namespace-fields")
def another_profile(evidence: PublicationEvidence) -> None:
    evidence.namespace = TrackNamespace((b"kvcs-2", *evidence.namespace.fields[1:]))


@case("namespace-lengths")
def a_short_publication_id(evidence: PublicationEvidence) -> None:
    evidence.namespace = TrackNamespace((*evidence.namespace.fields[:4], b"short"))


@case("track-names")
def a_name_outside_the_grammar(evidence: PublicationEvidence) -> None:
    version = evidence.manifests[0]
    reading = replace(version.reading, name_problems=("component: is 'q'",))
    evidence.manifests[0] = replace(version, reading=reading)


@case("track-sets")
def k_without_v(evidence: PublicationEvidence) -> None:
    entries(
        evidence,
        lambda entry: replace(entry, tracks=(K,), object_digests={K: entry.object_digests[K]}),
    )


@case("tracks-exist")
def a_track_that_is_not_there(evidence: PublicationEvidence) -> None:
    track = evidence.tracks[V]
    track.refusal, track.objects, track.fetch, track.filtered = "DOES_NOT_EXIST", [], None, None


@case("discovery")
def not_reported(evidence: PublicationEvidence) -> None:
    evidence.is_discovered = False


@case("manifest-track")
def two_manifest_tracks(evidence: PublicationEvidence) -> None:
    evidence.other_manifest_exists = True


@case("manifest-track")
def no_manifest_track(evidence: PublicationEvidence) -> None:
    evidence.manifest_track = None
    evidence.manifests.clear()
    evidence.tracks.clear()


@case("manifest-json")
def no_json(evidence: PublicationEvidence) -> None:
    reading = ManifestReading(json_problem="$: not JSON")
    evidence.manifests[0] = replace(evidence.manifests[0], reading=reading)


@case("manifest-signature")
def a_signature_that_does_not_hold(evidence: PublicationEvidence) -> None:
    reading = replace(
        evidence.manifests[0].reading, is_signed=True, signature_problem="does not hold"
    )
    evidence.manifests[0] = replace(evidence.manifests[0], reading=reading)


@case("manifest-groups")
def a_version_left_out(evidence: PublicationEvidence) -> None:
    version_header(evidence, 2, group_id=3)


@case("manifest-groups")
def a_version_that_is_not_object_0(evidence: PublicationEvidence) -> None:
    version_header(evidence, 1, object_id=1)


@case("manifest-priority")
def a_manifest_of_low_priority(evidence: PublicationEvidence) -> None:
    version_header(evidence, 1, publisher_priority=128)


@case("manifest-history")
def a_version_takes_something_back(evidence: PublicationEvidence) -> None:
    versions(evidence, lambda manifest: replace(manifest, deterministic=True), only=1)


@case("manifest-cadence")
def twelve_layers_without_a_version(evidence: PublicationEvidence) -> None:
    del evidence.manifests[1]
    version_header(evidence, 1, group_id=1)


@case("manifest-cadence")
def layers_that_no_version_lists(evidence: PublicationEvidence) -> None:
    def short(entry: SegmentEntry) -> SegmentEntry:
        digests = {track: groups[:3] for track, groups in entry.object_digests.items()}
        return replace(entry, complete=False, object_digests=digests)

    entries(evidence, short)


@case("compatibility-id")
def another_model(evidence: PublicationEvidence) -> None:
    fields = list(evidence.namespace.fields)
    fields[2] = bytes(32)
    evidence.namespace = TrackNamespace(tuple(fields))


@case("digests-listed")
def no_digests(evidence: PublicationEvidence) -> None:
    entries(evidence, lambda entry: replace(entry, object_digests={}))


@case("object-digests")
def another_digest(evidence: PublicationEvidence) -> None:
    def wrong(entry: SegmentEntry) -> SegmentEntry:
        groups = [bytes(len(group)) for group in entry.object_digests[K]]
        return replace(entry, object_digests={**entry.object_digests, K: tuple(groups)})

    entries(evidence, wrong)


@case("manifest-current")
def no_manifest_by_the_fill(evidence: PublicationEvidence) -> None:
    evidence.manifests[0] = replace(evidence.manifests[0], way=Way.LIVE)


@case("manifest-current")
def the_current_manifest_twice(evidence: PublicationEvidence) -> None:
    evidence.manifests.append(replace(evidence.manifests[0], way=Way.LIVE))


@case("manifest-current")
def a_refused_manifest_fill(evidence: PublicationEvidence) -> None:
    evidence.manifest_refusal = "NOT_SUPPORTED"


@case("group-ids", "object-ids", "end-of-track")
def a_group_that_is_no_layer(evidence: PublicationEvidence) -> None:
    objects = evidence.tracks[K].objects
    last = objects[index_of(objects, 11, 0)]
    beyond = replace(field("layer", 13)(last), location=Location(13, 0))
    objects.insert(-1, beyond)


@case("group-order")
def a_group_long_after_the_next(evidence: PublicationEvidence) -> None:
    objects = evidence.tracks[K].objects
    for block in range(3):
        spoil(objects, 4, block, lambda record: replace(record, arrived_s=9.0))


@case("one-subgroup")
def another_subgroup(evidence: PublicationEvidence) -> None:
    spoil(evidence.tracks[K].objects, 4, 1, lambda record: replace(record, subgroup_id=1))


@case("one-subgroup")
def a_datagram(evidence: PublicationEvidence) -> None:
    spoil(evidence.tracks[K].objects, 4, 1, lambda record: replace(record, subgroup_id=None))


@case("object-order")
def descending_objects(evidence: PublicationEvidence) -> None:
    objects = evidence.tracks[K].objects
    at = index_of(objects, 4, 0)
    objects[at], objects[at + 1] = objects[at + 1], objects[at]


@case("end-of-group")
def no_end_of_group(evidence: PublicationEvidence) -> None:
    objects = evidence.tracks[K].objects
    del objects[index_of(objects, 4, 3)]


@case("end-of-group")
def an_end_of_group_too_far(evidence: PublicationEvidence) -> None:
    spoil(evidence.tracks[K].objects, 4, 3, lambda record: replace(record, location=Location(4, 4)))


@case("end-of-track")
def no_end_of_track(evidence: PublicationEvidence) -> None:
    del evidence.tracks[K].objects[-1]


@case("end-of-track", "object-order")
def an_end_of_track_too_early(evidence: PublicationEvidence) -> None:
    spoil(
        evidence.tracks[K].objects, 12, 0, lambda record: replace(record, location=Location(11, 2))
    )


@case("end-of-track")
def no_sign_of_an_end_after_it(evidence: PublicationEvidence) -> None:
    track = evidence.tracks[K]
    track.objects = [replace(record, way=Way.FILL) for record in track.joined]
    track.done = None


@case("object-ids")
def a_block_too_many(evidence: PublicationEvidence) -> None:
    objects = evidence.tracks[K].objects
    at = index_of(objects, 0, 2)
    header = objects[at].header
    assert header is not None
    more = header._replace(block_index=3, token_start=header.token_start + header.token_count)
    objects.insert(at + 1, replace(objects[at], location=Location(0, 3), header=more))


@case("data-priority")
def another_priority(evidence: PublicationEvidence) -> None:
    spoil(evidence.tracks[K].objects, 4, 1, lambda record: replace(record, publisher_priority=128))


@case("unchanged")
def other_octets_by_fetch(evidence: PublicationEvidence) -> None:
    fetched = evidence.tracks[K].fetch
    assert fetched is not None
    fetched.objects[0] = replace(fetched.objects[0], data_sha256=bytes(32))


@case("header")
def no_header(evidence: PublicationEvidence) -> None:
    spoil(
        evidence.tracks[K].objects,
        4,
        1,
        lambda record: replace(record, header=None, payload_octets=10, raw_sha256=()),
    )


@case("header")
def another_magic(evidence: PublicationEvidence) -> None:
    spoil(evidence.tracks[K].objects, 4, 1, field("magic", 1))


@case("header")
def another_version(evidence: PublicationEvidence) -> None:
    spoil(evidence.tracks[K].objects, 4, 1, field("version", 2))


@case("header-component")
def another_component(evidence: PublicationEvidence) -> None:
    spoil(evidence.tracks[K].objects, 4, 1, field("component", Component.V))


@case("header-flags")
def flags(evidence: PublicationEvidence) -> None:
    spoil(evidence.tracks[K].objects, 4, 1, field("flags", 0x8000))


@case("header-flags")
def reserved(evidence: PublicationEvidence) -> None:
    spoil(evidence.tracks[K].objects, 4, 1, field("reserved", 1))


@case("header-layer")
def another_layer(evidence: PublicationEvidence) -> None:
    spoil(evidence.tracks[K].objects, 4, 1, field("layer", 5))


@case("header-block")
def another_block(evidence: PublicationEvidence) -> None:
    spoil(evidence.tracks[K].objects, 4, 1, field("block_index", 2))


@case("header-token-start")
def another_token_start(evidence: PublicationEvidence) -> None:
    spoil(evidence.tracks[K].objects, 4, 1, field("token_start", 0))


@case("header-token-count")
def another_token_count(evidence: PublicationEvidence) -> None:
    spoil(evidence.tracks[K].objects, 4, 1, field("token_count", 3))


@case("header-codec")
def another_codec(evidence: PublicationEvidence) -> None:
    spoil(evidence.tracks[K].objects, 4, 1, field("codec", 1))


@case("header-data-length")
def another_length(evidence: PublicationEvidence) -> None:
    spoil(evidence.tracks[K].objects, 4, 1, field("data_length", 1))


@case("data-digest")
def other_data(evidence: PublicationEvidence) -> None:
    spoil(evidence.tracks[K].objects, 4, 1, lambda record: replace(record, data_sha256=bytes(32)))


@case("data")
def data_that_does_not_decode(evidence: PublicationEvidence) -> None:
    spoil(
        evidence.tracks[KV].objects,
        4,
        1,
        lambda record: replace(record, raw_sha256=(), decode_problem="a frame does not decode"),
    )


@case("encodings-agree")
def another_tensor_in_kv(evidence: PublicationEvidence) -> None:
    spoil(
        evidence.tracks[KV].objects,
        4,
        1,
        lambda record: replace(record, raw_sha256=(record.raw_sha256[0], bytes(32))),
    )


@case("exactly-once", "object-order")
def an_object_twice(evidence: PublicationEvidence) -> None:
    objects = evidence.tracks[K].objects
    at = index_of(objects, 4, 1)
    objects.insert(at + 1, objects[at])


@case("exactly-once")
def an_object_by_fill_and_live(evidence: PublicationEvidence) -> None:
    objects = evidence.tracks[K].objects
    objects.insert(0, replace(objects[index_of(objects, 4, 1)], way=Way.FILL))


@case("exactly-once")
def the_last_group_by_fill_and_live(evidence: PublicationEvidence) -> None:
    """As a relay does that sends its current Group again, ends left out."""
    objects = evidence.tracks[K].objects
    again = [record for record in objects if record.location.group_id == 11][:3]
    evidence.tracks[K].objects = [
        *(replace(record, way=Way.FILL) for record in objects[:-2] if record not in again),
        *(replace(record, way=Way.FILL) for record in again),
        *again,
    ]


@case("exactly-once")
def an_object_that_never_came(evidence: PublicationEvidence) -> None:
    objects = evidence.tracks[K].objects
    del objects[index_of(objects, 4, 1)]


@case("exactly-once")
def a_refused_fill(evidence: PublicationEvidence) -> None:
    evidence.tracks[K].fill_refusal = "NOT_SUPPORTED"


@case("exactly-once")
def a_broken_subscription(evidence: PublicationEvidence) -> None:
    evidence.tracks[K].failure = "MALFORMED_TRACK"


@case("exactly-once")
def a_broken_stream(evidence: PublicationEvidence) -> None:
    evidence.tracks[K].resets.append("the fill was reset: INTERNAL_ERROR")


@case("fetch-range")
def a_refused_fetch(evidence: PublicationEvidence) -> None:
    fetched = evidence.tracks[K].fetch
    assert fetched is not None
    fetched.objects.clear()
    fetched.problem = "NOT_SUPPORTED"


@case("fetch-range")
def a_fetch_that_lacks_an_object(evidence: PublicationEvidence) -> None:
    fetched = evidence.tracks[K].fetch
    assert fetched is not None
    del fetched.objects[2]


@case("fetch-range")
def a_fetch_that_starts_at_layer_0(evidence: PublicationEvidence) -> None:
    track = evidence.tracks[K]
    assert track.fetch is not None
    track.fetch.objects.insert(0, track.objects[0])


@case("fetch-order")
def a_descending_fetch(evidence: PublicationEvidence) -> None:
    fetched = evidence.tracks[K].fetch
    assert fetched is not None
    fetched.objects.sort(key=lambda record: -record.location.group_id)


@case("objectid-filter")
def a_filter_that_is_not_heeded(evidence: PublicationEvidence) -> None:
    track = evidence.tracks[K]
    assert track.filtered is not None
    track.filtered.objects = list(track.objects[:3])


def test_flawless_evidence_passes() -> None:
    report = judge(built())
    assert report.failed() == ()
    assert report.ids(Verdict.NOT_APPLICABLE) == ("manifest-signature",)


@pytest.mark.parametrize(("failing", "change"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_what_is_wrong_fails_its_check_alone(
    failing: set[str], change: Callable[[PublicationEvidence], None]
) -> None:
    evidence = built()
    change(evidence)
    assert set(judge(evidence).failed()) == failing


def test_every_check_can_fail() -> None:
    assert {check.id for check in CHECKS} == set().union(*(failing for _, failing, _ in CASES))


def test_problems_name_the_place_and_what_was_expected() -> None:
    evidence = built()
    spoil(evidence.tracks[K].objects, 4, 1, field("layer", 5))
    (result,) = [each for each in judge(evidence).results if each.check.id == "header-layer"]
    assert result.finding.problems == ("k.raw.s0 Group 4 Object 1: Layer is 5, expected 4",)
    assert result.finding.looked_at == 3 * 12 * 3


def test_problems_beyond_the_bound_are_counted() -> None:
    finding = Finding.of((f"wrong {at}" for at in range(100)), if_none="")
    assert (finding.looked_at, finding.wrong, len(finding.problems)) == (100, 100, MAX_PROBLEMS)


def test_nothing_collected_is_not_applicable_rather_than_right() -> None:
    evidence = built()
    evidence.tracks.clear()
    evidence.manifests.clear()
    report = judge(evidence)
    assert set(report.ids(Verdict.PASS)) <= {
        *("namespace-fields", "namespace-lengths", "discovery", "manifest-track")
    } | {"manifest-current"}


def test_a_cut_collection_excuses_what_may_have_been_on_its_way() -> None:
    evidence = built()
    for track in evidence.tracks.values():
        track.objects = [r for r in track.objects if r.location < Location(6, 1)]
        track.done = None
    evidence.cut = "not all came within 30 s"
    assert judge(evidence).failed() == ()


def test_a_manifest_of_any_size_is_judged_by_what_came() -> None:
    evidence = built()
    last = evidence.manifests[-1].reading.manifest
    assert last is not None
    (entry,) = last.segments
    huge = replace(
        last,
        segments=(replace(entry, span=replace(entry.span, blocks=2**32 - 1), object_digests={}),),
    )
    reading = replace(evidence.manifests[-1].reading, manifest=huge)
    evidence.manifests = [replace(evidence.manifests[-1], reading=reading)]
    (result,) = [each for each in judge(evidence).results if each.check.id == "exactly-once"]
    assert result.finding.wrong == 3
    assert f"and {12 * (2**32 - 4) - 4} more" in result.finding.problems[0]


def test_a_status_object_alone_is_no_object() -> None:
    evidence = built()
    for track in evidence.tracks.values():
        track.objects = [status(end_of_track(12), ObjectStatus.END_OF_TRACK)]
        track.fetch = track.filtered = None
    assert set(judge(evidence).failed()) == {"exactly-once"}


@pytest.mark.parametrize(
    "octets", [b"", b"{", b"[]", b'{"segments": 3}', b'{"segments": [{"tracks": ["q"]}]}', b"\xff"]
)
@pytest.mark.parametrize("is_signed", [False, True])
def test_any_manifest_octets_are_read_into_what_is_wrong(octets: bytes, is_signed: bool) -> None:
    reading = read_manifest(octets, is_signed=is_signed, trusted=None)
    assert reading.manifest is None
    assert reading.json_problem or reading.signature_problem
