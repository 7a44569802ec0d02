"""The rows of a decode step in one launch. Twin: `reference.decode_rows`.

A program takes a sequence: it sums the lengths before it (a few hundred numbers, in the cache) rather than
wait for another launch to do so, and writes the sequence's rows, table and history.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..reference.decode_rows import DecodeRows, SlotTables
from ..reference.rows import Rows, Tiles
from .launching import power_of_two


@triton.jit(do_not_specialize=["count", "columns", "table_stride"])
def _lay_decode(
    slots_pointer,
    lengths_pointer,
    position_pointer,
    token_pointer,
    drafts_pointer,
    history_pointer,
    table_pointer,
    row_numbers_pointer,
    sequence_numbers_pointer,
    block_table_pointer,
    histories_pointer,
    count,
    columns,
    table_stride,
    SEQUENCES: tl.constexpr,
    SEQUENCES_PADDED: tl.constexpr,
    DRAFTS: tl.constexpr,
    DRAFTS_PADDED: tl.constexpr,
    HISTORY: tl.constexpr,
    HISTORY_PADDED: tl.constexpr,
    COLUMN_TILE: tl.constexpr,
):
    """Numbers of rows: sequence, position, token; of sequences: first row, first position, zero."""
    sequence = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots_pointer + sequence)
    others = tl.arange(0, SEQUENCES_PADDED)
    before = tl.load(lengths_pointer + others, mask=others < sequence, other=0)
    start = tl.sum(before, axis=0)
    length = tl.load(lengths_pointer + sequence)
    first = tl.where(slot > 0, tl.load(position_pointer + slot), 0)
    place = tl.arange(0, DRAFTS_PADDED)
    row = start + place
    inside = (place < length) & (row < count)
    token = tl.load(token_pointer + slot + place * 0)
    draft = tl.load(drafts_pointer + slot * DRAFTS + place - 1, mask=(place > 0) & (place <= DRAFTS), other=0)
    tl.store(row_numbers_pointer + row, sequence + place * 0, mask=inside)
    tl.store(row_numbers_pointer + count + row, first + place, mask=inside)
    tl.store(row_numbers_pointer + 2 * count + row, tl.where(place == 0, token, draft), mask=inside)
    tl.store(sequence_numbers_pointer + sequence, start)
    tl.store(sequence_numbers_pointer + SEQUENCES + sequence, first)
    tl.store(sequence_numbers_pointer + 2 * SEQUENCES + sequence, first * 0)
    back = tl.arange(0, HISTORY_PADDED)
    known = tl.load(history_pointer + slot * HISTORY + back, mask=back < HISTORY)
    tl.store(histories_pointer + sequence * HISTORY + back, known, mask=back < HISTORY)
    for begin in range(0, columns, COLUMN_TILE):
        column = begin + tl.arange(0, COLUMN_TILE)
        page = tl.load(table_pointer + slot * table_stride + column, mask=column < columns)
        tl.store(block_table_pointer + sequence * columns + column, page, mask=column < columns)


def lay_decode(
    tables: SlotTables, slots: Tensor, lengths: Tensor, count: int, columns: int, tiles: Tiles
) -> DecodeRows:
    """See the twin."""
    sequences, drafts, history = slots.shape[0], tables.drafts.shape[1], tables.history.shape[1]

    def numbers(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch.int64, device=slots.device)

    sequence, position, token_ids = numbers(3, count).unbind()
    row_start, first, zero = numbers(3, sequences).unbind()
    block_table, histories = numbers(sequences, columns), numbers(sequences, history)
    if sequences:
        _lay_decode[(sequences,)](
            slots, lengths, tables.position, tables.token, tables.drafts, tables.history, tables.table,
            sequence, row_start, block_table, histories, count, columns, tables.table.stride(0),
            SEQUENCES=sequences, SEQUENCES_PADDED=power_of_two(sequences), DRAFTS=drafts,
            DRAFTS_PADDED=power_of_two(drafts + 1), HISTORY=history, HISTORY_PADDED=power_of_two(history),
            COLUMN_TILE=min(power_of_two(columns), 1024), num_warps=1 if sequences <= 1024 else 4,
        )  # fmt: skip
    rows = Rows(sequence, position, row_start, first, lengths, tiles)
    return DecodeRows(token_ids, rows, block_table, histories, zero)
