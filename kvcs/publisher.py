"""The producer on the air: it serves publications itself, or offers them to a relay (KVCS 3)."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, TypeVar

from kvcs.config import ProducerConfig
from kvcs.errors import ProductionError
from kvcs.jobs import SharedRun, patient_threads, processors, run_here
from kvcs.kvsp.identity import Prefix
from kvcs.loan import Loan
from kvcs.names import PublicationName, new_publication_id
from kvcs.publication import Publication, PublicationState, Segment
from kvcs.stats import ProducerStats
from moqt.codes import PublishDoneCode
from moqt.session.publish.directory import TrackDirectory

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence

    from kvcs.jobs import Run
    from kvcs.keys import ProducerKey
    from kvcs.kvsp.descriptor import Descriptor
    from kvcs.kvsp.identity import Scope, Tokens
    from kvcs.relay import RelayLink
    from moqt.asyncio.config import TransportConfig
    from moqt.asyncio.server import Server
    from moqt.asyncio.session import MoqtSession
    from moqt.session.access.authorization import AuthToken, TokenPolicy
    from moqt.session.config import SessionConfig
    from moqt.tls import Pem

__all__ = ["Loan", "Producer", "Publication", "PublicationState", "Segment"]

_log = logging.getLogger(__name__)

LONG_PROMPT_TOKENS = 16384
"""Block Keys of longer prompts are computed in a worker thread."""

T = TypeVar("T")


class Producer:
    """Publishes caches of one scope. Made by `serve` or `connect`; runs on one event loop."""

    def __init__(
        self, *, scope: Scope, signing_key: ProducerKey | None, config: ProducerConfig
    ) -> None:
        self.config = config
        self.signing_key = signing_key
        self.directory = TrackDirectory()
        """All tracks of all publications: what sessions answer from."""
        self._scope = scope
        self._stats = ProducerStats()
        self._publications: dict[bytes, Publication] = {}
        self._completed: dict[bytes, float] = {}  # by Publication ID: when it expires; oldest first
        self._live_octets = 0  # held by publications in production; the rest by completed ones
        self._expiry: asyncio.TimerHandle | None = None
        self._server: Server | None = None
        self._relay: RelayLink | None = None
        self._threads = patient_threads(config.worker_threads, "kvcs-producer")
        self._run = SharedRun(self._threads, min(config.worker_threads, processors()) - 1)
        self._is_closed = False

    @classmethod
    @asynccontextmanager
    async def serve(
        cls,
        host: str,
        port: int,
        *,
        scope: Scope,
        certificate: Pem,
        private_key: Pem,
        signing_key: ProducerKey | None = None,
        config: ProducerConfig | None = None,
        session_config: SessionConfig | None = None,
        transport_config: TransportConfig | None = None,
        token_policy: TokenPolicy | None = None,
    ) -> AsyncIterator[Producer]:
        """Listen on `host` and `port` (0: any free one, see `port`) and serve consumers directly.

        `certificate`, `private_key`: paths or PEM. With `signing_key` manifests are signed.
        `token_policy`: who may have what, None: everyone who comes, the Scope ID aside. What it can
        tell apart is the namespace: ("kvcs-1", Scope ID, ...) in the form of `namespace_form`.
        Leaving it withdraws all publications and closes all sessions.
        """
        from moqt.asyncio.server import serve  # here, as who connects has no use for it

        async with cls(
            scope=scope, signing_key=signing_key, config=config or ProducerConfig()
        )._running() as producer:
            async with serve(
                host,
                port,
                certificate=certificate,
                private_key=private_key,
                directory=producer.directory,
                config=session_config,
                transport_config=transport_config,
                token_policy=token_policy,
            ) as server:
                producer._server = server
                yield producer
                await producer._close_publications()

    @classmethod
    @asynccontextmanager
    async def connect(
        cls,
        relay_url: str,
        *,
        scope: Scope,
        ca: Pem | None = None,
        insecure: bool = False,
        signing_key: ProducerKey | None = None,
        config: ProducerConfig | None = None,
        session_config: SessionConfig | None = None,
        transport_config: TransportConfig | None = None,
        auth_tokens: Sequence[AuthToken] = (),
        trusted_authorities: Collection[str] = (),
    ) -> AsyncIterator[Producer]:
        """Connect to a relay and offer publications there (PUBLISH_NAMESPACE, MOQT-22 4.1).

        `ca`: the certificates to trust, a path or PEM; None: the public ones. A lost relay is
        connected again, and all publications are offered again; on GOAWAY they are offered at the
        next session first. Leaving it withdraws them. `auth_tokens` authorize the session, and each
        offer on it; like `insecure`, they are not for another relay that this one names, unless it
        is one of `trusted_authorities`, each "host:port".
        Raises: what `moqt.connect` raises, for the first connection only.
        """
        from kvcs.relay import RelayLink  # all here, as who serves has no use for it
        from moqt.asyncio.dialing import dialer
        from moqt.asyncio.token_scope import TokenScope
        from moqt.uri import MoqtUri

        async with AsyncExitStack() as stack:
            producer = await stack.enter_async_context(
                cls(
                    scope=scope, signing_key=signing_key, config=config or ProducerConfig()
                )._running()
            )

            home = MoqtUri.parse(relay_url)
            dial = dialer(
                home,
                ca=ca,
                insecure=insecure,
                directory=producer.directory,
                config=session_config,
                transport_config=transport_config,
                tokens=auth_tokens,
                request_tokens=auth_tokens,
                token_scope=TokenScope(home, trusted_authorities),
            )
            producer._relay = await stack.enter_async_context(
                RelayLink(home, dial, config=producer.config, stats=producer._stats)
            )
            yield producer
            await producer._close_publications()

    # Queries

    @property
    def scope_id(self) -> bytes:
        """The Scope ID that all publications are under."""
        return self._scope.scope_id

    @property
    def port(self) -> int | None:
        """The port that `serve` listens on; None for `connect`."""
        return self._server.port if self._server is not None else None

    @property
    def session(self) -> MoqtSession | None:
        """The session to the relay of `connect`; None while it is lost, and for `serve`."""
        return None if self._relay is None else self._relay.session

    @property
    def publications(self) -> tuple[Publication, ...]:
        """Publications that can be retrieved, live and completed, oldest first."""
        return tuple(self._publications.values())

    @property
    def sessions(self) -> tuple[MoqtSession, ...]:
        """The sessions open now: with consumers, or the one with the relay."""
        if self._relay is not None:
            return () if self._relay.session is None else (self._relay.session,)
        return () if self._server is None else self._server.sessions

    @property
    def stats(self) -> ProducerStats:
        """Counters over all publications and sessions."""
        sessions = self.sessions
        self._stats.sessions = len(sessions)
        self._stats.open_requests = sum(session.stats.open_requests for session in sessions)
        return self._stats

    # Commands

    async def publish(
        self,
        descriptor: Descriptor,
        tokens: Tokens,
        *,
        deterministic: bool = False,
        extras: Mapping[int, bytes] | None = None,
    ) -> Publication:
        """Publish the cache of a prompt's full blocks: its identity, namespace and first manifest.

        `deterministic`: any publication of the same content has the same octets; claim it only
        where that is so (KVCS 3.6). `extras` by block: octets for content that token ids do not
        identify (kvsp-1, 3).
        Cancelled or refused by the relay: nothing is published.
        Raises: InvalidTokens for less than one block, ProductionError at `max_publications`;
        with a relay what PUBLISH_NAMESPACE raises.
        """
        self._check_open()

        def identify() -> Prefix:
            return Prefix.of(self._scope, descriptor, tokens, extras)

        if len(tokens) > LONG_PROMPT_TOKENS:
            prefix = await asyncio.get_running_loop().run_in_executor(self._threads, identify)
        else:
            prefix = identify()
        return await self.publish_prefix(prefix, deterministic=deterministic)

    async def publish_prefix(self, prefix: Prefix, *, deterministic: bool = False) -> Publication:
        """Publish under a new Publication ID; as `publish`, for keys that are known already."""
        self._check_open()
        if len(self._publications) >= self.config.max_publications:
            if not self._completed:
                raise ProductionError(
                    f"{len(self._publications)} publications are live, the limit is "
                    f"{self.config.max_publications} (max_publications)"
                )
            self._evict(next(iter(self._completed)))
        name = PublicationName.of(prefix, new_publication_id())
        publication = Publication(self, prefix, name, deterministic=deterministic)
        self._publications[publication.publication_id] = publication
        self._stats.publications += 1
        self._stats.published += 1
        publication.begin()
        if self._relay is not None:
            try:
                await self._relay.advertise(publication.namespace)
            except BaseException:
                await self.withdraw(publication, PublishDoneCode.INTERNAL_ERROR, "not advertised")
                raise
        return publication

    async def withdraw(
        self,
        publication: Publication,
        code: PublishDoneCode = PublishDoneCode.EXPIRED,
        reason: str = "",
    ) -> None:
        """Withdraw a publication: nobody finds it any more, who receives it gets `code`."""
        if self._publications.pop(publication.publication_id, None) is None:
            return
        self._completed.pop(publication.publication_id, None)
        self._stats.publications -= 1
        publication.end(code, reason)
        if self._relay is not None:
            await self._relay.withdraw(publication.namespace)

    # For publications

    async def work(self, octets: int, job: Callable[[Run], T]) -> T:
        """Run a pure job on `octets` octets of tensors; a large one in the worker threads.

        It gets what runs its parts.
        """
        if octets < self.config.thread_octets:
            return job(run_here)
        return await asyncio.get_running_loop().run_in_executor(self._threads, job, self._run)

    def check_room(self, octets: int) -> None:
        """Raise ProductionError when live publications would hold more than `max_live_bytes`."""
        if self._live_octets + octets > self.config.max_live_bytes:
            raise ProductionError(
                f"publications in production hold {self._live_octets} octets, {octets} more are "
                f"over the limit of {self.config.max_live_bytes} (max_live_bytes)"
            )

    def count_layer(self, objects: int, octets: int) -> None:
        """Count a layer of a publication in production."""
        self._live_octets += octets
        self._stats.add_layer(objects, octets)

    def count_released(self, octets: int, *, is_live: bool) -> None:
        """Count octets that a publication holds no more; `is_live`: it was in production."""
        self._stats.buffered_octets -= octets
        if is_live:
            self._live_octets -= octets

    def count_manifest(self) -> None:
        """Count a manifest version."""
        self._stats.manifest_versions += 1

    def count_aborted(self) -> None:
        """Count a publication that its owner stopped."""
        self._stats.aborted += 1

    def completed(self, publication: Publication) -> None:
        """Keep a completed publication for late joiners, within the limits."""
        self._live_octets -= publication.stats.buffered_octets
        now = asyncio.get_running_loop().time()
        self._completed[publication.publication_id] = now + self.config.retain_s
        self._retain()

    # Retention

    def _retain(self) -> None:
        """Withdraw what is over `retain_bytes` or `retain_s`, and look again when the next is."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        while self._completed:
            publication_id, expires = next(iter(self._completed.items()))
            held = self._stats.buffered_octets - self._live_octets
            is_last = len(self._completed) == 1
            if expires > now and (held <= self.config.retain_bytes or is_last):
                break
            self._evict(publication_id)
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        if self._completed:
            self._expiry = loop.call_at(next(iter(self._completed.values())), self._retain)

    def _evict(self, publication_id: bytes) -> None:
        publication = self._publications.pop(publication_id)
        del self._completed[publication_id]
        self._stats.publications -= 1
        self._stats.evicted += 1
        publication.end(PublishDoneCode.EXPIRED, "the publication is no longer retained")
        if self._relay is not None:
            self._relay.withdraw_soon(publication.namespace)
        _log.info("publication %s is no longer retained", publication_id.hex())

    # Life

    @asynccontextmanager
    async def _running(self) -> AsyncIterator[Producer]:
        try:
            yield self
        finally:
            self._is_closed = True
            if self._expiry is not None:
                self._expiry.cancel()
            for publication in self.publications:
                publication.end(PublishDoneCode.GOING_AWAY, "the producer is closing")
            self._stats.publications = 0
            self._publications.clear()
            self._completed.clear()
            self._threads.shutdown(wait=False, cancel_futures=True)

    async def _close_publications(self) -> None:
        for publication in self.publications:
            await self.withdraw(publication, PublishDoneCode.GOING_AWAY, "the producer is closing")

    def _check_open(self) -> None:
        if self._is_closed:
            raise ProductionError("the producer is closed")

    def __repr__(self) -> str:
        return f"<Producer scope_id={self.scope_id.hex()} publications={len(self._publications)}>"
