"""Attention of many rows through FlashMLA's sparse kernel, where that package is installed.

Prompt chunks are bound by arithmetic, and a kernel written for the machine keeps its matrix units busier than
ours, two or three times. It wants queries that are turned already, one pool of keys, and it rounds
probabilities once: so it serves only the numeric level that rounds them (`round_probabilities`), window and
entries are two calls, and two small kernels around them turn the queries, and join both results and turn them
back. A few rows are bound by latency; theirs is the kernel of `attention.py` (`LEAST_ROWS`).

Rejected: one pool for window and entries, so that one call does. Layers share entries and have windows of
their own, so everything would lie in one tensor, beyond what 32-bit places and offsets reach.

The kernel divides by its own sum and returns the logarithm of that sum; a pool in which a row has no keys
weighs nothing. Invariant: a row's result depends on its own keys alone, and on which side of `LEAST_ROWS` its
step is.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any, Protocol

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..reference.attention import KeyIndex
from . import attention
from .attention_parts import LOWEST, turn_back, turn_queries
from .launching import power_of_two
from .operations import TritonOperations

LEAST_ROWS = 64
"""From so many rows on the library was faster on an H200."""
HEAD_COUNTS, DIM, KEY_STEP = (64, 128), 512, 64
"""What its kernels are built for: heads, numbers of a vector, and what counts of keys are multiples of."""


class SparseKernel(Protocol):
    """Attention of every row over the places of one pool that it names.

    Queries `[rows, heads, 512]` and the pool `[slots, 1, 512]` are bfloat16, places `[rows, 1, keys]` int32
    with -1 for no key. Returns outputs like the queries and, of each head, the natural logarithm of
    the sum of exponentials `[rows, heads]` in float32, infinite where there is no key.
    """

    def __call__(
        self, query: Tensor, pool: Tensor, places: Tensor, scale: float, /
    ) -> tuple[Tensor, Tensor]: ...


def flash_kernel(architecture: tuple[int, int]) -> SparseKernel | None:
    """FlashMLA's, where the package is installed, loads, and has one for the architecture. Since 1.0 it keeps
    those for Hopper apart from those for Blackwell. A package that does not load, being built for another
    torch or CUDA, is as good as none; the name of the set says which it became.
    """
    hopper = architecture == (9, 0)
    if (not hopper and architecture[0] != 10) or find_spec("flash_mla") is None:
        return None
    try:
        library: Any = import_module("flash_mla")
    except (ImportError, OSError, RuntimeError):
        return None
    if hopper and not library.has_legacy():
        return None

    def kernel(query: Tensor, pool: Tensor, places: Tensor, scale: float, /) -> tuple[Tensor, Tensor]:
        out, _, sums = library.flash_mla_sparse_fwd(query, pool, places, scale, DIM, use_legacy=hopper)
        return out, sums

    return kernel


@triton.jit
def _weight(sums, top):
    return tl.where(tl.abs(sums) < float("inf"), tl.exp(sums - top), 0.0)


@triton.jit
def _join_pools(
    window_pointer, window_sums_pointer, entry_pointer, entry_sums_pointer, sink_pointer, turns_pointer,
    out_pointer, HEADS: tl.constexpr, DIM: tl.constexpr, ROTARY: tl.constexpr, HEAD_BLOCK: tl.constexpr,
    ENTRIES: tl.constexpr,
):  # fmt: skip
    """Both pools' averages by their sums, the sink in the denominator. Grid: rows, blocks of heads."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEAD_BLOCK + tl.arange(0, HEAD_BLOCK)
    inside = head < HEADS
    column = tl.arange(0, DIM)
    cells = row * (HEADS * DIM) + head[:, None] * DIM + column[None, :]
    sink = tl.load(sink_pointer + head, mask=inside, other=0.0).to(tl.float32)
    window_sums = tl.load(window_sums_pointer + row * HEADS + head, mask=inside, other=0.0)
    top = tl.maximum(sink, tl.where(tl.abs(window_sums) < float("inf"), window_sums, LOWEST))
    if ENTRIES:
        entry_sums = tl.load(entry_sums_pointer + row * HEADS + head, mask=inside, other=0.0)
        top = tl.maximum(top, tl.where(tl.abs(entry_sums) < float("inf"), entry_sums, LOWEST))
    window_weight = _weight(window_sums, top)
    total = tl.exp(sink - top) + window_weight
    # A pool without keys may hold anything: its weight is 0 and so must the product be.
    value = tl.load(window_pointer + cells, mask=(inside & (window_weight > 0))[:, None], other=0.0)
    value = value.to(tl.float32) * window_weight[:, None]
    if ENTRIES:
        entry_weight = _weight(entry_sums, top)
        total += entry_weight
        entry = tl.load(entry_pointer + cells, mask=(inside & (entry_weight > 0))[:, None], other=0.0)
        value += entry.to(tl.float32) * entry_weight[:, None]
    value = value / tl.maximum(total, 1.1754943508222875e-38)[:, None]
    tl.store(out_pointer + cells, value.to(out_pointer.dtype.element_ty), mask=inside[:, None])
    turn_back(out_pointer + row * (HEADS * DIM), turns_pointer + row * ROTARY, head, HEADS, DIM, ROTARY)


