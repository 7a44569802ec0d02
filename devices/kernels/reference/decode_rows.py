"""The rows of a decode step from what the device keeps of its sequences: the fix-ups (engine_spec 2.11).

Everything is a gather by slot and a little arithmetic. It stands here, among the kernels, because it is on
the way of every decode step and is a dozen launches as single operations.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .rows import Rows, Tiles, lay_rows


class SlotTables(NamedTuple):
    """One row a slot, int64; slot 0 is scratch."""

    position: Tensor  # [slots], of the next row
    token: Tensor  # [slots], to be fed at `position`
    drafts: Tensor  # [slots, drafts], guessed to follow it
    history: Tensor  # [slots, history] before `position`
    table: Tensor  # [slots, columns], block ids


class DecodeRows(NamedTuple):
    """What a batch takes of a decode step, int64."""

    token_ids: Tensor  # [rows]
    rows: Rows
    block_table: Tensor  # [sequences, columns]
    history: Tensor  # [sequences, history]
    zero: Tensor  # [sequences], the floor of everything


def lay_decode(
    tables: SlotTables, slots: Tensor, lengths: Tensor, count: int, columns: int, tiles: Tiles
) -> DecodeRows:
    """`count` rows of the sequences in `slots` `[sequences]`, `lengths` `[sequences]` rows each.

    Sequences whose rows lie beyond `count` have none. Placeholders (slot 0) stand at position 0, whatever
    earlier ones left in the scratch slot: a position that grew with every step would outgrow the tables of
    positions.
    """
    first = torch.where(slots > 0, tables.position[slots], 0)
    rows = lay_rows(first, lengths, count, tiles)
    place = torch.arange(count, device=slots.device) - rows.row_start[rows.sequence]
    guesses = torch.cat((tables.token[slots].unsqueeze(1), tables.drafts[slots]), dim=1)
    return DecodeRows(
        token_ids=guesses[rows.sequence, place],
        rows=rows,
        block_table=tables.table[slots, :columns],
        history=tables.history[slots],
        zero=torch.zeros_like(first),
    )
