"""CBOR as peers may send it: read plainly, and refused with one error."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any

import cbor2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcs.cbor import MAX_DEPTH, CborError, Tagged, parse

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**64), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.binary(max_size=30)
    | st.text(max_size=30),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.integers(-300, 300) | st.text(max_size=3), inner, max_size=4)
    ),
    max_leaves=20,
)


@settings(deadline=None)
@given(values, st.booleans())
def test_what_cbor2_writes_is_read(value: Any, is_canonical: bool) -> None:
    assert parse(cbor2.dumps(value, canonical=is_canonical)) == value


@pytest.mark.parametrize(
    ("octets", "value"),
    [
        ("00", 0),
        ("17", 23),
        ("1818", 24),
        ("1903e8", 1000),
        ("1a000f4240", 1000000),
        ("1bffffffffffffffff", 2**64 - 1),
        ("3bffffffffffffffff", -(2**64)),
        ("29", -10),
        ("f93e00", 1.5),
        ("fa47c35000", 100000.0),
        ("fb3ff199999999999a", 1.1),
        ("f4", False),
        ("f5", True),
        ("f6", None),
        ("4401020304", b"\x01\x02\x03\x04"),
        ("62c3bc", "ü"),
        ("80", []),
        ("83010203", [1, 2, 3]),
        ("a201020304", {1: 2, 3: 4}),
        ("a26161016162820203", {"a": 1, "b": [2, 3]}),
        ("5f42010243030405ff", b"\x01\x02\x03\x04\x05"),
        ("7f657374726561646d696e67ff", "streaming"),
        ("9fff", []),
        ("9f018202039f0405ffff", [1, [2, 3], [4, 5]]),
        ("bf61610161629f0203ffff", {"a": 1, "b": [2, 3]}),
        ("c11a514b67b0", Tagged(1, 1363896240)),
        ("d818456449455446", Tagged(24, b"dIETF")),
        ("d2820102", Tagged(18, [1, 2])),
    ],
)
def test_the_examples_of_rfc_8949(octets: str, value: Any) -> None:
    assert parse(bytes.fromhex(octets)) == value
    assert parse(memoryview(bytes.fromhex(octets))) == value


@pytest.mark.parametrize(
    ("octets", "problem"),
    [
        ("", "it ends at octet 0, inside an item"),
        ("18", "it ends at octet 1, inside an item"),
        ("4401", "it ends at octet 2, inside an item"),
        ("9bffffffffffffffff", "it ends at octet 9, inside an item"),
        ("0000", "1 octets more"),
        ("1c", "additional information 28 at 0 is not a number"),
        ("df01", "additional information 31 at 0 is not a number"),
        ("ff", "octet 0xff at 0 begins nothing"),
        ("f7", "octet 0xf7 at 0 begins nothing"),
        ("61ff", "text before octet 2 is not UTF-8"),
        ("5f6161ff", "a string at 1 has a piece of another type"),
        ("5f5f4101ffff", "additional information 31 at 1 is not a number"),
        ("a10102a1", "1 octets more"),
        ("a201020103", "key 1 is given twice"),
        ("a1410102", "a key before octet 3 is neither an integer nor text"),
        ("a1f500", "a key before octet 2 is neither an integer nor text"),
        ("81" * (MAX_DEPTH + 1) + "00", f"nested deeper than {MAX_DEPTH}"),
        ("d823" * (MAX_DEPTH + 1) + "00", f"nested deeper than {MAX_DEPTH}"),
    ],
)
def test_what_is_not_read_is_refused(octets: str, problem: str) -> None:
    with pytest.raises(CborError, match=re.escape(problem)):
        parse(bytes.fromhex(octets))


@pytest.mark.parametrize(
    "octets",
    [
        "d8236128",  # a regular expression that does not compile
        "d82301",  # one that is no text
        "c482011a7fffffff",  # a decimal of any exponent
        "d8246101",  # an e-mail
        "c001",  # a date that is no text
    ],
)
def test_tags_have_no_meaning(octets: str) -> None:
    assert isinstance(parse(bytes.fromhex(octets)), Tagged)


@settings(deadline=None)
@given(st.binary(max_size=60))
def test_any_octets_are_read_or_refused(octets: bytes) -> None:
    with suppress(CborError):
        parse(octets)
