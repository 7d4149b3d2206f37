"""The verbs of `kvcs.Producer` and `kvcs.Consumer` for threads: engines call them from any thread.

All objects of a process share one event loop thread. They close at the end of their `with` block,
or else at the interpreter's exit. After a fork the child makes its own; using the parent's there
raises BlockingError. Every wait takes an optional `timeout_s` and raises TimeoutError when it is
up; without one it is bounded by what the configuration says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, Self, TypeVar

from kvcs.assembly import UsableLayer
from kvcs.consumer import Consumer as AsyncConsumer
from kvcs.loan import Loan
from kvcs.loop_thread import BlockingError, LoopThread
from kvcs.publisher import Producer as AsyncProducer

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager
    from types import TracebackType

    from kvcs.attempts import Recompute
    from kvcs.config import ConsumerConfig, ProducerConfig
    from kvcs.consumer import Retrieval as AsyncRetrieval
    from kvcs.destinations import Into
    from kvcs.errors import MissingObject
    from kvcs.keys import ProducerKey, TrustedKeys
    from kvcs.kvsp.descriptor import Descriptor
    from kvcs.kvsp.identity import Scope, Tokens
    from kvcs.kvsp.shapes import AnyArray
    from kvcs.manifest import Manifest
    from kvcs.publication import Publication as AsyncPublication
    from kvcs.publication import PublicationState
    from kvcs.publication import Segment as AsyncSegment
    from kvcs.recovery import Source
    from kvcs.stats import ConsumerStats, ProducerStats, PublicationStats, RetrievalStats
    from moqt.asyncio.config import TransportConfig
    from moqt.session.authorization import AuthToken, TokenPolicy
    from moqt.session.config import SessionConfig
    from moqt.tls import Pem
    from moqt.types import TrackNamespace

__all__ = [
    "BlockingError",
    "Consumer",
    "Loan",
    "Producer",
    "Publication",
    "Retrieval",
    "Segment",
    "UsableLayer",
]

T = TypeVar("T")
OwnerT = TypeVar("OwnerT")


class _Owner(Generic[OwnerT]):
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


class Producer(_Owner[AsyncProducer]):
    """As `kvcs.Producer`, for threads. Made by `serve` or `connect`; a context manager."""

    @classmethod
    def serve(
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
    ) -> Self:
        """Listen and serve consumers directly; see `kvcs.Producer.serve`."""
        return cls(
            lambda: AsyncProducer.serve(
                host,
                port,
                scope=scope,
                certificate=certificate,
                private_key=private_key,
                signing_key=signing_key,
                config=config,
                session_config=session_config,
                transport_config=transport_config,
                token_policy=token_policy,
            )
        )

    @classmethod
    def connect(
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
    ) -> Self:
        """Connect to a relay and offer publications there; see `kvcs.Producer.connect`."""
        return cls(
            lambda: AsyncProducer.connect(
                relay_url,
                scope=scope,
                ca=ca,
                insecure=insecure,
                signing_key=signing_key,
                config=config,
                session_config=session_config,
                transport_config=transport_config,
                auth_tokens=auth_tokens,
            )
        )

    @property
    def port(self) -> int | None:
        """The port that `serve` listens on; None for `connect`."""
        return self._inner.port

    @property
    def scope_id(self) -> bytes:
        """The Scope ID that all publications are under."""
        return self._inner.scope_id

    @property
    def stats(self) -> ProducerStats:
        """Counters over all publications and sessions."""
        return self._inner.stats

    def publish(
        self,
        descriptor: Descriptor,
        tokens: Tokens,
        *,
        deterministic: bool = False,
        extras: Mapping[int, bytes] | None = None,
        timeout_s: float | None = None,
    ) -> Publication:
        """Publish the cache of a prompt's full blocks; see `kvcs.Producer.publish`."""

        async def publish() -> AsyncPublication:
            return await self._inner.publish(
                descriptor, tokens, deterministic=deterministic, extras=extras
            )

        return Publication(self, self._call(publish, timeout_s))


