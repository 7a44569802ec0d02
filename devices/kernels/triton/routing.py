"""Which rows go to which expert: gate product, choice, shares and the sorting of rows, in one launch.

Every later kernel needs the whole choice; `routing_programs.py` says how a launch gets there. On the way it
writes the activations as the expert products want them: rounded to FP8 where the model is quantized, and with
even and odd columns parted for 4-bit weights (`codes.expand_e2m1`).

Counters live on the device between calls and are left at zero.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from ..quantized import is_mxfp4
from ..reference.experts import Experts, Routing
from ..reference.products import wide_linear
from ..reference.quantization import fp8_round_trip
from .launching import INTERPRETED, counters, dividing_step, power_of_two
from .routing_programs import route

MOST_STREAMED = 256
"""Rows up to which a launch multiplies by the gate itself; scores of more come from the library. In float32
it always does: its sums then have one order, whatever the number of rows."""
FEW_PICKS = 64
"""Picks up to which each is compared with each to make the tables."""

TURNS, STAGES = 2, 5
"""Turns of a program that waits, all but the last rehearsals; steps of the gate product in flight."""

_PARTS = (5, 4)
"""Of the gate's columns: as many as fill the device and divide them."""

_COLUMNS = 256
_MOST_EXPERTS = 1 << 12


@dataclass(frozen=True)
class Tiles:
    """Picks grouped by expert and cut into tiles of at most `height` rows of one expert.

    A pick is one row going to one expert: number `row * top_k + place`. All int32. Tables are as long as the
    worst case; tiles that do not exist hold no rows.
    """

    order: Tensor  # [picks]: picks in the order of their experts
    expert: Tensor  # [tiles]
    first: Tensor  # [tiles]: place in `order`
    count: Tensor  # [tiles]: rows, 0 in tiles that do not exist
    height: int


@dataclass(frozen=True)
class TiledRouting(Routing):
    """A routing with what the kernels of `experts` read."""

    tiles: Tiles
    inputs: Tensor  # [rows, dim]: rounded where the model is quantized
    parted: Tensor  # [rows, dim]: the same, even columns before odd ones; empty if nobody needs it


