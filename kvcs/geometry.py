"""Where things stand: layer and Group, block and Object, segments, priorities (KVCS 3.3, 3.4).

The only place that turns a layer into a Group ID or a block into an Object ID, and back.
"""

from __future__ import annotations

from dataclasses import dataclass

from moqt.types import Location

__all__ = [
    "DATA_SUBGROUP_ID",
    "MANIFEST_PRIORITY",
    "SegmentSpan",
    "end_of_track",
    "group_id_of",
    "layer_of",
    "location_of",
    "publisher_priority",
]

DATA_SUBGROUP_ID = 0
"""All Objects of a Group are in this Subgroup (KVCS 3.3)."""

MANIFEST_PRIORITY = 0
"""Publisher Priority of the manifest track (KVCS 3.4); a consumer asks for it with the same."""


def group_id_of(layer: int) -> int:
    """Return the Group ID of a layer (KVCS 3.3)."""
    return layer


def layer_of(group_id: int, layers: int) -> int | None:
    """Return the layer of a Group, or None when the descriptor's L layers have no such one."""
    return group_id if 0 <= group_id < layers else None


def location_of(layer: int, block: int) -> Location:
    """Return where the Object of a layer and a segment's block stands (KVCS 3.4)."""
    return Location(group_id_of(layer), block)


def publisher_priority(layer: int, layers: int) -> int:
    """Return floor(128 * g / L): an earlier layer is more urgent (KVCS 3.4)."""
    return 128 * group_id_of(layer) // layers


def end_of_track(layers: int) -> Location:
    """Return the Location of the End of Track Object: Object 0 of Group L.

    KVCS 3.3 puts it "after the last Group"; behind an End of Group in the same Group no Object may
    follow, so it has a Group of its own.
    """
    return Location(layers, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentSpan:
    """Which blocks of the context a segment holds. Raises ValueError for an empty one."""

    segment: int
    first_block: int
    blocks: int

    def __post_init__(self) -> None:
        if self.segment < 0 or self.first_block < 0:
            raise ValueError(f"{self}: segment and first block count from 0")
        if self.blocks < 1:
            raise ValueError(f"segment {self.segment} has {self.blocks} blocks, at least 1 needed")

    @property
    def stop_block(self) -> int:
        """The first block of the context behind the segment."""
        return self.first_block + self.blocks

    def overlaps(self, other: SegmentSpan) -> bool:
        """Return whether both hold a block of the context."""
        return self.first_block < other.stop_block and other.first_block < self.stop_block

    def token_start(self, block: int, block_tokens: int) -> int:
        """Return the position in the context of the first token of the segment's `block`."""
        return (self.first_block + block) * block_tokens
