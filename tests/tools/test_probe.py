"""`python -m moqt.tools.probe` against servers of ours."""

from __future__ import annotations

import asyncio
import json
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

import moqt
from moqt.tools import probe as tool
from moqt.types import TrackNamespace
from tests.asyncio.endpoints import serving

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from moqt.tls import CertificatePair

KVCS = TrackNamespace.of("kvcs", b"\x00\xff")
OTHER = TrackNamespace.of("live", "one")


@contextmanager
def server_thread(certificate: CertificatePair) -> Iterator[int]:
    """Run a server with two namespaces in a thread: the program has a loop of its own."""
    directory = moqt.TrackDirectory()
    for namespace in (KVCS, OTHER):
        directory.advertise(namespace)
    loop = asyncio.new_event_loop()
    ready = threading.Event()
    port: list[int] = []
    stop = asyncio.Event()

    async def serve() -> None:
        async with serving(certificate, directory) as server:
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
    assert found["transport_parameters"]["initial_max_data"] == 16 << 20
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
        (["moqt://h", "--timeout", "0"], "0 is not between 0 and 3600 seconds"),
        (["moqt://h", "--namespace-prefix", ".zz"], "invalid parse value: '.zz'"),
        (["moqt://h", "--ca", "no-such-file"], "No such file"),
    ],
)
def test_a_wrong_command_line_is_explained(
    arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        tool.main(arguments)
    assert ended.value.code == 2
    assert expected in capsys.readouterr().err


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
