"""The experts of a mixture: two grouped products over rows sorted by expert, and the sum of what comes out.

Few rows: the time is that of reading the weights of every chosen expert once, so a program owns some rows of
one expert's weight and streams them past all activations of that expert. Weights are the left factor of the
product, whose rows the matrix units take in sixteens; activations are the right one, where eight are enough.
Many rows: the same programs, with more activations each. The shared expert is one more, with programs of its
own at the end of the grid: it reads no order and has all rows. A quantized one of more than
`products.MOST_STREAMED` rows is an ordinary product, at which the library is faster (`products.linear`).

Three launches: gate and up projection with the activation, the routing share and the rounding; down
projection; the sum over a row's experts, always in the order first, second ..., shared. No sum depends on
which other rows there are; how large a step of it is depends on their number (`_shape`).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
from torch import Tensor

from ..quantized import QuantizedWeight, Weight, WeightFormat
from ..reference.experts import Experts, Routing
from . import expert_programs, products
from .codes import FP8_BLOCK, MXFP4, PLAIN
from .launching import INTERPRETED, dividing_step, power_of_two
from .routing import TiledRouting, sort_picks


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
    table, shape = tiles.expert.shape[0], _shape(x.dtype, tiles.height, rows, gate_up.format)
    shared_out = _shared_by_library(routing.inputs, experts, limit, quantized)
    shared_tiles = triton.cdiv(rows, shape.shared_height) if shared_out is None else 0
    # What experts make of many rows is hundreds of megabytes: it is rounded, as the library's would be.
    partial_dtype = torch.float32 if shared_out is None else x.dtype
    partial = torch.empty(rows, top_k + 1, dim, dtype=partial_dtype, device=x.device)
    common = {
        "TOP_K": top_k, "DIM": dim, "INNER": inner, "SHARED_INNER": shared_inner, "HEIGHT": tiles.height,
        "SHARED_HEIGHT": shape.shared_height, "ASSEMBLY": not INTERPRETED, "num_warps": shape.warps,
    }  # fmt: skip
    # Activations are rounded by groups of 32.
    width = max(shape.gate_up_width // shape.shared_parts, 32 if quantized else 16)
    width, shared_width = _widths(inner, shared_inner, shape.gate_up_width, width)
    expert_programs.gate_up[(table * (inner // width) + shared_tiles * (shared_inner // shared_width),)](
        routing.inputs, routing.parted, tiles.order, tiles.expert, tiles.first, tiles.count, routing.shares,
        hidden, gate_up.payload, gate_up.scales, shared_gate_up.payload, shared_gate_up.scales, rows, table,
        limit, FORMAT=gate_up.format, SHARED_FORMAT=shared_gate_up.format, ROUND=quantized, WIDTH=width,
        SHARED_WIDTH=shared_width, **_steps(shape, dim, dim),
        num_stages=shape.gate_up_stages, **common,
    )  # fmt: skip
    width, shared_width = _widths(dim, dim, shape.down_width, shape.down_width // shape.shared_parts)
    expert_programs.down[(table * (dim // width) + shared_tiles * (dim // shared_width),)](
        hidden, tiles.order, tiles.expert, tiles.first, tiles.count, partial, down.payload, down.scales,
        shared_down.payload, shared_down.scales, rows, table, FORMAT=down.format,
        SHARED_FORMAT=shared_down.format, WIDTH=width, SHARED_WIDTH=shared_width,
        num_stages=shape.down_stages,
        **_steps(shape, inner, shared_inner), **common,
    )  # fmt: skip
    columns = min(1024, power_of_two(dim))
    shared, stride = (partial, (top_k + 1) * dim) if shared_out is None else (shared_out, dim)
    expert_programs.combine[(rows, triton.cdiv(dim, columns))](
        partial, shared, out, dim, top_k + 1, stride, columns
    )
    return out


def _shared_by_library(inputs: Tensor, experts: Experts, limit: float, quantized: bool) -> Tensor | None:
    """What the shared expert makes of many rows; None for few, which `expert_programs` take along."""
    rows, inner = inputs.shape[0], experts.shared_gate_up.shape[0] // 2
    if rows <= products.MOST_STREAMED or not isinstance(experts.shared_gate_up, QuantizedWeight):
        return None
    gate_up = products.linear(inputs, experts.shared_gate_up)
    hidden = inputs.new_empty(rows, inner)
    columns = dividing_step(inner, 256) if quantized else min(256, power_of_two(inner))
    expert_programs.activate[(rows, triton.cdiv(inner, columns))](
        gate_up, hidden, limit, INNER=inner, ROUND=quantized, COLUMNS=columns
    )
    return products.linear(hidden, experts.shared_down)


def _widths(rows: int, shared_rows: int, width: int, shared_width: int) -> tuple[int, int]:
    """Weight rows of a program: of a routed expert, of the shared one."""
    return dividing_step(rows, width), dividing_step(shared_rows, shared_width)


def _steps(shape: _Shape, columns: int, shared_columns: int) -> dict[str, int | bool]:
    step = dividing_step(columns, shape.step)
    shared_step = dividing_step(shared_columns, shape.shared_step)
    return {
        "STEP": step,
        "SHARED_STEP": shared_step,
        "WORDS": shape.words and step % 128 == 0,
        "SHARED_WORDS": shape.shared_words and shared_step % 128 == 0,
    }


class _Shape(NamedTuple):
    """Sizes of a program: how many weight rows, input columns a step, warps and loads in flight."""

    gate_up_width: int
    down_width: int
    step: int
    shared_step: int
    shared_height: int
    warps: int
    gate_up_stages: int
    down_stages: int
    words: bool = False  # scales by fours: see `codes.scale_places`
    shared_words: bool = False
    shared_parts: int = 1  # programs of the shared expert have so many times fewer weight rows


def _shape(dtype: torch.dtype, height: int, rows: int, form: int) -> _Shape:
    """Found by trying them out at the published dimensions (`scripts/gpu/tune_experts.py`)."""
    if INTERPRETED:
        return _Shape(64, 128, 128, 128, 64, 4, 1, 1, words=True, shared_words=True)
    if dtype == torch.float32:
        return _Shape(32, 32, 64, 64, 16 if rows <= 512 else 32, 4, 2, 2)
    if form == PLAIN.value:
        return _Shape(32, 64, 64, 64, 16 if rows <= 512 else 64, 4, 3, 3)
    if height >= 32:
        return _Shape(64, 128, 128, 128, 64, 4, 2, 2, words=True, shared_words=True)
    width, height, stages = 64 if rows > 4 else 32, 8 if rows <= 8 else 16, 4 if rows <= 4 else 3
    return _Shape(width, 64, 256, 256, height, 2, stages, 4, shared_parts=2)
