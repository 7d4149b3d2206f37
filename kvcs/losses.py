"""What of a retrieval no request under way will bring: lost, then recovered or given up (KVCS 5.4).

Kept by track and layer, since sessions and streams are lost as a whole; single blocks where they
are known. No I/O.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvcs.assembly import Assembly

__all__ = ["Losses"]

_Blocks = set[int] | None
"""Blocks of a layer, or None for all of them that lack."""


class Losses:
    """The lost and the given-up Objects of an assembly."""

    def __init__(self, assembly: Assembly) -> None:
        self._assembly = assembly
        self._lost: dict[tuple[int, int], _Blocks] = {}
        self._given_up: dict[tuple[int, int], _Blocks] = {}

    def __bool__(self) -> bool:
        """Whether anything is lost and not given up; call `settle` before."""
        return bool(self._lost)

    def add(self, track: int, layer: int, block: int | None = None) -> bool:
        """Count an Object, or all of a layer that lack, as lost; False when that is no news."""
        if layer not in self._assembly.layers:
            return False
        if block is None:
            lacking = self._assembly.lacking_blocks(track, layer)
        else:
            lacking = [block] if self._assembly.is_lacking(track, layer, block) else []
        given_up = self._given_up.get((track, layer), set())
        if given_up is None or given_up.issuperset(lacking):
            return False
        blocks = self._lost.setdefault((track, layer), set())
        if blocks is None:
            return False
        if block is None:
            self._lost[track, layer] = None
        else:
            blocks.add(block)
        return True

    def includes(self, track: int, layer: int, block: int) -> bool:
        """Whether an Object counts as lost, or did when it came."""
        key = (track, layer)
        if key not in self._lost:
            return False
        blocks = self._lost[key]
        return blocks is None or block in blocks

    def settle(self) -> None:
        """Drop from what is lost what has come or was given up."""
        for key, blocks in tuple(self._lost.items()):
            lacking = set(self._assembly.lacking_blocks(*key))
            if blocks is not None:
                lacking &= blocks
            lacking -= self._given_up.get(key) or set()
            if not lacking:
                del self._lost[key]
            elif blocks is not None:
                self._lost[key] = lacking

    def clear(self) -> None:
        """Requests for all that lacks are under way again."""
        self._lost.clear()

    def give_up(self) -> None:
        """Give up all that is lost."""
        for key, blocks in self._lost.items():
            before = self._given_up.get(key, set())
            self._given_up[key] = None if blocks is None or before is None else before | blocks
        self._lost.clear()

    @property
    def count(self) -> int:
        """Objects that are lost or given up and have not come."""
        return sum(
            len(self._lacking(key, blocks))
            for known in (self._lost, self._given_up)
            for key, blocks in known.items()
        )

    def by_track(self) -> dict[int, dict[int, list[int]]]:
        """Return what is lost: blocks by layer by track."""
        found: dict[int, dict[int, list[int]]] = {}
        for key, blocks in self._lost.items():
            track, layer = key
            if lacking := self._lacking(key, blocks):
                found.setdefault(track, {})[layer] = lacking
        return found

    def is_all_given_up(self) -> bool:
        """Whether everything that lacks was given up."""
        for track in range(self._assembly.track_count):
            for layer in self._assembly.incomplete_layers(track):
                given_up = self._given_up.get((track, layer), set())
                if given_up is not None and not given_up.issuperset(
                    self._assembly.missing_blocks(track, layer)
                ):
                    return False
        return True

    def _lacking(self, key: tuple[int, int], blocks: _Blocks) -> list[int]:
        lacking = self._assembly.lacking_blocks(*key)
        return lacking if blocks is None else [block for block in lacking if block in blocks]
