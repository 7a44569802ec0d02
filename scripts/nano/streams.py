"""Hyper-connections: what a sublayer reads from the residual streams and how its output enters them."""

from __future__ import annotations

import torch
from torch import Tensor

from .arithmetic import rms_norm, wide


def open_sublayer(
    streams: Tensor, pre: Tensor, fn: Tensor, base: Tensor, scale: Tensor, norm: Tensor, eps: float,
    hc_eps: float, compute: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """(normed input, next pre, post, comb logits) from `[rows, copies, dim]` streams (model_spec 2.2)."""
    rows, copies, _ = streams.shape
    flat = streams.flatten(1)
    raw = (flat @ fn.t()) * torch.rsqrt(flat.square().mean(-1, keepdim=True) + eps)
    pre_raw, post_raw, comb_raw = raw.split([copies, copies, copies * copies], dim=-1)
    pre_base, post_base, comb_base = base.split([copies, copies, copies * copies])
    pre_out = torch.sigmoid(scale[0] * pre_raw + pre_base) + hc_eps
    post = 2 * torch.sigmoid(scale[1] * post_raw + post_base)
    comb = (scale[2] * comb_raw + comb_base).view(rows, copies, copies)
    mixed = (pre.unsqueeze(-1) * streams).sum(1)
    return rms_norm(mixed, norm, eps).to(compute), pre_out, post, comb


def close_sublayer(output: Tensor, streams: Tensor, post: Tensor, comb: Tensor) -> Tensor:
    mixed = (comb.unsqueeze(-1) * streams.unsqueeze(2)).sum(1)
    return mixed + post.unsqueeze(-1) * wide(output).unsqueeze(1)
