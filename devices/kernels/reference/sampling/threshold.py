"""The filters without ranking: find the least logit that stays, by bisection over float32's own order.

Ranking answers the filters where few tokens can stay. A nucleus may be most of a vocabulary, and nobody may
ask the device how wide it is: the host would wait, and a captured step has no host. Ranking everything costs
a sort of the vocabulary. But whether a logit stays depends only on the mass and the number of better ones,
which a pass over the row gives for any threshold, and 32 halvings of the bit patterns reach the exact one.

Masses are counted in integer quanta of 2^-30, so that sums are exact and have no order: the threshold of a
row cannot depend on how a device splits a reduction. Rounding errs by some 1e-7 of mass, like float32 itself.

Invariant: what stays is what `filters.keep_best` keeps, but where mass and top_p differ by less than that.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .best import log_sum_exp, rising_bits
from .filters import keep_best

_QUANTA = 2.0**30
_NO_LIMIT = 2**62
_LOWEST, _HIGHEST = -(2**31), 2**31 - 1


def keep_by_threshold(
    logits_rows_vocab: Tensor, maxima_rows: Tensor, top_k_rows: Tensor, top_p_rows: Tensor, min_p_rows: Tensor
) -> Tensor:
    """The rows with -inf where a filter cuts. Nothing is read back, whatever the filters are."""
    if logits_rows_vocab.dtype != torch.float32:
        return keep_best(logits_rows_vocab, top_k_rows, top_p_rows, min_p_rows)
    total = log_sum_exp(logits_rows_vocab, maxima_rows).unsqueeze(1)
    mass = (logits_rows_vocab - total).exp_()
    least = min_p_rows.unsqueeze(1) * (maxima_rows.unsqueeze(1) - total).exp()
    kept = _likely_enough(
        rising_bits(logits_rows_vocab),
        (mass * _QUANTA).round_().to(torch.int32),
        torch.where(top_k_rows > 0, top_k_rows, _NO_LIMIT).unsqueeze(1),
        torch.where(top_p_rows < 1, (top_p_rows * _QUANTA).round_().to(torch.int64), _NO_LIMIT).unsqueeze(1),
    )
    return logits_rows_vocab.masked_fill(~kept | (mass < least), -torch.inf)


def _likely_enough(order: Tensor, quanta: Tensor, most_tokens: Tensor, most_quanta: Tensor) -> Tensor:
    """Where fewer than `most_tokens` are better, and hold at most `most_quanta`; ids break ties."""
    least = _least_that_stays(order, quanta, most_tokens, most_quanta)
    # Of the tokens that tie at the threshold the lowest ids stay, as many as the limits leave room for.
    lowest = order.masked_fill(order < least, _HIGHEST).amin(-1, keepdim=True)
    better, tied = order > lowest, order == lowest
    tokens, mass = _count(better, quanta)
    before = tied.cumsum(-1) - 1
    each = quanta.masked_fill(~tied, 0).amax(-1, keepdim=True)
    fits = (tokens + before < most_tokens) & (mass + before * each <= most_quanta)
    return better | (tied & fits)


def _least_that_stays(order: Tensor, quanta: Tensor, most_tokens: Tensor, most_quanta: Tensor) -> Tensor:
    """The least pattern `[rows, 1]` of which the strictly better tokens are within both limits."""
    out = torch.full_like(most_tokens, _LOWEST - 1)  # not known to be within
    within = torch.full_like(most_tokens, _HIGHEST)
    for _ in range(32):
        middle = (out + within) >> 1
        tokens, mass = _count(order > middle, quanta)
        fits = (tokens < most_tokens) & (mass <= most_quanta)
        within, out = torch.where(fits, middle, within), torch.where(fits, out, middle)
    return within


def _count(chosen: Tensor, quanta: Tensor) -> tuple[Tensor, Tensor]:
    tokens = chosen.sum(-1, keepdim=True)
    return tokens, (quanta * chosen).sum(-1, keepdim=True, dtype=torch.int64)
