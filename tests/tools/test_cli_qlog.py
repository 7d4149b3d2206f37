"""`--qlog DIR` of the commands that connect."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING

import pytest

from tests.cli.network import DESCRIPTOR, TOKENS, Command, Keys, producing, random_layers

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.cli.network import Background


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    return Keys.make(tmp_path)


@pytest.fixture
def complete(keys: Keys) -> Iterator[Background]:
    with producing(keys) as background:
        background.publish(random_layers(DESCRIPTOR, len(TOKENS)))
        yield background


def events_in(directory: Path) -> list[str]:
    """Return the names of all events of the only qlog there."""
    (path,) = directory.glob("*.qlog")
    (trace,) = json.loads(path.read_text())["traces"]
    return [event["name"] for event in trace["events"]]


@pytest.mark.parametrize("command", ["fetch", "watch", "inspect"])
def test_commands_that_take_leave_a_qlog(
    command: str, complete: Background, keys: Keys, tmp_path: Path
) -> None:
    directory = tmp_path / "traces"
    arguments = [command, complete.url, "--ca", str(keys.certificate), "--qlog", str(directory)]
    if command != "inspect":
        arguments += keys.wanting()
    if command == "fetch":
        arguments += ["--out", str(tmp_path / "cache.safetensors")]
    with Command(*arguments) as run:
        code, _, err = run.end()
    assert code == 0, err
    assert events_in(directory).count("moqt:control_message_created") > 1
    assert keys.scope_key.read_text().strip() not in next(directory.iterdir()).read_text()


def test_publish_leaves_one_for_each_consumer(
    complete: Background, keys: Keys, tmp_path: Path
) -> None:
    cache, directory = tmp_path / "cache.safetensors", tmp_path / "traces"
    with Command(*("fetch", complete.url, *keys.wanting(), "--out", str(cache))) as fetch:
        code, _, err = fetch.end()
    assert code == 0, err
    with Command(
        *("publish", str(cache), "--listen", "127.0.0.1:0", "--json"),
        *("--certificate", str(keys.certificate), "--private-key", str(keys.private_key)),
        *("--tokens", str(keys.tokens), "--descriptor", str(keys.descriptor)),
        *("--scope-key-file", str(keys.scope_key)),
        KVCS_QLOG_DIR=str(directory),
    ) as publish:
        serving = publish.until("serving")
        url = f"moqt://127.0.0.1:{serving['port']}/"
        with Command("inspect", url, "--ca", str(keys.certificate)) as inspect:
            assert inspect.end()[0] == 0
        publish.end(signal.SIGTERM)
    assert "moqt:control_message_parsed" in events_in(directory)


def test_a_directory_that_cannot_be_is_said_before_anything_is_tried(
    keys: Keys, tmp_path: Path
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with Command(*("watch", "moqt://127.0.0.1:1/", *keys.wanting(), "--qlog", str(blocked))) as run:
        code, _, err = run.end()
    assert code == 2
    assert "--qlog" in err
