"""The publisher and the subscriber of moqt alone run as they are, each in its own process."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

from examples import moqt_publisher, moqt_subscriber

EXAMPLES = Path(__file__).parents[2] / "examples"
ENVIRONMENT = os.environ | {"PYTHONPATH": str(EXAMPLES.parent)}
TIMEOUT_S = 60


def command(name: str, port: str) -> list[str]:
    return [sys.executable, str(EXAMPLES / name), port]


def subscribe(folder: Path, port: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command("moqt_subscriber.py", port),
        cwd=folder,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def test_who_comes_early_or_late_gets_every_object_once(tmp_path: Path) -> None:
    with subprocess.Popen(
        command("moqt_publisher.py", "0"),
        cwd=tmp_path,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        text=True,
    ) as publisher:
        try:
            assert publisher.stdout is not None
            line = publisher.stdout.readline()
            serving = re.fullmatch(r"serving on port (\d+), Ctrl-C ends\n", line)
            assert serving is not None, line
            runs = [subscribe(tmp_path, serving[1]) for _ in range(2)]
            publisher.send_signal(signal.SIGINT)
            rest, _ = publisher.communicate(timeout=TIMEOUT_S)
        finally:
            publisher.kill()
    places = [
        (group_id, object_id)
        for group_id in range(moqt_publisher.GROUPS)
        for object_id in range(moqt_publisher.OBJECTS)
    ]
    for run in runs:
        assert (run.returncode, run.stderr) == (0, "")
        ticks = [line for line in run.stdout.splitlines() if "tick" in line]
        assert sorted(ticks) == [f"{{{g},{o}}} tick {g}.{o}" for g, o in places]
        assert run.stdout.startswith("subscribed, the largest there was: ")
        assert run.stdout.endswith("the track has ended\n")
    assert (publisher.returncode, rest) == (0, "stopped\n")


def test_what_goes_wrong_is_one_line(tmp_path: Path) -> None:
    run = subscribe(tmp_path, "1")
    assert run.returncode == 1
    assert re.fullmatch(r"cannot subscribe: .*moqt\.pem.*\n", run.stderr)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("localhost", 0))
        port = str(taken.getsockname()[1])
        publisher = subprocess.run(
            command("moqt_publisher.py", port),
            cwd=tmp_path,
            env=ENVIRONMENT,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    assert publisher.returncode == 1
    assert re.fullmatch(r"cannot serve: .*\n", publisher.stderr)
    assert not list(tmp_path.iterdir())


def test_both_are_short_and_speak_of_the_same_track() -> None:
    for name in ("moqt_publisher.py", "moqt_subscriber.py"):
        assert len((EXAMPLES / name).read_text("utf-8").splitlines()) < 60
    assert moqt_publisher.NAME == moqt_subscriber.NAME
