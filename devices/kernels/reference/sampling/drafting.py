"""The chain of drafts: each guess changes the distribution of the next, and each is drawn like a target."""

from __future__ import annotations

import torch
from torch import Tensor

from ..norm import wide_linear
from .tables import NO_TOKEN, DraftInputs, SampledSequences, SamplingTables, SlotTensors
from .whole import draw_tokens

SUREST = 60.0
"""Log-odds of a confidence; products of five sigmoids of such numbers are exact enough to compare."""


def draft_chain_(
    inputs: DraftInputs, slots: Tensor, state: SlotTensors, tables: SamplingTables, confidence: Tensor
) -> None:
    """Guess what follows the newest tokens of `slots` `[sequences]`, one place after another.

    Writes `state.drafts`, and into `confidence` `[slots, drafts]` the log-odds that each is accepted.
    """
    count = state.drafts.shape[1]
    newest, first = state.token[slots], state.position[slots]
    guesses = state.drafts.new_full((state.drafts.shape[0], count), NO_TOKEN)
    previous, ones = newest, torch.ones_like(first)
    for place in range(count):
        embedded = inputs.markov_embed[previous]
        logits = inputs.base_logits[:, place] + wide_linear(embedded, inputs.markov_head)
        confidence[slots, place] = _log_odds(inputs, place, embedded)
        # One row each, `place` drafts behind it: the draw at the last place of a window of place + 1 rows.
        sequences = SampledSequences(slots, first, ones * (place + 1), slots.shape[0])
        window = logits.repeat_interleave(place + 1, dim=0)
        previous = draw_tokens(window, sequences, guesses[:, :place], tables).tokens[:, place]
        guesses[slots, place] = previous
    state.drafts[slots] = guesses[slots]


def markov_table(embed: Tensor, head: Tensor) -> Tensor | None:
    """What every token `[vocab, rank]` adds to the logits, `[vocab, vocab]`, where a chain wants it ready."""
    return None


def _log_odds(inputs: DraftInputs, place: int, embedded: Tensor) -> Tensor:
    features = torch.cat((inputs.hidden[:, place], embedded), dim=-1).to(inputs.base_logits.dtype)
    raw = wide_linear(features, inputs.confidence.to(features.dtype)).squeeze(-1)
    scaled = raw / inputs.temperatures[place] if inputs.temperatures else raw
    return scaled.clamp(-SUREST, SUREST)
