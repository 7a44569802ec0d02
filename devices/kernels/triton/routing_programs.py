"""Programs of a routing: gate products, then the choice of each row, then the tables of who goes where.

One launch passes from work that is spread over the device to work that is not. The programs that start first
multiply and count themselves in; those that start after them, one a row, wait for all of them, choose, and
count themselves in; the last of these makes the tables. Programs draw their numbers when they start, so who
is waited for runs or has run, in whatever order a card starts them. Who is last varies, what it computes does
not, with one exception that nobody can see: beyond few picks, those of one expert take their places in its
list in the order in which they arrive. A place decides in which lane of a product a row is computed, and all
lanes compute alike. (A stable sort in one program took longer than everything else together.)

Rejected: letting the last program of a tile of rows choose for all of them. A tile of rows makes long code of
each reduction across the experts, and in a step code comes from memory each time: eight rows took 20 us where
one took nine. Programs that wait have time to rehearse, with a row that does not exist.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .codes import dot
from .codes import fp8_round_trip as fp8_round_trip_in_registers

_LOWEST = tl.constexpr(-(1 << 31))


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
def _logits(logits_ptr, expert, row, rows, mask, EXPERTS: tl.constexpr, SPLIT: tl.constexpr):
    """Of one row and some experts: the parts of the product, in their order."""
    place = row.to(tl.int64) * EXPERTS + expert
    logits = tl.load(logits_ptr + place, mask=mask, other=0.0)
    for part in tl.static_range(1, SPLIT):
        logits += tl.load(logits_ptr + part * rows * EXPERTS + place, mask=mask, other=0.0)
    return logits


@triton.jit
def _choose(
    logits_ptr, text_bias_ptr, image_bias_ptr, image_ptr, chosen_ptr, shares_ptr, row, rows, scaling,
    EXPERTS: tl.constexpr, PADDED: tl.constexpr, TOP_K: tl.constexpr, TOP_PADDED: tl.constexpr,
    IMAGES: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    """Choose for one row; returns the experts, `[TOP_PADDED]`. Ties go to the lower one.

    Scores are compared as integers of the same order: those are what a warp reduces in one instruction.
    """
    expert = tl.arange(0, PADDED)
    real = expert < EXPERTS
    exists = row < rows
    scores = _sqrt_softplus(_logits(logits_ptr, expert, row, rows, real & exists, EXPERTS, SPLIT))
    bias_ptr = text_bias_ptr
    if IMAGES and tl.load(image_ptr + row, mask=exists, other=0) != 0:
        bias_ptr = image_bias_ptr
    bits = (scores + tl.load(bias_ptr + expert, mask=real, other=0.0)).to(tl.int32, bitcast=True)
    ranked = tl.where(real, bits ^ ((bits >> 31) & 0x7FFFFFFF), _LOWEST)
    place = tl.arange(0, TOP_PADDED)
    chosen = tl.zeros((TOP_PADDED,), tl.int32)
    for k in range(TOP_K):  # unrolled, its code alone took longer to arrive than to run
        best = tl.min(tl.where(ranked == tl.max(ranked, axis=0), expert, PADDED), axis=0)
        chosen = tl.where(place == k, best, chosen)
        ranked = tl.where(expert == best, _LOWEST, ranked)
    mask = (place < TOP_K) & exists
    picked = _sqrt_softplus(_logits(logits_ptr, chosen, row, rows, mask, EXPERTS, SPLIT))
    picked = tl.where(place < TOP_K, picked, 0.0)
    shares = picked * tl.div_rn(scaling, tl.sum(picked, axis=0) + 1e-20)
    out = row * TOP_K + place
    tl.store(chosen_ptr + out, chosen.to(tl.int64), mask=mask)
    tl.store(shares_ptr + out, shares, mask=mask)
    return chosen


@triton.jit
def _enlist(
    chosen, ranks_ptr, counts_ptr, row, rows, TOP_K: tl.constexpr, TOP_PADDED: tl.constexpr
):  # fmt: skip
    """Take a place in the list of each expert that a row has chosen."""
    place = tl.arange(0, TOP_PADDED)
    mask = (place < TOP_K) & (row < rows)
    rank = tl.atomic_add(counts_ptr + chosen, 1, mask=mask)
    tl.store(ranks_ptr + row * TOP_K + place, rank, mask=mask)


@triton.jit
def _tabulate_few(
    chosen_ptr, order_ptr, expert_ptr, first_ptr, count_ptr, picks, table, PICKS: tl.constexpr
):  # fmt: skip
    """The tables of picks that are so few that each is compared with each: an expert's fit one tile."""
    pick = tl.arange(0, PICKS)
    real = pick < picks
    expert = tl.load(chosen_ptr + pick, mask=real, other=1 << 30).to(tl.int32)
    lower = (expert[:, None] < expert[None, :]).to(tl.int32)
    same = (expert[:, None] == expert[None, :]).to(tl.int32)
    earlier = same * (pick[:, None] < pick[None, :]).to(tl.int32)
    sums = tl.sum(lower + (earlier << 8) + (same << 16), axis=0)  # none reaches 256
    begin, rank, count = sums & 0xFF, (sums >> 8) & 0xFF, sums >> 16
    leads = (rank == 0) & real
    tile = tl.sum(lower * leads.to(tl.int32)[:, None], axis=0)
    tl.store(order_ptr + begin + rank, pick, mask=real)
    tl.store(expert_ptr + tile, expert, mask=leads)
    tl.store(first_ptr + tile, begin, mask=leads)
    tl.store(count_ptr + tile, count, mask=leads)
    empty = tl.sum(leads.to(tl.int32), axis=0) + pick
    tl.store(count_ptr + empty, tl.zeros((PICKS,), tl.int32), mask=empty < table)


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
def _make_tables(
    chosen_ptr, ranks_ptr, counts_ptr, order_ptr, expert_ptr, first_ptr, count_ptr, picks, table,
    EXPERTS: tl.constexpr, PADDED: tl.constexpr, TILE: tl.constexpr, PICKS: tl.constexpr, FEW: tl.constexpr,
):  # fmt: skip
    """Who goes where. A rehearsal has no picks, and may not count."""
    if FEW:
        _tabulate_few(chosen_ptr, order_ptr, expert_ptr, first_ptr, count_ptr, picks, table, PICKS)
    elif picks > 0:
        _tabulate(
            chosen_ptr, ranks_ptr, counts_ptr, order_ptr, expert_ptr, first_ptr, count_ptr, picks, table,
            EXPERTS, PADDED, TILE, PICKS,
        )  # fmt: skip


