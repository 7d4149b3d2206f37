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

_awaited: set[Loan] = set()
"""Loans that last and that somebody has waited for: who waits may be referred to by nothing else.
No more than there are tensors lent."""


class Loan:
    """Tensors that a publication reads in place: they must not change while it lasts.

    It ends when nothing of the publication refers to their memory any more: when its Objects were
    evicted, or the publication withdrawn, and no subscriber has one of them in flight. Await it, or
    `wait` for it in any thread.
    """

    def __init__(self, exporters: Iterable[object]) -> None:
        """Watch `exporters`, the objects whose end is the end of every view into the tensors."""
        held = list(exporters)
        self._lock = threading.RLock()  # this thread may drop a last reference while it has it
        self._left = len(held)
        self._freed: Future[None] | None = None
        """For those who wait: few loans are waited for."""
        self._watched = [weakref.ref(exporter, self._returned) for exporter in held]

    @property
    def is_free(self) -> bool:
        """Whether the tensors may be overwritten."""
        return not self._left

    def wait(self, timeout_s: float | None = None) -> bool:
        """Block this thread until the tensors are free; False after `timeout_s` seconds.

        Not for the event loop's thread: there, await the loan.
        """
        try:
            self._end().result(timeout_s)
        except FutureTimeoutError:
            return False
        return True

    def __await__(self) -> Generator[object, None, None]:
        """Wait until the tensors are free. Cancelling leaves the loan as it is."""
        yield from asyncio.shield(asyncio.wrap_future(self._end())).__await__()

    def _end(self) -> Future[None]:
        with self._lock:
            if self._freed is None:
                self._freed = Future()
                _awaited.add(self)
            self._settle()
            return self._freed

    def _returned(self, _exporter: object) -> None:
        # Runs in whatever thread drops the last reference.
        with self._lock:
            self._left -= 1
            self._settle()

    def _settle(self) -> None:
        # With the lock, which nobody wants any more when nothing is left: no return is to come.
        if not self._left and self._freed is not None and not self._freed.done():
            self._freed.set_result(None)
            _awaited.discard(self)

    def __repr__(self) -> str:
        return f"<Loan {'free' if self.is_free else 'lasts'}>"
