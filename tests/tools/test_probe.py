"""`python -m moqt.tools.probe` against servers of ours."""

from __future__ import annotations

import asyncio
import json
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

import moqt
from moqt import errors
from moqt.session.control import Control
from moqt.tools import probe as tool
from moqt.tools.hints import connect_hint
from moqt.types import TrackNamespace
from tests.asyncio.endpoints import serving

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from moqt.tls import CertificatePair

KVCS = TrackNamespace.of("kvcs", b"\x00\xff")
OTHER = TrackNamespace.of("live", "one")


@contextmanager
def server_thread(
    certificate: CertificatePair, policy: moqt.TokenPolicy | None = None
) -> Iterator[int]:
    """Run a server with two namespaces in a thread: the program has a loop of its own."""
    directory = moqt.TrackDirectory()
    for namespace in (KVCS, OTHER):
        directory.advertise(namespace)
    loop = asyncio.new_event_loop()
    ready = threading.Event()
    port: list[int] = []
    stop = asyncio.Event()

    async def serve() -> None:
        async with serving(certificate, directory, token_policy=policy) as server:
            port.append(server.port)
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    try:
        assert ready.wait(20)
        yield port[0]
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()


def test_json_has_all_that_was_learned(
    certificate: CertificatePair, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trust = tmp_path / "ca.pem"
    trust.write_bytes(certificate.certificate)
    with server_thread(certificate) as port:
        code = tool.main([f"moqt://127.0.0.1:{port}", "--ca", str(trust), "--json"])
    assert code == 0
    found = json.loads(capsys.readouterr().out)
    assert found["alpn"] == "moqt-22"
    assert found["quic_version"] == 1
    assert found["certificate"]["subject"] == "CN=localhost"
    assert found["certificate"]["names"] == ["localhost", "127.0.0.1"]
    assert found["transport_parameters"]["max_datagram_frame_size"] == 65535
    assert 1 << 20 <= found["transport_parameters"]["initial_max_data"] <= 16 << 20
    assert found["setup"]["peer"]["implementation"] == moqt.SessionConfig().implementation
    assert found["setup"]["own"]["authority"] == f"127.0.0.1:{port}"
    assert found["namespaces"]["found"] == [str(KVCS), str(OTHER)]
    times = found["timing_ms"]
    assert 0 < times["handshake"] <= times["first_namespace"]
    assert times["setup"] >= 0


def test_a_prefix_leaves_the_others_out(
    certificate: CertificatePair, capsys: pytest.CaptureFixture[str]
) -> None:
    with server_thread(certificate) as port:
        code = tool.main([f"moqt://127.0.0.1:{port}", "--insecure", "--namespace-prefix", "live"])
    assert code == 0
    lines = capsys.readouterr().out.splitlines()
    assert "  ALPN         moqt-22" in lines
    assert "  namespaces   under live: 1, the first after" in "\n".join(lines)
    assert lines[-1].strip() == "live-one"


def test_a_certificate_that_is_not_trusted_is_explained(
    certificate: CertificatePair, capsys: pytest.CaptureFixture[str]
) -> None:
    with server_thread(certificate) as port:
        assert tool.main([f"moqt://127.0.0.1:{port}"]) == 1
    err = capsys.readouterr().err
    assert "certificate is not trusted" in err
    assert "not trusted by the public CAs" in err
    assert "hint: --ca FILE names what to trust; --insecure looks without verifying" in err


def test_nobody_there_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert tool.main(["moqt://127.0.0.1:1", "--insecure", "--timeout", "2"]) == 1
    err = capsys.readouterr().err
    assert "error: cannot connect to 127.0.0.1:1: " in err
    assert "hint: is it running" in err


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["https://localhost"], "scheme is 'https', expected 'moqt'"),
        (["moqt://h", "--timeout", "0"], "--timeout: '0', expected seconds: more than 0, 3600 at"),
        (["moqt://h", "--timeout", "x"], "--timeout: 'x', expected seconds"),
        (["moqt://h", "--timeout", "nan"], "--timeout: 'nan', expected seconds"),
        (["moqt://h", "--namespace-prefix", "x-.zz"], "'.zz' is not the text form of a name"),
        (["moqt://h", "--namespace-prefix", "kv--x"], "field 1 is empty"),
        (["moqt://h", "--ca", "no-such-file"], "--ca: no-such-file: no such file or directory"),
        (["moqt://h", "--ca", __file__], "no PEM certificate found"),
        (["moqt://h", "--ca", __file__, "--insecure"], "no PEM certificate found"),
        (["moqt://h", "--qlog", __file__], "a file, expected a folder"),
        (["moqt://h", "--token-file", "s3cret"], "the file that it names: no such file"),
    ],
)
def test_a_wrong_command_line_is_explained(
    arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        tool.main(arguments)
    assert ended.value.code == 2
    err = capsys.readouterr().err
    assert expected in err
    assert "s3cret" not in err


def test_a_certificate_to_trust_and_no_verifying_exclude_each_other(
    certificate: CertificatePair, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trust = tmp_path / "ca.pem"
    trust.write_bytes(certificate.certificate)
    with pytest.raises(SystemExit):
        tool.main(["moqt://h", "--ca", str(trust), "--insecure"])
    assert "not allowed with argument --ca" in capsys.readouterr().err


def test_a_prefix_that_matches_nothing_is_explained(
    certificate: CertificatePair, capsys: pytest.CaptureFixture[str]
) -> None:
    with server_thread(certificate) as port:
        url = f"moqt://127.0.0.1:{port}"
        assert tool.main([url, "--insecure", "--json", "--namespace-prefix", "kv--"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["namespaces"]["found"] == []
    assert "nothing under kv: a prefix matches whole fields" in err
    assert f"warning: the certificate of 127.0.0.1:{port} is not verified" in err


async def test_names_are_whole_and_what_was_not_sent_is_said(
    certificate: CertificatePair, no_leaks: None
) -> None:
    directory, long = moqt.TrackDirectory(), TrackNamespace.of(b"\xff" * 400)
    directory.advertise(long)
    config = moqt.SessionConfig(max_request_updates=0)
    async with serving(certificate, directory, config=config) as server:
        report = await tool.probe(
            f"moqt://127.0.0.1:{server.port}",
            prefix=TrackNamespace(()),
            timeout_s=5,
            ca=certificate.certificate,
        )
    lines = [line.strip() for line in report.lines()]
    assert str(long) in lines
    assert "max_request_updates not sent (default 0)" in lines
    assert "max_request_updates" not in report.to_json()["setup"]["peer"]


def test_a_token_is_shown_to_who_asks_for_it(
    certificate: CertificatePair, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "token"
    file.write_text("s3cret\n")
    policy = moqt.KnownTokens([moqt.AuthToken(0, b"s3cret")], is_for_session=True)
    with server_thread(certificate, policy) as port:
        url = f"moqt://127.0.0.1:{port}"
        assert tool.main([url, "--insecure"]) == 1
        assert "hint: --token-file FILE gives the token" in capsys.readouterr().err
        assert tool.main([url, "--insecure", "--token-file", str(file)]) == 0
    out, err = capsys.readouterr()
    assert str(KVCS) in out
    assert "s3cret" not in out + err


async def test_a_peer_without_setup_is_told_from_one_without_quic(
    certificate: CertificatePair, monkeypatch: pytest.MonkeyPatch, no_leaks: None
) -> None:
    progress = moqt.ConnectProgress()
    async with serving(certificate) as server:
        monkeypatch.setattr(Control, "flush", lambda _self: None)
        with pytest.raises(errors.TimedOut) as failed:
            await tool.probe(
                f"moqt://127.0.0.1:{server.port}",
                prefix=TrackNamespace(()),
                timeout_s=0.3,
                ca=certificate.certificate,
                progress=progress,
            )
    hint = connect_hint(failed.value, insecure="", is_quic_ready=progress.is_quic_ready)
    assert "it speaks QUIC, but sends no SETUP" in hint


@pytest.mark.parametrize(
    ("problem", "expected"),
    [
        (errors.ConnectProblem.NAME, "is the host's name right?"),
        (errors.ConnectProblem.UNREACHABLE, "is it running"),
        (errors.ConnectProblem.UNTRUSTED, "--ca FILE"),
        (errors.ConnectProblem.CERTIFICATE, "the certificate itself"),
        (errors.ConnectProblem.PROTOCOL, "no draft that this package speaks"),
        (errors.ConnectProblem.HANDSHAKE, "host and port are right"),
    ],
)
def test_each_kind_of_failure_has_its_hint(problem: errors.ConnectProblem, expected: str) -> None:
    error = errors.ConnectFailed("h:1", "no", problem)
    assert expected in connect_hint(error, insecure="--insecure")


async def test_a_peer_that_lists_no_namespaces_is_still_described(
    certificate: CertificatePair, no_leaks: None
) -> None:
    async with serving(certificate, config=moqt.SessionConfig(max_requests=0)) as server:
        with pytest.warns(moqt.InsecureConnectionWarning):
            report = await tool.probe(
                f"moqt://127.0.0.1:{server.port}",
                prefix=TrackNamespace(()),
                timeout_s=5,
                insecure=True,
            )
    assert "EXCESSIVE_LOAD" in (report.namespaces.refusal or "")
    assert any("of all: request rejected: EXCESSIVE_LOAD" in line for line in report.lines())
    assert report.to_json()["namespaces"]["found"] == []
