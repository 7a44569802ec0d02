"""The fixed memory that captured decode steps read and leave their results in.

A graph replays with the addresses it was captured with. What changes from step to step therefore lies in
tensors that live as long as the runner: fix-ups, slots and lengths of the sequences, which the host writes in
one copy and only when one of them changes, and what the forward's graph hands to the sampling's. Every graph
uses the beginning of them. Real sequences come first; behind them stand placeholders of one row in the
scratch slot. A steady step has no fix-ups, so after a step with some their counts must be given once more.

Staging is a ring of two: F(n+2) is launched after S(n) was collected, so what F(n) copied has arrived; and a
step gives once at most. Results have one place, on the host: S(n+1) is launched after S(n) was collected.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from stepahead.devices.device import Device, StagingBuffer
from stepahead.devices.kernels.operations import Operations
from stepahead.devices.kernels.reference.decode_rows import SlotTables

from ..runner import BatchLayout, Int64s, StepPlan
from .batch import Batch
from .captured_sizes import GraphSizes
from .fix_ups import FixUpRoom
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

        self.room = FixUpRoom(copies=sequences, entries=2 * sequences)
        self._given = zeros(self.room.size + 2 * rows + 1)
        self._given_fix_ups, *others = self._given.split([self.room.size, rows, rows, 1])
        self.fix_ups = self.room.read(self._given_fix_ups)
        self.slots, self.lengths, self.redeal = others
        self.lengths.fill_(1)
        self.first = zeros(rows)
        self.verified = zeros(rows) + 1  # lengths as dealt
        self.logits = zeros(rows, vocab, dtype=wide)
        self._staged = [
            _Staged(device.staging(8 * self._given.numel()), self.room.size) for _ in range(_RING)
        ]
        self._held: tuple[BatchLayout, bool] | None = None  # what the device was given last
        self._fixes = False  # and whether fix-ups were among it
        self._returned = device.staging(sequences * width * 4)
        self.returned = self._returned.host.view(np.int32).reshape(sequences, width)
        self.results = torch.from_numpy(self.returned)
        self._turn = 0

    def give(self, plan: StepPlan, *, fixed: bool) -> None:
        """Enqueue the copy of the plan's layout, filled up with placeholders, and of its fix-ups unless they
        are made already; nothing where the device has all that.
        """
        fixes = not fixed and bool(plan.state_copies.size or plan.table_updates.size)
        held = self._held is not None and self._held[0] is plan.layout and self._held[1] == plan.redeal
        if held and not fixes and not self._fixes:
            return
        self._held, self._fixes = (plan.layout, plan.redeal), fixes
        staged = self._staged[self._turn]
        self._turn = (self._turn + 1) % _RING
        none = slice(0, None if fixes else 0)
        self.room.write(staged.fix_ups, plan.state_copies[none], plan.table_updates[none])
        if held:
            self._given_fix_ups.copy_(staged.fix_ups_tensor, non_blocking=True)
            return
        self._lay(staged.others, plan.layout, plan.redeal)
        self._given.copy_(staged.tensor, non_blocking=True)

    def _lay(self, numbers: Int64s, layout: BatchLayout, redeal: bool) -> None:
        rows, count = self.slots.shape[0], layout.slots.size
        numbers[:count], numbers[count:rows] = layout.slots, 0
        numbers[rows : rows + count], numbers[rows + count : 2 * rows] = layout.query_lengths, 1
        numbers[-1] = redeal


class _Staged:
    """Page-locked numbers on their way to the device."""

    def __init__(self, buffer: StagingBuffer, fix_ups: int) -> None:
        """The first so many numbers are fix-ups."""
        numbers: Int64s = buffer.host.view(np.int64)
        self.tensor = torch.from_numpy(numbers)
        self.fix_ups, self.others = numbers[:fix_ups], numbers[fix_ups:]
        self.fix_ups_tensor = self.tensor[:fix_ups]


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
