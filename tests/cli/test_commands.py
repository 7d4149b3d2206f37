"""kvcs id, kvcs keygen, and what all commands share: exit codes, JSON, errors in one line."""

from __future__ import annotations

import builtins
import io
import json
import os
import stat
import sys
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import pytest
import typer
from cryptography import x509
from typer import rich_utils

from kvcs import errors
from kvcs.cli import app, exits, main, output
from kvcs.cli.exits import CommandError, ExitCode, explain
from kvcs.keys import ProducerKey, PublicKey, SigningAlgorithm
from kvcs.kvsp.descriptor import Descriptor
from kvcs.kvsp.identity import Prefix, Scope
from moqt import errors as moqt_errors
from moqt.codes import RequestErrorCode, SessionErrorCode
from moqt.errors import ConnectProblem
from moqt.tls import load_identity

if TYPE_CHECKING:
    from pathlib import Path

KEY = "ab" * 32
DESCRIPTOR = Descriptor(
    model="m", layers=2, block_tokens=2, kv_heads=1, head_dim=4, dtype="bfloat16"
)


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("KVCS_"):
            monkeypatch.delenv(name)


@pytest.fixture
def described(tmp_path: Path) -> str:
    path = tmp_path / "descriptor.json"
    path.write_bytes(DESCRIPTOR.jcs())
    return str(path)


@pytest.fixture
def tokens(tmp_path: Path) -> str:
    path = tmp_path / "tokens"
    path.write_text("1 2 3 4 5")
    return str(path)


def lines_of(text: str) -> dict[str, str]:
    pairs = (line.rpartition(" ") for line in text.splitlines())
    return {name: value for name, _, value in pairs}


