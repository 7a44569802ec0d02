"""The sampling of a step driven by tables on the device: the twin of the fused kernels.

Every row passes through every edit and a full sort, masked by the bits of its slot: slow, obviously right,
and free of values on the host, so it can be captured wherever no kernel exists. A CPU does not run it: there
the host's mirrors choose rows (`engine/model/v41/processing.py`), for the same tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .bans import forbid_
from .best import likeliest, log_sum_exp
from .edits import penalise_
from .filters import keep_best
from .noise import gumbel_argmax, random_keys
from .tables import (
    ALLOWED,
    BIAS,
    EARLY_BAN,
    FILTER,
    NO_TOKEN,
    PENALTY,
    PROCESSED,
    RANDOM,
    WORDS,
    DrawnTokens,
    SampledSequences,
    SamplingTables,
)

_TARGET = 0


def draw_tokens(
    logits_rows_vocab: Tensor,
    sequences: SampledSequences,
    drafts_slots_places: Tensor,
    tables: SamplingTables,
    *,
    alternatives: int = -1,
    allowed_bits: Tensor | None = None,
) -> DrawnTokens:
    """Draw at every place of every sequence: place j sees the slot's first j drafts as said.

    `logits` are float32 and stay as they are. `allowed_bits` `[rows, words]` int32 are grammar masks.
    `alternatives`: report log-probabilities and so many best tokens to those who asked; -1: report none.
    """
    places = drafts_slots_places.shape[1] + 1
    place = torch.arange(places, device=logits_rows_vocab.device)
    starts, counts = first_rows(sequences, logits_rows_vocab.shape[0])
    inside = place < counts.unsqueeze(1)
    row = (starts.unsqueeze(1) + torch.minimum(place, counts.unsqueeze(1) - 1).clamp(min=0)).flatten()
    slots = sequences.slots.repeat_interleave(places)
    output = (_first_output(sequences, tables).unsqueeze(1) + place).flatten()
    drafts = drafts_slots_places[sequences.slots].repeat_interleave(places, dim=0)
    ahead = drafts.masked_fill(place[: places - 1] >= place.repeat(starts.shape[0]).unsqueeze(1), NO_TOKEN)
    raw = logits_rows_vocab[row]
    bits = None if allowed_bits is None else allowed_bits[row]
    tokens, finite, scaled, kept = _draw(raw, slots, output, ahead, tables, bits)
    shape = inside.shape
    outside = ~inside
    reported = _report(raw, scaled, kept, tokens, slots, tables, alternatives)
    chosen, top, top_ids = reported if reported is not None else (None, None, None)
    return DrawnTokens(
        tokens.view(shape).masked_fill(outside, NO_TOKEN),
        finite.view(shape) | outside,
        None if chosen is None else chosen.view(shape).masked_fill(outside, 0),
        None if top is None else top.view(*shape, alternatives).masked_fill(outside.unsqueeze(-1), 0),
        None
        if top_ids is None
        else top_ids.view(*shape, alternatives).masked_fill(outside.unsqueeze(-1), NO_TOKEN),
    )


def first_rows(sequences: SampledSequences, rows: int) -> tuple[Tensor, Tensor]:
    """Of each sequence its first row among the logits, and at how many rows it draws."""
    decodes, lengths = sequences.decodes, sequences.lengths
    prompts = lengths.shape[0] - decodes
    own = lengths[:decodes]
    last = torch.arange(rows - prompts, rows, device=lengths.device)
    return torch.cat((own.cumsum(0) - own, last)), torch.cat((own, lengths.new_ones(prompts)))


def _first_output(sequences: SampledSequences, tables: SamplingTables) -> Tensor:
    """Output position of the token drawn at each sequence's first place."""
    beyond = sequences.first - tables.origin[sequences.slots]
    decodes = sequences.decodes
    return torch.cat((beyond[:decodes] + 1, (beyond + sequences.lengths)[decodes:]))


