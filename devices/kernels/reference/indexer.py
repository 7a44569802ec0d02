"""The lightning indexer: which compressed entries a query may attend to (model_spec 2.7).

Scores are compared, never added up, so what matters is their order, and in it the ties: an entry no head
likes scores exactly zero, and with few heads a large share of the entries does. Equal scores go to the lower
entry. `torch.topk` promises nothing of the kind, so ties are decided inside the keys that are compared: the
score's bits, made monotonic, above the reversed entry number. One selection over unique 64-bit keys is then
both exact and as cheap as a plain one. Float64 scores have no room for that and take a stable sort; only
tests use them.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .quantization import Format, round_trip
from .rotary import rotate_
from .rows import Rows, entry_slots


def index_scores(
    query_tiles_rows_heads_dim: Tensor, keys_tiles_entries_dim: Tensor, head_weights: Tensor, *, narrow: bool
) -> Tensor:
    """`sum_h weight[h] * relu(query[h] . key)` for every row of a tile and every entry of its sequence.

    Returns `[tiles, rows, entries]`. With `narrow`, dots, products and sums are each rounded to the query
    type, as the publisher's reference does; otherwise everything stays in the query type.
    """
    tiles, rows, heads, dim = query_tiles_rows_heads_dim.shape
    dots = torch.bmm(query_tiles_rows_heads_dim.reshape(tiles, rows * heads, dim), keys_tiles_entries_dim.mT)
    liked = dots.relu_().view(tiles, rows, heads, -1)
    if narrow:
        return (liked * head_weights.unsqueeze(-1)).sum(2)
    return torch.matmul(head_weights.unsqueeze(2), liked).squeeze(2)


def select_topk(scores_rows_entries: Tensor, count: int) -> Tensor:
    """The `count` best entries of each row in ascending order, -1 padded: `[rows, count]` int64.

    Entries at -inf are never selected; ties go to the lower entry; -0 equals +0.
    """
    entries = scores_rows_entries.shape[1]
    taken = min(count, entries)
    if scores_rows_entries.dtype == torch.float64:
        best, chosen = _topk_by_sort(scores_rows_entries, taken)
        missing = best == -torch.inf
    else:
        chosen, missing = _topk_by_key(scores_rows_entries, taken)
    chosen = chosen.masked_fill(missing, entries).sort(dim=-1).values
    chosen = chosen.masked_fill(chosen == entries, -1)
    return chosen if taken == count else torch.nn.functional.pad(chosen, (0, count - taken), value=-1)


def _topk_by_sort(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    ordered, order = (scores + 0.0).sort(dim=-1, descending=True, stable=True)
    return ordered[:, :count], order[:, :count]


def _topk_by_key(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Keys: monotonic score bits times 2^32, plus the distance of the entry from the last one."""
    entries = scores.shape[-1]
    bits = (scores.to(torch.float32) + 0.0).view(torch.int32)
    monotonic = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(torch.int64)
    distance = torch.arange(entries - 1, -1, -1, device=scores.device)
    best = (monotonic * 2**32 + distance).topk(count, dim=-1, sorted=False).values
    minus_infinity = -(0x7F800000 + 1)
    score_part = best >> 32
    return entries - 1 - (best & 0xFFFFFFFF), score_part <= minus_infinity


