"""A retrieval read in a thread of its own, which notes when each layer was handed over."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from types import TracebackType

    from kvcs.blocking import Retrieval


class Arrivals:
    """Takes the layers of `retrieval`; `wait(l)` returns when layer l is there.

    A model could ask `retrieval.next_layer` itself; the thread is here for the times, which must
    not depend on when the model asks. Leaving the context closes the retrieval.
    """

    def __init__(self, retrieval: Retrieval, *, timeout_s: float) -> None:
        self.usable_at: dict[int, float] = {}  # layer -> time.monotonic()
        self._retrieval = retrieval
        self._timeout_s = timeout_s
        self._changed = threading.Condition()
        self._error: Exception | None = None
        self._is_over = False
        self._thread = threading.Thread(target=self._read, name="arrivals")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._retrieval.close()
        self._thread.join()

    @property
    def arrived_at(self) -> dict[int, float]:
        """By layer: when the last of its Objects was verified, by the same clock."""
        return self._retrieval.arrived_at

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

    def _read(self) -> None:
        error = None
        try:
            for layer in self._retrieval:
                with self._changed:
                    self.usable_at[layer.index] = time.monotonic()
                    self._changed.notify_all()
        except Exception as raised:  # for the thread that waits, which raises it
            error = raised
        with self._changed:
            self._error, self._is_over = error, True
            self._changed.notify_all()
