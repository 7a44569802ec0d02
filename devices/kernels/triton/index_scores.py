"""Scores of compressed entries: one dot product per head and entry, rectified, weighted and summed.

A program takes some rows of queries and a share of the entries. It turns and rounds its queries once, then
walks over tiles of keys in their pages: the page of a tile is looked up, the tile is contiguous. Consecutive
rows of one sequence are scored together, so prompt rows share the reading of keys. How far a program walks
follows the visible entries, which the device knows, not the width of the block table.

The scores of a later layer are restricted to candidate blocks: there a row has a list of blocks, and the
"entries" scored are places of that list.

What is left behind are ranks (see `selecting`): of entries, and the best of groups of them, by which the
selection finds its way.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .codes import wide_dot
from .forms import narrowed, round_pairs
from .selecting import ALIGNED, as_rank


@triton.jit
def _pairs_of(vectors):
    """Even and odd elements of `[rows, heads, DIM]`, in float32."""
    rows: tl.constexpr = vectors.shape[0]
    heads: tl.constexpr = vectors.shape[1]
    even, odd = tl.split(vectors.reshape(rows, heads, vectors.shape[2] // 2, 2))
    return even.to(tl.float32), odd.to(tl.float32)


@triton.jit
def index_queries(
    query_pointer, turns_pointer, row, exists, HEADS: tl.constexpr, HEADS_PADDED: tl.constexpr,
    DIM: tl.constexpr, ROTARY: tl.constexpr, FORM: tl.constexpr,
):  # fmt: skip
    """Queries `[rows * HEADS_PADDED, DIM]` of some rows that may exist, turned and rounded."""
    lines: tl.constexpr = row.shape[0] * HEADS_PADDED
    head, column = tl.arange(0, HEADS_PADDED)[None, :, None], tl.arange(0, DIM)[None, None, :]
    inside = exists[:, None, None] & (head < HEADS)
    cells = query_pointer + (row[:, None, None] * HEADS + head) * DIM + column
    even, odd = _pairs_of(tl.load(cells, mask=inside, other=0.0))
    place = column - (DIM - ROTARY)
    turning = exists[:, None, None] & (place >= 0)
    turns = tl.load(turns_pointer + row[:, None, None] * ROTARY + place, mask=turning, other=0.0)
    cos, sin = _pairs_of(turns)
    turns_at_all = (tl.arange(0, DIM // 2) >= (DIM - ROTARY) // 2)[None, None, :]
    cos = tl.where(turns_at_all, cos, 1.0)
    turned_even = narrowed(even * cos - odd * sin, query_pointer)
    turned_odd = narrowed(even * sin + odd * cos, query_pointer)
    flat: tl.constexpr = lines * (DIM // 2)
    a, b = round_pairs(turned_even.reshape(flat), turned_odd.reshape(flat), FORM)
    query = tl.interleave(a.reshape(lines, DIM // 2), b.reshape(lines, DIM // 2))
    return query.to(query_pointer.dtype.element_ty)


@triton.jit
def _weighted(
    query, keys, weights, like_pointer, ROWS: tl.constexpr, NARROW: tl.constexpr, ASSEMBLY: tl.constexpr
):
    """Scores `[tile, ROWS]`; rounded where the twin's tensors are, sums in float32.

    Keys are the rows of the product, so the heads of an entry lie in one group of threads and are summed
    there.
    """
    lines: tl.constexpr = query.shape[0]
    tile: tl.constexpr = keys.shape[0]
    dots = wide_dot(keys, tl.trans(query), tl.zeros([tile, lines], tl.float32), ASSEMBLY)
    liked = tl.maximum(narrowed(dots, like_pointer), 0.0) * weights[None, :]
    if NARROW:
        liked = narrowed(liked, like_pointer)
    scores = tl.sum(liked.reshape(tile, ROWS, lines // ROWS), axis=2)
    return narrowed(scores, like_pointer)


@triton.jit
def _listed(
    place, chosen, length, seen, table_pointer, CANDIDATES: tl.constexpr, SIZE: tl.constexpr,
    PER_BLOCK: tl.constexpr,
):  # fmt: skip
    """Slots of places of a list of blocks, and whether there is a visible entry in them."""
    block = tl.load(chosen + place // SIZE, mask=place < length, other=-1).to(tl.int32)
    entry = block * SIZE + place % SIZE
    shown = (block >= 0) & (entry < seen)
    page = tl.load(table_pointer + entry // PER_BLOCK, mask=shown, other=0)
    return page.to(tl.int64) * PER_BLOCK + entry % PER_BLOCK, shown


@triton.jit
def _store_best(ranks, begin, length, pointer, SIZE: tl.constexpr):
    """The best of every SIZE ranks `[tile, ROWS]` from entry `begin` on; pointers and lengths are of rows."""
    tile: tl.constexpr = ranks.shape[0]
    best = tl.max(ranks.reshape(tile // SIZE, SIZE, ranks.shape[1]), axis=1)
    group = begin // SIZE + tl.arange(0, tile // SIZE)
    exists = group[:, None] * SIZE < length[None, :]
    tl.store(pointer[None, :] + group[:, None], best.to(pointer.dtype.element_ty), mask=exists)


@triton.jit
def _store_ranks(
    scores, begin, length, ranks_pointer, blocks_at, groups_at, GROUP: tl.constexpr, BLOCK: tl.constexpr
):
    """Ranks `[tile, ROWS]` of entries from `begin` on and of what they are grouped to, below `length`."""
    entry = begin + tl.arange(0, scores.shape[0])
    exists = entry[:, None] < length[None, :]
    ranks = tl.where(exists, as_rank(scores, ranks_pointer), 0)
    tl.store(ranks_pointer[None, :] + entry[:, None], ranks.to(ranks_pointer.dtype.element_ty), mask=exists)
    if BLOCK > 0:
        _store_best(ranks, begin, length, ranks_pointer + blocks_at * ALIGNED, BLOCK)
    if GROUP > 1:
        _store_best(ranks, begin, length, ranks_pointer + groups_at * ALIGNED, GROUP)


@triton.jit
def _score_visible(
    query, weights, keys_pointer, table_pointer, ranks, blocks_at, groups_at, seen, like_pointer,
    DIM: tl.constexpr, NARROW: tl.constexpr, PER_BLOCK: tl.constexpr, TILE: tl.constexpr, GROUP: tl.constexpr,
    BLOCK: tl.constexpr, ASSEMBLY: tl.constexpr,
):  # fmt: skip
    """A share of the entries of one sequence, of which some rows see as many as `seen` says.

    A page is looked up a tile ahead: keys whose address waits for another load are not fetched early enough.
    """
    column, within = tl.arange(0, DIM), tl.arange(0, TILE)
    share, shares = tl.program_id(1), tl.num_programs(1)
    length = tl.max(seen, axis=0)
    span = tl.cdiv(length, shares * TILE) * TILE
    begin, end = share * span, tl.minimum((share + 1) * span, length)
    page = tl.load(table_pointer + begin // PER_BLOCK, mask=begin < end, other=0).to(tl.int64)
    for tile in range(begin, end, TILE):
        slot = page * PER_BLOCK + tile % PER_BLOCK + within
        keys = tl.load(keys_pointer + slot[:, None] * DIM + column[None, :])
        next_tile = tile + TILE
        page = tl.load(table_pointer + next_tile // PER_BLOCK, mask=next_tile < end, other=0).to(tl.int64)
        found = _weighted(query, keys, weights, like_pointer, seen.shape[0], NARROW, ASSEMBLY)
        _store_ranks(found, tile, seen, ranks, blocks_at, groups_at, GROUP, BLOCK)


@triton.jit
def _score_listed(
    query, weights, keys_pointer, table_pointer, chosen, ranks, groups_at, seen, like_pointer,
    DIM: tl.constexpr, NARROW: tl.constexpr, PER_BLOCK: tl.constexpr, TILE: tl.constexpr,
    CANDIDATES: tl.constexpr, SIZE: tl.constexpr, GROUP: tl.constexpr, ASSEMBLY: tl.constexpr,
):  # fmt: skip
    """A share of the places of one row's list of blocks."""
    share, shares = tl.program_id(1), tl.num_programs(1)
    length = tl.minimum((seen + SIZE - 1) // SIZE, CANDIDATES) * SIZE
    span = tl.cdiv(length, shares * TILE) * TILE
    for begin in range(share * span, tl.minimum((share + 1) * span, length), TILE):
        place = begin + tl.arange(0, TILE)
        slot, shown = _listed(place, chosen, length, seen, table_pointer, CANDIDATES, SIZE, PER_BLOCK)
        cells = keys_pointer + slot[:, None] * DIM + tl.arange(0, DIM)[None, :]
        keys = tl.load(cells, mask=shown[:, None], other=0.0)
        found = _weighted(query, keys, weights, like_pointer, 1, NARROW, ASSEMBLY)
        found = tl.where(shown[:, None], found, -float("inf"))
        _store_ranks(found, begin, tl.arange(0, 1) + length, ranks, 0, groups_at, GROUP, 0)


@triton.jit(do_not_specialize=["first_row", "rows", "table_stride", "stride", "blocks_at", "groups_at"])
def score_entries(
    query_pointer, turns_pointer, weights_pointer, keys_pointer, sequence_pointer, visible_pointer,
    table_pointer, chosen_pointer, ranks_pointer, first_row, rows, table_stride, stride, blocks_at, groups_at,
    head_scale, HEADS: tl.constexpr, HEADS_PADDED: tl.constexpr, DIM: tl.constexpr, ROTARY: tl.constexpr,
    FORM: tl.constexpr, NARROW: tl.constexpr, PER_BLOCK: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr,
    CANDIDATES: tl.constexpr, SIZE: tl.constexpr, GROUP: tl.constexpr, BLOCK: tl.constexpr,
    ASSEMBLY: tl.constexpr,
):  # fmt: skip
    """Grid: groups of rows from `first_row` on, shares of the entries. Ranks are written below each row's
    visible entries only, rows `stride` apart, in units of `ALIGNED`: of entries, from `blocks_at` on of
    blocks of BLOCK entries (0: none), from `groups_at` on of groups of GROUP (1: none). With CANDIDATES
    blocks a row, ROWS is 1.
    """
    begin_row = (first_row + tl.program_id(0) * ROWS).to(tl.int64)
    line = tl.arange(0, ROWS * HEADS_PADDED)
    row, head = begin_row + line // HEADS_PADDED, line % HEADS_PADDED
    inside = (row < rows) & (head < HEADS)
    number = tl.arange(0, ROWS)
    own_row = begin_row + number
    sequence = tl.load(sequence_pointer + own_row, mask=own_row < rows, other=-1)
    visible = tl.load(visible_pointer + own_row, mask=own_row < rows, other=0)
    chosen = chosen_pointer + begin_row * CANDIDATES
    query = index_queries(
        query_pointer, turns_pointer, own_row, own_row < rows, HEADS, HEADS_PADDED, DIM, ROTARY, FORM
    )
    weights = tl.load(weights_pointer + row * HEADS + head, mask=inside, other=0.0).to(tl.float32)
    weights = narrowed(weights * head_scale, query_pointer)
    ranks = ranks_pointer + (own_row - first_row) * stride * ALIGNED
    if CANDIDATES > 0:
        _score_listed(
            query, weights, keys_pointer, table_pointer + tl.max(sequence, axis=0) * table_stride, chosen,
            ranks, groups_at, tl.max(visible, axis=0).to(tl.int32), query_pointer, DIM, NARROW, PER_BLOCK,
            TILE, CANDIDATES, SIZE, GROUP, ASSEMBLY,
        )  # fmt: skip
    else:
        count = tl.minimum(rows - begin_row, ROWS)
        done = begin_row * 0
        while done < count:
            current = tl.load(sequence_pointer + begin_row + done)
            mine = (sequence == current) & (number >= done)
            seen = tl.where(mine, visible, 0)
            _score_visible(
                query, weights, keys_pointer, table_pointer + current * table_stride, ranks, blocks_at,
                groups_at, seen, query_pointer, DIM, NARROW, PER_BLOCK, TILE, GROUP, BLOCK, ASSEMBLY,
            )  # fmt: skip
            done += tl.sum(mine.to(tl.int64), axis=0)
