"""TAP version 14, octet by octet; arguments and environment; exit codes."""

from __future__ import annotations

import importlib
import io
import os
import socket
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kvcs.interop_client.main import CASES, run
from moqt.session.access.authorization import AuthToken
from moqt.tools.relay_test import cases
from moqt.tools.relay_test.main import Settings, main, read_settings
from moqt.tools.relay_test.tap import TapWriter

if TYPE_CHECKING:
    from moqt.tls import CertificatePair
    from moqt.tools.relay_test.case import Case

VARIABLES = ("RELAY_URL", "TESTCASE", "TLS_DISABLE_VERIFY", "VERBOSE", "QLOG_DIR")


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def test_a_stream_has_version_comments_plan_tests_and_diagnostics() -> None:
    out = io.StringIO()
    tap = TapWriter(out)
    tap.begin(3, "client 1", "Relay: moqt://a")
    tap.test("first", passed=True, diagnostics={"duration_ms": 24, "connection_id": "84ee"})
    tap.test("second", passed=False, diagnostics={"received": 'said "no": #1'})
    tap.test("third", passed=True, skip="not here")
    tap.bail_out("gone")
    assert out.getvalue() == (
        "TAP version 14\n"
        "# client 1\n"
        "# Relay: moqt://a\n"
        "1..3\n"
        "ok 1 - first\n"
        "  ---\n"
        "  duration_ms: 24\n"
        '  connection_id: "84ee"\n'
        "  ...\n"
        "not ok 2 - second\n"
        "  ---\n"
        '  received: "said \\"no\\": #1"\n'
        "  ...\n"
        "ok 3 - third # SKIP not here\n"
        "Bail out! gone\n"
    )


def test_what_a_relay_says_cannot_break_the_stream() -> None:
    out = io.StringIO()
    tap = TapWriter(out)
    tap.begin(1)
    tap.test("a # TODO\nok 9", passed=False, diagnostics={"received": "x\n  ...\nok 2 - forged"})
    tap.comment("y\nok 3 - forged")
    tap.bail_out("z\nok 4 - forged")
    lines = out.getvalue().splitlines()
    assert len(lines) == 8
    assert lines[2].startswith("not ok 1 - a \\# TODO")
    assert not [line for line in lines if line.startswith("ok")]


def test_defaults() -> None:
    assert read_settings([], {}) == Settings("moqt://localhost:4443", (), False, False, False, None)


def test_environment_is_read() -> None:
    found = read_settings(
        [],
        {
            "RELAY_URL": "moqt://relay:1",
            "TESTCASE": "setup-only",
            "TLS_DISABLE_VERIFY": "1",
            "VERBOSE": "1",
            "QLOG_DIR": "logs",
        },
    )
    assert found == Settings("moqt://relay:1", ("setup-only",), False, True, True, Path("logs"))


def test_arguments_win_over_the_environment() -> None:
    environment = {"RELAY_URL": "moqt://relay:1", "TESTCASE": "setup-only", "QLOG_DIR": "logs"}
    found = read_settings(
        ["-r", "moqt://b:2", "-t", "fetch-range", "-v", "--tls-disable-verify", "--qlog", "q"],
        environment | {"TLS_DISABLE_VERIFY": "0", "VERBOSE": "0"},
    )
    assert found == Settings("moqt://b:2", ("fetch-range",), False, True, True, Path("q"))


@pytest.mark.parametrize("value", ["", "0", "false"])
def test_switches_are_set_by_one_alone(value: str) -> None:
    found = read_settings([], {"TLS_DISABLE_VERIFY": value, "VERBOSE": value, "TESTCASE": ""})
    assert found == Settings("moqt://localhost:4443", (), False, False, False, None)


def test_list_is_names_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(CASES, ["-l"]) == 0
    assert capsys.readouterr().out.splitlines() == [case.name for case in CASES]
    assert [case.name for case in CASES][:6] == [
        "setup-only",
        "announce-only",
        "publish-namespace-done",
        "subscribe-error",
        "announce-subscribe",
        "subscribe-before-announce",
    ]


