"""A producer's link to its relay: kept up, with every namespace offered (MOQT-22 4.1, 9.2)."""

from __future__ import annotations

import asyncio
import logging
import math
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Self

from moqt.errors import MoqtError, printable
from moqt.uri import MoqtUri

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager
    from types import TracebackType

    from kvcs.config import ProducerConfig
    from kvcs.stats import ProducerStats
    from moqt.asyncio.namespaces import NamespacePublication
    from moqt.asyncio.session import MoqtSession
    from moqt.events import GoawayReceived
    from moqt.types import TrackNamespace

__all__ = ["RelayLink"]

_log = logging.getLogger(__name__)


class RelayLink:
    """One session to a relay. When it is lost it is made again, and all namespaces with it.

    When the relay asks to leave it by GOAWAY, the next one is made and told everything first; what
    the relay takes from the old one is served as long as the relay gave, or `reconnect_max_s`. A
    relay that sends us on again and again is followed ever more slowly, as one that is lost.

    `async with` makes the first connection and raises what it raises; leaving it ends the link.
    """

    def __init__(
        self,
        home: MoqtUri,
        dial: Callable[[MoqtUri], AbstractAsyncContextManager[MoqtSession]],
        *,
        config: ProducerConfig,
        stats: ProducerStats,
    ) -> None:
        self.session: MoqtSession | None = None
        """The session now; None while it is lost."""
        self._home = self._uri = home
        self._dial = dial
        self._config = config
        self._stats = stats
        self._stack = AsyncExitStack()
        self._offered: dict[TrackNamespace, NamespacePublication | None] = {}
        self._keeper: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._leaving: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        """Connect. Raises what `moqt.connect` raises."""
        self.session = await self._stack.enter_async_context(self._dial(self._home))
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
            for task in (self._keeper, *self._leaving):
                task.cancel()
            await asyncio.gather(self._keeper, *self._leaving, *self._tasks, return_exceptions=True)
        self.session = None
        await self._stack.aclose()

    async def advertise(self, namespace: TrackNamespace) -> None:
        """Offer a namespace, and again after each reconnection.

        While the relay is lost or being left it returns at once. Raises: RequestRejected, TimedOut.
        """
        self._offered[namespace] = None
        if self.session is None or self.session.goaway_received is not None:
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

    async def _offer_all(self, session: MoqtSession) -> None:
        for namespace in tuple(self._offered):
            try:
                await self._offer(session, namespace)
            except MoqtError as error:
                _log.warning("the relay refused %s: %s", namespace, error)
                if session.is_closed:
                    break

    async def _keep(self) -> None:
        clock = asyncio.get_running_loop().time
        moved_at, pause_s = -math.inf, 0.0
        while True:
            assert self.session is not None
            goaway = await self.session.wait_goaway()
            if goaway is not None:
                config = self._config
                is_hasty = clock() - moved_at < config.reconnect_max_s
                pause_s = max(2 * pause_s, config.reconnect_delay_s) if is_hasty else 0.0
                await asyncio.sleep(min(pause_s, config.reconnect_max_s))
                moved_at = clock()
                self._uri = self._target(goaway)
                if not self.session.is_closed and await self._move(self.session, goaway):
                    continue
            ended = await self.session.wait_closed()
            self.session = None
            _log.warning("relay lost: %s %s", ended.code.name, printable(ended.reason))
            await self._stack.aclose()
            self._offered = dict.fromkeys(self._offered)
            self.session = await self._reconnect()
            self._stats.reconnects += 1
            await self._offer_all(self.session)

    async def _reconnect(self) -> MoqtSession:
        delay_s = self._config.reconnect_delay_s
        while True:
            await asyncio.sleep(delay_s)
            try:
                return await self._stack.enter_async_context(self._dial(self._uri))
            except MoqtError as error:
                _log.warning("the relay cannot be reached: %s", error)
                self._uri = self._home  # where a GOAWAY led is gone
            delay_s = min(max(2 * delay_s, 0.05), self._config.reconnect_max_s)

    # GOAWAY

    def _target(self, goaway: GoawayReceived) -> MoqtUri:
        if not goaway.new_session_uri:
            return self._uri
        try:
            return MoqtUri.parse(goaway.new_session_uri)
        except ValueError as error:
            _log.warning("the relay named no usable address: %s", printable(str(error)))
            return self._uri

    async def _move(self, old: MoqtSession, goaway: GoawayReceived) -> bool:
        """Go on at the next session; False when it can't be had while the old one lasts."""
        stack = AsyncExitStack()
        try:
            following = await stack.enter_async_context(self._dial(self._uri))
        except MoqtError as error:
            _log.warning("the next relay cannot be reached: %s", error)
            return False
        self._stack, old_stack = stack, self._stack
        self.session = following
        offers = [offer for offer in self._offered.values() if offer is not None]
        self._offered = dict.fromkeys(self._offered)
        self._stats.moves += 1
        task = asyncio.create_task(
            self._leave(old, old_stack, offers, goaway.timeout_ms, following)
        )
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)
        return True

    async def _leave(
        self,
        old: MoqtSession,
        stack: AsyncExitStack,
        offers: list[NamespacePublication],
        timeout_ms: int,
        following: MoqtSession,
    ) -> None:
        """Tell the next session everything, then take it back from the old one and leave that."""
        try:
            await self._offer_all(following)
            for offer in offers:
                await offer.__aexit__(None, None, None)
            if old.served_requests():
                async with asyncio.timeout(timeout_ms / 1000 or self._config.reconnect_max_s):
                    await old.wait_closed()
        except TimeoutError:
            pass
        finally:
            await stack.aclose()
