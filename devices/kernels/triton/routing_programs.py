"""Programs of a routing: gate products, then the choice of each row, then the tables of who goes where.

One launch passes from work that is spread over the device to work that is not. Its first programs multiply
and post their parts of the scores; those behind them, one a row, collect them and choose; the last makes
the tables (`mailbox.py`). A few picks are compared each with each. Many are counted: then the last row to
have chosen makes the tables, and picks of one expert take their places in its list in the order in which
they arrive. That varies, but nobody can see it: a place decides in which lane of a product a row is
computed, and all lanes compute alike. (A stable sort in one program took longer than everything else
together.)

Rejected: letting the last program of a tile of rows choose for all of them. A tile of rows makes long code of
each reduction across the experts, and in a step code comes from memory each time: eight rows took 20 us where
one took nine. Programs that wait have time to rehearse, with a row that does not exist.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .codes import dot
from .codes import fp8_round_trip as fp8_round_trip_in_registers
from .mailbox import collect, post

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
def _logits(
    logits_ptr, row, rows, EXPERTS: tl.constexpr, PADDED: tl.constexpr, SPLIT: tl.constexpr,
    SPLIT_PADDED: tl.constexpr, GIVEN: tl.constexpr,
):  # fmt: skip
    """Of one row: the parts of the product, added up always in the same order."""
    expert = tl.arange(0, PADDED)
    mask = (expert < EXPERTS) & (row < rows)
    if GIVEN:
        logits = tl.load(logits_ptr + row.to(tl.int64) * EXPERTS + expert, mask=mask, other=0.0)
    else:
        part = tl.arange(0, SPLIT_PADDED)[:, None]
        place = (part * rows + row).to(tl.int64) * EXPERTS + expert[None, :]
        bits = collect(logits_ptr + place, mask[None, :] & (part < SPLIT))
        logits = tl.sum(bits.to(tl.float32, bitcast=True), axis=0)
    return logits


@triton.jit
def _choose(
    logits_ptr, text_bias_ptr, image_bias_ptr, image_ptr, chosen_ptr, shares_ptr, row, rows, scaling,
    EXPERTS: tl.constexpr, PADDED: tl.constexpr, TOP_K: tl.constexpr, TOP_PADDED: tl.constexpr,
    IMAGES: tl.constexpr, SPLIT: tl.constexpr, SPLIT_PADDED: tl.constexpr, GIVEN: tl.constexpr,
):  # fmt: skip
    """Choose for one row; returns the experts, `[TOP_PADDED]`, zeros behind them. Ties go to the lower one.

    Scores are compared as integers of the same order: those are what a warp reduces in one instruction.
    """
    expert = tl.arange(0, PADDED)
    real = expert < EXPERTS
    exists = row < rows
    bias_ptr = text_bias_ptr
    if IMAGES and tl.load(image_ptr + row, mask=exists, other=0) != 0:
        bias_ptr = image_bias_ptr
    bias = tl.load(bias_ptr + expert, mask=real, other=0.0)
    logits = _logits(logits_ptr, row, rows, EXPERTS, PADDED, SPLIT, SPLIT_PADDED, GIVEN)
    scores = _sqrt_softplus(logits)
    bits = (scores + bias).to(tl.int32, bitcast=True)
    ranked = tl.where(real, bits ^ ((bits >> 31) & 0x7FFFFFFF), _LOWEST)
    place = tl.arange(0, TOP_PADDED)
    chosen = tl.zeros((TOP_PADDED,), tl.int32)
    for k in range(TOP_K):  # unrolled, its code alone took longer to arrive than to run
        best = tl.min(tl.where(ranked == tl.max(ranked, axis=0), expert, PADDED), axis=0)
        chosen = tl.where(place == k, best, chosen)
        ranked = tl.where(expert == best, _LOWEST, ranked)
    mask = (place < TOP_K) & exists
    picked = tl.where(place < TOP_K, tl.gather(scores, chosen, 0), 0.0)
    shares = picked * tl.div_rn(scaling, tl.sum(picked, axis=0) + 1e-20)
    out = row * TOP_K + place
    tl.store(chosen_ptr + out, chosen.to(tl.int64), mask=mask)
    tl.store(shares_ptr + out, shares, mask=mask)
    return chosen


@triton.jit
def _tabulate_few(
    expert, order_ptr, expert_ptr, first_ptr, count_ptr, picks, table, PICKS: tl.constexpr
):  # fmt: skip
    """The tables of picks that are so few that each is compared with each: an expert's fit one tile."""
    pick = tl.arange(0, PICKS)
    real = pick < picks
    expert = tl.where(real, expert, 1 << 30)
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
def _enlist(chosen, ranks_ptr, counts_ptr, mask):
    """Take a place in the list of each chosen expert."""
    tl.store(ranks_ptr, tl.atomic_add(counts_ptr + chosen, 1, mask=mask), mask=mask)
    tl.debug_barrier()


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
    post(logits_ptr + place, logits, mask)


