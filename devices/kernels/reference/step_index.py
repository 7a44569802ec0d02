"""The index tensors of one step, shared by all its layers.

They are a few numbers a row, but many kinds of them, and as single tensor operations they were sixty launches
a step: more than a small model's attention. So the whole index is one operation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from .attention import KeyIndex
from .rows import EntryIndex, RingIndex, Rows, entry_index, ring_index, uniform_tiles


@dataclass(frozen=True)
class StepShape:
    """What is the same in all steps of a model with one set of caches."""

    state_slots: int
    window: int  # positions a row sees
    window_ring: int
    group_rings: Mapping[int, int]  # by ratio, for ratios above 1
    ratios: tuple[int, ...]  # of compressed entries
    window_turns: Tensor  # [positions, rotary_dim] rotary factors, wide
    compressed_turns: Tensor

    @property
    def wide(self) -> torch.dtype:
        return self.window_turns.dtype


@dataclass(frozen=True)
class StepTables:
    """What a step knows of its sequences beside its rows."""

    state_slot: Tensor  # [sequences]
    block_table: Tensor  # [sequences, blocks]
    window_floor: Tensor  # [sequences] lowest position a row may see or keep
    entry_floor: Tensor  # [sequences] positions below complete no entries


@dataclass(frozen=True)
class StepIndex:
    """Where the rows of one step read and write. Layers above the YOCO boundary may have one of their own."""

    rows: Rows
    block_table: Tensor
    window: RingIndex
    groups: dict[int, RingIndex]  # by ratio, for ratios above 1
    entries: dict[int, EntryIndex]  # by ratio
    turns: dict[int, Tensor]  # rotary factors of the rows, by ratio, 0 for window layers: [rows, rotary_dim]
    entry_turns: dict[int, Tensor]  # rotary factors of the rows' entries, by ratio
    image_mask: Tensor | None = None  # [rows] bool


def index_step(shape: StepShape, rows: Rows, tables: StepTables) -> StepIndex:
    """The index of rows of known sequences and positions."""
    position = rows.position
    groups = {ratio: _group_index(shape, rows, tables, ratio) for ratio in shape.group_rings}
    entries = {r: entry_index(rows, tables.block_table, r, tables.entry_floor) for r in shape.ratios}
    turns = {0: shape.window_turns.index_select(0, position)}
    if shape.ratios:
        compressed = shape.compressed_turns.index_select(0, position)
        turns |= dict.fromkeys(shape.ratios, compressed)
    return StepIndex(
        rows=rows,
        block_table=tables.block_table,
        window=index_window(shape, rows, tables),
        groups=groups,
        entries=entries,
        turns=turns,
        entry_turns={r: shape.compressed_turns.index_select(0, i.position) for r, i in entries.items()},
    )


def index_window(shape: StepShape, rows: Rows, tables: StepTables) -> RingIndex:
    """The window part of `index_step` alone."""
    return ring_index(
        rows,
        tables.state_slot,
        width=shape.window,
        ring=shape.window_ring,
        slots=shape.state_slots,
        wide=shape.wide,
        floor=tables.window_floor,
    )


def _group_index(shape: StepShape, rows: Rows, tables: StepTables, ratio: int) -> RingIndex:
    return ring_index(
        rows,
        tables.state_slot,
        width=ratio,
        ring=shape.group_rings[ratio],
        slots=shape.state_slots,
        wide=shape.wide,
    )


def index_drafts(shape: StepShape, anchor: Tensor, state_slot: Tensor, block: int) -> StepIndex:
    """The index of one draft block per sequence (model_spec 3.2), its first row at position `anchor + 1`.

    All rows of a block see the same keys: the window up to the anchor, and the whole block in staging.
    Nothing is stored.
    """
    sequences, device = anchor.shape[0], anchor.device
    places = torch.arange(block, device=device)
    first = anchor + 1
    position = (first.unsqueeze(1) + places).flatten()
    sequence = torch.arange(sequences, device=device).repeat_interleave(block)
    length = torch.full_like(anchor, block)
    start = torch.arange(0, sequences * block, block, device=device)
    rows = Rows(sequence, position, start, first, length, uniform_tiles(sequences, block, device))
    staging = shape.state_slots * shape.window_ring
    seen = anchor.unsqueeze(1) - torch.arange(shape.window - 1, -1, -1, device=device)
    main = (state_slot.unsqueeze(1) * shape.window_ring + seen % shape.window_ring).masked_fill(seen < 0, -1)
    own = staging + start.unsqueeze(1) + places
    keys = KeyIndex(torch.cat((main, own), dim=1), shape.wide, repeats=block)
    window = RingIndex(staging, keys, torch.zeros_like(position), True)
    turns = {0: shape.window_turns.index_select(0, position)}
    table = torch.zeros(sequences, 1, dtype=torch.int64, device=device)
    return StepIndex(rows, table, window, {}, {}, turns, {})
