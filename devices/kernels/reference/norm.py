"""Root-mean-square normalisation (model_spec 2.0).

The published epsilon is 1e-20. It is far below the float32 unit round-off but must not be flushed: a zero
vector has to give 0 * 1e10 = 0 rather than 0 * inf = NaN. Half precision therefore never sees it; the mean is
taken in at least float32 and only the result is rounded.
"""

from __future__ import annotations

import torch
from torch import Tensor


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """The type in which sums over values of `dtype` are taken: float64 stays, everything else is float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """`x / rms(x) * weight` over the last dimension, rounded once to the type of `x`."""
    wide = wide_dtype(x.dtype)
    if x.dtype == wide and x.device.type == "cpu":
        return (x * mean_square_rsqrt(x, eps)).mul_(weight.to(wide))
    if x.dtype == wide:
        return torch.nn.functional.rms_norm(x, weight.shape, weight.to(wide), eps)
    return torch.nn.functional.rms_norm(x.to(wide), weight.shape, weight.to(wide), eps).to(x.dtype)


def mean_square_rsqrt(x: Tensor, eps: float) -> Tensor:
    """`1 / rms(x)` over the last dimension, kept as a dimension of size one; `x` is already wide.

    A norm reads `x` once, where squares and their mean would write and read another array of its size.
    """
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return torch.addcmul(norm.new_full((1,), eps), norm, norm, value=1 / x.shape[-1]).rsqrt_()


def wide_linear(x: Tensor, weight: Tensor) -> Tensor:
    """`x @ weight.T` with sums and result in the wide type of `x`, also where `x` and `weight` are narrow."""
    wide = wide_dtype(x.dtype)
    if x.dtype == wide and weight.dtype == wide:
        return torch.nn.functional.linear(x, weight)
    if x.device.type == "cuda" and x.dtype == weight.dtype and x.dim() == 2:
        return torch.mm(x, weight.t(), out_dtype=wide)
    return torch.nn.functional.linear(x.to(wide), weight.to(wide))
