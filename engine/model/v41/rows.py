"""Rows of a step whose lengths the host knows. What rows are, and where they read and write, is described in
`devices.kernels.reference.rows`, where their index tensors are computed: those belong to the kernels, which
differ from device to device; the plan belongs to the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from stepahead.devices.kernels.reference.rows import (
    BLOCK_TOKENS,
    EntryIndex,
    RingIndex,
    Rows,
    Tiles,
    entry_index,
    lay_rows,
    uniform_tiles,
)

from .host_arrays import together_to_device

__all__ = [
    "BLOCK_TOKENS",
    "EntryIndex",
    "RingIndex",
    "Rows",
    "Tiles",
    "entry_index",
    "lay_rows",
    "plan_rows",
    "plan_tiles",
    "row_tiles",
    "uniform_tiles",
]

_TILE_HEIGHTS = np.array([1, 2, 4, 8, 16, 32, 64])
_KEY_COST = 2
"""A tile's keys cost about as much as this many of its rows."""


class _PlannedTiles(Tiles):
    """Tiles of the height with the least padded work."""

    def __init__(self, lengths: npt.NDArray[np.int64], device: torch.device) -> None:
        counts = -(-lengths // _TILE_HEIGHTS[:, None])
        rows = int(_TILE_HEIGHTS[np.argmin(counts.sum(1) * (_TILE_HEIGHTS + _KEY_COST))])
        super().__init__(rows, int(lengths.max(initial=0)))
        self._lengths, self._device = lengths, device

    def _lay(self) -> tuple[Tensor, Tensor, Tensor]:
        per_sequence = -(-self._lengths // self.rows)
        first = np.cumsum(per_sequence) - per_sequence
        sequence = np.repeat(np.arange(self._lengths.size), per_sequence)
        offset = (np.arange(sequence.size) - first[sequence]) * self.rows
        placed = together_to_device((sequence, offset, first), self._device)
        return placed[0], placed[1], placed[2]


def plan_tiles(query_lengths: Sequence[int] | npt.NDArray[np.integer[Any]], device: torch.device) -> Tiles:
    """Choose the tile height with the least padded work."""
    return _PlannedTiles(np.asarray(query_lengths, dtype=np.int64), device)


class _RowTiles(Tiles):
    """Every row a tile of its own."""

    def __init__(self, length: Tensor, count: int, longest: int) -> None:
        super().__init__(1, longest)
        self._length, self._count = length, count

    def _lay(self) -> tuple[Tensor, Tensor, Tensor]:
        ends = self._length.cumsum(0)
        first, number = ends - self._length, torch.arange(self._count, device=ends.device)
        sequence = torch.searchsorted(ends, number, right=True)
        return sequence, number - first[sequence], first


def row_tiles(length: Tensor, count: int, longest: int) -> Tiles:
    """For `count` rows of sequences whose lengths, `longest` at most, only the device knows and may vary."""
    return _RowTiles(length, count, longest)


def plan_rows(first_positions: Sequence[int], lengths: Sequence[int], device: torch.device) -> Rows:
    """Rows from lengths known on the host."""
    as_tensor = [torch.tensor(list(x), dtype=torch.int64, device=device) for x in (first_positions, lengths)]
    return lay_rows(as_tensor[0], as_tensor[1], sum(lengths), plan_tiles(lengths, device))
