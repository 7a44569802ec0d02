"""Rejection sampling: a draft stands with probability min(1, p / q), else what p has more than q is drawn.

`p` is what the target draws from, `q` what the draft was drawn from, both after every rule of the request;
then the token that comes of it has distribution p, whatever q is. A draft that was never drawn (negative, an
unused place) has no q: it is rejected, and p itself is drawn.

Probabilities are float32. Where p has nothing above q, to rounding, there is nothing to draw: then p is drawn
from, an event whose probability is that of the rounding.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .noise import uniforms


def accept_likely(target: Tensor, guess: Tensor, drafts: Tensor, draft_count: Tensor, keys: Tensor) -> Tensor:
    """Length of the accepted prefix of each sequence; of a sequence the first `draft_count` are verified.

    All but the count are `[sequences, places]`: probabilities of the drafts, their ids, and a key each.
    """
    place = torch.arange(drafts.shape[1], device=drafts.device)
    chance = uniforms(keys.flatten(), 1).view(keys.shape)
    stands = (chance * guess < target) & (drafts >= 0) & (place < draft_count.unsqueeze(1))
    return stands.to(torch.int64).cumprod(-1).sum(-1)


def residual(target_rows_vocab: Tensor, guess_rows_vocab: Tensor) -> Tensor:
    """Unnormalised log-probabilities of what is drawn behind a rejection; a guess of zeros leaves p."""
    left = (target_rows_vocab - guess_rows_vocab).clamp_(min=0)
    anything = left.amax(-1, keepdim=True) > 0
    return torch.where(anything, left, target_rows_vocab).log_()
