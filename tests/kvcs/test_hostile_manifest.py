"""Manifests that a hostile publisher makes costly to read."""

from __future__ import annotations

import json

import pytest

from kvcs import ijson


def test_a_name_given_twice_among_very_many_is_found_in_one_pass() -> None:
    members = ",".join(f'"{number}":0' for number in range(200_000))
    text = f'{{{members},"199999":1}}'
    value = ijson.parse(text, max_octets=len(text))
    with pytest.raises(ijson.IJsonError, match="'199999' is given twice"):
        ijson.check_names(value)


def test_the_first_name_that_is_given_twice_is_told() -> None:
    text = json.dumps({"a": 0})[:-1] + ', "b": 1, "a": 2, "b": 3}'
    with pytest.raises(ijson.IJsonError, match="'a' is given twice"):
        ijson.check_names(ijson.parse(text, max_octets=100))
