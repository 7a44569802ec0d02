"""Arithmetic that all parts of the training forward share: widening, norms, rotation.

Matrices arrive in the compute type; streams, norms, mixes, routing and softmax stay in float32. Tests
compare in float64, so "wide" means at least float32 and never narrows.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional

Weights = Mapping[str, Tensor]
NEVER = -1e30  # a score that no softmax notices, and that stays finite in differences


def wide(x: Tensor) -> Tensor:
    """At least float32; float64, in which tests compare, stays."""
    return x if x.dtype == torch.float64 else x.float()


def multiply(x: Tensor, weight: Tensor) -> Tensor:
    """`x @ weight^T` in the weight's type: float32 matrices keep it under narrower activations."""
    return functional.linear(x.to(weight.dtype), weight)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    y = wide(x)
    return (y * torch.rsqrt(y.square().mean(-1, keepdim=True) + eps) * weight).to(x.dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn the last dimensions; `cos` and `sin` are `[..., pairs]` and broadcast over leading dimensions."""
    rotary = 2 * cos.shape[-1]
    plain, turned = x.split([x.shape[-1] - rotary, rotary], dim=-1)
    a, b = wide(turned).unflatten(-1, (-1, 2)).unbind(-1)
    pairs = torch.stack((a * cos - b * sin, a * sin + b * cos), dim=-1).flatten(-2)
    return torch.cat((plain, pairs.to(x.dtype)), dim=-1)
