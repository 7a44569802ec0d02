"""Routing and experts (model_spec 2.10): all experts multiply all rows.

A routing weight is zero where an expert was not chosen; 16 experts of width 64 are one ordinary matrix
product, and sorting rows would cost more than it saves.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from .arithmetic import wide


def route(
    inputs: Tensor, gate: Tensor, bias: Tensor, top_k: int, scaling: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Routing weights `[rows, experts]` (zero where not chosen), load per expert, and a balance penalty."""
    scores = functional.softplus(wide(inputs) @ gate.t()).sqrt()
    wanted, mask = scores.detach() + bias, torch.zeros_like(scores)
    for _ in range(top_k):  # two passes over 16 columns fuse with their neighbours; a sort would not
        best = functional.one_hot(wanted.argmax(-1), scores.shape[1]).to(scores.dtype)
        mask, wanted = mask + best, wanted - best * 1e9
    picked = scores * mask
    weights = picked * (scaling / (picked.sum(-1, keepdim=True) + 1e-20))
    load = mask.mean(0) / top_k
    share = (scores / scores.sum(-1, keepdim=True)).mean(0)
    return weights, load, scores.shape[1] * (load * share).sum()


def experts(
    inputs: Tensor, weights: Tensor, w1: Tensor, w3: Tensor, w2: Tensor,
    s1: Tensor, s3: Tensor, s2: Tensor, limit: float,
) -> Tensor:  # fmt: skip
    """All experts on all rows, routing weight before the last product, plus the shared expert."""
    width = w1.shape[1]
    up_weight = torch.cat((w3.flatten(0, 1), s3))
    gate_weight = torch.cat((w1.flatten(0, 1), s1))
    gated = functional.silu(functional.linear(inputs, gate_weight).clamp(max=limit))
    hidden = gated * functional.linear(inputs, up_weight).clamp(-limit, limit)
    spread = weights.to(hidden.dtype).repeat_interleave(width, dim=1)
    hidden = hidden * torch.cat((spread, spread.new_ones(spread.shape[0], s1.shape[0])), dim=1)
    down = torch.cat((w2.movedim(0, 1).flatten(1), s2), dim=1)
    return functional.linear(hidden, down)