@triton.jit
def _score(
    x_ptr, gate_ptr, logits_ptr, block, part, row, rows, DIM: tl.constexpr, EXPERTS: tl.constexpr,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, STEP: tl.constexpr, SPLIT: tl.constexpr,
    ASSEMBLY: tl.constexpr,
):  # fmt: skip
    """One part of the gate product of a tile of rows with a block of experts."""
    safe_row = tl.minimum(row, rows - 1).to(tl.int64)
    expert = block * WIDTH + tl.arange(0, WIDTH)
    safe_expert = tl.minimum(expert, EXPERTS - 1)
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


@triton.jit(do_not_specialize=["rows", "table", "turns"])
def route(
    x_ptr, gate_ptr, text_bias_ptr, image_bias_ptr, image_ptr, logits_ptr, chosen_ptr, shares_ptr, ranks_ptr,
    inputs_ptr, parted_ptr, order_ptr, expert_ptr, first_ptr, count_ptr, counters_ptr, rows, scaling, table,
    turns, DIM: tl.constexpr, EXPERTS: tl.constexpr, PADDED: tl.constexpr, TOP_K: tl.constexpr,
    TOP_PADDED: tl.constexpr, IMAGES: tl.constexpr, ROUND: tl.constexpr, PART: tl.constexpr,
    PICKS: tl.constexpr, TILE: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, STEP: tl.constexpr,
    SPLIT: tl.constexpr, BLOCKS: tl.constexpr, COLUMNS: tl.constexpr, COUNTS: tl.constexpr,
    GIVEN: tl.constexpr, FEW: tl.constexpr, ASSEMBLY: tl.constexpr,
):  # fmt: skip
    """Programs: blocks and parts of the product for every tile of rows, then rows.

    Counters: rows of every expert, products done, rows chosen, numbers drawn. All are left at zero. All turns
    but the last are rehearsals (a number at run time: a compiler that sees two of them makes two copies of
    the code). With the product GIVEN nobody waits, and nobody draws.
    """
    parts: tl.constexpr = BLOCKS * SPLIT
    products = tl.num_programs(0) - rows
    products_ptr, chosen_rows_ptr = counters_ptr + COUNTS, counters_ptr + COUNTS + 1
    drawn_ptr = counters_ptr + COUNTS + 2
    number = tl.program_id(0) if GIVEN else tl.atomic_add(drawn_ptr, 1, sem="relaxed")
    if number < products:
        within = number % parts
        row = number // parts * HEIGHT + tl.arange(0, HEIGHT)
        if not GIVEN:
            _score(
                x_ptr, gate_ptr, logits_ptr, within // SPLIT, within % SPLIT, row, rows, DIM, EXPERTS, HEIGHT,
                WIDTH, STEP, SPLIT, ASSEMBLY,
            )  # fmt: skip
            tl.debug_barrier()
            tl.atomic_add(products_ptr, 1, sem="release")
        if ROUND or PART:
            _prepare(x_ptr, inputs_ptr, parted_ptr, row, rows, within, parts, DIM, ROUND, PART, COLUMNS)
    else:
        for turn in range(turns):
            row, picks, tiles, done = rows, 0, 0, rows
            if turn == turns - 1:
                row, picks, tiles = number - products, rows * TOP_K, table
                if not GIVEN:
                    while tl.atomic_add(products_ptr, 0, sem="acquire") < products:
                        pass
            chosen = _choose(
                logits_ptr, text_bias_ptr, image_bias_ptr, image_ptr, chosen_ptr, shares_ptr, row, rows,
                scaling, EXPERTS, PADDED, TOP_K, TOP_PADDED, IMAGES, SPLIT,
            )  # fmt: skip
            if not FEW:
                _enlist(chosen, ranks_ptr, counters_ptr, row, rows, TOP_K, TOP_PADDED)
            tl.debug_barrier()
            if picks > 0:
                done = tl.atomic_add(chosen_rows_ptr, 1, sem="acq_rel") + 1
            if done == rows:
                _make_tables(
                    chosen_ptr, ranks_ptr, counters_ptr, order_ptr, expert_ptr, first_ptr, count_ptr, picks,
                    tiles, EXPERTS, PADDED, TILE, PICKS, FEW,
                )  # fmt: skip
                if picks > 0:
                    tl.store(products_ptr, 0)
                    tl.store(chosen_rows_ptr, 0)
                    tl.store(drawn_ptr, 0)  # by all: whoever is last has waited for everybody
