"""From a projection to a cache in one launch: norm, rotation, format, store. Twins: `reference.latents`.

A program takes one vector: a few hundred bytes in, as many out. What bounds these kernels is the launch, so
that is what they save; they keep the roundings between the steps that the twins have.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from ..reference import latents as reference
from ..reference.quantization import Format
from ..reference.rows import RingIndex
from .forms import (
    FORM,
    load_pairs,
    narrowed,
    norm_pairs,
    round_pairs,
    store_pairs,
    turn_factors,
    turn_pairs,
)
from .launching import power_of_two


@triton.jit
def _open_query(
    projected_pointer,
    norm_pointer,
    latent_pointer,
    eps,
    RANK: tl.constexpr,
    PAIRS: tl.constexpr,
    FORM: tl.constexpr,
):
    pair = tl.arange(0, PAIRS)
    inside = pair < RANK // 2
    even, odd = load_pairs(projected_pointer, pair, inside)
    even_weight, odd_weight = load_pairs(norm_pointer, pair, inside)
    even, odd = norm_pairs(even, odd, even_weight, odd_weight, eps, RANK)
    even, odd = round_pairs(narrowed(even, latent_pointer), narrowed(odd, latent_pointer), FORM)
    store_pairs(latent_pointer, pair, inside, even, odd)


@triton.jit
def _open_key(
    projected_pointer, norm_pointer, turns_pointer, pool_pointer, store_pointer, staged, eps,
    DIM: tl.constexpr, ROTARY: tl.constexpr, FORM: tl.constexpr, STORE: tl.constexpr,
):  # fmt: skip
    pair = tl.arange(0, DIM // 2)
    inside = pair < DIM // 2
    even, odd = load_pairs(projected_pointer, pair, inside)
    even_weight, odd_weight = load_pairs(norm_pointer, pair, inside)
    even, odd = norm_pairs(even, odd, even_weight, odd_weight, eps, DIM)
    even, odd = narrowed(even, pool_pointer), narrowed(odd, pool_pointer)
    cos, sin = turn_factors(turns_pointer, pair, ROTARY, DIM)
    even, odd = turn_pairs(even, odd, cos, sin)
    even, odd = round_pairs(narrowed(even, pool_pointer), narrowed(odd, pool_pointer), FORM)
    store_pairs(pool_pointer + staged * DIM, pair, inside, even, odd)
    if STORE:
        place = tl.load(store_pointer).to(tl.int64)
        store_pairs(pool_pointer + place * DIM, pair, inside, even, odd)


@triton.jit
def _open_latents(
    projected_pointer, query_norm_pointer, key_norm_pointer, turns_pointer, latent_pointer, pool_pointer,
    store_pointer, staging, eps, RANK: tl.constexpr, RANK_PAIRS: tl.constexpr, DIM: tl.constexpr,
    ROTARY: tl.constexpr, FORM: tl.constexpr, STORE: tl.constexpr,
):  # fmt: skip
    """Grid: rows, then latent or key. Branches of one kernel cannot give a name two shapes, functions can."""
    row = tl.program_id(0).to(tl.int64)
    projected = projected_pointer + row * (RANK + DIM)
    if tl.program_id(1) == 0:
        _open_query(projected, query_norm_pointer, latent_pointer + row * RANK, eps, RANK, RANK_PAIRS, FORM)
    else:
        _open_key(
            projected + RANK, key_norm_pointer, turns_pointer + row * ROTARY, pool_pointer,
            store_pointer + row, staging + row, eps, DIM, ROTARY, FORM, STORE,
        )  # fmt: skip


@triton.jit
def _finish_vector(
    even, odd, row, norm_pointer, turns_pointer, latent_pointer, pool_pointer, store_pointer, eps,
    DIM: tl.constexpr, ROTARY: tl.constexpr, FORM: tl.constexpr, LATENT: tl.constexpr,
):  # fmt: skip
    """Norm, rotate, round and store one vector; the normed one is kept as a latent."""
    pair = tl.arange(0, DIM // 2)
    inside = pair < DIM // 2
    even_weight, odd_weight = load_pairs(norm_pointer, pair, inside)
    even, odd = norm_pairs(even, odd, even_weight, odd_weight, eps, DIM)
    even, odd = narrowed(even, pool_pointer), narrowed(odd, pool_pointer)
    if LATENT:
        store_pairs(latent_pointer + row * DIM, pair, inside, even, odd)
    cos, sin = turn_factors(turns_pointer + row * ROTARY, pair, ROTARY, DIM)
    even, odd = turn_pairs(even, odd, cos, sin)
    even, odd = round_pairs(narrowed(even, pool_pointer), narrowed(odd, pool_pointer), FORM)
    place = tl.load(store_pointer + row).to(tl.int64)
    store_pairs(pool_pointer + place * DIM, pair, inside, even, odd)


@triton.jit
def _store_vector(
    projected_pointer, norm_pointer, turns_pointer, latent_pointer, pool_pointer, store_pointer, eps,
    DIM: tl.constexpr, ROTARY: tl.constexpr, FORM: tl.constexpr, LATENT: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    pair = tl.arange(0, DIM // 2)
    even, odd = load_pairs(projected_pointer + row * DIM, pair, pair < DIM // 2)
    _finish_vector(
        even, odd, row, norm_pointer, turns_pointer, latent_pointer, pool_pointer, store_pointer, eps,
        DIM, ROTARY, FORM, LATENT,
    )  # fmt: skip


@triton.jit
def _member(pair, place, staging, value_gate_pointer, group_pool_pointer, DIM: tl.constexpr):
    """Values and gates of one position of a group: of this launch, of the ring, or nothing."""
    fresh = place >= staging
    source = value_gate_pointer + (place - staging) * (2 * DIM)
    if not fresh:
        source = group_pool_pointer + place * (2 * DIM)
    inside = (pair < DIM // 2) & (place >= 0)
    even, odd = load_pairs(source, pair, inside)
    even_gate, odd_gate = load_pairs(source + DIM, pair, inside)
    return even, odd, even_gate, odd_gate


@triton.jit
def _store_pooled(
    value_gate_pointer, group_pool_pointer, members_pointer, keep_pointer, norm_pointer, turns_pointer,
    latent_pointer, pool_pointer, store_pointer, staging, eps, RATIO: tl.constexpr, DIM: tl.constexpr,
    ROTARY: tl.constexpr, FORM: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    """A row pools its own group: the members of this step are read where the projection left them, so no
    program waits for another's write to the ring."""
    row = tl.program_id(0).to(tl.int64)
    pair = tl.arange(0, DIM // 2)
    even_top = tl.full([DIM // 2], -float("inf"), tl.float32)
    odd_top = even_top
    for member in tl.static_range(RATIO):
        place = tl.load(members_pointer + row * RATIO + member).to(tl.int64)
        _, _, even_gate, odd_gate = _member(pair, place, staging, value_gate_pointer, group_pool_pointer, DIM)
        even_top = tl.maximum(even_top, even_gate)
        odd_top = tl.maximum(odd_top, odd_gate)
    even_sum = tl.zeros([DIM // 2], tl.float32)
    odd_sum = even_sum
    even_total = even_sum
    odd_total = even_sum
    for member in tl.static_range(RATIO):
        place = tl.load(members_pointer + row * RATIO + member).to(tl.int64)
        even, odd, even_gate, odd_gate = _member(
            pair, place, staging, value_gate_pointer, group_pool_pointer, DIM
        )
        even_weight = tl.exp(even_gate - even_top)
        odd_weight = tl.exp(odd_gate - odd_top)
        even_sum += even_weight * even
        odd_sum += odd_weight * odd
        even_total += even_weight
        odd_total += odd_weight
    if KEEP:
        channel = tl.arange(0, 2 * DIM)
        place = tl.load(keep_pointer + row).to(tl.int64)
        own = tl.load(value_gate_pointer + row * (2 * DIM) + channel)
        tl.store(group_pool_pointer + place * (2 * DIM) + channel, own)
    even = narrowed(even_sum / even_total, pool_pointer)
    odd = narrowed(odd_sum / odd_total, pool_pointer)
    _finish_vector(
        even, odd, row, norm_pointer, turns_pointer, latent_pointer, pool_pointer, store_pointer, eps,
        DIM, ROTARY, FORM, True,
    )  # fmt: skip


def open_latents_(
    projected_rows_dim: Tensor,
    query_norm: Tensor,
    key_norm: Tensor,
    eps: float,
    turns_rows_dim: Tensor,
    window_pool: Tensor,
    window: RingIndex,
    *,
    keep: bool,
    quantized: bool,
) -> Tensor:
    """See the twin."""
    rows, rank, dim = projected_rows_dim.shape[0], query_norm.shape[0], key_norm.shape[0]
    if not _fits(dim) or rank % 32:
        return reference.open_latents_(
            projected_rows_dim, query_norm, key_norm, eps, turns_rows_dim, window_pool, window,
            keep=keep, quantized=quantized,
        )  # fmt: skip
    latent = projected_rows_dim.new_empty(rows, rank)
    if rows:
        _open_latents[(rows, 2)](
            projected_rows_dim.contiguous(), query_norm, key_norm, turns_rows_dim, latent, window_pool,
            window.store, window.staging, eps, RANK=rank, RANK_PAIRS=power_of_two(rank // 2), DIM=dim,
            ROTARY=turns_rows_dim.shape[1], FORM=FORM["fp8" if quantized else "plain"],
            STORE=keep and window.store_first, num_warps=_warps(max(rank, dim)),
        )  # fmt: skip
    return latent


def store_key_(
    projected_rows_dim: Tensor,
    norm: Tensor,
    eps: float,
    turns_rows_dim: Tensor,
    form: Format,
    pool: Tensor,
    places: Tensor,
) -> None:
    """See the twin."""
    if not _fits(projected_rows_dim.shape[1]):
        return reference.store_key_(projected_rows_dim, norm, eps, turns_rows_dim, form, pool, places)
    _launch_store(projected_rows_dim, norm, eps, turns_rows_dim, form, pool, places, None)
    return None


def store_entry_(
    projected_rows_dim: Tensor,
    norm: Tensor,
    eps: float,
    turns_rows_dim: Tensor,
    form: Format,
    pool: Tensor,
    places: Tensor,
) -> Tensor:
    """See the twin."""
    if not _fits(projected_rows_dim.shape[1]):
        return reference.store_entry_(projected_rows_dim, norm, eps, turns_rows_dim, form, pool, places)
    latent = projected_rows_dim.new_empty(projected_rows_dim.shape)
    _launch_store(projected_rows_dim, norm, eps, turns_rows_dim, form, pool, places, latent)
    return latent


def store_pooled_entry_(
    value_gate_rows_dim: Tensor,
    group_pool: Tensor,
    group: RingIndex,
    norm: Tensor,
    eps: float,
    turns_rows_dim: Tensor,
    form: Format,
    pool: Tensor,
    places: Tensor,
) -> Tensor:
    """See the twin. Nothing is written to the staging area, which nobody else reads."""
    rows, dim = value_gate_rows_dim.shape[0], pool.shape[1]
    if not _fits(dim):
        return reference.store_pooled_entry_(
            value_gate_rows_dim, group_pool, group, norm, eps, turns_rows_dim, form, pool, places
        )
    latent = pool.new_empty(rows, dim)
    if rows:
        value_gate = value_gate_rows_dim.contiguous()
        members = group.keys.places
        _store_pooled[(rows,)](
            value_gate, group_pool, members.contiguous(), group.store, norm, turns_rows_dim, latent, pool,
            places, group.staging, eps, RATIO=members.shape[1], DIM=dim, ROTARY=turns_rows_dim.shape[1],
            FORM=FORM[form], KEEP=group.store_first, num_warps=_warps(dim),
        )  # fmt: skip
        if not group.store_first:
            group_pool.index_copy_(0, group.store.long(), value_gate)
    return latent


def _launch_store(
    projected: Tensor,
    norm: Tensor,
    eps: float,
    turns: Tensor,
    form: Format,
    pool: Tensor,
    places: Tensor,
    latent: Tensor | None,
) -> None:
    rows, dim = projected.shape
    if rows:
        _store_vector[(rows,)](
            projected.contiguous(), norm, turns, projected if latent is None else latent, pool, places, eps,
            DIM=dim, ROTARY=turns.shape[1], FORM=FORM[form], LATENT=latent is not None,
            num_warps=_warps(dim),
        )  # fmt: skip


def _fits(dim: int) -> bool:
    """Vectors whose pairs fill a range: a power of two of at least one quantization group."""
    return dim >= 32 and dim & (dim - 1) == 0


def _warps(dim: int) -> int:
    return 1 if dim <= 128 else 4
