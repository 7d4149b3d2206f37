"""moqt.wire.fields: MOQT-22 8.2, 8.3, 8.5, 8.7."""

from __future__ import annotations

import pytest

from moqt.errors import RemoteProtocolError
from moqt.types import FullTrackName, TrackNamespace
from moqt.wire.cursor import Reader, Writer
from moqt.wire.fields import (
    KeyValue,
    read_full_track_name,
    read_namespace,
    read_pairs,
    read_reason,
    write_full_track_name,
    write_pairs,
    write_reason,
)


def reader(octets: bytes) -> Reader:
    return Reader(octets, "unit")


def prefixed(*fields: bytes) -> bytes:
    writer = Writer()
    writer.vi64(len(fields))
    for field in fields:
        writer.prefixed(field)
    return bytes(writer)


def test_a_namespace_of_4096_octets_is_read_and_4097_closes() -> None:
    """8.7#3."""
    fields = [bytes(512)] * 8
    assert read_namespace(reader(prefixed(*fields))).octets == 4096
    with pytest.raises(RemoteProtocolError, match="4097 octets"):
        read_namespace(reader(prefixed(*fields, b"x")))


def test_the_track_name_counts_with_its_namespace() -> None:
    """8.7#3."""
    name = FullTrackName(TrackNamespace((bytes(4000),)), bytes(96))
    writer = Writer()
    write_full_track_name(writer, name)
    assert read_full_track_name(reader(bytes(writer))) == name
    with pytest.raises(RemoteProtocolError, match="4097 octets"):
        read_full_track_name(reader(prefixed(bytes(4000)) + b"\x61" + bytes(97)))


def test_32_fields_are_read_and_33_close() -> None:
    """8.7#2: the count alone is enough to refuse."""
    assert len(read_namespace(reader(prefixed(*[b"a"] * 32)))) == 32
    with pytest.raises(RemoteProtocolError, match="33 fields"):
        read_namespace(reader(b"\x21"))


def test_an_empty_field_closes() -> None:
    """8.7#1."""
    with pytest.raises(RemoteProtocolError, match="field 1 is empty"):
        read_namespace(reader(b"\x02\x01a\x00"))


def test_a_reason_of_1024_octets_is_read_and_1025_closes() -> None:
    """8.5#1."""
    writer = Writer()
    write_reason(writer, "x" * 1024)
    assert read_reason(reader(bytes(writer))) == "x" * 1024
    with pytest.raises(RemoteProtocolError, match="1025 octets"):
        read_reason(reader(b"\x84\x01" + b"x" * 1025))
    with pytest.raises(ValueError, match="1025 octets"):
        write_reason(Writer(), "x" * 1025)


def test_a_reason_that_utf8_cannot_say_is_sent_with_marks() -> None:
    """As of a file name that Python read with `surrogateescape`."""
    writer = Writer()
    write_reason(writer, "caf\udce9" + "\U0001f600")
    assert read_reason(reader(bytes(writer))) == "caf?\U0001f600"


def test_a_reason_that_is_not_utf8_is_read_with_marks() -> None:
    assert read_reason(reader(b"\x02a\xff")) == "a�"


def test_pairs_are_written_by_type_and_equal_types_keep_their_order() -> None:
    pairs = (KeyValue(7, b"b"), KeyValue(2, 300), KeyValue(7, b"a"))
    writer = Writer()
    write_pairs(writer, pairs)
    assert bytes(writer).hex(" ") == "02 81 2c 05 01 62 00 01 61"
    found = read_pairs(reader(bytes(writer)))
    assert found == (KeyValue(2, 300), KeyValue(7, b"b"), KeyValue(7, b"a"))


def test_a_type_above_64_bits_closes() -> None:
    """8.3#1."""
    with pytest.raises(RemoteProtocolError, match="above 2\\^64-1"):
        read_pairs(reader(b"\x02\x00" + b"\xff" * 9 + b"\x00"))


def test_a_value_above_65535_octets_closes_before_it_has_come() -> None:
    """8.3#2."""
    assert read_pairs(reader(b"\x01\xc0\xff\xff" + bytes(65535)))[0].value == bytes(65535)
    with pytest.raises(RemoteProtocolError, match="65536 octets"):
        read_pairs(reader(b"\x01\xc1\x00\x00"))
    with pytest.raises(ValueError, match="65536 octets"):
        write_pairs(Writer(), [KeyValue(1, bytes(65536))])


@pytest.mark.parametrize(("kind", "value"), [(1, 5), (2, b"x")])
def test_parity_decides_what_a_pair_holds(kind: int, value: int | bytes) -> None:
    with pytest.raises(ValueError, match="expected"):
        KeyValue(kind, value)
