"""The shortest producer and consumer run as they are, each in a process of its own."""

from __future__ import annotations

import hashlib
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

from examples import minimal_consumer, minimal_producer
from kvcs import Scope
from moqt.tls import generate_certificate

EXAMPLES = Path(__file__).parents[2] / "examples"
TIMEOUT_S = 60


def command(name: str, *arguments: str) -> list[str]:
    return [sys.executable, str(EXAMPLES / name), *arguments]


def test_the_consumer_prints_the_layers_that_the_producer_made(tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(EXAMPLES.parent)}
    with subprocess.Popen(
        command("minimal_producer.py", "0"),
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    ) as producer:
        try:
            assert producer.stdout is not None
            line = producer.stdout.readline()
            serving = re.fullmatch(r"serving on port (\d+), Ctrl-C ends\n", line)
            assert serving is not None, line
            consumer = subprocess.run(
                command("minimal_consumer.py", serving[1]),
                cwd=tmp_path,
                env=environment,
                capture_output=True,
                text=True,
                timeout=TIMEOUT_S,
                check=True,
            )
            producer.send_signal(signal.SIGINT)
            rest, _ = producer.communicate(timeout=TIMEOUT_S)
        finally:
            producer.kill()
    expected = []
    for layer in range(minimal_producer.DESCRIPTOR.layers):
        digest = hashlib.sha256(minimal_producer.prefill_layer(layer).tobytes()).hexdigest()
        expected.append(f"layer {layer}: K and V (128, 2, 64) bfloat16 {digest}")
    assert consumer.stdout.splitlines() == expected
    assert consumer.stderr == ""
    assert (producer.returncode, rest) == (0, "stopped\n")


def test_a_producer_whose_port_is_taken_leaves_the_keys_of_the_other(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("minimal.key", "minimal.pem")]
    for file in files:
        file.write_text("the other's")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("localhost", 0))
        ended = subprocess.run(
            command("minimal_producer.py", str(taken.getsockname()[1])),
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(EXAMPLES.parent)},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    assert ended.returncode == 1
    assert re.fullmatch(r"error: cannot listen on localhost:\d+: .*in use\n", ended.stderr)
    assert [file.read_text() for file in files] == ["the other's"] * 2


def test_a_consumer_without_a_producer_says_so_in_one_line(tmp_path: Path) -> None:
    def consume() -> str:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
            free.bind(("localhost", 0))
            port = free.getsockname()[1]
        ended = subprocess.run(
            command("minimal_consumer.py", str(port)),
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(EXAMPLES.parent)},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert (ended.returncode, ended.stdout) == (1, "")
        return ended.stderr

    asked = r" \(does minimal_producer\.py run in this folder\?\)\n"
    assert re.fullmatch(rf"error: .*'minimal\.key'{asked}", consume())
    leave_keys(tmp_path)
    assert re.fullmatch(rf"error: cannot connect to localhost:\d+: .*{asked}", consume())


def leave_keys(folder: Path) -> None:
    """What a producer that has ended leaves."""
    Scope.generate().save(folder / "minimal.key")
    pair = generate_certificate(["localhost"])
    (folder / "minimal.pem").write_bytes(pair.certificate)


def test_both_are_short_and_speak_of_the_same_cache() -> None:
    for name in ("minimal_producer.py", "minimal_consumer.py"):
        assert len((EXAMPLES / name).read_text("utf-8").splitlines()) < 60
    assert minimal_producer.DESCRIPTOR == minimal_consumer.DESCRIPTOR
    assert minimal_producer.TOKENS == minimal_consumer.TOKENS
