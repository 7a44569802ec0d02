"""How sure a distribution is of its likeliest token."""

from __future__ import annotations

from torch import Tensor


def peak_log_odds(logits_rows_vocab: Tensor) -> Tensor:
    """Log-odds `[rows]` of the likeliest token of unnormalised log-probabilities; +inf of a certain one."""
    best = logits_rows_vocab.amax(-1, keepdim=True)
    others = (logits_rows_vocab - best).exp_().sum(-1) - 1.0  # weights of the others, the best one's is 1
    return -others.clamp(min=0.0).log()
