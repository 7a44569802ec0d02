"""Staging memory and graphs of devices that compute on the host: plain arrays, and no graphs."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .device import StagingBuffer


class HostBuffer(StagingBuffer):
    """Ordinary memory: host devices read it in place."""

    __slots__ = ("_bytes",)

    def __init__(self, size: int) -> None:
        self._bytes = np.zeros(size, dtype=np.uint8)

    @property
    def host(self) -> npt.NDArray[np.uint8]:
        return self._bytes
