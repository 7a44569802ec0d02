"""Parts that kernels are made of: products as exact as float32, and the coefficients of hyper-connections."""

from __future__ import annotations

import triton
import triton.language as tl

from .launching import INTERPRETED

_INTERPRETED = tl.constexpr(INTERPRETED)


@triton.jit
def dot(x, y, total):
    """`total + x @ y` for bfloat16 factors. The interpreter's product knows no bfloat16."""
    if _INTERPRETED:
        return tl.dot(x.to(tl.float32), y.to(tl.float32), total)
    return tl.dot(x, y, total)


@triton.jit
def split_float32(x):
    """Three bfloat16 values whose sum is a float32 value to its last bit or two."""
    high = x.to(tl.bfloat16)
    rest = x - high.to(tl.float32)
    middle = rest.to(tl.bfloat16)
    low = (rest - middle.to(tl.float32)).to(tl.bfloat16)
    return high, middle, low


@triton.jit
def add_product(total, x, weight):
    """`total + x @ weight.T` in float32 accuracy on bfloat16 matrix units; `weight` is float32.

    A bfloat16 `x` meets the three parts of the weight, which loses nothing; a float32 `x` is split likewise
    and the three products below 2^-24 are left out. Plain float32 products would run outside the matrix
    units, and tf32 would keep ten bits. Small terms are added first.
    """
    high, middle, low = split_float32(tl.trans(weight))
    if x.dtype == tl.bfloat16:
        total = dot(x, low, total)
        total = dot(x, middle, total)
        total = dot(x, high, total)
    else:
        x_high, x_middle, x_low = split_float32(x)
        total = dot(x_low, high, total)
        total = dot(x_middle, middle, total)
        total = dot(x_high, low, total)
        total = dot(x_middle, high, total)
        total = dot(x_high, middle, total)
        total = dot(x_high, high, total)
    return total


@triton.jit
def coefficients(
    raw,
    inverse_rms,
    base_pointer,
    scale_pointer,
    hc_eps,
    COPIES: tl.constexpr,
    GROUPS: tl.constexpr,
    ITERATIONS: tl.constexpr,
):
    """From raw products `[rows, GROUPS * COPIES]` to coefficients `[rows, GROUPS, COPIES]`.

    Group 0 is `pre`, group 1 `post`, the next COPIES groups are `comb` by source, the rest is padding. All
    groups take every path and a mask picks: slices of a tile cost more than the arithmetic they save.
    """
    place = tl.arange(0, GROUPS * COPIES)
    real = place < (2 + COPIES) * COPIES
    base = tl.load(base_pointer + place, mask=real, other=0.0)
    scale = tl.load(scale_pointer + place, mask=real, other=0.0)
    logits = base[None, :] + raw * inverse_rms[:, None] * scale[None, :]
    logits = tl.reshape(logits, (raw.shape[0], GROUPS, COPIES))
    group = tl.arange(0, GROUPS)[None, :, None]
    is_comb = (group >= 2) & (group < 2 + COPIES)
    exponents = tl.exp(logits - tl.max(logits, axis=2, keep_dims=True))
    comb = exponents / tl.sum(exponents, axis=2, keep_dims=True) + hc_eps
    comb = tl.where(is_comb, comb, 0.0)
    comb = comb / tl.where(is_comb, tl.sum(comb, axis=1, keep_dims=True) + hc_eps, 1.0)
    for _ in range(ITERATIONS - 1):
        comb = comb / tl.where(is_comb, tl.sum(comb, axis=2, keep_dims=True) + hc_eps, 1.0)
        comb = comb / tl.where(is_comb, tl.sum(comb, axis=1, keep_dims=True) + hc_eps, 1.0)
    gates = tl.sigmoid(logits)
    return tl.where(group == 0, gates + hc_eps, tl.where(group == 1, gates * 2.0, comb))


@triton.jit
def store_coefficients(
    values,
    row,
    rows,
    pre_pointer,
    post_pointer,
    comb_pointer,
    COPIES: tl.constexpr,
    GROUPS: tl.constexpr,
):
    """Write what `coefficients` returned: `pre`, `post` `[rows, COPIES]`, `comb` `[rows, COPIES, COPIES]`."""
    group = tl.arange(0, GROUPS)[None, :, None]
    copy = tl.arange(0, COPIES)[None, None, :]
    number = row.to(tl.int64)[:, None, None]
    here = number < rows
    gate = number * COPIES + copy + tl.zeros_like(group)
    tl.store(pre_pointer + gate, values, mask=here & (group == 0))
    tl.store(post_pointer + gate, values, mask=here & (group == 1))
    mixed = (number * COPIES + (group - 2)) * COPIES + copy
    tl.store(comb_pointer + mixed, values, mask=here & (group >= 2) & (group < 2 + COPIES))
