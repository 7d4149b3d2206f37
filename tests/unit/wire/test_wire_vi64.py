"""moqt.wire.vi64: MOQT-22 8.1."""

from __future__ import annotations

import pytest

from moqt.wire import vi64


@pytest.mark.parametrize("value", [-1, vi64.MAX_VI64 + 1])
def test_what_64_bits_do_not_hold_is_refused(value: int) -> None:
    with pytest.raises(ValueError, match="not in 0"):
        vi64.encode(value)
    with pytest.raises(ValueError, match="not in 0"):
        vi64.encoded_length(value)


def test_each_length_begins_where_the_shorter_one_ends() -> None:
    for length in range(1, 9):
        assert len(vi64.encode((1 << 7 * length) - 1)) == length
        assert len(vi64.encode(1 << 7 * length)) == length + 1


def test_a_value_is_read_where_it_stands() -> None:
    assert vi64.decode(memoryview(b"\xff\x81\x2c\x07"), 1) == (300, 3)
    assert vi64.decode(bytearray(b"\x05"), 1) is None
    assert vi64.decode(b"\x05\x81", 1) is None
