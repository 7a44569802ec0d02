"""The device's split of verified drafts: the newest confidences of all sequences against each other.

The twin of `scheduling.verification.deal`, without a look at any value: ranks come from one stable sort, so
that equal survivals go to the lower flat index on every device, and lengths stay on the device. How many
drafts are verified in all is the host's, a plain number, so shapes are known.
"""

from __future__ import annotations

import torch
from torch import Tensor


def survivals(log_odds: Tensor) -> Tensor:
    """Chance `[sequences, drafts]` that a draft and all before it are accepted; never rises along a row."""
    return log_odds.sigmoid().cumprod(1)


def deal(survival: Tensor, most: Tensor, spare: int) -> Tensor:
    """Rows int64 `[sequences]`: one each, and one for each of its drafts among the `spare` best.

    `survival` `[sequences, drafts]`, `most` `[sequences]` the cap of each sequence's drafts.
    """
    sequences, drafts = survival.shape
    allowed = torch.arange(drafts, device=survival.device) < most.unsqueeze(1)
    ranked = survival.masked_fill(~allowed, -1.0).flatten()
    order = ranked.argsort(descending=True, stable=True)
    chosen = torch.zeros_like(order).index_fill_(0, order[:spare], 1)
    return chosen.view(sequences, drafts).sum(1) + 1


def deal_on_device(log_odds: Tensor, most: Tensor, slots: Tensor, lengths: Tensor) -> Tensor:
    """`deal` where the host knows neither the total nor who is real: those of slot 0 keep their length.

    The total is that of `lengths`, so shapes stay what they are. All per sequence, int64.
    """
    real = slots > 0
    sequences, drafts = log_odds.shape
    place = torch.arange(drafts, device=log_odds.device)
    allowed = real.unsqueeze(1) & (place < most.unsqueeze(1))
    order = survivals(log_odds).masked_fill(~allowed, -1.0).flatten().argsort(descending=True, stable=True)
    spare = (lengths - 1).masked_fill(~real, 0).sum()
    best = (torch.arange(order.shape[0], device=order.device) < spare).to(torch.int64)
    chosen = torch.zeros_like(order).scatter_(0, order, best).view(sequences, drafts)
    return torch.where(real, chosen.sum(1) + 1, lengths)
