"""The README's programs: those that it quotes are the examples, and the other one runs."""

from __future__ import annotations

import re
import subprocess
import sys

from tests.cli.network import ROOT, WAIT_S

PYTHON = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_programs_are_the_examples_or_run() -> None:
    producer, consumer, blocking = PYTHON.findall((ROOT / "README.md").read_text("utf-8"))
    assert producer == (ROOT / "examples" / "minimal_producer.py").read_text("utf-8")
    assert consumer == (ROOT / "examples" / "minimal_consumer.py").read_text("utf-8")
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", blocking],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    lines = "layer 0: (64, 2, 64) bfloat16\nlayer 1: (64, 2, 64) bfloat16\n"
    assert (run.returncode, run.stdout, run.stderr) == (0, lines, "")
