"""Which rows go to which expert: gate product, choice, shares and the sorting of rows, in one launch.

Every later kernel needs the whole choice, so one launch must pass from work that is spread over the device
(the gate product) to work that is not (the tables of who goes where). Programs count themselves in: the last
of a tile of rows adds up the parts of its scores in their order and chooses, and the last of all makes the
tables. Who is last varies, what it computes does not, with one exception that nobody can see: rows of one
expert take their places in that expert's list in the order in which they arrive. A place decides in which
lane of a product a row is computed, and all lanes compute alike. (A stable sort in one program took longer
than everything else together.)

On the way the launch writes the activations as the expert products want them: rounded to FP8 where the model
is quantized, and with even and odd columns parted for 4-bit weights (`codes.expand_e2m1`).

Ties go to the lower expert. The counters live on the device between calls and are left at zero; calls of one
device run on one stream.
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
from ..reference.products import wide_linear
from ..reference.quantization import fp8_round_trip
from .codes import dot
from .codes import fp8_round_trip as fp8_round_trip_in_registers
from .launching import INTERPRETED, dividing_step, power_of_two

MOST_STREAMED = 256
"""Rows up to which a launch multiplies by the gate itself; scores of more come from the library. In float32
it always does: its sums then have one order, whatever the number of rows."""
_COLUMNS = 256
_CHOOSING_ROWS = 8
_ROW_TILES = 1 << 15
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
            even, odd = tl.split(x.reshape(x.shape[0], COLUMNS // 2, 2))
            pair = (part * width + start) // 2 + tl.arange(0, COLUMNS // 2)
            mask = (row < rows)[:, None] & (pair < DIM // 2)[None, :]
            tl.store(parted_ptr + place + pair[None, :], even, mask=mask)
            tl.store(parted_ptr + place + DIM // 2 + pair[None, :], odd, mask=mask)


@triton.jit
def _choose(
    logits_ptr, text_bias_ptr, image_bias_ptr, image_ptr, chosen_ptr, shares_ptr, ranks_ptr, counts_ptr,
    row, rows, scaling, EXPERTS: tl.constexpr, PADDED: tl.constexpr, TOP_K: tl.constexpr,
    TOP_PADDED: tl.constexpr, IMAGES: tl.constexpr, HEIGHT: tl.constexpr, SPLIT: tl.constexpr,
    RANKED: tl.constexpr,
):  # fmt: skip
    """Choose for some rows, and take a place in the list of each chosen expert."""
    expert = tl.arange(0, PADDED)
    exists = expert < EXPERTS
    mask = (row < rows)[:, None] & exists[None, :]
    place = row[:, None] * EXPERTS + expert[None, :]
    logits = tl.load(logits_ptr + place, mask=mask, other=0.0)
    for part in tl.static_range(1, SPLIT):
        logits += tl.load(logits_ptr + part * rows * EXPERTS + place, mask=mask, other=0.0)
    scores = _sqrt_softplus(logits)
    bias = tl.load(text_bias_ptr + expert, mask=exists, other=0.0)[None, :]
    if IMAGES:
        is_image = tl.load(image_ptr + row, mask=row < rows, other=0) != 0
        image_bias = tl.load(image_bias_ptr + expert, mask=exists, other=0.0)[None, :]
        bias = tl.where(is_image[:, None], image_bias, bias)
    ranked = tl.where(exists[None, :], scores + bias, float("-inf"))
    place = tl.arange(0, TOP_PADDED)
    chosen = tl.zeros((HEIGHT, TOP_PADDED), tl.int32)
    picked = tl.zeros((HEIGHT, TOP_PADDED), tl.float32)
    total = tl.zeros((HEIGHT,), tl.float32)  # in the order of choice, whatever the layout of the tile
    for k in range(TOP_K):  # unrolled, its code alone took longer to arrive than to run
        best = tl.argmax(ranked, axis=1, tie_break_left=True)
        is_best = expert[None, :] == best[:, None]
        score = tl.sum(tl.where(is_best, scores, 0.0), axis=1)
        chosen = tl.where(place[None, :] == k, best[:, None], chosen)
        picked = tl.where(place[None, :] == k, score[:, None], picked)
        total += score
        ranked = tl.where(is_best, float("-inf"), ranked)
    factor = tl.div_rn(scaling, total + 1e-20)
    out = row[:, None] * TOP_K + place[None, :]
    mask = (row < rows)[:, None] & (place < TOP_K)[None, :]
    tl.store(chosen_ptr + out, chosen.to(tl.int64), mask=mask)
    tl.store(shares_ptr + out, picked * factor[:, None], mask=mask)
    if RANKED:
        tl.store(ranks_ptr + out, tl.atomic_add(counts_ptr + chosen, 1, mask=mask), mask=mask)


@triton.jit
def _tabulate(
    chosen_ptr, ranks_ptr, counts_ptr, order_ptr, expert_ptr, first_ptr, count_ptr, picks, table,
    EXPERTS: tl.constexpr, PADDED: tl.constexpr, TILE: tl.constexpr, PICKS: tl.constexpr,
):  # fmt: skip
    """From how many rows every expert has: its tiles, and every pick in its expert's list."""
    expert = tl.arange(0, PADDED)
    exists = expert < EXPERTS
    counts = tl.load(counts_ptr + expert, mask=exists, other=0)
    tiles = (counts + TILE - 1) // TILE
    begins = tl.cumsum(counts, 0) - counts
    places = tl.cumsum(tiles, 0) - tiles
    # The counts' own memory passes the begins to where they are looked up, and is zeroed at the end.
    tl.debug_barrier()
    tl.store(counts_ptr + expert, begins, mask=exists)
    number, total = tl.sum(tiles), 0
    while number < table:
        empty = number + expert
        tl.store(count_ptr + empty, tl.zeros((PADDED,), tl.int32), mask=empty < table)
        number += PADDED
    most, tile = tl.max(tiles), 0
    while tile < most:
        mask = tile < tiles
        tl.store(expert_ptr + places + tile, expert, mask=mask)
        tl.store(first_ptr + places + tile, begins + tile * TILE, mask=mask)
        tl.store(count_ptr + places + tile, tl.minimum(counts - tile * TILE, TILE), mask=mask)
        tile += 1
    tl.debug_barrier()
    while total < picks:
        pick = total + tl.arange(0, PICKS)
        mask = pick < picks
        chosen = tl.load(chosen_ptr + pick, mask=mask, other=0)
        begin = tl.load(counts_ptr + chosen, mask=mask, other=0)
        tl.store(order_ptr + begin + tl.load(ranks_ptr + pick, mask=mask, other=0), pick, mask=mask)
        total += PICKS
    tl.debug_barrier()
    tl.store(counts_ptr + expert, tl.zeros((PADDED,), tl.int32), mask=exists)


