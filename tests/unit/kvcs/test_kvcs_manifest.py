"""Manifests: JSON in and out, and everything that makes one unusable (KVCS 3.6)."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from kvcs.errors import CompatibilityMismatch, ManifestInvalid, PublicationUnusable
from kvcs.geometry import SegmentSpan
from kvcs.kvsp import Component, Descriptor
from kvcs.manifest import Manifest, SegmentEntry, check_successor, dump_digests
from kvcs.names import DataTrackName

if TYPE_CHECKING:
    from collections.abc import Callable

DESCRIPTOR = Descriptor(
    model="m",
    layers=3,
    block_tokens=16,
    kv_heads=2,
    head_dim=8,
    dtype="int8",
    layer_overrides={1: {"v_head_dim": 0}},
)


def tracks(segment: int) -> tuple[DataTrackName, ...]:
    return (
        DataTrackName(Component.K, "raw", segment),
        DataTrackName(Component.V, "raw", segment),
    )


def entry(segment: int, first_block: int, *, complete: bool, layers: int = 3) -> SegmentEntry:
    k, v = tracks(segment)
    group = bytes(range(64))
    return SegmentEntry(
        span=SegmentSpan(segment=segment, first_block=first_block, blocks=2),
        block_keys_sha256=bytes([segment]) * 32,
        tracks=(k, v),
        complete=complete,
        object_digests={
            k: (group,) * layers,
            v: (group, b"", group)[:layers],
        },
    )


MANIFEST = Manifest(
    descriptor=DESCRIPTOR,
    deterministic=False,
    segments=(entry(0, 0, complete=True), entry(1, 2, complete=False, layers=2)),
)


def test_a_manifest_reads_back() -> None:
    assert Manifest.load(MANIFEST.dump()) == MANIFEST
    assert Manifest.load(memoryview(MANIFEST.dump())) == MANIFEST
    empty = Manifest(descriptor=DESCRIPTOR, deterministic=True)
    assert Manifest.load(empty.dump()) == empty
    assert (MANIFEST.layers, MANIFEST.blocks) == (3, 4)


def test_versions_share_the_digests_of_large_groups() -> None:
    groups = (bytes(150 * 32), bytes(range(32)) * 150, bytes(150 * 32))
    large = SegmentEntry(
        span=SegmentSpan(segment=2, first_block=4, blocks=150),
        block_keys_sha256=bytes(32),
        tracks=tracks(2)[:1],
        complete=False,
        object_digests={tracks(2)[0]: groups},
    )
    manifest = replace(MANIFEST, segments=(*MANIFEST.segments, large))
    later = replace(manifest, segments=(*MANIFEST.segments, replace(large, complete=True)))
    at_hand = {
        group: dump_digests(group)
        for entry in manifest.segments
        for of_track in entry.object_digests.values()
        for group in of_track
    }
    assert Manifest.load(manifest.dump()) == manifest
    for version in (manifest, later):
        pieces = version.pieces(at_hand)
        assert b"".join(pieces) == version.dump()
        assert len(pieces) == 2 * 3 + 1  # small ones are in what lies between
        for group in groups:
            assert any(piece is at_hand[group] for piece in pieces)
    assert b"".join(MANIFEST.pieces({})) == MANIFEST.dump()


def test_the_json_is_that_of_the_profile() -> None:
    """K3.6#3."""
    value = json.loads(MANIFEST.dump())
    assert list(value) == ["kvcs", "compat", "layers", "block_tokens", "deterministic", "segments"]
    assert value["kvcs"] == 1
    assert value["compat"] == DESCRIPTOR.to_dict()
    segment = value["segments"][0]
    assert segment["tracks"] == ["k.raw.s0", "v.raw.s0"]
    assert segment["block_keys_sha256"] == "00" * 32
    digests = [bytes(range(32)).hex(), bytes(range(32, 64)).hex()]
    assert segment["object_digests"] == {
        "k.raw.s0": [digests] * 3,
        "v.raw.s0": [digests, [], digests],
    }


def test_digests_are_found_by_place() -> None:
    first, second = MANIFEST.segments
    k, v = tracks(0)
    assert first.digest(k, 2, 1) == bytes(range(32, 64))
    assert first.digest(v, 1, 0) is None
    assert first.digest(k, 3, 0) is None
    assert first.digest(k, 0, 2) is first.digest(k, 0, -1) is first.digest(k, -1, 0) is None
    assert second.listed_layers(tracks(1)[0]) == 2
    assert second.listed_layers(k) == 0
    assert MANIFEST.segment(1) is second
    assert MANIFEST.segment(2) is None


def test_unknown_members_are_ignored() -> None:
    value = json.loads(MANIFEST.dump())
    value["later"] = {"a": [1.5, None]}
    value["segments"][0]["later"] = 1
    assert Manifest.load(json.dumps(value).encode()) == MANIFEST


