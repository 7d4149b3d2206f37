"""When tensors lent to a publication are free again."""

from __future__ import annotations

import asyncio
import threading
import weakref
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable

__all__ = ["Loan"]


class Loan:
    """Tensors that a publication reads in place: they must not change while it lasts.

    It ends when nothing of the publication refers to their memory any more: when its Objects were
    evicted, or the publication withdrawn, and no subscriber has one of them in flight. Await it, or
    `wait` for it in any thread.
    """

    def __init__(self, exporters: Iterable[object]) -> None:
        """Watch `exporters`, the objects whose end is the end of every view into the tensors."""
        self._future: Future[None] = Future()
        self._lock = threading.RLock()
        watched = list(exporters)
        self._left = len(watched)
        while watched:
            finalizer = weakref.finalize(watched.pop(), self._returned)
            finalizer.atexit = False
        if not self._left:
            self._future.set_result(None)

    @property
    def is_free(self) -> bool:
        """Whether the tensors may be overwritten."""
        return self._future.done()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Block this thread until the tensors are free; False after `timeout_s` seconds.

        Not for the event loop's thread: there, await the loan.
        """
        try:
            self._future.result(timeout_s)
        except FutureTimeoutError:
            return False
        return True

    def __await__(self) -> Generator[object, None, None]:
        """Wait until the tensors are free. Cancelling leaves the loan as it is."""
        yield from asyncio.shield(asyncio.wrap_future(self._future)).__await__()

    def _returned(self) -> None:
        # Runs in whatever thread drops the last reference.
        with self._lock:
            self._left -= 1
            is_last = self._left == 0
        if is_last:
            self._future.set_result(None)

    def __repr__(self) -> str:
        return f"<Loan {'free' if self.is_free else 'lasts'}>"