def test_id_computes_what_the_library_does(
    described: str, tokens: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KVCS_SCOPE_KEY", KEY)
    prefix = Prefix.of(Scope.from_hex(KEY), DESCRIPTOR, [1, 2, 3, 4, 5])
    assert main(["id", "--descriptor", described, "--tokens", tokens, "--json"]) == ExitCode.OK
    assert json.loads(capsys.readouterr().out) == {
        "compatibility_id": DESCRIPTOR.compatibility_id.hex(),
        "scope_id": prefix.scope_id.hex(),
        "tokens": 5,
        "covered_tokens": 4,
        "blocks": 2,
        "block_keys": [key.hex() for key in prefix.keys],
        "anchor_key": prefix.anchor_key().hex(),
    }
    assert main(["id", "--descriptor", described, "--tokens", tokens]) == ExitCode.OK
    said = lines_of(capsys.readouterr().out)
    assert said["anchor_key"] == said["block_key 1"] == prefix.anchor_key().hex()
    assert said["covered_tokens"] == "4"


def test_id_computes_only_what_is_given(
    described: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KVCS_DESCRIPTOR", described)
    assert main(["id", "--json"]) == ExitCode.OK
    compatibility_id = DESCRIPTOR.compatibility_id.hex()
    assert json.loads(capsys.readouterr().out) == {"compatibility_id": compatibility_id}


def test_id_of_less_than_a_block(
    described: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    key = tmp_path / "key"
    key.write_text(KEY)
    one = tmp_path / "one"
    one.write_text("[1]")
    arguments = ["--descriptor", described, "--tokens", str(one), "--scope-key-file", str(key)]
    assert main(["id", *arguments]) == ExitCode.USAGE
    caught = capsys.readouterr()
    assert caught.out == ""
    assert "less than one block of 2" in caught.err
    assert caught.err.count("\n") == 1


@pytest.mark.parametrize("spelled", [["--scope-key", KEY], [f"--scope-key={KEY}"]])
@pytest.mark.parametrize("command", ["id", "publish", "fetch", "watch", "inspect"])
def test_no_command_takes_a_secret_as_an_argument(
    command: str, spelled: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, *spelled]) == ExitCode.USAGE
    caught = capsys.readouterr()
    assert KEY not in caught.out + caught.err
    assert "--scope-key-file" in caught.err


def test_errors_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["id", "--json"]) == ExitCode.USAGE
    caught = capsys.readouterr()
    assert caught.out == ""
    record = json.loads(caught.err)
    assert record["error"] == "usage"
    assert record["code"] == 2
    assert record["problem"] == "no Compatibility Descriptor"
    assert "--descriptor" in record["hint"]


def test_debug_shows_the_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    main(["id"])
    assert "Traceback" not in capsys.readouterr().err
    main(["id", "--debug"])
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--help"], ["id", "--help"], ["keygen", "--help"]])
def test_help(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == ExitCode.OK
    assert "Usage: kvcs" in capsys.readouterr().out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == ExitCode.OK
    assert capsys.readouterr().out == f"kvcs {version('kvcs')}\n"


def test_no_command_shows_help_and_no_empty_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == ExitCode.USAGE
    caught = capsys.readouterr()
    assert "Usage: kvcs" in caught.out
    assert caught.err == ""


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_keygen_scope(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "scope.key"
    assert main(["keygen", "scope", str(path), "--json"]) == ExitCode.OK
    scope = Scope.from_file(path)
    caught = capsys.readouterr()
    assert json.loads(caught.out) == {"file": str(path), "scope_id": scope.scope_id.hex()}
    assert scope.key.hex() not in caught.out + caught.err
    assert mode_of(path) == 0o600
    assert main(["keygen", "scope", str(path)]) == ExitCode.FILE
    assert "--force" in capsys.readouterr().err
    assert Scope.from_file(path) == scope
    assert main(["keygen", "scope", str(path), "--force"]) == ExitCode.OK
    assert Scope.from_file(path) != scope
    assert mode_of(path) == 0o600
    assert [p.name for p in tmp_path.iterdir()] == ["scope.key"]


@pytest.mark.parametrize("algorithm", ["eddsa", "es256"])
def test_keygen_producer(
    tmp_path: Path, algorithm: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path, public = tmp_path / "p.pem", tmp_path / "p.pub"
    arguments = ["keygen", "producer", str(path), "--algorithm", algorithm, "--json"]
    assert main(arguments) == ExitCode.OK
    key = ProducerKey.load(path)
    assert key.algorithm is SigningAlgorithm[algorithm.upper()]
    assert PublicKey.load(public).key_id == key.key_id
    assert json.loads(capsys.readouterr().out)["kid"] == key.key_id.hex()
    assert mode_of(path) == 0o600
    path.unlink()
    assert main(arguments) == ExitCode.FILE  # the public key is in the way
    assert not path.exists()


def test_keygen_producer_misused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["keygen", "producer", str(tmp_path / "p"), "--algorithm", "rsa"]) == ExitCode.USAGE
    assert "eddsa" in capsys.readouterr().err
    assert main(["keygen", "producer", str(tmp_path / "p.pub")]) == ExitCode.USAGE
    assert list(tmp_path.iterdir()) == []


def test_keygen_certificate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, key = tmp_path / "c.pem", tmp_path / "c.key"
    arguments = ["keygen", "certificate", str(path), str(key)]
    assert main([*arguments, "--host", "example.net", "--host", "::1"]) == ExitCode.OK
    certificate = load_identity(path, key).certificate
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["example.net"]
    assert [str(a) for a in names.get_values_for_type(x509.IPAddress)] == ["::1"]
    assert mode_of(key) == 0o600
    assert main(arguments) == ExitCode.FILE
    assert main([*arguments[:3], str(path), "--force"]) == ExitCode.USAGE
    assert main([*arguments, "--host", "\u00fc.example", "--force"]) == ExitCode.USAGE
    assert "--host" in capsys.readouterr().err


def test_keygen_into_no_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["keygen", "scope", str(tmp_path / "no" / "key")]) == ExitCode.FILE
    assert "does not exist" in capsys.readouterr().err


def request_rejected(code: RequestErrorCode) -> moqt_errors.RequestRejected:
    return moqt_errors.RequestRejected(code, "")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (CommandError(ExitCode.FILE, "x"), 7),
        (typer.BadParameter("x"), 2),
        (errors.InvalidDescriptor("$", "x"), 2),
        (errors.InvalidTokens("x"), 2),
        (errors.InvalidKey("x"), 2),
        (errors.InvalidName("x", "y"), 2),
        (errors.TensorMismatch("x"), 2),
        (errors.PublicationNotFound("x"), 3),
        (errors.PublicationGone("x"), 3),
        (errors.IncompleteRetrieval(()), 4),
        (errors.ManifestInvalid("$", "x"), 5),
        (errors.CompatibilityMismatch(expected=b"", computed=b""), 5),
        (errors.SignatureInvalid("x"), 5),
        (errors.UnknownKey(b"x"), 5),
        (request_rejected(RequestErrorCode.DOES_NOT_EXIST), 3),
        (request_rejected(RequestErrorCode.UNAUTHORIZED), 6),
        (moqt_errors.SessionClosed(SessionErrorCode.NO_ERROR, "", by_peer=True), 6),
        (moqt_errors.TimedOut("x", 1), 6),
        (moqt_errors.NotSupported("x"), 2),
        (ConnectionRefusedError(111, "x"), 6),
        (FileNotFoundError(2, "No such file", "name"), 7),
        (PermissionError(13, "denied", "name"), 7),
        (KeyboardInterrupt(), 130),
        (RuntimeError("x"), 1),
        (ExceptionGroup("", [errors.PublicationNotFound("x")]), 3),
        (ExceptionGroup("", [errors.PublicationNotFound("x"), RuntimeError()]), 1),
    ],
)
def test_exit_codes(error: BaseException, code: int) -> None:
    assert explain(error).code == code
    assert explain(error).problem