def attend_by(
    kernel: SparseKernel,
    query_rows_heads_dim: Tensor,
    turns_rows_dim: Tensor,
    window_pool: Tensor,
    window_index: KeyIndex,
    entry_pool: Tensor | None,
    entry_index: KeyIndex | None,
    sink_heads: Tensor,
    scale: float,
) -> Tensor:
    """`reference.attention.attend` with rounded probabilities, by a kernel over one pool."""
    rows, heads, dim = query_rows_heads_dim.shape
    rotary, query = turns_rows_dim.shape[1], query_rows_heads_dim.contiguous()
    block = min(power_of_two(heads), 16)
    grid = (rows, triton.cdiv(heads, block))
    sizes = {"HEADS": heads, "DIM": dim, "ROTARY": rotary, "HEAD_BLOCK": block}
    turned = torch.empty_like(query)
    turn_queries[grid](query, turns_rows_dim, turned, **sizes)
    window, window_sums = kernel(turned, window_pool.unsqueeze(1), window_index.narrow.unsqueeze(1), scale)
    entries, entry_sums = window, window_sums
    if entry_pool is not None and entry_index is not None:
        entries, entry_sums = kernel(turned, entry_pool.unsqueeze(1), entry_index.narrow.unsqueeze(1), scale)
    _join_pools[grid](
        window, window_sums, entries, entry_sums, sink_heads, turns_rows_dim, turned,
        ENTRIES=entry_pool is not None, **sizes,
    )  # fmt: skip
    return turned


def suits(query: Tensor, window_index: KeyIndex, entry_index: KeyIndex | None, rounded: bool) -> bool:
    """Whether the library's kernels are built for such a call."""
    rows, heads, dim = query.shape
    keys = [index.places.shape[1] for index in (window_index, entry_index) if index is not None]
    return (
        rounded
        and rows >= LEAST_ROWS
        and query.dtype == torch.bfloat16
        and heads in HEAD_COUNTS
        and dim == DIM
        and not any(count % KEY_STEP for count in keys)
    )


class FlashOperations(TritonOperations):
    """The Triton set, with attention of many rows by a kernel from elsewhere."""

    name = "triton, FlashMLA"

    def __init__(self, kernel: SparseKernel) -> None:
        self._kernel = kernel

    def attend(
        self,
        query_rows_heads_dim: Tensor,
        turns_rows_dim: Tensor,
        window_pool: Tensor,
        window_index: KeyIndex,
        entry_pool: Tensor | None,
        entry_index: KeyIndex | None,
        sink_heads: Tensor,
        scale: float,
        *,
        round_probabilities: bool = False,
    ) -> Tensor:
        """See `attention.attend`."""
        if suits(query_rows_heads_dim, window_index, entry_index, round_probabilities):
            return attend_by(
                self._kernel, query_rows_heads_dim, turns_rows_dim, window_pool, window_index, entry_pool,
                entry_index, sink_heads, scale,
            )  # fmt: skip
        return attention.attend(
            query_rows_heads_dim, turns_rows_dim, window_pool, window_index, entry_pool, entry_index,
            sink_heads, scale, round_probabilities=round_probabilities,
        )  # fmt: skip
