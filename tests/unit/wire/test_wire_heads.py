"""moqt.wire.streams: MOQT-22 6.3, 11.3.1, 11.4, 11.5."""

from __future__ import annotations

import pytest

from moqt.errors import RemoteProtocolError
from moqt.wire.framing import encode_message
from moqt.wire.messages import Setup
from moqt.wire.streams import (
    ControlHead,
    FetchHeader,
    PaddingHead,
    SubgroupHeader,
    encode_subgroup_header,
    parse_stream_head,
)

VALID = [
    base + first + low
    for base in (0x10, 0x18, 0x30, 0x38)
    for first in (0, 0x40)
    for low in range(6)
]


def test_the_control_stream_keeps_its_octets_for_the_message_reader() -> None:
    assert parse_stream_head(encode_message(Setup())) == (ControlHead(), 0)
    assert parse_stream_head(b"\xaf") is None


def test_padding_and_fetch() -> None:
    assert parse_stream_head(bytes.fromhex("f0132b3e280000")) == (PaddingHead(), 5)
    assert parse_stream_head(bytes.fromhex("05812c80")) == (FetchHeader(300), 3)


@pytest.mark.parametrize("flags", range(0x80))
def test_every_type_below_128(flags: int) -> None:
    """11.3.1#1: mode 11 and a clear bit 4 close."""
    octets = bytes([flags]) + bytes([3, 7, 1, 5])
    if flags == 0x05:
        assert parse_stream_head(octets) == (FetchHeader(3), 2)
    elif flags in VALID:
        found = parse_stream_head(octets)
        assert found is not None
        head, length = found
        assert isinstance(head, SubgroupHeader)
        assert (head.track_alias, head.group_id) == (3, 7)
        assert encode_subgroup_header(head)[0] == flags
        assert head.subgroup_id == {0: 0, 2: None, 4: 1}[flags & 0x06]
        assert (head.publisher_priority is None) == bool(flags & 0x20)
        assert length == 3 + (flags & 0x06 == 4) + (not flags & 0x20)
    else:
        with pytest.raises(RemoteProtocolError):
            parse_stream_head(octets)


@pytest.mark.parametrize("octets", ["8080", "a700", "f0132b3e29", "ff" * 9])
def test_other_types_close_as_soon_as_they_are_known(octets: str) -> None:
    with pytest.raises(RemoteProtocolError, match="unknown unidirectional stream type"):
        parse_stream_head(bytes.fromhex(octets))


def test_subgroup_id_0_needs_no_field_also_when_it_came_with_one() -> None:
    found = parse_stream_head(bytes.fromhex("340307008005"))
    assert found == (SubgroupHeader(track_alias=3, group_id=7, subgroup_id=0), 4)
    assert encode_subgroup_header(SubgroupHeader(track_alias=3, group_id=7)).hex() == "300307"


def test_a_priority_that_is_no_octet_is_our_mistake() -> None:
    with pytest.raises(ValueError, match="Publisher Priority is 256"):
        encode_subgroup_header(SubgroupHeader(track_alias=0, group_id=0, publisher_priority=256))
