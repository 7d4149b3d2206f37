"""Counters of producers and consumers: plain integers that only grow, or that return to zero.

Counters that return to zero say so. They are read while the work goes on; reading costs nothing.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvcs.errors import RejectReason

__all__ = [
    "ConsumerStats",
    "ProducerStats",
    "PublicationStats",
    "PublishedStats",
    "ReceivedStats",
    "RetrievalStats",
]


@dataclass(slots=True)
class PublishedStats:
    """What was published: by one publication, or by all of a producer."""

    layers: int = 0
    """Layers committed, summed over segments."""
    objects: int = 0
    octets: int = 0
    """Payload octets, headers included, of `objects`."""
    manifest_versions: int = 0
    buffered_octets: int = 0
    """Payload octets held for subscribers; returns to zero when publications are withdrawn."""

    def add_layer(self, objects: int, octets: int) -> None:
        """Count a layer that is published now, and held."""
        self.layers += 1
        self.objects += objects
        self.octets += octets
        self.buffered_octets += octets


@dataclass(slots=True)
class PublicationStats(PublishedStats):
    """What one publication has published."""


@dataclass(slots=True)
class ProducerStats(PublishedStats):
    """What one producer has published, over all publications."""

    publications: int = 0
    """Publications that can be retrieved; returns to zero."""
    published: int = 0
    evicted: int = 0
    """Completed publications withdrawn by `retain_bytes`, `retain_s` or `max_publications`."""
    aborted: int = 0
    reconnects: int = 0
    """Times a lost relay was connected again."""
    moves: int = 0
    """Times it went on at another session because its relay asked to."""
    sessions: int = 0
    """Sessions open now; returns to zero."""
    open_requests: int = 0
    """Requests of peers that are open now, over all sessions; returns to zero."""


@dataclass(slots=True)
class ReceivedStats:
    """What came: of one retrieval, or of all of a consumer."""

    objects: int = 0
    """Objects verified. Each wanted Object counts once."""
    octets: int = 0
    """Payload octets, headers included, of `objects`."""
    objects_received: int = 0
    """Objects that came, wanted or not, whole, by any request."""
    duplicates: int = 0
    """Objects that were verified already when they came again."""
    discarded: int = 0
    """Objects that came and were not asked for: other layers, blocks behind `blocks`."""
    rejected: Counter[RejectReason] = field(default_factory=Counter)
    """Objects that failed a check, by reason."""
    recomputed: int = 0
    """Objects that the caller's `recompute` gave."""
    missing: int = 0
    """Objects known to be missing and not yet recovered; what is left at the end stays."""
    retries: int = 0
    """Recovery steps tried."""
    reconnects: int = 0
    """Times a lost session was connected again for a retrieval."""
    moves: int = 0
    """Times a retrieval went on at another session because its peer asked to."""

    @property
    def rejected_objects(self) -> int:
        """All that failed a check."""
        return self.rejected.total()

    def add(self, other: ReceivedStats) -> None:
        """Add what `other` counted."""
        for counter in fields(ReceivedStats):
            name = counter.name
            setattr(self, name, getattr(self, name) + getattr(other, name))


@dataclass(slots=True)
class RetrievalStats(ReceivedStats):
    """What one retrieval has received."""

    manifest_versions: int = 0
    layers: int = 0
    """Usable layers handed over."""
    buffered_octets: int = 0
    """Octets received but not verified yet; returns to zero."""
    open_requests: int = 0
    """Requests open now; returns to zero."""


@dataclass(slots=True)
class ConsumerStats(ReceivedStats):
    """What one consumer has received, over all retrievals that ended."""

    retrievals: int = 0
    """Retrievals open now; returns to zero."""
    completed: int = 0
    incomplete: int = 0
    """Retrievals that ended without all their Objects, by error or by being closed."""
