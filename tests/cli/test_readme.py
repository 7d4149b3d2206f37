"""The README's programs and commands: they are the examples, or run."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from typing import TYPE_CHECKING

from tests.cli.network import ROOT, WAIT_S

if TYPE_CHECKING:
    from pathlib import Path

README = (ROOT / "README.md").read_text("utf-8")
PYTHON = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMANDS = re.compile(r"^```sh\n(kvcs keygen.*?)^```$", re.MULTILINE | re.DOTALL)
PORT = "4443"


def run(*command: str, cwd: Path, env: dict[str, str] | None = None) -> str:
    """Run a program to its end and return what it printed; nothing may be on stderr."""
    ended = subprocess.run(
        command,
        cwd=cwd,
        env=env,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_programs_are_the_examples_or_run() -> None:
    producer, consumer, blocking, _ = PYTHON.findall(README)
    assert producer == (ROOT / "examples" / "minimal_producer.py").read_text("utf-8")
    assert consumer == (ROOT / "examples" / "minimal_consumer.py").read_text("utf-8")
    printed = run(sys.executable, "-W", "error", "-c", blocking, cwd=ROOT)
    assert printed == "layer 0: (64, 2, 64) bfloat16\nlayer 1: (64, 2, 64) bfloat16\n"


def test_commands_run_as_they_stand(tmp_path: Path) -> None:
    """But for the port, which may be another's here."""
    *_, making = PYTHON.findall(README)
    [block] = COMMANDS.findall(README)
    run(sys.executable, "-W", "error", "-c", making, cwd=tmp_path)
    env = {name: value for name, value in os.environ.items() if not name.startswith("KVCS_")}
    env["PYTHONPATH"] = str(ROOT)
    kvcs = [sys.executable, "-m", "kvcs"]
    commands = [shlex.split(line, comments=True) for line in block.replace("\\\n", "").split("\n")]
    publish = next(command for command in commands if command[:2] == ["kvcs", "publish"])
    before, after = commands[: commands.index(publish)], commands[commands.index(publish) + 1 :]
    for name, *rest in filter(None, before):
        if name == "export":
            env |= dict(each.split("=", 1) for each in rest)
        else:
            run(*kvcs, *rest, cwd=tmp_path, env=env)
    serving = [word.replace(PORT, "0") for word in publish[1:]]
    with subprocess.Popen(
        [*kvcs, *serving], cwd=tmp_path, env=env, stdout=subprocess.PIPE, text=True
    ) as producer:
        try:
            assert producer.stdout is not None
            port = producer.stdout.readline().split()[-1]
            lines = iter(producer.stdout.readline, "")
            assert any(line.startswith("complete") for line in lines)
            printed = {}
            for _, *rest in filter(None, after):
                words = [word.replace(PORT, port) for word in rest]
                ended = subprocess.run(
                    [*kvcs, *words],
                    cwd=tmp_path,
                    env=env,
                    capture_output=True,
                    text=True,
                    timeout=WAIT_S,
                    check=False,
                )
                assert ended.returncode == 0, ended.stderr
                printed[words[0]] = ended.stdout
        finally:
            producer.terminate()
    assert list(printed) == ["fetch", "watch", "inspect", "conformance", "id"]
    assert "signature verified, kid " in printed["fetch"]
    assert "signed, not checked, kid " in printed["watch"]
    assert "0 of them fail" in printed["conformance"]
