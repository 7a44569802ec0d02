"""Arrays that go to the device in one copy arrive as they were."""

from __future__ import annotations

import numpy as np
import torch

from stepahead.engine.model.v41.host_arrays import together_to_device


def test_arrays_of_several_types_and_shapes_in_one_copy() -> None:
    arrays = (
        np.arange(3, dtype=np.int64),
        np.empty((2, 0), dtype=np.int64),
        np.array([[1.5, np.nan, -0.0]], dtype=np.float32),
        np.arange(24, dtype=np.int32).reshape(4, 6)[:, ::2],  # not contiguous
        np.array([7], dtype=np.int32),
    )
    placed = together_to_device(arrays, torch.device("cpu"))
    for tensor, array in zip(placed, arrays, strict=True):
        assert tensor.numpy().dtype == array.dtype
        np.testing.assert_array_equal(tensor.numpy(), array)
        assert tensor.data_ptr() % 16 == placed[0].data_ptr() % 16
    storages = {tensor.untyped_storage().data_ptr() for tensor in placed}
    assert len(storages) == 1


def test_nothing_to_copy() -> None:
    assert together_to_device((), torch.device("cpu")) == []
    (empty,) = together_to_device((np.empty(0, dtype=np.float32),), torch.device("cpu"))
    assert empty.shape == (0,)
