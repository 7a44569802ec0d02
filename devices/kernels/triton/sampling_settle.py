"""Accepting drafts and advancing slots: one program a sequence, one launch instead of some thirty.

A program reads what it needs of its slot before it writes any of it. Sequences of a step have slots of their
own; only placeholders share the scratch slot 0, whose contents nobody reads as text.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..reference.sampling.tables import (
    DrawnTokens,
    SampledSequences,
    SamplingTables,
    SettledTokens,
    SlotTensors,
)
from .sampling_edits import PENALTY, WORDS


class _Sequences(NamedTuple):
    slots: Tensor
    first: Tensor
    lengths: Tensor


class _Settled(NamedTuple):
    tokens: Tensor
    emitted: Tensor
    finite: Tensor


class _Reports(NamedTuple):
    logprobs: Tensor
    top_logprobs: Tensor
    top_tokens: Tensor


class _Memory(NamedTuple):
    """What the tables remember of tokens said."""

    work: Tensor
    seen: Tensor
    recent: Tensor


@triton.jit(do_not_specialize=["decodes"])
def _settle(
    drawn, finite, reports, sequences, decodes, state, memory, chunk_tail, settled,
    PLACES: tl.constexpr, KEPT: tl.constexpr, VOCAB: tl.constexpr, REACH: tl.constexpr,
    ALTERNATIVES: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    sequence = tl.program_id(0)
    slot = tl.load(sequences.slots + sequence)
    length = tl.load(sequences.lengths + sequence)
    decode = sequence < decodes
    count = tl.where(decode, length, 1)
    place = tl.arange(0, LANES)
    inside = place < PLACES
    tokens = tl.load(drawn + sequence * PLACES + place, mask=inside, other=-1)
    good = tl.load(finite + sequence * PLACES + place, mask=inside, other=1)
    draft = tl.load(state.drafts + slot * (PLACES - 1) + place, mask=place < PLACES - 1, other=-1)
    disagrees = (draft != tokens) | (place >= count - 1)
    accepted = tl.min(tl.where(disagrees, place, LANES))
    emitted = tl.where(count > 0, accepted + 1, 0)
    kept = inside & (place < emitted)
    newest = tl.max(tl.where(place == accepted, tokens, -1))
    old = tl.load(state.token + slot)
    at = emitted + place  # where the new history begins in (history, token, tokens)
    history = tl.load(state.history + slot * KEPT + at, mask=(place < KEPT) & (at < KEPT), other=0)
    said = tl.load(drawn + sequence * PLACES + at - KEPT - 1, mask=(place < KEPT) & (at > KEPT), other=0)
    history = tl.where(at < KEPT, history, tl.where(at == KEPT, old, said))
    prompt = sequence - decodes
    tail = tl.load(chunk_tail + prompt * KEPT + place, mask=(place < KEPT) & (prompt >= 0), other=0)
    history = tl.where(decode, history, tail)
    first = tl.load(sequences.first + sequence)
    work = tl.load(memory.work + slot)
    if REACH > 0:  # noqa: SIM102, the outer one is the compiler's
        if (work & WORDS) != 0:
            _say(drawn + sequence * PLACES, memory.recent + slot * REACH, emitted, REACH, LANES)
    tl.debug_barrier()
    tl.store(state.position + slot, first + tl.where(decode, emitted, length))
    tl.store(state.token + slot, tl.where(newest >= 0, newest, old))
    tl.store(state.history + slot * KEPT + place, history, mask=place < KEPT)
    if VOCAB > 1:  # noqa: SIM102
        if (work & PENALTY) != 0:
            tl.atomic_add(memory.seen + slot * VOCAB + tokens, 2, mask=kept & (tokens >= 0))
    tl.store(settled.tokens + sequence * PLACES + place, tl.where(kept, tokens, -1), mask=inside)
    tl.store(settled.emitted + sequence, emitted.to(tl.int64))
    tl.store(settled.finite + sequence, tl.min(tl.where(kept, good.to(tl.int32), 1)).to(tl.int8))
    if ALTERNATIVES >= 0:
        _forget(reports, sequence, emitted, PLACES, ALTERNATIVES, LANES)


@triton.jit
def _say(tokens, recent, emitted, REACH: tl.constexpr, LANES: tl.constexpr):
    """Shift the last output tokens by what was emitted. REACH is at most LANES."""
    place = tl.arange(0, LANES)
    at = emitted + place
    older = tl.load(recent + at, mask=(place < REACH) & (at < REACH), other=0)
    newer = tl.load(tokens + at - REACH, mask=(place < REACH) & (at >= REACH), other=0)
    tl.debug_barrier()
    tl.store(recent + place, tl.where(at < REACH, older, newer), mask=place < REACH)


@triton.jit
def _forget(
    reports, sequence, emitted, PLACES: tl.constexpr, ALTERNATIVES: tl.constexpr, LANES: tl.constexpr
):
    """Clear the reports of places behind the emitted ones."""
    place = tl.arange(0, LANES)
    unused = (place >= emitted) & (place < PLACES)
    tl.store(reports.logprobs + sequence * PLACES + place, tl.zeros((LANES,), tl.float32), mask=unused)
    for alternative in range(ALTERNATIVES):
        at = (sequence * PLACES + place) * ALTERNATIVES + alternative
        tl.store(reports.top_logprobs + at, tl.zeros((LANES,), tl.float32), mask=unused)
        tl.store(reports.top_tokens + at, tl.full((LANES,), -1, tl.int64), mask=unused)


def settle_(
    drawn: DrawnTokens,
    sequences: SampledSequences,
    state: SlotTensors,
    tables: SamplingTables,
    chunk_tail: Tensor,
) -> SettledTokens:
    """The twin's `settle_`; the reports are cleared where they are."""
    count, places = drawn.tokens.shape
    kept, reach = state.history.shape[1], tables.recent.shape[1]
    settled = _Settled(
        torch.empty_like(drawn.tokens),
        drawn.tokens.new_empty(count),
        torch.empty(count, dtype=torch.bool, device=drawn.tokens.device),
    )
    if count:
        alternatives = -1 if drawn.top_logprobs is None else drawn.top_logprobs.shape[2]
        unused = drawn.tokens
        _settle[(count,)](
            drawn.tokens,
            drawn.finite,
            _Reports(*(unused if report is None else report for report in drawn[2:])),
            _Sequences(sequences.slots, sequences.first, sequences.lengths),
            sequences.decodes,
            state,
            _Memory(tables.work, tables.seen, tables.recent),
            chunk_tail,
            settled,
            PLACES=places,
            KEPT=kept,
            VOCAB=tables.seen.shape[1],
            REACH=reach,
            ALTERNATIVES=alternatives,
            LANES=triton.next_power_of_2(max(places, kept, reach)),
            num_warps=1,
        )
    return SettledTokens(*settled, drawn.logprobs, drawn.top_logprobs, drawn.top_tokens)
