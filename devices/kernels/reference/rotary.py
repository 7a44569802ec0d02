"""Rotary positions on the last dimensions of a vector (model_spec 2.3).

Pairs are interleaved: dimensions (2i, 2i+1) of the rotary slice turn by `position * frequency[i]`. A pair is
a complex number, so one complex multiplication turns all of them; the table below holds `exp(i * angle)` as
interleaved (cos, sin) and costs one gather a step, not a sine a layer.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .norm import wide_dtype


def plain_frequencies(base: float, rotary_dim: int) -> list[float]:
    """Angles per position of each pair: `base ** (-2i / rotary_dim)`."""
    return [base ** (-2 * i / rotary_dim) for i in range(rotary_dim // 2)]


def yarn_frequencies(
    base: float, rotary_dim: int, *, factor: float, beta_fast: float, beta_slow: float, original_length: int
) -> list[float]:
    """YaRN: slow pairs are slowed further by `factor`, fast pairs kept, a linear ramp between (model_spec
    2.3)."""

    def pair_with_rotations(rotations: float) -> float:
        return rotary_dim * math.log(original_length / (rotations * 2 * math.pi)) / (2 * math.log(base))

    low = max(math.floor(pair_with_rotations(beta_fast)), 0)
    high = min(math.ceil(pair_with_rotations(beta_slow)), rotary_dim - 1)
    span = max(high - low, 0.001)
    ramps = [min(max((i - low) / span, 0.0), 1.0) for i in range(rotary_dim // 2)]
    plain = plain_frequencies(base, rotary_dim)
    return [f * (1 - r) + f / factor * r for f, r in zip(plain, ramps, strict=True)]


def rotary_table(frequencies: list[float], length: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """(cos, sin) of every pair at positions 0..length-1: `[length, rotary_dim]`, interleaved, in a wide type.

    Angles are formed in float64: at position 10^6 a float32 angle is already wrong in the third digit.
    """
    positions = torch.arange(length, dtype=torch.float64)
    angles = positions[:, None] * torch.tensor(frequencies, dtype=torch.float64)
    table = torch.stack((angles.cos(), angles.sin()), dim=-1).flatten(1)
    return table.to(device=device, dtype=wide_dtype(dtype))


def rotate_(x: Tensor, turns: Tensor, *, inverse: bool = False) -> Tensor:
    """Turn the last dimensions of `x` in place.

    `x` is `[..., dim]`; `turns` is `[..., rotary_dim]` and broadcasts over the leading dimensions of `x`.
    Narrow types are widened for the product and rounded once.
    """
    rotary_dim = turns.shape[-1]
    tail = x[..., x.shape[-1] - rotary_dim :]
    wide = tail.to(turns.dtype)
    pairs = torch.view_as_complex(wide.unflatten(-1, (rotary_dim // 2, 2)))
    spins = torch.view_as_complex(turns.unflatten(-1, (rotary_dim // 2, 2)))
    pairs.mul_(spins.conj() if inverse else spins)
    if wide is not tail:
        tail.copy_(wide)
    return x
