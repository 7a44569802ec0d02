"""The simpler passes over residual streams: filling them, mixing into them, reading the last mixture."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..reference import hyper_connections as reference

COLUMNS = 1024
"""Columns a program takes at a time."""


@triton.jit(do_not_specialize=["noise"])
def _embed(
    table_pointer,
    token_pointer,
    streams_pointer,
    pre_pointer,
    noise,
    DIM: tl.constexpr,
    COPIES: tl.constexpr,
    COPIES_PADDED: tl.constexpr,
    BLOCK: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """The first row of each BLOCK has a token, the others have `noise`."""
    row = tl.program_id(0).to(tl.int64)
    token = tl.load(token_pointer + row // BLOCK)
    if BLOCK > 1:
        token = tl.where(row % BLOCK == 0, token, noise)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < DIM
    value = tl.load(table_pointer + token * DIM + column, mask=inside)
    for copy in tl.static_range(COPIES):
        tl.store(streams_pointer + (row * COPIES + copy) * DIM + column, value, mask=inside)
    copies = tl.arange(0, COPIES_PADDED)
    first = (copies == 0).to(pre_pointer.dtype.element_ty)
    tl.store(pre_pointer + row * COPIES + copies, first, mask=(copies < COPIES) & (tl.program_id(1) == 0))


def embed(table_vocab_dim: Tensor, token_ids: Tensor, copies: int) -> tuple[Tensor, Tensor]:
    """See the twin."""
    return embed_drafts(table_vocab_dim, token_ids, 0, 1, copies)


def embed_drafts(
    table_vocab_dim: Tensor, newest_sequences: Tensor, noise: int, block: int, copies: int
) -> tuple[Tensor, Tensor]:
    """See the twin."""
    rows, dim = newest_sequences.shape[0] * block, table_vocab_dim.shape[1]
    streams = table_vocab_dim.new_empty(rows, copies, dim)
    pre = table_vocab_dim.new_empty(rows, copies, dtype=torch.float32)
    if rows:
        columns = min(COLUMNS, triton.next_power_of_2(dim))
        _embed[(rows, triton.cdiv(dim, columns))](
            table_vocab_dim, newest_sequences.contiguous(), streams, pre, noise, DIM=dim, COPIES=copies,
            COPIES_PADDED=triton.next_power_of_2(copies), BLOCK=block, COLUMNS=columns, num_warps=4,
        )  # fmt: skip
    return streams, pre


@triton.jit
def _fetched(output_pointer, streams_pointer, row, column, inside, DIM: tl.constexpr, COPIES: tl.constexpr):
    """An output and the streams of a row that it is mixed into."""
    written = tl.load(output_pointer + row * DIM + column, mask=inside, other=0.0)
    sources = ()
    for source in tl.static_range(COPIES):
        place = (row * COPIES + source) * DIM + column
        sources = sources + (tl.load(streams_pointer + place, mask=inside, other=0.0),)  # noqa: RUF005
    return written, sources


@triton.jit
def _mixed(written, sources, post_pointer, comb_pointer, row, copy, COPIES: tl.constexpr):
    """One new stream of a row, in float32 and not yet rounded."""
    mixed = tl.load(post_pointer + row * COPIES + copy) * written.to(tl.float32)
    for source in tl.static_range(COPIES):
        share = tl.load(comb_pointer + (row * COPIES + source) * COPIES + copy)
        mixed += share * sources[source].to(tl.float32)
    return mixed


@triton.jit
def _expand(
    output_pointer,
    streams_pointer,
    post_pointer,
    comb_pointer,
    new_pointer,
    DIM: tl.constexpr,
    COPIES: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < DIM
    written, sources = _fetched(output_pointer, streams_pointer, row, column, inside, DIM, COPIES)
    for copy in tl.static_range(COPIES):
        mixed = _mixed(written, sources, post_pointer, comb_pointer, row, copy, COPIES)
        place = (row * COPIES + copy) * DIM + column
        tl.store(new_pointer + place, mixed.to(new_pointer.dtype.element_ty), mask=inside)


def expand(
    output_rows_dim: Tensor, streams_rows_copies_dim: Tensor, post_rows_copies: Tensor, comb: Tensor
) -> Tensor:
    """See the twin."""
    if comb.dtype != torch.float32:
        return reference.expand(output_rows_dim, streams_rows_copies_dim, post_rows_copies, comb)
    rows, copies, dim = streams_rows_copies_dim.shape
    new = torch.empty_like(streams_rows_copies_dim)
    if rows:
        columns = min(COLUMNS, triton.next_power_of_2(dim))
        _expand[(rows, triton.cdiv(dim, columns))](
            output_rows_dim.contiguous(), streams_rows_copies_dim.contiguous(), post_rows_copies.contiguous(),
            comb.contiguous(), new, DIM=dim, COPIES=copies, COLUMNS=columns, num_warps=4,
        )  # fmt: skip
    return new


@triton.jit
def _close_stack(
    output_pointer,
    streams_pointer,
    post_pointer,
    comb_pointer,
    pre_pointer,
    norm_pointer,
    hidden_pointer,
    normed_pointer,
    norm_eps,
    DIM: tl.constexpr,
    COPIES: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """A program a row: the streams of the last sublayer are never written, only their contraction."""
    row = tl.program_id(0).to(tl.int64)
    narrow = hidden_pointer.dtype.element_ty
    squares = tl.zeros((COLUMNS,), tl.float32)
    kept = ()
    for start in tl.static_range(0, DIM, COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        inside = column < DIM
        written, sources = _fetched(output_pointer, streams_pointer, row, column, inside, DIM, COPIES)
        hidden = tl.zeros((COLUMNS,), tl.float32)
        for copy in tl.static_range(COPIES):
            mixed = _mixed(written, sources, post_pointer, comb_pointer, row, copy, COPIES)
            hidden += tl.load(pre_pointer + row * COPIES + copy) * mixed.to(narrow).to(tl.float32)
        rounded = hidden.to(narrow)
        tl.store(hidden_pointer + row * DIM + column, rounded, mask=inside)
        squares += rounded.to(tl.float32) * rounded.to(tl.float32)
        kept = kept + (rounded,)  # noqa: RUF005
    inverse = tl.rsqrt(tl.sum(squares, axis=0) / DIM + norm_eps)
    for start in tl.static_range(0, DIM, COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        inside = column < DIM
        norm = tl.load(norm_pointer + column, mask=inside, other=0.0).to(tl.float32)
        normed = kept[start // COLUMNS].to(tl.float32) * inverse * norm
        tl.store(normed_pointer + row * DIM + column, normed.to(narrow), mask=inside)


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
    """See the twin."""
    if comb.dtype != torch.float32:
        return reference.close_stack(
            output_rows_dim, streams_rows_copies_dim, post_rows_copies, comb, carried_pre_rows_copies,
            norm_weight, norm_eps=norm_eps,
        )  # fmt: skip
    rows, copies, dim = streams_rows_copies_dim.shape
    hidden, normed = (streams_rows_copies_dim.new_empty(rows, dim) for _ in range(2))
    if rows:
        columns = min(2 * COLUMNS, triton.next_power_of_2(dim))
        _close_stack[(rows,)](
            output_rows_dim.contiguous(), streams_rows_copies_dim.contiguous(), post_rows_copies.contiguous(),
            comb.contiguous(), carried_pre_rows_copies.contiguous(), norm_weight, hidden, normed, norm_eps,
            DIM=dim, COPIES=copies, COLUMNS=columns, num_warps=max(1, columns // 256),
        )  # fmt: skip
    return hidden, normed


@triton.jit
def _mean_of_copies(
    streams_pointers,
    mean_pointer,
    DIM: tl.constexpr,
    COPIES: tl.constexpr,
    TAPS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < DIM
    for tap in tl.static_range(TAPS):
        total = tl.zeros((COLUMNS,), tl.float32)
        for copy in tl.static_range(COPIES):
            place = (row * COPIES + copy) * DIM + column
            total += tl.load(streams_pointers[tap] + place, mask=inside, other=0.0).to(tl.float32)
        mean = (total / COPIES).to(mean_pointer.dtype.element_ty)
        tl.store(mean_pointer + (row * TAPS + tap) * DIM + column, mean, mask=inside)


def mean_of_copies(taps: Sequence[Tensor]) -> Tensor:
    """See the twin."""
    rows, copies, dim = taps[0].shape
    if taps[0].dtype == torch.float64:
        return reference.mean_of_copies(taps)
    mean = taps[0].new_empty(rows, len(taps) * dim)
    if rows:
        columns = min(COLUMNS, triton.next_power_of_2(dim))
        _mean_of_copies[(rows, triton.cdiv(dim, columns))](
            tuple(tap.contiguous() for tap in taps), mean, DIM=dim, COPIES=copies, TAPS=len(taps),
            COLUMNS=columns, num_warps=4,
        )  # fmt: skip
    return mean