def test_digests_may_be_left_out() -> None:
    value = json.loads(MANIFEST.dump())
    del value["segments"][0]["object_digests"]
    assert Manifest.load(json.dumps(value).encode()).segments[0].object_digests == {}


def put(*path: Any, value: Any) -> Callable[[Any], None]:
    def change(manifest: Any) -> None:
        for step in path[:-1]:
            manifest = manifest[step]
        manifest[path[-1]] = value

    return change


SEGMENT = ("segments", 1)
DIGESTS = (*SEGMENT, "object_digests")


@pytest.mark.parametrize(
    ("change", "path"),
    [
        (put("kvcs", value=2), "$.kvcs"),
        (put("kvcs", value="1"), "$.kvcs"),
        (put("layers", value=4), "$.layers"),
        (put("layers", value=True), "$.layers"),
        (put("block_tokens", value=8), "$.block_tokens"),
        (put("deterministic", value=0), "$.deterministic"),
        (put("compat", value=[]), "$.compat"),
        (put("compat", "dtype", value="float64"), "$.compat.dtype"),
        (put("compat", value=None), "$.compat"),
        (put("segments", value={}), "$.segments"),
        (put("segments", value=[None] * 65537), "$.segments"),
        (put(*SEGMENT, value=3), "$.segments[1]"),
        (put(*SEGMENT, "segment", value=0), "$.segments[1].segment"),
        (put(*SEGMENT, "segment", value=2), "$.segments[1].segment"),
        (put(*SEGMENT, "segment", value=-1), "$.segments[1].segment"),
        (put(*SEGMENT, "first_block", value=1), "$.segments[1].first_block"),
        (put(*SEGMENT, "first_block", value=3), "$.segments[1].first_block"),
        (put(*SEGMENT, "blocks", value=0), "$.segments[1].blocks"),
        (put(*SEGMENT, "blocks", value=2**40), "$.segments[1].blocks"),
        (put(*SEGMENT, "blocks", value=2.0), "$.segments[1].blocks"),
        (put(*SEGMENT, "complete", value="yes"), "$.segments[1].complete"),
        (put(*SEGMENT, "block_keys_sha256", value=0), "$.segments[1].block_keys_sha256"),
        (put(*SEGMENT, "block_keys_sha256", value="00"), "$.segments[1].block_keys_sha256"),
        (put(*SEGMENT, "block_keys_sha256", value="zz" * 32), "$.segments[1].block_keys_sha256"),
        (put(*SEGMENT, "block_keys_sha256", value="  " * 32), "$.segments[1].block_keys_sha256"),
        (put(*SEGMENT, "tracks", value=[]), "$.segments[1].tracks"),
        (put(*SEGMENT, "tracks", value="k.raw.s1"), "$.segments[1].tracks"),
        (put(*SEGMENT, "tracks", 0, value="k.raw"), "$.segments[1].tracks[0]"),
        (put(*SEGMENT, "tracks", 0, value=["k.raw.s1"]), "$.segments[1].tracks[0]"),
        (put(*SEGMENT, "tracks", 1, value="v.raw.s0"), "$.segments[1].tracks[1]"),
        (put(*SEGMENT, "tracks", 1, value="k.raw.s1"), "$.segments[1].tracks[1]"),
        (put(*DIGESTS, value=[]), "$.segments[1].object_digests"),
        (put(*DIGESTS, "k.raw", value=[]), "$.segments[1].object_digests"),
        (put(*DIGESTS, "k.raw.s1", value={}), "$.segments[1].object_digests.k.raw.s1"),
        (put(*DIGESTS, "k.raw.s1", value=["00"]), "$.segments[1].object_digests.k.raw.s1[0]"),
        (put(*DIGESTS, "k.raw.s1", value=[[1, 2]]), "$.segments[1].object_digests.k.raw.s1[0]"),
        (put(*DIGESTS, "kv.raw.s1", value=[]), "$.segments[1].object_digests.kv.raw.s1"),
        (put(*DIGESTS, "k.raw.s1", value=[[]]), "$.segments[1].object_digests.k.raw.s1[0]"),
        (put(*DIGESTS, "k.raw.s1", value=[["00"]]), "$.segments[1].object_digests.k.raw.s1[0]"),
        (put(*DIGESTS, "v.raw.s1", 1, value=["00" * 32] * 2), None),
        (put(*DIGESTS, "k.raw.s1", value=[["00" * 32] * 2] * 4), None),
        (put(*SEGMENT, "complete", value=True), "$.segments[1].object_digests.k.raw.s1"),
    ],
)
def test_what_is_wrong_is_named_by_its_path(
    change: Callable[[Any], None], path: str | None
) -> None:
    value = json.loads(MANIFEST.dump())
    change(value)
    with pytest.raises(ManifestInvalid) as caught:
        Manifest.load(json.dumps(value).encode())
    assert path is None or caught.value.path == path
    assert isinstance(caught.value, PublicationUnusable)


