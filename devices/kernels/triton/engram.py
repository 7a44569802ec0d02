"""The Engram memory in three launches: n-grams, hash and gather, gate (model_spec 2.11)."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..quantized import GROUP
from ..quantized_rows import QuantizedRows, Table
from ..reference import engram as reference

NGRAM_ROWS = 64
"""Rows of a program that builds n-grams."""


@triton.jit(do_not_specialize=["rows", "history_length"])
def _collect_ngrams(
    token_pointer,
    sequence_pointer,
    start_pointer,
    history_pointer,
    image_pointer,
    map_pointer,
    pad_pointer,
    ngram_pointer,
    rows,
    history_length,
    LENGTH: tl.constexpr,
    HAS_IMAGES: tl.constexpr,
    HAS_MAP: tl.constexpr,
    ROWS: tl.constexpr,
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    here = row < rows
    sequence = tl.load(sequence_pointer + row, mask=here, other=0)
    inside = row - tl.load(start_pointer + sequence, mask=here, other=0)
    pad = tl.load(pad_pointer)
    broken = row < 0
    for distance in tl.static_range(LENGTH):
        in_step = here & (inside >= distance)
        token = tl.load(token_pointer + row - distance, mask=in_step, other=0)
        if HAS_IMAGES:
            image = tl.load(image_pointer + row - distance, mask=in_step, other=0)
            token = tl.where(image != 0, -1, token)
        back = history_length + inside - distance
        older = history_pointer + sequence * history_length + back
        token = tl.where(
            inside >= distance, token, tl.load(older, mask=here & (inside < distance) & (back >= 0), other=-1)
        )
        broken = broken | (token < 0)
        if HAS_MAP:
            token = tl.load(map_pointer + token, mask=here & ~broken, other=0)
        tl.store(ngram_pointer + row * LENGTH + distance, tl.where(broken, pad, token), mask=here)


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
    """See the twin."""
    rows = token_ids.shape[0]
    ngrams = token_ids.new_empty(rows, length)
    if rows:
        # The pointers of what is absent are never followed.
        _collect_ngrams[(triton.cdiv(rows, NGRAM_ROWS),)](
            token_ids, sequence_rows, row_start, history.contiguous(),
            token_ids if image_mask is None else image_mask, token_ids if token_map is None else token_map,
            pad, ngrams, rows, history.shape[1], LENGTH=length, HAS_IMAGES=image_mask is not None,
            HAS_MAP=token_map is not None, ROWS=NGRAM_ROWS, num_warps=2,
        )  # fmt: skip
    return ngrams


@triton.jit
def _recall(
    ngram_pointer,
    multiplier_pointer,
    prime_pointer,
    offset_pointer,
    table_pointer,
    scale_pointer,
    found_pointer,
    LENGTH: tl.constexpr,
    HEADS: tl.constexpr,
    PLACES: tl.constexpr,
    DIM: tl.constexpr,
    COLUMNS: tl.constexpr,
    GROUP: tl.constexpr,
):
    """A program a row: all its table rows are in flight at once. Without a GROUP they are plain."""
    row = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, PLACES)
    real = place < (LENGTH - 1) * HEADS
    order = place // HEADS + 1  # the largest distance of the n-gram
    mixed = tl.zeros((PLACES,), tl.int64)
    for distance in tl.static_range(LENGTH):
        factor = tl.load(ngram_pointer + row * LENGTH + distance) * tl.load(multiplier_pointer + distance)
        mixed = mixed ^ tl.where(distance <= order, factor, 0)
    prime = tl.load(prime_pointer + place, mask=real, other=1)
    number = mixed % prime + tl.load(offset_pointer + place, mask=real, other=0)
    column = tl.arange(0, COLUMNS)
    inside = real[:, None] & (column < DIM)[None, :]
    value = tl.load(table_pointer + number[:, None] * DIM + column[None, :], mask=inside, other=0)
    if GROUP:
        scale_place = number[:, None] * (DIM // GROUP) + column[None, :] // GROUP
        exponent = tl.load(scale_pointer + scale_place, mask=inside, other=0).to(tl.int32)
        # The scale of byte 0 is 2 ** -127, which is subnormal.
        scale = tl.where(exponent == 0, 1 << 22, exponent << 23).to(tl.float32, bitcast=True)
        value = value.to(tl.float8e4nv, bitcast=True).to(tl.float32) * scale
    target = found_pointer + (row * ((LENGTH - 1) * HEADS) + place[:, None]) * DIM + column[None, :]
    tl.store(target, value.to(found_pointer.dtype.element_ty), mask=inside)


def recall(
    ngrams_rows_distance: Tensor,
    multipliers: Tensor,
    primes: Tensor,
    offsets: Tensor,
    table: Table,
    dtype: torch.dtype,
) -> Tensor:
    """See the twin."""
    rows, length = ngrams_rows_distance.shape
    heads, dim = primes.shape[1], table.shape[1]
    if isinstance(table, QuantizedRows):
        values, scales, group = table.payload.view(torch.uint8), table.scales, GROUP
    else:
        values, scales, group = table, table, 0
    found = torch.empty(rows, primes.numel() * dim, dtype=dtype, device=table.device)
    if rows:
        _recall[(rows,)](
            ngrams_rows_distance.contiguous(), multipliers, primes, offsets, values, scales, found,
            LENGTH=length, HEADS=heads, PLACES=triton.next_power_of_2(primes.numel()), DIM=dim,
            COLUMNS=triton.next_power_of_2(dim), GROUP=group, num_warps=4,
        )  # fmt: skip
    return found


@triton.jit
def _apply_memory(
    streams_pointer,
    key_value_pointer,
    query_key_pointer,
    text_pointer,
    new_pointer,
    eps,
    root,
    DIM: tl.constexpr,
    COPIES: tl.constexpr,
    HAS_TEXT: tl.constexpr,
    SMALLEST: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """A program a stream of a row."""
    row = tl.program_id(0).to(tl.int64)
    copy = tl.program_id(1)
    column = tl.arange(0, COLUMNS)
    inside = column < DIM
    place = (row * COPIES + copy) * DIM + column
    stream = tl.load(streams_pointer + place, mask=inside, other=0.0).to(tl.float32)
    memory = key_value_pointer + row * ((COPIES + 1) * DIM) + column
    key = tl.load(memory + copy * DIM, mask=inside, other=0.0).to(tl.float32)
    value = tl.load(memory + COPIES * DIM, mask=inside, other=0.0).to(tl.float32)
    weight = tl.load(query_key_pointer + copy * DIM + column, mask=inside, other=0.0)
    dot = tl.sum(stream * weight * key, axis=0) * root
    dot *= tl.rsqrt(tl.sum(stream * stream, axis=0) / DIM + eps)
    dot *= tl.rsqrt(tl.sum(key * key, axis=0) / DIM + eps)
    size = tl.sqrt(tl.maximum(tl.abs(dot), SMALLEST))
    # The sign of -0 is its sign bit: the reference copies it.
    gate = tl.sigmoid(tl.where(dot.to(tl.int32, bitcast=True) < 0, -size, size))
    if HAS_TEXT:
        gate = tl.where(tl.load(text_pointer + row) != 0, gate, 0.0)
    new = stream + gate * value
    tl.store(new_pointer + place, new.to(new_pointer.dtype.element_ty), mask=inside)


def apply_memory(
    streams_rows_copies_dim: Tensor,
    key_value_rows_copies1_dim: Tensor,
    query_key_weight_copies_dim: Tensor,
    text_rows: Tensor | None,
    eps: float,
) -> Tensor:
    """See the twin."""
    if query_key_weight_copies_dim.dtype != torch.float32:
        return reference.apply_memory(
            streams_rows_copies_dim, key_value_rows_copies1_dim, query_key_weight_copies_dim, text_rows, eps
        )
    rows, copies, dim = streams_rows_copies_dim.shape
    new = torch.empty_like(streams_rows_copies_dim)
    if rows:
        columns = triton.next_power_of_2(dim)
        _apply_memory[(rows, copies)](
            streams_rows_copies_dim.contiguous(), key_value_rows_copies1_dim.contiguous(),
            query_key_weight_copies_dim, streams_rows_copies_dim if text_rows is None else text_rows, new,
            eps, dim**-0.5, DIM=dim, COPIES=copies, HAS_TEXT=text_rows is not None,
            SMALLEST=reference.SMALLEST_ROOT_ARGUMENT, COLUMNS=columns, num_warps=4 if columns <= 2048 else 8,
        )  # fmt: skip
    return new