def test_an_unknown_test_is_not_supported(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TESTCASE", "moq-over-pigeons")
    assert main(CASES, []) == 127
    out = capsys.readouterr().out
    assert "1..1\nok 1 - moq-over-pigeons # SKIP " in out


def test_webtransport_is_not_supported(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(CASES, ["--relay", "https://localhost:4443"]) == 127
    assert "\n1..0 # SKIP no WebTransport" in capsys.readouterr().out


def test_what_is_no_address_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(CASES, ["--relay", "localhost:4443"]) == 2
    out = capsys.readouterr().out
    assert out.endswith("Bail out! not an address: expected moqt://host[:port][/path]\n")
    assert "1.." not in out, "there is nothing to run"


def test_a_folder_for_traces_that_cannot_be_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(CASES, ["--relay", "moqt://h", "--qlog", __file__]) == 2
    assert "a file, expected a folder" in capsys.readouterr().out


def test_tests_may_be_named_more_than_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert read_settings(["-t", "a", "-t", "b"], {"TESTCASE": "c"}).tests == ("a", "b")
    assert main(CASES, ["-t", "setup-only", "-t", "a", "-t", "b"]) == 127
    out = capsys.readouterr().out
    assert "1..2\nok 1 - a # SKIP" in out
    assert "ok 2 - b # SKIP" in out


def test_a_switch_that_is_not_heeded_is_remarked_on() -> None:
    found = read_settings([], {"TLS_DISABLE_VERIFY": "true"})
    assert not found.tls_disable_verify
    assert found.remarks == ("TLS_DISABLE_VERIFY=true is not heeded: only 1 sets it",)


def test_trust_and_tokens_come_from_files(certificate: CertificatePair, tmp_path: Path) -> None:
    trust, token = tmp_path / "ca.pem", tmp_path / "token"
    trust.write_bytes(certificate.certificate)
    token.write_text(" s3cret\n")
    found = read_settings(
        ["--ca", str(trust), "--token-file", str(token)], {"TLS_DISABLE_VERIFY": "1"}
    )
    assert found.ca == certificate.certificate
    assert found.tokens == (AuthToken(0, b"s3cret"),)
    assert not found.tls_disable_verify, "the argument wins"
    assert "s3cret" not in repr(found)


def test_an_end_by_sigterm_is_said() -> None:
    """A peer that is silent holds it until the signal comes."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
        silent.bind(("127.0.0.1", 0))
        url = f"moqt://127.0.0.1:{silent.getsockname()[1]}"
        command = [sys.executable, "-m", "moqt.tools.relay_test", "--tls-disable-verify", "-r", url]
        with subprocess.Popen(
            [*command, "-t", "fetch-range"], stdout=subprocess.PIPE, text=True
        ) as client:
            silent.settimeout(60)
            silent.recv(2048)  # it runs
            client.terminate()
            out, _ = client.communicate(timeout=60)
    assert out.endswith("Bail out! terminated\n")
    assert "# The relay's certificate is not verified\n" in out
    assert client.returncode == 143


def test_a_wrong_argument_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(CASES, ["--speed"])
    assert ended.value.code == 2
    assert "unrecognized arguments: --speed" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("module", "tests"),
    [("kvcs.interop_client", CASES), ("moqt.tools.relay_test", cases.CASES)],
    ids=["with kvcs", "moqt alone"],
)
def test_the_modules_run_as_programs(module: str, tests: tuple[Case, ...]) -> None:
    result = subprocess.run(
        [sys.executable, "-m", module, "--list"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert result.stdout.split() == [case.name for case in tests]


def test_the_package_declares_the_program() -> None:
    project = tomllib.loads(Path(__file__).parents[2].joinpath("pyproject.toml").read_text())
    module, name = project["project"]["scripts"]["moqt-interop-client"].split(":")
    assert getattr(importlib.import_module(module), name) is run


@pytest.mark.parametrize("module", ["kvcs.interop_client", "moqt.tools.dump"])
def test_a_reader_that_goes_away_ends_it_quietly(module: str) -> None:
    """The reading end of its output is closed before it writes: as with `| head`, but for sure."""
    reading, writing = os.pipe()
    os.close(reading)
    arguments = ["--list"] if module == "kvcs.interop_client" else ["--kind", "datagram", "40"]
    try:
        result = subprocess.run(
            [sys.executable, "-m", module, *arguments],
            stdout=writing,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
        )
    finally:
        os.close(writing)
    assert (result.returncode, result.stderr) == (141, "")
