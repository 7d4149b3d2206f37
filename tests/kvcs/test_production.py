"""The producer without I/O: order, whole layers, manifests when they are due (KVCS 3.3 to 3.6)."""

from __future__ import annotations

import hashlib
import itertools

import numpy as np
import pytest

from kvcs.errors import ProductionError, TensorMismatch
from kvcs.geometry import SegmentSpan
from kvcs.kvsp.codecs import BSZSTD, RAW, ZSTD
from kvcs.kvsp.container import layer_digest
from kvcs.kvsp.shapes import Component, Layout
from kvcs.manifest import Manifest, check_successor
from kvcs.payload import HEADER_OCTETS, parse_header
from kvcs.production import Encoding, Production, SegmentPlan, prepare_layer
from tests.kvcs.support import describe, octets_of, prefix_of, tensors


def production(
    layers: int = 3, blocks: int = 4, *, layers_per_manifest: int = 8, max_segments: int = 16
) -> Production:
    return Production(
        prefix_of(describe(layers=layers), blocks),
        layers_per_manifest=layers_per_manifest,
        max_segments=max_segments,
    )


def put(made: Production, number: int, layer: int) -> None:
    segment = made.segments[number]
    plan = segment.plan
    k, v = tensors(plan.descriptor, layer, plan.span.blocks)
    made.commit(segment, prepare_layer(plan, layer, k, v))


def plan_of(
    *encodings: Encoding, blocks: int = 3, first_block: int = 0, **members: object
) -> SegmentPlan:
    return SegmentPlan(
        descriptor=describe(**members),  # type: ignore[arg-type]
        span=SegmentSpan(segment=2, first_block=first_block, blocks=blocks),
        encodings=encodings or (Encoding(),),
    )


def test_a_layer_becomes_one_object_a_block_in_each_track() -> None:
    """K3.4#2, K3.4#3, K3.5#1, K3.5#4."""
    plan = plan_of(first_block=5)
    k, v = tensors(plan.descriptor, 1, 3)
    assert v is not None
    prepared = prepare_layer(plan, 1, k, v)
    assert [str(group.track) for group in prepared.groups] == ["k.raw.s2", "v.raw.s2"]
    for group, array in zip(prepared.groups, (k, v), strict=True):
        assert len(group.payloads) == 3
        for block, (head, data) in enumerate(group.payloads):
            header = parse_header(head)
            assert len(head) == HEADER_OCTETS
            assert (header.layer, header.block_index, header.token_count) == (1, block, 4)
            assert header.token_start == (5 + block) * 4
            assert bytes(data) == octets_of(array[block * 4 : block * 4 + 4])
            assert header.data_digest == hashlib.sha256(data).digest()
            assert group.digests[32 * block : 32 * block + 32] == header.data_digest
    assert prepared.octets == sum(
        len(p) for g in prepared.groups for p in map(b"".join, g.payloads)
    )


def test_a_joint_track_has_the_kvsp_layer_digest() -> None:
    """K3.5#4, K3.5#5."""
    plan = plan_of(Encoding(RAW, joint=True))
    k, v = tensors(plan.descriptor, 0, 3)
    assert v is not None
    (group,) = prepare_layer(plan, 0, k, v).groups
    assert group.digests[:32] == layer_digest(octets_of(k[:4]), octets_of(v[:4]))


def test_a_segment_may_be_offered_in_several_encodings() -> None:
    """K3.2#2, K3.2#3."""
    plan = plan_of(Encoding(RAW), Encoding(ZSTD, joint=True), Encoding(BSZSTD))
    k, v = tensors(plan.descriptor, 0, 3)
    names = [str(group.track) for group in prepare_layer(plan, 0, k, v).groups]
    assert names == ["k.raw.s2", "v.raw.s2", "kv.zstd.s2", "k.bszstd.s2", "v.bszstd.s2"]


def test_there_is_no_v_track_without_v_and_an_empty_group_where_one_layer_has_none() -> None:
    plan = plan_of(v_head_dim=0)
    k, _ = tensors(plan.descriptor, 0, 3)
    assert [str(group.track) for group in prepare_layer(plan, 0, k).groups] == ["k.raw.s2"]
    mixed = plan_of(layer_overrides={1: {"v_head_dim": 0}})
    groups = prepare_layer(mixed, 1, k).groups
    assert [(str(group.track), len(group.payloads)) for group in groups] == [
        ("k.raw.s2", 3),
        ("v.raw.s2", 0),
    ]


