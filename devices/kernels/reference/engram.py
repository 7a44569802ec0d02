"""Engram: a memory addressed by hashes of the last few tokens (model_spec 2.11)."""

from __future__ import annotations

import torch
from torch import Tensor

from ..quantized_rows import Table, take_rows
from .norm import mean_square_rsqrt

SMALLEST_ROOT_ARGUMENT = 1e-6
NOT_TEXT = -1
"""A token that is not text: before the start of the sequence, or part of an image."""


def collect_ngrams(
    token_ids: Tensor,
    sequence_rows: Tensor,
    row_start: Tensor,
    history: Tensor,
    image_mask: Tensor | None,
    token_map: Tensor | None,
    pad: Tensor,
    length: int,
) -> Tensor:
    """The last `length` tokens of every row, `[rows, length]`: the token itself first, then older ones.

    Rows are flat, grouped by sequence: `sequence_rows` names each row's, `row_start` `[sequences]` the first
    row of each; what lies before it is in `history` `[sequences, any]`, oldest first, `NOT_TEXT` where
    there is nothing. `token_map` takes raw ids to the compressed vocabulary; None is the identity. At and
    beyond the first token that is not text stands `pad`, a scalar.
    """
    tokens = token_ids if image_mask is None else token_ids.masked_fill(image_mask, NOT_TEXT)
    number = torch.arange(token_ids.shape[0], device=tokens.device).unsqueeze(1)
    distance = torch.arange(length, device=tokens.device)
    before = number - row_start[sequence_rows].unsqueeze(1) - distance  # negative: in the history
    in_history = history.shape[1] + before
    recent = tokens[(number - distance).clamp(min=0)]
    older = history[sequence_rows.unsqueeze(1), in_history.clamp(0, max(history.shape[1] - 1, 0))]
    older = older.masked_fill(in_history < 0, NOT_TEXT)
    ngrams = torch.where(before >= 0, recent, older)
    if token_map is not None:
        mapped = token_map[ngrams.clamp(min=0)]
        ngrams = torch.where(ngrams < 0, ngrams, mapped)
    return mask_ngrams(ngrams, pad)


def mask_ngrams(tokens_rows_distance: Tensor, pad: Tensor) -> Tensor:
    """Tokens at distance 0, 1, ... with `pad` at and beyond the first one that is not text (`NOT_TEXT`)."""
    broken = (tokens_rows_distance < 0).to(torch.int32).cumsum(-1) > 0
    return torch.where(broken, pad, tokens_rows_distance)


def hash_rows(ngrams_rows_distance: Tensor, multipliers: Tensor, primes: Tensor, offsets: Tensor) -> Tensor:
    """Table rows of each token, `[rows, orders * heads]`, for n-grams of order 2, 3, ...

    `primes` and `offsets` are `[orders, heads]`. Products stay below 2^63 by construction of the multipliers.
    """
    mixed = ngrams_rows_distance * multipliers
    running = mixed[:, 0]
    hashes = []
    for order in range(1, mixed.shape[1]):
        running = running ^ mixed[:, order]
        hashes.append(running)
    by_order = torch.stack(hashes, dim=1).unsqueeze(-1)
    return (by_order % primes + offsets).flatten(1)


def recall(
    ngrams_rows_distance: Tensor,
    multipliers: Tensor,
    primes: Tensor,
    offsets: Tensor,
    table: Table,
    dtype: torch.dtype,
) -> Tensor:
    """The table rows that `hash_rows` names, in `dtype` and side by side: `[rows, orders * heads * dim]`."""
    rows = hash_rows(ngrams_rows_distance, multipliers, primes, offsets)
    return take_rows(table, rows, dtype).flatten(1)


def apply_memory(
    streams_rows_copies_dim: Tensor,
    key_value_rows_copies1_dim: Tensor,
    query_key_weight_copies_dim: Tensor,
    text_rows: Tensor | None,
    eps: float,
) -> Tensor:
    """Add the gated memory to every stream, rounded once; rows that are not text stay as they are.

    `key_value` holds a key per copy and one value, last. `query_key_weight` is the product of both norm
    weights. The gate is the sigmoid of the signed square root of a normalised dot product.
    """
    wide = query_key_weight_copies_dim.dtype
    streams = streams_rows_copies_dim.to(wide)
    memory = key_value_rows_copies1_dim.to(wide)
    keys, value = memory[:, :-1], memory[:, -1:]
    dot = (streams * query_key_weight_copies_dim * keys).sum(-1, keepdim=True)
    dot = dot * (streams.shape[-1] ** -0.5) * mean_square_rsqrt(streams, eps) * mean_square_rsqrt(keys, eps)
    gate = torch.copysign(dot.abs().clamp(min=SMALLEST_ROOT_ARGUMENT).sqrt(), dot).sigmoid()
    if text_rows is not None:
        gate = gate * text_rows.to(wide).view(-1, 1, 1)
    return (streams + gate * value).to(streams_rows_copies_dim.dtype)
