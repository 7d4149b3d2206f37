"""Finds out what of a retrieval stands still, and so will not come by itself. No I/O, no clock.

Two cases. Nothing comes of the layer that is waited for, or of all. Or nothing comes of a layer
that a later one of its track has overtaken: Groups of a track are published in order (KVCS 3.3), so
somebody on the way left it out, as relays for live media do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvcs.assembly import Assembly

__all__ = ["Findings", "Standstill"]


@dataclass(frozen=True, slots=True)
class Findings:
    """What a look found."""

    layers: tuple[tuple[int, int], ...] = ()
    """Track and layer of what stands still."""

    is_stall: bool = False
    """Whether the layer that is waited for is among them, after `stall_timeout_s` once more."""


class Standstill:
    """Looks whether an assembly gets on.

    A layer of which an Object is under way, however slowly, does not count as left out; it does
    when nothing was verified of the layer that is waited for within `stall_timeout_s`.
    """

    def __init__(
        self, assembly: Assembly, *, stall_timeout_s: float, overtaken_timeout_s: float
    ) -> None:
        self.is_stalled = False
        """Whether nothing has come of the layer that is waited for within `stall_timeout_s`."""
        self._assembly = assembly
        self._stall_timeout_s = stall_timeout_s
        self._overtaken_timeout_s = overtaken_timeout_s
        self._objects = -1
        self._front: tuple[int | None, int] = (None, -1)
        self._objects_since = self._front_since = 0.0
        self._lacking: dict[tuple[int, int], int] = {}
        self._compares_at = 0.0
        self._was_early = False

    @property
    def next_look(self) -> float:
        """When to look again at the latest."""
        stalls_at = self._front_since + self._stall_timeout_s
        if self._lacking or self._was_early:
            return min(stalls_at, self._compares_at)
        return stalls_at

    def look(self, now: float) -> Findings:
        """Return what stands still. To be called whenever anything came, and at `next_look`."""
        stalled = self._stalled(now)
        overtaken = self._left_out(now)
        if stalled is None:
            return Findings(overtaken)
        return Findings((*stalled, *overtaken), is_stall=True)

    def _stalled(self, now: float) -> tuple[tuple[int, int], ...] | None:
        """Return what lacks of the layer that is waited for, or of all; None: it's no stall yet."""
        assembly = self._assembly
        objects = assembly.stats.objects + assembly.stats.recomputed
        if objects != self._objects:
            self._objects = objects
            self._objects_since = now
        layer = assembly.front
        front = (layer, 0 if layer is None else assembly.progress(layer))
        if front != self._front:
            self._front = front
            self._front_since = now
            self.is_stalled = False
            return None
        if now - self._front_since < self._stall_timeout_s:
            return None
        self._front_since = now
        self.is_stalled = True
        is_all = now - self._objects_since >= self._stall_timeout_s
        return tuple(
            (track, lacking)
            for track in range(assembly.track_count)
            for lacking in assembly.incomplete_layers(track)
            if is_all or lacking == layer
        )

    def _left_out(self, now: float) -> tuple[tuple[int, int], ...]:
        """Return overtaken layers that brought nothing since the last comparison."""
        self._was_early = now < self._compares_at
        if self._was_early:
            return ()
        lacking = dict(
            item for track in range(self._assembly.track_count) for item in self._overtaken(track)
        )
        still = tuple(key for key, lack in lacking.items() if self._lacking.get(key) == lack)
        self._lacking = lacking
        self._compares_at = now + self._overtaken_timeout_s
        return still

    def _overtaken(self, track: int) -> Iterator[tuple[tuple[int, int], int]]:
        counts = self._assembly.lacking(track)
        begun = [at for at, (lack, wanted) in enumerate(counts) if lack < wanted]
        for at, (lack, _) in enumerate(counts[: begun[-1]] if begun else ()):
            layer = self._assembly.layers[at]
            if lack and not self._assembly.holders(track, layer):
                yield (track, layer), lack
