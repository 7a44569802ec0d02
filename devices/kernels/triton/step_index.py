"""The index tensors of a step in one launch. Twin: `reference.step_index`.

A program takes a row: it finds the row's sequence, and from five numbers of it computes every place the row
reads and writes, and copies its rotary factors. Everything a row gets lies in three arrays (places int32,
numbers int64, factors float32) of which the index hands out views.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..reference import step_index as reference
from ..reference.attention import KeyIndex
from ..reference.rows import BLOCK_TOKENS, EntryIndex, RingIndex, Rows, spares_history, uniform_tiles
from ..reference.step_index import StepIndex, StepShape, StepTables
from .launching import power_of_two

_BLOCK_TOKENS = tl.constexpr(BLOCK_TOKENS)


@triton.jit
def _ring_places(
    places_pointer,
    position,
    first,
    row_start,
    slot,
    lowest,
    staging,
    WIDTH: tl.constexpr,
    WIDTH_PADDED: tl.constexpr,
    RING: tl.constexpr,
):
    """Places of the last `WIDTH` positions: of this step in staging, older ones in the ring."""
    number = tl.arange(0, WIDTH_PADDED)
    seen = position - (WIDTH - 1) + number
    in_ring = slot * RING + tl.maximum(seen, 0) % RING
    place = tl.where(seen >= first, staging + row_start + seen - first, in_ring)
    place = tl.where(seen < tl.maximum(lowest, 0), -1, place)
    tl.store(places_pointer + number, place.to(tl.int32), mask=number < WIDTH)


@triton.jit
def _ring_store(position, after, slot, lowest, RING: tl.constexpr):
    """The ring slot of a row, or a scratch slot where it must not be kept."""
    kept = (position >= after - RING) & (position >= lowest) & (slot > 0)
    return tl.where(kept, slot * RING + position % RING, 1 + position % (RING - 1))


@triton.jit
def _copy_turns(out_pointer, table_pointer, position, ROTARY: tl.constexpr):
    column = tl.arange(0, ROTARY)
    tl.store(out_pointer + column, tl.load(table_pointer + position * ROTARY + column))


@triton.jit(do_not_specialize=["rows", "staging", "table_stride"])
def _index_step(
    sequence_pointer, position_pointer, row_start_pointer, first_pointer, length_pointer, slot_pointer,
    floor_pointer, entry_floor_pointer, table_pointer, window_turns_pointer, compressed_turns_pointer,
    places_pointer, numbers_pointer, turns_pointer, rows, table_stride, staging, state_slots,
    WINDOW: tl.constexpr, WINDOW_PADDED: tl.constexpr, WINDOW_RING: tl.constexpr, RATIO_A: tl.constexpr,
    RING_A: tl.constexpr, RATIO_B: tl.constexpr, RING_B: tl.constexpr, ROTARY: tl.constexpr,
):  # fmt: skip
    """Ratios are 0 where there are fewer than two. Numbers: the window's store; then of each ratio the
    visible entries, the entry's position, its store, and the store of its group ring."""
    row = tl.program_id(0).to(tl.int64)
    sequence = tl.load(sequence_pointer + row)
    position = tl.load(position_pointer + row)
    row_start = tl.load(row_start_pointer + sequence)
    first = tl.load(first_pointer + sequence)
    after = first + tl.load(length_pointer + sequence)
    slot = tl.load(slot_pointer + sequence)
    lowest = tl.load(floor_pointer + sequence)
    _ring_places(
        places_pointer + row * WINDOW, position, first, row_start, slot, lowest, staging,
        WINDOW, WINDOW_PADDED, WINDOW_RING,
    )  # fmt: skip
    tl.store(numbers_pointer + row, _ring_store(position, after, slot, lowest, WINDOW_RING))
    _copy_turns(turns_pointer + row * ROTARY, window_turns_pointer, position, ROTARY)
    if RATIO_A > 0:
        _copy_turns(turns_pointer + (rows + row) * ROTARY, compressed_turns_pointer, position, ROTARY)
        block = tl.load(table_pointer + sequence * table_stride + position // _BLOCK_TOKENS)
        entry_floor = tl.load(entry_floor_pointer + sequence)
        _index_entries(
            numbers_pointer + rows + row, turns_pointer + (2 * rows + row) * ROTARY, compressed_turns_pointer,
            position, block, entry_floor, rows, RATIO_A, ROTARY,
        )  # fmt: skip
        group_places = places_pointer + rows.to(tl.int64) * WINDOW
        if RING_A > 0:
            _ring_places(
                group_places + row * RATIO_A, position, first, row_start, slot, position * 0,
                state_slots * RING_A, RATIO_A, RATIO_A, RING_A,
            )  # fmt: skip
            stored = _ring_store(position, after, slot, position * 0, RING_A)
            tl.store(numbers_pointer + 4 * rows + row, stored)
        if RATIO_B > 0:
            _index_entries(
                numbers_pointer + 5 * rows + row, turns_pointer + (3 * rows + row) * ROTARY,
                compressed_turns_pointer, position, block, entry_floor, rows, RATIO_B, ROTARY,
            )  # fmt: skip
            if RING_B > 0:
                _ring_places(
                    group_places + rows * RATIO_A + row * RATIO_B, position, first, row_start, slot,
                    position * 0, state_slots * RING_B, RATIO_B, RATIO_B, RING_B,
                )  # fmt: skip
                stored = _ring_store(position, after, slot, position * 0, RING_B)
                tl.store(numbers_pointer + 8 * rows + row, stored)


@triton.jit
def _index_entries(
    numbers_pointer,
    turns_pointer,
    table_pointer,
    position,
    block,
    entry_floor,
    rows,
    RATIO: tl.constexpr,
    ROTARY: tl.constexpr,
):
    """What a row sees of the entries of one ratio, and which entry it completes."""
    per_block: tl.constexpr = _BLOCK_TOKENS // RATIO
    entry = position // RATIO
    completes = ((position + 1) % RATIO == 0) & (position >= entry_floor) & (block > 0)
    place = tl.where(completes, block * per_block + entry % per_block, 1 + entry % (per_block - 1))
    tl.store(numbers_pointer, (position + 1) // RATIO)
    tl.store(numbers_pointer + rows, entry * RATIO)
    tl.store(numbers_pointer + 2 * rows, place)
    _copy_turns(turns_pointer, table_pointer, entry * RATIO, ROTARY)


@triton.jit
def _index_drafts(
    anchor_pointer,
    slot_pointer,
    window_turns_pointer,
    places_pointer,
    numbers_pointer,
    turns_pointer,
    rows,
    staging,
    BLOCK: tl.constexpr,
    WINDOW: tl.constexpr,
    PADDED: tl.constexpr,
    RING: tl.constexpr,
    ROTARY: tl.constexpr,
):
    """Numbers: sequence and position of the row, zero, and of its sequence first row, position and length."""
    row = tl.program_id(0).to(tl.int64)
    sequence = row // BLOCK
    within = row % BLOCK
    anchor = tl.load(anchor_pointer + sequence)
    slot = tl.load(slot_pointer + sequence)
    position = anchor + 1 + within
    number = tl.arange(0, PADDED)
    seen = anchor - (WINDOW - 1) + number
    main = tl.where(seen < 0, -1, slot * RING + tl.maximum(seen, 0) % RING)
    own = staging + sequence * BLOCK + number - WINDOW
    place = tl.where(number < WINDOW, main, own)
    tl.store(
        places_pointer + row * (WINDOW + BLOCK) + number, place.to(tl.int32), mask=number < WINDOW + BLOCK
    )
    tl.store(numbers_pointer + row, sequence)
    tl.store(numbers_pointer + rows + row, position)
    tl.store(numbers_pointer + 2 * rows + row, position * 0)
    first = within == 0
    tl.store(numbers_pointer + 3 * rows + sequence, sequence * BLOCK, mask=first)
    tl.store(numbers_pointer + 4 * rows + sequence, anchor + 1, mask=first)
    tl.store(numbers_pointer + 5 * rows + sequence, position * 0 + BLOCK, mask=first)
    _copy_turns(turns_pointer + row * ROTARY, window_turns_pointer, position, ROTARY)


def index_step(shape: StepShape, rows: Rows, tables: StepTables) -> StepIndex:
    """See the twin. Places are int32 here."""
    ratios = shape.ratios
    rotary = shape.window_turns.shape[1]
    powers = all(x & (x - 1) == 0 for x in (rotary, *ratios))
    if rows.count == 0 or len(ratios) > 2 or not powers or shape.wide != torch.float32:
        return reference.index_step(shape, rows, tables)
    count, device = rows.count, rows.position.device
    places = torch.empty(count * (shape.window + sum(ratios)), dtype=torch.int32, device=device)
    numbers = torch.empty(1 + 4 * len(ratios), count, dtype=torch.int64, device=device)
    turns = torch.empty(1 + bool(ratios) + len(ratios), count, rotary, dtype=torch.float32, device=device)
    both = (*ratios, 0, 0)[:2]
    rings = tuple(shape.group_rings.get(ratio, 0) for ratio in both)
    staging = shape.state_slots * shape.window_ring
    _index_step[(count,)](
        rows.sequence, rows.position, rows.row_start, rows.first_position, rows.length, tables.state_slot,
        tables.window_floor, tables.entry_floor, tables.block_table, shape.window_turns,
        shape.compressed_turns, places, numbers, turns, count, tables.block_table.stride(0), staging,
        shape.state_slots, WINDOW=shape.window, WINDOW_PADDED=power_of_two(shape.window),
        WINDOW_RING=shape.window_ring, RATIO_A=both[0], RING_A=rings[0], RATIO_B=both[1], RING_B=rings[1],
        ROTARY=rotary, num_warps=1,
    )  # fmt: skip
    keys = KeyIndex(places[: count * shape.window].view(count, shape.window), shape.wide)
    spared = spares_history(rows.tiles, shape.window, shape.window_ring)
    index = StepIndex(
        rows=rows,
        block_table=tables.block_table,
        window=RingIndex(staging, keys, numbers[0], spared),
        groups={},
        entries={},
        turns={0: turns[0]} | {ratio: turns[1] for ratio in ratios},
        entry_turns={ratio: turns[2 + i] for i, ratio in enumerate(ratios)},
    )
    begin = count * shape.window
    for i, ratio in enumerate(ratios):
        visible, position, store, group_store = numbers[1 + 4 * i : 5 + 4 * i].unbind()
        index.entries[ratio] = EntryIndex(ratio, BLOCK_TOKENS // ratio, visible, position, store)
        if ratio in shape.group_rings:
            ring = shape.group_rings[ratio]
            members = KeyIndex(places[begin : begin + count * ratio].view(count, ratio), shape.wide)
            spared = spares_history(rows.tiles, ratio, ring)
            index.groups[ratio] = RingIndex(shape.state_slots * ring, members, group_store, spared)
        begin += count * ratio
    return index


def index_drafts(shape: StepShape, anchor: Tensor, state_slot: Tensor, block: int) -> StepIndex:
    """See the twin."""
    sequences, rotary = anchor.shape[0], shape.window_turns.shape[1]
    if sequences == 0 or rotary & (rotary - 1) or shape.wide != torch.float32:
        return reference.index_drafts(shape, anchor, state_slot, block)
    count, width = sequences * block, shape.window + block
    places = torch.empty(count, width, dtype=torch.int32, device=anchor.device)
    numbers = torch.empty(6, count, dtype=torch.int64, device=anchor.device)
    turns = torch.empty(count, rotary, dtype=torch.float32, device=anchor.device)
    staging = shape.state_slots * shape.window_ring
    _index_drafts[(count,)](
        anchor, state_slot, shape.window_turns, places, numbers, turns, count, staging, BLOCK=block,
        WINDOW=shape.window, PADDED=power_of_two(width), RING=shape.window_ring, ROTARY=rotary, num_warps=1,
    )  # fmt: skip
    sequence, position, zero = numbers[:3].unbind()
    row_start, first, length = numbers[3:, :sequences].unbind()
    tiles = uniform_tiles(sequences, block, anchor.device)
    rows = Rows(sequence, position, row_start, first, length, tiles)
    window = RingIndex(staging, KeyIndex(places, shape.wide), zero, True)
    return StepIndex(rows, zero[:sequences].unsqueeze(1), window, {}, {}, {0: turns}, {})
