"""The device's split of verified drafts: the newest confidences of all sequences against each other.

Without a look at any value: ranks come from one stable sort, so that equal survivals go to the lower flat
index on every device, and lengths stay on the device. Neither how many drafts are verified nor who is real
need be known to the host: shapes are those of the slots.
"""

from __future__ import annotations

import torch
from torch import Tensor


def survivals(log_odds: Tensor) -> Tensor:
    """Chance `[sequences, drafts]` that a draft and all before it are accepted; never rises along a row."""
    return log_odds.sigmoid().cumprod(1)


def deal_on_device(log_odds: Tensor, most: Tensor, slots: Tensor, lengths: Tensor) -> Tensor:
    """Rows int64 `[sequences]`: one each, and one for each of its drafts among the best of all.

    `log_odds` `[sequences, drafts]`; `most` is the cap of each sequence's drafts. Sequences of slot 0 keep
    their length. The total is that of `lengths`, so shapes stay what they are.
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


def deal_lengths(
    log_odds_slots: Tensor, most_slots: Tensor, slots: Tensor, lengths: Tensor, redeal: Tensor, dealt: int
) -> Tensor:
    """The lengths `[rows]` that a step runs with: of the first `dealt` sequences as their confidences deal
    them, if `redeal` `[1]` is set; all others as given. Log-odds and caps are tables by slot.
    """
    given, first = lengths[:dealt], slots[:dealt]
    better = deal_on_device(log_odds_slots[first], most_slots[first], first, given)
    return torch.cat((torch.where(redeal > 0, better, given), lengths[dealt:]))
