"""The sides of a round as processes: started, each on its core, spoken with, ended."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from tests.bench.case import CaseFailed

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

__all__ = ["CORES", "ROOT", "Round", "Side", "pinning"]

ROOT = Path(__file__).resolve().parents[2]

WORD_TIMEOUT_S = 60.0
"""Time for a side to say the word that is waited for."""

END_TIMEOUT_S = 5.0
"""Time for a side to end when it has nothing left to do; then it is killed."""


def _cores() -> tuple[int, int] | None:
    if not hasattr(os, "sched_getaffinity"):
        return None
    allowed = sorted(os.sched_getaffinity(0))
    return (allowed[0], allowed[1]) if len(allowed) > 1 else None


CORES = _cores()
"""The sender's core and the receiver's; None: they are not pinned."""


def pinning() -> str:
    """Say which side runs where."""
    if CORES is None:
        return "sides are not pinned to cores"
    return f"sender pinned to core {CORES[0]}, receiver to core {CORES[1]}, threads included"


class Side:
    """One side of a transfer. Made by `Round.side`."""

    def __init__(
        self,
        module: str,
        role: str,
        plan: Mapping[str, Any],
        *,
        core: int | None,
        python: str,
        env: Mapping[str, str],
    ) -> None:
        self._name = f"{module.rpartition('.')[2]} {role}"
        # Read only when something went wrong.
        self._errors = tempfile.TemporaryFile(mode="w+")
        self._process = subprocess.Popen(
            [python, "-m", module, role, json.dumps({**plan, "core": core})],
            cwd=ROOT,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **env},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        self._words: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith('{"say": '):
                self._words.put(json.loads(line))
        self._words.put(None)

    def expect(self, word: str, timeout_s: float = WORD_TIMEOUT_S) -> dict[str, Any]:
        """Return what this side says next, which must be `word`. Raises: CaseFailed."""
        try:
            said = self._words.get(timeout=timeout_s)
        except queue.Empty:
            raise CaseFailed(f"{self._name}: no {word!r} in {timeout_s:g} s") from None
        if said is None:
            raise CaseFailed(f"{self._name}: ended before {word!r}: {self._last_words()}")
        if said["say"] != word:
            raise CaseFailed(f"{self._name}: said {said['say']!r}, expected {word!r}")
        return said

    def tell(self, **values: Any) -> None:
        """Send this side a line. Raises: CaseFailed when it has ended."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(values) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise CaseFailed(f"{self._name}: has ended: {self._last_words()}") from None

    def end(self) -> None:
        """Wait for its end, for a moment, then kill it."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
        except BrokenPipeError:
            pass
        try:
            self._process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(END_TIMEOUT_S)
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._errors.close()

    def kill(self) -> None:
        """End it at once: the round has failed."""
        self._process.kill()

    def _last_words(self) -> str:
        try:
            self._process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            pass
        self._errors.seek(0)
        return " | ".join(self._errors.read().strip().splitlines()[-3:]) or "no error was printed"


class Round:
    """The processes of one round: `with Round() as round_:`; none of them outlives the block."""

    def __init__(self, *, namespaces: tuple[str, str] | None = None) -> None:
        """`namespaces`: the sender's and the receiver's network, as paths; None: this one."""
        self._namespaces = namespaces
        self._stack = ExitStack()
        self._sides: list[Side] = []

    def side(
        self,
        module: str,
        role: str,
        plan: Mapping[str, Any],
        *,
        is_sender: bool,
        python: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Side:
        """Start `python -m module role PLAN`, on the sender's or the receiver's core."""
        end = 0 if is_sender else 1
        core = None if CORES is None else CORES[end]
        if self._namespaces is not None:
            plan = {**plan, "namespace": self._namespaces[end]}
        side = Side(module, role, plan, core=core, python=python or sys.executable, env=env or {})
        self._sides.append(side)
        self._stack.callback(side.end)
        return side

    def kill(self) -> None:
        """End all sides at once: nothing more is expected of them."""
        for side in self._sides:
            side.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End all sides; at once when the round failed."""
        if kind is not None:
            self.kill()
        self._stack.close()
