"""What became of one step: the tokens that count, and which sequences they ended.

`StepCommit` is the one fact everybody agrees on. The ledger advances by it, the streams show it, and neither
second-guesses it: a sequence that was preempted after the step was planned still owns its tokens (they are
appended where it waits), a sequence that was aborted has already had its terminal event (they are ignored).
Rejected: dropping the results of preempted sequences, as the engine we learned from does; two readers of one
result would then have to drop the same rows, and they learn of the preemption in different orders.
"""

from __future__ import annotations

import msgspec
import numpy as np

from stepahead.engine.model.runner import (
    BatchLayout,
    Bools,
    Float32s,
    Int8s,
    Int32s,
    PromptScores,
    ScoredRows,
    StepResult,
)

from .table import SamplingTable

RUNNING = np.int8(0)
STOP = np.int8(1)  # an end id; it is the last of the row's tokens
LENGTH = np.int8(2)  # max_output reached
FAILED = np.int8(3)  # no finite logit; the row has no tokens


class StepCommit(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Arrays over the b sequences of the step's layout."""

    step: int
    layout: BatchLayout
    tokens: Int32s  # [b, K] as sampled; only the first `counts` of a row count
    counts: Int32s  # [b] tokens that became output, cut at the first end id and at max_output
    advanced: Int32s  # [b] tokens whose cache is valid now: query_lengths of a prompt, counts of a decode
    finish: Int8s  # [b] RUNNING, STOP, LENGTH or FAILED
    drafted: Int32s  # [b]
    accepted: Int32s  # [b] emitted - 1 as the device decided, before cutting; 0 for prompts
    any_finish: bool  # finish.any(), computed once
    logprobs: Float32s | None = None
    top_logprobs: Float32s | None = None
    top_tokens: Int32s | None = None
    confidences: Float32s | None = None  # [b, D] of the drafts that step n + 1 verifies
    scored: ScoredRows | None = None  # of the step's plan
    prompt_scores: PromptScores | None = None


def resolve(
    layout: BatchLayout, result: StepResult, table: SamplingTable, scored: ScoredRows | None = None
) -> StepCommit:
    """Judges a step's result and takes the tokens that count off `table.left`.

    A row whose sequence ended in an earlier step is judged like any other: who reads the commit knows.
    """
    rows, emitted = table.rows(layout), result.emitted
    room = table.left[rows]
    counts = np.minimum(emitted, room)
    finish = np.zeros(counts.size, dtype=np.int8)
    ended = False
    if np.count_nonzero(table.may_end(result.tokens)):
        ended = _cut_at_end_ids(table.end_ids[rows], result.tokens, counts, finish)
    if np.count_nonzero(result.finite) < counts.size:
        ended = True
        _void(~result.finite & (room > 0), counts, finish)  # no token is lost where none was asked for
    full = counts >= room
    if np.count_nonzero(full):
        full &= layout.samples & (finish == RUNNING)
        ended |= bool(full.any())
        finish[full] = LENGTH
    if isinstance(rows, slice):
        np.subtract(room, counts, room)
    else:
        table.left[rows] = room - counts
    advanced, accepted = counts, emitted - 1
    if layout.decode_count < counts.size:
        prompts = slice(layout.decode_count, None)
        advanced = counts.copy()
        advanced[prompts] = layout.query_lengths[prompts]
        accepted[prompts] = 0
    return StepCommit(
        step=result.step,
        layout=layout,
        tokens=result.tokens,
        counts=counts,
        advanced=advanced,
        finish=finish,
        drafted=result.drafted,
        accepted=accepted,
        any_finish=ended,
        logprobs=result.logprobs,
        top_logprobs=result.top_logprobs,
        top_tokens=result.top_tokens,
        confidences=result.confidences,
        scored=scored,
        prompt_scores=result.prompt_scores,
    )


def _cut_at_end_ids(end_ids: Int32s, tokens: Int32s, counts: Int32s, finish: Int8s) -> bool:
    """Where a counted token is an end id of its own sequence it becomes the last one. Returns: anywhere?"""
    ends: Bools = (tokens[:, :, None] == end_ids[:, None, :]).any(-1)
    ends &= np.arange(tokens.shape[1]) < counts[:, None]
    rows = ends.any(-1)
    counts[rows] = ends[rows].argmax(-1) + 1
    finish[rows] = STOP
    return bool(rows.any())


def _void(failed: Bools, counts: Int32s, finish: Int8s) -> None:
    counts[failed] = 0
    finish[failed] = FAILED
