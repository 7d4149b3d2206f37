"""What is known of a retrieval's wanted Objects: the questions that `Assembly` answers.

Source: KVCS 5.4.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcs.errors import MissingObject
from kvcs.kvsp.shapes import Component
from kvcs.wanted import ObjectState

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from kvcs.geometry import SegmentSpan
    from kvcs.kvsp.descriptor import Descriptor
    from kvcs.wanted import TrackState

__all__ = ["Coverage"]


class Coverage:
    """Which Objects are verified, which are missing, which layers are usable.

    Layers `first_layer` to `last_layer` of `blocks` blocks, counted from the start of the context.
    """

    def __init__(
        self,
        descriptor: Descriptor,
        *,
        first_layer: int,
        last_layer: int,
        blocks: int,
        require_listed: bool,
    ) -> None:
        self.layers = range(first_layer, last_layer + 1)
        self.blocks = blocks
        self._descriptor = descriptor
        self._require_listed = require_listed
        self._tracks: list[TrackState] = []
        self._spans: dict[int, SegmentSpan] = {}
        self._is_covered = False
        self._handed_over: set[int] = set()
        self._first = first_layer
        self._next = first_layer
        self._pending = [0] * len(self.layers)
        """Objects that are not verified, by layer, over all tracks."""

    @property
    def front(self) -> int | None:
        """The layer that is handed over next; None when all were."""
        return self._next if self._next in self.layers else None

    @property
    def track_count(self) -> int:
        """How many tracks were added."""
        return len(self._tracks)

    @property
    def is_covered(self) -> bool:
        """Whether the segments known so far hold all wanted blocks."""
        return self._is_covered

    @property
    def is_complete(self) -> bool:
        """Whether every wanted Object is verified and every layer usable."""
        return all(layer in self._handed_over or self.is_usable(layer) for layer in self.layers)

    @property
    def needs_manifest(self) -> bool:
        """Whether a manifest is to name further segments, or digests that make layers usable."""
        return not self._is_covered or (
            self._require_listed
            and any(
                self.has_all_objects(layer) and not self.is_usable(layer) for layer in self.layers
            )
        )

    def progress(self, layer: int) -> int:
        """Return how much of a layer is still to come, for telling standstill from progress."""
        at = layer - self.layers.start
        return sum(
            state.pending[at] + (self._require_listed and state.listed[at] is None)
            for state in self._tracks
        ) + (not self._is_covered)

    def is_usable(self, layer: int) -> bool:
        """Whether all Objects of a layer are verified, in all tracks (KVCS 5.4)."""
        at = layer - self.layers.start
        return self.has_all_objects(layer) and all(
            state.is_settled(at, require_listed=self._require_listed) for state in self._tracks
        )

    def has_all_objects(self, layer: int) -> bool:
        """Whether all Objects of a layer are verified, be they listed or not."""
        return self._is_covered and not self._pending[layer - self._first]

    def is_track_complete(self, track: int) -> bool:
        """Whether every wanted Object of a track is verified."""
        return not self._tracks[track].all_pending

    def is_all_here(self, track: int) -> bool:
        """Whether every wanted Object of a track is verified or being verified."""
        state = self._tracks[track]
        return state.all_pending == state.checking

    def incomplete_layers(self, track: int) -> list[int]:
        """Return the layers of which a track has Objects that are not verified."""
        return [
            layer for layer, n in zip(self.layers, self._tracks[track].pending, strict=True) if n
        ]

    def lacking(self, track: int) -> list[tuple[int, int]]:
        """Return for each layer how many Objects of a track are not verified, of how many."""
        state = self._tracks[track]
        return list(zip(state.pending, state.sizes, strict=True))

    def missing_blocks(self, track: int, layer: int) -> list[int]:
        """Return the blocks of a layer that are not verified in a track."""
        states = self._tracks[track].states[layer - self.layers.start]
        return [block for block, state in enumerate(states) if state < ObjectState.VERIFIED]

    def lacking_blocks(self, track: int, layer: int) -> list[int]:
        """Return the blocks of a layer of which no whole Object has come that may be the right one.

        What is being verified is not among them, though it may yet be.
        """
        states = self._tracks[track].states[layer - self.layers.start]
        return [block for block, state in enumerate(states) if state < ObjectState.CHECKING]

    def is_lacking(self, track: int, layer: int, block: int) -> bool:
        """Whether `lacking_blocks` has a block; False for one that is not wanted."""
        states = self._tracks[track].states[layer - self.layers.start]
        return block < len(states) and states[block] < ObjectState.CHECKING

    def missing(self, layers: Iterable[int] | None = None) -> tuple[MissingObject, ...]:
        """Return every wanted Object that is not verified, by segment, layer, component and block.

        Blocks that no segment holds are named by the number that the next segment would have.
        """
        wanted = self.layers if layers is None else layers
        found = [
            MissingObject(
                state.wanted.span.segment,
                layer,
                state.wanted.name.component,
                block,
                state.reasons.get((layer, block)),
            )
            for track, state in enumerate(self._tracks)
            for layer in wanted
            if state.pending[layer - self.layers.start]
            for block in self.missing_blocks(track, layer)
        ]
        segment = max(self._spans, default=-1) + 1
        for first, stop in self._gaps():
            found += [
                MissingObject(segment, layer, component, block)
                for layer in wanted
                for component in self._descriptor.geometry(layer).parts(Component.KV)
                for block in range(stop - first)
            ]
        return tuple(sorted(found))

    def is_missing(self, track: int, layer: int, block: int) -> bool:
        """Whether a wanted Object is not verified."""
        return self._tracks[track].states[layer - self.layers.start][block] < ObjectState.VERIFIED

    def is_untouched(self, track: int) -> bool:
        """Whether no Object of a track is verified."""
        state = self._tracks[track]
        return state.all_pending == sum(state.sizes)

    def holders(self, track: int, layer: int, block: int | None = None) -> tuple[object, ...]:
        """Return who holds the place of an Object, or all places of a layer."""
        return tuple(
            lease.holder
            for (at, number), lease in self._tracks[track].leases.items()
            if at == layer and block in (None, number)
        )

    def _count(self, state: TrackState, at: int, change: int) -> None:
        """Count Objects of a layer that are pending in a track: one verified, or no longer so."""
        state.pending[at] += change
        state.all_pending += change
        self._pending[at] += change

    def _gaps(self) -> Iterator[tuple[int, int]]:
        """Yield the wanted blocks that no segment holds: first, and first behind."""
        at = 0
        for span in sorted(self._spans.values(), key=lambda span: span.first_block):
            if span.first_block > at and at < self.blocks:
                yield at, min(span.first_block, self.blocks)
            at = max(at, span.stop_block)
        if at < self.blocks:
            yield at, self.blocks
