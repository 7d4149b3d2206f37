"""The consumer without I/O: places, verdicts, progress, exact missing lists (KVCS 3.5, 5.4)."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcs.assembly import Outcome
from kvcs.errors import MissingObject, PublicationUnusable, RejectReason, TensorMismatch
from kvcs.kvsp.shapes import DTYPES, AnyArray, Component, Layout
from kvcs.payload import HEADER_OCTETS
from moqt.codes import ObjectStatus
from moqt.session.receive.sink import COMPARED_OCTETS
from moqt.types import ObjectHeader
from tests.kvcs.support import Bench, TestObject, bench, describe, octets_of, tensors

if TYPE_CHECKING:
    from kvcs.wanted import Lease


@pytest.fixture(params=[False, True], ids=["in steps", "at once"], autouse=True)
def at_once(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have every test of this file judge Objects in both ways."""
    monkeypatch.setattr(Bench, "at_once", request.param)


def missing_of(one: TestObject, table: Bench) -> MissingObject:
    track = table.assembly._tracks[one.track].wanted
    return MissingObject(
        track.name.segment, one.header.group_id, track.name.component, one.header.object_id
    )


def test_layers_are_usable_in_order_as_soon_as_all_their_objects_are_verified() -> None:
    """K5.4#2."""
    table = bench()
    by_layer = {
        layer: [one for one in table.objects if one.header.group_id == layer] for layer in range(3)
    }
    for one in by_layer[1]:
        table.deliver(one)
    assert table.usable() == []
    for one in by_layer[0][:-1]:
        table.deliver(one)
    assert table.usable() == []
    table.deliver(by_layer[0][-1])
    assert table.usable() == [0, 1]
    for one in by_layer[2]:
        table.deliver(one)
    assert table.usable() == [2]
    assert table.assembly.is_complete
    assert table.assembly.missing() == ()
    assert table.stats.objects == table.stats.objects_received == len(table.objects)
    assert table.stats.buffered_octets == 0


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", list(Layout))
def test_every_dtype_and_layout_arrives_bit_exact(dtype: str, layout: Layout) -> None:
    table = bench(describe(dtype=dtype, layout=layout))
    for one in table.objects:
        assert table.deliver(one) is Outcome.VERIFIED
    assert table.usable() == [0, 1, 2]


@pytest.mark.parametrize("codec", ["raw", "zstd", "bszstd"])
@pytest.mark.parametrize("joint", [False, True])
def test_every_codec_arrives_bit_exact_in_one_track_or_two(codec: str, joint: bool) -> None:
    """K3.2#4."""
    table = bench(codec=codec, joint=joint, segments=(2, 1))
    for one in table.objects:
        assert table.deliver(one) is Outcome.VERIFIED
    assert table.usable() == [0, 1, 2]


def test_layers_without_v_are_usable_from_k_alone() -> None:
    table = bench(describe(v_head_dim=0))
    for one in table.objects:
        table.deliver(one)
    assert table.usable() == [0, 1, 2]


def test_layers_of_other_geometry_are_taken_as_they_are() -> None:
    descriptor = describe(layer_overrides={1: {"kv_heads": 1, "head_dim": 16, "v_head_dim": 0}})
    table = bench(descriptor)
    for one in table.objects:
        assert table.deliver(one) is Outcome.VERIFIED
    assert table.usable() == [0, 1, 2]


def test_only_the_wanted_layers_and_blocks_count() -> None:
    table = bench(segments=(2, 2, 2), layers=(1, 2), blocks=3)
    outcomes = [table.deliver(one) for one in table.objects]
    assert outcomes.count(Outcome.VERIFIED) == 2 * 2 * 3
    assert outcomes.count(Outcome.DISCARDED) == len(outcomes) - 12 == table.stats.discarded
    assert table.usable() == [1, 2]


def test_what_is_not_wanted_shares_memory_but_for_what_the_session_compares() -> None:
    table = bench(layers=(1, 1))
    unwanted = next(one for one in table.objects if one.header.group_id == 0)
    wanted = next(one for one in table.objects if one.header.group_id == 1)
    assert table.assembly.lease(0, unwanted.header, None) is None
    first = table.assembly.scratch(0, unwanted.header)
    second = table.assembly.scratch(0, unwanted.header)
    assert first is not None
    assert second is not None
    assert sum(map(len, first)) == sum(map(len, second)) == len(unwanted.payload)
    first[0][:] = bytes(COMPARED_OCTETS)
    second[0][:] = bytes([1]) * COMPARED_OCTETS  # the session still reads the first one's
    assert first[0] == bytes(COMPARED_OCTETS)
    assert first[1].obj is second[1].obj
    assert table.assembly.scratch(wanted.track, wanted.header) is None
    too_long = ObjectHeader(0, 0, 0, 0, 1 << 30)
    assert table.assembly.scratch(0, too_long) is None


