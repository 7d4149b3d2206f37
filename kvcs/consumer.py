"""The consumer on the air: find a publication, take its layers as they come (KVCS 5)."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Self

from kvcs.assembly import UsableLayer
from kvcs.collector import Collector
from kvcs.config import ConsumerConfig
from kvcs.destinations import Destinations
from kvcs.discovery import Discovery
from kvcs.errors import (
    CompatibilityMismatch,
    InvalidName,
    PublicationNotFound,
    PublicationUnusable,
)
from kvcs.feeds import Feed
from kvcs.kvsp.identity import Prefix
from kvcs.manifest_feed import ManifestFeed
from kvcs.names import PublicationName
from kvcs.recovery import Endpoint, OtherPublication
from kvcs.stats import ConsumerStats, RetrievalStats
from kvcs.trust import Trust
from kvcs.watch import Watches
from moqt.asyncio.client import connect
from moqt.asyncio.config import TransportConfig
from moqt.errors import MoqtError, ResourceBusy
from moqt.uri import MoqtUri

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
    from types import TracebackType

    from kvcs.collector import Recompute
    from kvcs.destinations import Into
    from kvcs.errors import MissingObject
    from kvcs.keys import TrustedKeys
    from kvcs.kvsp.descriptor import Descriptor
    from kvcs.kvsp.identity import Scope, Tokens
    from kvcs.manifest import Manifest
    from kvcs.recovery import Source
    from kvcs.watch import Watching
    from moqt.asyncio.session import MoqtSession
    from moqt.session.authorization import AuthToken
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

    def __init__(
        self,
        url: str,
        *,
        scope: Scope,
        ca: Pem | None,
        insecure: bool,
        trust: Trust,
        config: ConsumerConfig,
        session_config: SessionConfig | None,
        transport_config: TransportConfig | None,
        auth_tokens: Sequence[AuthToken] = (),
    ) -> None:
        self.config = config
        self._url = url
        self._scope = scope
        self._ca = ca
        self._insecure = insecure
        self._trust = trust
        self._session_config = session_config
        self._transport_config = transport_config or TransportConfig()
        self._authority = MoqtUri.parse(url).authority.lower()
        self._auth_tokens = tuple(auth_tokens)
        self._stats = ConsumerStats()
        self._sessions: dict[str, MoqtSession] = {}
        self._stacks: dict[str, AsyncExitStack] = {}
        self._dialing: dict[str, asyncio.Lock] = {}
        self._watches = Watches()
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
    ) -> AsyncIterator[Consumer]:
        """Connect to a server or relay; leaving it closes all retrievals and the session.

        `ca`: the certificates to trust, a path or PEM; None: the public ones. `insecure` trusts
        anyone, and warns. `trusted_keys`: signed manifests must hold against one of them.
        `require_signature`: unsigned publications are refused, and layers are usable only once a
        signed manifest lists their digests. `auth_tokens` authorize the session with this endpoint
        and each request to it; they are sent to no other one (MOQT-22 8.9).
        Raises: what `moqt.connect` raises; ValueError for `require_signature` without keys.
        """
        consumer = cls(
            url,
            scope=scope,
            ca=ca,
            insecure=insecure,
            trust=Trust(trusted_keys, require_signature),
            config=config or ConsumerConfig(),
            session_config=session_config,
            transport_config=transport_config,
            auth_tokens=auth_tokens,
        )
        try:
            await consumer._dial(url, consumer._transport_config.handshake_timeout_s)
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
        return self._sessions[self._url]

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
    ) -> Retrieval:
        """Find a publication of the longest prefix of `tokens` there is, and begin to take it.

        `layers`: a range, or first and last inclusive; None: all. `blocks`: only so many from the
        start; None: all that the publication has. `into`: the caller's arrays by layer, K and V (V
        None where there is none), with `blocks` or more tokens; written as Objects come, so their
        content is valid only for layers that were handed over. Without it arrays are allocated.
        `sources`, in order, and `recompute` are for what goes missing; a URL is another endpoint of
        the same publication. `publication`: its full namespace, without discovery.
        Returns when a manifest that holds is there; layers come by the `Retrieval`.
        Cancelled: nothing is left.
        Raises: PublicationNotFound, PublicationUnusable (the last one tried), TensorMismatch,
        InvalidTokens, ValueError for layers or blocks out of range, and MoqtError.
        """
        first_layer, last_layer = _layer_range(layers, descriptor.layers)
        if len(self._retrievals) >= self.config.max_retrievals:
            raise ResourceBusy(
                f"{len(self._retrievals)} retrievals are open (max_retrievals is "
                f"{self.config.max_retrievals})"
            )
        prefix = Prefix.of(self._scope, descriptor, tokens, extras)
        if blocks is not None and not 1 <= blocks <= prefix.blocks:
            raise ValueError(f"blocks is {blocks}, expected 1 to {prefix.blocks}")
        deadline_s = self.config.recovery_deadline_s
        if recovery_deadline_s is not None:
            if recovery_deadline_s < 0:
                raise ValueError(f"recovery_deadline_s is {recovery_deadline_s}, expected >= 0")
            deadline_s = recovery_deadline_s

        def begin(feed: Feed, covered: int) -> tuple[Collector, int]:
            taken = covered if blocks is None else min(blocks, covered)
            collector = Collector(
                _Network(self, prefix, finder),
                prefix=prefix,
                first_layer=first_layer,
                last_layer=last_layer,
                blocks=taken,
                destinations=Destinations(
                    descriptor,
                    first_layer=first_layer,
                    last_layer=last_layer,
                    tokens=taken * descriptor.block_tokens,
                    into=into,
                ),
                require_listed=self._trust.require_signature,
                sources=[Endpoint(s) if isinstance(s, str) else s for s in sources],
                recompute=recompute,
                recovery_deadline_s=deadline_s,
                config=self.config,
                threads=self._threads,
                stats=RetrievalStats(),
            )
            collector.begin(feed)
            return collector, taken

        finder = _Finder(self, prefix, begin)
        try:
            if publication is not None:
                collector, taken = await finder.take(publication)
            else:
                timeout_s = self.config.discovery_timeout_s
                if discovery_timeout_s is not None:
                    timeout_s = discovery_timeout_s
                collector, taken = await finder.find(timeout_s)
        except BaseException:
            await finder.close()
            raise
        retrieval = Retrieval(collector, prefix, finder.watching, blocks=taken)
        self._retrievals.add(retrieval)
        retrieval._task.add_done_callback(lambda _: self._ended(retrieval))
        return retrieval

    def _ended(self, retrieval: Retrieval) -> None:
        self._retrievals.discard(retrieval)
        self._stats.add(retrieval.stats)
        if retrieval._collector.error is None and not retrieval.missing:
            self._stats.completed += 1
        else:
            self._stats.incomplete += 1

    # Sessions

    async def _session(self, url: str | None) -> MoqtSession:
        """Return a session to an endpoint; one that is lost is made again."""
        url = url or self._url
        session = self._sessions.get(url)
        if session is not None and not session.is_closed:
            return session
        async with self._dialing.setdefault(url, asyncio.Lock()):
            session = self._sessions.get(url)
            if session is not None and not session.is_closed:
                return session
            return await self._dial(url, self.config.connect_timeout_s)

    async def _dial(self, url: str, timeout_s: float) -> MoqtSession:
        old = self._stacks.pop(url, None)
        if old is not None:
            await old.aclose()
        if url != self._url and len(self._stacks) > self.config.max_endpoints:
            raise ResourceBusy(f"connections to {len(self._stacks) - 1} endpoints (max_endpoints)")
        # A source of another authority is not whom the tokens are for.
        is_own = MoqtUri.parse(url).authority.lower() == self._authority
        tokens = self._auth_tokens if is_own else ()
        async with AsyncExitStack() as stack:
            session = await stack.enter_async_context(
                connect(
                    url,
                    ca=self._ca,
                    insecure=self._insecure,
                    config=self._session_config,
                    transport_config=replace(self._transport_config, handshake_timeout_s=timeout_s),
                    tokens=tokens,
                    request_tokens=tokens,
                )
            )
            self._stacks[url] = stack.pop_all()
        self._sessions[url] = session
        return session

    async def _close(self) -> None:
        for retrieval in tuple(self._retrievals):
            await retrieval.close()
        await self._watches.close()
        stacks, self._stacks = self._stacks, {}
        for stack in stacks.values():
            await stack.aclose()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _open_feed(self, prefix: Prefix, namespace: TrackNamespace, url: str | None) -> Feed:
        """Return a publication with a first manifest that holds. Raises: see `Network`."""
        session = await self._session(url)
        manifests = ManifestFeed(
            session,
            namespace,
            compatibility_id=prefix.compatibility_id,
            trust=self._trust,
            config=self.config,
        )
        try:
            await manifests.__aenter__()
            manifest = await manifests.first()
        except BaseException:
            await manifests.__aexit__(None, None, None)
            raise
        return Feed(session, namespace, manifests, manifest, url)

    def __repr__(self) -> str:
        return f"<Consumer scope_id={self.scope_id.hex()} retrievals={len(self._retrievals)}>"


class _Finder:
    """Finds the publication that a retrieval begins with (KVCS 5.1).

    `begin` begins with a publication of so many blocks: it returns the collector and the blocks
    that are taken, or raises PublicationUnusable, and the next publication is tried.
    """

    def __init__(
        self,
        consumer: Consumer,
        prefix: Prefix,
        begin: Callable[[Feed, int], tuple[Collector, int]],
    ) -> None:
        self._consumer = consumer
        self._prefix = prefix
        self._begin = begin
        config = consumer.config
        self.discovery = Discovery(
            prefix,
            form=config.namespace_form,
            max_prefixes=config.max_prefixes,
            max_publications=config.max_publications,
            settle_s=config.discovery_settle_s,
        )
        self.watching: Watching | None = None

    async def take(self, namespace: TrackNamespace) -> tuple[Collector, int]:
        """Begin with a publication whose namespace is known. Raises: InvalidName, and as `find`."""
        form = self._consumer.config.namespace_form
        name = PublicationName.parse(namespace, form)
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

    async def _begin_with(self, namespace: TrackNamespace, blocks: int) -> tuple[Collector, int]:
        feed = await self._consumer._open_feed(self._prefix, namespace, None)
        try:
            return self._begin(feed, blocks)
        except BaseException:
            await feed.close()
            raise

    async def find(self, timeout_s: float) -> tuple[Collector, int]:
        """Begin with the first usable publication of the longest prefix.

        Raises: PublicationNotFound when none appears in time, or what was wrong with the last one.
        """
        loop = asyncio.get_running_loop()
        problem: Exception | None = None
        session = await self._consumer._session(None)
        self.watching = self._consumer._watches.watching(session, self.discovery)
        deadline = loop.time() + timeout_s
        last_try = deadline + self._consumer.config.manifest_timeout_s
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
                    session.raise_if_closed()
                    continue
                await self.watching.keep_only(found.blocks)
                return begun
            settles = self.discovery.next_deadline(now)
            is_settling = settles is not None or self.watching.is_asking
            if self.discovery.is_exhausted or (now >= deadline and not is_settling):
                break
            await self.watching.wait_until(deadline if settles is None else settles)
            session.raise_if_closed()
        problem = problem or self.watching.denial
        if problem is not None:
            raise problem
        raise PublicationNotFound(
            f"nobody publishes this prompt's {self._prefix.blocks} blocks or a shorter prefix of "
            f"them (waited {timeout_s:g} s)"
        )

    async def close(self) -> None:
        """Ask for nothing more."""
        if self.watching is not None:
            await self.watching.close()


class _Network:
    """A consumer as one retrieval's recovery sees it."""

    def __init__(self, consumer: Consumer, prefix: Prefix, finder: _Finder) -> None:
        self._consumer = consumer
        self._prefix = prefix
        self._finder = finder

    async def open_feed(self, namespace: TrackNamespace, url: str | None) -> Feed:
        """Connect if need be and return a publication with a first manifest that holds."""
        return await self._consumer._open_feed(self._prefix, namespace, url)

    def others(self) -> Iterable[Source]:
        """Return the other publications of the same prefix."""
        return [OtherPublication(found.namespace) for found in self._finder.discovery.others()]


def _layer_range(layers: range | tuple[int, int] | None, count: int) -> tuple[int, int]:
    """Return first and last layer, inclusive. Raises: ValueError."""
    if layers is None:
        return 0, count - 1
    if not isinstance(layers, range | tuple):
        raise ValueError(f"layers is {layers!r}, expected a range, or (first, last)")
    if isinstance(layers, range):
        if layers.step != 1 or not layers:
            raise ValueError(f"layers is {layers}, expected a range of consecutive layers")
        first, last = layers.start, layers.stop - 1
    else:
        first, last = layers
    if not 0 <= first <= last < count:
        raise ValueError(f"layers {first}..{last} are not among the {count} layers 0..{count - 1}")
    return first, last
