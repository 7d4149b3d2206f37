"""moqt.wire.datagrams: MOQT-22 11.2, 11.5."""

from __future__ import annotations

import pytest

from moqt.codes import ObjectStatus
from moqt.errors import RemoteProtocolError
from moqt.wire.datagrams import (
    ObjectDatagram,
    PaddingDatagram,
    encode_datagram,
    parse_datagram,
)

LEGAL = [flags for flags in range(0x30) if not flags & 0x10 and flags & 0x22 != 0x22]


@pytest.mark.parametrize("flags", range(0x80))
def test_every_type_below_128(flags: int) -> None:
    """11.2.1#1."""
    octets = bytes([flags, 1, 2])
    octets += b"" if flags & 0x04 else b"\x07"
    octets += b"" if flags & 0x08 else b"\x09"
    octets += b"\x02\x3c\x05" if flags & 0x01 else b""
    octets += b"\x00" if flags & 0x20 else b"hi"
    if flags not in LEGAL:
        with pytest.raises(RemoteProtocolError):
            parse_datagram(octets)
        return
    found = parse_datagram(octets)
    assert found == ObjectDatagram(
        track_alias=1,
        group_id=2,
        object_id=0 if flags & 0x04 else 7,
        publisher_priority=None if flags & 0x08 else 9,
        ends_group=bool(flags & 0x02),
        properties=b"\x3c\x05" if flags & 0x01 else b"",
        payload=b"" if flags & 0x20 else b"hi",
    )


@pytest.mark.parametrize("octets", ["", "8080", "ff" * 9, "2001000500", "200100050301"])
def test_what_closes_the_session(octets: str) -> None:
    """11.2#1, 11.1.1#2."""
    with pytest.raises(RemoteProtocolError):
        parse_datagram(bytes.fromhex(octets))


@pytest.mark.parametrize("status", [1, 2, 5])
def test_an_unknown_status_closes(status: int) -> None:
    with pytest.raises(RemoteProtocolError, match="unknown Object Status"):
        parse_datagram(bytes([0x28, 1, 2, 3, status]))


def test_properties_that_are_no_list_close() -> None:
    with pytest.raises(RemoteProtocolError, match="datagram Properties"):
        parse_datagram(bytes([0x09, 1, 2, 3, 1, 0x3C]))


def test_every_cut_closes() -> None:
    octets = bytes.fromhex("2101000580023c0200")
    assert isinstance(parse_datagram(octets), ObjectDatagram)
    for cut in range(len(octets)):
        with pytest.raises(RemoteProtocolError):
            parse_datagram(octets[:cut])


def end(**fields: object) -> ObjectDatagram:
    values = {"track_alias": 1, "group_id": 2, "object_id": 3, **fields}
    return ObjectDatagram(status=ObjectStatus.END_OF_GROUP, **values)  # type: ignore[arg-type]


def test_a_status_has_nothing_beside_it() -> None:
    """11.1.1#1."""
    assert parse_datagram(encode_datagram(end())) == end()
    for extra in ({"ends_group": True}, {"properties": b"\x3c\x05"}, {"payload": b"x"}):
        with pytest.raises(ValueError, match="END_OF_GROUP has no payload"):
            encode_datagram(end(**extra))


def test_padding_is_zeros() -> None:
    """11.5#2."""
    assert encode_datagram(PaddingDatagram(3)).hex() == "f0132b3e29000000"
    assert parse_datagram(bytes.fromhex("f0132b3e29ffff")) == PaddingDatagram(2)
