"""Where prompts are cut into chunks, and how the rows of a step are laid out.

Cuts must not depend on load more than they need to: floating-point results may differ in the last bit between
two ways of cutting, and a window state can be kept only where a chunk ends. So a chunk ends at a multiple of
`prefill_chunk`, at the last block boundary a later hit could use, or at the end of the prompt; only a budget
that is smaller than that cuts elsewhere, and then at a block boundary if it reaches one.
"""

from __future__ import annotations

from collections.abc import Sequence as Items

import msgspec
import numpy as np

from stepahead.engine.cache.reservation import EMPTY
from stepahead.engine.model.runner import HISTORY, NO_TOKEN, BatchLayout, Int32s, ScoredRows, StepPlan

from .ledger import Ledger
from .limits import SchedulingLimits
from .members import Members


class PromptRows(msgspec.Struct, frozen=True):
    """One chunk of one prompt in a step: positions `start` to `end` of the sequence in `slot`."""

    slot: int
    start: int
    end: int


def chunk_end(start: int, prefill_end: int, budget: int, limits: SchedulingLimits) -> int:
    """Exclusive end of the chunk that begins at `start` when `budget` >= 1 rows are left in the step."""
    block = limits.block_tokens
    end = min((start // limits.prefill_chunk + 1) * limits.prefill_chunk, prefill_end)
    if limits.prefix_cache:
        last_kept = (prefill_end - limits.hit_margin) // block * block
        if start < last_kept < end:
            end = last_kept
    if end - start <= budget:
        return end
    boundary = (start + budget) // block * block
    return boundary if boundary > start else start + budget


def lay_out(ledger: Ledger, decode: BatchLayout, prompts: Items[PromptRows]) -> BatchLayout:
    """The layout of `decode`'s rows followed by the prompts'; without prompts `decode` itself."""
    if not prompts:
        return decode
    slots = np.array([rows.slot for rows in prompts], dtype=np.int32)
    counts = np.array([rows.end - rows.start for rows in prompts], dtype=np.int32)
    ends = np.array([rows.end for rows in prompts], dtype=np.int32)
    lengths = np.concatenate([decode.query_lengths, counts])
    starts = np.zeros_like(lengths)
    np.cumsum(lengths[:-1], out=starts[1:])
    mixed = BatchLayout(
        slots=np.concatenate([decode.slots, slots]),
        sequence_keys=np.concatenate([decode.sequence_keys, ledger.sequence_keys[slots]]),
        admissions=np.concatenate([decode.admissions, ledger.admissions[slots]]),
        query_lengths=lengths,
        row_starts=starts,
        reach=np.concatenate([decode.reach, counts]),
        samples=np.concatenate([decode.samples, ends == ledger.prefill_end[slots]]),
        decode_count=decode.slots.size,
        rows=decode.rows + int(counts.sum()),
    )
    for name in ("slots", "sequence_keys", "admissions", "query_lengths", "row_starts", "reach", "samples"):
        getattr(mixed, name).setflags(write=False)
    return mixed


def decode_layout(ledger: Ledger, slots: Int32s) -> BatchLayout:
    """The layout of a step that only decodes these slots and verifies all they may."""
    members = Members(ledger, slots)
    return members.layout(members.most_spare)


NO_HISTORY = np.empty((0, HISTORY), dtype=np.int32)
NO_UPDATES = np.empty((0, 3), dtype=np.int32)
NO_COPIES = np.empty((0, 2), dtype=np.int32)
for _constant in (NO_HISTORY, NO_UPDATES, NO_COPIES):
    _constant.setflags(write=False)


def decode_plan(
    step: int,
    layout: BatchLayout,
    first_positions: Int32s,
    redeal: bool = False,
    drafts: bool = True,
    table_updates: Int32s = NO_UPDATES,
    state_copies: Int32s = NO_COPIES,
) -> StepPlan:
    """The plan of a step of nothing but decode rows."""
    return StepPlan(
        redeal=redeal,
        drafts=drafts,
        step=step,
        layout=layout,
        first_positions=first_positions,
        chunk_tokens=EMPTY,
        chunk_history=NO_HISTORY,
        chunk_ends=EMPTY,
        table_updates=table_updates,
        state_copies=state_copies,
    )


def mixed_plan(
    step: int,
    layout: BatchLayout,
    first_positions: Int32s,
    ledger: Ledger,
    prompts: Items[PromptRows],
    table_updates: Int32s,
    state_copies: Int32s,
    scored: ScoredRows | None = None,
    redeal: bool = False,
    drafts: bool = True,
) -> StepPlan:
    """The plan of any step; prompts in the layout's order."""
    tokens, history, ends = EMPTY, NO_HISTORY, EMPTY
    if prompts:
        tokens = np.concatenate([ledger.tokens[rows.slot, rows.start : rows.end] for rows in prompts])
        history = _histories(ledger, prompts)
        ends = ledger.prefill_end[[rows.slot for rows in prompts]]
    return StepPlan(
        step=step,
        layout=layout,
        first_positions=first_positions,
        chunk_tokens=tokens,
        chunk_history=history,
        chunk_ends=ends,
        table_updates=table_updates,
        state_copies=state_copies,
        scored=scored,
        redeal=redeal,
        drafts=drafts,
    )


def _histories(ledger: Ledger, prompts: Items[PromptRows]) -> Int32s:
    """The ids before each chunk, oldest first."""
    history = np.full((len(prompts), HISTORY), NO_TOKEN, dtype=np.int32)
    for row, chunk in zip(history, prompts, strict=True):
        before = ledger.tokens[chunk.slot, max(chunk.start - HISTORY, 0) : chunk.start]
        row[HISTORY - before.size :] = before
    return history
