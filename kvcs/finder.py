"""Finds the publication that a retrieval begins with (KVCS 5.1)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Generic, TypeVar

from kvcs.discovery import Discovery
from kvcs.errors import (
    CompatibilityMismatch,
    InvalidName,
    PublicationNotFound,
    PublicationUnusable,
)
from kvcs.names import PublicationName
from kvcs.recovery import OtherPublication
from moqt.errors import MoqtError

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvcs.config import ConsumerConfig
    from kvcs.endpoints import Endpoints
    from kvcs.feeds import Feed
    from kvcs.kvsp.identity import Prefix
    from kvcs.recovery import Source
    from kvcs.watch import Watching
    from moqt.types import TrackNamespace

__all__ = ["Finder"]

BegunT = TypeVar("BegunT")


class Finder(Generic[BegunT]):
    """Finds the publication that a retrieval begins with (KVCS 5.1).

    `begin` begins with a publication of so many blocks: it returns what `take` and `find` return,
    or raises PublicationUnusable, and the next publication is tried.
    """

    def __init__(
        self,
        endpoints: Endpoints,
        prefix: Prefix,
        begin: Callable[[Feed, int], BegunT],
        config: ConsumerConfig,
    ) -> None:
        self._endpoints = endpoints
        self._prefix = prefix
        self._begin = begin
        self._config = config
        self.discovery = Discovery(
            prefix,
            form=config.namespace_form,
            max_prefixes=config.max_prefixes,
            max_publications=config.max_publications,
            settle_s=config.discovery_settle_s,
        )
        self.watching: Watching | None = None

    async def take(self, namespace: TrackNamespace) -> BegunT:
        """Begin with a publication whose namespace is known. Raises: InvalidName, and as `find`."""
        name = PublicationName.parse(namespace, self._config.namespace_form)
        if name.scope_id != self._prefix.scope_id:
            raise InvalidName("scope_id", "is another scope's")
        if name.compatibility_id != self._prefix.compatibility_id:
            raise CompatibilityMismatch(
                expected=name.compatibility_id, computed=self._prefix.compatibility_id
            )
        covered = self._prefix.blocks
        if name.anchor_key in self._prefix.keys:
            covered = self._prefix.keys.index(name.anchor_key) + 1
        return await self._begin_with(namespace, covered)

    async def _begin_with(self, namespace: TrackNamespace, blocks: int) -> BegunT:
        feed = await self._endpoints.open_feed(self._prefix, namespace)
        try:
            return self._begin(feed, blocks)
        except BaseException:
            await feed.close()
            raise

    async def find(self, timeout_s: float | None = None) -> BegunT:
        """Begin with the first usable publication of the longest prefix.

        `timeout_s` None: `discovery_timeout_s`.
        Raises: PublicationNotFound when none appears in time, or what was wrong with the last one.
        """
        if timeout_s is None:
            timeout_s = self._config.discovery_timeout_s
        loop = asyncio.get_running_loop()
        problem: Exception | None = None
        self.watching = await self._endpoints.watching(self.discovery)
        deadline = loop.time() + timeout_s
        last_try = deadline + self._config.manifest_timeout_s
        while True:
            now = loop.time()
            if problem is not None and now >= last_try:
                break  # many dead publications, each of which took its time
            self.watching.open_due(now)
            found = self.discovery.next(now)
            if found is not None:
                self.discovery.tried(found)
                try:
                    begun = await self._begin_with(found.namespace, found.blocks)
                except (PublicationUnusable, MoqtError) as error:
                    problem = error
                    self._endpoints.raise_if_lost()
                    continue
                await self.watching.keep_only(found.blocks)
                return begun
            settles = self.discovery.next_deadline(now)
            is_settling = settles is not None or self.watching.is_asking
            if self.discovery.is_exhausted or (now >= deadline and not is_settling):
                break
            await self.watching.wait_until(deadline if settles is None else settles)
            self._endpoints.raise_if_lost()
        problem = problem or self.watching.denial
        if problem is not None:
            raise problem
        raise PublicationNotFound(
            f"nobody publishes this prompt's {self._prefix.blocks} blocks or a shorter prefix of "
            f"them (waited {timeout_s:g} s)"
        )

    def others(self) -> list[Source]:
        """Return the other publications of the same prefix that were found so far."""
        return [OtherPublication(found.namespace) for found in self.discovery.others()]

    async def close(self) -> None:
        """Ask for nothing more."""
        if self.watching is not None:
            await self.watching.close()
