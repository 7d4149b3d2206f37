"""The 68-octet header: every check of KVCS 3.5, each with its own reason."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from kvcs.errors import ObjectRejected, RejectReason
from kvcs.geometry import SegmentSpan
from kvcs.kvsp import Component
from kvcs.payload import (
    HEADER_OCTETS,
    MAGIC,
    ExpectedTrack,
    Header,
    data_digest,
    pack_header,
    pack_headers,
    parse_header,
    verify_data,
)

VECTORS = json.loads((Path(__file__).parents[2] / "vectors" / "kvsp1.json").read_text("utf-8"))
(VECTOR,) = VECTORS["objects"]
PAYLOAD = bytes.fromhex(VECTOR["payload"])
DATA = bytes.fromhex(VECTOR["data"])
TRACK = ExpectedTrack(
    component=Component.K,
    codec=0,
    span=SegmentSpan(segment=0, first_block=0, blocks=8),
    layers=4,
    block_tokens=16,
)


def verify(payload: bytes, *, group_id: int = 3, object_id: int = 7) -> None:
    TRACK.check_location(group_id, object_id)
    digest = TRACK.checked_digest(
        payload, group_id=group_id, object_id=object_id, payload_octets=len(payload)
    )
    verify_data(digest, [memoryview(payload)[HEADER_OCTETS:]])


def reason_of(payload: bytes, *, group_id: int = 3, object_id: int = 7) -> RejectReason:
    with pytest.raises(ObjectRejected) as caught:
        verify(payload, group_id=group_id, object_id=object_id)
    return caught.value.reason


def test_vector_is_packed_and_parsed() -> None:
    """K3.5#1."""
    heads = pack_headers(
        [0] * 7 + [len(DATA)],
        bytes(7 * 32) + data_digest([memoryview(DATA)[:5], DATA[5:]]),
        component=Component.K,
        layer=3,
        span=SegmentSpan(segment=0, first_block=0, blocks=8),
        block_tokens=16,
        codec=0,
    )
    header = parse_header(heads[7 * HEADER_OCTETS :])
    assert pack_header(header) + DATA == PAYLOAD
    assert VECTOR["header_octets"] == HEADER_OCTETS
    assert parse_header(memoryview(PAYLOAD)) == header
    verify(PAYLOAD)


FIELDS = [
    (0, 4, RejectReason.MAGIC),
    (4, 5, RejectReason.VERSION),
    (5, 6, RejectReason.COMPONENT),
    (6, 8, None),  # Flags: ignored on receipt
    (8, 12, RejectReason.LAYER),
    (12, 16, RejectReason.BLOCK_INDEX),
    (16, 24, RejectReason.TOKEN_START),
    (24, 28, RejectReason.TOKEN_COUNT),
    (28, 30, RejectReason.CODEC),
    (30, 32, None),  # Reserved
    (32, 36, RejectReason.DATA_LENGTH),
    (36, 68, RejectReason.DATA_DIGEST),
    (68, 100, RejectReason.DATA_DIGEST),
]


@pytest.mark.parametrize(("start", "stop", "reason"), FIELDS)
def test_every_flipped_bit_has_its_field_s_reason(
    start: int, stop: int, reason: RejectReason | None
) -> None:
    """K3.5#6."""
    for bit in range(8 * start, 8 * stop):
        damaged = bytearray(PAYLOAD)
        damaged[bit // 8] ^= 1 << bit % 8
        if reason is None:
            verify(bytes(damaged))
        else:
            assert reason_of(bytes(damaged)) is reason


def test_the_fields_cover_the_payload() -> None:
    assert [start for start, _, _ in FIELDS[1:]] == [stop for _, stop, _ in FIELDS[:-1]]
    assert FIELDS[-1][1] == len(PAYLOAD)


def test_a_short_payload_is_a_truncated_header() -> None:
    for length in (0, 67):
        assert reason_of(PAYLOAD[:length]) is RejectReason.HEADER_TRUNCATED


def test_octets_missing_or_left_over_are_a_wrong_length() -> None:
    """K3.5#6."""
    assert reason_of(PAYLOAD[:-1]) is RejectReason.DATA_LENGTH
    assert reason_of(PAYLOAD + b"\0") is RejectReason.DATA_LENGTH
    assert reason_of(PAYLOAD[:68]) is RejectReason.DATA_LENGTH


def test_an_object_elsewhere_in_the_track_is_rejected() -> None:
    """K3.5#6."""
    assert reason_of(PAYLOAD, group_id=2) is RejectReason.LAYER
    assert reason_of(PAYLOAD, object_id=6) is RejectReason.BLOCK_INDEX
    assert reason_of(PAYLOAD, group_id=4) is RejectReason.LAYER_OUT_OF_RANGE
    assert reason_of(PAYLOAD, object_id=8) is RejectReason.BLOCK_OUT_OF_RANGE


def test_the_message_says_where_what_and_what_was_expected() -> None:
    with pytest.raises(ObjectRejected) as caught:
        verify(PAYLOAD, group_id=2)
    assert str(caught.value) == ("Group 2 Object 7: Layer field is 3, expected 2 (KVCS 3.5)")


def test_the_headers_of_a_layer_are_those_of_its_objects_one_by_one() -> None:
    """K3.5#1."""
    lengths = [1, 2**32 - 1, 0]
    digests = bytes(range(96))
    heads = pack_headers(
        lengths,
        digests,
        component=Component.KV,
        layer=2**32 - 1,
        span=SegmentSpan(segment=1, first_block=2**32 - 1, blocks=3),
        block_tokens=2**31,
        codec=0xFFFF,
    )
    for block in range(3):
        token_start = (2**32 - 1 + block) * 2**31
        digest = digests[32 * block : 32 * block + 32]
        alone = Header(
            MAGIC, 1, 3, 0, 2**32 - 1, block, token_start, 2**31, 0xFFFF, 0, lengths[block], digest
        )
        assert heads[block * HEADER_OCTETS :][:HEADER_OCTETS] == pack_header(alone)
    assert len(heads) == 3 * HEADER_OCTETS


def test_a_length_too_large_for_its_field_is_refused() -> None:
    with pytest.raises(OverflowError):
        pack_headers(
            [2**32],
            bytes(32),
            component=Component.K,
            layer=0,
            span=SegmentSpan(segment=0, first_block=0, blocks=1),
            block_tokens=16,
            codec=0,
        )


def test_a_field_too_large_is_refused_when_packed() -> None:
    header = parse_header(PAYLOAD)
    with pytest.raises(struct.error):
        pack_header(header._replace(layer=2**32))
    assert isinstance(header, Header)
