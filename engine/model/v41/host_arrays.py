"""The one way from an array of the host to a tensor of the device: a copy that nobody waits for.

A plain `.to(device)` waits for the whole stream on a GPU, and so would put an end to running ahead. A copy
from page-locked memory is only enqueued. torch's allocator of such memory gives a block to a new owner only
after the copies from it have ended, which makes the ring that a step's arrays need; for what is copied in
every step there are fixed staging buffers instead (`captured_inputs.py`).
"""

from __future__ import annotations

from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor


def to_device(array: npt.NDArray[Any], device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """The array's values on `device`, in `dtype` (None: the array's own). Enqueued on a GPU's stream."""
    host = torch.from_numpy(array)
    if device.type != "cuda":
        return host.to(device, dtype)
    placed = host.pin_memory().to(device, non_blocking=True) if array.size else host.to(device)
    return placed if dtype is None else placed.to(dtype)
