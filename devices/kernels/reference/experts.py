"""Routing and the routed experts of a mixture-of-experts sublayer (model_spec 2.9).

The routed rows are sorted by expert and each expert's slice meets its weights in one grouped product, so no
loop runs over experts and no shape depends on the routing. Where torch has no grouped product for a type or a
device (float64; float32 on CUDA, whose fallback reads the offsets back to the host) every expert computes
every row and the routing weight, zero where not chosen, discards the rest: experts/top-k times the
arithmetic, used by verification only.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from ..quantized import Weight, plain
from .norm import wide_dtype
from .products import linear, wide_linear
from .quantization import fp8_round_trip


@dataclass(frozen=True)
class Routing:
    """Which experts every row goes to. A set of kernels may add how it sorted them."""

    chosen: Tensor  # [rows, top_k] int64
    shares: Tensor  # [rows, top_k], wide


@dataclass(frozen=True)
class Experts:
    """The matrices of one sublayer, plain or quantized. Gate and up projections are stacked in this order."""

    gate_up: Weight  # [experts, 2 * inner, dim]
    down: Weight  # [experts, dim, inner]
    shared_gate_up: Weight  # [2 * shared_inner, dim]
    shared_down: Weight  # [dim, shared_inner]


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


def route_rows(
    x_rows_dim: Tensor,
    gate: Tensor,
    text_bias: Tensor,
    image_bias: Tensor,
    image_mask: Tensor | None,
    top_k: int,
    scaling: float,
    experts: Experts,
    *,
    quantized: bool,
) -> Routing:
    """Score every expert and choose; rows of images have a bias of their own.

    `experts` and `quantized` are those of the `mix_experts` that follows: a kernel prepares its inputs here.
    """
    scores = gate_scores(wide_linear(x_rows_dim, gate.to(wide_dtype(x_rows_dim.dtype))))
    bias = text_bias if image_mask is None else torch.where(image_mask.unsqueeze(1), image_bias, text_bias)
    return Routing(*route(scores, bias, top_k, scaling))


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


def mix_experts(
    x_rows_dim: Tensor, routing: Routing, experts: Experts, limit: float, *, quantized: bool
) -> Tensor:
    """The shared expert and each row's chosen ones, summed in the wide type: `[rows, dim]`.

    With `quantized`, inputs of every product are rounded to FP8 as the published engine does.
    """
    narrow = fp8_round_trip(x_rows_dim) if quantized else x_rows_dim
    mixture = Mixture(experts, limit, quantized, narrow.dtype)
    routed = mixture.grouped if has_grouped_product(narrow) else mixture.every_expert
    return (mixture.shared(narrow) + routed(narrow, routing)).to(x_rows_dim.dtype)


class Mixture:
    """`mix_experts` by parts."""

    def __init__(self, experts: Experts, limit: float, quantized: bool, dtype: torch.dtype) -> None:
        self._experts, self._limit, self._quantized, self._dtype = experts, limit, quantized, dtype
        self._wide = wide_dtype(dtype)

    def _hidden(self, gate_up: Tensor, shares: Tensor | None) -> Tensor:
        """Gated activation; the routing weight enters before `w2`, where low precision can see it."""
        hidden = swiglu(gate_up.to(self._wide), self._limit)
        if shares is not None:
            hidden = hidden * shares
        hidden = hidden.to(self._dtype)
        return fp8_round_trip(hidden) if self._quantized else hidden

    def shared(self, inputs: Tensor) -> Tensor:
        hidden = self._hidden(linear(inputs, self._experts.shared_gate_up), None)
        return linear(hidden, self._experts.shared_down).to(self._wide)

    def grouped(self, inputs: Tensor, routing: Routing) -> Tensor:
        weights = self._experts
        order = ExpertOrder(routing.chosen, weights.gate_up.shape[0])
        gate_up = grouped_linear(order.grouped(inputs), plain(weights.gate_up, self._dtype), order.ends)
        hidden = self._hidden(gate_up, routing.shares.reshape(-1, 1)[order.order])
        down = grouped_linear(hidden, plain(weights.down, self._dtype), order.ends)
        return order.ungrouped(down).to(self._wide).sum(1)

    def every_expert(self, inputs: Tensor, routing: Routing) -> Tensor:
        """All experts on all rows; a share of zero removes what was not chosen."""
        gate_up_weight = plain(self._experts.gate_up, self._dtype)
        shares = routing.shares
        spread = shares.new_zeros(shares.shape[0], gate_up_weight.shape[0]).scatter(1, routing.chosen, shares)
        gate_up = torch.einsum("nd,eid->eni", inputs, gate_up_weight)
        hidden = self._hidden(gate_up, spread.t().unsqueeze(-1))
        down = plain(self._experts.down, self._dtype)
        return torch.einsum("eni,edi->nd", hidden, down).to(self._wide)
