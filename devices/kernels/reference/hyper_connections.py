"""Manifold-constrained hyper-connections: four residual streams instead of one (model_spec 2.2).

Each sublayer reads one mixture of the streams and writes its result back into all of them, while the streams
exchange among themselves through a nearly doubly stochastic matrix. The coefficients depend on the streams.
The V4.1 variant is *shifted*: the reading weights of a sublayer were computed by the sublayer before it.

Sinkhorn's alternating normalisations are many tiny operations; on a CPU their dispatch, not their arithmetic,
was half of a decode step. Matrices are kept flat, and one product with a block matrix of ones yields a sum
that is already broadcast to every element it divides: two operations a half-step where the textbook form has
three.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .norm import mean_square_rsqrt, rms_norm, wide_dtype


class SumMatrices(NamedTuple):
    """Products with these `[copies**2, copies**2]` matrices sum a flat matrix along one index and repeat
    it."""

    over_destinations: Tensor
    over_sources: Tensor


def sum_matrices(copies: int, dtype: torch.dtype, device: torch.device) -> SumMatrices:
    ones = torch.ones(copies, copies, dtype=dtype, device=device)
    eye = torch.eye(copies, dtype=dtype, device=device)
    return SumMatrices(torch.kron(eye, ones), torch.kron(ones, eye))


def sinkhorn(logits_rows_flat: Tensor, sums: SumMatrices, iterations: int, eps: float) -> Tensor:
    """Make each matrix nearly doubly stochastic; sources last, so columns sum to 1 within about `eps`.

    Input is `[rows, copies**2]`, source index first; the result is `[rows, source, destination]`.
    """
    rows = logits_rows_flat.shape[0]
    copies = math.isqrt(logits_rows_flat.shape[1])
    floor = sums.over_sources.new_full((1, 1), eps)
    flat = logits_rows_flat.view(rows, copies, copies).softmax(-1).add_(eps).view(rows, -1)
    totals = torch.empty_like(flat)  # written again and again: an allocation costs as much as a division
    flat.div_(torch.addmm(floor, flat, sums.over_sources, out=totals))
    for _ in range(iterations - 1):
        flat.div_(torch.addmm(floor, flat, sums.over_destinations, out=totals))
        flat.div_(torch.addmm(floor, flat, sums.over_sources, out=totals))
    return flat.view(rows, copies, copies)


def prepare_mix(mix_weight: Tensor, copies: int) -> Tensor:
    """The weight of a mix as `open_sublayer` of the same set takes it: here as it is. Called at load."""
    return mix_weight


def mixes(
    streams_rows_copies_dim: Tensor,
    mix_weight: Tensor,
    base: Tensor,
    scale_per_coefficient: Tensor,
    sums: SumMatrices,
    *,
    iterations: int,
    hc_eps: float,
    norm_eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Coefficients of one sublayer from the streams at its input: `pre`, `post` `[rows, copies]`, `comb`
    `[rows, source, destination]`, all in the type of `mix_weight`.

    `mix_weight` is `[(2 + copies) * copies, copies * dim]`; `scale_per_coefficient` repeats the three
    published scales over the coefficients they belong to.
    """
    copies = streams_rows_copies_dim.shape[1]
    flat = streams_rows_copies_dim.flatten(1).to(mix_weight.dtype)
    raw = torch.mm(flat, mix_weight.t()) * mean_square_rsqrt(flat, norm_eps)
    raw = torch.addcmul(base, raw, scale_per_coefficient)
    pre, post = raw[:, : 2 * copies].sigmoid().split(copies, dim=1)
    comb = sinkhorn(raw[:, 2 * copies :].contiguous(), sums, iterations, hc_eps)
    return pre + hc_eps, post * 2, comb