def select_blocks(scores_rows_entries: Tensor, visible_rows: Tensor, block: int, count: int) -> Tensor:
    """Candidate blocks of each row: the `count` blocks with the best visible entry, ascending, -1 padded.

    The block of the newest visible entry always is one. `scores` are -inf beyond `visible`.
    """
    rows, entries = scores_rows_entries.shape
    blocks = -(-entries // block)
    padded = torch.nn.functional.pad(scores_rows_entries, (0, blocks * block - entries), value=-torch.inf)
    best = padded.view(rows, blocks, block).amax(-1)
    newest = ((visible_rows - 1) // block).unsqueeze(1)
    numbers = torch.arange(blocks, device=best.device)
    best = best.masked_fill(numbers == newest, torch.inf)
    # A row that sees nothing has no newest block: (0 - 1) // block is -1, which matches no number.
    return select_topk(best, count)


class EntryView(NamedTuple):
    """The compressed entries that the rows of a step may look at."""

    rows: Rows
    block_table: Tensor  # [sequences, blocks]
    visible: Tensor  # [rows], entries 0..visible-1 are in the row's past
    per_block: int

    @property
    def available(self) -> int:
        """Entries that fit the table, visible or not."""
        return self.block_table.shape[1] * self.per_block

    def slots(self, entries_rows_count: Tensor) -> Tensor:
        """Pool slots of entry numbers; -1 stays -1."""
        return entry_slots(entries_rows_count, self.rows.sequence, self.block_table, self.per_block)


class Candidates(NamedTuple):
    """Blocks of entries that later index sources restrict themselves to (model_spec 2.7)."""

    size: int  # entries of a block
    most: int  # blocks of a row
    chosen: Tensor | None  # [rows, blocks] ascending, -1 padded: only these; None: all entries
    publish: bool  # return the best blocks of these scores


class IndexQuery(NamedTuple):
    """What the rows of a step look for."""

    query_rows_heads_dim: Tensor  # not rotated yet; may be overwritten
    turns_rows_dim: Tensor
    head_weights_rows_heads: Tensor
    head_scale: float
    form: Format  # of queries; keys are stored in it already
    narrow: bool  # see `index_scores`


class ChosenEntries(NamedTuple):
    """A choice of entries, by number for people and by place for attention."""

    entries: Tensor  # [rows, count or fewer], ascending, -1 where none
    places: Tensor  # the same as slots of the entry pool
    candidate_blocks: Tensor | None  # [rows, blocks], where they were to be published


def visible_entries(view: EntryView) -> ChosenEntries:
    """Every visible entry of each row: the choice while they are no more than the top-k."""
    numbers = torch.arange(view.available, device=view.visible.device)
    entries = torch.where(numbers < view.visible.unsqueeze(1), numbers, -1)
    return ChosenEntries(entries, view.slots(entries), None)


def choose_entries(
    query: IndexQuery, keys_blocks_entries_dim: Tensor, view: EntryView, count: int, candidates: Candidates
) -> ChosenEntries:
    """The `count` best visible entries of each row; ties go to the lower entry."""
    turned = rotate_(query.query_rows_heads_dim, query.turns_rows_dim.unsqueeze(1))
    turned = round_trip(turned, query.form)
    weights = query.head_weights_rows_heads * query.head_scale
    if candidates.chosen is not None:
        entries = _among_candidates(
            turned, weights, keys_blocks_entries_dim, view, count, candidates, query.narrow
        )
        return ChosenEntries(entries, view.slots(entries), None)
    scores = _all_scores(turned, weights, keys_blocks_entries_dim, view, query.narrow)
    blocks = None
    if candidates.publish:
        blocks = select_blocks(scores, view.visible, candidates.size, candidates.most)
    entries = select_topk(scores, count)
    return ChosenEntries(entries, view.slots(entries), blocks)


def _all_scores(query: Tensor, weights: Tensor, keys_blocks: Tensor, view: EntryView, narrow: bool) -> Tensor:
    """Scores of every entry of a row's sequence: `[rows, entries]`, -inf where not visible."""
    rows = view.rows
    members = rows.tile_members
    blocks = view.block_table.index_select(0, rows.tiles.sequence)
    keys = _take(keys_blocks, blocks).flatten(1, 2)
    scores = index_scores(_take(query, members), keys, _take(weights, members), narrow=narrow)
    scores = scores.flatten(0, 1).index_select(0, rows.tile_places)
    entry = torch.arange(scores.shape[1], device=scores.device)
    return scores.masked_fill_(entry >= view.visible.unsqueeze(1), -torch.inf)


def _among_candidates(
    query: Tensor,
    weights: Tensor,
    keys_blocks: Tensor,
    view: EntryView,
    count: int,
    candidates: Candidates,
    narrow: bool,
) -> Tensor:
    """The top-k among candidate blocks: a row gathers only their keys, whatever the context length."""
    chosen = candidates.chosen
    assert chosen is not None
    within = torch.arange(candidates.size, device=chosen.device)
    entries = (chosen.unsqueeze(-1) * candidates.size + within).flatten(1)
    hidden = (entries < 0) | (entries >= view.visible.unsqueeze(1))
    keys = _take(keys_blocks.flatten(0, 1), view.slots(entries.masked_fill(hidden, 0)))
    scores = index_scores(query.unsqueeze(1), keys, weights.unsqueeze(1), narrow=narrow)
    best = select_topk(scores.squeeze(1).masked_fill_(hidden, -torch.inf), count)
    return entries.gather(1, best.clamp(min=0)).masked_fill_(best < 0, -1)


def _take(source: Tensor, index: Tensor) -> Tensor:
    """`source[index]` for an index of several dimensions. Indexing copies such rows element by element on a
    CPU; selecting copies them whole, four times as fast.
    """
    return source.index_select(0, index.flatten()).view(*index.shape, *source.shape[1:])
