"""moqt.wire.options: MOQT-22 9.1."""

from __future__ import annotations

import pytest

from moqt.codes import SessionErrorCode
from moqt.errors import RemoteProtocolError
from moqt.wire.cursor import Reader, Writer
from moqt.wire.fields import KeyValue, write_pairs
from moqt.wire.options import SetupOptions, read_options, write_options


def read(*pairs: KeyValue) -> SetupOptions:
    writer = Writer()
    write_pairs(writer, pairs)
    return read_options(Reader(bytes(writer), "SETUP"))


def test_what_is_absent_has_its_default() -> None:
    options = read()
    assert options == SetupOptions()
    assert (options.max_filter_ranges, options.max_request_updates) == (0, 0)
    writer = Writer()
    write_options(writer, options)
    assert bytes(writer) == b""


def test_a_default_that_is_sent_is_told_from_an_absent_option() -> None:
    options = read(KeyValue(4, 0), KeyValue(6, 1), KeyValue(8, 0))
    assert options.said_defaults == {4, 8}
    writer = Writer()
    write_options(writer, options)
    assert read_options(Reader(bytes(writer), "SETUP")) == options != read(KeyValue(6, 1))


def test_an_empty_path_is_sent_and_told_from_an_absent_one() -> None:
    writer = Writer()
    write_options(writer, SetupOptions(path=""))
    assert bytes(writer) == b"\x01\x00"
    assert read_options(Reader(bytes(writer), "SETUP")).path == ""


def test_unknown_options_are_kept_also_when_repeated() -> None:
    """9.1#1."""
    grease = (KeyValue(0x9D, b"a"), KeyValue(0x9D, b"b"), KeyValue(0x11C, 1))
    assert read(*grease, KeyValue(6, 4)) == SetupOptions(max_filter_ranges=4, unknown=grease)


@pytest.mark.parametrize("kind", [0x01, 0x04, 0x05, 0x06, 0x07, 0x08])
def test_a_known_option_twice_closes(kind: int) -> None:
    pair = KeyValue(kind, b"x" if kind % 2 else 1)
    with pytest.raises(RemoteProtocolError, match="is repeated") as caught:
        read(pair, pair)
    assert caught.value.code is SessionErrorCode.PROTOCOL_VIOLATION


@pytest.mark.parametrize(("kind", "code"), [(1, "MALFORMED_PATH"), (5, "MALFORMED_AUTHORITY")])
def test_text_that_is_not_utf8_closes_with_its_own_code(kind: int, code: str) -> None:
    with pytest.raises(RemoteProtocolError, match="not UTF-8") as caught:
        read(KeyValue(kind, b"\xff"))
    assert caught.value.code is SessionErrorCode[code]


def test_a_broken_token_closes_with_key_value_formatting_error() -> None:
    """8.3#3."""
    with pytest.raises(RemoteProtocolError) as caught:
        read(KeyValue(3, b"\x09"))
    assert caught.value.code is SessionErrorCode.KEY_VALUE_FORMATTING_ERROR
