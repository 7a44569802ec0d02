"""The experts of a mixture: two grouped products over rows sorted by expert, and the sum of what comes out.

Few rows: the time is that of reading the weights of every chosen expert once, so a program owns some rows of
one expert's weight and streams them past all activations of that expert. Weights are the left factor of the
product, whose rows the matrix units take in sixteens; activations are the right one, where eight are enough.
Many rows: the same programs, with more activations each. The shared expert is one more, with programs of its
own at the end of the grid: it reads no order and has all rows.

Three launches: gate and up projection with the activation, the routing share and the rounding; down
projection; the sum over a row's experts, always in the order shared, first, second ... No sum depends on
which other rows there are.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..quantized import QuantizedWeight, Weight, WeightFormat
from ..reference.experts import Experts, Routing
from .codes import FP8_BLOCK, MXFP4, PLAIN, dot, expand_e2m1, expand_e4m3, fp8_round_trip
from .launching import INTERPRETED, dividing_step, power_of_two
from .routing import TiledRouting, sort_picks


@triton.jit
def _weight_places(row, columns: tl.constexpr, STEP: tl.constexpr, FORMAT: tl.constexpr):
    """Places of the first `STEP` columns of some weight rows, and of their scales."""
    if FORMAT == MXFP4:
        payload = row[:, None] * (columns // 2) + tl.arange(0, STEP // 2)[None, :]
        scales = row[:, None] * (columns // 32) + tl.arange(0, STEP // 32)[None, :]
    else:
        payload = row[:, None] * columns + tl.arange(0, STEP)[None, :]
        scales = (row // 32)[:, None] * (columns // 32) + tl.arange(0, STEP // 32)[None, :]
    return payload, scales


@triton.jit
def _input_places(STEP: tl.constexpr, FORMAT: tl.constexpr):
    width: tl.constexpr = STEP // 2 if FORMAT == MXFP4 else STEP
    return tl.arange(0, width)


@triton.jit
def _add_product(
    sums, payload_ptr, scales_ptr, even, odd, FORMAT: tl.constexpr, ASSEMBLY: tl.constexpr
):  # fmt: skip
    """`sums` plus weight times activations, whose two parts are the same but for 4-bit weights."""
    if FORMAT == PLAIN:
        sums = dot(tl.load(payload_ptr), even, sums, ASSEMBLY)
    elif FORMAT == FP8_BLOCK:
        weight = expand_e4m3(tl.load(payload_ptr), tl.load(scales_ptr), ASSEMBLY)
        sums = dot(weight.to(even.dtype), even, sums, ASSEMBLY)
    else:
        left, right = expand_e2m1(tl.load(payload_ptr), tl.load(scales_ptr), ASSEMBLY)
        sums = dot(left.to(even.dtype), even, sums, ASSEMBLY)
        sums = dot(right.to(even.dtype), odd, sums, ASSEMBLY)
    return sums


@triton.jit
def _gate_up_tile(
    x_ptr, x_row, weight_ptr, scales_ptr, expert, block, shares, hidden_ptr, hidden_row, exists, limit,
    DIM: tl.constexpr, INNER: tl.constexpr, FORMAT: tl.constexpr, PART: tl.constexpr, ROUND: tl.constexpr,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, STEP: tl.constexpr, ASSEMBLY: tl.constexpr,
):  # fmt: skip
    """Some columns of the hidden activations of up to `HEIGHT` rows of one expert."""
    column = block * WIDTH + tl.arange(0, WIDTH)
    bytes_per_row: tl.constexpr = DIM // 2 if FORMAT == MXFP4 else DIM
    scale_rows: tl.constexpr = INNER // 32 if FORMAT == FP8_BLOCK else INNER
    payload, scales = _weight_places(column, DIM, STEP, FORMAT)
    gate_ptr = weight_ptr + expert.to(tl.int64) * (2 * INNER * bytes_per_row) + payload
    gate_scales_ptr = scales_ptr + expert.to(tl.int64) * (2 * scale_rows * (DIM // 32)) + scales
    up_ptr, up_scales_ptr = gate_ptr + INNER * bytes_per_row, gate_scales_ptr + scale_rows * (DIM // 32)
    x_ptr = x_ptr + x_row.to(tl.int64)[None, :] * DIM + _input_places(STEP, FORMAT)[:, None]
    step: tl.constexpr = STEP // 2 if FORMAT == MXFP4 else STEP
    gate = tl.zeros((WIDTH, HEIGHT), tl.float32)
    up = tl.zeros((WIDTH, HEIGHT), tl.float32)
    for _ in range(0, DIM, STEP):
        even = tl.load(x_ptr)
        odd = even
        if FORMAT == MXFP4:
            odd = tl.load(x_ptr + DIM // 2)
        gate = _add_product(gate, gate_ptr, gate_scales_ptr, even, odd, FORMAT, ASSEMBLY)
        up = _add_product(up, up_ptr, up_scales_ptr, even, odd, FORMAT, ASSEMBLY)
        x_ptr += step
        gate_ptr += step
        up_ptr += step
        gate_scales_ptr += STEP // 32
        up_scales_ptr += STEP // 32
    gate = tl.minimum(gate, limit)
    up = tl.minimum(tl.maximum(up, -limit), limit)
    hidden = tl.trans(gate * tl.sigmoid(gate) * up) * shares[:, None]
    dtype = hidden_ptr.dtype.element_ty
    if ROUND:
        hidden = fp8_round_trip(hidden.to(dtype).to(tl.float32), WIDTH // 32)
    if PART:
        column = column % 2 * (INNER // 2) + column // 2
    place = hidden_row.to(tl.int64)[:, None] * INNER + column[None, :]
    tl.store(hidden_ptr + place, hidden.to(dtype), mask=exists[:, None])


@triton.jit(do_not_specialize=["rows", "tiles"])
def _gate_up(
    x_ptr, parted_ptr, order_ptr, expert_ptr, first_ptr, count_ptr, shares_ptr, hidden_ptr,
    weight_ptr, scales_ptr, shared_ptr, shared_scales_ptr, rows, tiles, limit,
    TOP_K: tl.constexpr, DIM: tl.constexpr, INNER: tl.constexpr, SHARED_INNER: tl.constexpr,
    FORMAT: tl.constexpr, SHARED_FORMAT: tl.constexpr, ROUND: tl.constexpr,
    HEIGHT: tl.constexpr, SHARED_HEIGHT: tl.constexpr, WIDTH: tl.constexpr, STEP: tl.constexpr,
    SHARED_STEP: tl.constexpr, ASSEMBLY: tl.constexpr,
):  # fmt: skip
    blocks: tl.constexpr = INNER // WIDTH
    program = tl.program_id(0)
    if program < tiles * blocks:
        tile = program // blocks
        count = tl.load(count_ptr + tile)
        if count > 0:
            lane = tl.arange(0, HEIGHT)
            place = tl.load(first_ptr + tile) + tl.minimum(lane, count - 1)
            pick = tl.load(order_ptr + place)
            _gate_up_tile(
                parted_ptr if FORMAT == MXFP4 else x_ptr, pick // TOP_K, weight_ptr, scales_ptr,
                tl.load(expert_ptr + tile), program % blocks, tl.load(shares_ptr + pick), hidden_ptr, place,
                lane < count, limit, DIM, INNER, FORMAT, FORMAT == MXFP4, ROUND, HEIGHT, WIDTH, STEP,
                ASSEMBLY,
            )  # fmt: skip
    else:
        shared_blocks: tl.constexpr = SHARED_INNER // WIDTH
        program -= tiles * blocks
        row = program // shared_blocks * SHARED_HEIGHT + tl.arange(0, SHARED_HEIGHT)
        safe_row = tl.minimum(row, rows - 1)
        ones = tl.full((SHARED_HEIGHT,), 1.0, tl.float32)
        # Behind the hidden rows of all picks, which may be wider or narrower than those of the shared expert.
        hidden_ptr += rows.to(tl.int64) * (TOP_K * INNER)
        _gate_up_tile(
            x_ptr, safe_row, shared_ptr, shared_scales_ptr, 0 * program, program % shared_blocks, ones,
            hidden_ptr, row, row < rows, limit, DIM, SHARED_INNER, SHARED_FORMAT, False, ROUND, SHARED_HEIGHT,
            WIDTH, SHARED_STEP, ASSEMBLY,
        )  # fmt: skip


@triton.jit
def _down_tile(
    hidden_ptr, hidden_row, weight_ptr, scales_ptr, expert, block, out_ptr, out_row, exists,
    DIM: tl.constexpr, INNER: tl.constexpr, FORMAT: tl.constexpr, HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr, STEP: tl.constexpr, ASSEMBLY: tl.constexpr,
):  # fmt: skip
    column = block * WIDTH + tl.arange(0, WIDTH)
    bytes_per_row: tl.constexpr = INNER // 2 if FORMAT == MXFP4 else INNER
    scale_rows: tl.constexpr = DIM // 32 if FORMAT == FP8_BLOCK else DIM
    payload, scales = _weight_places(column, INNER, STEP, FORMAT)
    weight_ptr = weight_ptr + expert.to(tl.int64) * (DIM * bytes_per_row) + payload
    scales_ptr = scales_ptr + expert.to(tl.int64) * (scale_rows * (INNER // 32)) + scales
    hidden_ptr = hidden_ptr + hidden_row.to(tl.int64)[None, :] * INNER + _input_places(STEP, FORMAT)[:, None]
    step: tl.constexpr = STEP // 2 if FORMAT == MXFP4 else STEP
    sums = tl.zeros((WIDTH, HEIGHT), tl.float32)
    for _ in range(0, INNER, STEP):
        even = tl.load(hidden_ptr)
        odd = even
        if FORMAT == MXFP4:
            odd = tl.load(hidden_ptr + INNER // 2)
        sums = _add_product(sums, weight_ptr, scales_ptr, even, odd, FORMAT, ASSEMBLY)
        hidden_ptr += step
        weight_ptr += step
        scales_ptr += STEP // 32
    place = out_row.to(tl.int64)[None, :] * DIM + column[:, None]
    tl.store(out_ptr + place, sums, mask=exists[None, :])


@triton.jit(do_not_specialize=["rows", "tiles"])
def _down(
    hidden_ptr, order_ptr, expert_ptr, first_ptr, count_ptr, out_ptr,
    weight_ptr, scales_ptr, shared_ptr, shared_scales_ptr, rows, tiles,
    TOP_K: tl.constexpr, DIM: tl.constexpr, INNER: tl.constexpr, SHARED_INNER: tl.constexpr,
    FORMAT: tl.constexpr, SHARED_FORMAT: tl.constexpr, HEIGHT: tl.constexpr, SHARED_HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr, STEP: tl.constexpr, SHARED_STEP: tl.constexpr, ASSEMBLY: tl.constexpr,
):  # fmt: skip
    blocks: tl.constexpr = DIM // WIDTH
    program = tl.program_id(0)
    tile, block = program // blocks, program % blocks
    if tile < tiles:
        count = tl.load(count_ptr + tile)
        if count > 0:
            lane = tl.arange(0, HEIGHT)
            place = tl.load(first_ptr + tile) + tl.minimum(lane, count - 1)
            pick = tl.load(order_ptr + place)
            out_row = pick // TOP_K * (TOP_K + 1) + pick % TOP_K + 1
            _down_tile(
                hidden_ptr, place, weight_ptr, scales_ptr, tl.load(expert_ptr + tile), block, out_ptr,
                out_row, lane < count, DIM, INNER, FORMAT, HEIGHT, WIDTH, STEP, ASSEMBLY,
            )  # fmt: skip
    else:
        row = (tile - tiles) * SHARED_HEIGHT + tl.arange(0, SHARED_HEIGHT)
        safe_row = tl.minimum(row, rows - 1)
        hidden_ptr += rows.to(tl.int64) * (TOP_K * INNER)
        _down_tile(
            hidden_ptr, safe_row, shared_ptr, shared_scales_ptr, 0 * tile, block, out_ptr, row * (TOP_K + 1),
            row < rows, DIM, SHARED_INNER, SHARED_FORMAT, SHARED_HEIGHT, WIDTH, SHARED_STEP, ASSEMBLY,
        )  # fmt: skip


@triton.jit
def _combine(partial_ptr, out_ptr, DIM: tl.constexpr, COUNT: tl.constexpr, COLUMNS: tl.constexpr):
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    mask = column < DIM
    row = tl.program_id(0).to(tl.int64)
    partial_ptr += row * (COUNT * DIM) + column
    routed = tl.load(partial_ptr + DIM, mask=mask)
    for k in tl.static_range(2, COUNT):
        routed += tl.load(partial_ptr + k * DIM, mask=mask)
    total = tl.load(partial_ptr, mask=mask) + routed
    tl.store(out_ptr + row * DIM + column, total.to(out_ptr.dtype.element_ty), mask=mask)


class _Operand(NamedTuple):
    payload: Tensor
    scales: Tensor
    format: int


def operand(weight: Weight, dtype: torch.dtype) -> _Operand:
    """What a kernel reads of a weight; a plain one must have the type of the activations."""
    if isinstance(weight, QuantizedWeight):
        code = FP8_BLOCK.value if weight.format is WeightFormat.FP8_BLOCK else MXFP4.value
        return _Operand(weight.payload.contiguous().view(torch.uint8), weight.scales.contiguous(), code)
    plain = weight.to(dtype).contiguous()
    return _Operand(plain, plain, PLAIN.value)


def mix_experts(
    x_rows_dim: Tensor, routing: Routing, experts: Experts, limit: float, *, quantized: bool
) -> Tensor:
    """See `reference.experts.mix_experts`. `routing` of another set of operations is sorted first."""
    x = x_rows_dim.contiguous()
    if not isinstance(routing, TiledRouting):
        routing = sort_picks(x, routing, experts, quantized=quantized)
    rows, dim = x.shape
    out = torch.empty_like(x)
    if not rows:
        return out
    top_k, tiles = routing.chosen.shape[1], routing.tiles
    gate_up, down = operand(experts.gate_up, x.dtype), operand(experts.down, x.dtype)
    shared_gate_up, shared_down = (
        operand(experts.shared_gate_up, x.dtype),
        operand(experts.shared_down, x.dtype),
    )
    inner, shared_inner = experts.gate_up.shape[1] // 2, experts.shared_gate_up.shape[0] // 2
    hidden = torch.empty(rows * (top_k * inner + shared_inner), dtype=x.dtype, device=x.device)
    partial = torch.empty(rows, top_k + 1, dim, dtype=torch.float32, device=x.device)
    table, shape = tiles.expert.shape[0], _shape(x.dtype, tiles.height, rows)
    shared_tiles = triton.cdiv(rows, shape.shared_height)
    common = {
        "TOP_K": top_k, "DIM": dim, "INNER": inner, "SHARED_INNER": shared_inner, "HEIGHT": tiles.height,
        "SHARED_HEIGHT": shape.shared_height, "ASSEMBLY": not INTERPRETED, "num_warps": shape.warps,
        "num_stages": shape.stages,
    }  # fmt: skip
    width = dividing_step(min(inner & -inner, shared_inner & -shared_inner), shape.gate_up_width)
    _gate_up[(table * (inner // width) + shared_tiles * (shared_inner // width),)](
        routing.inputs, routing.parted, tiles.order, tiles.expert, tiles.first, tiles.count, routing.shares,
        hidden, gate_up.payload, gate_up.scales, shared_gate_up.payload, shared_gate_up.scales, rows, table,
        limit, FORMAT=gate_up.format, SHARED_FORMAT=shared_gate_up.format, ROUND=quantized, WIDTH=width,
        STEP=dividing_step(dim, shape.step), SHARED_STEP=dividing_step(dim, shape.shared_step), **common,
    )  # fmt: skip
    width = dividing_step(dim, shape.down_width)
    _down[((table + shared_tiles) * (dim // width),)](
        hidden, tiles.order, tiles.expert, tiles.first, tiles.count, partial, down.payload, down.scales,
        shared_down.payload, shared_down.scales, rows, table, FORMAT=down.format,
        SHARED_FORMAT=shared_down.format, WIDTH=width, STEP=dividing_step(inner, shape.step),
        SHARED_STEP=dividing_step(shared_inner, shape.shared_step), **common,
    )  # fmt: skip
    columns = min(1024, power_of_two(dim))
    _combine[(rows, triton.cdiv(dim, columns))](partial, out, dim, top_k + 1, columns)
    return out


class _Shape(NamedTuple):
    """Sizes of a program: how many weight rows, input columns a step, warps and loads in flight."""

    gate_up_width: int
    down_width: int
    step: int
    shared_step: int
    shared_height: int
    warps: int
    stages: int


def _shape(dtype: torch.dtype, height: int, rows: int) -> _Shape:
    if INTERPRETED:
        return _Shape(32, 64, 64, 64, 16, 4, 1)
    if dtype == torch.float32:
        return _Shape(32, 32, 64, 64, 16 if rows <= 512 else 32, 4, 2)
    if height >= 32:
        return _Shape(64, 128, 128, 64, 64, 4, 3)
    return _Shape(64, 64, 256, 128, 8 if rows <= 8 else 16, 2, 4)
