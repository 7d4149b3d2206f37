"""What an application builds of wrong types is refused where it is built, and says so."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import moqt

if TYPE_CHECKING:
    from collections.abc import Callable

NAMESPACE = moqt.TrackNamespace.of("kv")
ANY: Any = moqt
"""The same names without their types: callers that no checker looks at."""


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: ANY.TrackNamespace(("a", "b")), r"field 0 is a str, expected bytes; .*\.of takes"),
        (lambda: ANY.TrackNamespace((b"a", None)), "field 1 is a NoneType, expected bytes"),
        (lambda: ANY.TrackNamespace("a"), r"are a str, expected a tuple of bytes; .*\.of takes"),
        (lambda: ANY.TrackNamespace([b"a"]), "are a list, expected a tuple of bytes"),
        (lambda: ANY.TrackNamespace.of("a", 3), "field 1 is a int, expected bytes"),
        (lambda: ANY.FullTrackName(NAMESPACE, "t"), "Track Name is a str, expected bytes"),
        (lambda: ANY.FullTrackName("kv", b"t"), "is a str, expected a TrackNamespace"),
        (lambda: ANY.AuthToken(0, "s"), "a token's value is a str, expected bytes"),
        (lambda: ANY.AuthToken("0", b"s"), "a Token Type is a str, expected an int"),
        (lambda: ANY.SubscribeOptions(fill=True), "fill is bool, expected FillParameters"),
        (
            lambda: ANY.SubscribeOptions(location_filter=moqt.Location(0, 0)),
            "location_filter is Location, expected LocationFilter",
        ),
        (
            lambda: ANY.FetchOptions(range_filters=[moqt.Location(0, 0)]),
            "a range filter is Location, expected RangeFilter",
        ),
        (
            lambda: ANY.FillParameters(location_filter=True),
            "location_filter is bool, expected LocationFilter",
        ),
        (lambda: ANY.TransportConfig(qlog_dir=3), "os.PathLike"),
    ],
)
def test_wrong_types_are_refused_at_once(build: Callable[[], object], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        build()


def connecting(tokens: Any) -> object:
    return moqt.connect("moqt://localhost/", tokens=tokens)


@pytest.mark.parametrize(
    "take",
    [
        lambda tokens: ANY.KnownTokens(tokens),
        lambda tokens: ANY.SubscribeOptions(tokens=tokens),
        lambda tokens: ANY.FetchOptions(tokens=tokens),
        connecting,
    ],
)
def test_tokens_are_a_list_of_tokens(take: Callable[[Any], object]) -> None:
    with pytest.raises(TypeError, match="a single AuthToken, expected a list"):
        take(moqt.AuthToken(0, b"secret"))
    with pytest.raises(TypeError, match="a str in tokens, expected AuthToken") as caught:
        take("hunter2")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("value", ["traces", Path("traces")])
def test_qlog_dir_is_any_path(value: str | Path) -> None:
    assert moqt.TransportConfig(qlog_dir=value).qlog_dir == value
