"""Small vocabularies: one program takes a row from logits to token, report included, in one launch.

A vocabulary of 4,096 fits the registers of one program, so nothing is read twice and nothing waits for
another program. What a row needs are branches of its program: a row without options is an argmax beside the
heaviest neighbour. `sampling_split.py` does the same for vocabularies that do not fit.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .sampling_edits import FILTER, PROCESSED, RANDOM, edited, sequence_rows
from .sampling_noise import rising, row_key
from .sampling_select import best_score, draw_kept, masses, report_best, threshold_of

_NO_ID = tl.constexpr(2147483647)


@triton.jit
def likeliest(x, ids):
    """(maximum, its lowest id, whether the row is a distribution). NaN counts as broken, not as a maximum."""
    sane = tl.where(x == x, x, float("-inf"))
    peak = tl.max(sane)
    broken = tl.max((x != x).to(tl.int32)) > 0
    finite = (tl.abs(peak) < float("inf")) & (broken == 0)
    return peak, tl.min(tl.where(sane == peak, ids, _NO_ID)), finite


@triton.jit
def draw_row(
    x, ids, slot, output, work, tables, VOCAB: tl.constexpr, SCALE: tl.constexpr, BLOCK: tl.constexpr
):
    """Of edited logits: (token, finite, values drawn from, their peak, mass kept, threshold, last id)."""
    inside = ids < VOCAB
    peak, token, finite = likeliest(x, ids)
    y = x
    threshold, last = tl.full((), -2147483648, tl.int32), tl.full((), VOCAB - 1, tl.int32)
    weight = tl.full((), 0, tl.int64)
    if ((work & RANDOM) != 0) & finite:
        temperature = tl.load(tables.temperature + slot)
        y = tl.div_rn(x, temperature)
        peak = tl.div_rn(peak, temperature)
        key = row_key(tl.load(tables.seed + slot), tl.load(tables.choice + slot), output)
        if (work & FILTER) != 0:
            total = tl.sum(tl.where(inside, masses(y, peak, SCALE), 0))
            top_k, top_p = tl.load(tables.top_k + slot).to(tl.int32), tl.load(tables.top_p + slot)
            highest = tl.max(rising(y)).to(tl.int64)
            lowest, none = tl.full((), -2147483648, tl.int64), tl.full((), 0, tl.int32)
            threshold, last = threshold_of(
                y, ids, inside, ids, ids, VOCAB, False, peak, total, top_k, top_p, lowest, highest,
                none + VOCAB, none, VOCAB, SCALE, False, BLOCK,
            )  # fmt: skip
            min_p = tl.load(tables.min_p + slot)
            token, weight = draw_kept(
                y, ids, inside, ids, ids, VOCAB, False, key, threshold, last, peak, min_p, SCALE, False, BLOCK
            )
        else:
            _, token = best_score(y, ids, inside, key)
    return tl.minimum(token, VOCAB - 1), finite, y, peak, weight, threshold, last


@triton.jit
def report_row(
    y, ids, peak, weight, threshold, last, min_p, token, logprob, top, top_ids,
    VOCAB: tl.constexpr, SCALE: tl.constexpr, ALTERNATIVES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write log-probabilities of a row whose kept tokens have this mass."""
    log_total = tl.log(tl.maximum(weight, 1).to(tl.float32) * (0.5**SCALE))
    tl.store(logprob, tl.sum(tl.where(ids == token, y, 0.0)) - peak - log_total)
    if ALTERNATIVES > 0:
        report_best(
            y, ids, (ids < VOCAB) & (y == y), ids, ids, VOCAB, False, threshold, last, min_p, peak, log_total,
            top, top_ids, ALTERNATIVES, False, BLOCK,
        )  # fmt: skip


@triton.jit(do_not_specialize=["decodes", "first_prompt_row", "first_sequence", "first_place"])
def draw_whole_rows(
    logits, sequences, decodes, first_prompt_row, first_sequence, first_place, drafts, tables, bits, scratch,
    drawn, VOCAB: tl.constexpr, PLACES: tl.constexpr, DRAFTS: tl.constexpr, HAS_BITS: tl.constexpr,
    ALTERNATIVES: tl.constexpr, SCALE: tl.constexpr, ALLOWED_TILE: tl.constexpr, REACH: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    row, active, slot, output = sequence_rows(
        sequences, decodes, first_prompt_row, first_sequence + program // PLACES, program % PLACES
    )
    place = program % PLACES + first_place
    if active:
        ids = tl.arange(0, BLOCK)
        inside = ids < VOCAB
        raw = tl.load(logits + row * VOCAB + ids, mask=inside, other=float("-inf"))
        work = tl.load(tables.work + slot)
        output += first_place - tl.load(tables.origin + slot)
        x = edited(
            raw, ids, 0, row, slot, output, place, work, tables, drafts, bits, scratch + program * VOCAB,
            VOCAB, DRAFTS, HAS_BITS, BLOCK, ALLOWED_TILE, REACH,
        )  # fmt: skip
        token, finite, y, peak, weight, threshold, last = draw_row(
            x, ids, slot, output, work, tables, VOCAB, SCALE, BLOCK
        )
        tl.store(drawn.tokens + program, token.to(tl.int64))
        tl.store(drawn.finite + program, finite.to(tl.int8))
        if ALTERNATIVES >= 0:  # noqa: SIM102, the outer one is the compiler's
            if tl.load(tables.logprobs + slot) >= 0:
                min_p = 0.0
                if (work & PROCESSED) != 0:
                    if (work & FILTER) != 0:
                        min_p = tl.load(tables.min_p + slot)
                    else:
                        weight = tl.sum(tl.where(inside, masses(y, peak, SCALE), 0))
                else:
                    y = raw
                    peak, _, _ = likeliest(raw, ids)
                    weight = tl.sum(tl.where(inside, masses(y, peak, SCALE), 0))
                    threshold, last = tl.full((), -2147483648, tl.int32), tl.full((), VOCAB - 1, tl.int32)
                report_row(
                    y, ids, peak, weight, threshold, last, min_p, token, drawn.logprobs + program,
                    drawn.top_logprobs + program * ALTERNATIVES, drawn.top_tokens + program * ALTERNATIVES,
                    VOCAB, SCALE, ALTERNATIVES, BLOCK,
                )  # fmt: skip
    else:
        write_nothing(drawn, program, ALTERNATIVES)


@triton.jit
def write_nothing(drawn, program, ALTERNATIVES: tl.constexpr):
    """The marks of a place where nothing is drawn."""
    tl.store(drawn.tokens + program, tl.full((), -1, tl.int64))
    tl.store(drawn.finite + program, tl.full((), 1, tl.int8))
