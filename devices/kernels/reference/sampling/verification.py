"""Which drafts stand: those that are what the target drew at their place."""

from __future__ import annotations

import torch
from torch import Tensor


def accept_equal(drafts: Tensor, drawn: Tensor, draft_count: Tensor) -> Tensor:
    """Length of the accepted prefix of each sequence: drafts that equal what the target drew there.

    `drafts` is `[sequences, places]`, `drawn` `[sequences, places + 1]`; of a sequence the first
    `draft_count` drafts are verified.
    """
    place = torch.arange(drafts.shape[1], device=drafts.device)
    agrees = (drafts == drawn[:, : drafts.shape[1]]) & (place < draft_count.unsqueeze(1))
    return agrees.to(torch.int64).cumprod(-1).sum(-1)
