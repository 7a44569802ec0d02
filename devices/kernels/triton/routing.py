"""Which rows go to which expert: gate product, choice, shares and the sorting of rows, in one launch.

Every later kernel needs the whole choice, so one launch must pass from work that is spread over the device
(the gate product) to work that is not (sorting a few hundred picks). Programs count themselves in: the last
of a tile of rows chooses for its rows, and the last of all sorts. Who is last varies, what it computes does
not. On the way the launch writes the activations as the expert products want them: rounded to FP8 where the
model is quantized, and with even and odd columns parted for 4-bit weights (`codes.expand_e2m1`).

Ties go to the lower expert. Beyond `MOST_SORTED` picks a prompt is long enough to hide a sort of torch.

The counters live on the device between calls and are left at zero; calls of one device run on one stream.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..quantized import is_mxfp4
from ..reference.experts import Experts, Routing
from ..reference.quantization import fp8_round_trip
from .codes import dot
from .codes import fp8_round_trip as fp8_round_trip_in_registers
from .launching import INTERPRETED, dividing_step, power_of_two

MOST_SORTED = 2048
_COUNTERS = 1 << 16
_COLUMNS = 256


@dataclass(frozen=True)
class Tiles:
    """Picks sorted by expert and cut into tiles of at most `height` rows of one expert.

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


@triton.jit
def _sqrt_softplus(x):
    """`sqrt(log(1 + exp(x)))`, the logarithm as a series in e / (2 + e): the hardware's is coarse."""
    small = tl.exp(-tl.abs(x))
    s = small / (2.0 + small)
    square = s * s
    series = 1.0 / 15
    for step in tl.static_range(1, 8):
        series = series * square + 1.0 / (15 - 2 * step)
    return tl.sqrt_rn(tl.maximum(x, 0.0) + 2.0 * s * series)


