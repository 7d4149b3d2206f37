"""moqt.uri: MOQT-22 6.1, 6.2."""

from __future__ import annotations

import pytest

from moqt.errors import FollowFailed
from moqt.uri import MoqtUri
from moqt.wire.options import SetupOptions


def test_all_parts() -> None:
    uri = MoqtUri.parse("MOQT://Origin.example:4443/kv/a?site=b&c#kv-1:x#y")
    assert (uri.host, uri.port) == ("Origin.example", 4443)
    assert uri.authority == "Origin.example:4443"
    assert (uri.path, uri.query) == ("/kv/a", "site=b&c")
    assert uri.path_and_query == "/kv/a?site=b&c"
    assert (uri.fragment_type, uri.fragment_value) == ("kv-1", "x#y")
    assert str(uri) == "moqt://Origin.example:4443/kv/a?site=b&c#kv-1:x#y"


def test_what_is_absent() -> None:
    """6.1.2#1: port 443."""
    uri = MoqtUri.parse("moqt://h")
    assert uri == MoqtUri("h", 443, "h")
    assert uri.path_and_query == ""
    assert (uri.fragment, uri.fragment_type, uri.fragment_value) == (None, None, None)
    assert MoqtUri.parse("moqt://h:").port == 443


def test_an_empty_query_shows() -> None:
    assert MoqtUri.parse("moqt://h?").path_and_query == "?"
    assert MoqtUri.parse("moqt://h/#").fragment == ""


def test_a_full_track_name_as_fragment_is_kept_raw() -> None:
    uri = MoqtUri.parse("moqt://h/p#kv.2d1-s--k.2eraw")
    assert uri.fragment == "kv.2d1-s--k.2eraw"
    assert uri.fragment_type is None


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [("moqt://[::1]:4433/x", "::1", 4433), ("moqt://[fe80::1]", "fe80::1", 443)],
)
def test_addresses_in_brackets(text: str, host: str, port: int) -> None:
    uri = MoqtUri.parse(text)
    assert (uri.host, uri.port) == (host, port)
    assert uri.authority.startswith("[")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "not an address"),
        ("host:443", "not an address"),
        ("https://h/", "scheme is 'https'"),
        ("moqt://", "with a host"),
        ("moqt://:443", "with a host"),
        ("moqt:///p", "with a host"),
        ("moqt://a b/", "with a host"),
        ("moqt://h:x", "with a host"),
        ("moqt://[::1", "with a host"),
        ("moqt://h:0", "port is 0"),
        ("moqt://h:65536", "port is 65536"),
        ("moqt://h/a b", "path '/a b'"),
        ("moqt://h/%zz", "path"),
        ("moqt://h/?a b", "query 'a b'"),
    ],
)
def test_what_is_no_address_says_why(text: str, why: str) -> None:
    """6.1#1: an empty host among others."""
    with pytest.raises(ValueError, match=why):
        MoqtUri.parse(text)


def test_a_password_is_refused_and_not_repeated() -> None:
    for text in ("moqt://me:secret@h/", "https://me:secret@h/"):
        with pytest.raises(ValueError, match=r"user information|scheme") as caught:
            MoqtUri.parse(text)
        assert "secret" not in str(caught.value)


def test_a_secret_in_the_query_is_not_shown() -> None:
    """Relays take tokens there; a fragment of a peer's may hold control characters."""
    uri = MoqtUri.parse("moqt://host.example:4443/kv?jwt=secret#\x1b[2J")
    assert uri.shown == "moqt://host.example:4443/kv"
    assert uri.path_and_query == "/kv?jwt=secret"
    options = SetupOptions(path=uri.path_and_query)
    failed = FollowFailed("no way", (f"{uri} a--b", "moqt://other/?jwt=secret"))
    for text in (repr(uri), repr(options), str(failed)):
        assert "secret" not in text
        assert "\x1b" not in text
    assert failed.visited[1] == "moqt://other/?jwt=secret"
