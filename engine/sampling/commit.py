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

from stepahead.engine.model.runner import BatchLayout, Float32s, Int8s, Int32s

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
