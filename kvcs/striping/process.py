"""A worker process as its parent sees it: started, told what to do, noticed when it is gone."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import subprocess
import sys
from contextlib import asynccontextmanager
from multiprocessing.spawn import get_executable
from typing import TYPE_CHECKING

from kvcs.errors import WorkerLost
from kvcs.striping.channel import Channel
from kvcs.striping.messages import Cancel, Close, Ended, Job, LayerDone, Ready

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from kvcs.striping.messages import Settings

__all__ = ["JobLost", "WorkerProcess"]

_log = logging.getLogger(__name__)

START_TIMEOUT_S = 60.0
"""Time for a worker to load, and to connect within its own limits."""

CANCEL_TIMEOUT_S = 5.0
"""Time for a worker to end a job; then it is killed, so that nothing is written any more."""

KILL_TIMEOUT_S = 1.0
"""Time for a killed process to end, which takes longer only in a system call that does not."""

_BOOT = (
    "import json, os, sys\n"
    "fd, parent, size = map(int, sys.argv[1:])\n"
    "text = b''\n"
    "while len(text) < size:\n"
    "    part = os.read(fd, size - len(text))\n"
    "    if not part: sys.exit()\n"
    "    text += part\n"
    "sys.path[:] = json.loads(text)\n"
    "from kvcs.striping.worker import main\n"
    "main(fd, parent)\n"
)
"""It imports what this process would import, and nothing of the application: no main guard is
needed. Secrets come by the socket."""


class JobLost(Exception):
    """A worker process ended before its job did."""


class WorkerProcess:
    """One worker. Made by `start`; it ends by `close` or `kill`, or with this process."""

    def __init__(self, channel: Channel, process: subprocess.Popen[bytes]) -> None:
        self._channel = channel
        self._process = process
        self._jobs: dict[int, asyncio.Queue[LayerDone | Ended | None]] = {}
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._is_over = asyncio.Event()
        channel.listen(self._taken, self._lost)

    @classmethod
    async def start(cls, settings: Settings) -> WorkerProcess:
        """Return a worker that is connected. Raises: WorkerLost, and what connecting raises."""
        channel, theirs = Channel.pair()
        path = json.dumps(sys.path).encode()
        with theirs:
            command = [get_executable(), "-c", _BOOT, str(theirs.fileno())]
            command += [str(os.getpid()), str(len(path))]
            process = subprocess.Popen(  # noqa: ASYNC220  some ms, once a worker
                command, stdin=subprocess.DEVNULL, pass_fds=(theirs.fileno(),)
            )
        worker = cls(channel, process)
        try:
            channel.socket.sendall(path)
            async with asyncio.timeout(START_TIMEOUT_S):
                await worker._send(settings)
                await worker._ready
        except (TimeoutError, OSError, JobLost) as error:
            worker.kill()
            raise WorkerLost(f"a worker process did not start: {error or 'timeout'}") from error
        except BaseException:
            worker.kill()
            raise
        return worker

    @property
    def pid(self) -> int:
        """The process ID."""
        return self._process.pid

    @property
    def is_over(self) -> bool:
        """Whether it can do nothing more."""
        return self._is_over.is_set()

    @asynccontextmanager
    async def job(
        self, job: Job, descriptors: Sequence[int]
    ) -> AsyncIterator[AsyncIterator[LayerDone | Ended]]:
        """Have it do a job: an iterator of what it reports, `Ended` last.

        Left before that: the job is cancelled, and nothing is written any more when this returns.
        The iterator raises JobLost when the process ends.
        """
        reports: asyncio.Queue[LayerDone | Ended | None] = asyncio.Queue()
        # holds a message a layer, and one more
        self._jobs[job.number] = reports
        is_ended = False

        async def reported() -> AsyncIterator[LayerDone | Ended]:
            nonlocal is_ended
            while not is_ended:
                report = None if self.is_over and reports.empty() else await reports.get()
                if report is None:
                    raise JobLost
                is_ended = isinstance(report, Ended)
                yield report

        try:
            if not self.is_over:
                try:
                    await self._send(job, descriptors)
                except OSError:
                    self._lost()
            yield reported()
        finally:
            if not is_ended and not self.is_over:
                await self._cancel(job, reports)
            del self._jobs[job.number]

    async def close(self, timeout_s: float) -> None:
        """Have it close its sessions and exit; after `timeout_s` it is killed."""
        try:
            if not self.is_over:
                self._channel.send(Close())
                async with asyncio.timeout(timeout_s):
                    await self._is_over.wait()
        except (OSError, TimeoutError):
            _log.debug("worker %d did not close", self.pid)
        finally:
            self.kill()

    def kill(self) -> None:
        """End the process at once, and wait for its end.

        It blocks for as long as a killed process takes; at the interpreter's exit no thread could.
        """
        self._process.kill()
        self._lost()
        try:
            self._process.wait(KILL_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            _log.warning("worker %d does not end", self.pid)

    async def _cancel(self, job: Job, reports: asyncio.Queue[LayerDone | Ended | None]) -> None:
        try:
            self._channel.send(Cancel(job.number))
            async with asyncio.timeout(CANCEL_TIMEOUT_S):
                report: LayerDone | Ended | None = await reports.get()
                while isinstance(report, LayerDone):
                    report = await reports.get()
        except (OSError, TimeoutError, asyncio.CancelledError) as error:
            self.kill()
            if isinstance(error, asyncio.CancelledError):
                raise

    async def _send(self, message: object, descriptors: Sequence[int] = ()) -> None:
        """Send what may be long; cancelled, the worker is lost, since half a message is none."""
        sending = asyncio.to_thread(self._channel.send, message, descriptors)
        try:
            await sending
        except asyncio.CancelledError:
            self._lost()
            self._process.kill()
            raise

    def _taken(self, message: object, _: list[int]) -> None:
        if isinstance(message, Ready):
            if not self._ready.done():
                self._ready.set_result(None)
        elif isinstance(message, Ended) and message.number == 0:
            if not self._ready.done() and message.error is not None:
                self._ready.set_exception(message.error.rebuilt())
        elif isinstance(message, LayerDone | Ended) and message.number in self._jobs:
            self._jobs[message.number].put_nowait(message)

    def _lost(self) -> None:
        if self.is_over:
            return
        self._is_over.set()
        self._channel.close()
        if not self._ready.done():
            self._ready.set_exception(JobLost("it ended"))
            self._ready.exception()  # looked at, if nobody waits any more
        for reports in self._jobs.values():
            reports.put_nowait(None)
