"""Namespace subscriptions of a consumer, shared by its retrievals (KVCS 5.1).

MOQT refuses a second SUBSCRIBE_NAMESPACE of one prefix in a session (PREFIX_OVERLAP), so two
retrievals that look for the same prompt share one. It ends when nobody watches any more.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from moqt.codes import RequestErrorCode
from moqt.errors import MoqtError, RequestRejected
from moqt.events import NamespaceFound

if TYPE_CHECKING:
    from kvcs.discovery import Candidate, Discovery
    from moqt.asyncio.following_client import Client
    from moqt.types import TrackNamespace

__all__ = ["Watches", "Watching"]

_log = logging.getLogger(__name__)

_DENIALS = frozenset(
    {
        RequestErrorCode.UNAUTHORIZED,
        RequestErrorCode.MALFORMED_AUTH_TOKEN,
        RequestErrorCode.EXPIRED_AUTH_TOKEN,
    }
)
"""Refusals of whoever asks, rather than of what is asked for."""


class _Watch:
    """One SUBSCRIBE_NAMESPACE, and what it has reported."""

    def __init__(self, client: Client, prefix: TrackNamespace) -> None:
        self.client = client
        self.prefix = prefix
        self.found: dict[TrackNamespace, None] = {}
        self.answered_at: float | None = None
        self.is_over = False
        self.watchers: dict[Watching, Candidate] = {}
        self.task = asyncio.create_task(self._run(), name=f"watch {prefix}")

    async def _run(self) -> None:
        try:
            async with self.client.subscribe_namespace(self.prefix) as subscription:
                self.answered_at = asyncio.get_running_loop().time()
                for watching, candidate in self.watchers.items():
                    watching.answered(candidate, self.answered_at)
                async for item in subscription:
                    if isinstance(item, NamespaceFound):
                        self.found[item.namespace] = None
                        for watching, candidate in self.watchers.items():
                            watching.found(candidate, item.namespace)
                    else:
                        self.found.pop(item.namespace, None)
                        for watching, candidate in self.watchers.items():
                            watching.gone(candidate, item.namespace)
        except MoqtError as error:
            _log.info("namespace subscription %s: %s", self.prefix, error)
            if isinstance(error, RequestRejected) and error.code in _DENIALS:
                for watching in self.watchers:
                    watching.denial = error
        finally:
            self.is_over = True
            for watching, candidate in self.watchers.items():
                watching.failed(candidate)

    def add(self, watching: Watching, candidate: Candidate) -> None:
        """Tell `watching` what is known, and from now on what comes."""
        self.watchers[watching] = candidate
        if self.answered_at is not None:
            watching.answered(candidate, self.answered_at)
        for namespace in self.found:
            watching.found(candidate, namespace)


class Watches:
    """All namespace subscriptions of a consumer."""

    def __init__(self) -> None:
        self._watches: dict[TrackNamespace, _Watch] = {}

    def watching(self, client: Client, discovery: Discovery) -> Watching:
        """Return the watching of one retrieval; it asks for nothing yet."""
        return Watching(self, client, discovery)

    def add(self, client: Client, candidate: Candidate, watching: Watching) -> None:
        """Watch a prefix for `watching`."""
        prefix = candidate.namespace_prefix
        watch = self._watches.get(prefix)
        if watch is None or watch.is_over or watch.client is not client:
            watch = self._watches[prefix] = _Watch(client, prefix)
        watch.add(watching, candidate)

    async def remove(self, candidate: Candidate, watching: Watching) -> None:
        """Watch a prefix for `watching` no more."""
        prefix = candidate.namespace_prefix
        watch = self._watches.get(prefix)
        if watch is None or watch.watchers.pop(watching, None) is None or watch.watchers:
            return
        del self._watches[prefix]
        await _end(watch)

    async def close(self) -> None:
        """End all."""
        watches, self._watches = self._watches, {}
        for watch in watches.values():
            await _end(watch)


async def _end(watch: _Watch) -> None:
    watch.task.cancel()
    await asyncio.gather(watch.task, return_exceptions=True)


class Watching:
    """What one retrieval watches: it feeds a `Discovery`."""

    def __init__(self, watches: Watches, client: Client, discovery: Discovery) -> None:
        self._watches = watches
        self._client = client
        self._discovery = discovery
        self._candidates: dict[int, Candidate] = {}
        self._unanswered: set[int] = set()
        self._news = asyncio.Event()
        self.denial: RequestRejected | None = None
        """That the peer lets us see no publications; None: it has not said so."""

    @property
    def is_asking(self) -> bool:
        """Whether a request has no answer yet; requests have a timeout, so not for ever."""
        return bool(self._unanswered)

    def open_due(self, now: float) -> None:
        """Ask for the prefixes that are due."""
        for candidate in self._discovery.take_due(now):
            self._candidates[candidate.blocks] = candidate
            self._unanswered.add(candidate.blocks)
            self._watches.add(self._client, candidate, self)

    async def wait_until(self, when: float) -> None:
        """Wait for news, no longer than until `when` of the loop's clock."""
        self._news.clear()
        try:
            async with asyncio.timeout_at(when):
                await self._news.wait()
        except TimeoutError:
            pass

    async def keep_only(self, blocks: int) -> None:
        """Go on watching one prefix alone."""
        for other in [other for other in self._candidates if other != blocks]:
            await self._watches.remove(self._candidates.pop(other), self)

    async def close(self) -> None:
        """Watch nothing more."""
        while self._candidates:
            _, candidate = self._candidates.popitem()
            await self._watches.remove(candidate, self)

    # What watches tell

    def answered(self, candidate: Candidate, now: float) -> None:
        """A request was accepted."""
        self._unanswered.discard(candidate.blocks)
        self._discovery.answered(candidate, now)
        self._news.set()

    def failed(self, candidate: Candidate) -> None:
        """A request was refused, or ended."""
        self._unanswered.discard(candidate.blocks)
        self._discovery.failed(candidate)
        self._news.set()

    def found(self, candidate: Candidate, namespace: TrackNamespace) -> None:
        """A namespace was reported."""
        self._discovery.found(candidate, namespace)
        self._news.set()

    def gone(self, candidate: Candidate, namespace: TrackNamespace) -> None:
        """A namespace was withdrawn."""
        self._discovery.gone(candidate, namespace)
        self._news.set()
