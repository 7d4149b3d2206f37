"""moqt.wire.cursor: what ends too early or too late, and what does not fit."""

from __future__ import annotations

import pytest

from moqt.codes import SessionErrorCode
from moqt.errors import RemoteProtocolError
from moqt.wire.cursor import NeedMore, OpenReader, Reader, Writer, malformed


def test_values_come_back_in_order() -> None:
    writer = Writer()
    writer.vi64(300)
    writer.uint8(200, "x")
    writer.uint16(0x1234, "y")
    writer.prefixed(b"abc")
    writer.octets(b"rest")
    reader = Reader(memoryview(bytes(writer)), "unit")
    assert reader.what == "unit"
    assert reader.peek_vi64("v") == reader.vi64("v") == 300
    assert reader.uint8("x") == 200
    assert reader.uint16("y") == 0x1234
    assert reader.prefixed("p") == b"abc"
    assert reader.position == len(writer) - 4
    assert reader.rest() == b"rest"
    reader.expect_end()


def test_a_whole_unit_that_is_cut_names_unit_field_and_place() -> None:
    reader = Reader(b"\x05\x80", "GOAWAY", SessionErrorCode.KEY_VALUE_FORMATTING_ERROR)
    assert reader.vi64("a") == 5
    with pytest.raises(
        RemoteProtocolError, match=r"GOAWAY: ends inside Timeout \(octet 1 of 2\)"
    ) as e:
        reader.vi64("Timeout")
    assert e.value.code is SessionErrorCode.KEY_VALUE_FORMATTING_ERROR


@pytest.mark.parametrize("method", ["vi64", "uint8", "uint16", "prefixed"])
def test_every_read_notices_the_end(method: str) -> None:
    with pytest.raises(RemoteProtocolError, match="ends inside"):
        getattr(Reader(b"", "unit"), method)("field")
    with pytest.raises(NeedMore):
        getattr(OpenReader(b"", "unit"), method)("field")


def test_octets_left_over_are_an_error() -> None:
    reader = Reader(b"ab", "unit")
    reader.uint8("a")
    with pytest.raises(RemoteProtocolError, match="unit: 1 octets too many"):
        reader.expect_end()


def test_rewind_reads_again() -> None:
    reader = OpenReader(b"\x07", "unit")
    assert reader.vi64("a") == 7
    reader.rewind()
    assert reader.vi64("a") == 7


def test_a_value_that_does_not_fit_is_our_mistake() -> None:
    writer = Writer()
    with pytest.raises(ValueError, match="Priority is 256"):
        writer.uint8(256, "Priority")
    with pytest.raises(ValueError, match="Length is 65536"):
        writer.uint16(65536, "Length")
    assert bytes(writer) == b""


def test_malformed_closes_with_protocol_violation() -> None:
    assert malformed("why").code is SessionErrorCode.PROTOCOL_VIOLATION
