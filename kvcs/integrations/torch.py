"""torch tensors as numpy arrays and back, sharing memory, bfloat16 and float8 included.

`Tensor.numpy()` and `torch.from_numpy` refuse bfloat16 and float8, which are what caches are made
of. A view through an integer type of the same width goes round that, with no copy and no change to
a single bit. Needs torch (`pip install 'kvcs[hf]'`); importing this module imports it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import torch

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["to_numpy", "to_torch"]

# torch dtype -> (torch dtype and numpy dtype of the same width that both know, numpy dtype)
_VIA: dict[torch.dtype, tuple[torch.dtype, np.dtype[Any], np.dtype[Any]]] = {
    torch.bfloat16: (torch.int16, np.dtype(np.int16), np.dtype(ml_dtypes.bfloat16)),
    torch.float8_e4m3fn: (torch.uint8, np.dtype(np.uint8), np.dtype(ml_dtypes.float8_e4m3fn)),
    torch.float8_e5m2: (torch.uint8, np.dtype(np.uint8), np.dtype(ml_dtypes.float8_e5m2)),
    **{
        tensor_dtype: (tensor_dtype, np.dtype(array_dtype), np.dtype(array_dtype))
        for tensor_dtype, array_dtype in (
            (torch.float32, np.float32),
            (torch.float16, np.float16),
            (torch.int8, np.int8),
            (torch.uint8, np.uint8),
        )
    },
}
_BACK = {array_dtype: (raw, dtype) for dtype, (_, raw, array_dtype) in _VIA.items()}


def to_numpy(tensor: torch.Tensor) -> NDArray[Any]:
    """Return the tensor as an array: same shape, strides and memory, valid as long as the array is.

    The dtype is numpy's or that of `ml_dtypes`. A gradient is not carried along.
    Raises: TypeError for a dtype that KVSP does not name; ValueError for a tensor that is not in
    the CPU's memory: move it first, and know what that copy costs.
    """
    if tensor.dtype not in _VIA:
        raise TypeError(f"tensor is {tensor.dtype}, expected one of {_names(_VIA)}")
    if tensor.device.type != "cpu":
        raise ValueError(f"tensor is on {tensor.device}, expected cpu: call .cpu() first")
    via, _, dtype = _VIA[tensor.dtype]
    array: NDArray[Any] = tensor.detach().view(via).numpy()
    return array.view(dtype)


def to_torch(array: NDArray[Any]) -> torch.Tensor:
    """Return the array as a tensor that shares its shape, strides and memory.

    Raises: TypeError for a dtype that KVSP does not name; ValueError for a read-only array, which
    torch would let its caller write to.
    """
    if array.dtype not in _BACK:
        raise TypeError(f"array is {array.dtype}, expected one of {_names(_BACK)}")
    if not array.flags.writeable:
        raise ValueError("array is read-only: copy it, or receive into memory that may be written")
    raw, dtype = _BACK[array.dtype]
    return torch.from_numpy(array.view(raw)).view(dtype)


def _names(known: dict[Any, Any]) -> str:
    return ", ".join(str(dtype).removeprefix("torch.") for dtype in known)