def _tables(device: torch.device, *sizes: int) -> list[Tensor]:
    """Integer arrays of one allocation, each at a multiple of 16 bytes: a kernel would be compiled once more
    for every pattern of arguments that are not.
    """
    starts = [0]
    for size in sizes:
        starts.append(starts[-1] + -(-size // 4) * 4)
    whole = torch.empty(starts[-1], dtype=torch.int32, device=device)
    return [whole[start : start + size] for start, size in zip(starts, sizes, strict=False)]


def tile_count(picks: int, experts: int, height: int) -> int:
    """Tiles that any choice fits in: every expert may leave its last one partly empty."""
    return min(picks, experts + picks // height)


def tile_height(picks: int, experts: int, dtype: torch.dtype) -> int:
    """Rows of a tile: near what an expert gets, so that few are empty; 8 is the least of the matrix units."""
    average = picks / experts
    if dtype == torch.float32:
        return 16 if average <= 12 else 32
    if average <= 5:
        return 8
    if average <= 10:
        return 16
    if average <= 40:
        return 32 if average <= 20 else 64
    return 128


def route_rows(
    x_rows_dim: Tensor,
    gate: Tensor,
    text_bias: Tensor,
    image_bias: Tensor,
    image_mask: Tensor | None,
    top_k: int,
    scaling: float,
    experts: Experts,
    *,
    quantized: bool,
) -> TiledRouting:
    """See `reference.experts.route_rows`."""
    x, part_columns = x_rows_dim.contiguous(), is_mxfp4(experts.gate_up)
    (rows, dim), count, device = x.shape, gate.shape[0], x.device
    picks = rows * top_k
    height = tile_height(picks, count, x.dtype)
    table = tile_count(picks, count, height)
    chosen = torch.empty(rows, top_k, dtype=torch.int64, device=device)
    shares = torch.empty(rows, top_k, dtype=torch.float32, device=device)
    order, ranks, tile_expert, first, tile_rows = _tables(device, picks, picks, table, table, table)
    inputs = torch.empty_like(x) if quantized else x
    parted = torch.empty_like(x) if part_columns else x[:0]
    if rows:
        given = rows > MOST_STREAMED and x.dtype != torch.float32
        row_height, width, split, step = (8, count, 1, dim) if given else _gate_shape(rows, count, dim)
        blocks = triton.cdiv(count, width)
        logits = wide_linear(x, gate) if given else torch.empty(split, rows, count, device=device)
        few = picks <= FEW_PICKS and rows <= height
        route[(blocks * split * triton.cdiv(rows, row_height) + rows,)](
            x, gate, text_bias, image_bias, image_mask, logits, chosen, shares, ranks, inputs, parted, order,
            tile_expert, first, tile_rows, counters("routing", device, _MOST_EXPERTS + 3), rows, scaling,
            table, TURNS, DIM=dim, EXPERTS=count, PADDED=power_of_two(count), TOP_K=top_k,
            TOP_PADDED=power_of_two(top_k), IMAGES=image_mask is not None, ROUND=quantized, PART=part_columns,
            TILE=height, HEIGHT=row_height,
            PICKS=power_of_two(picks) if few else min(4096 if given else 1024, power_of_two(picks)),
            WIDTH=width, STEP=dividing_step(dim // split, step), SPLIT=split,
            BLOCKS=blocks, COLUMNS=min(_COLUMNS, power_of_two(dim)), COUNTS=_MOST_EXPERTS, GIVEN=given,
            FEW=few, ASSEMBLY=not INTERPRETED, num_warps=4, num_stages=1 if INTERPRETED else STAGES,
        )  # fmt: skip
    return TiledRouting(chosen, shares, Tiles(order, tile_expert, first, tile_rows, height), inputs, parted)


def _gate_shape(rows: int, experts: int, dim: int) -> tuple[int, int, int, int]:
    """Rows and experts of a program of the gate product, parts of its columns, and columns of a step.

    Few rows: enough programs to pull the gate's weights from many places at once. Many rows: tall ones, which
    read them less often. Parts are the same for both: they are the order of a sum.
    """
    split = next((n for n in _PARTS if experts > 64 and dim % (256 * n) == 0), 1)
    return (16, 32, split, 128) if rows > 64 else (8, 16, split, 256)


def sort_picks(x_rows_dim: Tensor, routing: Routing, experts: Experts, *, quantized: bool) -> TiledRouting:
    """A choice made elsewhere, with the tables and inputs that `route_rows` would have left."""
    count, top_k = experts.gate_up.shape[0], routing.chosen.shape[1]
    picks = routing.chosen.numel()
    height = tile_height(picks, count, x_rows_dim.dtype)
    table = tile_count(picks, count, height)
    order, expert, first, rows = _tables(x_rows_dim.device, picks, table, table, table)
    if top_k and picks:
        _sort_with_torch(routing.chosen, count, height, order, expert, first, rows)
    inputs = fp8_round_trip(x_rows_dim) if quantized else x_rows_dim
    parted = torch.cat((inputs[:, 0::2], inputs[:, 1::2]), dim=1) if is_mxfp4(experts.gate_up) else inputs[:0]
    return TiledRouting(
        routing.chosen, routing.shares, Tiles(order, expert, first, rows, height), inputs, parted
    )


def _sort_with_torch(
    chosen: Tensor, experts: int, height: int, order: Tensor, expert: Tensor, first: Tensor, count: Tensor
) -> None:
    ordered, places = chosen.flatten().sort(stable=True)
    order.copy_(places)
    ids = torch.arange(experts, device=chosen.device)
    ends = torch.searchsorted(ordered, ids, right=True)
    counts = ends.diff(prepend=ends.new_zeros(1))
    tiles = (counts + height - 1) // height
    tile_ends = tiles.cumsum(0)
    number = torch.arange(expert.shape[0], device=chosen.device)
    owner = torch.searchsorted(tile_ends, number, right=True).clamp(max=experts - 1)
    within = number - (tile_ends - tiles)[owner]
    expert.copy_(owner)
    first.copy_((ends - counts)[owner] + within * height)
    count.copy_((counts[owner] - within * height).clamp(0, height).masked_fill(number >= tile_ends[-1], 0))
