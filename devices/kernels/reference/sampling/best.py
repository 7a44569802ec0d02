"""The best tokens of a row without sorting it, the lowest id first among equals.

A sort of 129,280 logits takes forty times as long as reading them. But the k best tokens lie in the k groups
with the highest maxima: any token outside has k better ones, one in each of those groups. So one pass takes
maxima of groups, and all comparing happens among k groups of 128. Ties are part of the order (a number made
of value and id), so the answer is exact, however a library breaks them.
"""

from __future__ import annotations

import torch
from torch import Tensor

_GROUP = 128
_NOTHING = -80.0
"""e to this is 1e-35: a whole vocabulary of it is not a float32 rounding of the likeliest token's mass."""
_SMALL = 4096
"""Vocabularies up to here are compared whole."""


def likeliest(logits_rows_vocab: Tensor) -> tuple[Tensor, Tensor]:
    """Argmax and maximum of each row: not finite if the row has NaN or +inf, or nothing but -inf."""
    vocab = logits_rows_vocab.shape[1]
    if vocab <= _SMALL:
        values, _ = logits_rows_vocab.max(-1)
        return logits_rows_vocab.argmax(-1), values
    group = _group_maxima(logits_rows_vocab).argmax(-1, keepdim=True)
    members, ids = _members(logits_rows_vocab, group)
    place = members.argmax(-1, keepdim=True)
    return ids.gather(1, place).squeeze(1), members.gather(1, place).squeeze(1)


def best(logits_rows_vocab: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Values and ids `[rows, count]` of the best tokens, best first, the lowest id first among equals."""
    vocab = logits_rows_vocab.shape[1]
    if logits_rows_vocab.dtype != torch.float32 or 8 * count > vocab:
        values, ids = logits_rows_vocab.sort(dim=-1, descending=True, stable=True)
        return values[:, :count], ids[:, :count]
    numbers = torch.arange(vocab, device=logits_rows_vocab.device)
    if 4 * count * _GROUP > 3 * vocab:  # so many groups would be no fewer tokens
        ids = _ordered(logits_rows_vocab, numbers).topk(count, dim=-1).indices
        return logits_rows_vocab.gather(1, ids), ids
    maxima = _group_maxima(logits_rows_vocab)
    groups = _ordered(maxima, numbers[: maxima.shape[1]]).topk(count, dim=-1).indices
    members, ids = _members(logits_rows_vocab, groups)
    place = _ordered(members, ids).topk(count, dim=-1).indices
    return members.gather(1, place), ids.gather(1, place)


def log_sum_exp(logits_rows_vocab: Tensor, maxima_rows: Tensor) -> Tensor:
    """`[rows]`, given the rows' maxima. The order of summation is fixed: a library splits a lone long row."""
    # Results below the smallest normal number, and exp(-inf) itself, take a CPU ten times as long as others.
    masses = (logits_rows_vocab - maxima_rows.unsqueeze(1)).clamp_(min=_NOTHING).exp_()
    vocab = masses.shape[1]
    whole = vocab // _GROUP * _GROUP
    sums: Tensor = masses[:, :whole].unflatten(1, (-1, _GROUP)).sum(-1)
    if whole < vocab:
        sums = torch.cat((sums, masses[:, whole:].sum(-1, keepdim=True)), dim=1)
    total: Tensor = sums.sum(-1).log_().add_(maxima_rows)
    return total


def _group_maxima(logits_rows_vocab: Tensor) -> Tensor:
    vocab = logits_rows_vocab.shape[1]
    whole = vocab // _GROUP * _GROUP
    maxima: Tensor = logits_rows_vocab[:, :whole].unflatten(1, (-1, _GROUP)).amax(-1)
    if whole == vocab:
        return maxima
    return torch.cat((maxima, logits_rows_vocab[:, whole:].amax(-1, keepdim=True)), dim=1)


def _members(logits_rows_vocab: Tensor, groups_rows_count: Tensor) -> tuple[Tensor, Tensor]:
    """Values and ids in the groups, `[rows, count * _GROUP]`; beyond the last id stands -inf."""
    vocab = logits_rows_vocab.shape[1]
    inside = torch.arange(_GROUP, device=groups_rows_count.device)
    ids = (groups_rows_count.unsqueeze(2) * _GROUP + inside).flatten(1)
    values = logits_rows_vocab.gather(1, ids.clamp(max=vocab - 1))
    return values.masked_fill_(ids >= vocab, -torch.inf), ids


def rising_bits(values: Tensor) -> Tensor:
    """int32 in the order of float32 values; 0 and -0 are the same."""
    bits = (values + 0.0).contiguous().view(torch.int32)  # adding 0 makes -0 a 0
    return torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


def _ordered(values: Tensor, ids: Tensor) -> Tensor:
    """int64 in the order of (value, lower id first)."""
    return (rising_bits(values).to(torch.int64) << 32) - ids
