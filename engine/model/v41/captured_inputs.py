"""The fixed memory that captured decode steps read and leave their results in.

A graph replays with the addresses it was captured with. What changes from step to step therefore lies in
tensors that live as long as the runner: slots and lengths of the sequences, written by the host only when the
layout changes, and what the forward's graph hands to the sampling's. Every graph uses the beginning of them.
Real sequences come first; behind them stand placeholders of one row in the scratch slot.

Staging is a ring of two: F(n+2) is launched after S(n) was collected, so what F(n) copied has arrived.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from stepahead.devices.device import Device
from stepahead.devices.kernels.operations import Operations
from stepahead.devices.kernels.reference.decode_rows import SlotTables

from ..runner import BatchLayout
from .batch import Batch
from .captured_sizes import GraphSizes
from .rows import row_tiles
from .slots import SlotState

_RING = 2


class DecodeBuffers:
    """Tensors on the device, and page-locked memory on the host."""

    def __init__(
        self,
        sizes: GraphSizes,
        vocab: int,
        width: int,
        wide: torch.dtype,
        place: torch.device,
        device: Device,
    ) -> None:
        """`width` is of a result's row (`results.ResultColumns`)."""
        rows, sequences = sizes.rows[-1], sizes.sequences[-1]

        def zeros(*size: int, dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.zeros(*size, dtype=dtype, device=place)

        self._given = zeros(2 * rows + 1)
        self.slots, self.lengths, self.redeal = self._given.split([rows, rows, 1])
        self.lengths.fill_(1)
        self.first = zeros(rows)
        self.verified = zeros(rows) + 1  # lengths as dealt
        self.logits = zeros(rows, vocab, dtype=wide)
        self.results = zeros(sequences, width, dtype=torch.int32)
        self._staged = [device.staging(self._given.numel() * 8) for _ in range(_RING)]
        self._returned = device.staging(self.results.numel() * 4)
        self.returned = self._returned.host.view(np.int32).reshape(sequences, width)
        self._returned_tensor = torch.from_numpy(self.returned)
        self._turn = 0

    def give(self, layout: BatchLayout, redeal: bool) -> None:
        """Enqueue the copy of a layout, filled up with placeholders."""
        host = self._staged[self._turn].host.view(np.int64)
        self._turn = (self._turn + 1) % _RING
        rows, count = self.slots.shape[0], layout.slots.size
        host[:count], host[count:rows] = layout.slots, 0
        host[rows : rows + count], host[rows + count : 2 * rows] = layout.query_lengths, 1
        host[-1] = redeal
        self._given.copy_(torch.from_numpy(host), non_blocking=True)

    def take_results(self, count: int) -> None:
        """Enqueue the copy of the first `count` rows to `returned`."""
        self._returned_tensor[:count].copy_(self.results[:count], non_blocking=True)


class DecodeInput:
    """The batch of a captured forward: `rows` rows of sequences whose lengths only the device knows."""

    def __init__(
        self,
        buffers: DecodeBuffers,
        state: SlotState,
        most_drafts: Tensor,
        sizes: GraphSizes,
        operations: Operations,
    ) -> None:
        """`most_drafts` is the table by slots, see `SamplingRows`."""
        self._buffers, self._state, self._most_drafts, self._sizes = buffers, state, most_drafts, sizes
        self._operations = operations

    def batch(self, rows: int, columns: int, deals: bool) -> Batch:
        """Placeholders are rows of slot 0."""
        buffers, state, slots = self._buffers, self._state, self._buffers.slots[:rows]
        lengths = self._dealt(rows) if deals else buffers.lengths[:rows]
        tables = SlotTables(state.position, state.token, state.drafts, state.history, state.table)
        laid = self._operations.lay_decode(
            tables, slots, lengths, rows, columns, row_tiles(lengths, rows, self._sizes.reach)
        )
        buffers.verified[:rows].copy_(lengths)
        buffers.first[:rows].copy_(laid.rows.first_position)
        return Batch(
            token_ids=laid.token_ids,
            rows=laid.rows,
            state_slot=slots,
            block_table=laid.block_table,
            history=laid.history,
            window_floor=laid.zero,
            consumer_floor=laid.zero,
            entry_floor=laid.zero,
        )

    def _dealt(self, rows: int) -> Tensor:
        """Lengths as the newest confidences deal them, where the plan says so. Only slots can be dealt to,
        and they come first.
        """
        buffers, most = self._buffers, min(rows, self._sizes.sequences[-1])
        return self._operations.deal_lengths(
            self._state.confidence, self._most_drafts, buffers.slots[:rows], buffers.lengths[:rows],
            buffers.redeal, most,
        )  # fmt: skip
