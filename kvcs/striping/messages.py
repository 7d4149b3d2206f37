"""What a striped consumer and its workers tell each other."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kvcs.errors import KvcsError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvcs.config import ConsumerConfig
    from kvcs.kvsp.descriptor import Descriptor
    from kvcs.kvsp.identity import Scope, Tokens
    from kvcs.recovery import Source
    from kvcs.stats import RetrievalStats
    from kvcs.striping.memory import ArrayPlace
    from kvcs.striping.shares import Striping
    from moqt.asyncio.config import TransportConfig
    from moqt.session.access.authorization import AuthToken
    from moqt.session.config import SessionConfig
    from moqt.types import TrackNamespace

__all__ = ["Cancel", "Close", "Ended", "Job", "LayerDone", "Raised", "Ready", "Settings"]


# To a worker


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The first message: as what `Consumer.connect` connects; trusted keys as PEM by kid."""

    url: str
    scope: Scope
    ca: bytes | None = field(repr=False)
    insecure: bool
    trusted_keys: tuple[tuple[bytes, bytes], ...] | None
    require_signature: bool
    config: ConsumerConfig
    session_config: SessionConfig | None
    transport_config: TransportConfig | None
    auth_tokens: tuple[AuthToken, ...]
    trusted_authorities: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Take a share of a cache into shared memory; `map_octets` tells the maps that come with it."""

    number: int
    descriptor: Descriptor
    tokens: Tokens = field(repr=False)
    extras: Mapping[int, bytes] | None
    layers: range
    blocks: int
    striping: Striping
    publication: TrackNamespace
    sources: tuple[Source | str, ...]
    recovery_deadline_s: float | None
    places: Mapping[int, tuple[ArrayPlace, ArrayPlace | None]]
    map_octets: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Cancel:
    """End a job; `Ended` comes when nothing is written any more."""

    number: int


@dataclass(frozen=True, slots=True)
class Close:
    """Close the sessions, and exit."""


# From a worker


@dataclass(frozen=True, slots=True)
class Ready:
    """It is connected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerDone:
    """The worker's share of a layer is verified and in its place."""

    number: int
    layer: int
    arrived_at: float
    stats: RetrievalStats


@dataclass(frozen=True, slots=True, kw_only=True)
class Raised:
    """An exception on its way: what `rebuilt` needs, since the constructors differ."""

    kind: type[Exception]
    args: tuple[Any, ...]
    state: dict[str, Any]

    @classmethod
    def of(cls, error: Exception) -> Raised:
        """Return `error` to be sent; what cannot be pickled becomes a KvcsError with its text."""
        raised = cls(kind=type(error), args=error.args, state=dict(error.__dict__))
        try:
            pickle.dumps(raised)
        except (pickle.PicklingError, TypeError, AttributeError):
            text = f"{type(error).__name__}: {error}"
            return cls(kind=KvcsError, args=(text,), state={})
        return raised

    def rebuilt(self) -> Exception:
        """Return the exception."""
        error = self.kind.__new__(self.kind, *self.args)
        error.args = self.args
        error.__dict__.update(self.state)
        return error


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A job is over; or, number 0, connecting failed."""

    number: int
    error: Raised | None
    stats: RetrievalStats | None = None
