"""The chain of drafts: a small vocabulary in one launch, a large one in a few launches a place.

A guess needs the guess before it, so places follow one another; sequences do not. Where a row fits a program,
one program goes through all places of its sequence. What the token before adds to the logits is a product of
rank 32 there, 67 MB for all pairs of 4,096 tokens: it is multiplied out once, when a model opens, and read as
a row. A large vocabulary has the product as a matrix multiplication over all sequences, place by place.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..reference.sampling.drafting import SUREST
from ..reference.sampling.peaks import peak_log_odds
from ..reference.sampling.tables import (
    DraftInputs,
    DrawnTokens,
    SampledSequences,
    SamplingTables,
    SlotTensors,
)
from .sampling import draw_into, list_tiles, mass_scale, with_widths
from .sampling_edits import edited
from .sampling_rows import draw_row

_MULTIPLIED_OUT = 4096
"""Vocabularies up to here have a row a token of what it adds."""
_SUREST = tl.constexpr(SUREST)


def markov_table(embed: Tensor, head: Tensor) -> Tensor | None:
    """float32 `[vocab, vocab]`, or None where it would be too large."""
    if embed.shape[0] > _MULTIPLIED_OUT:
        return None
    return torch.mm(embed.to(torch.float32), head.to(torch.float32).t())


@triton.jit
def _previous(slot, place, state, DRAFTS: tl.constexpr):
    """The token before a place: the newest one, or the draft just made."""
    newest = tl.load(state.token + slot)
    draft = tl.load(state.drafts + slot * DRAFTS + place - 1, mask=place > 0, other=0)
    return tl.where(place > 0, draft, newest)


@triton.jit
def _log_odds(inputs, row, previous, temperature, DIM: tl.constexpr, RANK: tl.constexpr, CHUNK: tl.constexpr):
    """The calibrated confidence of hidden row `row` behind a token."""
    lane = tl.arange(0, CHUNK)
    total = tl.zeros((CHUNK,), tl.float32)
    for start in range(0, DIM, CHUNK):
        mask = start + lane < DIM
        hidden = tl.load(inputs.hidden + row * DIM + start + lane, mask=mask, other=0.0).to(tl.float32)
        total += hidden * tl.load(inputs.confidence + start + lane, mask=mask, other=0.0).to(tl.float32)
    for start in range(0, RANK, CHUNK):
        mask = start + lane < RANK
        embedded = tl.load(inputs.markov_embed + previous * RANK + start + lane, mask=mask, other=0.0)
        weight = tl.load(inputs.confidence + DIM + start + lane, mask=mask, other=0.0)
        total += embedded.to(tl.float32) * weight.to(tl.float32)
    return _bounded(tl.div_rn(tl.sum(total), temperature))


@triton.jit
def _peak_log_odds(x, scale, offset):
    """The same from the logits `x` of the place, masked with -inf: of their likeliest token."""
    others = tl.sum(tl.exp(x - tl.max(x, axis=0)), axis=0) - 1.0
    return _bounded(offset - scale * tl.log(tl.maximum(others, 0.0)))


@triton.jit
def _bounded(odds):
    """Within what is told apart; a broken row expects nothing."""
    return tl.where(odds == odds, tl.minimum(tl.maximum(odds, -_SUREST), _SUREST), -_SUREST)


@triton.jit
def _of_place(numbers, place, PLACES: tl.constexpr):
    """One of a few numbers that came as a tuple."""
    number = 0.0
    for other in tl.static_range(PLACES):
        number = tl.where(place == other, numbers[other], number)
    return number


@triton.jit
def _draft_whole_rows(
    inputs, slots, state, tables, scratch, odds,
    PLACES: tl.constexpr, DRAFTS: tl.constexpr, VOCAB: tl.constexpr, DIM: tl.constexpr, RANK: tl.constexpr,
    SCALE: tl.constexpr, ALLOWED_TILE: tl.constexpr, REACH: tl.constexpr, CHUNK: tl.constexpr,
    BLOCK: tl.constexpr,
    BY_PEAK: tl.constexpr,
):  # fmt: skip
    sequence = tl.program_id(0)
    slot = tl.load(slots + sequence)
    first = tl.load(state.position + slot) + 1 - tl.load(tables.origin + slot)
    work = tl.load(tables.work + slot)
    ids = tl.arange(0, BLOCK)
    inside = ids < VOCAB
    previous = tl.load(state.token + slot)
    for place in range(DRAFTS):
        row = sequence * PLACES + place
        x = tl.load(inputs.base_logits + row * VOCAB + ids, mask=inside, other=float("-inf"))
        x += tl.load(inputs.markov_table + previous * VOCAB + ids, mask=inside, other=0.0)
        if BY_PEAK:
            scale = _of_place(inputs.peak_scales, place, DRAFTS)
            chance = _peak_log_odds(x, scale, _of_place(inputs.peak_offsets, place, DRAFTS))
        else:
            temperature = _of_place(inputs.temperatures, place, DRAFTS)
            chance = _log_odds(inputs, row, previous, temperature, DIM, RANK, CHUNK)
        x = edited(
            x, ids, 0, row, slot, first + place, place, work, tables, state.drafts, scratch,
            scratch + sequence * VOCAB, VOCAB, DRAFTS, False, BLOCK, ALLOWED_TILE, REACH,
        )  # fmt: skip
        token, _, _, _, _, _, _ = draw_row(x, ids, slot, first + place, work, tables, VOCAB, SCALE, BLOCK)
        previous = token.to(tl.int64)
        tl.store(state.drafts + slot * DRAFTS + place, previous)
        tl.store(odds + slot * DRAFTS + place, chance)
        tl.debug_barrier()


@triton.jit(do_not_specialize=["place", "count"])
def _add_markov(
    inputs, slots, state, logits, place, count,
    PLACES: tl.constexpr, DRAFTS: tl.constexpr, VOCAB: tl.constexpr, RANK: tl.constexpr,
    SEQUENCES: tl.constexpr, TOKENS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Logits of one place: its base logits and what the token before adds."""
    sequence = tl.program_id(1) * SEQUENCES + tl.arange(0, SEQUENCES)
    known = sequence < count
    slot = tl.load(slots + sequence, mask=known, other=0)
    newest = tl.load(state.token + slot)
    draft = tl.load(state.drafts + slot * DRAFTS + place - 1, mask=(slot >= 0) & (place > 0), other=0)
    previous = tl.where(place > 0, draft, newest)
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    inside = token < VOCAB
    total = tl.zeros((SEQUENCES, TOKENS), tl.float32)
    lane = tl.arange(0, CHUNK)
    for start in range(0, RANK, CHUNK):
        mask = start + lane < RANK
        embedded = tl.load(
            inputs.markov_embed + previous[:, None] * RANK + start + lane[None, :],
            mask=known[:, None] & mask[None, :], other=0.0,
        )  # fmt: skip
        head = tl.load(
            inputs.markov_head + token[None, :].to(tl.int64) * RANK + start + lane[:, None],
            mask=inside[None, :] & mask[:, None], other=0.0,
        )  # fmt: skip
        total = tl.dot(embedded, head, total, input_precision="ieee")
    mask = known[:, None] & inside[None, :]
    row = (sequence * PLACES + place).to(tl.int64)
    base = tl.load(inputs.base_logits + row[:, None] * VOCAB + token[None, :], mask=mask, other=0.0)
    at = sequence[:, None].to(tl.int64) * VOCAB + token[None, :]
    tl.store(logits + at, base + total, mask=mask)


