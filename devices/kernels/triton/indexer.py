"""Which entries rows attend to: scores, then the exact best of them. Twin: `reference.indexer`.

Scores of all rows at once would be gigabytes for a long prompt over a long context, so rows go through in
pieces of a bounded size. Which piece a row is in changes nothing of its result.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
from torch import Tensor

from ..reference import indexer as reference
from ..reference.indexer import Candidates, ChosenEntries, EntryView, IndexQuery
from .forms import FORM
from .index_scores import score_blocks, score_entries
from .launching import INTERPRETED, power_of_two
from .selecting import BLOCKS, ENTRIES, LISTED, list_visible, select_best

SCORES_AT_A_TIME = 1 << 26
"""Scores kept at a time: 256 MiB."""

CHUNK = 4096
"""Items that one program of a selection holds."""

PROGRAMS = 528
"""About as many programs as keep a large card busy, four for each of its multiprocessors."""


def visible_entries(view: EntryView) -> ChosenEntries:
    """See the twin; int32."""
    rows, width = view.visible.shape[0], view.available
    entries, places = torch.empty(2, rows, width, dtype=torch.int32, device=view.visible.device).unbind()
    if rows and width:
        tile = min(power_of_two(width), 1024)
        list_visible[(rows, triton.cdiv(width, tile))](
            view.visible, view.rows.sequence, view.block_table, entries, places, view.block_table.stride(0),
            width, TILE=tile, PER_BLOCK=view.per_block, num_warps=1 if tile <= 128 else 4,
        )  # fmt: skip
    return ChosenEntries(entries, places, None)


def choose_entries(
    query: IndexQuery, keys_blocks_entries_dim: Tensor, view: EntryView, count: int, candidates: Candidates
) -> ChosenEntries:
    """See the twin; int32."""
    rows, _, dim = query.query_rows_heads_dim.shape
    if dim & (dim - 1) or dim < 32 or candidates.size & (candidates.size - 1):
        return reference.choose_entries(query, keys_blocks_entries_dim, view, count, candidates)
    device = query.query_rows_heads_dim.device
    entries, places = torch.empty(2, rows, count, dtype=torch.int32, device=device).unbind()
    blocks = None
    if candidates.publish:
        blocks = torch.empty(rows, candidates.most, dtype=torch.int32, device=device)
    if rows == 0:
        return ChosenEntries(entries, places, blocks)
    listed = candidates.chosen
    listing = _Listing(ENTRIES.value, candidates.size, 1, None)
    width = view.available
    if listed is not None:
        listing = _Listing(LISTED.value, candidates.size, listed.shape[1], listed.contiguous())
        width = listed.shape[1] * candidates.size
    piece = max(1, min(rows, SCORES_AT_A_TIME // max(width, 1)))
    for first in range(0, rows, piece):
        end = min(first + piece, rows)
        scores = torch.empty(end - first, width, dtype=torch.float32, device=device)
        _score(query, keys_blocks_entries_dim, view, listing, scores, first, end)
        if blocks is not None:
            _select_blocks(scores, view, candidates, blocks, first)
        _select(scores, view, listing, entries, places, first, count)
    return ChosenEntries(entries, places, blocks)


class _Listing(NamedTuple):
    """What the items of a selection are: entries, blocks of entries, or places of a row's list of blocks."""

    mode: int
    size: int  # entries of a block
    candidates: int  # blocks of a list
    chosen: Tensor | None


def _score(
    query: IndexQuery,
    keys: Tensor,
    view: EntryView,
    listing: _Listing,
    scores: Tensor,
    first: int,
    end: int,
) -> None:
    heads, dim = query.query_rows_heads_dim.shape[1:]
    listed = listing.chosen is not None
    longest = 1 if listed else view.rows.tiles.longest
    height = 1 if longest == 1 else 2 if longest <= 8 else 4
    padded = max(power_of_two(heads), 16 // height)  # the matrix units take no fewer than 16 lines
    groups = triton.cdiv(end - first, height)
    tile = min(64, view.per_block)
    splits = max(1, min(PROGRAMS // groups, triton.cdiv(scores.shape[1], tile)))
    score_entries[(groups, splits)](
        query.query_rows_heads_dim.contiguous(), query.turns_rows_dim,
        query.head_weights_rows_heads.contiguous(), keys, view.rows.sequence, view.visible, view.block_table,
        listing.chosen if listed else view.visible, scores, first, end, view.block_table.stride(0),
        scores.shape[1], query.head_scale, HEADS=heads, HEADS_PADDED=padded, DIM=dim,
        ROTARY=query.turns_rows_dim.shape[1], FORM=FORM[query.form], NARROW=query.narrow,
        PER_BLOCK=view.per_block, ROWS=height, TILE=tile,
        CANDIDATES=listing.candidates if listed else 0, SIZE=listing.size, ASSEMBLY=not INTERPRETED,
        num_warps=4 if padded * height < 128 else 8, num_stages=3,
    )  # fmt: skip


def _select_blocks(
    scores: Tensor, view: EntryView, candidates: Candidates, chosen: Tensor, first: int
) -> None:
    rows, width = scores.shape
    blocks = triton.cdiv(width, candidates.size)
    best = scores.new_empty(rows, blocks)
    tile = min(256, power_of_two(blocks))
    score_blocks[(rows, triton.cdiv(blocks, tile))](
        scores, view.visible, best, first, width, blocks, SIZE=candidates.size,
        SIZE_PADDED=power_of_two(candidates.size), TILE=tile, num_warps=4,
    )  # fmt: skip
    listing = _Listing(BLOCKS.value, candidates.size, 1, None)
    _select(best, view, listing, chosen, chosen, first, candidates.most)


def _select(
    scores: Tensor,
    view: EntryView,
    listing: _Listing,
    entries: Tensor,
    places: Tensor,
    first: int,
    count: int,
) -> None:
    """The best `count` items of each row; level by level until one chunk holds what is left."""
    rows, width = scores.shape
    chunk = min(max(CHUNK, 4 * power_of_two(count)), max(power_of_two(width), 16))
    chosen = listing.chosen if listing.chosen is not None else view.visible
    keys = numbers = next_keys = next_numbers = entries
    level, last = 0, False
    while not last:
        parts = triton.cdiv(width, chunk)
        last = parts <= 1
        if not last:
            next_keys, next_numbers = torch.empty(
                2, rows, parts * count, dtype=torch.int32, device=scores.device
            ).unbind()
        select_best[(rows, max(parts, 1))](
            scores, keys, numbers, next_keys, next_numbers, view.visible, view.rows.sequence,
            view.block_table, chosen, entries, places, first, width, parts * count,
            view.block_table.stride(0), level, int(last), COUNT=count, COUNT_PADDED=power_of_two(count),
            CHUNK=chunk, MODE=listing.mode, SIZE=listing.size, CANDIDATES=listing.candidates,
            PER_BLOCK=view.per_block, num_warps=_warps(chunk),
        )  # fmt: skip
        keys, numbers, width, level = next_keys, next_numbers, parts * count, level + 1


def _warps(chunk: int) -> int:
    return 1 if chunk <= 512 else 4 if chunk <= 2048 else 8
