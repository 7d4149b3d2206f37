"""--token-file: a producer that serves only who shows its token."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest
from safetensors.numpy import save_file

from kvcs.cli import inputs, main
from kvcs.cli.exits import CommandError, ExitCode
from moqt.session.access.authorization import AuthToken
from tests.cli.network import DESCRIPTOR, TOKENS, Command, Keys, random_layers

if TYPE_CHECKING:
    from pathlib import Path


def test_publish_serves_who_shows_the_token(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = Keys.make(tmp_path)
    token, wrong = tmp_path / "token", tmp_path / "wrong"
    token.write_text("open sesame\n")
    wrong.write_text("open barley\n")
    source, out = tmp_path / "in.safetensors", tmp_path / "out.safetensors"
    save_file(random_layers(DESCRIPTOR, len(TOKENS)), source)
    served = [
        *("--tokens", str(keys.tokens), "--descriptor", str(keys.descriptor)),
        *("--scope-key-file", str(keys.scope_key), "--listen", "127.0.0.1:0"),
        *("--certificate", str(keys.certificate), "--private-key", str(keys.private_key)),
        *("--token-file", str(token), "--json"),
    ]
    with Command("publish", str(source), *served) as publish:
        url = f"moqt://127.0.0.1:{publish.until('serving')['port']}/"
        publish.until("complete")
        fetching = ["fetch", url, *keys.wanting(), "--wait", "5", "--out", str(out)]
        for arguments in (fetching, [*fetching, "--token-file", str(wrong)]):
            assert main(arguments) == ExitCode.CONNECTION
            complaint = capsys.readouterr().err
            assert "UNAUTHORIZED" in complaint
            assert "--token-file" in complaint
            assert not out.exists()
        assert main([*fetching, "--token-file", str(token)]) == ExitCode.OK
        capsys.readouterr()
        monkeypatch.setenv("KVCS_TOKEN_FILE", str(token))
        listed = ["inspect", url, "--ca", str(keys.certificate), "--listen-for", "0.3"]
        assert main(listed) == ExitCode.OK
        monkeypatch.delenv("KVCS_TOKEN_FILE")
        checked = ["conformance", url, "--ca", str(keys.certificate), "--timeout", "5"]
        assert main(checked) == ExitCode.USAGE
        assert main([*checked, "--token-file", str(token)]) == ExitCode.OK
        assert "open sesame" not in "".join(capsys.readouterr())
        code, said, complaint = publish.end(signal.SIGINT)
    assert code == ExitCode.INTERRUPTED
    assert "sesame" not in said + complaint


def test_a_token_file(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_bytes(b"  a.b-c \n")
    (token,) = inputs.find_auth_tokens(file)
    assert (token, token.is_reusable) == (AuthToken(0, b"a.b-c"), True)
    assert inputs.find_auth_tokens(None) == ()


@pytest.mark.parametrize("content", [b"", b" \n", b"x" * 4097])
def test_a_file_without_a_usable_token(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "token"
    file.write_bytes(content)
    with pytest.raises(CommandError, match=f"token file {file}: ") as caught:
        inputs.find_auth_tokens(file)
    assert caught.value.code is ExitCode.USAGE


def test_who_gives_the_token_itself_does_not_see_it_again(tmp_path: Path) -> None:
    with pytest.raises(CommandError) as caught:
        inputs.find_auth_tokens(tmp_path / "eyJhbGciOi")
    assert caught.value.code is ExitCode.FILE
    assert "eyJ" not in str(caught.value)
