"""Window and entry attention over whole sequences (model_spec 2.3 to 2.5), differentiable.

The engine gathers each row's own keys. Here a window is the row's chunk and the one before it, and a
selection is a dense mask, because products of large matrices with masks are cheaper to differentiate than
gathers.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from .arithmetic import NEVER, rms_norm, rotate, wide


def project(
    inputs: Tensor, wq_a: Tensor, q_norm: Tensor, wq_b: Tensor, wkv: Tensor, kv_norm: Tensor,
    cos: Tensor, sin: Tensor, heads: int, eps: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Queries `[batch, length, heads, dim]`, their compressed form, and window keys; both rotated."""
    compressed = rms_norm(functional.linear(inputs, wq_a), q_norm, eps)
    query = functional.linear(compressed, wq_b).unflatten(-1, (heads, -1))
    keys = rms_norm(functional.linear(inputs, wkv), kv_norm, eps)
    return rotate(query, cos.unsqueeze(-2), sin.unsqueeze(-2)), compressed, rotate(keys, cos, sin)


def attend(
    query: Tensor, keys: Tensor, entries: Tensor | None, chosen: Tensor | None, visible: Tensor | None,
    sink: Tensor, window: int,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """One softmax over the window, the chosen entries and the sink (model_spec 2.5).

    Also returns how much attention the heads together would pay to every visible entry if all were chosen,
    `[batch, length, entries]`: what the indexer learns to predict.
    """
    batch, length, heads, dim = query.shape
    scale = dim**-0.5
    chunks = length // window
    own = keys.view(batch, chunks, window, dim)
    pairs = torch.cat((functional.pad(own, (0, 0, 0, 0, 1, 0))[:, :-1], own), dim=2)
    rows = query.reshape(batch, chunks, window * heads, dim)
    near = wide(rows @ pairs.mT).view(batch, chunks, window, heads, 2 * window) * scale
    row = torch.arange(window, device=query.device).view(1, window, 1, 1)
    slot = torch.arange(2 * window, device=query.device).view(1, 1, 1, 2 * window)
    chunk = torch.arange(chunks, device=query.device).view(chunks, 1, 1, 1)
    allowed = (slot > row) & (slot <= row + window) & ((slot >= window) | (chunk > 0))
    near = near.masked_fill(~allowed, NEVER).view(batch, length, heads, 2 * window)
    top = torch.maximum(near.amax(-1), sink)
    if entries is None or chosen is None or visible is None:
        top = top.detach()
        weights = torch.exp(near - top.unsqueeze(-1))
        total = weights.sum(-1) + torch.exp(sink - top)
        near_weights = (weights / total.unsqueeze(-1)).to(query.dtype)
        result = near_weights.view(batch, chunks, window * heads, 2 * window) @ pairs
        return result.view(batch, length, heads, dim), None
    raw = wide(query.reshape(batch, length * heads, dim) @ entries.mT).view(batch, length, heads, -1) * scale
    far = raw.masked_fill(~chosen.unsqueeze(2), NEVER)
    top = torch.maximum(top, far.amax(-1)).detach()
    weights, far_weights = torch.exp(near - top.unsqueeze(-1)), torch.exp(far - top.unsqueeze(-1))
    total = (weights.sum(-1) + far_weights.sum(-1) + torch.exp(sink - top)).unsqueeze(-1)
    near_weights = (weights / total).to(query.dtype).view(batch, chunks, window * heads, 2 * window)
    far_product = (far_weights / total).to(query.dtype).view(batch, length * heads, -1) @ entries
    result = (near_weights @ pairs).view(batch, length, heads, dim) + far_product.view(
        batch, length, heads, dim
    )
    wanted = torch.exp((raw.detach() - top.unsqueeze(-1)).clamp(max=20.0)) / total.detach()
    return result, wanted.sum(2).masked_fill(~visible, 0.0)


def project_output(
    result: Tensor, cos: Tensor, sin: Tensor, wo_a: Tensor, wo_b: Tensor, groups: int
) -> Tensor:
    """Un-rotate by the query position, then the grouped low-rank output projection."""
    result = rotate(result, cos.unsqueeze(-2), -sin.unsqueeze(-2))
    grouped = result.flatten(-2).unflatten(-1, (groups, -1)).movedim(-2, 0)
    grouped = grouped.reshape(groups, -1, grouped.shape[-1])
    low = (grouped @ wo_a.view(groups, -1, grouped.shape[-1]).mT).movedim(0, 1).flatten(1)
    return functional.linear(low, wo_b)
