"""Routing and the routed experts of a mixture-of-experts sublayer (model_spec 2.9).

The routed rows are sorted by expert and each expert's slice meets its weights in one grouped product, so no
loop runs over experts and no shape depends on the routing. Where torch has no grouped product for a type or a
device (float64; float32 on CUDA, whose fallback reads the offsets back to the host) every expert computes
every row and the routing weight, zero where not chosen, discards the rest: experts/top-k times the
arithmetic, used by verification only.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def gate_scores(logits: Tensor) -> Tensor:
    """`sqrt(softplus(logit))`, in a wide type."""
    return functional.softplus(logits).sqrt()


def route(
    scores_rows_experts: Tensor, bias_rows_experts: Tensor, top_k: int, scaling: float
) -> tuple[Tensor, Tensor]:
    """Chosen experts and their weights, both `[rows, top_k]`; the weights of a row sum to `scaling`.

    The bias moves the choice and never the weights. It broadcasts over rows.
    """
    chosen = (scores_rows_experts + bias_rows_experts).topk(top_k, dim=-1, sorted=False).indices
    picked = scores_rows_experts.gather(1, chosen)
    return chosen, picked * (scaling / (picked.sum(-1, keepdim=True) + 1e-20))


def swiglu(gate_up: Tensor, limit: float) -> Tensor:
    """`silu(min(gate, limit)) * clamp(up, -limit, limit)` of `[..., 2 * inner]` = gate | up."""
    gate, up = gate_up.chunk(2, dim=-1)
    return functional.silu(gate.clamp(max=limit)) * up.clamp(-limit, limit)


def has_grouped_product(x: Tensor) -> bool:
    """Whether torch multiplies groups of rows of this type and device without asking the host."""
    if x.device.type == "cpu":
        return x.dtype in (torch.float32, torch.bfloat16)
    return x.device.type == "cuda" and x.dtype == torch.bfloat16


class ExpertOrder:
    """Rows sorted by expert: the bookkeeping both grouped products of a sublayer share."""

    def __init__(self, chosen_rows_k: Tensor, experts: int) -> None:
        flat = chosen_rows_k.reshape(-1)
        self.top_k = chosen_rows_k.shape[1]
        ordered, self.order = flat.sort(stable=True)
        self.inverse = self.order.argsort()
        bounds = torch.arange(experts, device=flat.device)
        self.ends = torch.searchsorted(ordered, bounds, right=True, out_int32=True)

    def grouped(self, x_rows_dim: Tensor) -> Tensor:
        """Each row once for each expert it goes to, sorted by expert."""
        return x_rows_dim.index_select(0, self.order // self.top_k)

    def ungrouped(self, sorted_rows_dim: Tensor) -> Tensor:
        """Back to `[rows, top_k, dim]`."""
        rows = self.inverse.shape[0] // self.top_k
        return sorted_rows_dim.index_select(0, self.inverse).view(rows, self.top_k, -1)


def grouped_linear(x_sorted: Tensor, weight_experts_out_in: Tensor, ends: Tensor) -> Tensor:
    """Each expert's slice of sorted rows times that expert's weight."""
    return functional.grouped_mm(x_sorted, weight_experts_out_in.mT, offs=ends)
