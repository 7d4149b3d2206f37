"""`Consumer` and its retrievals, for threads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self, TypeVar

from kvcs.blocking.owner import Owner
from kvcs.consumer import Consumer as AsyncConsumer

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from types import TracebackType

    from kvcs.assembly import UsableLayer
    from kvcs.attempts import Recompute
    from kvcs.config import ConsumerConfig
    from kvcs.consumer import Retrieval as AsyncRetrieval
    from kvcs.destinations import Into
    from kvcs.errors import MissingObject
    from kvcs.keys import TrustedKeys
    from kvcs.kvsp.descriptor import Descriptor
    from kvcs.kvsp.identity import Scope, Tokens
    from kvcs.manifest import Manifest
    from kvcs.recovery import Source
    from kvcs.stats import ConsumerStats, RetrievalStats
    from kvcs.striping.retrieval import StripedRetrieval
    from moqt.asyncio.config import TransportConfig
    from moqt.session.access.authorization import AuthToken
    from moqt.session.config import SessionConfig
    from moqt.tls import Pem
    from moqt.types import TrackNamespace

__all__ = ["Consumer", "Retrieval"]

T = TypeVar("T")


class Consumer(Owner[AsyncConsumer]):
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
        trusted_authorities: Collection[str] = (),
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
                trusted_authorities=trusted_authorities,
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
        sessions: int = 1,
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
                sessions=sessions,
            )

        return Retrieval(self, self._call(retrieve, timeout_s))


class Retrieval:
    """As `kvcs.Retrieval`, for threads: an iterator of usable layers, in layer order.

    Or as `StripedRetrieval`, of a `StripedConsumer`.
    """

    def __init__(self, consumer: Owner[Any], inner: AsyncRetrieval | StripedRetrieval) -> None:
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
    def key_id(self) -> bytes | None:
        """The kid of the manifest's signature; None: it has none."""
        return self._inner.key_id

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
