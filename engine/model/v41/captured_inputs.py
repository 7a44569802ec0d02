"""The fixed memory that captured decode steps read and leave their results in.

A graph replays with the addresses it was captured with. What changes from step to step therefore lies in
tensors that live as long as the runner: slots and lengths of the sequences, written by the host only when the
layout changes, and what the forward's graph hands to the sampling's. Every graph uses the beginning of them.

Staging is a ring of two: F(n+2) is launched after S(n) was collected, so what F(n) copied has arrived.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from stepahead.devices.device import Device

from ..runner import BatchLayout
from .batch import Batch
from .captured_sizes import GraphSize
from .host_arrays import to_device
from .rows import lay_rows, uniform_tiles
from .slots import SlotState

_RING = 2


class DecodeBuffers:
    """Tensors on the device, and page-locked memory on the host."""

    def __init__(
        self,
        rows: int,
        sequences: int,
        vocab: int,
        width: int,
        wide: torch.dtype,
        place: torch.device,
        device: Device,
    ) -> None:
        """For the largest steps; `width` is of a result's row (`results.ResultColumns`)."""
        self._given = torch.zeros(2, sequences, dtype=torch.int64, device=place)  # slots, lengths
        self.first = torch.zeros(sequences, dtype=torch.int64, device=place)
        self.logits = torch.zeros(rows, vocab, dtype=wide, device=place)
        self.results = torch.zeros(sequences, width, dtype=torch.int32, device=place)
        self._staged = [device.staging(self._given.numel() * 8) for _ in range(_RING)]
        self._returned = device.staging(self.results.numel() * 4)
        self.returned = self._returned.host.view(np.int32).reshape(sequences, width)
        self._returned_tensor = torch.from_numpy(self.returned)
        self._turn = 0

    def slots(self, size: GraphSize) -> Tensor:
        """`[sequences]` 0 for placeholders."""
        return self._given[0, : size.sequences]

    def lengths(self, size: GraphSize) -> Tensor:
        """`[sequences]` rows of each; they sum to the rows of the size."""
        return self._given[1, : size.sequences]

    def give(self, layout: BatchLayout, size: GraphSize, reach: int) -> None:
        """Enqueue the copy of a layout, filled up with placeholders."""
        host = self._staged[self._turn].host.view(np.int64).reshape(2, -1)
        self._turn = (self._turn + 1) % _RING
        count = layout.slots.size
        host[0, :count], host[0, count:] = layout.slots, 0
        host[1, :count], host[1, count:] = layout.query_lengths, 0
        host[1, count : size.sequences] = placeholder_lengths(
            size.rows - layout.rows, size.sequences - count, reach
        )
        self._given.copy_(torch.from_numpy(host), non_blocking=True)

    def give_placeholders(self, size: GraphSize, reach: int) -> None:
        """A step of nobody, which writes to scratch places only: for trying a size out."""
        lengths = placeholder_lengths(size.rows, size.sequences, reach)
        self.slots(size).zero_()
        self.lengths(size).copy_(to_device(lengths, self._given.device))

    def take_results(self, count: int) -> None:
        """Enqueue the copy of the first `count` rows to `returned`."""
        self._returned_tensor[:count].copy_(self.results[:count], non_blocking=True)


def placeholder_lengths(rows: int, sequences: int, reach: int) -> np.ndarray:
    """`rows` over placeholders, at most `reach` each."""
    return np.clip(rows - reach * np.arange(sequences), 0, reach)


def decode_batch(
    slots: Tensor, lengths: Tensor, size: GraphSize, columns: int, reach: int, state: SlotState
) -> Batch:
    """The batch of a decode step whose sequences and lengths only the device knows.

    Placeholders stand at position 0 of the scratch slot, whatever earlier ones left in it: a position that
    grew with every step would outgrow the tables of positions.
    """
    first = torch.where(slots > 0, state.position[slots], 0)
    rows = lay_rows(first, lengths, size.rows, uniform_tiles(size.sequences, reach, slots.device))
    place = torch.arange(size.rows, device=slots.device) - rows.row_start[rows.sequence]
    guesses = torch.cat((state.token[slots].unsqueeze(1), state.drafts[slots]), dim=1)
    zero = torch.zeros_like(first)
    return Batch(
        token_ids=guesses[rows.sequence, place],
        rows=rows,
        state_slot=slots,
        block_table=state.table[slots, :columns],
        history=state.history[slots],
        window_floor=zero,
        consumer_floor=zero,
        entry_floor=zero,
    )
