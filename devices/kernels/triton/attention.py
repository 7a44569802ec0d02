"""Attention over window and chosen entries in one launch: keys are read where they lie. Twin:
`reference.attention.attend`.

A program takes one row and a block of its heads. It turns the queries while it loads them, walks over tiles
of keys by the two place lists (window first, then entries), keeps a running maximum, and turns its result
back. Every key is read once per block of heads and used as key and as value; no gathered copy exists.

Large vectors have kernels of their own where rows are few (`attention_tiles.py`), and where rows and heads
are many (`attention_halves.py`).

Float32 products keep float32 accuracy (`codes.wide_dot`). In bfloat16 the probabilities meet the values
either rounded once, as the publisher's kernel does (`round_probabilities`), or as the sum of two bfloat16
numbers, which keeps float32 accuracy to 2^-16 at the price of a third product.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..reference import attention as reference
from ..reference.attention import KEY_TILE, KeyIndex
from .attention_few import attend_few
from .attention_halves import attend_halves
from .attention_parts import (
    LOWEST,
    chosen_tiles,
    final_factor,
    first_places,
    over_tiles,
    parked,
    turn_back,
    turn_queries,
    turned_queries,
)
from .attention_tiles import attend_tile, join_tiles
from .launching import INTERPRETED, power_of_two


@triton.jit
def _attend(
    query_pointer, turns_pointer, window_pointer, window_places_pointer, entry_pointer, entry_places_pointer,
    sink_pointer, out_pointer, scale,
    HEADS: tl.constexpr, DIM: tl.constexpr, ROTARY: tl.constexpr, WINDOW: tl.constexpr, ENTRIES: tl.constexpr,
    ENTRIES_PADDED: tl.constexpr, HEAD_BLOCK: tl.constexpr, TILE: tl.constexpr, ROUND: tl.constexpr,
    ASSEMBLY: tl.constexpr,
):  # fmt: skip
    """Grid: blocks of heads, rows (neighbours in time share a row's keys in the cache)."""
    head = tl.program_id(0) * HEAD_BLOCK + tl.arange(0, HEAD_BLOCK)
    row = tl.program_id(1).to(tl.int64)
    column = tl.arange(0, DIM)
    turns = turns_pointer + row * ROTARY
    cells = out_pointer + row * (HEADS * DIM) + head[:, None] * DIM + column[None, :]
    turned = turned_queries(query_pointer + row * (HEADS * DIM), turns, head, column, HEADS, DIM, ROTARY)
    query = parked(turned, cells, (head < HEADS)[:, None])
    value = tl.zeros([HEAD_BLOCK, DIM], tl.float32)
    top = tl.full([HEAD_BLOCK], LOWEST, tl.float32)
    total = tl.zeros([HEAD_BLOCK], tl.float32)
    places = window_places_pointer + row * WINDOW
    value, top, total = over_tiles(
        value, top, total, query, window_pointer, first_places(places, WINDOW, TILE), places,
        (WINDOW + TILE - 1) // TILE, WINDOW, scale, DIM, TILE, ROUND, ASSEMBLY,
    )  # fmt: skip
    if ENTRIES > 0:
        places = entry_places_pointer + row * ENTRIES
        tiles = chosen_tiles(places, ENTRIES, ENTRIES_PADDED, TILE)
        value, top, total = over_tiles(
            value, top, total, query, entry_pointer, first_places(places, ENTRIES, TILE), places, tiles,
            ENTRIES, scale, DIM, TILE, ROUND, ASSEMBLY,
        )  # fmt: skip
    inside = head < HEADS
    sink = tl.load(sink_pointer + head, mask=inside, other=0.0).to(tl.float32)
    shares = value * final_factor(top, total, sink)[:, None]
    tl.store(cells, shares.to(out_pointer.dtype.element_ty), mask=inside[:, None])
    turn_back(out_pointer + row * (HEADS * DIM), turns, head, HEADS, DIM, ROTARY)


def attend(
    query_rows_heads_dim: Tensor,
    turns_rows_dim: Tensor,
    window_pool: Tensor,
    window_index: KeyIndex,
    entry_pool: Tensor | None,
    entry_index: KeyIndex | None,
    sink_heads: Tensor,
    scale: float,
    *,
    round_probabilities: bool = False,
) -> Tensor:
    """See the twin. The queries are left as they are."""
    dim = query_rows_heads_dim.shape[2]
    # Large float32 vectors have no registers for three parts of each, and the library does well by them.
    if dim & (dim - 1) or dim < 16 or (dim > 128 and query_rows_heads_dim.element_size() == 4):
        return reference.attend(
            query_rows_heads_dim, turns_rows_dim, window_pool, window_index, entry_pool, entry_index,
            sink_heads, scale, round_probabilities=round_probabilities,
        )  # fmt: skip
    keys = _Keys(
        window_pool, window_index.places.contiguous(), window_pool if entry_pool is None else entry_pool,
        (window_index if entry_index is None else entry_index).places.contiguous(),
        0 if entry_pool is None or entry_index is None else entry_index.places.shape[1],
    )  # fmt: skip
    return _attend_to(
        query_rows_heads_dim.contiguous(), turns_rows_dim, keys, sink_heads, scale, round_probabilities
    )


class _Keys(NamedTuple):
    """Both pools and the places in them; without entries, those of the window stand in and are not read."""

    window_pool: Tensor
    window_places: Tensor
    entry_pool: Tensor
    entry_places: Tensor
    entries: int


def _attend_to(
    query: Tensor, turns: Tensor, keys: _Keys, sink_heads: Tensor, scale: float, rounded: bool
) -> Tensor:
    rows, heads, dim = query.shape
    out = torch.empty_like(query)
    if rows == 0:
        return out
    window, entries, rotary = keys.window_places.shape[1], keys.entries, turns.shape[1]
    fixed = {
        "HEADS": heads, "DIM": dim, "ROTARY": rotary, "WINDOW": window, "ENTRIES": entries,
        "ROUND": rounded, "ASSEMBLY": not INTERPRETED,
    }  # fmt: skip
    few = power_of_two(max(window + entries, 16))
    if few <= (KEY_TILE if rounded else FEW_KEYS) and dim <= 128 and heads <= 16:
        attend_few[(rows,)](
            query, turns, *keys[:4], sink_heads, out, scale, HEADS_PADDED=16, KEYS=few,
            num_warps=4 if few <= 64 else 8, **fixed,
        )  # fmt: skip
        return out
    if rows > FEW_ROWS and heads > 32 and 128 < dim <= 512:
        turned, (tile, stages) = torch.empty_like(query), HALVES
        turn_queries[(rows, triton.cdiv(heads, 16))](
            query, turns, turned, HEADS=heads, DIM=dim, ROTARY=rotary, HEAD_BLOCK=16, num_warps=4,
        )  # fmt: skip
        attend_halves[(2, triton.cdiv(heads, 64), rows)](
            turned, turns, *keys[:4], sink_heads, out, scale, ENTRIES_PADDED=power_of_two(entries),
            HEAD_BLOCK=64, TILE=tile, num_warps=4, num_stages=stages, **fixed,
        )  # fmt: skip
        return out
    if rows <= SHARED_ROWS and dim > 128:
        head_block, tile, warps = TILES
        tiles = triton.cdiv(window, tile) + triton.cdiv(entries, tile)
        parts = _partial_results(query, tiles)
        attend_tile[(triton.cdiv(heads, head_block), tiles, rows)](
            query, turns, *keys[:4], out, *parts, scale, 1, HEAD_BLOCK=head_block, TILE=tile, num_warps=warps,
            num_stages=2, **fixed,
        )  # fmt: skip
        join_tiles[(rows, heads)](
            *parts, sink_heads, turns, out, HEADS=heads, DIM=dim, ROTARY=rotary, TILES=tiles, num_warps=4
        )
        return out
    head_block, tile, warps, stages = _shape(rows, heads, dim, rounded)
    _attend[(triton.cdiv(heads, head_block), rows)](
        query, turns, *keys[:4], sink_heads, out, scale, ENTRIES_PADDED=power_of_two(entries),
        HEAD_BLOCK=head_block, TILE=tile, num_warps=warps, num_stages=stages, **fixed,
    )  # fmt: skip
    return out


def _partial_results(query: Tensor, tiles: int) -> tuple[Tensor, Tensor, Tensor]:
    """Where programs that share a row leave sums of values, maxima and totals."""
    rows, heads, dim = query.shape
    value = torch.empty(rows, tiles, heads, dim, dtype=torch.float32, device=query.device)
    return value, value.new_empty(rows, tiles, heads), value.new_empty(rows, tiles, heads)


FEW_KEYS = 128
"""Up to so many keys of small vectors are one tile."""


def _shape(rows: int, heads: int, dim: int, rounded: bool) -> tuple[int, int, int, int]:
    """Heads and keys of a tile, warps, stages of the pipeline.

    Measured on an H200 (`scripts/gpu/tune_attention.py`): large vectors want few heads a program while rows
    are few, since a tile's latency is what counts then, and all heads once reading keys is what does.
    """
    block = max(16, min(power_of_two(heads), 64))
    if dim <= 128:
        return block, 32, 4, 2
    if rows <= FEW_ROWS:
        return 16, 64, 4, 2
    # The third product of unrounded probabilities has no registers left beside 64 heads.
    return min(block, 64 if rounded else 32), 64, 8, 2


HALVES = 32, 3
"""Keys of a tile and stages of the pipeline, where a program has half of the columns."""

SHARED_ROWS = 16
"""Up to so many rows, every tile of a row's keys has a program of its own."""

TILES = 16, 64, 8
"""Heads and keys of such a program, and its warps."""

FEW_ROWS = 64
"""Up to so many rows, a program takes few heads."""