@triton.jit(do_not_specialize=["rows", "table", "turns"])
def route(
    x_ptr, gate_ptr, text_bias_ptr, image_bias_ptr, image_ptr, logits_ptr, chosen_ptr, shares_ptr, picks_ptr,
    inputs_ptr, parted_ptr, order_ptr, expert_ptr, first_ptr, count_ptr, counters_ptr, rows, scaling, table,
    turns, DIM: tl.constexpr, EXPERTS: tl.constexpr, PADDED: tl.constexpr, TOP_K: tl.constexpr,
    TOP_PADDED: tl.constexpr, IMAGES: tl.constexpr, ROUND: tl.constexpr, PART: tl.constexpr,
    PICKS: tl.constexpr, TILE: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, STEP: tl.constexpr,
    SPLIT: tl.constexpr, SPLIT_PADDED: tl.constexpr, BLOCKS: tl.constexpr, COLUMNS: tl.constexpr,
    COUNTS: tl.constexpr, GIVEN: tl.constexpr, FEW: tl.constexpr, SINGLE: tl.constexpr,
    ASSEMBLY: tl.constexpr,
):  # fmt: skip
    """Grid: blocks and parts of the product for every tile of rows, then rows, then the tables of few picks.

    Counters: rows of every expert, rows that have chosen; all are left at zero. All turns but the last are
    rehearsals (a number at run time: a compiler that sees two of them makes two copies of the code).
    """
    parts: tl.constexpr = BLOCKS * SPLIT
    products = parts * ((rows + HEIGHT - 1) // HEIGHT)
    number = tl.program_id(0)
    if number < products:
        within = number % parts
        row = number // parts * HEIGHT + tl.arange(0, HEIGHT)
        if not GIVEN:
            _score(
                x_ptr, gate_ptr, logits_ptr, within // SPLIT, within % SPLIT, row, rows, DIM, EXPERTS, HEIGHT,
                WIDTH, STEP, SPLIT, ASSEMBLY,
            )  # fmt: skip
        if ROUND or PART:
            _prepare(x_ptr, inputs_ptr, parted_ptr, row, rows, within, parts, DIM, ROUND, PART, COLUMNS)
    else:
        pick, place = tl.arange(0, PICKS), tl.arange(0, TOP_PADDED)
        for turn in range(turns):
            last = turn == turns - 1
            row, picks = tl.where(last, number - products, rows), tl.where(last, rows * TOP_K, 0)
            if number - products < rows:
                chosen = _choose(
                    logits_ptr, text_bias_ptr, image_bias_ptr, image_ptr, chosen_ptr, shares_ptr, row, rows,
                    scaling, EXPERTS, PADDED, TOP_K, TOP_PADDED, IMAGES, SPLIT, SPLIT_PADDED, GIVEN,
                )  # fmt: skip
                mask = (place < TOP_K) & (row < rows)
                if SINGLE:
                    _tabulate_few(
                        chosen, order_ptr, expert_ptr, first_ptr, count_ptr, picks, tl.where(last, table, 0),
                        TOP_PADDED,
                    )  # fmt: skip
                elif FEW:
                    post(picks_ptr + row * TOP_K + place, chosen, mask)
                else:
                    _enlist(chosen, picks_ptr + row * TOP_K + place, counters_ptr, mask)
                    if last:  # noqa: SIM102 - kernels evaluate both sides of an `and`
                        if tl.atomic_add(counters_ptr + COUNTS, 1, sem="acq_rel") == rows - 1:
                            tl.store(counters_ptr + COUNTS, 0)
                            _tabulate(
                                chosen_ptr, picks_ptr, counters_ptr, order_ptr, expert_ptr, first_ptr,
                                count_ptr, picks, table, EXPERTS, PADDED, TILE, PICKS,
                            )  # fmt: skip
            elif FEW:
                _tabulate_few(
                    collect(picks_ptr + pick, pick < picks), order_ptr, expert_ptr, first_ptr, count_ptr,
                    picks, tl.where(last, table, 0), PICKS,
                )  # fmt: skip