def _draw(
    raw: Tensor, slots: Tensor, output: Tensor, ahead: Tensor, tables: SamplingTables, bits: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Tokens, whether each row is a distribution, and this (unnormalised) before and after the filters."""
    work = tables.work[slots]
    edited = _edit(raw if bits is None else forbid_(raw.clone(), bits), slots, output, ahead, tables)
    tokens, maxima = likeliest(edited)
    random = work & RANDOM > 0
    temperature = tables.temperature[slots].masked_fill(~random, 1)
    scaled = edited / temperature.unsqueeze(1)
    filtered = (work & FILTER > 0).unsqueeze(1)
    finite = maxima.isfinite()
    sane = scaled.masked_fill(~finite.unsqueeze(1), 0)
    kept = keep_best(sane, tables.top_k[slots], tables.top_p[slots], tables.min_p[slots])
    distribution = torch.where(filtered, kept, scaled)
    keys = random_keys(tables.seed[slots], tables.choice[slots], output, _TARGET)
    tokens = torch.where(random, gumbel_argmax(distribution, keys), tokens)
    return tokens, finite, scaled, distribution


def _edit(raw: Tensor, slots: Tensor, output: Tensor, ahead: Tensor, tables: SamplingTables) -> Tensor:
    work = tables.work[slots].unsqueeze(1)
    edited = _penalised(raw, slots, ahead, tables, work)
    zeros = torch.zeros_like(raw)
    biases = tables.bias_values[slots].to(raw.dtype)
    own = (work & BIAS > 0) & (tables.bias_ids[slots] >= 0)
    edited = edited + zeros.scatter_add(1, tables.bias_ids[slots].clamp(min=0), biases.masked_fill(~own, 0))
    allowed = tables.allowed_ids[slots]
    listed = zeros.scatter_add(1, allowed.clamp(min=0), (allowed >= 0).to(zeros.dtype)) > 0
    edited = torch.where((work & ALLOWED > 0) & ~listed, -torch.inf, edited)
    ends, early = tables.end_ids[slots], (output < tables.min_output[slots]).unsqueeze(1)
    for ids, banned in (
        (tables.word_ends[slots], (work & WORDS > 0) & _completed(slots, ahead, tables)),
        (ends, (work & EARLY_BAN > 0) & early & (ends >= 0)),
    ):
        value = torch.zeros_like(ids, dtype=zeros.dtype).masked_fill(~banned, 0)
        edited = edited.scatter_add(1, ids.clamp(min=0), value.masked_fill(banned, -torch.inf))
    return edited


def _penalised(raw: Tensor, slots: Tensor, ahead: Tensor, tables: SamplingTables, work: Tensor) -> Tensor:
    if tables.seen.shape[1] != raw.shape[1]:
        return raw
    numbers = torch.arange(raw.shape[0], device=raw.device)
    counts, assumed = tables.seen[slots].to(torch.int64), torch.zeros_like(raw, dtype=torch.int64)
    assumed = assumed.scatter_add(1, ahead.clamp(min=0), (ahead >= 0).to(torch.int64))
    ids = torch.arange(raw.shape[1], device=raw.device).expand_as(raw)
    factors = tables.repetition[slots], tables.frequency[slots], tables.presence[slots]
    penalised = penalise_(raw.clone(), numbers, ids, (counts >> 1) + assumed, *factors)
    return torch.where((work & PENALTY > 0) & ((counts > 0) | (assumed > 0)), penalised, raw)


def _completed(slots: Tensor, ahead: Tensor, tables: SamplingTables) -> Tensor:
    """`[rows, words]`: whether all of a word but its last token has just been said."""
    reach = tables.recent.shape[1]
    said = torch.cat((tables.recent[slots], ahead), dim=1)
    count = (ahead >= 0).sum(-1, keepdim=True)
    recent = said.gather(1, count + torch.arange(reach, device=slots.device))
    beginnings = tables.word_beginnings[slots]
    fits = (beginnings == recent.unsqueeze(1)) | (beginnings < 0)
    return fits.all(-1) & (tables.word_ends[slots] >= 0)


def _report(
    raw: Tensor,
    scaled: Tensor,
    kept: Tensor,
    tokens: Tensor,
    slots: Tensor,
    tables: SamplingTables,
    alternatives: int,
) -> tuple[Tensor, Tensor, Tensor] | None:
    """Of the model's own distribution or of the one drawn from; nothing of rows that did not ask.

    Tokens that filters cut are ranked all the same, and have no probability.
    """
    if alternatives < 0:
        return None
    processed = (tables.work[slots] & PROCESSED > 0).unsqueeze(1)
    distribution = torch.where(processed, kept, raw)
    ids = torch.where(processed, scaled, raw).sort(dim=-1, descending=True, stable=True).indices
    values = distribution.gather(1, ids)
    total = log_sum_exp(distribution, values[:, 0]).unsqueeze(1)
    silent = tables.logprobs[slots].unsqueeze(1) < 0
    chosen = (distribution.gather(1, tokens.unsqueeze(1)) - total).masked_fill(silent, 0).squeeze(1)
    top = (values[:, :alternatives] - total).masked_fill(silent, 0)
    return chosen, top, ids[:, :alternatives].masked_fill(silent, NO_TOKEN)
