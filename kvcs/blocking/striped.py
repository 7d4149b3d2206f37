"""`StripedConsumer`, for threads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from kvcs.blocking.consumer import Retrieval
from kvcs.blocking.owner import Owner
from kvcs.striping.consumer import StripedConsumer as AsyncStripedConsumer

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from kvcs.config import ConsumerConfig
    from kvcs.destinations import Into
    from kvcs.keys import TrustedKeys
    from kvcs.kvsp.descriptor import Descriptor
    from kvcs.kvsp.identity import Scope, Tokens
    from kvcs.recovery import Source
    from kvcs.striping.retrieval import StripedRetrieval
    from moqt.asyncio.config import TransportConfig
    from moqt.session.access.authorization import AuthToken
    from moqt.session.config import SessionConfig
    from moqt.tls import Pem
    from moqt.types import TrackNamespace

__all__ = ["StripedConsumer"]


class StripedConsumer(Owner[AsyncStripedConsumer]):
    """As `kvcs.striping.StripedConsumer`, for threads. Made by `connect`; a context manager."""

    @classmethod
    def connect(
        cls,
        url: str,
        *,
        scope: Scope,
        processes: int,
        sessions: int = 1,
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
        """Start the workers, and connect; see `kvcs.striping.StripedConsumer.connect`."""
        return cls(
            lambda: AsyncStripedConsumer.connect(
                url,
                scope=scope,
                processes=processes,
                sessions=sessions,
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
    def worker_pids(self) -> tuple[int, ...]:
        """The process IDs of the workers that run now."""
        return self._run(lambda: self._inner.worker_pids)

    def retrieve(
        self,
        descriptor: Descriptor,
        tokens: Tokens,
        *,
        layers: range | tuple[int, int] | None = None,
        blocks: int | None = None,
        into: Into | None = None,
        sources: Sequence[Source | str] = (),
        recovery_deadline_s: float | None = None,
        publication: TrackNamespace | None = None,
        discovery_timeout_s: float | None = None,
        extras: Mapping[int, bytes] | None = None,
        timeout_s: float | None = None,
    ) -> Retrieval:
        """Have the workers take a cache; see `kvcs.striping.StripedConsumer.retrieve`."""

        async def retrieve() -> StripedRetrieval:
            return await self._inner.retrieve(
                descriptor,
                tokens,
                layers=layers,
                blocks=blocks,
                into=into,
                sources=sources,
                recovery_deadline_s=recovery_deadline_s,
                publication=publication,
                discovery_timeout_s=discovery_timeout_s,
                extras=extras,
            )

        return Retrieval(self, self._call(retrieve, timeout_s))