def open_sublayer(
    streams_rows_copies_dim: Tensor,
    carried_pre_rows_copies: Tensor,
    mix_weight: Tensor,
    base: Tensor,
    scale_per_coefficient: Tensor,
    norm_weight: Tensor,
    sums: SumMatrices,
    *,
    iterations: int,
    hc_eps: float,
    norm_eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What a sublayer begins with: its normed input `[rows, dim]`, read with the `pre` that the sublayer
    before it computed, and the coefficients of `mixes` for what follows: `pre`, `post`, `comb`.
    """
    pre, post, comb = mixes(
        streams_rows_copies_dim,
        mix_weight,
        base,
        scale_per_coefficient,
        sums,
        iterations=iterations,
        hc_eps=hc_eps,
        norm_eps=norm_eps,
    )
    read = contract(streams_rows_copies_dim, carried_pre_rows_copies)
    return rms_norm(read, norm_weight, norm_eps), pre, post, comb


def contract(streams_rows_copies_dim: Tensor, pre_rows_copies: Tensor) -> Tensor:
    """The input of a sublayer, `[rows, dim]`: the streams weighted by `pre`, rounded once."""
    wide = streams_rows_copies_dim.to(pre_rows_copies.dtype)
    mixed = torch.bmm(pre_rows_copies.unsqueeze(1), wide).squeeze(1)
    return mixed.to(streams_rows_copies_dim.dtype)


def expand(
    output_rows_dim: Tensor, streams_rows_copies_dim: Tensor, post_rows_copies: Tensor, comb: Tensor
) -> Tensor:
    """New streams: `post[j] * output + sum_i comb[i, j] * streams[i]`, rounded once."""
    wide = comb.dtype
    written = post_rows_copies.unsqueeze(-1) * output_rows_dim.to(wide).unsqueeze(1)
    streams = written.baddbmm_(comb.transpose(1, 2), streams_rows_copies_dim.to(wide))
    return streams.to(streams_rows_copies_dim.dtype)


def expand_and_open(
    output_rows_dim: Tensor,
    streams_rows_copies_dim: Tensor,
    post_rows_copies: Tensor,
    comb: Tensor,
    carried_pre_rows_copies: Tensor,
    mix_weight: Tensor,
    base: Tensor,
    scale_per_coefficient: Tensor,
    norm_weight: Tensor,
    sums: SumMatrices,
    *,
    iterations: int,
    hc_eps: float,
    norm_eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """From one sublayer's output to the next one's input: `expand`, then `open_sublayer` of the new streams.

    Returns the new streams, then what `open_sublayer` returns. `post` and `comb` are the first sublayer's,
    the carried `pre` is what it computed, everything after is the second one's.
    """
    streams = expand(output_rows_dim, streams_rows_copies_dim, post_rows_copies, comb)
    opened = open_sublayer(
        streams,
        carried_pre_rows_copies,
        mix_weight,
        base,
        scale_per_coefficient,
        norm_weight,
        sums,
        iterations=iterations,
        hc_eps=hc_eps,
        norm_eps=norm_eps,
    )
    return streams, *opened


def close_stack(
    output_rows_dim: Tensor,
    streams_rows_copies_dim: Tensor,
    post_rows_copies: Tensor,
    comb: Tensor,
    carried_pre_rows_copies: Tensor,
    norm_weight: Tensor,
    *,
    norm_eps: float,
) -> tuple[Tensor, Tensor]:
    """From the last sublayer's output to the head: `expand`, `contract` and the final norm.

    Returns the hidden rows before the norm and after it, both `[rows, dim]`.
    """
    streams = expand(output_rows_dim, streams_rows_copies_dim, post_rows_copies, comb)
    hidden = contract(streams, carried_pre_rows_copies)
    return hidden, rms_norm(hidden, norm_weight, norm_eps)


def embed(table_vocab_dim: Tensor, token_ids: Tensor, copies: int) -> tuple[Tensor, Tensor]:
    """Streams at the bottom of a stack, `[rows, copies, dim]`: equal copies of each token's embedding.

    Also the `pre` `[rows, copies]` (wide) with which the first sublayer reads the first of them.
    """
    rows = torch.nn.functional.embedding(token_ids, table_vocab_dim)
    return stack_copies(rows, copies)


def embed_drafts(
    table_vocab_dim: Tensor, newest_sequences: Tensor, noise: int, block: int, copies: int
) -> tuple[Tensor, Tensor]:
    """What `embed` returns for blocks of draft rows: each sequence's newest token, then `block - 1` times the
    token `noise` (model_spec 3.2)."""
    tokens = newest_sequences.new_full((newest_sequences.shape[0], block), noise)
    tokens[:, 0] = newest_sequences
    return embed(table_vocab_dim, tokens.flatten(), copies)


def stack_copies(embeddings_rows_dim: Tensor, copies: int) -> tuple[Tensor, Tensor]:
    """What `embed` returns, of rows that are at hand."""
    streams = embeddings_rows_dim.unsqueeze(1).repeat(1, copies, 1)
    rows, wide = streams.shape[0], wide_dtype(streams.dtype)
    pre = torch.zeros(rows, copies, dtype=wide, device=streams.device)
    pre[:, 0] = 1
    return streams, pre


def mean_of_copies(taps: Sequence[Tensor]) -> Tensor:
    """The average stream of each tapped `[rows, copies, dim]`, rounded once, side by side (model_spec 3.1).

    Returns `[rows, taps * dim]`.
    """
    means = [tap.to(wide_dtype(tap.dtype)).mean(1).to(tap.dtype) for tap in taps]
    return torch.cat(means, dim=-1)
