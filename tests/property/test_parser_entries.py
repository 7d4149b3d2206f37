"""Every parser entry with any octets: a value that comes back the same, or the documented error.

The entries and what must hold of each are the fuzzer's targets (tests/fuzz); here Hypothesis makes
the octets, so that it is tested wherever tests run, and what fails is shrunk.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.targets import TARGETS

CORPUS = Path(__file__).parents[1] / "fuzz" / "corpus"


def seeds(name: str) -> list[bytes]:
    return [path.read_bytes() for path in sorted((CORPUS / name).iterdir())]


@st.composite
def damaged(draw: st.DrawFn, name: str) -> bytes:
    """A seed, or two in a row, with a few octets changed, cut out or put in; or noise."""
    if draw(st.integers(0, 9)) == 0:
        return draw(st.binary(max_size=100))
    chosen = draw(st.lists(st.sampled_from(seeds(name)), min_size=1, max_size=2))
    octets = bytearray(b"".join(chosen))
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(octets)))
        octets[at : at + draw(st.integers(0, 3))] = draw(st.binary(max_size=3))
    return bytes(octets)


@pytest.mark.parametrize("name", sorted(TARGETS))
@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_any_octets_are_read_or_refused(name: str, data: st.DataObject) -> None:
    TARGETS[name](data.draw(damaged(name)))