def test_octets_of_the_callers_arrays_are_written_where_they_are() -> None:
    descriptor = describe(layout=Layout.NHD, head_dim=256)
    pairs = []
    for layer in range(3):
        geometry = descriptor.geometry(layer)
        # Twice the tokens are there, K and V next to each other: strided, and longer than needed.
        both = np.zeros((24, 2, 2, 256), geometry.dtype)
        pairs.append((both[:, 0], both[:, 1]))
    table = bench(descriptor, into=pairs)
    for one in table.objects:
        assert table.assembly.lease(one.track, one.header, None) is not None
        table.assembly.release(None)
        assert table.deliver(one) is Outcome.VERIFIED
    assert table.usable() == [0, 1, 2]
    for k, v in pairs:
        assert not octets_of(k[12:]).strip(b"\0")
        assert not octets_of(v[12:]).strip(b"\0")


def test_arrays_without_whole_runs_are_written_all_the_same() -> None:
    descriptor = describe()
    pairs: list[tuple[AnyArray, AnyArray | None]] = []
    for layer in range(3):
        geometry = descriptor.geometry(layer)
        k = np.zeros((12, 2, 16), geometry.dtype)[:, :, ::2]
        v = np.zeros((12, 2, 8), geometry.dtype)[::-1]
        pairs.append((k, v))
    table = bench(descriptor, into=dict(enumerate(pairs)))
    for one in table.objects:
        assert table.deliver(one) is Outcome.VERIFIED
    assert table.usable() == [0, 1, 2]


@pytest.mark.parametrize(
    ("field", "bit", "reason"),
    [
        ("magic", 0, RejectReason.MAGIC),
        ("version", 32, RejectReason.VERSION),
        ("component", 41, RejectReason.COMPONENT),
        ("layer", 64 + 24, RejectReason.LAYER),
        ("block index", 96 + 24, RejectReason.BLOCK_INDEX),
        ("token start", 128 + 56, RejectReason.TOKEN_START),
        ("token count", 192 + 24, RejectReason.TOKEN_COUNT),
        ("codec", 224 + 8, RejectReason.CODEC),
        ("data length", 256 + 24, RejectReason.DATA_LENGTH),
        ("data digest", 288, RejectReason.DATA_DIGEST),
        ("data", HEADER_OCTETS * 8, RejectReason.DATA_DIGEST),
    ],
)
def test_a_flipped_bit_makes_an_object_missing_with_its_reason(
    field: str, bit: int, reason: RejectReason
) -> None:
    """K3.5#7, K5.4#1."""
    table = bench()
    for number, one in enumerate(table.objects):
        outcome = table.deliver(one, flip=bit if number == 1 else None)
        assert outcome is (Outcome.REJECTED if number == 1 else Outcome.VERIFIED)
    assert dict(table.stats.rejected) == {reason: 1}
    (missing,) = table.assembly.missing()
    assert missing == missing_of(table.objects[1], table)
    assert missing.reason is reason
    assert table.usable() == []
    # A good copy heals it.
    assert table.deliver(table.objects[1]) is Outcome.VERIFIED
    assert table.usable() == [0, 1, 2]


@pytest.mark.parametrize("bit", [48, 63, 240, 255])
def test_flags_and_reserved_are_ignored(bit: int) -> None:
    """K3.5#3."""
    table = bench()
    assert table.deliver(table.objects[0], flip=bit) is Outcome.VERIFIED


def test_a_place_is_leased_once_and_comes_back_when_abandoned() -> None:
    table = bench()
    one = table.objects[0]
    first = table.assembly.lease(one.track, one.header, "first")
    assert first is not None
    assert table.assembly.lease(one.track, one.header, "second") is None
    assert table.assembly.holders(0, 0) == ("first",)
    table.assembly.abandoned(first)
    second = table.assembly.lease(one.track, one.header, "second")
    assert second is not None
    table.assembly.abandoned(first)  # late, and of no effect
    assert table.assembly.holders(0, 0, 0) == ("second",)
    assert table.finish(one, second) is Outcome.VERIFIED


