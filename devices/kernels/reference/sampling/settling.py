"""After the draw: which drafts stand, and what every sequence's slot says from now on."""

from __future__ import annotations

import torch
from torch import Tensor

from .tables import (
    NO_TOKEN,
    PENALTY,
    WORDS,
    DrawnTokens,
    SampledSequences,
    SamplingTables,
    SettledTokens,
    SlotTensors,
)
from .verification import accept_equal


def settle_(
    drawn: DrawnTokens,
    sequences: SampledSequences,
    state: SlotTensors,
    tables: SamplingTables,
    chunk_tail: Tensor,
) -> SettledTokens:
    """Accept the drafts that agree with what was drawn at their place, and write the slots.

    Position, newest token and history of every sequence (`chunk_tail` `[prompts, kept]` are the histories of
    prompts), and what the tables remember of tokens said, for those who asked. Sequences of one call have
    different slots, except for placeholders in the scratch slot 0, which may have no row at all.
    """
    decodes, slots = sequences.decodes, sequences.slots
    drafts = state.drafts[slots]
    counts = sequences.lengths.clone()
    counts[decodes:] = 1
    accepted = accept_equal(drafts, drawn.tokens, counts - 1)
    emitted = (accepted + 1).masked_fill(counts == 0, 0)
    kept = torch.arange(drawn.tokens.shape[1], device=slots.device) < emitted.unsqueeze(1)
    tokens = drawn.tokens.masked_fill(~kept, NO_TOKEN)
    newest = tokens.gather(1, accepted.unsqueeze(1)).squeeze(1)
    newest = torch.where(newest < 0, state.token[slots], newest)
    history = state.history[slots]
    recent = torch.cat((history, state.token[slots].unsqueeze(1), tokens), dim=1)
    width = torch.arange(history.shape[1], device=slots.device)
    followed = recent.gather(1, emitted.unsqueeze(1) + width)
    moved = torch.cat((emitted[:decodes], sequences.lengths[decodes:]))
    state.position[slots] = sequences.first + moved
    state.token[slots] = newest
    state.history[slots] = torch.cat((followed[:decodes], chunk_tail))
    _remember_(tokens, emitted, kept, slots, tables)
    more = ~kept.unsqueeze(-1)
    return SettledTokens(
        tokens,
        emitted,
        (drawn.finite | ~kept).all(1),
        None if drawn.logprobs is None else drawn.logprobs.masked_fill(~kept, 0),
        None if drawn.top_logprobs is None else drawn.top_logprobs.masked_fill(more, 0),
        None if drawn.top_tokens is None else drawn.top_tokens.masked_fill(more, NO_TOKEN),
    )


def _remember_(tokens: Tensor, emitted: Tensor, kept: Tensor, slots: Tensor, tables: SamplingTables) -> None:
    """Counts and last tokens of the slots whose bits ask for them; those of others mean nothing."""
    work = tables.work[slots].unsqueeze(1)
    if tables.seen.shape[1] > 1:
        added = 2 * (kept & (work & PENALTY > 0)).to(tables.seen.dtype)
        place = (slots.unsqueeze(1).expand_as(tokens), tokens.clamp(min=0))
        tables.seen.index_put_(place, added, accumulate=True)
    reach = tables.recent.shape[1]
    if reach:
        said = torch.cat((tables.recent[slots], tokens), dim=1)
        width = torch.arange(reach, device=slots.device)
        followed = said.gather(1, emitted.unsqueeze(1) + width)
        tables.recent[slots] = torch.where(work & WORDS > 0, followed, tables.recent[slots])
