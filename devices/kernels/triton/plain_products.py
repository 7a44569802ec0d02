"""Products with a small float32 weight: a model of a few million parameters is bound by how long each takes.

The vendor's float32 products stay out of the matrix units and take five microseconds whatever the size; here
the factors meet there as bfloat16 parts (`codes.wide_dot`), in half the time. And a row's sum has one order
at every number of rows, which the library does not promise. Large weights, and types that matrix units take
as they are, stay with the library.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .codes import wide_dot
from .launching import INTERPRETED, power_of_two

LARGEST_WEIGHT = 1 << 22
"""Elements of a matrix that is multiplied here."""

STEP = 64
"""Inputs that are multiplied at a time: the order of a sum, so the same for every shape."""


@triton.jit(do_not_specialize=["rows"])
def _multiply(
    x_pointer,
    weight_pointer,
    out_pointer,
    rows,
    x_stride,
    IN: tl.constexpr,
    OUT: tl.constexpr,
    GROUPS: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    STEP: tl.constexpr,
    ASSEMBLY: tl.constexpr,
):
    """`out[rows, group * OUT + column] = x[rows, group * IN :] @ weight[group].T`. Grid: columns, rows,
    groups."""
    column = tl.program_id(0) * WIDTH + tl.arange(0, WIDTH)
    row = (tl.program_id(1) * HEIGHT + tl.arange(0, HEIGHT)).to(tl.int64)
    group = tl.program_id(2)
    within = tl.arange(0, STEP)
    x_cells = x_pointer + row[:, None] * x_stride + group * IN + within[None, :]
    weight_cells = weight_pointer + (group * OUT + column)[:, None] * IN + within[None, :]
    sums = tl.zeros([HEIGHT, WIDTH], tl.float32)
    for begin in range(0, IN, STEP):
        there = begin + within < IN
        x = tl.load(x_cells + begin, mask=(row < rows)[:, None] & there[None, :], other=0.0)
        weight = tl.load(weight_cells + begin, mask=(column < OUT)[:, None] & there[None, :], other=0.0)
        sums = wide_dot(x, tl.trans(weight), sums, ASSEMBLY)
    cells = out_pointer + row[:, None] * (GROUPS * OUT) + (group * OUT + column)[None, :]
    tl.store(cells, sums, mask=(row < rows)[:, None] & (column < OUT)[None, :])


def multiplies(x: Tensor, weight: Tensor) -> bool:
    """Whether a product is one of those described above."""
    return (
        x.dtype == torch.float32
        and weight.dtype == torch.float32
        and weight.numel() <= LARGEST_WEIGHT
        and weight.is_contiguous()
        and x.shape[-1] >= 16
    )


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """`x @ weight.T`; `x` `[..., in]`, `weight` `[out, in]`, both float32."""
    flat = x if x.dim() == 2 and x.stride(1) == 1 else x.reshape(-1, x.shape[-1]).contiguous()
    return _launch(flat, weight, 1).view(*x.shape[:-1], weight.shape[0])


def grouped_linear(x_rows_dim: Tensor, weight_groups_out_in: Tensor) -> Tensor:
    """See `reference.products.grouped_linear`."""
    return _launch(x_rows_dim.contiguous(), weight_groups_out_in, weight_groups_out_in.shape[0])


def _launch(x: Tensor, weight: Tensor, groups: int) -> Tensor:
    rows, (out_width, in_width) = x.shape[0], weight.shape[-2:]
    out = x.new_empty(rows, groups * out_width)
    if rows and out_width:
        height = 16 if rows <= 128 else 64
        width = max(16, min(power_of_two(out_width), 32 if rows <= 128 else 64))
        _multiply[(triton.cdiv(out_width, width), triton.cdiv(rows, height), groups)](
            x, weight, out, rows, x.stride(0), IN=in_width, OUT=out_width, GROUPS=groups, HEIGHT=height,
            WIDTH=width, STEP=STEP, ASSEMBLY=not INTERPRETED, num_warps=4, num_stages=4,
        )  # fmt: skip
    return out