@triton.jit
def _list_single(
    chosen_ptr, order_ptr, expert_ptr, first_ptr, count_ptr, TOP_K: tl.constexpr, TOP_PADDED: tl.constexpr
):
    """One row's picks are their own tiles: nobody to wait for and nothing to sort."""
    pick = tl.arange(0, TOP_PADDED)
    only = pick < TOP_K
    expert = tl.load(chosen_ptr + pick, mask=only, other=0).to(tl.int32)
    tl.store(order_ptr + pick, pick, mask=only)
    tl.store(expert_ptr + pick, expert, mask=only)
    tl.store(first_ptr + pick, pick, mask=only)
    tl.store(count_ptr + pick, tl.full((TOP_PADDED,), 1, tl.int32), mask=only)


@triton.jit(do_not_specialize=["rows", "table"])
def _route(
    x_ptr, gate_ptr, text_bias_ptr, image_bias_ptr, image_ptr, logits_ptr, chosen_ptr, shares_ptr, ranks_ptr,
    inputs_ptr, parted_ptr, order_ptr, expert_ptr, first_ptr, count_ptr, counters_ptr, rows, scaling, table,
    DIM: tl.constexpr, EXPERTS: tl.constexpr, PADDED: tl.constexpr, TOP_K: tl.constexpr,
    TOP_PADDED: tl.constexpr, IMAGES: tl.constexpr, ROUND: tl.constexpr, PART: tl.constexpr,
    PICKS: tl.constexpr, TILE: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, STEP: tl.constexpr,
    SPLIT: tl.constexpr, BLOCKS: tl.constexpr, CHOOSING: tl.constexpr, COLUMNS: tl.constexpr,
    COUNTS: tl.constexpr, GIVEN: tl.constexpr, SINGLE: tl.constexpr, ASSEMBLY: tl.constexpr,
):  # fmt: skip
    block, part, row_tile = tl.program_id(0) // SPLIT, tl.program_id(0) % SPLIT, tl.program_id(1)
    row = row_tile * HEIGHT + tl.arange(0, HEIGHT)
    safe_row = tl.minimum(row, rows - 1).to(tl.int64)
    expert = block * WIDTH + tl.arange(0, WIDTH)
    safe_expert = tl.minimum(expert, EXPERTS - 1)
    if not GIVEN:
        k = part * (DIM // SPLIT) + tl.arange(0, STEP)
        gate_ptr += safe_expert[:, None] * DIM + k[None, :]
        product_ptr = x_ptr + safe_row[None, :] * DIM + k[:, None]
        logits = tl.zeros((WIDTH, HEIGHT), tl.float32)
        for _ in range(0, DIM // SPLIT, STEP):
            logits = dot(tl.load(gate_ptr), tl.load(product_ptr), logits, ASSEMBLY)
            gate_ptr += STEP
            product_ptr += STEP
        mask = (row < rows)[None, :] & (expert < EXPERTS)[:, None]
        place = (part * rows + row)[None, :] * EXPERTS + expert[:, None]
        tl.store(logits_ptr + place, logits, mask=mask)
    if ROUND or PART:
        parts: tl.constexpr = BLOCKS * SPLIT
        _prepare(x_ptr, inputs_ptr, parted_ptr, row, rows, tl.program_id(0), parts, DIM, ROUND, PART, COLUMNS)
    tl.debug_barrier()
    arrived = tl.atomic_add(counters_ptr + COUNTS + 1 + row_tile, 1, sem="acq_rel")
    if arrived == BLOCKS * SPLIT - 1:
        tl.store(counters_ptr + COUNTS + 1 + row_tile, 0)
        for start in tl.static_range(0, 1 if SINGLE else HEIGHT, CHOOSING):
            _choose(
                logits_ptr, text_bias_ptr, image_bias_ptr, image_ptr, chosen_ptr, shares_ptr, ranks_ptr,
                counters_ptr, row_tile * HEIGHT + start + tl.arange(0, CHOOSING), rows, scaling, EXPERTS,
                PADDED, TOP_K, TOP_PADDED, IMAGES, CHOOSING, SPLIT, not SINGLE,
            )  # fmt: skip
        tl.debug_barrier()
        if SINGLE:
            _list_single(chosen_ptr, order_ptr, expert_ptr, first_ptr, count_ptr, TOP_K, TOP_PADDED)
        else:
            finished = tl.atomic_add(counters_ptr + COUNTS, 1, sem="acq_rel")
            if finished == tl.num_programs(1) - 1:
                tl.store(counters_ptr + COUNTS, 0)
                _tabulate(
                    chosen_ptr, ranks_ptr, counters_ptr, order_ptr, expert_ptr, first_ptr, count_ptr,
                    rows * TOP_K, table, EXPERTS, PADDED, TILE, PICKS,
                )  # fmt: skip


@cache
def _counters(device: torch.device) -> Tensor:
    """Rows of every expert, then finished tiles of rows, then programs done of every tile of rows."""
    return torch.zeros(_MOST_EXPERTS + 1 + _ROW_TILES, dtype=torch.int32, device=device)


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
        row_height, width, split, step = (
            (8, power_of_two(count), 1, dim) if given else _gate_shape(rows, count, dim)
        )
        blocks = triton.cdiv(count, width)
        logits = wide_linear(x, gate) if given else torch.empty(split, rows, count, device=device)
        _route[(blocks * split, triton.cdiv(rows, row_height))](
            x, gate, text_bias, image_bias, image_mask, logits, chosen, shares, ranks, inputs, parted, order,
            tile_expert, first, tile_rows, _counters(device), rows, scaling, table, DIM=dim, EXPERTS=count,
            PADDED=power_of_two(count), TOP_K=top_k, TOP_PADDED=power_of_two(top_k),
            IMAGES=image_mask is not None, ROUND=quantized, PART=part_columns,
            PICKS=min(4096 if given else 1024, power_of_two(picks)), TILE=height, HEIGHT=row_height,
            WIDTH=width, STEP=dividing_step(dim // split, step), SPLIT=split, BLOCKS=blocks,
            CHOOSING=1 if rows == 1 else min(row_height, _CHOOSING_ROWS),
            COLUMNS=min(_COLUMNS, power_of_two(dim)), COUNTS=_MOST_EXPERTS, GIVEN=given, SINGLE=rows == 1,
            ASSEMBLY=not INTERPRETED, num_warps=4, num_stages=1 if INTERPRETED else 4,
        )  # fmt: skip
    return TiledRouting(chosen, shares, Tiles(order, tile_expert, first, tile_rows, height), inputs, parted)


def _gate_shape(rows: int, experts: int, dim: int) -> tuple[int, int, int, int]:
    """Rows and experts of a program of the gate product, parts of its columns, and columns of a step.

    Few rows: enough programs to pull the gate's weights from many places at once. Many rows: tall ones, which
    read them less often. Parts are the same for both: they are the order of a sum.
    """
    split = 4 if dim % 1024 == 0 and experts > 64 else 1
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
