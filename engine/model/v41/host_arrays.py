"""Between arrays of the host and tensors of the device: copies that nobody waits for.

A plain `.to(device)` waits for the whole stream on a GPU, and so would put an end to running ahead. A copy
from page-locked memory is only enqueued. torch's allocator of such memory gives a block to a new owner only
after the copies from it have ended, which makes the ring that a step's arrays need; for what is copied in
every step there are fixed staging buffers instead (`captured_inputs.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_ALIGNED = 16
"""Bytes; kernels read faster from places that are multiples of it."""


def to_device(array: npt.NDArray[Any], device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """The array's values on `device`, in `dtype` (None: the array's own). Enqueued on a GPU's stream."""
    host = torch.from_numpy(array)
    if device.type != "cuda":
        return host.to(device, dtype)
    placed = host.pin_memory().to(device, non_blocking=True) if array.size else host.to(device)
    return placed if dtype is None else placed.to(dtype)


def together_to_device(arrays: Sequence[npt.NDArray[Any]], device: torch.device) -> list[Tensor]:
    """Each array's values on `device`, in its own type and shape, all in one copy."""
    begins = [0]
    for array in arrays:
        begins.append(begins[-1] + -(-array.nbytes // _ALIGNED) * _ALIGNED)
    host = torch.empty(begins[-1], dtype=torch.uint8, pin_memory=device.type == "cuda" and begins[-1] > 0)
    memory = host.numpy()
    for array, begin in zip(arrays, begins, strict=False):
        memory[begin : begin + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    placed = host.to(device, non_blocking=True)
    return [
        placed[begin : begin + array.nbytes].view(torch.from_numpy(array[:0]).dtype).view(array.shape)
        for array, begin in zip(arrays, begins, strict=False)
    ]


def start_copy(tensor: Tensor) -> Tensor:
    """A host tensor that holds the values once the stream has come this far (at once on a CPU)."""
    if tensor.device.type != "cuda":
        return tensor
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.numel() > 0)
    return host.copy_(tensor, non_blocking=True)
