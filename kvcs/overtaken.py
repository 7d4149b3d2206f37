"""Finds layers that a later one of their track has overtaken and that stand still.

Groups of a track are published in order (KVCS 3.3), so what was overtaken has been published: when
nothing of it comes, somebody on the way left it out, as relays for live media do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvcs.assembly import Assembly

__all__ = ["Overtaken"]


class Overtaken:
    """Looks each `timeout_s` which overtaken layers brought nothing since the last look.

    One of which an Object is under way, however slowly, does not stand still.
    """

    def __init__(self, assembly: Assembly, *, timeout_s: float) -> None:
        self._assembly = assembly
        self._timeout_s = timeout_s
        self._lacking: dict[tuple[int, int], int] = {}
        self._next_look = 0.0
        self._was_early = False

    @property
    def next_look(self) -> float | None:
        """When to call `look` again; None: nothing was overtaken, nor asked about since."""
        return self._next_look if self._lacking or self._was_early else None

    def look(self, now: float, blocks: Sequence[int]) -> list[tuple[int, int]]:
        """Return (track, layer) of those that stood still; nothing when it's too early to tell.

        `blocks`: how many blocks are wanted of each track.
        """
        self._was_early = now < self._next_look
        if self._was_early:
            return []
        lacking = dict(
            item for track, wanted in enumerate(blocks) for item in self._overtaken(track, wanted)
        )
        still = [key for key, blocks in lacking.items() if self._lacking.get(key) == blocks]
        self._lacking = lacking
        self._next_look = now + self._timeout_s
        return still

    def _overtaken(self, track: int, blocks: int) -> Iterator[tuple[tuple[int, int], int]]:
        pending = self._assembly.pending(track)
        begun = [at for at, lack in enumerate(pending) if lack < blocks]
        for at, lack in enumerate(pending[: begun[-1]] if begun else ()):
            layer = self._assembly.layers[at]
            if lack and not self._assembly.holders(track, layer):
                yield (track, layer), lack