def test_memory_of_a_verified_object_is_never_a_place_again() -> None:
    table = bench()
    one = table.objects[0]
    assert table.deliver(one) is Outcome.VERIFIED
    assert table.assembly.holders(one.track, one.header.group_id) == ()
    assert table.assembly.lease(one.track, one.header, None) is None
    assert table.deliver(one, flip=HEADER_OCTETS * 8) is Outcome.DUPLICATE
    for other in table.objects[1:]:
        table.deliver(other)
    assert table.usable() == [0, 1, 2]
    assert table.stats.duplicates == 1


def test_a_second_copy_is_a_spare_while_the_place_is_out_and_serves_when_it_fails() -> None:
    table = bench()
    one = table.objects[0]
    lease = table.assembly.lease(one.track, one.header, "slow")
    assert lease is not None
    assert table.deliver(one) is Outcome.SPARE
    assert table.assembly.missing_blocks(0, 0) == [0, 1, 2]
    lease.buffers[1][:4] = b"\xff\xff\xff\xff"  # half an Object, then the stream is reset
    table.assembly.abandoned(lease)
    assert table.assembly.missing_blocks(0, 0) == [1, 2]
    for other in table.objects[1:]:
        table.deliver(other)
    assert table.usable() == [0, 1, 2]


def test_a_spare_heals_a_place_whose_object_was_rejected() -> None:
    table = bench()
    one = table.objects[0]
    lease = table.assembly.lease(one.track, one.header, "corrupt")
    assert table.deliver(one) is Outcome.SPARE
    assert table.finish(one, lease, flip=HEADER_OCTETS * 8) is Outcome.REJECTED
    assert table.assembly.missing_blocks(0, 0) == [1, 2]


def test_releasing_a_holder_gives_back_all_its_places() -> None:
    table = bench()
    for one in table.objects[:3]:
        table.assembly.lease(one.track, one.header, "gone")
    table.assembly.release("gone")
    assert all(table.assembly.lease(o.track, o.header, None) for o in table.objects[:3])


def test_end_of_group_before_wanted_blocks_says_why_they_are_missing() -> None:
    table = bench()
    status = ObjectHeader(0, 1, 0, 0, 0, ObjectStatus.END_OF_GROUP)
    table.deliver(table.objects[0])
    assert table.assembly.receive(0, status) is Outcome.STATUS
    missing = table.assembly.missing([0])
    assert [one.reason for one in missing if one.component is Component.K] == [
        RejectReason.STATUS,
        RejectReason.STATUS,
    ]


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        (ObjectHeader(3, 0, 0, 0, 132), RejectReason.LAYER_OUT_OF_RANGE),
        (ObjectHeader(0, 3, 0, 0, 132), RejectReason.BLOCK_OUT_OF_RANGE),
        (ObjectHeader(0, 0, 0, 0, 67), RejectReason.HEADER_TRUNCATED),
    ],
)
def test_objects_out_of_place_or_too_short_are_rejected(
    header: ObjectHeader, reason: RejectReason
) -> None:
    table = bench()
    payload = memoryview(bytes(header.payload_length))
    assert table.assembly.receive(0, header, payload=payload) is Outcome.REJECTED
    assert dict(table.stats.rejected) == {reason: 1}


def test_an_object_of_a_tensor_that_a_layer_does_not_have_is_rejected() -> None:
    table = bench(describe(layer_overrides={1: {"v_head_dim": 0}}))
    v_object = next(o for o in table.objects if o.track == 1)
    header = ObjectHeader(1, 0, 0, 0, len(v_object.payload))
    payload = memoryview(v_object.payload)
    assert table.assembly.receive(1, header, payload=payload) is Outcome.REJECTED
    assert dict(table.stats.rejected) == {RejectReason.COMPONENT: 1}


def test_raw_data_of_another_size_is_rejected_as_such() -> None:
    table = bench(describe(head_dim=16))
    other = bench(describe(head_dim=8))
    one = other.objects[0]
    assert table.deliver(one) is Outcome.REJECTED
    assert dict(table.stats.rejected) == {RejectReason.DATA_SIZE: 1}