class Publication:
    """As `kvcs.Publication`, for threads. A `with` block completes it, or aborts on an error."""

    def __init__(self, producer: Producer, inner: AsyncPublication) -> None:
        self._producer = producer
        self._inner = inner

    @property
    def publication_id(self) -> bytes:
        """The random Publication ID, 16 octets."""
        return self._inner.publication_id

    @property
    def namespace(self) -> TrackNamespace:
        """The Track Namespace."""
        return self._inner.namespace

    @property
    def descriptor(self) -> Descriptor:
        """The Compatibility Descriptor."""
        return self._inner.descriptor

    @property
    def blocks(self) -> int:
        """Full blocks of the prefix: what its segments have to hold."""
        return self._inner.blocks

    @property
    def state(self) -> PublicationState:
        """Live, complete, or withdrawn."""
        return self._inner.state

    @property
    def stats(self) -> PublicationStats:
        """Counters of this publication."""
        return self._inner.stats

    def segment(
        self,
        first_block: int | None = None,
        blocks: int | None = None,
        codec: str = "raw",
        joint: bool = False,
        *,
        also: Sequence[tuple[str, bool]] = (),
    ) -> Segment:
        """Add the next segment; see `kvcs.Publication.segment`."""
        return Segment(
            self._producer,
            self._producer._run(
                lambda: self._inner.segment(first_block, blocks, codec, joint, also=also)
            ),
        )

    def complete(self) -> None:
        """Complete it; ProductionError says what lacks."""
        self._producer._call(self._inner.complete)

    def abort(self, reason: str = "") -> None:
        """Stop it; see `kvcs.Publication.abort`."""
        self._producer._call(lambda: self._inner.abort(reason))

    def restart(self, reason: str = "") -> Publication:
        """Abort, and return a new publication of the same prefix under a new Publication ID."""
        inner = self._producer._call(lambda: self._inner.restart(reason))
        return Publication(self._producer, inner)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Complete, or abort when the block raised or did not finish its segments."""
        self._producer._call(lambda: self._inner.__aexit__(kind, error, trace))


class Segment:
    """As `kvcs.Segment`, for threads."""

    def __init__(self, producer: Producer, inner: AsyncSegment) -> None:
        self._producer = producer
        self._inner = inner

    @property
    def first_block(self) -> int:
        """Its first block, counted from the start of the context."""
        return self._inner.first_block

    @property
    def blocks(self) -> int:
        """How many blocks it holds."""
        return self._inner.blocks

    @property
    def tokens(self) -> slice:
        """Its tokens' positions in the context."""
        return self._inner.tokens

    @property
    def track_names(self) -> tuple[str, ...]:
        """Its data tracks, as in "k.raw.s0"."""
        return self._inner.track_names

    @property
    def next_layer(self) -> int:
        """The layer that is to be put next."""
        return self._inner.next_layer

    @property
    def is_complete(self) -> bool:
        """Whether `complete` was called."""
        return self._inner.is_complete

    def put_layer(
        self, layer: int, k: AnyArray, v: AnyArray | None = None, *, borrow: bool = False
    ) -> Loan | None:
        """Publish one layer; see `kvcs.Segment.put_layer`. When this returns, tensors are free,
        or with `borrow` when the `Loan` says so (`loan.wait`)."""
        return self._producer._call(lambda: self._inner.put_layer(layer, k, v, borrow=borrow))

    def complete(self) -> None:
        """End the segment: all its layers are there."""
        self._producer._call(self._inner.complete)


class Consumer(_Owner[AsyncConsumer]):
    """As `kvcs.Consumer`, for threads. Made by `connect`; a context manager."""

    @classmethod
    def connect(
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
    ) -> Self:
        """Connect to a server or relay; see `kvcs.Consumer.connect`."""
        return cls(
            lambda: AsyncConsumer.connect(
                url,
                scope=scope,
                ca=ca,
                insecure=insecure,
                trusted_keys=trusted_keys,
                require_signature=require_signature,
                config=config,
                session_config=session_config,
                transport_config=transport_config,
                auth_tokens=auth_tokens,
            )
        )

    @property
    def scope_id(self) -> bytes:
        """The Scope ID that publications are looked for under."""
        return self._inner.scope_id

    @property
    def stats(self) -> ConsumerStats:
        """Counters over all retrievals, those under way included."""
        return self._run(lambda: self._inner.stats)

    def retrieve(
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
        timeout_s: float | None = None,
    ) -> Retrieval:
        """Find a publication and begin to take it; see `kvcs.Consumer.retrieve`.

        `recompute` runs in a worker thread.
        """

        async def retrieve() -> AsyncRetrieval:
            return await self._inner.retrieve(
                descriptor,
                tokens,
                layers=layers,
                blocks=blocks,
                into=into,
                sources=sources,
                recompute=recompute,
                recovery_deadline_s=recovery_deadline_s,
                publication=publication,
                discovery_timeout_s=discovery_timeout_s,
                extras=extras,
            )

        return Retrieval(self, self._call(retrieve, timeout_s))


class Retrieval:
    """As `kvcs.Retrieval`, for threads: an iterator of usable layers, in layer order."""

    def __init__(self, consumer: Consumer, inner: AsyncRetrieval) -> None:
        self._consumer = consumer
        self._inner = inner

    @property
    def blocks(self) -> int:
        """Blocks that it brings, from the start of the context."""
        return self._inner.blocks

    @property
    def tokens(self) -> int:
        """Tokens that it brings, from the start of the context."""
        return self._inner.tokens

    @property
    def layers(self) -> range:
        """The layers asked for."""
        return self._inner.layers

    @property
    def publication(self) -> TrackNamespace:
        """The namespace of the publication now in use."""
        return self._inner.publication

    @property
    def manifest(self) -> Manifest:
        """The newest manifest of the publication now in use."""
        return self._inner.manifest

    @property
    def is_signed(self) -> bool:
        """Whether the publication has a signed manifest."""
        return self._inner.is_signed

    @property
    def is_over(self) -> bool:
        """Whether nothing more will come; usable layers may still wait to be taken."""
        return self._inner.is_over

    @property
    def missing(self) -> tuple[MissingObject, ...]:
        """Every wanted Object that is not verified: when it is over, exactly what is missing."""
        return self._consumer._run(lambda: self._inner.missing)

    @property
    def stats(self) -> RetrievalStats:
        """Counters of this retrieval."""
        return self._inner.stats

    @property
    def arrived_at(self) -> dict[int, float]:
        """By layer: `time.monotonic()` when the last of its Objects was verified, so far."""
        return dict(self._inner.arrived_at)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> UsableLayer:
        """Return the next usable layer; see `kvcs.Retrieval`."""
        layer = self.next_layer()
        if layer is None:
            raise StopIteration
        return layer

    def next_layer(self, timeout_s: float | None = None) -> UsableLayer | None:
        """Return the next usable layer, None after the last; TimeoutError loses none."""

        async def take() -> UsableLayer | None:
            return await anext(self._inner, None)

        return self._consumer._call(take, timeout_s)

    def finished(self, timeout_s: float | None = None) -> None:
        """Wait until everything came, without taking the layers; for `into`."""
        self._consumer._call(self._inner.finished, timeout_s)

    def close(self) -> None:
        """End it: nothing is written to `into` any more. Harmless twice or on a closed consumer."""
        if not self._consumer._is_closed:
            self._consumer._call(self._inner.close)

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
