"""Attention of many rows with large vectors: a program has all heads of a row, and half of its columns.

With many rows the matrix units count, and Hopper's take 64 lines of a factor at once: all heads of one row.
The running result of 64 heads by 512 columns fills the registers of two groups of warps; but products that
depend on each other the compiler gives to both groups alike, and it moves the result between them at every
tile (7 KB of stack a thread). Half the columns fit the registers of one group, and nothing moves. The price:
both halves compute all scores. Rejected: 32 heads a program, which never reach the fast instructions.

Keys are fetched as two tiles, the own half of the columns and the other one, since only the own half is
multiplied by probabilities. Both halves read all queries, so a launch before turns those.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .attention_parts import LOWEST, chosen_tiles, final_factor, turn_back, weigh
from .codes import wide_dot


@triton.jit
def _over_tiles(
    value, top, total, query, other_query, pool_pointer, places_pointer, tiles, own, other, scale,
    KEYS: tl.constexpr, DIM: tl.constexpr, TILE: tl.constexpr, ROUND: tl.constexpr, ASSEMBLY: tl.constexpr,
):  # fmt: skip
    """Take the keys of the first `tiles` tiles of a place list into the running result."""
    # Places are fetched a tile ahead: keys can then be on their way while the tile before is multiplied.
    number = tl.arange(0, TILE)
    place = tl.load(places_pointer + number, mask=(number < KEYS) & (tiles > 0), other=-1)
    for tile in range(tiles):
        number = (tile + 1) * TILE + tl.arange(0, TILE)
        next_place = tl.load(places_pointer + number, mask=number < KEYS, other=-1)
        seen = place >= 0
        cells = pool_pointer + place.to(tl.int64)[:, None] * DIM
        keys = tl.load(cells + own[None, :], mask=seen[:, None], other=0.0)
        other_keys = tl.load(cells + other[None, :], mask=seen[:, None], other=0.0)
        scores = wide_dot(query, tl.trans(keys), tl.zeros([query.shape[0], TILE], tl.float32), ASSEMBLY)
        scores = wide_dot(other_query, tl.trans(other_keys), scores, ASSEMBLY)
        value, top, total, weights = weigh(scores, seen, scale, value, top, total)
        if ROUND:
            value = wide_dot(weights.to(keys.dtype), keys, value, ASSEMBLY)
        else:
            # The upper half of a float32 is a bfloat16; rounding to one would be work for the unit of `exp`.
            upper = (weights.to(tl.int32, bitcast=True) & -0x10000).to(tl.float32, bitcast=True)
            value = wide_dot(upper.to(keys.dtype), keys, value, ASSEMBLY)
            value = wide_dot((weights - upper).to(keys.dtype), keys, value, ASSEMBLY)
        place = next_place
    return value, top, total


@triton.jit
def attend_halves(
    turned_pointer, turns_pointer, window_pointer, window_places_pointer, entry_pointer, entry_places_pointer,
    sink_pointer, out_pointer, scale,
    HEADS: tl.constexpr, DIM: tl.constexpr, ROTARY: tl.constexpr, WINDOW: tl.constexpr, ENTRIES: tl.constexpr,
    ENTRIES_PADDED: tl.constexpr, HEAD_BLOCK: tl.constexpr, TILE: tl.constexpr, ROUND: tl.constexpr,
    ASSEMBLY: tl.constexpr,
):  # fmt: skip
    """Grid: halves, blocks of heads, rows: neighbours in time share a row's keys in the cache."""
    half = tl.program_id(0)
    row = tl.program_id(2).to(tl.int64)
    head = tl.program_id(1) * HEAD_BLOCK + tl.arange(0, HEAD_BLOCK)
    width: tl.constexpr = DIM // 2
    own = half * width + tl.arange(0, width)
    other = (1 - half) * width + tl.arange(0, width)
    cells = row * (HEADS * DIM) + head[:, None] * DIM
    inside = head < HEADS
    query = tl.load(turned_pointer + cells + own[None, :], mask=inside[:, None], other=0.0)
    other_query = tl.load(turned_pointer + cells + other[None, :], mask=inside[:, None], other=0.0)
    value = tl.zeros([HEAD_BLOCK, width], tl.float32)
    top = tl.full([HEAD_BLOCK], LOWEST, tl.float32)
    total = tl.zeros([HEAD_BLOCK], tl.float32)
    value, top, total = _over_tiles(
        value, top, total, query, other_query, window_pointer, window_places_pointer + row * WINDOW,
        (WINDOW + TILE - 1) // TILE, own, other, scale, WINDOW, DIM, TILE, ROUND, ASSEMBLY,
    )  # fmt: skip
    if ENTRIES > 0:
        places = entry_places_pointer + row * ENTRIES
        tiles = chosen_tiles(places, ENTRIES, ENTRIES_PADDED, TILE)
        value, top, total = _over_tiles(
            value, top, total, query, other_query, entry_pointer, places, tiles, own, other, scale,
            ENTRIES, DIM, TILE, ROUND, ASSEMBLY,
        )  # fmt: skip
    sink = tl.load(sink_pointer + head, mask=inside, other=0.0).to(tl.float32)
    shares = value * final_factor(top, total, sink)[:, None]
    tl.store(
        out_pointer + cells + own[None, :], shares.to(out_pointer.dtype.element_ty), mask=inside[:, None]
    )
    if half == 1:
        turn_back(out_pointer + row * (HEADS * DIM), turns_pointer + row * ROTARY, head, HEADS, DIM, ROTARY)
