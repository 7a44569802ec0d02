"""The chain of drafts: each guess changes the distribution of the next, and each is drawn like a target."""

from __future__ import annotations

import torch
from torch import Tensor

from ..norm import wide_linear
from .peaks import peak_log_odds
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
        confidence[slots, place] = log_odds(inputs, place, embedded, logits)
        # One row each, `place` drafts behind it: the draw at the last place of a window of place + 1 rows.
        sequences = SampledSequences(slots, first, ones * (place + 1), slots.shape[0])
        window = logits.repeat_interleave(place + 1, dim=0)
        previous = draw_tokens(window, sequences, guesses[:, :place], tables).tokens[:, place]
        guesses[slots, place] = previous
    state.drafts[slots] = guesses[slots]


def markov_table(embed: Tensor, head: Tensor) -> Tensor | None:
    """What every token `[vocab, rank]` adds to the logits, `[vocab, vocab]`, where a chain wants it ready."""
    return None


def log_odds(inputs: DraftInputs, place: int, embedded: Tensor, logits: Tensor) -> Tensor:
    """Log-odds `[sequences]` that the draft of one place is accepted if those before it were.

    `embedded` `[sequences, rank]` is of the token before, `logits` `[sequences, vocab]` are the place's.
    The published sign of certainty is the confidence head, calibrated by one temperature a place. A
    checkpoint may name another, the peak of the distribution that the draft is drawn from: it sees the whole
    vocabulary where the head sees a hidden vector, and was never trained to be a chance, so it is scaled and
    shifted.
    Both depend on what stands before a draft, not on the draft, or they could not choose whom to verify.
    """
    if inputs.peak_scales:
        odds = peak_log_odds(logits) * inputs.peak_scales[place] + inputs.peak_offsets[place]
    else:
        odds = raw_confidence(inputs, place, embedded)
        odds = odds / inputs.temperatures[place] if inputs.temperatures else odds
    return odds.clamp(-SUREST, SUREST).nan_to_num(-SUREST)  # of a broken sequence: nobody else's loss


def raw_confidence(inputs: DraftInputs, place: int, embedded: Tensor) -> Tensor:
    """What the confidence head says `[sequences]` (model_spec 3.2)."""
    features = torch.cat((inputs.hidden[:, place], embedded), dim=-1).to(inputs.base_logits.dtype)
    return wide_linear(features, inputs.confidence.to(features.dtype)).squeeze(-1)