def test_the_octets_published_are_those_of_the_call_unless_borrowed() -> None:
    plan = plan_of(blocks=1)
    k, v = tensors(plan.descriptor, 0, 1)
    before = octets_of(k)
    copied = prepare_layer(plan, 0, k, v)
    lent = prepare_layer(plan, 0, k, v, borrow=True)
    k.view("u1")[...] ^= 0xFF
    assert bytes(copied.groups[0].payloads[0][1]) == before
    assert bytes(lent.groups[0].payloads[0][1]) == octets_of(k)
    assert any(np.may_share_memory(e, k) for e in lent.exporters if isinstance(e, np.ndarray))


def test_what_is_not_contiguous_is_copied_even_when_borrowed() -> None:
    plan = plan_of(layout=Layout.HND)
    k, v = tensors(plan.descriptor, 0, 3)
    lent = prepare_layer(plan, 0, k, v, borrow=True)
    assert bytes(lent.groups[0].payloads[1][1]) == octets_of(k[:, 4:8])
    exporters = [e for e in lent.exporters if isinstance(e, np.ndarray)]
    assert len(exporters) == 2
    assert not any(np.may_share_memory(e, k) for e in exporters)


def test_tensors_that_do_not_fit_are_refused_with_what_was_expected() -> None:
    plan = plan_of()
    k, v = tensors(plan.descriptor, 0, 3)
    with pytest.raises(TensorMismatch, match="layer 0 has a V tensor"):
        prepare_layer(plan, 0, k)
    with pytest.raises(TensorMismatch, match=r"k array of layer 0 has 8 tokens.*3 blocks of 4: 12"):
        prepare_layer(plan, 0, k[:8], v)
    with pytest.raises(TensorMismatch, match="expected dtype bfloat16, got float32"):
        prepare_layer(plan, 0, k.astype("f4"), v)
    with pytest.raises(TensorMismatch, match=r"expected shape \(tokens, 2, 8\)"):
        prepare_layer(plan, 0, k.transpose(1, 0, 2), v)
    with pytest.raises(TensorMismatch, match="has no V tensor"):
        prepare_layer(plan_of(v_head_dim=0), 0, k, v)
    with pytest.raises(IndexError, match=r"layer 3 is not one of 0\.\.2"):
        prepare_layer(plan, 3, k, v)


# Order


def test_layers_out_of_turn_or_twice_are_refused() -> None:
    """K3.3#2, 2.3#1."""
    made = production()
    segment = made.add_segment(first_block=0, blocks=4, encodings=[Encoding()])
    with pytest.raises(ProductionError, match="layer 1 is out of turn, expected 0"):
        segment.check_turn(1)
    with pytest.raises(ProductionError, match=r"no layer 3, layers are 0\.\.2"):
        segment.check_turn(3)
    put(made, 0, 0)
    with pytest.raises(ProductionError, match="layer 0 was put already"):
        put(made, 0, 0)
    with pytest.raises(ProductionError, match="1 of 3 layers"):
        made.complete_segment(segment)
    put(made, 0, 1)
    put(made, 0, 2)
    assert made.complete_segment(segment)
    assert not made.complete_segment(segment)
    with pytest.raises(ProductionError, match="segment 0 is complete"):
        put(made, 0, 0)
    assert made.is_complete


@pytest.mark.parametrize(
    ("first_block", "blocks", "message"),
    [
        (2, 0, "has 0 blocks, at least 1"),
        (1, 2, "overlaps segment 0"),
        (3, 1, "expected 2: segments follow each other without gaps"),
        (2, 3, "ends at block 4, the prefix has 4 full blocks"),
    ],
)
def test_empty_overlapping_and_stray_segments_are_refused(
    first_block: int, blocks: int, message: str
) -> None:
    made = production()
    made.add_segment(first_block=0, blocks=2, encodings=[Encoding()])
    with pytest.raises(ProductionError, match=message):
        made.add_segment(first_block=first_block, blocks=blocks, encodings=[Encoding()])
    assert len(made.segments) == 1


