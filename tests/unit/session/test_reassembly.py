from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from moqt.session.request.reassembly import Reassembly


@given(st.binary(max_size=60), st.data())
def test_any_order_gives_the_octets_in_order(octets: bytes, data: st.DataObject) -> None:
    cuts = sorted({0, len(octets), *data.draw(st.lists(st.integers(0, len(octets))))})
    ranges = list(pairwise(cuts)) or [(0, 0)]
    reassembly, out = Reassembly(), b""
    for start, stop in data.draw(st.permutations(ranges)):
        assert not reassembly.is_complete
        out += bytes(reassembly.push(start, octets[start:stop], stop == len(octets)))
        assert reassembly.position == len(out)
    assert out == octets
    assert reassembly.is_complete


def test_fin_alone_and_early() -> None:
    reassembly = Reassembly()
    assert reassembly.push(3, b"", True) == b""
    assert not reassembly.is_complete
    assert reassembly.push(0, b"abc", False) == b"abc"
    assert reassembly.is_complete
