"""Edits of a few tokens' logits per row: penalties, biases, allowed ids, bad words.

Each costs what its list is long and never a pass over the vocabulary (allowing only a list costs one fill).
Penalties therefore walk the tokens seen, not a table of counts as wide as the vocabulary. A token may be in
a list twice (pads repeat one, a draft repeats an older token): every function either writes a value that
depends only on the token, or adds minus infinity, so repetitions change nothing.

All take the logits `[rows, vocab]` whole and the numbers `[edited]` of the rows they change.
"""

from __future__ import annotations

import torch
from torch import Tensor


def penalise_(
    logits_rows_vocab: Tensor,
    rows: Tensor,
    ids_edited_seen: Tensor,
    counts_edited_seen: Tensor,
    repetition: Tensor,
    frequency: Tensor,
    presence: Tensor,
) -> Tensor:
    """Penalise seen tokens, each of which has been in the output `counts` times (0: only in the prompt).

    Repetition divides positive logits and multiplies negative ones, then frequency is subtracted once a time
    and presence once at all. The three numbers are `[edited]`.
    """
    place = (rows.unsqueeze(1), ids_edited_seen)
    value = logits_rows_vocab[place]
    factor = repetition.unsqueeze(1).to(value.dtype)
    value = torch.where(value > 0, value / factor, value * factor)
    value = value - frequency.unsqueeze(1) * counts_edited_seen
    logits_rows_vocab[place] = value - presence.unsqueeze(1) * (counts_edited_seen > 0)
    return logits_rows_vocab


def add_(logits_rows_vocab: Tensor, rows: Tensor, ids_edited_count: Tensor, values: Tensor) -> Tensor:
    """Add biases; -inf bans. Ids are unique per row, pads (-1) add nothing."""
    pads = ids_edited_count < 0
    place = (rows.unsqueeze(1).expand_as(ids_edited_count), ids_edited_count.masked_fill(pads, 0))
    added = values.masked_fill(pads, 0).to(logits_rows_vocab.dtype)
    return logits_rows_vocab.index_put_(place, added, accumulate=True)


def allow_only_(logits_rows_vocab: Tensor, rows: Tensor, ids_edited_count: Tensor) -> Tensor:
    """Leave only the listed ids. Every row lists at least one, first; pads (-1) repeat it."""
    ids = torch.where(ids_edited_count < 0, ids_edited_count[:, :1], ids_edited_count)
    place = (rows.unsqueeze(1), ids)
    kept = logits_rows_vocab[place]
    logits_rows_vocab.index_fill_(0, rows, -torch.inf)
    logits_rows_vocab[place] = kept
    return logits_rows_vocab


def ban_completed_(
    logits_rows_vocab: Tensor,
    rows: Tensor,
    recent_edited_reach: Tensor,
    beginnings_edited_words_reach: Tensor,
    ends_edited_words: Tensor,
) -> Tensor:
    """Ban the last token of every word whose beginning has just been said.

    `recent` are the last output tokens, newest last, -1 before the first. Beginnings are aligned at the end,
    -1 in front of them matches anything; an end of -1 is no word.
    """
    said = beginnings_edited_words_reach == recent_edited_reach.unsqueeze(1)
    complete = (said | (beginnings_edited_words_reach < 0)).all(-1) & (ends_edited_words >= 0)
    value = torch.zeros_like(ends_edited_words, dtype=logits_rows_vocab.dtype)
    value = value.masked_fill_(complete, -torch.inf)
    place = (rows.unsqueeze(1).expand_as(ends_edited_words), ends_edited_words.clamp(min=0))
    return logits_rows_vocab.index_put_(place, value, accumulate=True)
