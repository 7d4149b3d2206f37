"""How the Objects of a retrieval are shared out between sessions, and between processes.

Every layer is cut: each session gets a run of consecutive blocks of every Group of a track. So all
sessions work on the same layer at the same time, in layer order, and no layer waits for a later
one. A run of blocks is also what KVCS 5.3 knows how to ask for: one OBJECTID_FILTER with one Range
where the peer takes filters, else FETCHes of Location ranges. MOQT has no filter of Groups.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kvcs.kvsp.shapes import Component

if TYPE_CHECKING:
    from kvcs.manifest import Manifest
    from kvcs.names import DataTrackName

__all__ = ["WHOLE", "Share", "Striping"]


@dataclass(frozen=True, slots=True)
class Share:
    """What one session takes of one track: `blocks` of every layer, counted as Object IDs."""

    lane: int
    """Which session of this process, from 0."""
    blocks: range


@dataclass(frozen=True, slots=True, kw_only=True)
class Striping:
    """A cache in `parts` shares, of which those from `first` on are taken here, one a session.

    Whoever takes the others must have the same `parts`, and what was `settled` once. Raises:
    ValueError.
    """

    parts: int = 1
    first: int = 0
    lanes: int = 1
    """Sessions of this process, and so shares."""
    splits: bool | None = None
    """Whether tracks are cut; else each goes whole to one session. None: not `settled` yet."""

    def __post_init__(self) -> None:
        if not (self.lanes >= 1 and 0 <= self.first <= self.parts - self.lanes):
            raise ValueError(
                f"shares {self.first} to {self.first + self.lanes - 1} of {self.parts}: "
                f"expected some of 0 to {self.parts - 1}"
            )

    def settled(self, manifest: Manifest, *, blocks: int, max_filter_ranges: int) -> Striping:
        """Return it with `splits` decided, by what there is of `blocks` blocks and by the peer.

        A peer without filters would send all of a track in production to every session.
        """
        if self.splits is not None:
            return self
        complete = sum(entry.span.blocks for entry in manifest.segments if entry.complete)
        return replace(self, splits=max_filter_ranges > 0 or complete >= blocks)

    def of_process(self, index: int) -> Striping:
        """Return the shares of the process `index`, where each has as many lanes as this."""
        return replace(self, first=index * self.lanes)

    def shares(self, track: DataTrackName, blocks: int) -> list[Share]:
        """Return what is taken here of the first `blocks` blocks of a track; may be nothing.

        Shares of one track differ by a block at most. Which one is the largest goes round with the
        track, so K and V of a cache with few blocks come by different sessions.
        """
        turn = 2 * track.segment + (track.component is Component.V)
        found = []
        for lane in range(self.lanes):
            at = (self.first + lane - turn) % self.parts
            if self.splits is not False:
                run = range(at * blocks // self.parts, (at + 1) * blocks // self.parts)
            else:
                run = range(blocks if at == 0 else 0)
            if run:
                found.append(Share(lane, run))
        return found


WHOLE = Striping()
"""All by one session."""