@pytest.mark.parametrize("name", ["kvcs", "compat", "layers", "deterministic", "segments"])
def test_required_members_are_missed(name: str) -> None:
    value = json.loads(MANIFEST.dump())
    del value[name]
    with pytest.raises(ManifestInvalid, match=name):
        Manifest.load(json.dumps(value).encode())


@pytest.mark.parametrize(
    "text",
    [b"", b"[]", b"\xff", b"[" * 100_000, b'{"a":' * 100 + b"1" + b"}" * 100, b"9" * 5000],
)
def test_text_that_is_no_manifest_is_refused(text: bytes) -> None:
    with pytest.raises(ManifestInvalid):
        Manifest.load(text)


def test_duplicate_names_are_refused_wherever_they_are() -> None:
    text = MANIFEST.dump()
    with pytest.raises(ManifestInvalid, match="given twice"):
        Manifest.load(text.replace(b'"complete":true', b'"complete":true,"complete":false'))
    with pytest.raises(ManifestInvalid, match=r"\$\.compat"):
        Manifest.load(text.replace(b'"model":"m"', b'"model":"m","model":"n"'))


def test_the_length_is_bounded() -> None:
    text = MANIFEST.dump()
    with pytest.raises(ManifestInvalid, match="over the bound of 100"):
        Manifest.load(text, max_octets=100)
    assert Manifest.load(text, max_octets=len(text)) == MANIFEST


def test_values_made_here_are_checked_too() -> None:
    wrong = replace(entry(0, 0, complete=False), block_keys_sha256=b"short")
    with pytest.raises(ManifestInvalid, match="block_keys_sha256"):
        Manifest(descriptor=DESCRIPTOR, deterministic=False, segments=(wrong,))
    no_tracks = replace(entry(0, 0, complete=False), tracks=())
    with pytest.raises(ManifestInvalid, match="at least one track"):
        Manifest(descriptor=DESCRIPTOR, deterministic=False, segments=(no_tracks,))


def test_another_compatibility_id_discards_the_publication() -> None:
    """K3.6#10."""
    MANIFEST.check_compatibility(DESCRIPTOR.compatibility_id)
    with pytest.raises(CompatibilityMismatch) as caught:
        MANIFEST.check_compatibility(bytes(32))
    assert caught.value.expected == bytes(32)
    assert caught.value.computed == DESCRIPTOR.compatibility_id


def test_a_successor_only_adds() -> None:
    first = Manifest(
        descriptor=DESCRIPTOR,
        deterministic=False,
        segments=(entry(0, 0, complete=False, layers=1),),
    )
    second = replace(first, segments=(entry(0, 0, complete=True),))
    for old, new in ((first, first), (first, second), (first, MANIFEST), (second, MANIFEST)):
        check_successor(old, new)


def changed(**changes: Any) -> Manifest:
    return replace(MANIFEST, segments=(replace(MANIFEST.segments[0], **changes), *SECOND))


SECOND = MANIFEST.segments[1:]
OTHER_DIGESTS = {
    track: tuple(group[::-1] for group in groups)
    for track, groups in MANIFEST.segments[0].object_digests.items()
}


@pytest.mark.parametrize(
    ("new", "path"),
    [
        (
            replace(MANIFEST, descriptor=Descriptor.from_dict(DESCRIPTOR.to_dict() | {"x": 1})),
            "$.compat",
        ),
        (replace(MANIFEST, deterministic=True), "$.deterministic"),
        (replace(MANIFEST, segments=MANIFEST.segments[:1]), "$.segments"),
        (changed(block_keys_sha256=b"k" * 32), "$.segments[0].block_keys_sha256"),
        (changed(complete=False), "$.segments[0].complete"),
        (changed(object_digests={}), "$.segments[0].object_digests.k.raw.s0"),
        (changed(object_digests=OTHER_DIGESTS), "$.segments[0].object_digests.k.raw.s0"),
        (
            changed(tracks=(*tracks(0), DataTrackName(Component.KV, "raw", 0))),
            "$.segments[0].tracks",
        ),
    ],
)
def test_a_successor_that_takes_something_back_is_refused(new: Manifest, path: str) -> None:
    with pytest.raises(ManifestInvalid) as caught:
        check_successor(MANIFEST, new)
    assert caught.value.path == path


def test_the_json_of_digests_that_is_kept_is_what_would_be_made() -> None:
    assert dump_digests(b"") == b"[]"
    digests = bytes(range(96))
    assert json.loads(dump_digests(digests)) == [digests[at : at + 32].hex() for at in (0, 32, 64)]
