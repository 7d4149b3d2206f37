"""Payloads cut out of a few buffers."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moqt.session.publish.payloads import EqualPayloads
from moqt.session.publish.source import TrackSource
from moqt.types import FullTrackName, TrackNamespace


@given(st.integers(1, 20), st.lists(st.integers(0, 9), max_size=4))
def test_each_payload_has_its_piece_of_each_buffer(count: int, sizes: list[int]) -> None:
    rng = np.random.default_rng(0)
    buffers = [rng.bytes(count * size) for size in sizes]
    payloads = EqualPayloads(count, [buffers[0], *map(bytearray, buffers[1:])] if sizes else [])
    expected = [
        b"".join(
            octets[number * size : (number + 1) * size]
            for octets, size in zip(buffers, sizes, strict=True)
        )
        for number in range(count)
    ]
    assert [b"".join(payload) for payload in payloads] == expected
    assert b"".join(payloads[-1]) == expected[-1]
    assert [b"".join(payload) for payload in payloads[1:3]] == expected[1:3]
    assert (len(payloads), payloads.octets) == (count, sum(sizes))
    assert all(part for payload in payloads for part in payload)
    with pytest.raises(IndexError):
        payloads[count]


def test_large_pieces_are_the_memory_that_was_given() -> None:
    array, text = np.arange(4096, dtype="<u4"), bytes(8192)
    for piece, of_text in EqualPayloads(4, [array.data, text]):
        assert np.shares_memory(np.frombuffer(piece, "u1"), array)
        assert isinstance(of_text, memoryview)
        assert of_text.obj is text


def test_no_payloads() -> None:
    assert [*EqualPayloads(0, [])] == [*EqualPayloads(0, [b""])] == []
    assert EqualPayloads(0, []).octets == 0
    assert [*EqualPayloads(2, [np.zeros((0, 4), "<f4").data])] == [(), ()]


def test_what_cannot_be_cut_is_refused() -> None:
    with pytest.raises(ValueError, match="has 7 octets, expected a multiple of 3"):
        EqualPayloads(3, [b"abc", b"abcdefg"])
    with pytest.raises(ValueError, match="has 1 octets, expected a multiple of 0"):
        EqualPayloads(0, [b"a"])
    with pytest.raises(TypeError, match="contiguous"):
        EqualPayloads(2, [np.zeros((2, 3)).T.data])
    with pytest.raises(TypeError, match="contiguous"):
        EqualPayloads(2, [memoryview(b"abcd")[::2]])
    with pytest.raises(ValueError, match="-1 payloads"):
        EqualPayloads(-1, [b"abc"])


def test_many_small_objects_take_little_memory_of_their_own() -> None:
    count = 20_000
    heads, data = bytes(68 * count), bytearray(1024 * count)
    track = TrackSource(FullTrackName(TrackNamespace.of("a"), b"t"))
    writer = track.open_group(0)
    tracemalloc.start()
    try:
        writer.write_all(EqualPayloads(count, [heads, data]))
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert taken < 40 * count
