"""A decode step of made-up sequences, for whoever wants to know how long such a step takes.

Its sequences have tables of zeros, so a device writes scratch places only; they are greedy, and what their
slots hold is overwritten when a sequence moves in.
"""

from __future__ import annotations

import numpy as np

from .runner import HISTORY, BatchLayout, RunnerShape, SamplePlan, SamplingRows, StepPlan


def decode_step(
    shape: RunnerShape, sequences: int, rows: int, *, drafts: bool, step: int = 0
) -> tuple[StepPlan, SamplePlan]:
    """Plans of a step in which the first `sequences` slots decode `rows` rows, as evenly as possible."""
    slots = np.arange(1, sequences + 1, dtype=np.int32)
    lengths = np.full(sequences, rows // sequences, dtype=np.int32)
    lengths[: rows % sequences] += 1
    starts = np.zeros_like(lengths)
    np.cumsum(lengths[:-1], out=starts[1:])
    keys = slots.astype(np.int64)
    reach = shape.draft_tokens + 1
    none = np.empty(0, dtype=np.int32)
    plan = StepPlan(
        step=step,
        layout=BatchLayout(
            slots=slots,
            sequence_keys=keys,
            admissions=keys,
            query_lengths=lengths,
            row_starts=starts,
            reach=np.full(sequences, reach, dtype=np.int32),
            samples=np.ones(sequences, dtype=np.bool_),
            decode_count=sequences,
            rows=rows,
        ),
        first_positions=np.full(sequences, 2 * reach, dtype=np.int32),
        chunk_tokens=none,
        chunk_history=np.empty((0, HISTORY), dtype=np.int32),
        chunk_ends=none,
        table_updates=np.empty((0, 3), dtype=np.int32),
        state_copies=np.empty((0, 2), dtype=np.int32),
        drafts=drafts,
    )
    return plan, SamplePlan(step=step, updates=_greedy(slots, shape), logprobs=-1, all_greedy=True)


def _greedy(slots: np.ndarray, shape: RunnerShape) -> SamplingRows:
    zeros = np.zeros(slots.size, dtype=np.int32)
    nothing = np.zeros(slots.size, dtype=np.float32)
    return SamplingRows(
        slots=slots,
        temperature=nothing,
        top_k=zeros,
        top_p=nothing + 1,
        min_p=nothing,
        seed=np.zeros(slots.size, dtype=np.uint64),
        choice=zeros,
        origin=zeros,
        min_output=zeros,
        end_ids=np.full((slots.size, shape.max_stop_ids), -1, dtype=np.int32),
        logprobs=zeros - 1,
        processed=np.zeros(slots.size, dtype=np.bool_),
        forced=zeros - 1,
        most_drafts=zeros + shape.draft_tokens,
    )
