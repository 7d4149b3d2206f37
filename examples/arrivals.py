"""A retrieval read in a thread of its own, so that a model can wait for just the layer it needs."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Protocol, Self

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import TracebackType


class HasIndex(Protocol):
    @property
    def index(self) -> int: ...


class Arrivals:
    """Iterates `layers` in a thread; `wait(l)` returns when layer l came by.

    Leaving the context joins the thread: close the retrieval first if it may still be running.
    """

    def __init__(self, layers: Iterable[HasIndex], *, timeout_s: float) -> None:
        self.usable_at: dict[int, float] = {}  # layer -> time.time(), which processes share
        self._timeout_s = timeout_s
        self._changed = threading.Condition()
        self._error: Exception | None = None
        self._is_over = False
        self._thread = threading.Thread(target=self._read, args=(layers,), name="arrivals")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._thread.join()

    def wait(self, layer: int) -> None:
        """Return when `layer` is usable. Raises what the retrieval raised, or TimeoutError."""
        with self._changed:
            self._changed.wait_for(
                lambda: layer in self.usable_at or self._is_over, timeout=self._timeout_s
            )
            if layer in self.usable_at:
                return
            if self._error is not None:
                raise self._error
            if self._is_over:
                raise LookupError(f"the retrieval ended without layer {layer}")
            raise TimeoutError(f"layer {layer} did not arrive within {self._timeout_s} s")

    def _read(self, layers: Iterable[HasIndex]) -> None:
        error = None
        try:
            for layer in layers:
                with self._changed:
                    self.usable_at[layer.index] = time.time()
                    self._changed.notify_all()
        except Exception as raised:  # for the thread that waits, which raises it
            error = raised
        with self._changed:
            self._error, self._is_over = error, True
            self._changed.notify_all()