def test_segments_without_encoding_or_with_one_twice_or_too_many_are_refused() -> None:
    made = production(max_segments=1)
    with pytest.raises(ProductionError, match="has no encoding"):
        made.add_segment(first_block=0, blocks=1, encodings=[])
    with pytest.raises(ProductionError, match="one encoding twice"):
        made.add_segment(first_block=0, blocks=1, encodings=[Encoding(), Encoding()])
    made.add_segment(first_block=0, blocks=1, encodings=[Encoding()])
    with pytest.raises(ProductionError, match="at most 1 segments"):
        made.add_segment(first_block=1, blocks=1, encodings=[Encoding()])


def test_what_lacks_is_said_before_a_publication_is_complete() -> None:
    made = production()
    segment = made.add_segment(first_block=0, blocks=2, encodings=[Encoding()])
    with pytest.raises(ProductionError, match=r"blocks 2\.\.3 are in no segment"):
        made.check_complete()
    made.add_segment(first_block=2, blocks=2, encodings=[Encoding()])
    with pytest.raises(ProductionError, match="segment 0 is not complete"):
        made.check_complete()
    for number in (0, 1):
        for layer in range(3):
            put(made, number, layer)
        made.complete_segment(made.segments[number])
    made.check_complete()
    assert segment.is_complete


# Manifests


def test_a_manifest_is_due_at_once_for_segments_and_every_eight_layers() -> None:
    """K3.6#4, K3.6#6, K3.6#9."""
    made = production(layers=20)
    versions: list[tuple[int, Manifest]] = []

    def take_if_due() -> bool:
        if made.is_manifest_due:
            versions.append(made.take_manifest())
            return True
        return False

    assert take_if_due()
    assert not take_if_due()
    segment = made.add_segment(first_block=0, blocks=4, encodings=[Encoding()])
    assert take_if_due()
    due = []
    for layer in range(20):
        put(made, 0, layer)
        if take_if_due():
            due.append(layer)
    assert due == [7, 15]
    made.complete_segment(segment)
    assert take_if_due()
    assert [version for version, _ in versions] == [0, 1, 2, 3, 4]
    for (_, old), (_, new) in itertools.pairwise(versions):
        check_successor(old, new)
    listed = [
        [entry.listed_layers(track) for entry in manifest.segments for track in entry.tracks]
        for _, manifest in versions
    ]
    assert listed == [[], [0, 0], [8, 8], [16, 16], [20, 20]]
    last = versions[-1][1]
    assert last.segments[0].complete
    assert Manifest.load(last.dump()) == last
    assert b"".join(last.pieces(made.digests_json)) == last.dump()
    assert len(made.digests_json) == 2 * 20
    assert last.segments[0].block_keys_sha256 == made.prefix.block_keys_sha256(0, 4)


def test_the_manifest_lists_the_digests_of_the_objects() -> None:
    """K3.6#5."""
    made = production()
    segment = made.add_segment(first_block=0, blocks=4, encodings=[Encoding()])
    k, v = tensors(segment.plan.descriptor, 0, 4)
    prepared = prepare_layer(segment.plan, 0, k, v)
    made.commit(segment, prepared)
    _, manifest = made.take_manifest()
    for group in prepared.groups:
        for block, (head, _) in enumerate(group.payloads):
            digest = manifest.segments[0].digest(group.track, 0, block)
            assert digest == parse_header(head).data_digest


def test_layers_of_several_segments_count_together_for_the_next_manifest() -> None:
    made = production(layers=5, layers_per_manifest=4)
    for number in (0, 1):
        made.add_segment(first_block=2 * number, blocks=2, encodings=[Encoding()])
    made.take_manifest()
    put(made, 0, 0)
    put(made, 0, 1)
    put(made, 1, 0)
    assert not made.is_manifest_due
    put(made, 1, 1)
    assert made.is_manifest_due


def test_components_of_a_plan_follow_the_descriptor() -> None:
    assert plan_of(v_head_dim=0).has_v is False
    assert Encoding(RAW, joint=True).components == (Component.KV,)
    assert plan_of().layer_octets(0) == 12 * 2 * 8 * 2 * 2
