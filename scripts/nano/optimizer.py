"""Muon for matrices, Adam for everything else.

Matrices of one shape are updated as one batch (a layer's experts, all layers' projections), so the
orthogonalisation of hundreds of small matrices is a handful of batched products. Embeddings, tables,
vectors and mixing coefficients have no meaningful spectrum and take Adam, each kind with its own learning
rate.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import torch
from torch import Tensor

from stepahead.engine.model.checkpoint.storage import TensorSpec

# Learning rates at full speed, by the first rule that matches; matrices not named here take Muon.
_ADAM_RATES = (
    ("engram.embed.weight", 1e-2),
    ("markov_head.embed.weight", 3e-3),
    ("markov_head.head.weight", 3e-3),
    ("embed.weight", 6e-3),
    ("head.weight", 3e-3),
    ("gate.weight", 2e-3),
    ("confidence_head.proj.weight", 1e-3),
    ("weights_proj.weight", 2e-3),
    ("_fn", 5e-4),
    ("_scale", 1e-3),
    ("_base", 3e-3),
    ("attn_sink", 3e-3),
    ("norm.weight", 2e-3),
    ("q_weight", 2e-3),
    ("k_weight", 2e-3),
)
_MUON_RATE = 0.015
_MUON_DECAY = 0.1
_MOMENTUM = 0.95
_BETAS, _ADAM_EPS = (0.9, 0.97), 1e-10
_QUINTIC = (3.4445, -4.7750, 2.0315)


def adam_rate(name: str) -> float | None:
    """Adam's learning rate of a weight, or None where Muon takes it."""
    return next((rate for suffix, rate in _ADAM_RATES if name.endswith(suffix)), None)


@torch.no_grad()
def orthogonalise(matrices: Tensor, steps: int = 5) -> Tensor:
    """Approximate `U V^T` of each `[batch, rows, columns]` matrix with rows <= columns, by Newton-Schulz."""
    a, b, c = _QUINTIC
    x = matrices / (matrices.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    x = x.to(torch.bfloat16) if x.is_cuda else x
    for _ in range(steps):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    result: Tensor = x.to(matrices.dtype)
    return result


@dataclass
class _Bucket:
    """All Muon matrices of one shape (up to transposition)."""

    members: list[tuple[Tensor, bool]]
    momentum: Tensor


class Optimizer:
    """Steps a dictionary of weights; `scale` in `step` is the schedule."""

    def __init__(self, weights: dict[str, Tensor], specs: dict[str, TensorSpec]) -> None:
        self._adam = [
            (w, rate) for n, w in weights.items() if w.requires_grad and (rate := adam_rate(n)) is not None
        ]
        self._first = [torch.zeros_like(w) for w, _ in self._adam]
        self._second = [torch.zeros_like(w) for w, _ in self._adam]
        self._buckets = self._make_buckets(weights)
        self._steps = 0

    def _make_buckets(self, weights: dict[str, Tensor]) -> list[_Bucket]:
        shapes: dict[tuple[int, int], list[tuple[Tensor, bool]]] = defaultdict(list)
        for name, weight in weights.items():
            if weight.requires_grad and adam_rate(name) is None:
                rows, columns = weight.shape[-2:]
                shapes[min(rows, columns), max(rows, columns)].append((weight, rows > columns))
        buckets = []
        for shape, members in shapes.items():
            count = sum(w.numel() for w, _ in members) // (shape[0] * shape[1])
            buckets.append(_Bucket(members, torch.zeros(count, *shape, device=members[0][0].device)))
        return buckets

    def gradients(self) -> list[Tensor]:
        trained = [w for w, _ in self._adam] + [w for b in self._buckets for w, _ in b.members]
        return [w.grad for w in trained if w.grad is not None]

    @torch.no_grad()
    def step(self, scale: float) -> None:
        self._steps += 1
        for bucket in self._buckets:
            _muon_step(bucket, scale)
        self._adam_step(scale)

    def _adam_step(self, scale: float) -> None:
        grads = [w.grad if w.grad is not None else torch.zeros_like(w) for w, _ in self._adam]
        b1, b2 = _BETAS
        torch._foreach_lerp_(self._first, grads, 1 - b1)
        torch._foreach_mul_(self._second, b2)
        torch._foreach_addcmul_(self._second, grads, grads, 1 - b2)
        correction = (1 - b2**self._steps) ** 0.5 / (1 - b1**self._steps)
        denominators = torch._foreach_sqrt(self._second)
        torch._foreach_add_(denominators, _ADAM_EPS)
        rates = [-rate * scale * correction for _, rate in self._adam]
        updates = torch._foreach_div(self._first, denominators)
        torch._foreach_mul_(updates, rates)
        torch._foreach_add_([w for w, _ in self._adam], updates)
        for weight, _ in self._adam:
            weight.grad = None


def _muon_step(bucket: _Bucket, scale: float) -> None:
    rows, columns = bucket.momentum.shape[-2:]
    parts = []
    for weight, transposed in bucket.members:
        grad = weight.grad if weight.grad is not None else torch.zeros_like(weight)
        grad = grad.reshape(-1, *weight.shape[-2:])
        parts.append(grad.mT if transposed else grad)
        weight.grad = None
    grads = torch.cat(parts)
    bucket.momentum.lerp_(grads, 1 - _MOMENTUM)
    update = orthogonalise(grads.lerp(bucket.momentum, _MOMENTUM))
    start, targets, updates = 0, [], []
    for weight, transposed in bucket.members:
        count = weight.numel() // (rows * columns)
        part = update[start : start + count]
        start += count
        # A tall matrix maps few inputs to many outputs; its update grows with the square root of the ratio.
        growth = (max(1.0, weight.shape[-2] / weight.shape[-1])) ** 0.5
        updates.append(
            (part.mT if transposed else part).reshape(weight.shape) * (-_MUON_RATE * scale * growth)
        )
        targets.append(weight)
    torch._foreach_mul_(targets, 1 - _MUON_RATE * scale * _MUON_DECAY)
    torch._foreach_add_(targets, updates)
