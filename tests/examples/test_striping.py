"""The striping example runs as it is."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_workers_and_sessions_bring_the_cache_bit_for_bit() -> None:
    result = subprocess.run(
        [sys.executable, str(EXAMPLES / "striping.py"), "2"],
        env=os.environ | {"PYTHONPATH": str(EXAMPLES.parent)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (result.returncode, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert len(lines) == 3
    for line, what in zip(lines, ("2 worker processes", "2 sessions"), strict=False):
        assert re.fullmatch(rf"{what}: 8 layers in order, bit for bit, \d+ MB/s", line), line
