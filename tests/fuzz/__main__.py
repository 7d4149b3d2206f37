"""`python -m tests.fuzz [--seconds N] [TARGET ...]`: look for octets that a parser cannot bear.

Each target runs in a process of its own, with coverage of `moqt` and `kvcs`, for a bounded time.
The input that fails is kept under build/fuzz/ and told; the exit code is then 1.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CORPUS = Path(__file__).parent / "corpus"
FOUND = ROOT / "build" / "fuzz"

INPUT_TIMEOUT_S = 10
"""One input that takes longer is a finding: work must be bounded by its length."""
MAX_INPUT_OCTETS = 2048
MAX_MEMORY_MIB = 2048
MAX_PROCESSES = 4
START_S = 60.0
"""What a process may take beyond its fuzzing time, to start with instrumentation and to end."""


def fuzz_here(name: str, arguments: list[str]) -> None:
    """Run one target in this process; libFuzzer ends it."""
    import atheris

    with atheris.instrument_imports(include=["moqt", "kvcs"]):
        from tests.fuzz.targets import TARGETS
    atheris.Setup([sys.argv[0], *arguments], TARGETS[name])
    atheris.Fuzz()


def fuzz(name: str, seconds: int) -> bool:
    """Run one target for so long; return whether all is well."""
    FOUND.mkdir(parents=True, exist_ok=True)
    prefix = FOUND / f"{name}-"
    with tempfile.TemporaryDirectory() as new:  # what the fuzzer keeps; the corpus stays as it is
        command = [
            *(sys.executable, "-m", "tests.fuzz", "--here", name, "--"),
            f"-max_total_time={seconds}",
            f"-timeout={INPUT_TIMEOUT_S}",
            f"-rss_limit_mb={MAX_MEMORY_MIB}",
            f"-max_len={MAX_INPUT_OCTETS}",
            f"-artifact_prefix={prefix}",
            "-print_final_stats=1",
            "-verbosity=1",
            new,
            str(CORPUS / name),
        ]
        try:
            done = subprocess.run(
                command,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=seconds + START_S,
                check=False,
            )
            output, code = done.stdout.decode(errors="replace"), done.returncode
        except subprocess.TimeoutExpired as expired:
            output, code = (expired.stdout or b"").decode(errors="replace"), -1
    if code == 0:
        print(f"{name}: {_executed(output)} inputs", flush=True)
        return True
    kept = sorted(str(path.relative_to(ROOT)) for path in FOUND.glob(f"{name}-*"))
    what = f"input kept: {', '.join(kept)}" if kept else "it did not start"
    print(f"{output[-6000:]}\n{name}: failed with exit code {code}; {what}", flush=True)
    return False


def _executed(output: str) -> str:
    for line in output.splitlines():
        if line.startswith("stat::number_of_executed_units:"):
            return line.split()[-1]
    return "?"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=int, default=10, help="for each target")
    parser.add_argument("--here", metavar="TARGET", help="run one target in this process")
    parser.add_argument("targets", nargs="*", help="names, or with --here options of libFuzzer")
    arguments = parser.parse_args()
    if arguments.here is not None:
        fuzz_here(arguments.here, arguments.targets)
        return 0
    names = sorted(path.name for path in CORPUS.iterdir())
    unknown = set(arguments.targets) - set(names)
    if unknown:
        parser.error(f"no target {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    # Half of a short run is instrumentation, so targets run side by side.
    with ThreadPoolExecutor(min(os.cpu_count() or 1, MAX_PROCESSES)) as threads:
        results = threads.map(
            lambda name: fuzz(name, arguments.seconds), arguments.targets or names
        )
        return 0 if all(list(results)) else 1


if __name__ == "__main__":
    sys.exit(main())
