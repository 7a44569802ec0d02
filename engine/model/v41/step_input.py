"""From a step plan to a batch: the fix-ups of a step whose predecessor may still run (engine_spec 2.11).

Decode rows take position, tokens and history from their slots, prompt rows from the plan. All of it is gather
and arithmetic on the device; the host contributes only shapes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..runner import BatchLayout, StepPlan
from .batch import Batch
from .dealing import deal, survivals
from .host_arrays import to_device, together_to_device
from .rows import BLOCK_TOKENS, lay_rows, plan_tiles
from .slots import SlotState


@dataclass(frozen=True)
class LayoutTensors:
    """A batch layout on the device. Steady decode reuses one layout object, and so reuses this."""

    layout: BatchLayout
    slots: Tensor  # [sequences]
    lengths: Tensor  # [sequences]
    decode_place: Tensor  # [decode rows], row within its sequence: 0 the token, above the drafts
    logit_rows: Tensor  # rows that reach the head: all decode rows, then last rows of sampling prompts
    sampling: Tensor  # [sampling sequences] indices of the sequences that sample


def place_layout(layout: BatchLayout, device: torch.device) -> LayoutTensors:
    decode = layout.decode_count
    decode_rows = int(layout.query_lengths[:decode].sum())
    place = np.arange(decode_rows) - np.repeat(layout.row_starts[:decode], layout.query_lengths[:decode])
    last = (layout.row_starts + layout.query_lengths - 1)[decode:][layout.samples[decode:]]
    wanted = np.concatenate((np.arange(decode_rows), last))

    sampling = np.flatnonzero(layout.samples)
    return LayoutTensors(
        layout, *_tensors((layout.slots, layout.query_lengths, place, wanted, sampling), device)
    )


def redealt(placed: LayoutTensors, state: SlotState, most_drafts: Tensor) -> LayoutTensors:
    """The same rows, those of decodes split anew by the confidences in the slots (`StepPlan.redeal`).

    Nothing asks the device: totals, and so all shapes, are the layout's. `most_drafts` `[slots]` caps each.
    """
    decode, rows = placed.layout.decode_count, placed.decode_place.shape[0]
    slots = placed.slots[:decode]
    lengths = deal(survivals(state.confidence[slots]), most_drafts[slots], rows - decode)
    number = torch.arange(rows, device=lengths.device)
    ends = lengths.cumsum(0)
    owner = torch.searchsorted(ends, number, right=True)
    place = number - (ends - lengths)[owner]
    return replace(placed, lengths=torch.cat((lengths, placed.lengths[decode:])), decode_place=place)


def build_step_batch(plan: StepPlan, placed: LayoutTensors, state: SlotState) -> Batch:
    """The batch of one step. `state` is read here and written by the sampling that follows."""
    layout, device = plan.layout, state.position.device
    decode = layout.decode_count
    chunk_first, chunk_tokens, chunk_history = _tensors(
        (plan.first_positions[decode:], plan.chunk_tokens, plan.chunk_history), device
    )
    first = torch.cat((state.position[placed.slots[:decode]], chunk_first))
    longest = layout.reach if plan.redeal else layout.query_lengths  # tiles must hold any split
    rows = lay_rows(first, placed.lengths, layout.rows, plan_tiles(longest, device))
    decode_slots = placed.slots[:decode]
    sequence_of_decode_row = rows.sequence[: placed.decode_place.shape[0]]
    guesses = torch.cat((state.token[decode_slots].unsqueeze(1), state.drafts[decode_slots]), dim=1)
    decode_tokens = guesses[sequence_of_decode_row, placed.decode_place]
    zero = torch.zeros_like(first)
    return Batch(
        token_ids=torch.cat((decode_tokens, chunk_tokens)),
        rows=rows,
        state_slot=placed.slots,
        block_table=state.table[placed.slots][:, : _table_width(plan)],
        history=torch.cat((state.history[decode_slots], chunk_history)),
        window_floor=zero,
        consumer_floor=zero,
        entry_floor=zero,
        logit_rows=placed.logit_rows,
        scored_rows=None if plan.scored is None else to_device(plan.scored.rows, device, torch.int64),
    )


def _tensors(arrays: Sequence[npt.NDArray[np.integer[Any]]], device: torch.device) -> list[Tensor]:
    return together_to_device([array.astype(np.int64) for array in arrays], device)


def _table_width(plan: StepPlan) -> int:
    """Columns any row of the step can reach: the host's positions are upper bounds."""
    reach = plan.first_positions + plan.layout.reach
    return -(-int(reach.max()) // BLOCK_TOKENS)
