"""Tokens that must not come: end ids before their time, and what a grammar forbids."""

from __future__ import annotations

import torch
from torch import Tensor


def ban_(logits_rows_vocab: Tensor, ids_rows_count: Tensor, banned_rows: Tensor) -> Tensor:
    """Set the listed ids (-1 pads) of the rows marked in `banned_rows` to -inf.

    Pads point at id 0 and add nothing there; a write would race with a real ban of id 0.
    """
    applies = banned_rows.unsqueeze(1) & (ids_rows_count >= 0)
    penalty = torch.zeros_like(ids_rows_count, dtype=logits_rows_vocab.dtype)
    penalty = penalty.masked_fill_(applies, -torch.inf)
    return logits_rows_vocab.scatter_add_(1, ids_rows_count.clamp(min=0), penalty)


def forbid_(logits_rows_vocab: Tensor, allowed_bits_rows_words: Tensor) -> Tensor:
    """Apply grammar masks: bit `i % 32` of int32 word `i // 32` clear means id `i` is forbidden."""
    vocab = logits_rows_vocab.shape[1]
    shifts = torch.arange(32, device=allowed_bits_rows_words.device, dtype=torch.int32)
    allowed = (allowed_bits_rows_words.unsqueeze(-1) >> shifts) & 1
    return logits_rows_vocab.masked_fill_(allowed.flatten(1)[:, :vocab] == 0, -torch.inf)