@pytest.mark.parametrize(
    ("problem", "reason", "hint"),
    [
        (ConnectProblem.UNTRUSTED, "the certificate is not trusted by x", "--ca FILE"),
        (ConnectProblem.CERTIFICATE, "the certificate is not for 'x'", ""),
        (ConnectProblem.NAME, "no such host", "the host's name"),
        (ConnectProblem.UNREACHABLE, "Connection refused", "host and port"),
        (ConnectProblem.PROTOCOL, "the server does not speak moqt-22", "draft 22"),
        (ConnectProblem.HANDSHAKE, "handshake failure", ""),
    ],
)
def test_the_hint_is_for_what_kept_from_connecting(
    problem: ConnectProblem, reason: str, hint: str
) -> None:
    failure = explain(moqt_errors.ConnectFailed("host:1", reason, problem))
    assert failure.code is ExitCode.CONNECTION
    assert hint in failure.hint
    assert bool(hint) == bool(failure.hint)


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (KeyboardInterrupt(), "kvcs: interrupted\n"),
        (CommandError(ExitCode.TERMINATED, "terminated"), "kvcs: terminated\n"),
        (CommandError(ExitCode.FILE, "x", hint="y"), "kvcs: error: x (hint: y)\n"),
    ],
)
def test_what_the_user_ended_is_no_error(
    error: BaseException, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    output.print_failure(explain(error), as_json=False)
    assert capsys.readouterr().err == line


@pytest.mark.parametrize("option", ["-h", "--help"])
@pytest.mark.parametrize("command", [(), ("fetch",), ("keygen",), ("keygen", "producer")])
def test_help_shows_flags_without_a_type(
    command: tuple[str, ...], option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, option]) == ExitCode.OK
    shown = capsys.readouterr().out
    assert "--help" in shown
    assert "bool" not in shown


def test_help_wraps_whole_paragraphs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(rich_utils, "MAX_WIDTH", 200)
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["fetch", "-h"]) == ExitCode.OK
    assert "(exit code 4) it holds those that are complete" in capsys.readouterr().out


