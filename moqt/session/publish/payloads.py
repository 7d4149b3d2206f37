"""Payloads as a track keeps them: buffers of the publisher, by reference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, overload

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["EqualPayloads", "payload_views"]

_SHORT_OCTETS: Final = 1024
"""Up to so many, bytes are kept as they are: a memoryview of them takes 300 octets, and spares no
more than a copy of these when they are written in two pieces."""


def payload_views(payload: Buffer | Sequence[Buffer]) -> tuple[memoryview | bytes, ...]:
    """Return the octets of a payload, not copied, without empty buffers."""
    parts = payload if isinstance(payload, list | tuple) else (payload,)
    views: list[memoryview | bytes] = []
    for part in parts:
        view = _octets_of(part)
        if view.nbytes:
            is_short = isinstance(part, bytes) and len(part) <= _SHORT_OCTETS
            views.append(part if is_short else view)
    return tuple(views)


def _octets_of(part: Buffer) -> memoryview:
    view = memoryview(part)
    if not view.c_contiguous:
        raise TypeError(f"a buffer of strides {view.strides}, expected a contiguous one")
    if view.ndim == 1 and view.format == "B":
        return view
    return view.cast("B") if view.nbytes else memoryview(b"")


class EqualPayloads(Sequence[tuple[memoryview | bytes, ...]]):
    """Equally long payloads, cut out of a few buffers when they are sent.

    Payload i of `count` is the i-th of `count` equal pieces of each buffer, one after the other. So
    Objects need no memory of their own, however many and small: a reference to a piece has 184
    octets. The buffers are kept, not copied, until all of them are evicted and sent; any
    C-contiguous ones will do.
    Raises: ValueError for a negative `count`, or a buffer that is no multiple of it long; TypeError
    for one that is not contiguous.
    """

    __slots__ = ("_columns", "_count", "octets")

    def __init__(self, count: int, buffers: Sequence[Buffer]) -> None:
        if count < 0:
            raise ValueError(f"{count} payloads, expected none or more")
        self._count = count
        self._columns: list[tuple[memoryview | bytes, int]] = []
        for part in buffers:
            view = _octets_of(part)
            octets, rest = divmod(view.nbytes, count) if count else (0, view.nbytes)
            if rest:
                raise ValueError(
                    f"a buffer has {view.nbytes} octets, expected a multiple of {count} (payloads)"
                )
            if octets:
                short = part if isinstance(part, bytes) and octets <= _SHORT_OCTETS else None
                self._columns.append((short or view, octets))
        self.octets = sum(octets for _, octets in self._columns)
        """Of each payload."""

    def __len__(self) -> int:
        """How many payloads there are."""
        return self._count

    @overload
    def __getitem__(self, index: int) -> tuple[memoryview | bytes, ...]: ...

    @overload
    def __getitem__(self, index: slice) -> list[tuple[memoryview | bytes, ...]]: ...

    def __getitem__(
        self, index: int | slice
    ) -> tuple[memoryview | bytes, ...] | list[tuple[memoryview | bytes, ...]]:
        """Return one payload, or some."""
        numbers = range(self._count)[index]
        return self.cut(numbers) if isinstance(numbers, int) else [*map(self.cut, numbers)]

    def cut(self, number: int) -> tuple[memoryview | bytes, ...]:
        """Return the payload of this number, which is not checked: 0 to `count` - 1."""
        return tuple(
            [part[number * octets : (number + 1) * octets] for part, octets in self._columns]
        )
