"""The largest steps there can be, run once while an engine opens, to learn how much memory a step takes.

What is left of a device after the weights is divided between caches and the memory of steps, and nobody can
say beforehand what a step takes: it depends on kernels and libraries. So the two extremes are run: a decode
step of every sequence with the costliest sampling, and a step full of prompt rows that look back as far as a
table reaches and report logprobs. On tables of zeros, so that only scratch places are written. Rejected: a
formula, which is wrong after the next kernel, and finding out when the first long prompt meets full caches.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np

from stepahead.devices.device import Device

from ..runner import (
    HISTORY,
    NO_TOKEN,
    BatchLayout,
    Int32s,
    RunnerShape,
    SamplePlan,
    SamplingRows,
    ScoredRows,
    StepPlan,
)

RunStep = Callable[[StepPlan, SamplePlan], None]


class StepNeeds(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes that a step takes at its peak, beside weights, caches and slots."""

    decode: int
    prompt: int

    def reserve(self, graphs: bool) -> int:
        """What must stay free beside the caches. Graphs keep a step's memory of their own."""
        return max(self.decode, self.prompt) + (self.decode if graphs else 0)


def measure(run: RunStep, shape: RunnerShape, device: Device) -> StepNeeds:
    """The needs of both extremes. `run` computes a whole step at once.

    The decode step comes first: it takes its positions from the slots, where the prompts leave theirs.
    """
    return StepNeeds(
        decode=device.bytes_needed(lambda: run(*_decode_step(shape))),
        prompt=device.bytes_needed(lambda: run(*_prompt_step(shape))),
    )


def small(shape: RunnerShape) -> RunnerShape:
    """A shape with the same largest steps and next to no caches."""
    return msgspec.structs.replace(shape, blocks=2, snapshot_slots=0, graph_sequences=0)


def _decode_step(shape: RunnerShape) -> tuple[StepPlan, SamplePlan]:
    slots, reach = np.arange(1, shape.sequence_slots + 1, dtype=np.int32), shape.draft_tokens + 1
    layout = _layout(slots, np.full(slots.size, reach, dtype=np.int32), decode_count=slots.size)
    first = np.full(slots.size, shape.max_positions - reach, dtype=np.int32)
    plan = _plan(0, layout, first, np.empty(0, dtype=np.int32))
    return plan, SamplePlan(
        step=0, updates=_costly(slots, shape), logprobs=shape.max_logprobs, all_greedy=False
    )


def _prompt_step(shape: RunnerShape) -> tuple[StepPlan, SamplePlan]:
    longest = min(shape.max_rows, shape.max_positions)
    count = min(-(-shape.max_rows // longest), shape.sequence_slots)
    slots = np.arange(1, count + 1, dtype=np.int32)
    lengths = np.full(count, longest, dtype=np.int32)
    lengths[-1] = min(longest, shape.max_rows - longest * (count - 1))
    first = (shape.max_positions - lengths).astype(np.int32)
    tokens = np.zeros(int(lengths.sum()), dtype=np.int32)
    plan = _plan(1, _layout(slots, lengths, decode_count=0), first, tokens)
    everything = ScoredRows(
        sequences=slots - 1,
        first=first,
        counts=lengths,
        rows=np.arange(tokens.size, dtype=np.int32),
        tokens=tokens,
        alternatives=shape.max_logprobs,
    )
    plan = msgspec.structs.replace(plan, scored=everything)
    nobody = _costly(slots[:0], shape)
    return plan, SamplePlan(step=1, updates=nobody, logprobs=-1, all_greedy=True)


def _layout(slots: Int32s, lengths: Int32s, decode_count: int) -> BatchLayout:
    keys = slots.astype(np.int64)
    return BatchLayout(
        slots=slots,
        sequence_keys=keys,
        admissions=keys,
        query_lengths=lengths,
        row_starts=(np.cumsum(lengths) - lengths).astype(np.int32),
        reach=lengths,
        samples=np.ones(slots.size, dtype=np.bool_),
        decode_count=decode_count,
        rows=int(lengths.sum()),
    )


def _plan(step: int, layout: BatchLayout, first: Int32s, tokens: Int32s) -> StepPlan:
    prompts = layout.slots.size - layout.decode_count
    return StepPlan(
        step=step,
        layout=layout,
        first_positions=first,
        chunk_tokens=tokens,
        chunk_history=np.full((prompts, HISTORY), NO_TOKEN, dtype=np.int32),
        chunk_ends=(first + layout.query_lengths)[layout.decode_count :],
        table_updates=np.empty((0, 3), dtype=np.int32),
        state_copies=np.empty((0, 2), dtype=np.int32),
    )


def _costly(slots: Int32s, shape: RunnerShape) -> SamplingRows:
    """Random draws from a nucleus, which ranks the whole vocabulary, with processed log-probabilities."""
    count = slots.size
    zeros = np.zeros(count, dtype=np.int32)
    return SamplingRows(
        slots=slots,
        temperature=np.ones(count, dtype=np.float32),
        top_k=zeros,
        top_p=np.full(count, 0.5, dtype=np.float32),
        min_p=np.zeros(count, dtype=np.float32),
        seed=np.zeros(count, dtype=np.uint64),
        choice=zeros,
        origin=zeros,
        min_output=zeros,
        end_ids=np.full((count, shape.max_stop_ids), NO_TOKEN, dtype=np.int32),
        logprobs=np.full(count, shape.max_logprobs, dtype=np.int32),
        processed=np.ones(count, dtype=np.bool_),
        forced=np.full(count, NO_TOKEN, dtype=np.int32),
        most_drafts=np.full(count, shape.draft_tokens, dtype=np.int32),
    )