@triton.jit(do_not_specialize=["place"])
def _keep_draft(
    inputs, slots, state, odds, drawn, temperature, place,
    PLACES: tl.constexpr, DRAFTS: tl.constexpr, DIM: tl.constexpr, RANK: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    sequence = tl.program_id(0)
    slot = tl.load(slots + sequence)
    previous = _previous(slot, place, state, DRAFTS)
    chance = _log_odds(inputs, sequence * PLACES + place, previous, temperature, DIM, RANK, CHUNK)
    tl.store(state.drafts + slot * DRAFTS + place, tl.load(drawn + sequence))
    tl.store(odds + slot * DRAFTS + place, chance)


def draft_chain_(
    inputs: DraftInputs, slots: Tensor, state: SlotTensors, tables: SamplingTables, confidence: Tensor
) -> None:
    """The twin's `draft_chain_`; the inputs are contiguous, base logits and confidence float32."""
    count, drafts = slots.shape[0], state.drafts.shape[1]
    if count == 0 or drafts == 0:
        return
    _, places, vocab = inputs.base_logits.shape
    temperatures = inputs.temperatures or (1.0,) * places
    sizes = {
        "PLACES": places,
        "DRAFTS": drafts,
        "DIM": inputs.hidden.shape[2],
        "RANK": inputs.markov_embed.shape[1],
        "CHUNK": 256,
    }
    if inputs.markov_table is not None:
        _draft_whole_rows[(count,)](
            inputs._replace(temperatures=temperatures),
            slots,
            state,
            with_widths(tables),
            inputs.base_logits.new_empty(count, vocab),
            confidence,
            **sizes,
            VOCAB=vocab,
            SCALE=mass_scale(vocab),
            **list_tiles(tables),
            BLOCK=triton.next_power_of_2(vocab),
            BY_PEAK=bool(inputs.peak_scales),
            num_warps=8,
        )
        return
    plain = inputs._replace(temperatures=(), markov_table=inputs.markov_head, peak_scales=(), peak_offsets=())
    for place in range(drafts):
        logits = _draft_place(plain, slots, state, tables, confidence, place, temperatures[place], sizes)
        if inputs.peak_scales:
            odds = peak_log_odds(logits) * inputs.peak_scales[place] + inputs.peak_offsets[place]
            confidence[slots, place] = odds.clamp(-SUREST, SUREST).nan_to_num(-SUREST)


def _draft_place(
    inputs: DraftInputs,
    slots: Tensor,
    state: SlotTensors,
    tables: SamplingTables,
    confidence: Tensor,
    place: int,
    temperature: float,
    sizes: dict[str, int],
) -> Tensor:
    """Returns the logits `[sequences, vocab]` that the draft was drawn from, unedited."""
    count, vocab = slots.shape[0], inputs.base_logits.shape[2]
    logits = inputs.base_logits.new_empty(count, vocab)
    tile, tokens = 16 if count <= 16 else 64, 64
    _add_markov[(triton.cdiv(vocab, tokens), triton.cdiv(count, tile))](
        inputs,
        slots,
        state,
        logits,
        place,
        count,
        PLACES=sizes["PLACES"],
        DRAFTS=sizes["DRAFTS"],
        VOCAB=vocab,
        RANK=sizes["RANK"],
        SEQUENCES=tile,
        TOKENS=tokens,
        CHUNK=32,
        num_warps=4,
    )
    finite = torch.empty(count, 1, dtype=torch.bool, device=slots.device)
    drawn = DrawnTokens(slots.new_empty(count, 1), finite, None, None, None)
    sequences = SampledSequences(slots, state.position[slots], torch.ones_like(slots), count)
    draw_into(drawn, logits, sequences, state.drafts, tables, first_place=place)
    _keep_draft[(count,)](
        inputs, slots, state, confidence, drawn.tokens, temperature, place, **sizes, num_warps=1
    )
    return logits
