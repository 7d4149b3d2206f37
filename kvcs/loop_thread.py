"""The one event loop thread that the blocking verbs of a process share.

The thread is a daemon, so that it never keeps the interpreter from exiting, and an atexit handler
ends its work and joins it, so that it is never cut off in the middle of a call. A forked child has
no such thread: what was made before the fork raises there, and what is made in the child gets a
thread of its own. Spawned processes start with nothing.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import os
import threading
from typing import TYPE_CHECKING, TypeVar

from kvcs.errors import KvcsError

try:
    import uvloop
except ImportError:  # pragma: no cover - uvloop is not made for every system
    uvloop = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

__all__ = ["BlockingError", "LoopThread", "new_event_loop"]

T = TypeVar("T")

JOIN_TIMEOUT_S = 10.0
"""How long the exit of the interpreter waits for connections to close."""


class BlockingError(KvcsError, RuntimeError):
    """One call: it was made in the wrong thread or process, or after the end."""


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return uvloop's where it is installed, else asyncio's."""
    return asyncio.new_event_loop() if uvloop is None else uvloop.new_event_loop()


class LoopThread:
    """Runs coroutines of other threads on one event loop. Use `shared`."""

    _shared: LoopThread | None = None
    _guard = threading.Lock()

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._closers: dict[int, Callable[[], None]] = {}
        self._is_over = False
        started = threading.Event()
        self._loop = new_event_loop()
        self._thread = threading.Thread(
            target=self._run, args=(started,), name="kvcs-loop", daemon=True
        )
        self._thread.start()
        started.wait()

    @classmethod
    def shared(cls) -> LoopThread:
        """Return this process's thread; it is started on first use."""
        with cls._guard:
            shared = cls._shared
            if shared is None or shared._is_over or shared._pid != os.getpid():
                shared = cls._shared = cls()
            return shared

    @classmethod
    def forget(cls) -> None:
        """Drop the shared thread without touching it: a forked child has none."""
        cls._guard = threading.Lock()
        cls._shared = None

    @classmethod
    def end_shared(cls) -> None:
        """Close what is open and join the thread; at the interpreter's exit."""
        shared = cls._shared
        if shared is not None and shared._pid == os.getpid():
            shared.end()

    def call(
        self, work: Callable[[], Coroutine[None, None, T]], timeout_s: float | None = None
    ) -> T:
        """Run a coroutine on the loop and return what it returns or raises.

        Out of time: it was cancelled and has ended. Interrupted (KeyboardInterrupt): it is being
        cancelled. Raises: TimeoutError after `timeout_s`, BlockingError.
        """
        self.check()
        if threading.current_thread() is self._thread:
            raise BlockingError("a blocking call on the event loop's own thread would never return")

        async def bounded() -> T:
            async with asyncio.timeout(timeout_s):
                return await work()

        future = asyncio.run_coroutine_threadsafe(bounded(), self._loop)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise BlockingError("the call was ended by the interpreter's exit") from None
        except BaseException:
            if not future.done():
                future.cancel()
            raise

    def check(self) -> None:
        """Raise BlockingError when this thread does not run here (any more)."""
        if self._pid != os.getpid():
            raise BlockingError(
                "made before this process was forked: make a new one in the child process"
            )
        if self._is_over:
            raise BlockingError("the event loop thread has ended")

    def closing(self, key: object, close: Callable[[], None]) -> None:
        """Have `close` called at the interpreter's exit, unless `closed` comes before."""
        self._closers[id(key)] = close

    def closed(self, key: object) -> None:
        """Take `closing` back."""
        self._closers.pop(id(key), None)

    def end(self) -> None:
        """Close what is open, end all calls, and join the thread."""
        while self._closers:
            _, close = self._closers.popitem()
            try:
                close()
            except (KvcsError, OSError, TimeoutError):
                continue  # it is the exit: the peer finds out by its timers
        self._is_over = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(JOIN_TIMEOUT_S)

    def _run(self, started: threading.Event) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.call_soon(started.set)
        try:
            self._loop.run_forever()
        finally:
            left = asyncio.all_tasks(self._loop)
            for task in left:
                task.cancel()
            if left:
                self._loop.run_until_complete(asyncio.wait(left, timeout=JOIN_TIMEOUT_S / 2))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()


atexit.register(LoopThread.end_shared)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=LoopThread.forget)
