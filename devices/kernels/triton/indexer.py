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
from .index_scores import score_entries
from .launching import INTERPRETED, power_of_two
from .selecting import ALIGNED, list_visible, select_best

SCORES_AT_A_TIME = 1 << 26
"""Scores kept at a time: 128 MiB of ranks, or 256."""

DIRECT = 4096
"""Items up to which a selection looks at all of them, without groups."""

MOST = 1 << 15
"""Items that a selection can count."""

TILE = 64
"""Entries that are scored at a time, and thereby the most of a group."""

STAGES = 4
"""Tiles under way."""

PER_THREAD = 8
"""Items of a selection that one thread holds."""

PROGRAMS = 264
"""As many programs of the scores as a large card holds at a time, two for each of its multiprocessors. More
would prepare the same queries more often."""


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
    listed = candidates.chosen
    width = view.available
    if listed is not None:
        width = listed.shape[1] * candidates.size
        candidates = candidates._replace(chosen=listed.contiguous(), publish=False)
    kept = _Kept.of(width, count, candidates, min(TILE, view.per_block))
    if dim & (dim - 1) or dim < 32 or candidates.size & (candidates.size - 1) or not kept.possible:
        return reference.choose_entries(query, keys_blocks_entries_dim, view, count, candidates)
    device = query.query_rows_heads_dim.device
    entries, places = torch.empty(2, rows, count, dtype=torch.int32, device=device).unbind()
    blocks = None
    if candidates.publish:
        blocks = torch.empty(rows, candidates.most, dtype=torch.int32, device=device)
    short = query.query_rows_heads_dim.dtype == torch.bfloat16  # scores are rounded to the query's type
    form = torch.uint16 if short else torch.uint32
    piece = max(1, min(rows, SCORES_AT_A_TIME // max(width, 1)))
    for first in range(0, rows, piece):
        end = min(first + piece, rows)
        ranks = torch.empty(end - first, kept.stride * ALIGNED.value, dtype=form, device=device)
        _score(query, keys_blocks_entries_dim, view, candidates, kept, ranks, first, end)
        _select(ranks, view, candidates, kept, ChosenEntries(entries, places, blocks), first)
    return ChosenEntries(entries, places, blocks)


class _Kept(NamedTuple):
    """What lies in a row of ranks: those of entries, of blocks of them, of groups of them."""

    width: int  # entries, or places of a list of blocks
    blocks: int
    group: int  # entries of a group; 1: there are none
    blocks_at: int  # where those begin, in units of `ALIGNED`
    groups_at: int
    stride: int
    possible: bool  # the kernels can do it

    @classmethod
    def of(cls, width: int, count: int, candidates: Candidates, tile: int) -> _Kept:
        """Groups as large as make the choice of groups and that among their entries about equally long."""
        group = 1
        while width > DIRECT and 2 * group <= min(tile, MOST // count) and group * group * count < width:
            group *= 2
        blocks = triton.cdiv(width, candidates.size) if candidates.publish else 0
        blocks_at = triton.cdiv(width, ALIGNED.value)
        groups_at = blocks_at + triton.cdiv(blocks, ALIGNED.value)
        groups = triton.cdiv(width, group) if group > 1 else 0
        stride = groups_at + triton.cdiv(groups, ALIGNED.value)
        possible = width <= MOST * group and (blocks == 0 or candidates.size <= tile)
        return cls(width, blocks, group, blocks_at, groups_at, stride, possible)


def _score(
    query: IndexQuery,
    keys: Tensor,
    view: EntryView,
    candidates: Candidates,
    kept: _Kept,
    ranks: Tensor,
    first: int,
    end: int,
) -> None:
    heads, dim = query.query_rows_heads_dim.shape[1:]
    chosen = candidates.chosen
    longest = 1 if chosen is not None else view.rows.tiles.longest
    height = 1 if longest == 1 else 2 if longest <= 8 else 4
    padded = max(power_of_two(heads), 16 // height)  # the matrix units take no fewer than 16 lines
    groups = triton.cdiv(end - first, height)
    tile = min(TILE, view.per_block)
    splits = max(1, min(PROGRAMS // groups, triton.cdiv(kept.width, tile)))
    # More registers than 128 a thread would leave a multiprocessor one program of eight warps.
    score_entries[(groups, splits)](
        query.query_rows_heads_dim.contiguous(), query.turns_rows_dim,
        query.head_weights_rows_heads.contiguous(), keys, view.rows.sequence, view.visible, view.block_table,
        view.visible if chosen is None else chosen, ranks, first, end, view.block_table.stride(0),
        kept.stride, kept.blocks_at, kept.groups_at, query.head_scale, HEADS=heads,
        HEADS_PADDED=padded, DIM=dim, ROTARY=query.turns_rows_dim.shape[1], FORM=FORM[query.form],
        NARROW=query.narrow, PER_BLOCK=view.per_block, ROWS=height, TILE=tile,
        CANDIDATES=0 if chosen is None else chosen.shape[1], SIZE=candidates.size, GROUP=kept.group,
        BLOCK=candidates.size if kept.blocks else 0, ASSEMBLY=not INTERPRETED,
        num_warps=4 if padded * height < 128 else 8, num_stages=STAGES, maxnreg=128,
    )  # fmt: skip


def _select(
    ranks: Tensor, view: EntryView, candidates: Candidates, kept: _Kept, out: ChosenEntries, first: int
) -> None:
    """The best of each row from row `first` on; blocks side by side with entries."""
    count, chosen, blocks = out.entries.shape[1], candidates.chosen, out.candidate_blocks
    group = kept.group // candidates.size if kept.blocks > 4 * DIRECT else 1
    many = _items(kept.width, count, kept.group)
    many_blocks = 0 if blocks is None else _items(kept.blocks, candidates.most, max(group, 1))
    threads = max(_threads(many), _threads(many_blocks))
    select_best[(ranks.shape[0], 1 if blocks is None else 2)](
        ranks, view.visible, view.rows.sequence, view.block_table, view.visible if chosen is None else chosen,
        out.entries, out.places, out.entries if blocks is None else blocks, first, kept.stride,
        kept.blocks_at, kept.groups_at, view.block_table.stride(0), COUNT=count,
        COUNT_BLOCKS=0 if blocks is None else candidates.most, THREADS=threads,
        DEPTH=max(many // threads, 1), DEPTH_BLOCKS=max(many_blocks // threads, 1), GROUP=kept.group,
        GROUP_BLOCKS=max(group, 1), SIZE=candidates.size, CANDIDATES=0 if chosen is None else chosen.shape[1],
        PER_BLOCK=view.per_block, num_warps=threads // 32,
    )  # fmt: skip


def _items(width: int, count: int, group: int) -> int:
    """The longer of two lists, that of groups and that of the items of those chosen: a power of two."""
    return power_of_two(width if group == 1 else max(triton.cdiv(width, group), count * group))


def _threads(items: int) -> int:
    return max(32, min(1024, items // PER_THREAD))
