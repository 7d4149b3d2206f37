"""What lives on the loop's thread, held by other threads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, Self, TypeVar

from kvcs.loop_thread import BlockingError, LoopThread

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from contextlib import AbstractAsyncContextManager
    from types import TracebackType

__all__ = ["Owner"]

T = TypeVar("T")
OwnerT = TypeVar("OwnerT")


class Owner(Generic[OwnerT]):
    """Enters an async context on the loop thread, and leaves it once."""

    def __init__(self, make: Callable[[], AbstractAsyncContextManager[OwnerT]]) -> None:
        self._thread = LoopThread.shared()
        self._is_closed = False

        async def enter() -> tuple[AbstractAsyncContextManager[OwnerT], OwnerT]:
            context = make()
            return context, await context.__aenter__()

        self._context, self._inner = self._thread.call(enter)
        self._thread.closing(self, self.close)

    def close(self) -> None:
        """Close it and what it opened, as at the end of the `with` block. Harmless twice."""
        if self._is_closed:
            return
        self._thread.check()
        self._is_closed = True
        self._thread.closed(self)

        async def leave() -> None:
            await self._context.__aexit__(None, None, None)

        self._thread.call(leave)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close it."""
        self.close()

    def _call(
        self, work: Callable[[], Coroutine[None, None, T]], timeout_s: float | None = None
    ) -> T:
        self._check()
        return self._thread.call(work, timeout_s)

    def _run(self, work: Callable[[], T]) -> T:
        """Run a plain function on the loop's thread, where the state of all this lives."""

        async def run() -> T:
            return work()

        return self._call(run)

    def _check(self) -> None:
        if self._is_closed:
            raise BlockingError(f"this {type(self).__name__} is closed")
