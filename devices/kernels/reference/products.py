"""Products with a weight that may be stored quantized.

The twin expands the whole weight and multiplies: slow, and exactly what a kernel that expands in registers
must give up to the order of its sums. A plain float32 weight goes straight to torch.

Row independence, truthfully: torch's libraries choose a kernel by the number of rows, so the same row may
differ in its last bits between calls of different sizes; within a call rows never meet.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from ..quantized import Weight, plain
from . import norm


def linear(x: Tensor, weight: Weight) -> Tensor:
    """`x @ weight.T` in the type of `x`. `x` `[..., in]`, `weight` `[out, in]`."""
    return functional.linear(x, plain(weight, x.dtype))


def grouped_linear(x_rows_dim: Tensor, weight_groups_out_in: Weight) -> Tensor:
    """Each group of the inputs through a matrix of its own: `[rows, groups * out]`."""
    groups, out, _ = weight_groups_out_in.shape
    rows = x_rows_dim.shape[0]
    grouped = x_rows_dim.view(rows, groups, -1).transpose(0, 1)
    weight = plain(weight_groups_out_in, x_rows_dim.dtype)
    result = x_rows_dim.new_empty(rows, groups, out)
    torch.bmm(grouped, weight.mT, out=result.transpose(0, 1))  # in place: turning it afterwards is a copy
    return result.flatten(1)


def wide_linear(x: Tensor, weight: Weight) -> Tensor:
    """`x @ weight.T` with sums and result in the wide type of `x`, also where `x` and `weight` are narrow."""
    return norm.wide_linear(x, plain(weight, norm.wide_dtype(x.dtype)))
