"""Which failures of a device mean that it had no room."""

from __future__ import annotations

import pytest

from stepahead.devices.device import DeviceError, OutOfMemoryError
from stepahead.devices.poison import poison


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate"),
        RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    ],
    ids=str,
)
def test_no_room_is_told_apart_whoever_noticed(error: Exception) -> None:
    made = poison("forward:3", error)
    assert isinstance(made, OutOfMemoryError)
    assert "forward:3" in str(made)
    assert made.__cause__ is error


def test_other_failures_are_not() -> None:
    made = poison("forward:3", RuntimeError("CUDA error: an illegal memory access was encountered"))
    assert type(made) is DeviceError
    assert poison("later work", made) is made
