"""A limit that cannot be meant is refused where it is given, by its name."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

import pytest

from moqt.session.config import SessionConfig

NUMBERS = [
    field.name
    for field in fields(SessionConfig)
    if isinstance(getattr(SessionConfig(), field.name), int | float)
]


def config(name: str, value: object) -> SessionConfig:
    keywords: dict[str, Any] = {name: value}
    return SessionConfig(**keywords)


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", [-1, math.nan])
def test_a_number_below_zero_or_none_at_all_is_refused(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"^{name} is {value}, expected [01] or more$"):
        config(name, value)


@pytest.mark.parametrize(
    "name",
    [
        "max_active_streams",
        "max_buffered_octets",
        "max_events",
        "max_open_streams",
        "max_waiting_datagrams",
        "write_octets",
    ],
)
def test_nothing_works_with_none_of_it(name: str) -> None:
    with pytest.raises(ValueError, match=f"^{name} is 0, expected 1 or more$"):
        config(name, 0)
    assert getattr(config(name, 1), name) == 1


@pytest.mark.parametrize("name", ["max_requests", "max_request_updates", "goaway_timeout_ms"])
def test_none_of_it_is_a_limit_too(name: str) -> None:
    assert getattr(config(name, 0), name) == 0


def test_only_mandatory_track_properties_can_be_lacked() -> None:
    with pytest.raises(ValueError, match=r"^peer_lacks has 0x3fff, expected 0x4000 to 0x7fff$"):
        SessionConfig(peer_lacks=frozenset({0x4000, 0x3FFF}))
    assert SessionConfig(peer_lacks=frozenset({0x4000, 0x7FFF})).peer_lacks
