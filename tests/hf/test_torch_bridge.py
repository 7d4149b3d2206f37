"""kvcs.integrations.torch: every dtype bit for bit, the same memory, clear refusals."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch

from kvcs.integrations.torch import to_numpy, to_torch

DTYPES = {
    torch.float32: np.float32,
    torch.float16: np.float16,
    torch.bfloat16: ml_dtypes.bfloat16,
    torch.float8_e4m3fn: ml_dtypes.float8_e4m3fn,
    torch.float8_e5m2: ml_dtypes.float8_e5m2,
    torch.int8: np.int8,
    torch.uint8: np.uint8,
}


@pytest.mark.parametrize(("tensor_dtype", "array_dtype"), DTYPES.items(), ids=str)
def test_every_bit_pattern_survives_both_ways(
    tensor_dtype: torch.dtype, array_dtype: type[np.generic]
) -> None:
    # All 65,536 halves, so that every NaN payload of the 8 and 16-bit types is among them.
    octets = np.arange(65536, dtype=np.uint16).view(np.uint8)
    tensor = torch.from_numpy(octets.copy()).view(tensor_dtype)
    array = to_numpy(tensor)
    assert array.dtype == np.dtype(array_dtype)
    assert np.array_equal(array.view(np.uint8), octets)
    back = to_torch(array)
    assert back.dtype == tensor_dtype
    assert back.data_ptr() == tensor.data_ptr()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_strides_and_memory_are_shared(dtype: torch.dtype) -> None:
    tensor = torch.zeros(1, 3, 8, 4, dtype=dtype)
    view = tensor[0, :, 2:6].transpose(0, 1)
    array = to_numpy(view)
    assert array.shape == (4, 3, 4)
    assert not array.flags.c_contiguous
    array[1, 2, 3] = 1
    assert float(tensor[0, 2, 3, 3]) == 1
    assert to_torch(array).stride() == view.stride()


def test_a_tensor_with_a_gradient_is_taken() -> None:
    assert to_numpy(torch.ones(2, requires_grad=True)).tolist() == [1, 1]


def test_what_kvsp_does_not_name_is_refused() -> None:
    with pytest.raises(TypeError, match=r"tensor is torch\.float64, expected one of bfloat16, "):
        to_numpy(torch.zeros(1, dtype=torch.float64))
    with pytest.raises(TypeError, match="array is int32, expected one of bfloat16, "):
        to_torch(np.zeros(1, np.int32))


def test_memory_that_cannot_be_shared_is_refused() -> None:
    with pytest.raises(ValueError, match="tensor is on meta, expected cpu"):
        to_numpy(torch.zeros(1, device="meta"))
    array = np.zeros(1, np.float32)
    array.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        to_torch(array)
