"""The consumer on the air: find a publication, take its layers as they come (KVCS 5)."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Self

from kvcs.assembly import UsableLayer
from kvcs.collector import Collector
from kvcs.config import ConsumerConfig
from kvcs.demand import Demand, require_room
from kvcs.destinations import Destinations
from kvcs.endpoints import Endpoints
from kvcs.finder import Finder
from kvcs.recovery import Endpoint
from kvcs.stats import ConsumerStats, RetrievalStats
from kvcs.striping.shares import Striping
from kvcs.trust import Trust

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection, Mapping, Sequence
    from types import TracebackType

    from kvcs.attempts import Recompute
    from kvcs.destinations import Into
    from kvcs.errors import MissingObject
    from kvcs.feeds import Feed
    from kvcs.keys import TrustedKeys
    from kvcs.kvsp.descriptor import Descriptor
    from kvcs.kvsp.identity import Prefix, Scope, Tokens
    from kvcs.manifest import Manifest
    from kvcs.recovery import Source
    from kvcs.watch import Watching
    from moqt.asyncio.config import TransportConfig
    from moqt.asyncio.session import MoqtSession
    from moqt.session.access.authorization import AuthToken
    from moqt.session.config import SessionConfig
    from moqt.tls import Pem
    from moqt.types import TrackNamespace

__all__ = ["Consumer", "Retrieval", "UsableLayer"]


class Retrieval:
    """A cache on its way: an async iterator of usable layers, in layer order (KVCS 5.4).

    It collects by itself, whether or not it is iterated. A layer comes as soon as all its Objects
    are verified and the layers before it came. What cannot be had is recovered within
    `recovery_deadline_s`; at the end, usable layers behind missing ones come too, and then
    IncompleteRetrieval says exactly what is missing. Close it (`async with`, or `close`) when it is
    not read to the end; the consumer's end closes it too.
    """

    def __init__(
        self, collector: Collector, prefix: Prefix, watching: Watching | None, *, blocks: int
    ) -> None:
        self.blocks = blocks
        """Blocks that it brings, from the start of the context."""
        self._collector = collector
        self._prefix = prefix
        self._watching = watching
        self._task = asyncio.create_task(self._run(), name="kvcs retrieval")

    # Queries

    @property
    def tokens(self) -> int:
        """Tokens that it brings, from the start of the context: those of `blocks`."""
        return self.blocks * self._prefix.descriptor.block_tokens

    @property
    def layers(self) -> range:
        """The layers asked for."""
        return self._collector.assembly.layers

    @property
    def publication(self) -> TrackNamespace:
        """The namespace of the publication now in use."""
        return self._collector.feed.namespace

    @property
    def manifest(self) -> Manifest:
        """The newest manifest of the publication now in use."""
        return self._collector.feed.manifest

    @property
    def is_signed(self) -> bool:
        """Whether the publication has a signed manifest (checked where there are trusted keys)."""
        return self._collector.feed.manifests.is_signed

    @property
    def key_id(self) -> bytes | None:
        """The kid of the manifest's signature; None: it has none."""
        return self._collector.feed.manifests.key_id

    @property
    def is_over(self) -> bool:
        """Whether nothing more will come; usable layers may still wait to be taken."""
        return self._collector.is_over

    @property
    def missing(self) -> tuple[MissingObject, ...]:
        """Every wanted Object that is not verified: when it is over, exactly what is missing."""
        return self._collector.assembly.missing()

    @property
    def stats(self) -> RetrievalStats:
        """Counters of this retrieval."""
        return self._collector.stats

    @property
    def arrived_at(self) -> Mapping[int, float]:
        """By layer: `time.monotonic()` when the last of its Objects was verified, so far."""
        return self._collector.arrived_at

    # Layers

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> UsableLayer:
        """Return the next usable layer. Cancelled: none is lost.

        Raises: IncompleteRetrieval after the last usable layer when Objects are missing,
        PublicationUnusable when the publication turned out to be so.
        """
        collector = self._collector
        while not collector.ready:
            if collector.is_over:
                if collector.error is not None:
                    raise collector.error
                raise StopAsyncIteration
            await collector.news()
        return collector.ready.popleft()

    async def finished(self) -> None:
        """Wait until everything came, without taking the layers; for `into`. Raises: as iterating.

        Cancelled: the retrieval goes on.
        """
        while not self._collector.is_over:
            await asyncio.shield(self._task)
        if self._collector.error is not None:
            raise self._collector.error

    async def close(self) -> None:
        """End it: requests are cancelled, and nothing is written to `into` any more."""
        if not self._task.done():
            self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close it."""
        await self.close()

    async def _run(self) -> None:
        try:
            await self._collector.run()
        finally:
            if self._watching is not None:
                await self._watching.close()


class Consumer:
    """Retrieves caches of one scope from one server or relay. Made by `connect`."""

    def __init__(self, endpoints: Endpoints, *, scope: Scope, config: ConsumerConfig) -> None:
        self.config = config
        self._endpoints = endpoints
        self._scope = scope
        self._stats = ConsumerStats()
        self._retrievals: set[Retrieval] = set()
        self._threads = ThreadPoolExecutor(config.worker_threads, "kvcs-consumer")

    @classmethod
    @asynccontextmanager
    async def connect(
        cls,
        url: str,
        *,
        scope: Scope,
        ca: Pem | None = None,
        insecure: bool = False,
        trusted_keys: TrustedKeys | None = None,
        require_signature: bool = False,
        config: ConsumerConfig | None = None,
        session_config: SessionConfig | None = None,
        transport_config: TransportConfig | None = None,
        auth_tokens: Sequence[AuthToken] = (),
        trusted_authorities: Collection[str] = (),
    ) -> AsyncIterator[Consumer]:
        """Connect to a server or relay; leaving it closes all retrievals and the session.

        `ca`: the certificates to trust, a path or PEM; None: the public ones. `insecure` trusts
        anyone, and warns. `trusted_keys`: signed manifests must hold against one of them.
        `require_signature`: unsigned publications are refused, and layers are usable only once a
        signed manifest lists their digests. `auth_tokens` authorize the session with this endpoint
        and each request to it; of those that peers or `sources` name, only `trusted_authorities`
        get them too, each "host:port" (MOQT-22 8.9).
        Raises: what `moqt.connect` raises; ValueError for `require_signature` without keys.
        """
        config = config or ConsumerConfig()
        endpoints = Endpoints(
            url,
            config=config,
            trust=Trust(trusted_keys, require_signature),
            ca=ca,
            insecure=insecure,
            session_config=session_config,
            transport_config=transport_config,
            auth_tokens=auth_tokens,
            trusted_authorities=trusted_authorities,
        )
        consumer = cls(endpoints, scope=scope, config=config)
        try:
            await endpoints.place()
            yield consumer
        finally:
            await consumer._close()

    # Queries

    @property
    def scope_id(self) -> bytes:
        """The Scope ID that publications are looked for under."""
        return self._scope.scope_id

    @property
    def session(self) -> MoqtSession:
        """The session with the consumer's own endpoint, the last one if it is lost."""
        return self._endpoints.session

    @property
    def stats(self) -> ConsumerStats:
        """Counters over all retrievals, those under way included."""
        total = replace(self._stats, rejected=self._stats.rejected.copy())
        total.retrievals = len(self._retrievals)
        for retrieval in self._retrievals:
            total.add(retrieval.stats)
        return total

    # Commands

    async def retrieve(
        self,
        descriptor: Descriptor,
        tokens: Tokens,
        *,
        layers: range | tuple[int, int] | None = None,
        blocks: int | None = None,
        into: Into | None = None,
        sources: Sequence[Source | str] = (),
        recompute: Recompute | None = None,
        recovery_deadline_s: float | None = None,
        publication: TrackNamespace | None = None,
        discovery_timeout_s: float | None = None,
        extras: Mapping[int, bytes] | None = None,
        sessions: int | Striping = 1,
    ) -> Retrieval:
        """Find a publication of the longest prefix of `tokens` there is, and begin to take it.

        `layers`: a range, or first and last inclusive; None: all. `blocks`: only so many from the
        start; None: all that the publication has. `into`: the caller's arrays by layer, K and V (V
        None where there is none), with `blocks` or more tokens; written as Objects come, so their
        content is valid only for layers that were handed over. Without it arrays are allocated.
        `sources`, in order, and `recompute` are for what goes missing; a URL is another endpoint of
        the same publication. `publication`: its full namespace, without discovery. `sessions`: so
        many connections share the Objects, each layer in equal runs of blocks; a lost one's share
        goes to the others. They stay open for later retrievals. (A `Striping` is for one process
        of several: `kvcs.striping`.)
        Returns when a manifest that holds is there; layers come by the `Retrieval`.
        Cancelled: nothing is left.
        Raises: PublicationNotFound, PublicationUnusable (the last one tried), TensorMismatch,
        InvalidTokens, ValueError for layers, blocks or sessions out of range, and MoqtError.
        """
        striping = sessions if isinstance(sessions, Striping) else self._striping(sessions)
        require_room(len(self._retrievals), self.config)
        demand = Demand.checked(
            self._scope, descriptor, tokens, layers=layers, blocks=blocks, extras=extras
        )
        deadline_s = self.config.recovery_deadline_s
        if recovery_deadline_s is not None:
            if recovery_deadline_s < 0:
                raise ValueError(f"recovery_deadline_s is {recovery_deadline_s}, expected >= 0")
            deadline_s = recovery_deadline_s

        def begin(feed: Feed, covered: int) -> tuple[Collector, int]:
            taken = demand.taken(covered)
            first_layer, last_layer = demand.layers[0], demand.layers[-1]
            collector = Collector(
                feed,
                endpoints=self._endpoints,
                prefix=demand.prefix,
                first_layer=first_layer,
                last_layer=last_layer,
                blocks=taken,
                destinations=Destinations(
                    descriptor,
                    first_layer=first_layer,
                    last_layer=last_layer,
                    tokens=taken * descriptor.block_tokens,
                    into=into,
                    threads=self._threads,
                ),
                require_listed=self._endpoints.trust.require_signature,
                sources=[Endpoint(s) if isinstance(s, str) else s for s in sources],
                others=finder.others,
                recompute=recompute,
                recovery_deadline_s=deadline_s,
                config=self.config,
                threads=self._threads,
                stats=RetrievalStats(),
                striping=striping.settled(
                    feed.manifest, blocks=taken, max_filter_ranges=feed.max_filter_ranges
                ),
            )
            return collector, taken

        finder = Finder(self._endpoints, demand.prefix, begin, self.config)
        try:
            if publication is not None:
                collector, taken = await finder.take(publication)
            else:
                collector, taken = await finder.find(discovery_timeout_s)
        except BaseException:
            await finder.close()
            raise
        retrieval = Retrieval(collector, demand.prefix, finder.watching, blocks=taken)
        self._retrievals.add(retrieval)
        retrieval._task.add_done_callback(lambda _: self._ended(retrieval))
        return retrieval

    def _striping(self, sessions: int) -> Striping:
        """Return the striping over so many sessions. Raises: ValueError."""
        if not 1 <= sessions <= self.config.max_sessions:
            raise ValueError(
                f"sessions is {sessions}, expected 1 to {self.config.max_sessions} (max_sessions)"
            )
        return Striping(parts=sessions, lanes=sessions)

    def _ended(self, retrieval: Retrieval) -> None:
        self._retrievals.discard(retrieval)
        self._stats.add(retrieval.stats)
        if retrieval._collector.error is None and not retrieval.missing:
            self._stats.completed += 1
        else:
            self._stats.incomplete += 1

    async def _close(self) -> None:
        for retrieval in tuple(self._retrievals):
            await retrieval.close()
        await self._endpoints.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def __repr__(self) -> str:
        return f"<Consumer scope_id={self.scope_id.hex()} retrievals={len(self._retrievals)}>"