# Digests of the manifest


def test_an_object_whose_digest_the_manifest_does_not_list_is_missing() -> None:
    table = bench()
    digests = bytearray(table.digests[0, 0])
    digests[32] ^= 1
    table.assembly.list_digests(0, 0, bytes(digests))
    outcomes = [table.deliver(one) for one in table.objects]
    assert outcomes.count(Outcome.REJECTED) == 1
    (missing,) = table.assembly.missing()
    assert (missing.block, missing.reason) == (1, RejectReason.MANIFEST_DIGEST)


def test_a_later_contradiction_takes_an_object_back_before_its_layer_is_handed_over() -> None:
    table = bench()
    for one in table.objects:
        table.deliver(one)
    digests = bytearray(table.digests[1, 2])
    digests[0] ^= 1
    assert table.assembly.list_digests(1, 2, bytes(digests)) == [0]
    assert table.usable() == [0, 1]
    (missing,) = table.assembly.missing()
    assert (missing.layer, missing.component, missing.block) == (2, Component.V, 0)


def test_a_contradiction_after_the_hand_over_is_an_error() -> None:
    table = bench()
    for one in table.objects:
        table.deliver(one)
    assert table.usable() == [0, 1, 2]
    table.assembly.list_digests(0, 0, table.digests[0, 0])
    digests = bytearray(table.digests[1, 0])
    digests[0] ^= 1
    with pytest.raises(PublicationUnusable, match=r"layer 0 of track v\.raw\.s0 was handed over"):
        table.assembly.list_digests(1, 0, bytes(digests))


def test_with_required_signatures_a_layer_waits_for_its_listing() -> None:
    table = bench(require_listed=True)
    for one in table.objects:
        table.deliver(one)
    assert table.usable() == []
    assert table.assembly.has_all_objects(0)
    for layer in (0, 2):
        for track in (0, 1):
            table.assembly.list_digests(track, layer, table.digests[track, layer])
    assert table.usable() == [0]
    assert table.assembly.missing() == ()
    remaining = table.assembly.next_remaining()
    assert remaining is not None
    assert remaining.index == 2
    assert table.assembly.next_remaining() is None


def test_a_spare_that_the_manifest_contradicts_meanwhile_is_not_used() -> None:
    table = bench()
    one = table.objects[0]
    lease = table.assembly.lease(0, one.header, "slow")
    assert lease is not None
    assert table.deliver(one) is Outcome.SPARE
    table.assembly.list_digests(0, 0, bytes(len(table.digests[0, 0])))
    table.assembly.abandoned(lease)
    assert table.assembly.missing_blocks(0, 0) == [0, 1, 2]


# Recomputed blocks


def test_recomputed_blocks_fill_gaps_and_only_gaps() -> None:
    table = bench(describe(layout=Layout.HND))
    lacking = table.objects[1]
    for one in table.objects:
        if one is not lacking:
            table.deliver(one)
    (missing,) = table.assembly.missing()
    k, _ = table.expected[missing.layer]
    block = k[:, missing.block * 4 : missing.block * 4 + 4]
    with pytest.raises(TensorMismatch, match="no k array"):
        table.assembly.recomputed(missing, None, block)
    with pytest.raises(TensorMismatch, match="4"):
        table.assembly.recomputed(missing, k)
    assert table.assembly.recomputed(missing, block)
    assert not table.assembly.recomputed(missing, block)
    assert not table.assembly.recomputed(MissingObject(9, 0, Component.K, 0), block)
    assert table.usable() == [0, 1, 2]
    assert table.stats.recomputed == 1


def test_recomputed_blocks_need_no_listing() -> None:
    table = bench(segments=(1,), require_listed=True)
    for layer in range(3):
        k, v = table.expected[layer]
        assert table.assembly.recomputed(MissingObject(0, layer, Component.K, 0), k)
        assert table.assembly.recomputed(MissingObject(0, layer, Component.V, 0), None, v)
    assert table.usable() == [0, 1, 2]
    for key, digests in table.digests.items():
        assert table.assembly.list_digests(*key, bytes(len(digests))) == []


# Coverage


