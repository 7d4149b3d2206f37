"""K and V tensors in safetensors files: which name is which layer, and their octets."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from kvcs.cli.exits import CommandError, ExitCode
from kvcs.cli.files import growing
from kvcs.kvsp.shapes import DTYPES, AnyArray

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from typing import Self

__all__ = ["K_NAMES", "V_NAMES", "CacheFile", "NameTemplate", "write_tensors"]

K_NAMES = "layers.{layer}.k"
V_NAMES = "layers.{layer}.v"

_BITS = {
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 64),
    **dict.fromkeys(("F32", "I32", "U32"), 32),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 16),
    **dict.fromkeys(("F8_E4M3", "F8_E5M2", "F8_E8M0", "I8", "U8", "BOOL"), 8),
    **dict.fromkeys(("F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    "F4": 4,
}
_DTYPES = {
    "F32": DTYPES["float32"],
    "F16": DTYPES["float16"],
    "BF16": DTYPES["bfloat16"],
    "F8_E4M3": DTYPES["float8_e4m3fn"],
    "F8_E5M2": DTYPES["float8_e5m2"],
    "I8": DTYPES["int8"],
    "U8": DTYPES["uint8"],
}
"""The element types of kvsp-1 by the name that safetensors gives them."""


@dataclass(frozen=True, slots=True)
class NameTemplate:
    """The tensors' names with `{layer}` for the layer's index: `layers.{layer}.k`."""

    text: str

    def __post_init__(self) -> None:
        if self.text.count("{layer}") != 1:
            raise CommandError(
                ExitCode.USAGE,
                f"{self.text!r} is no name template: expected {{layer}} in it exactly once",
                hint=f"for example {K_NAMES}",
            )

    def name(self, layer: int) -> str:
        """Return the tensor's name for a layer."""
        return self.text.replace("{layer}", str(layer))

    def layers(self, names: list[str]) -> list[int]:
        """Return the layers that `names` have a tensor of, ascending."""
        before, _, after = self.text.partition("{layer}")
        pattern = re.compile(re.escape(before) + r"(0|[1-9][0-9]{0,5})" + re.escape(after))
        return sorted(int(match[1]) for name in names if (match := pattern.fullmatch(name)))


@dataclass(frozen=True, slots=True)
class _Tensor:
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


class CacheFile:
    """The tensors of one safetensors file. Octets are read when they are touched, not before.

    numpy has no bfloat16 or float8 of its own, so tensors are views of the mapped octets as
    `ml_dtypes`. Where the octets lie follows from the format: tensors fill the file's end without
    a gap, in the order that the library tells.
    """

    def __init__(self, path: Path, tensors: dict[str, _Tensor], metadata: dict[str, str]) -> None:
        self.path = path
        self.metadata = metadata
        self._tensors = tensors
        self._octets: AnyArray | None = None

    @classmethod
    def open(cls, path: Path) -> Self:
        """Read a file's table of tensors; CommandError says what is wrong with the file."""
        try:
            octets = path.stat().st_size
            with safe_open(path, framework="np") as file:
                names = file.offset_keys()
                slices = [(name, file.get_slice(name)) for name in names]
                found = [(n, s.get_dtype(), tuple(s.get_shape())) for n, s in slices]
                metadata = dict(file.metadata() or {})
        except SafetensorError as error:
            raise CommandError(ExitCode.FILE, f"{path}: not a safetensors file: {error}") from error
        except OSError as error:
            reason = error.strerror or "cannot be read"
            raise CommandError(ExitCode.FILE, f"{path}: {reason}") from error
        sizes = []
        for name, dtype, shape in found:
            if dtype not in _BITS:
                raise CommandError(ExitCode.FILE, f"{path}: tensor {name!r} has dtype {dtype}")
            sizes.append(_count(shape) * _BITS[dtype] // 8)
        start = octets - sum(sizes)
        tensors = {}
        for (name, dtype, shape), size in zip(found, sizes, strict=True):
            tensors[name] = _Tensor(dtype, shape, start, start + size)
            start += size
        return cls(path, tensors, metadata)

    @property
    def names(self) -> list[str]:
        """The tensors' names."""
        return list(self._tensors)

    def _entry(self, name: str) -> _Tensor:
        entry = self._tensors.get(name)
        if entry is None:
            raise CommandError(
                ExitCode.USAGE,
                f"{self.path}: no tensor {name!r} among {len(self._tensors)} ({_some(self.names)})",
                hint="say how the layers are named with --k-names and --v-names",
            )
        return entry

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a tensor's shape; CommandError when the file has none of this name."""
        return self._entry(name).shape

    def dtype_name(self, name: str) -> str:
        """Return a tensor's dtype as descriptors name it; as the file does if they cannot."""
        dtype = self._entry(name).dtype
        return _DTYPES[dtype].name if dtype in _DTYPES else dtype

    def tensor(self, name: str) -> AnyArray:
        """Return a tensor as a read-only view of the file; CommandError when it has none of it."""
        entry = self._entry(name)
        if entry.dtype not in _DTYPES:
            raise CommandError(
                ExitCode.USAGE,
                f"{self.path}: tensor {name!r} has dtype {entry.dtype}; a cache has one of "
                f"{', '.join(_DTYPES)}",
            )
        if self._octets is None:
            self._octets = np.memmap(self.path, "u1", "r")
        octets = self._octets[entry.start : entry.stop]
        return octets.view(_DTYPES[entry.dtype]).reshape(entry.shape)

    def count_layers(self, template: NameTemplate) -> int:
        """Return how many layers the file has by this template: 0 to n-1 without a gap."""
        layers = template.layers(self.names)
        if not layers:
            self._entry(template.name(0))
        missing = sorted(set(range(layers[-1] + 1)) - set(layers))
        if missing:
            raise CommandError(
                ExitCode.USAGE,
                f"{self.path}: layers up to {layers[-1]} but no tensor "
                + ", ".join(repr(template.name(layer)) for layer in missing[:4])
                + (f" and {len(missing) - 4} more" if len(missing) > 4 else ""),
            )
        return len(layers)


def _count(shape: tuple[int, ...]) -> int:
    total = 1
    for length in shape:
        total *= length
    return total


def _some(names: list[str]) -> str:
    return ", ".join(sorted(names)[:3]) + (", ..." if len(names) > 3 else "")


def write_tensors(path: Path, tensors: Mapping[str, AnyArray], metadata: dict[str, str]) -> None:
    """Write a safetensors file whole or not at all; what was there before is replaced."""
    contiguous = {name: np.ascontiguousarray(array) for name, array in tensors.items()}
    try:
        with growing(path) as part:
            save_file(contiguous, part, metadata=metadata)
    except SafetensorError as error:
        raise CommandError(ExitCode.FILE, f"{path}: cannot be written: {error}") from error
