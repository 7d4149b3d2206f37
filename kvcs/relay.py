"""A producer's link to its relay: kept up, with every namespace offered (MOQT-22 4.1)."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Self

from moqt.errors import MoqtError, printable

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager
    from types import TracebackType

    from kvcs.config import ProducerConfig
    from kvcs.stats import ProducerStats
    from moqt.asyncio.namespaces import NamespacePublication
    from moqt.asyncio.session import MoqtSession
    from moqt.types import TrackNamespace

__all__ = ["RelayLink"]

_log = logging.getLogger(__name__)


class RelayLink:
    """One session to a relay. When it is lost it is made again, and all namespaces with it.

    `async with` makes the first connection and raises what it raises; leaving it ends the link.
    """

    def __init__(
        self,
        dial: Callable[[], AbstractAsyncContextManager[MoqtSession]],
        *,
        config: ProducerConfig,
        stats: ProducerStats,
    ) -> None:
        self.session: MoqtSession | None = None
        """The session now; None while it is lost."""
        self._dial = dial
        self._config = config
        self._stats = stats
        self._stack = AsyncExitStack()
        self._offered: dict[TrackNamespace, NamespacePublication | None] = {}
        self._keeper: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        """Connect. Raises what `moqt.connect` raises."""
        self.session = await self._stack.enter_async_context(self._dial())
        self._keeper = asyncio.create_task(self._keep(), name="kvcs relay link")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the session and end the task that keeps it."""
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, *self._tasks, return_exceptions=True)
        self.session = None
        await self._stack.aclose()

    async def announce(self, namespace: TrackNamespace) -> None:
        """Offer a namespace, and again after each reconnection.

        While the relay is lost it returns at once. Raises: RequestRejected, TimedOut.
        """
        self._offered[namespace] = None
        if self.session is None:
            return
        try:
            await self._offer(self.session, namespace)
        except MoqtError:
            if self.session is not None and not self.session.is_closed:
                self._offered.pop(namespace, None)
                raise  # else the keeper offers it again

    async def withdraw(self, namespace: TrackNamespace) -> None:
        """Take a namespace back. Harmless when it is not offered."""
        offer = self._offered.pop(namespace, None)
        if offer is not None:
            await offer.__aexit__(None, None, None)

    def withdraw_soon(self, namespace: TrackNamespace) -> None:
        """As `withdraw`, for callers that cannot wait."""
        offer = self._offered.pop(namespace, None)
        if offer is not None:
            task = asyncio.create_task(offer.__aexit__(None, None, None))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _offer(self, session: MoqtSession, namespace: TrackNamespace) -> None:
        offer = session.publish_namespace(namespace)
        await offer.__aenter__()
        if namespace in self._offered:
            self._offered[namespace] = offer
        else:  # withdrawn meanwhile
            await offer.__aexit__(None, None, None)

    async def _keep(self) -> None:
        while True:
            assert self.session is not None
            ended = await self.session.wait_closed()
            self.session = None
            _log.warning("relay lost: %s %s", ended.code.name, printable(ended.reason))
            await self._stack.aclose()
            self._offered = dict.fromkeys(self._offered)
            self.session = await self._reconnect()
            self._stats.reconnects += 1
            for namespace in tuple(self._offered):
                try:
                    await self._offer(self.session, namespace)
                except MoqtError as error:
                    _log.warning("the relay refused %s: %s", namespace, error)
                    if self.session.is_closed:
                        break

    async def _reconnect(self) -> MoqtSession:
        delay_s = self._config.reconnect_delay_s
        while True:
            await asyncio.sleep(delay_s)
            try:
                return await self._stack.enter_async_context(self._dial())
            except MoqtError as error:
                _log.warning("the relay cannot be reached: %s", error)
            delay_s = min(max(2 * delay_s, 0.05), self._config.reconnect_max_s)