def test_blocks_in_no_segment_are_missing_by_the_next_segments_number() -> None:
    table = bench(segments=(2,))
    table.assembly.blocks = 3
    table.assembly.cover(table.assembly._tracks[0].wanted.span)
    assert not table.assembly.is_covered
    for one in table.objects:
        table.deliver(one)
    assert table.usable() == []
    assert table.assembly.missing([1]) == (
        MissingObject(1, 1, Component.K, 0),
        MissingObject(1, 1, Component.V, 0),
    )


# Any course of events


@given(data=st.data())
@settings(deadline=None, max_examples=60)
def test_any_course_of_arrivals_leaves_exactly_the_missing_list(data: st.DataObject) -> None:
    """Any order, duplicates, losses, corruptions, abandoned places: the list is exact, and nothing
    verified is ever written again."""
    table = bench(
        segments=data.draw(st.sampled_from([(3,), (1, 2), (2, 2)])),
        codec=data.draw(st.sampled_from(["raw", "zstd"])),
        joint=data.draw(st.booleans()),
        blocks=data.draw(st.sampled_from([3, 2])),
        layers=data.draw(st.sampled_from([(0, 2), (1, 2), (1, 1)])),
    )
    rng = random.Random(data.draw(st.integers(0, 2**32)))
    assembly = table.assembly
    verified: dict[tuple[int, int, int], bytes] = {}
    out: list[tuple[TestObject, Lease]] = []
    handed_over: list[int] = []

    def note(one: TestObject) -> None:
        key = (one.track, one.header.group_id, one.header.object_id)
        if one.header.group_id in assembly.layers and one.header.object_id < len(
            assembly._tracks[one.track].states[one.header.group_id - assembly.layers.start]
        ):
            if not assembly.is_missing(*key):
                verified.setdefault(key, one.payload)

    for _ in range(rng.randrange(4 * len(table.objects))):
        one = rng.choice(table.objects)
        match rng.randrange(5):
            case 0:
                table.deliver(one)
            case 1:
                table.deliver(one, flip=rng.randrange(8 * len(one.payload)))
            case 2:
                lease = assembly.lease(one.track, one.header, "somebody")
                if lease is not None:
                    key = (one.track, one.header.group_id, one.header.object_id)
                    assert key not in verified
                    for buffer in lease.buffers:
                        buffer[:] = bytes(len(buffer))
                    out.append((one, lease))
            case 3 if out:
                _, lease = out.pop(rng.randrange(len(out)))
                assembly.abandoned(lease)
            case 4 if out:
                late, lease = out.pop(rng.randrange(len(out)))
                table.finish(late, lease)
        for each in table.objects:
            note(each)
        handed_over += table.usable()
    for _, lease in out:
        assembly.abandoned(lease)
    for each in table.objects:
        note(each)
    handed_over += table.usable()
    assert handed_over == sorted(handed_over)
    wanted = {
        missing_of(one, table)
        for one in table.objects
        if one.header.group_id in assembly.layers
        and one.header.object_id < assembly._tracks[one.track].wanted.blocks
    }
    came = {
        missing_of(one, table)
        for one in table.objects
        if (one.track, one.header.group_id, one.header.object_id) in verified
    }
    assert assembly.missing() == tuple(sorted(wanted - came))
    assert table.stats.objects == len(came)
    for one in table.objects:
        table.deliver(one)
    while (layer := assembly.next_remaining()) is not None:
        table.check(layer.index, layer.k, layer.v)
        handed_over.append(layer.index)
    assert sorted(handed_over) == list(assembly.layers)
    assert assembly.missing() == ()
    assert table.stats.buffered_octets == 0


def test_arrays_that_do_not_fit_are_refused_with_what_was_expected() -> None:
    descriptor = describe()
    good = [tensors(descriptor, layer, 3) for layer in range(3)]
    with pytest.raises(TensorMismatch, match="2 pairs of arrays for 3 layers"):
        bench(descriptor, into=good[:2])
    with pytest.raises(TensorMismatch, match="no arrays for layer 2"):
        bench(descriptor, into={0: good[0], 1: good[1]})
    with pytest.raises(TensorMismatch, match="k array of layer 0 has 8 tokens, 12 are needed"):
        bench(descriptor, into=[tensors(descriptor, layer, 2) for layer in range(3)])
    with pytest.raises(TensorMismatch, match="layer 0 needs a V array"):
        bench(descriptor, into=[(k, None) for k, _ in good])
    with pytest.raises(TensorMismatch, match=r"layer 0 needs no V array"):
        bench(describe(v_head_dim=0), into=good)
