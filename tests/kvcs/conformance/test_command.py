"""`kvcs conformance` as scripts and people see it."""

from __future__ import annotations

import asyncio
import json
import threading
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

import moqt
from kvcs.cli import main
from kvcs.keys import ProducerKey
from tests.cli.network import DESCRIPTOR, WAIT_S, Keys, producing, random_layers
from tests.kvcs.conformance.faulty import Fault, FaultyPublication
from tests.kvcs.stage import QUICK

if TYPE_CHECKING:
    from collections.abc import Iterator
    from collections.abc import Set as AbstractSet
    from pathlib import Path

LAYERS = random_layers(DESCRIPTOR, 64)


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    return Keys.make(tmp_path_factory.mktemp("conformance"))


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    code = main(["conformance", *arguments, "--json"])
    out, err = capsys.readouterr()
    record: dict[str, Any] = json.loads(out or err)
    return code, record


@contextmanager
def serving_faults(keys: Keys, faults: AbstractSet[Fault]) -> Iterator[str]:
    """Serve a faulty publication in another thread; yields its URL."""
    started: Future[tuple[str, asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def serve() -> None:
        publication = FaultyPublication(faults)
        end = asyncio.Event()
        async with (
            moqt.serve(
                "127.0.0.1",
                0,
                certificate=keys.certificate,
                private_key=keys.private_key,
                directory=publication.directory,
                transport_config=QUICK,
            ) as server,
            asyncio.TaskGroup() as group,
        ):
            url = f"moqt://127.0.0.1:{server.port}/"
            started.set_result((url, asyncio.get_running_loop(), end))
            group.create_task(publication.run())
            await end.wait()

    thread = threading.Thread(target=asyncio.run, args=(serve(),), name="faulty publisher")
    thread.start()
    try:
        url, loop, end = started.result(WAIT_S)
        try:
            yield url
        finally:
            loop.call_soon_threadsafe(end.set)
    finally:
        thread.join(WAIT_S)
        assert not thread.is_alive()


def test_a_publisher_that_conforms(
    keys: Keys, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    key = ProducerKey.generate()
    public = tmp_path / "producer.pub"
    public.write_bytes(key.public.to_pem())
    with producing(keys, key) as background:
        background.publish(LAYERS)
        base = [background.url, "--ca", str(keys.certificate)]
        code, record = run(capsys, *base, "--trust", str(public))
        assert (code, record["verdict"]) == (0, "pass")
        (publication,) = record["publications"]
        checks = {check["id"]: check for check in publication["checks"]}
        assert checks["manifest-signature"]["verdict"] == "pass"
        assert checks["data-digest"] == {
            "id": "data-digest",
            "section": "KVCS 3.5",
            "title": "Data Digest is the SHA-256 of Data",
            "verdict": "pass",
            "looked_at": 2 * 3 * 4,
            "wrong": 0,
            "problems": [],
            "note": "",
        }
        named = [*base, "--namespace", publication["namespace"]]
        assert main(["conformance", *named, "--scope-key-file", str(keys.scope_key)]) == 0
        out = capsys.readouterr().out
        assert "KVCS 3.5" in out
        assert "not applicable" in out
        assert out.endswith("\n1 publication checked, 0 of them fail\n")


def test_a_publisher_that_does_not(keys: Keys, capsys: pytest.CaptureFixture[str]) -> None:
    with serving_faults(keys, frozenset(Fault)) as url:
        assert main(["conformance", url, "--ca", str(keys.certificate)]) == 1
    out = capsys.readouterr().out
    for fault in Fault:
        assert f" {fault.value}: " in out
    assert "header-layer: k.raw.s0 Group 2 Object 0: Layer is 3, expected 2" in out


def test_each_failing_check_is_told_to_machines(
    keys: Keys, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving_faults(keys, {Fault.DATA, Fault.PRIORITY}) as url:
        code, record = run(capsys, url, "--ca", str(keys.certificate))
    assert (code, record["verdict"]) == (1, "fail")
    failed = [c for c in record["publications"][0]["checks"] if c["verdict"] == "fail"]
    assert {check["id"] for check in failed} == {"data-digest", "data-priority"}
    assert all(check["problems"] for check in failed)


def test_a_namespace_that_nobody_publishes_cannot_be_checked(
    keys: Keys, capsys: pytest.CaptureFixture[str]
) -> None:
    with producing(keys) as background:
        background.publish(LAYERS)
        [publication] = background.producer.publications
        *fields, _ = publication.namespace.fields
        other = moqt.TrackNamespace((*fields, bytes(16)))
        base = [background.url, "--ca", str(keys.certificate), "--namespace"]
        code, record = run(capsys, *base, f"{other}--")
        assert code == record["code"] == 2
        assert record["problem"] == f"nothing is published under {other}"
        assert main(["conformance", *base, f"{publication.namespace}--"]) == 0
        caught = capsys.readouterr()
        assert f"publication {publication.namespace}\n" in caught.out
        assert caught.err == f"checking {publication.namespace}\n"


def test_nothing_to_check_is_neither_pass_nor_fail(
    keys: Keys, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with producing(keys) as background:
        code, record = run(capsys, background.url, "--ca", str(keys.certificate))
        assert code == record["code"] == 2
        assert "no publication" in record["problem"]
        background.publish(LAYERS)
        other = Keys.make(tmp_path).scope_key
        code, record = run(
            *(capsys, background.url, "--ca", str(keys.certificate)),
            *("--scope-key-file", str(other)),
        )
        assert code == 2
        url = background.url
    code, record = run(capsys, url, "--ca", str(keys.certificate))
    assert code == 2
    assert record["problem"]
    for wrong in (["http://x/"], [url, "--namespace", "A.Z"], [url, "--timeout", "0"]):
        assert run(capsys, *wrong)[0] == 2
