"""What a draw may choose from: by rank, by mass, by share of the likeliest.

A token stays while fewer than `top_k` tokens are better, while the better ones hold at most `top_p` of the
mass (so the crossing token stays), and while it has at least `min_p` of the likeliest token's mass. All three
look at the same unfiltered distribution and the strictest wins. Equal logits rank by id. Off: 0, 1, 0.

All that can stay is at the top, so only the best few hundred are ranked. A nucleus may be wider, though, and
nobody knows before: rows whose last candidate still stays are ranked again, deeper.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .best import best, log_sum_exp

_DEEPER = 8


@dataclass(frozen=True)
class Candidates:
    """The tokens of each row that may be drawn, best first; what the filters cut has -inf."""

    values: Tensor  # [rows, count]
    ids: Tensor  # [rows, count]

    def dense(self, vocab: int) -> Tensor:
        """The same as rows of a vocabulary, -inf elsewhere."""
        rows = self.values.new_full((self.values.shape[0], vocab), -torch.inf)
        return rows.scatter_(1, self.ids, self.values)


def keep_candidates(
    logits_rows_vocab: Tensor,
    maxima_rows: Tensor,
    top_k_rows: Tensor,
    top_p_rows: Tensor,
    min_p_rows: Tensor,
    *,
    count: int,
    bounded: bool,
) -> Candidates:
    """Rank `count` tokens of each row and filter. `bounded`: every row has a top_k, and none above `count`.

    What a row keeps does not depend on `count`. Unless `bounded`, values are read to see whether the count
    was enough.
    """
    vocab = logits_rows_vocab.shape[1]
    total = log_sum_exp(logits_rows_vocab, maxima_rows)
    while True:
        count = min(count, vocab)
        values, ids = best(logits_rows_vocab, count)
        cut = _cut(values, total, top_k_rows, top_p_rows, min_p_rows)
        if bounded or count == vocab or bool(cut[:, -1].all()):
            return Candidates(values.masked_fill(cut, -torch.inf), ids)
        count *= _DEEPER


def keep_best(
    logits_rows_vocab: Tensor, top_k_rows: Tensor, top_p_rows: Tensor, min_p_rows: Tensor
) -> Tensor:
    """The filters by a full sort: the readable twin of `keep_candidates`."""
    ordered, order = logits_rows_vocab.sort(dim=-1, descending=True, stable=True)
    total = log_sum_exp(logits_rows_vocab, ordered[:, 0])
    cut = _cut(ordered, total, top_k_rows, top_p_rows, min_p_rows)
    return Candidates(ordered.masked_fill(cut, -torch.inf), order).dense(ordered.shape[1])


def _cut(values: Tensor, total_rows: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    mass = (values - total_rows.unsqueeze(1)).exp_()
    better = mass.cumsum(-1) - mass
    rank = torch.arange(values.shape[1], device=values.device)
    cut = (top_k.unsqueeze(1) > 0) & (rank >= top_k.unsqueeze(1))
    cut |= (top_p.unsqueeze(1) < 1) & (better > top_p.unsqueeze(1))
    return cut | (mass < min_p.unsqueeze(1) * mass[:, :1])
