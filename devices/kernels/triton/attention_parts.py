"""What kernels of attention share: turning queries, walking over keys, turning back, the last factor."""

from __future__ import annotations

import triton
import triton.language as tl

from .codes import wide_dot

LOWEST = tl.constexpr(-3.0e38)
"""A running maximum before the first key."""


@triton.jit
def turned_queries(
    query_pointer, turns_pointer, head, column, HEADS: tl.constexpr, DIM: tl.constexpr, ROTARY: tl.constexpr
):
    """Queries `[heads, dim]` of one row at their position; every element meets its pair's other one."""
    cells = query_pointer + head[:, None] * DIM
    inside = (head < HEADS)[:, None] & (column >= 0)[None, :]
    place = column - (DIM - ROTARY)
    turning = place >= 0
    query = tl.load(cells + column[None, :], mask=inside, other=0.0)
    other = tl.load(cells + (column ^ 1)[None, :], mask=inside & turning[None, :], other=0.0)
    cos = tl.load(turns_pointer + (place - (place & 1)), mask=turning, other=1.0)
    sin = tl.load(turns_pointer + (place | 1), mask=turning, other=0.0)
    sin = tl.where((place & 1) == 0, -sin, sin)
    turned = query.to(tl.float32) * cos[None, :] + other.to(tl.float32) * sin[None, :]
    return turned.to(query_pointer.dtype.element_ty)


@triton.jit
def turn_queries(
    query_pointer, turns_pointer, out_pointer, HEADS: tl.constexpr, DIM: tl.constexpr, ROTARY: tl.constexpr,
    HEAD_BLOCK: tl.constexpr,
):  # fmt: skip
    """Queries at their position, for programs that share a row's. Grid: rows, blocks of heads."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEAD_BLOCK + tl.arange(0, HEAD_BLOCK)
    column = tl.arange(0, DIM)
    first = row * (HEADS * DIM)
    turned = turned_queries(
        query_pointer + first, turns_pointer + row * ROTARY, head, column, HEADS, DIM, ROTARY
    )
    cells = out_pointer + first + head[:, None] * DIM + column[None, :]
    tl.store(cells, turned, mask=(head < HEADS)[:, None])


@triton.jit
def first_places(places_pointer, keys_there, TILE: tl.constexpr):
    """Of a place list: what is beyond it, or nowhere, is -1."""
    number = tl.arange(0, TILE)
    return tl.load(places_pointer + number, mask=number < keys_there, other=-1)


@triton.jit
def chosen_tiles(places_pointer, ENTRIES: tl.constexpr, ENTRIES_PADDED: tl.constexpr, TILE: tl.constexpr):
    """How many tiles the chosen entries of a row fill: they come first in its list."""
    number = tl.arange(0, ENTRIES_PADDED)
    chosen = tl.load(places_pointer + number, mask=number < ENTRIES, other=-1) >= 0
    return (tl.sum(chosen.to(tl.int32), axis=0) + TILE - 1) // TILE


@triton.jit
def weigh(scores, seen, scale, value, top, total):
    """Take a tile's scores into a running softmax: value faded, maximum, total; and weights of the keys."""
    scores = tl.where(seen[None, :], scores * scale, -float("inf"))
    new_top = tl.maximum(top, tl.max(scores, axis=1))
    fade = tl.exp(top - new_top)
    weights = tl.exp(scores - new_top[:, None])
    total = total * fade + tl.sum(weights, axis=1)
    return value * fade[:, None], new_top, total, weights


@triton.jit
def over_tiles(
    value, top, total, query, pool_pointer, place, places_pointer, tiles, keys_there, scale,
    DIM: tl.constexpr, TILE: tl.constexpr, ROUND: tl.constexpr, ASSEMBLY: tl.constexpr,
):  # fmt: skip
    """Take the keys of the first `tiles` tiles of a place list, of which `place` is the first, into the
    running result.
    """
    column = tl.arange(0, DIM)
    # Places are fetched a tile ahead: keys can then be on their way while the tile before is multiplied.
    for tile in range(tiles):
        number = (tile + 1) * TILE + tl.arange(0, TILE)
        next_place = tl.load(places_pointer + number, mask=number < keys_there, other=-1)
        seen = place >= 0
        cells = pool_pointer + place.to(tl.int64)[:, None] * DIM + column[None, :]
        keys = tl.load(cells, mask=seen[:, None], other=0.0)
        scores = wide_dot(query, tl.trans(keys), tl.zeros([query.shape[0], TILE], tl.float32), ASSEMBLY)
        value, top, total, weights = weigh(scores, seen, scale, value, top, total)
        rounded = weights.to(keys.dtype)
        value = wide_dot(rounded, keys, value, ASSEMBLY)
        if not ROUND and keys.dtype != tl.float32:
            rest = (weights - rounded.to(tl.float32)).to(keys.dtype)
            value = wide_dot(rest, keys, value, ASSEMBLY)
        place = next_place
    return value, top, total


@triton.jit
def parked(turned, cells, inside):
    """Turned queries, written to where the result will be and read again.

    From memory they go to the matrix units as they are; computed ones would be moved between threads for
    every tile.
    """
    tl.store(cells, turned, mask=inside)
    tl.debug_barrier()
    return tl.load(cells, mask=inside, other=0.0)


@triton.jit
def turn_back(out_pointer, turns_pointer, head, HEADS: tl.constexpr, DIM: tl.constexpr, ROTARY: tl.constexpr):
    """Turn what this program has written by minus the row's position."""
    tl.debug_barrier()  # other threads of the program wrote the pair's halves
    pair = tl.arange(0, ROTARY // 2)
    cells = out_pointer + head[:, None] * DIM + (DIM - ROTARY) + 2 * pair[None, :]
    inside = (head < HEADS)[:, None] & (pair >= 0)[None, :]
    even = tl.load(cells, mask=inside, other=0.0).to(tl.float32)
    odd = tl.load(cells + 1, mask=inside, other=0.0).to(tl.float32)
    cos = tl.load(turns_pointer + 2 * pair)[None, :]
    sin = tl.load(turns_pointer + 2 * pair + 1)[None, :]
    tl.debug_barrier()
    tl.store(cells, (even * cos + odd * sin).to(out_pointer.dtype.element_ty), mask=inside)
    tl.store(cells + 1, (odd * cos - even * sin).to(out_pointer.dtype.element_ty), mask=inside)


@triton.jit
def final_factor(top, total, sink):
    """What the sum of values is multiplied with; the sink joins the denominator last. Relative to the larger
    of both maxima neither term overflows, and a row without keys gives zero."""
    peak = tl.maximum(top, sink)
    fade = tl.exp(top - peak)
    total = total * fade + tl.exp(sink - peak)
    return fade / tl.maximum(total, 1.1754943508222875e-38)
