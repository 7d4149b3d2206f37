"""What commands are given: addresses, ranges, tokens, secrets."""

from __future__ import annotations

import io
import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest

from kvcs.cli import inputs
from kvcs.cli.exits import CommandError, ExitCode
from moqt.types import TrackNamespace

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:4443", ("127.0.0.1", 4443)),
        ("example.net:0", ("example.net", 0)),
        ("[::1]:65535", ("::1", 65535)),
    ],
)
def test_address(text: str, address: tuple[str, int]) -> None:
    assert inputs.parse_address(text) == address


@pytest.mark.parametrize(
    "text", ["", "4443", ":4443", "host", "host:", "host:65536", "host:-1", "host:x", "::1:80"]
)
def test_no_address(text: str) -> None:
    with pytest.raises(CommandError, match="is no address") as caught:
        inputs.parse_address(text)
    assert caught.value.code is ExitCode.USAGE
    assert "HOST:PORT" in caught.value.hint


@pytest.mark.parametrize(
    ("text", "layers"), [("0-3", range(4)), ("5", range(5, 6)), ("2-2", range(2, 3)), (None, None)]
)
def test_layers(text: str | None, layers: range | None) -> None:
    assert inputs.parse_layers(text) == layers


@pytest.mark.parametrize("text", ["", "3-1", "-1", "a-b", "1-", "1-2-3", "1..2", "123456"])
def test_no_layers(text: str) -> None:
    with pytest.raises(CommandError, match="is no range of layers"):
        inputs.parse_layers(text)


@pytest.mark.parametrize("text", ["[1, 2,3]", "1 2 3", "1\n2\t3\n", " [1,2,3]\n"])
def test_tokens_as_text(tmp_path: Path, text: str) -> None:
    path = tmp_path / "tokens"
    path.write_text(text)
    assert list(inputs.need_tokens(str(path))) == [1, 2, 3]


@pytest.mark.parametrize("dtype", ["<i8", ">u4", "u2"])
def test_tokens_as_npy_from_stdin(monkeypatch: pytest.MonkeyPatch, dtype: str) -> None:
    octets = io.BytesIO()
    np.save(octets, np.array([1, 2, 3], dtype))
    octets.seek(0)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(octets))
    assert list(inputs.need_tokens("-")) == [1, 2, 3]


def npy(array: object) -> bytes:
    octets = io.BytesIO()
    np.save(octets, np.asarray(array))
    return octets.getvalue()


@pytest.mark.parametrize(
    "octets",
    [
        b"one two",
        b"1 -2",
        b"1.5",
        b"12345678901",
        b"\xff\xfe",
        b"[1, true]",
        b'[1, "2"]',
        b"[1, 2.5]",
        b"[1, 2",
        b"[" * 100_000,
        npy([1.5]),
        npy([[1, 2]]),
        npy([1, 2])[:-4],
        npy(np.array([None])),
    ],
)
def test_no_tokens(tmp_path: Path, octets: bytes) -> None:
    path = tmp_path / "tokens"
    path.write_bytes(octets)
    with pytest.raises(CommandError, match="not token ids") as caught:
        inputs.need_tokens(str(path))
    assert caught.value.code is ExitCode.USAGE


def test_tokens_not_given() -> None:
    with pytest.raises(CommandError, match="no tokens"):
        inputs.need_tokens(None)


def test_file_over_the_bound(tmp_path: Path) -> None:
    path = tmp_path / "big"
    path.write_bytes(bytes(11))
    assert inputs.read_file(path, 11) == bytes(11)
    with pytest.raises(CommandError, match="over 10 octets") as caught:
        inputs.read_file(path, 10)
    assert caught.value.code is ExitCode.FILE


def test_descriptor(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="no Compatibility Descriptor"):
        inputs.need_descriptor(None)
    path = tmp_path / "descriptor.json"
    path.write_text('{"model": "m"}')
    with pytest.raises(CommandError, match=rf"{path}: .*\$\.layers"):
        inputs.need_descriptor(path)


def test_scope_key_from_file_and_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KVCS_SCOPE_KEY", raising=False)
    assert inputs.find_scope(None) is None
    monkeypatch.setenv("KVCS_SCOPE_KEY", "ab" * 32)
    assert inputs.need_scope(None).key == b"\xab" * 32
    path = tmp_path / "scope.key"
    path.write_text("cd" * 16 + "\n")
    assert inputs.need_scope(path).key == b"\xcd" * 16  # the file is the more explicit one


def test_bad_scope_key_is_not_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = "5ec2e7"
    monkeypatch.setenv("KVCS_SCOPE_KEY", secret)
    with pytest.raises(CommandError, match="KVCS_SCOPE_KEY: a scope key has 16 to 64") as caught:
        inputs.need_scope(None)
    assert secret not in str(caught.value)
    with pytest.raises(CommandError, match="cannot be read") as mistaken:
        inputs.need_scope(tmp_path / secret)
    assert secret not in str(mistaken.value)
    path = tmp_path / "scope.key"
    path.write_text(secret)
    with pytest.raises(CommandError, match=f"scope key file {path}: ") as held:
        inputs.need_scope(path)
    assert secret not in str(held.value)


def test_a_namespace_with_or_without_the_end_of_a_full_track_name() -> None:
    namespace = TrackNamespace.of("kvcs-1", b"\0")
    assert inputs.parse_namespace(str(namespace)) == namespace
    assert inputs.parse_namespace(f"{namespace}--") == namespace
    assert inputs.parse_namespace(f"{namespace}--manifest") == namespace
    with pytest.raises(ValueError, match="x"):
        inputs.parse_namespace("kv--x.zz")


def test_no_scope_key_teaches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KVCS_SCOPE_KEY", raising=False)
    with pytest.raises(CommandError, match="no scope key") as caught:
        inputs.need_scope(None)
    assert "KVCS_SCOPE_KEY_FILE" in caught.value.hint
