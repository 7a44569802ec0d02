"""The device's split of verified drafts: the newest confidences of all sequences against each other.

The twin of `scheduling.verification.deal`, without a look at any value: ranks come from one stable sort, so
that equal survivals go to the lower flat index on every device, and lengths stay on the device. How many
drafts are verified in all is the host's, a plain number, so shapes are known.
"""

from __future__ import annotations

import torch
from torch import Tensor

from stepahead.devices.kernels.reference.dealing import deal_on_device, survivals

__all__ = ["deal", "deal_on_device", "survivals"]


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
