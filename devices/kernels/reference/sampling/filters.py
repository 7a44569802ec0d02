"""What a draw may choose from: by rank, by mass, by share of the likeliest.

A token stays while fewer than `top_k` tokens are better, while the better ones hold at most `top_p` of the
mass (so the crossing token stays), and while it has at least `min_p` of the likeliest token's mass. All three
look at the same unfiltered distribution and the strictest wins. Equal logits rank by id. Off: 0, 1, 0.

All that can stay is at the top, so only the best few hundred are ranked. A nucleus may be wider, though, and
nobody knows before: where the host may ask, rows whose last candidate still stays are ranked again, deeper,
and only those; where it may not, `threshold.keep_by_threshold` does not rank at all.
"""

from __future__ import annotations

from collections.abc import Iterator
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
) -> Candidates:
    """Rank `count` tokens of each row and filter: every row has a top_k, and none above `count`."""
    total = log_sum_exp(logits_rows_vocab, maxima_rows)
    values, ids = best(logits_rows_vocab, min(count, logits_rows_vocab.shape[1]))
    cut = _cut(values, total, top_k_rows, top_p_rows, min_p_rows)
    return Candidates(values.masked_fill(cut, -torch.inf), ids)


def deepen_candidates(
    logits_rows_vocab: Tensor,
    maxima_rows: Tensor,
    top_k_rows: Tensor,
    top_p_rows: Tensor,
    min_p_rows: Tensor,
    *,
    count: int,
) -> Iterator[tuple[Tensor, Candidates]]:
    """Row numbers and what these rows keep, in groups: first those for which `count` tokens are enough.

    What a row keeps does not depend on `count`, nor on the other rows. Values are read, so not for a GPU.
    """
    rows, vocab = logits_rows_vocab.shape
    total = log_sum_exp(logits_rows_vocab, maxima_rows)
    open_rows = torch.arange(rows, device=logits_rows_vocab.device)
    logits, limits = logits_rows_vocab, (total, top_k_rows, top_p_rows, min_p_rows)
    while open_rows.numel():
        count = min(count, vocab)
        values, ids = best(logits, count)
        cut = _cut(values, *limits)
        values = values.masked_fill_(cut, -torch.inf)
        enough = cut[:, -1]
        if count == vocab or bool(enough.all()):
            yield open_rows, Candidates(values, ids)
            return
        if enough.any():
            yield open_rows[enough], Candidates(values[enough], ids[enough])
        logits, open_rows = logits[~enough], open_rows[~enough]
        total, top_k, top_p, min_p = (part[~enough] for part in limits)
        limits, count = (total, top_k, top_p, min_p), count * _DEEPER


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
