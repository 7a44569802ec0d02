"""The lightning indexer: which compressed entries a query may attend to (model_spec 2.7).

Scores are compared, never added up, so what matters is their order, and in it the ties: an entry no head
likes scores exactly zero, and with few heads a large share of the entries does. Equal scores go to the lower
entry. `torch.topk` promises nothing of the kind, so ties are decided inside the keys that are compared: the
score's bits, made monotonic, above the reversed entry number. One selection over unique 64-bit keys is then
both exact and as cheap as a plain one. Float64 scores have no room for that and take a stable sort; only
tests use them.
"""

from __future__ import annotations

import torch
from torch import Tensor


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
