"""What one case gets: a folder, a certificate, ports, peers; everything ends with it."""

from __future__ import annotations

import random
import socket
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from interop.harness.processes import PeerProcess
from interop.harness.wiretap import Wiretap
from moqt.tls import generate_certificate

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

__all__ = ["ROOT", "Stage"]

ROOT = Path(__file__).parent.parent
"""The folder `interop`."""

FIRST_PORT, LAST_PORT = 20000, 32000
"""Ports for servers: below those that systems give to clients, so that none is taken meanwhile."""

PORT_ATTEMPTS = 100


class Stage:
    """The surroundings of one case, in the process that runs it.

    `python`: the peers' Python. `folder` is the case's own: certificates and logs.
    """

    def __init__(self, peer: str, python: Path, folder: Path) -> None:
        self.folder = folder
        self.wiretap = Wiretap()
        self._peer = peer
        self._python = python
        self._stack = AsyncExitStack()
        self._started = 0
        pair = generate_certificate(["localhost", "127.0.0.1"])
        self.certificate = folder / "cert.pem"
        """For servers on localhost or 127.0.0.1; it's its own trust anchor."""
        self.private_key = folder / "key.pem"
        self.certificate.write_bytes(pair.certificate)
        self.private_key.write_bytes(pair.private_key)

    async def __aenter__(self) -> Self:
        self._stack.enter_context(self.wiretap)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._stack.aclose()

    def port(self) -> int:
        """Return a UDP port that nobody has now."""
        for _ in range(PORT_ATTEMPTS):
            port = random.randint(FIRST_PORT, LAST_PORT)
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
                try:
                    sock.bind(("", port))
                except OSError:
                    continue
                return port
        raise OSError(f"no free UDP port among {PORT_ATTEMPTS} tried")

    async def script(self, name: str, *args: object) -> PeerProcess:
        """Start a script of the peer's folder."""
        path = ROOT / self._peer / "peer" / f"{name}.py"
        command = [str(self._python), str(path), *map(str, args)]
        return await self._start(name, command, path=ROOT / "content")

    async def module(self, name: str, *args: object) -> PeerProcess:
        """Start a module of the peer's own as a program."""
        command = [str(self._python), "-m", name, *map(str, args)]
        return await self._start(name.rpartition(".")[2], command, path=ROOT / "content")

    async def ours(self, name: str, *args: object) -> PeerProcess:
        """Start a module of this project as a program, under this Python."""
        command = [sys.executable, "-m", name, *map(str, args)]
        return await self._start(name.rpartition(".")[2], command, path=ROOT.parent)

    async def result(self, name: str, *args: object) -> Any:
        """Run a script of the peer's folder and return its result."""
        return await (await self.script(name, *args)).result()

    async def _start(self, name: str, command: list[str], *, path: Path) -> PeerProcess:
        self._started += 1
        process = await PeerProcess.start(
            f"{self._started}-{name}",
            command,
            cwd=self.folder,
            env={
                "PYTHONPATH": str(path),
                "CERTIFICATE": str(self.certificate),
                "PRIVATE_KEY": str(self.private_key),
            },
        )
        self._stack.push_async_callback(process.end)
        return process
