"""Attention of few rows with large vectors and many keys: a program has one tile of a row's keys.

A few rows leave most of the card idle unless their keys are shared out, and then the time is that of one
program from its first load to its last store. So a program counts nothing and has one copy of the loop over
keys, for the window or for the entries, and leaves a partial result. A second launch joins those of a row,
always in the order of the tiles. Rejected: shares of a row's keys that depend on how many it has. Those are
known only once all places are read, one more wait before the first key.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .attention_parts import LOWEST, final_factor, first_places, over_tiles, parked, turn_back, turned_queries


@triton.jit(do_not_specialize=["tiles"])
def attend_tile(
    query_pointer, turns_pointer, window_pointer, window_places_pointer, entry_pointer, entry_places_pointer,
    parked_pointer, value_pointer, top_pointer, total_pointer, scale, tiles,
    HEADS: tl.constexpr, DIM: tl.constexpr, ROTARY: tl.constexpr, WINDOW: tl.constexpr, ENTRIES: tl.constexpr,
    HEAD_BLOCK: tl.constexpr, TILE: tl.constexpr, ROUND: tl.constexpr, ASSEMBLY: tl.constexpr,
):  # fmt: skip
    """Grid: blocks of heads, tiles (of the window, then of the entries), rows.

    `tiles` is 1: only in a loop whose length is not known do keys go from memory to the matrix units without
    passing through registers. Programs of other tiles park the same queries.
    """
    head = tl.program_id(0) * HEAD_BLOCK + tl.arange(0, HEAD_BLOCK)
    row, column = tl.program_id(2).to(tl.int64), tl.arange(0, DIM)
    window_tiles: tl.constexpr = (WINDOW + TILE - 1) // TILE
    tile = tl.program_id(1)
    begin, keys_there = tile * TILE, WINDOW
    pool_pointer, places_pointer = window_pointer, window_places_pointer + row * WINDOW
    if tile >= window_tiles:
        begin, keys_there = (tile - window_tiles) * TILE, ENTRIES
        pool_pointer, places_pointer = entry_pointer, entry_places_pointer + row * ENTRIES
    place = first_places(places_pointer + begin, keys_there - begin, TILE)
    inside = head < HEADS
    first, cells = row * (HEADS * DIM), head[:, None] * DIM + column[None, :]
    turned = turned_queries(
        query_pointer + first, turns_pointer + row * ROTARY, head, column, HEADS, DIM, ROTARY
    )
    query = parked(turned, parked_pointer + first + cells, inside[:, None])
    value, top, total = over_tiles(
        tl.zeros([HEAD_BLOCK, DIM], tl.float32), tl.full([HEAD_BLOCK], LOWEST, tl.float32),
        tl.zeros([HEAD_BLOCK], tl.float32), query, pool_pointer, place, places_pointer + begin, tiles,
        keys_there - begin, scale, DIM, TILE, ROUND, ASSEMBLY,
    )  # fmt: skip
    part = (row * tl.num_programs(1) + tile) * HEADS + head
    tl.store(value_pointer + part[:, None] * DIM + column[None, :], value, mask=inside[:, None])
    tl.store(top_pointer + part, top, mask=inside)
    tl.store(total_pointer + part, total, mask=inside)


@triton.jit
def join_tiles(
    value_pointer, top_pointer, total_pointer, sink_pointer, turns_pointer, out_pointer,
    HEADS: tl.constexpr, DIM: tl.constexpr, ROTARY: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """One head of one row: partial results in the order of their keys."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) + tl.arange(0, 1)
    column = tl.arange(0, DIM)
    value = tl.zeros([1, DIM], tl.float32)
    top = tl.full([1], LOWEST, tl.float32)
    total = tl.zeros([1], tl.float32)
    for tile in tl.static_range(TILES):
        part = (row * TILES + tile) * HEADS + head
        part_top = tl.load(top_pointer + part)
        new_top = tl.maximum(top, part_top)
        fade = tl.exp(top - new_top)
        weight = tl.exp(part_top - new_top)
        total = total * fade + tl.load(total_pointer + part) * weight
        part_value = tl.load(value_pointer + part[:, None] * DIM + column[None, :])
        value = value * fade[:, None] + part_value * weight[:, None]
        top = new_top
    sink = tl.load(sink_pointer + head).to(tl.float32)
    out = out_pointer + row * (HEADS * DIM)
    shares = value * final_factor(top, total, sink)[:, None]
    tl.store(out + head[:, None] * DIM + column[None, :], shares.to(out_pointer.dtype.element_ty))
    turn_back(out, turns_pointer + row * ROTARY, head, HEADS, DIM, ROTARY)
