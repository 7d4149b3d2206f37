"""The publication that a striped retrieval takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvcs.feeds import Feed
    from kvcs.manifest import Manifest
    from kvcs.striping.shares import Striping
    from moqt.types import TrackNamespace

__all__ = ["Found"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The publication of a retrieval, as it was found."""

    namespace: TrackNamespace
    blocks: int
    manifest: Manifest
    key_id: bytes | None
    is_signed: bool
    striping: Striping
    feed: Feed
