"""Scoring and choosing entries (model_spec 2.7), and the loss by which the indexer learns to score.

The choice itself has no gradient: the indexer learns from the attention that the layers pay, and nothing
flows back from it into the trunk.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from stepahead.engine.model.v41.config import ModelConfig

from .arithmetic import NEVER, wide


def index_scores(query: Tensor, keys: Tensor, head_weights: Tensor) -> Tensor:
    """`[batch, length, entries]` of `[batch, length, heads, dim]` queries, `[batch, entries, dim]` keys."""
    batch, length, heads, dim = query.shape
    dots = (query.reshape(batch, length * heads, dim) @ keys.mT).view(batch, length, heads, -1)
    return (wide(dots.relu()) * wide(head_weights).unsqueeze(-1)).sum(2)


def index_loss(scores: Tensor, wanted: Tensor, visible: Tensor) -> Tensor:
    """Cross entropy of the indexer against the attention paid, weighted by how much attention there was."""
    total = wanted.sum(-1, keepdim=True)
    logs = scores.masked_fill(~visible, NEVER).log_softmax(-1)
    target = wanted / (total + 1e-9)
    entropy = -(target * (target + 1e-9).log()).sum(-1)
    return ((-(target * logs.clamp(min=-50.0)).sum(-1) - entropy) * (total.squeeze(-1) > 1e-6)).mean()


def visible_entries(length: int, count: int, ratio: int, device: torch.device) -> Tensor:
    """Whether entry j ends at or before position p: `[1, length, count]` bool."""
    ends = (torch.arange(length, device=device) + 1) // ratio
    return (torch.arange(count, device=device) < ends[:, None]).unsqueeze(0)


def choose(scores: Tensor, count: int) -> Tensor:
    """Mask of the `count` best entries of every row; never one at -inf; lower entries win ties."""
    if scores.shape[-1] <= count:
        return scores > -torch.inf
    if scores.is_cuda:
        best = scores.topk(count, dim=-1, sorted=False).indices
    else:
        best = scores.sort(dim=-1, descending=True, stable=True).indices[..., :count]
    return torch.zeros_like(scores, dtype=torch.bool).scatter_(-1, best, True) & (scores > -torch.inf)


def candidate_entries(config: ModelConfig, scores: Tensor, visible: Tensor) -> Tensor:
    """Entries of the best blocks; the block of the newest visible entry is always one (model_spec 2.7)."""
    block, entries = config.candidate_block_size, scores.shape[-1]
    padded = functional.pad(scores, (0, -entries % block), value=-torch.inf)
    best = padded.unflatten(-1, (-1, block)).amax(-1)
    newest = (visible.sum(-1) - 1) // block
    numbers = torch.arange(best.shape[-1], device=scores.device)
    best = best.masked_fill(numbers == newest.unsqueeze(-1), torch.inf)
    return choose(best, config.candidate_topk_blocks).repeat_interleave(block, dim=-1)[..., :entries]
