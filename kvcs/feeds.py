"""Where a retrieval gets its Objects: publications at sessions, and which of their tracks."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvcs.errors import PublicationUnusable
from kvcs.kvsp.codecs import CODECS, Codec
from kvcs.kvsp.shapes import Component
from kvcs.names import DataTrackName

if TYPE_CHECKING:
    from kvcs.config import ConsumerConfig
    from kvcs.manifest import Manifest, SegmentEntry
    from kvcs.manifest_feed import ManifestFeed
    from moqt.asyncio.following import Visit
    from moqt.asyncio.session import MoqtSession
    from moqt.types import TrackNamespace

__all__ = ["Feed", "choose_tracks"]


@dataclass(slots=True, eq=False)
class Feed:
    """One publication at one session, with a first manifest that holds."""

    visit: Visit
    """Its stay at a session, which ends with it."""
    namespace: TrackNamespace
    manifests: ManifestFeed
    manifest: Manifest
    url: str | None = None
    """Where it was looked for first; None: at the consumer's own endpoint."""
    tracks: set[int] = field(default_factory=set)
    """Tracks asked for here."""
    is_followed: bool = False
    """Whether later manifests are still awaited."""
    running: int = 0
    """Track feeds that have not ended."""
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    """What takes from it by itself."""
    is_closed: bool = False
    _stack: AsyncExitStack = field(default_factory=AsyncExitStack, init=False)

    def __post_init__(self) -> None:
        self._stack.push_async_exit(self.visit)
        self._stack.push_async_exit(self.manifests)

    @property
    def session(self) -> MoqtSession:
        """The session that it is at."""
        return self.visit.session

    @property
    def max_filter_ranges(self) -> int:
        """Ranges that its peer takes in the filters of a request; 0: it takes no filter."""
        options = self.session.peer_options
        return 0 if options is None else options.max_filter_ranges

    @property
    def is_left(self) -> bool:
        """Whether its session is over, or its peer asked to leave it."""
        return self.visit.place.is_left

    @property
    def is_alive(self) -> bool:
        """Whether anything may still come by itself."""
        return not self.session.is_closed and (self.is_followed or self.running > 0)

    def stay(self, visit: Visit) -> None:
        """Stay at one more session, where a REDIRECT of a track led, until this is closed."""
        if self.is_closed:
            visit.leave()
        else:
            self._stack.push_async_exit(visit)

    async def end_tasks(self) -> None:
        """End what takes from it: what is held of the assembly is given back."""
        tasks = tuple(self.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def close(self) -> None:
        """Unsubscribe from the manifest, and leave the session. Harmless twice."""
        self.is_closed = True
        await self._stack.aclose()


def choose_tracks(
    entry: SegmentEntry, config: ConsumerConfig, *, has_v: bool
) -> list[tuple[DataTrackName, Codec]]:
    """Return the tracks to take of a segment: a kv track, or k and v of one codec (KVCS 3.2).

    `has_v` False: no wanted layer has a V tensor, so none is needed.
    Raises: PublicationUnusable when no offer is complete in a known codec.
    """
    offered = set(entry.tracks)
    segment = entry.span.segment
    for name in config.codecs:
        if name not in CODECS:
            continue
        joint = [DataTrackName(Component.KV, name, segment)]
        apart = [DataTrackName(Component.K, name, segment)]
        if has_v:
            apart.append(DataTrackName(Component.V, name, segment))
        for names in (joint, apart) if config.prefer_joint else (apart, joint):
            if offered.issuperset(names):
                return [(track, CODECS.by_name(name)) for track in names]
    raise PublicationUnusable(
        f"segment {segment} is offered as {', '.join(map(str, entry.tracks))}; "
        f"codecs taken here: {', '.join(config.codecs)}"
    )
