"""Arrays in memory that several processes share, whose pages are there before they are written.

The memory has no name: it is a memfd, or an unlinked file where there are none, and other processes
are handed its descriptor. So nothing is left behind, however a process ends. It is freed when the
last array and the last process let go of it.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import weakref
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.lib.array_utils import byte_bounds

from kvcs.kvsp.shapes import Component

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import DTypeLike

    from kvcs.destinations import LayerArrays
    from kvcs.kvsp.descriptor import Descriptor
    from kvcs.kvsp.shapes import AnyArray

__all__ = ["ArrayPlace", "SharedMap", "locate", "shared_arrays", "shared_empty"]

ALIGNMENT = 64
"""Octets: where arrays begin."""

TMPFS = Path("/dev/shm")


class SharedMap(mmap.mmap):
    """A mapping of shared memory, and the descriptor `fd` to hand to other processes."""

    fd: int
    address: int

    @classmethod
    def new(cls, octets: int) -> SharedMap:
        """Return new zeroed memory. Raises: OSError when there is not so much."""
        if hasattr(os, "memfd_create"):
            fd = os.memfd_create("kvcs", os.MFD_CLOEXEC)
        else:
            folder = TMPFS if TMPFS.is_dir() else None
            with tempfile.TemporaryFile(dir=folder) as file:
                fd = os.dup(file.fileno())
        try:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(fd, 0, octets)  # or a full memory would kill who writes there
            else:
                os.ftruncate(fd, octets)
            return cls.attach(fd, octets)
        except BaseException:
            os.close(fd)
            raise

    @classmethod
    def attach(cls, fd: int, octets: int, *, populates: bool = True) -> SharedMap:
        """Map memory that `new` made, here or in another process; `fd` closes with the mapping.

        `populates`: for all of its pages at once, which costs less than page by page; what is
        touched in part alone is better left to itself.
        """
        flags = mmap.MAP_SHARED | (getattr(mmap, "MAP_POPULATE", 0) if populates else 0)
        mapped = cls(fd, octets, flags=flags)
        mapped.fd = fd
        mapped.address = np.frombuffer(mapped, np.uint8).__array_interface__["data"][0]
        weakref.finalize(mapped, os.close, fd)
        _maps[mapped.address] = mapped
        return mapped

    def array(
        self, shape: Sequence[int], dtype: DTypeLike, offset: int, strides: Sequence[int] | None
    ) -> AnyArray:
        """Return an array in it, which keeps it. Raises: ValueError for one that leaves it."""
        return np.ndarray(
            tuple(shape), dtype, self, offset, None if strides is None else tuple(strides)
        )


_maps: weakref.WeakValueDictionary[int, SharedMap] = weakref.WeakValueDictionary()
"""By address: all that this process has mapped."""


@dataclass(frozen=True, slots=True)
class ArrayPlace:
    """Where an array lies in shared memory: `map` is its number among those that were handed on."""

    map: int
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def shared_empty(shape: Sequence[int], dtype: DTypeLike) -> AnyArray:
    """Return a zeroed array in shared memory of its own, C-contiguous.

    Views of it are in shared memory, too. Raises: OSError, ValueError for an empty one.
    """
    kind = np.dtype(dtype)
    return SharedMap.new(prod(shape) * kind.itemsize).array(shape, kind, 0, None)


def shared_arrays(
    descriptor: Descriptor, tokens: int, layers: Iterable[int] | None = None
) -> dict[int, LayerArrays]:
    """Return zeroed K and V arrays of `tokens` tokens by layer, all in one shared memory.

    For `into` of `StripedConsumer.retrieve`. `layers` None: all. Raises: OSError.
    """
    wanted = range(descriptor.layers) if layers is None else tuple(layers)
    offsets: dict[tuple[int, Component], int] = {}
    octets = 0
    for layer in wanted:
        geometry = descriptor.geometry(layer)
        for part in geometry.parts(Component.KV):
            offsets[layer, part] = octets
            size = prod(geometry.shape(part, tokens)) * geometry.dtype.itemsize
            octets += -(-size // ALIGNMENT) * ALIGNMENT
    memory = SharedMap.new(octets)

    def array(layer: int, part: Component) -> AnyArray:
        geometry = descriptor.geometry(layer)
        return memory.array(
            geometry.shape(part, tokens), geometry.dtype, offsets[layer, part], None
        )

    return {
        layer: (
            array(layer, Component.K),
            array(layer, Component.V) if (layer, Component.V) in offsets else None,
        )
        for layer in wanted
    }


def locate(array: AnyArray, maps: list[SharedMap]) -> ArrayPlace | None:
    """Return where an array lies, its map added to `maps`; None: not in shared memory."""
    low, high = byte_bounds(array)
    for known in _maps.valuerefs():  # a list of its own: other threads map memory meanwhile
        one = known()
        if one is not None and one.address <= low and high <= one.address + len(one):
            if one not in maps:
                maps.append(one)
            start: int = array.__array_interface__["data"][0]
            return ArrayPlace(maps.index(one), start - one.address, array.shape, array.strides)
    return None
