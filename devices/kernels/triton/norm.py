"""Root-mean-square normalisation, a launch a call (model_spec 2.0)."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..reference import norm as reference

ELEMENTS = 1024
"""A program takes as many rows as have about this many elements, whatever the number of rows."""


@triton.jit(do_not_specialize=["rows", "stride"])
def _rms_norm(
    x_pointer,
    weight_pointer,
    out_pointer,
    rows,
    stride,
    eps,
    DIM: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    column = tl.arange(0, COLUMNS)
    inside = (row < rows)[:, None] & (column < DIM)[None, :]
    x = tl.load(x_pointer + row[:, None] * stride + column[None, :], mask=inside, other=0.0).to(tl.float32)
    weight = tl.load(weight_pointer + column, mask=column < DIM, other=0.0).to(tl.float32)
    inverse = tl.rsqrt(tl.sum(x * x, axis=1) / DIM + eps)
    out = (x * inverse[:, None] * weight[None, :]).to(out_pointer.dtype.element_ty)
    tl.store(out_pointer + row[:, None] * DIM + column[None, :], out, mask=inside)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See the twin. Columns of a wider matrix are read where they are."""
    if x.dtype == torch.float64:
        return reference.rms_norm(x, weight, eps)
    dim = x.shape[-1]
    flat = x if x.dim() == 2 and x.stride(1) == 1 else x.contiguous().view(-1, dim)
    out = x.new_empty(x.shape)
    rows = flat.shape[0]
    if rows:
        columns = triton.next_power_of_2(dim)
        height = max(1, ELEMENTS // columns)
        _rms_norm[(triton.cdiv(rows, height),)](
            flat, weight, out, rows, flat.stride(0), eps, DIM=dim, ROWS=height, COLUMNS=columns,
            num_warps=4 if columns <= 2048 else 8,
        )  # fmt: skip
    return out
