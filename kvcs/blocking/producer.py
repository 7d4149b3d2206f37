"""`Producer`, its publications and their segments, for threads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from kvcs.blocking.owner import Owner
from kvcs.publisher import Producer as AsyncProducer

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from types import TracebackType

    from kvcs.config import ProducerConfig
    from kvcs.keys import ProducerKey
    from kvcs.kvsp.descriptor import Descriptor
    from kvcs.kvsp.identity import Scope, Tokens
    from kvcs.kvsp.shapes import AnyArray
    from kvcs.loan import Loan
    from kvcs.publication import Publication as AsyncPublication
    from kvcs.publication import PublicationState
    from kvcs.publication import Segment as AsyncSegment
    from kvcs.stats import ProducerStats, PublicationStats
    from moqt.asyncio.config import TransportConfig
    from moqt.session.access.authorization import AuthToken, TokenPolicy
    from moqt.session.config import SessionConfig
    from moqt.tls import Pem
    from moqt.types import TrackNamespace

__all__ = ["Producer", "Publication", "Segment"]


class Producer(Owner[AsyncProducer]):
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
        trusted_authorities: Collection[str] = (),
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
                trusted_authorities=trusted_authorities,
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