@triton.jit
def _prepare(
    x_ptr, inputs_ptr, parted_ptr, row, rows, part, PARTS: tl.constexpr,
    DIM: tl.constexpr, ROUND: tl.constexpr, PART: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """This program's share of the columns of its rows, rounded and parted."""
    width: tl.constexpr = ((DIM + PARTS - 1) // PARTS + COLUMNS - 1) // COLUMNS * COLUMNS
    for start in range(0, width, COLUMNS):
        columns = part * width + start + tl.arange(0, COLUMNS)
        mask = (row < rows)[:, None] & (columns < DIM)[None, :]
        place = row.to(tl.int64)[:, None] * DIM
        x = tl.load(x_ptr + place + columns[None, :], mask=mask, other=0.0)
        if ROUND:
            x = fp8_round_trip_in_registers(x.to(tl.float32), COLUMNS // 32).to(x_ptr.dtype.element_ty)
            tl.store(inputs_ptr + place + columns[None, :], x, mask=mask)
        if PART:
            parted = columns % 2 * (DIM // 2) + columns // 2
            tl.store(parted_ptr + place + parted[None, :], x, mask=mask)


@triton.jit
def _choose(
    scores_ptr, text_bias_ptr, image_bias_ptr, image_ptr, chosen_ptr, shares_ptr, row, rows, scaling,
    EXPERTS: tl.constexpr, PADDED: tl.constexpr, TOP_K: tl.constexpr, TOP_PADDED: tl.constexpr,
    IMAGES: tl.constexpr, HEIGHT: tl.constexpr,
):  # fmt: skip
    expert = tl.arange(0, PADDED)
    exists = expert < EXPERTS
    mask = (row < rows)[:, None] & exists[None, :]
    scores = tl.load(scores_ptr + row[:, None] * EXPERTS + expert[None, :], mask=mask, other=0.0)
    bias = tl.load(text_bias_ptr + expert, mask=exists, other=0.0)[None, :]
    if IMAGES:
        is_image = tl.load(image_ptr + row, mask=row < rows, other=0) != 0
        image_bias = tl.load(image_bias_ptr + expert, mask=exists, other=0.0)[None, :]
        bias = tl.where(is_image[:, None], image_bias, bias)
    ranked = tl.where(exists[None, :], scores + bias, float("-inf"))
    place = tl.arange(0, TOP_PADDED)
    chosen = tl.zeros((HEIGHT, TOP_PADDED), tl.int32)
    picked = tl.zeros((HEIGHT, TOP_PADDED), tl.float32)
    for k in tl.static_range(TOP_K):
        best = tl.argmax(ranked, axis=1, tie_break_left=True)
        is_best = expert[None, :] == best[:, None]
        score = tl.sum(tl.where(is_best, scores, 0.0), axis=1)
        chosen = tl.where(place[None, :] == k, best[:, None], chosen)
        picked = tl.where(place[None, :] == k, score[:, None], picked)
        ranked = tl.where(is_best, float("-inf"), ranked)
    factor = tl.div_rn(scaling, tl.sum(picked, axis=1) + 1e-20)
    out = row[:, None] * TOP_K + place[None, :]
    mask = (row < rows)[:, None] & (place < TOP_K)[None, :]
    tl.store(chosen_ptr + out, chosen.to(tl.int64), mask=mask)
    tl.store(shares_ptr + out, picked * factor[:, None], mask=mask)


@triton.jit
def _sort(
    chosen_ptr, order_ptr, expert_ptr, first_ptr, count_ptr, picks, table,
    PICKS: tl.constexpr, EXPERTS: tl.constexpr, PADDED: tl.constexpr, TABLE: tl.constexpr,
    TILE: tl.constexpr,
):  # fmt: skip
    """Picks in the order of their experts, equal experts in the order of picks, and the tables of tiles."""
    pick = tl.arange(0, PICKS)
    chosen = tl.load(chosen_ptr + pick, mask=pick < picks, other=0).to(tl.int32)
    keys = tl.where(pick < picks, (chosen << 16) | pick, 0x7FFFFFFF)
    keys = tl.sort(keys)
    tl.store(order_ptr + pick, keys & 0xFFFF, mask=pick < picks)
    expert = tl.arange(0, PADDED)
    counts = tl.histogram(chosen, PADDED, mask=pick < picks)
    tiles = (counts + TILE - 1) // TILE
    begins = tl.cumsum(counts, 0) - counts
    places = tl.cumsum(tiles, 0) - tiles
    number = tl.arange(0, TABLE)
    tl.store(
        count_ptr + number, tl.zeros((TABLE,), tl.int32), mask=(number >= tl.sum(tiles)) & (number < table)
    )
    most, tile = tl.max(tiles), 0
    while tile < most:
        exists = (tile < tiles) & (expert < EXPERTS)
        tl.store(expert_ptr + places + tile, expert, mask=exists)
        tl.store(first_ptr + places + tile, begins + tile * TILE, mask=exists)
        tl.store(count_ptr + places + tile, tl.minimum(counts - tile * TILE, TILE), mask=exists)
        tile += 1


@triton.jit(do_not_specialize=["rows", "table"])
def _route(
    x_ptr, gate_ptr, text_bias_ptr, image_bias_ptr, image_ptr, scores_ptr, chosen_ptr, shares_ptr,
    inputs_ptr, parted_ptr, order_ptr, expert_ptr, first_ptr, count_ptr, counters_ptr, rows, scaling, table,
    DIM: tl.constexpr, EXPERTS: tl.constexpr, PADDED: tl.constexpr, TOP_K: tl.constexpr,
    TOP_PADDED: tl.constexpr, IMAGES: tl.constexpr, ROUND: tl.constexpr, PART: tl.constexpr,
    SORT: tl.constexpr, PICKS: tl.constexpr, TABLE: tl.constexpr, TILE: tl.constexpr,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, STEP: tl.constexpr, PARTS: tl.constexpr,
    COLUMNS: tl.constexpr, ASSEMBLY: tl.constexpr,
):  # fmt: skip
    part, row_tile = tl.program_id(0), tl.program_id(1)
    row = row_tile * HEIGHT + tl.arange(0, HEIGHT)
    safe_row = tl.minimum(row, rows - 1).to(tl.int64)
    expert = part * WIDTH + tl.arange(0, WIDTH)
    safe_expert = tl.minimum(expert, EXPERTS - 1)
    k = tl.arange(0, STEP)
    logits = tl.zeros((WIDTH, HEIGHT), tl.float32)
    for start in range(0, DIM, STEP):
        gate = tl.load(gate_ptr + safe_expert[:, None] * DIM + (start + k)[None, :])
        x = tl.load(x_ptr + safe_row[None, :] * DIM + (start + k)[:, None])
        logits = dot(gate, x, logits, ASSEMBLY)
    mask = (row < rows)[None, :] & (expert < EXPERTS)[:, None]
    tl.store(scores_ptr + row[None, :] * EXPERTS + expert[:, None], _sqrt_softplus(logits), mask=mask)
    _prepare(x_ptr, inputs_ptr, parted_ptr, row, rows, part, PARTS, DIM, ROUND, PART, COLUMNS)
    tl.debug_barrier()
    arrived = tl.atomic_add(counters_ptr + 1 + row_tile, 1, sem="acq_rel")
    if arrived == PARTS - 1:
        tl.store(counters_ptr + 1 + row_tile, 0)
        _choose(
            scores_ptr, text_bias_ptr, image_bias_ptr, image_ptr, chosen_ptr, shares_ptr, row, rows, scaling,
            EXPERTS, PADDED, TOP_K, TOP_PADDED, IMAGES, HEIGHT,
        )  # fmt: skip
        if SORT:
            tl.debug_barrier()
            finished = tl.atomic_add(counters_ptr, 1, sem="acq_rel")
            if finished == tl.num_programs(1) - 1:
                tl.store(counters_ptr, 0)
                _sort(
                    chosen_ptr, order_ptr, expert_ptr, first_ptr, count_ptr, rows * TOP_K, table,
                    PICKS, EXPERTS, PADDED, TABLE, TILE,
                )  # fmt: skip


@cache
def _counters(device: torch.device) -> Tensor:
    return torch.zeros(_COUNTERS, dtype=torch.int32, device=device)


def tile_count(picks: int, experts: int, height: int) -> int:
    """Tiles that any choice fits in: every expert may leave its last one partly empty."""
    return min(picks, experts + picks // height)


def tile_height(picks: int, experts: int, dtype: torch.dtype) -> int:
    """Rows of a tile: near what an expert gets, so that few are empty; 8 is the least of the matrix units."""
    average = picks / experts
    if dtype == torch.float32:
        return 16 if average <= 12 else 32
    if average <= 2.5:
        return 8
    if average <= 10:
        return 16
    return 32 if average <= 20 else 64


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
    integers = torch.empty(picks + 3 * table, dtype=torch.int32, device=device)
    order, tile_expert, first, tile_rows = integers.split([picks, table, table, table])
    inputs = torch.empty_like(x) if quantized else x
    parted = torch.empty_like(x) if part_columns else x[:0]
    if rows:
        row_height, width = 16, 16 if rows <= 256 else 64
        parts = triton.cdiv(count, width)
        sort = picks <= MOST_SORTED
        _route[(parts, triton.cdiv(rows, row_height))](
            x, gate, text_bias, image_bias, image_mask, torch.empty(rows, count, device=device), chosen,
            shares, inputs, parted, order, tile_expert, first, tile_rows, _counters(device), rows, scaling,
            table,
            DIM=dim, EXPERTS=count, PADDED=power_of_two(count), TOP_K=top_k,
            TOP_PADDED=power_of_two(top_k), IMAGES=image_mask is not None, ROUND=quantized,
            PART=part_columns, SORT=sort, PICKS=power_of_two(picks) if sort else 1,
            TABLE=power_of_two(table) if sort else 1, TILE=height, HEIGHT=row_height, WIDTH=width,
            STEP=dividing_step(dim, 128), PARTS=parts, COLUMNS=min(_COLUMNS, power_of_two(dim)),
            ASSEMBLY=not INTERPRETED, num_warps=8 if count > 64 else 4, num_stages=1 if INTERPRETED else 4,
        )  # fmt: skip
        if not sort:
            _sort_with_torch(chosen, count, height, order, tile_expert, first, tile_rows)
    return TiledRouting(chosen, shares, Tiles(order, tile_expert, first, tile_rows, height), inputs, parted)


def sort_picks(x_rows_dim: Tensor, routing: Routing, experts: Experts, *, quantized: bool) -> TiledRouting:
    """A choice made elsewhere, with the tables and inputs that `route_rows` would have left."""
    count, top_k = experts.gate_up.shape[0], routing.chosen.shape[1]
    picks = routing.chosen.numel()
    height = tile_height(picks, count, x_rows_dim.dtype)
    table = tile_count(picks, count, height)
    integers = torch.empty(picks + 3 * table, dtype=torch.int32, device=x_rows_dim.device)
    order, expert, first, rows = integers.split([picks, table, table, table])
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