def test_an_error_becomes_its_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise errors.PublicationNotFound("nobody publishes it\x1b[31m")

    monkeypatch.setattr(app, "app", fail)
    assert main(["fetch"]) == ExitCode.NOT_FOUND
    caught = capsys.readouterr().err
    assert caught.startswith("kvcs: error: nobody publishes it\\x1b[31m (hint: ")
    assert "\x1b" not in caught


def test_warnings_are_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import warnings

    def warn(*arguments: object, **options: object) -> None:
        warnings.warn("the certificate is not verified", UserWarning, stacklevel=1)

    monkeypatch.setattr(app, "app", warn)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        assert main(["fetch"]) == ExitCode.OK
    assert capsys.readouterr().err == "kvcs: warning: the certificate is not verified\n"


def test_missing_extra_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = builtins.__import__

    def lacking(name: str, *arguments: Any, **options: Any) -> Any:
        if name == "kvcs.cli.app":
            raise ModuleNotFoundError("No module named 'typer'", name="typer")
        return real(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", lacking)
    assert main(["id"]) != ExitCode.OK
    caught = capsys.readouterr().err
    assert caught == (
        "kvcs: error: the package typer is not installed (hint: pip install 'kvcs[cli]')\n"
    )


def test_another_missing_module_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def lacking(name: str, *arguments: Any, **options: Any) -> Any:
        if name == "kvcs.cli.app":
            raise ModuleNotFoundError("No module named 'numpy'", name="numpy")
        return real(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", lacking)
    with pytest.raises(ModuleNotFoundError, match="numpy"):
        main(["id"])


def test_text_from_a_peer_cannot_control_the_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    output.Output(as_json=False).emit({}, "model \x1b[2J\r\u202e\nnext")
    assert capsys.readouterr().out == "model \\x1b[2J\\r\\u202e\nnext\n"
    output.Output(as_json=True).emit({"model": "\x1b\u202e"})
    printed = capsys.readouterr().out
    assert printed.isascii()
    assert "\x1b" not in printed
    assert json.loads(printed) == {"model": "\x1b\u202e"}


@pytest.mark.parametrize(
    ("octets", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (3 << 30, "3.0 GiB"), (2**53, "8192.0 TiB")],
)
def test_octets_text(octets: int, text: str) -> None:
    assert output.octets_text(octets) == text


def test_progress_is_lines_without_escapes_when_piped(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    with output.Output(as_json=False).progress("usable", 3, "layers") as show:
        show(1)
        show(3)
    caught = capsys.readouterr()
    assert caught.out == ""
    assert caught.err == "usable: 1 of 3 layers\nusable: 3 of 3 layers\n"
    with output.Output(as_json=True).progress("usable", 3, "layers") as show:
        show(1)
    assert capsys.readouterr().err == ""


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    with output.Output(as_json=False).progress("usable", 3, "layers") as show:
        show(3)
    drawn = terminal.getvalue()
    assert "3/3" in drawn
    assert "\x1b[3" not in drawn  # no colours: NO_COLOR
    assert "\x1b[9" not in drawn


def test_codes_are_documented() -> None:
    from pathlib import Path

    text = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()
    for code in exits.ExitCode:
        assert f" {int(code)} " in text or f" {int(code)}," in text


def test_trusted_keys_come_from_options_and_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [tmp_path / "a.pub", tmp_path / "b.pub"]
    for path in paths:
        path.write_bytes(ProducerKey.generate().public.to_pem())
    monkeypatch.setenv("KVCS_TRUST", os.pathsep.join(map(str, paths)))
    assert main(["inspect", str(tmp_path / "none")]) == ExitCode.FILE  # both keys were read
    paths[1].write_text("no key")
    assert main(["inspect", str(tmp_path / "none")]) == ExitCode.USAGE
    assert f"--trust: {paths[1]}: not a PEM public key" in capsys.readouterr().err
