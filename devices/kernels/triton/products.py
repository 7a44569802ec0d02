"""Products with FP8-block weights that stay quantized: a decode step reads each weight once, in one byte.

Few rows: a program owns some weight rows and streams them past all activations. Where a matrix has fewer rows
than the device has room for programs, its columns are parted as well: programs leave partial sums and count
themselves in, and the last one adds them up, always in the order of the parts. How columns are parted depends
on the matrix alone, so a row's sums have the same order whatever the number of rows.

Many rows: arithmetic dominates, and the library's product of bfloat16 is as fast as the card. Then expanding
the weight once, three bytes moved for each of its codes, costs less than any other way to feed the units.
The last bits of a row may differ between the two ways; within each they depend on the row alone, up to the
library's choice of a kernel by the number of rows.

A grid of groups serves the grouped output projection: each group of columns has a matrix of its own.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..quantized import QuantizedWeight, Weight, WeightFormat
from ..reference import products as twin
from . import plain_products
from .codes import dot, expand_e4m3, scale_places
from .launching import INTERPRETED, counters, dividing_step

MOST_STREAMED = 256
"""Rows up to which weights are streamed; beyond, they are expanded and multiplied by the library."""

_PROGRAMS = 528
"""Programs that fill a device: four for each of 132 multiprocessors."""
_COUNTERS = 1 << 16

LEAST_COLUMNS = 512
"""Of a part: adding up partial sums takes time, too."""

PLAIN_ROWS, PLAIN_COLUMNS, PLAIN_OUT = 64, 2048, 2048
"""Plain bfloat16 weights that are streamed as well: the library parts such columns, too, and adds up in a
launch of its own. Up to so many rows; at least so many columns; at most so many outputs."""


@triton.jit(do_not_specialize=["rows"])
def _stream(
    x_ptr, weight_ptr, scales_ptr, partial_ptr, counters_ptr, out_ptr, rows, x_stride, out_stride,
    OUT: tl.constexpr, IN: tl.constexpr, PARTS: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
    STEP: tl.constexpr, SCALED: tl.constexpr, WORDS: tl.constexpr, ASSEMBLY: tl.constexpr,
):  # fmt: skip
    """One block of columns of `x[rows, group * IN :] @ weight[group].T`, at column `group * OUT` of `out`."""
    block, part = tl.program_id(0) // PARTS, tl.program_id(0) % PARTS
    tile, group = tl.program_id(1), tl.program_id(2)
    column, k = block * WIDTH + tl.arange(0, WIDTH), tl.arange(0, STEP)
    row = tile * HEIGHT + tl.arange(0, HEIGHT)
    exists = row < rows
    columns: tl.constexpr = IN // PARTS
    start = part * columns
    first_row = group.to(tl.int64) * OUT
    weight_ptr += (first_row + column)[:, None] * IN + (start + k)[None, :]
    if SCALED:
        scales_ptr = scale_places(scales_ptr + start // 32, (first_row + column) // 32, IN, STEP, WORDS)
    safe_row = tl.minimum(row, rows - 1).to(tl.int64)
    x_ptr += safe_row[None, :] * x_stride + (group * IN + start + k)[:, None]
    sums = tl.zeros((WIDTH, HEIGHT), tl.float32)
    for _ in range(0, columns, STEP):
        x = tl.load(x_ptr)
        weight = tl.load(weight_ptr)
        if SCALED:
            weight = expand_e4m3(weight, tl.load(scales_ptr), ASSEMBLY)
            scales_ptr += STEP // (128 if WORDS else 32)
        sums = dot(weight.to(x.dtype), x, sums, ASSEMBLY)
        weight_ptr += STEP
        x_ptr += STEP
    out_ptr += row.to(tl.int64)[None, :] * out_stride + (group * OUT + column)[:, None]
    if PARTS == 1:
        tl.store(out_ptr, sums.to(out_ptr.dtype.element_ty), mask=exists[None, :])
    else:
        here = (group * tl.num_programs(1) + tile) * (OUT // WIDTH) + block
        lane = tl.arange(0, WIDTH)[:, None] + tl.arange(0, HEIGHT)[None, :] * WIDTH
        partial_ptr += here.to(tl.int64) * (PARTS * WIDTH * HEIGHT) + lane
        tl.store(partial_ptr + part * (WIDTH * HEIGHT), sums)
        tl.debug_barrier()
        arrived = tl.atomic_add(counters_ptr + here, 1, sem="acq_rel")
        if arrived == PARTS - 1:
            tl.store(counters_ptr + here, 0)
            total = tl.load(partial_ptr)
            for other in tl.static_range(1, PARTS):
                total += tl.load(partial_ptr + other * (WIDTH * HEIGHT))
            tl.store(out_ptr, total.to(out_ptr.dtype.element_ty), mask=exists[None, :])


@triton.jit
def _expand_weight(
    weight_ptr, scales_ptr, out_ptr, IN: tl.constexpr, WIDTH: tl.constexpr, STEP: tl.constexpr,
    ASSEMBLY: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * WIDTH + tl.arange(0, WIDTH)
    start = tl.program_id(1) * STEP
    place = row[:, None] * IN + (start + tl.arange(0, STEP))[None, :]
    scales = (row // 32)[:, None] * (IN // 32) + (start // 32 + tl.arange(0, STEP // 32))[None, :]
    weight = expand_e4m3(tl.load(weight_ptr + place), tl.load(scales_ptr + scales), ASSEMBLY)
    tl.store(out_ptr + place, weight.to(out_ptr.dtype.element_ty))


def parts(out: int, columns: int, width: int, groups: int) -> int:
    """Into how many the columns of a weight are parted: enough programs, and no part below 512 columns."""
    wanted = _PROGRAMS * width // (out * groups)
    possible = [n for n in range(1, columns // LEAST_COLUMNS + 1) if columns % (n * 256) == 0]
    return max((n for n in possible if n <= wanted), default=1)


def expand(weight: QuantizedWeight, dtype: torch.dtype) -> Tensor:
    """The whole weight in `dtype`, in one pass over it."""
    columns = weight.shape[-1]
    out = torch.empty(weight.shape, dtype=dtype, device=weight.device)
    height = out.numel() // columns
    step, width = dividing_step(columns, 256), dividing_step(height, 32)
    _expand_weight[(height // width, columns // step)](
        weight.payload.view(torch.uint8), weight.scales, out, columns, width, step, ASSEMBLY=not INTERPRETED
    )
    return out


def _streamable(x: Tensor, weight: Weight) -> bool:
    return (
        isinstance(weight, QuantizedWeight)
        and weight.format is WeightFormat.FP8_BLOCK
        and weight.shape[-2] % 32 == 0
        and x.dtype in (torch.bfloat16, torch.float32)
    )


def _plain_streamable(x: Tensor, weight: Tensor) -> bool:
    out, columns = weight.shape
    return (
        x.dtype == weight.dtype == torch.bfloat16
        and x.numel() <= PLAIN_ROWS * columns
        and columns >= PLAIN_COLUMNS
        and columns % 256 == 0
        and 16 <= out <= PLAIN_OUT
        and out % 16 == 0
        and weight.is_contiguous()
    )


def _multiply(x: Tensor, weight: Weight, groups: int, dtype: torch.dtype) -> Tensor:
    """`[rows, groups * out]`; `weight` `[groups *] out, in`, whole blocks."""
    out, columns = weight.shape[-2:]
    x_rows_in = x if x.dim() == 2 and x.stride(1) == 1 else x.reshape(-1, x.shape[-1]).contiguous()
    rows = x_rows_in.shape[0]
    result = torch.empty(rows, groups * out, dtype=dtype, device=x_rows_in.device)
    if not rows:
        return result
    height = next(size for size in (8, 16, 32, 64) if rows <= size or size == 64)
    shape = _shape(height)
    width, tiles = dividing_step(out, shape.width), triton.cdiv(rows, height)
    count = parts(out, columns, width, groups)
    partial = torch.empty(
        groups * tiles * out * height * count if count > 1 else 1,
        dtype=torch.float32,
        device=x_rows_in.device,
    )
    step = dividing_step(columns // count, shape.step)
    codes, scales = weight, weight  # a plain one has no scales to look at
    if isinstance(weight, QuantizedWeight):
        codes, scales = weight.payload.view(torch.uint8), weight.scales
    _stream[(out // width * count, tiles, groups)](
        x_rows_in, codes, scales, partial, counters("products", x_rows_in.device, _COUNTERS), result, rows,
        x_rows_in.stride(0), result.stride(0), OUT=out, IN=columns, PARTS=count, HEIGHT=height,
        WIDTH=width, STEP=step, SCALED=isinstance(weight, QuantizedWeight), WORDS=step == 128,
        ASSEMBLY=not INTERPRETED, num_warps=shape.warps, num_stages=1 if INTERPRETED else shape.stages,
    )  # fmt: skip
    return result


class _Shape(NamedTuple):
    """Of a program: weight rows, columns of a step, warps, steps in flight."""

    width: int
    step: int
    warps: int
    stages: int


def _shape(height: int) -> _Shape:
    """By rows of a tile, found by trying (`scripts/gpu/tune_slice.py`)."""
    return _Shape(64, 128, 4, 4) if height >= 32 else _Shape(64, 256, 4, 3)


def linear(x: Tensor, weight: Weight) -> Tensor:
    """See `reference.products.linear`."""
    if isinstance(weight, QuantizedWeight):
        if not _streamable(x, weight):
            return twin.linear(x, weight)
        if x.numel() > MOST_STREAMED * weight.shape[-1]:
            return torch.nn.functional.linear(x, expand(weight, x.dtype))
    elif plain_products.multiplies(x, weight):
        return plain_products.linear(x, weight)
    elif not _plain_streamable(x, weight):
        return twin.linear(x, weight)
    return _multiply(x, weight, 1, x.dtype).view(*x.shape[:-1], weight.shape[-2])


def wide_linear(x: Tensor, weight: Weight) -> Tensor:
    """See `reference.products.wide_linear`."""
    if isinstance(weight, QuantizedWeight):
        return twin.wide_linear(x, weight)
    if plain_products.multiplies(x, weight):
        return plain_products.linear(x, weight)
    if _plain_streamable(x, weight):
        return _multiply(x, weight, 1, torch.float32).view(*x.shape[:-1], weight.shape[-2])
    return twin.wide_linear(x, weight)


def grouped_linear(x_rows_dim: Tensor, weight_groups_out_in: Weight) -> Tensor:
    """See `reference.products.grouped_linear`."""
    weight = weight_groups_out_in
    if not isinstance(weight, QuantizedWeight):
        small = plain_products.multiplies(x_rows_dim, weight)
        multiply = plain_products.grouped_linear if small else twin.grouped_linear
        return multiply(x_rows_dim, weight)
    if not _streamable(x_rows_dim, weight):
        return twin.grouped_linear(x_rows_dim, weight)
    if x_rows_dim.shape[0] > MOST_STREAMED:
        return twin.grouped_linear(x_rows_dim, expand(weight, x_rows_dim.dtype))
    return _multiply(x_rows_dim.contiguous(), weight, weight.shape[0], x_rows_dim.dtype)
