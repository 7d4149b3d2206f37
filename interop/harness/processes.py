"""A peer's process: started, listened to, given lines, ended."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from typing import TYPE_CHECKING, Any

from interop.harness.cases import CaseFailed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

__all__ = ["READY_TIMEOUT_S", "PeerProcess"]

READY_TIMEOUT_S = 15.0
"""Time for a peer to say a line that is waited for."""

END_TIMEOUT_S = 3.0
"""Time to end after SIGTERM; then it is killed."""

LINE_OCTETS = 1 << 20
"""The longest line of a peer that is read."""

REFUSAL_S = 0.02
"""How long a closed port of this machine takes to refuse at most."""

RESULT = "RESULT "
"""What a line with a script's result, one JSON value, begins with."""


class PeerProcess:
    """A running peer. All that it writes goes to its log file, line by line."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, log: Path) -> None:
        self._name = name
        self._process = process
        self._log = log
        self._lines: list[str] = []
        self._news = asyncio.Event()
        self._reader = asyncio.create_task(self._read(), name=f"output of {name}")

    @classmethod
    async def start(
        cls, name: str, command: Sequence[str], *, cwd: Path, env: Mapping[str, str]
    ) -> PeerProcess:
        """Start it in the case's process group, so that nothing outlives the case."""
        process = await asyncio.create_subprocess_exec(
            *command,
            cwd=cwd,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **env},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            limit=LINE_OCTETS,
        )
        return cls(name, process, cwd / f"{name}.log")

    async def _read(self) -> None:
        assert self._process.stdout is not None
        with self._log.open("w", encoding="utf-8") as log:
            async for octets in self._process.stdout:
                line = octets.decode("utf-8", "backslashreplace").rstrip("\n")
                log.write(line + "\n")
                log.flush()
                self._lines.append(line)
                self._news.set()
        self._news.set()

    async def line(self, text: str, *, timeout_s: float = READY_TIMEOUT_S) -> str:
        """Return the first line that contains `text`.

        Raises: CaseFailed when it ends or `timeout_s` passes before.
        """
        at = 0
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    self._news.clear()
                    while at < len(self._lines):
                        at += 1
                        if text in self._lines[at - 1]:
                            return self._lines[at - 1]
                    if self._reader.done():
                        break
                    await self._news.wait()
        except TimeoutError:
            raise CaseFailed(f"{self._name}: no line with {text!r} in {timeout_s:g} s") from None
        last = self._lines[-1] if self._lines else "nothing"
        raise CaseFailed(f"{self._name}: ended without {text!r}; its last line: {last}")

    async def serving(self, text: str, port: int) -> None:
        """Wait until it says `text` and has its UDP port: some say so before they have.

        Raises: CaseFailed as `line` does, or when nobody has the port after `READY_TIMEOUT_S`.
        """
        await self.line(text)
        try:
            async with asyncio.timeout(READY_TIMEOUT_S):
                while not await _is_taken(port):
                    pass
        except TimeoutError:
            raise CaseFailed(f"{self._name}: said {text!r}, but port {port} is closed") from None

    async def result(self, *, timeout_s: float = READY_TIMEOUT_S) -> Any:
        """Return what a script of ours gave as its result."""
        line = await self.line(RESULT, timeout_s=timeout_s)
        return json.loads(line[line.index(RESULT) + len(RESULT) :])

    async def output(self, *, timeout_s: float) -> list[str]:
        """Return all its lines, once it ended. Raises: CaseFailed when it takes longer."""
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.shield(self._reader)
        except TimeoutError:
            raise CaseFailed(f"{self._name}: still running after {timeout_s:g} s") from None
        return self._lines

    async def tell(self, line: str) -> None:
        """Write a line to its standard input."""
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")
        await self._process.stdin.drain()

    @property
    def returncode(self) -> int | None:
        """How it ended; None while it runs."""
        return self._process.returncode

    async def end(self, *, timeout_s: float = END_TIMEOUT_S) -> None:
        """End it: SIGTERM first, then SIGKILL after `timeout_s`."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self._process.returncode is None:
                self._process.send_signal(number)
            try:
                async with asyncio.timeout(timeout_s):
                    await self._process.wait()
                break
            except TimeoutError:
                continue
        await self._reader


async def _is_taken(port: int) -> bool:
    """Return whether a socket takes datagrams at a UDP port of this machine.

    A closed port refuses one octet, which QUIC drops, before the next turn or two of the loop.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.setblocking(False)
        probe.connect(("127.0.0.1", port))
        try:
            probe.send(b"\0")
            await asyncio.sleep(REFUSAL_S)
            probe.send(b"\0")
        except ConnectionRefusedError:
            return False
    return True
