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
def add_product(total, x, high, middle, low):
    """`total + x @ weight` in float32 accuracy on bfloat16 matrix units, of a weight in three parts.

    A bfloat16 `x` meets all parts, which loses nothing; a float32 `x` is split likewise and the three
    products below 2^-24 are left out. Plain float32 products would run outside the matrix units, and tf32
    would keep ten bits. Small terms are added first.
    """
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
def store_logits(
    raw,
    inverse_rms,
    row,
    rows,
    base_pointer,
    scale_pointer,
    mixes_pointer,
    hc_eps,
    COPIES: tl.constexpr,
    PADDED: tl.constexpr,
):
    """From raw products `[PADDED, rows of a tile]` to `pre`, `post` and the logits of `comb`.

    The three lie behind each other in one memory, so that they leave in one store: `pre` and `post`
    `[rows, COPIES]`, then `comb` `[rows, COPIES, COPIES]`.
    """
    place, number = tl.arange(0, PADDED)[:, None], row.to(tl.int64)[None, :]
    real = place < (2 + COPIES) * COPIES
    base = tl.load(base_pointer + place, mask=real, other=0.0)
    scale = tl.load(scale_pointer + place, mask=real, other=0.0)
    logits = base + raw * inverse_rms[None, :] * scale
    gates = tl.sigmoid(logits)
    part = place // COPIES  # 0 `pre`, 1 `post`, above them `comb`
    value = tl.where(part == 0, gates + hc_eps, tl.where(part == 1, gates * 2.0, logits))
    gate_at = part * rows * COPIES + number * COPIES + place % COPIES
    comb_at = 2 * rows * COPIES + number * (COPIES * COPIES) + place - 2 * COPIES
    tl.store(mixes_pointer + tl.where(part < 2, gate_at, comb_at), value, mask=real & (number < rows))


@triton.jit
def _inverse(x):
    """`1 / x` to the last bit or two, of what is neither tiny nor huge: a division also asks whether it is,
    which takes longer than all the rest of an iteration."""
    if _INTERPRETED:
        return 1.0 / x
    return tl.inline_asm_elementwise(
        "rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
    )


@triton.jit
def _divide_by_sums(matrix, eps, COPIES: tl.constexpr):
    """The transposed matrix, each of its rows divided by its sum."""
    out = ()
    for row in tl.static_range(COPIES):
        total = matrix[row]
        for column in tl.static_range(1, COPIES):
            total += matrix[column * COPIES + row]
        inverse = _inverse(total + eps)
        for column in tl.static_range(COPIES):
            out = out + (matrix[column * COPIES + row] * inverse,)  # noqa: RUF005
    return out


@triton.jit
def balance(mixes_pointer, row, rows, hc_eps, COPIES: tl.constexpr, ITERATIONS: tl.constexpr):
    """Sinkhorn's iterations on the logits that `store_logits` left in `comb`, in place.

    A thread holds the whole matrix of its row. A tile of matrices spreads each over several threads, and
    their exchanges, two a half-step, took four times as long as the arithmetic.
    """
    here = row < rows
    base = mixes_pointer + 2 * rows * COPIES + row.to(tl.int64) * (COPIES * COPIES)
    matrix = ()
    for source in tl.static_range(COPIES):
        logits = ()
        for destination in tl.static_range(COPIES):
            place = base + (source * COPIES + destination)
            logits = logits + (tl.load(place, mask=here, other=0.0),)  # noqa: RUF005
        top = logits[0]
        for destination in tl.static_range(1, COPIES):
            top = tl.maximum(top, logits[destination])
        exponents = ()
        for destination in tl.static_range(COPIES):
            exponents = exponents + (tl.exp(logits[destination] - top),)  # noqa: RUF005
        total = exponents[0]
        for destination in tl.static_range(1, COPIES):
            total += exponents[destination]
        inverse = 1.0 / total
        for destination in tl.static_range(COPIES):
            matrix = matrix + (exponents[destination] * inverse + hc_eps,)  # noqa: RUF005
    matrix = _divide_by_sums(matrix, hc_eps, COPIES)
    for _ in range(ITERATIONS - 1):
        matrix = _divide_by_sums(matrix, hc_eps, COPIES)
        matrix = _divide_by_sums(matrix, hc_eps, COPIES)
    # After an odd number of transpositions the destination is the first index.
    for destination in tl.static_range(COPIES):
        for source in tl.static_range(COPIES):
            value = matrix[destination * COPIES + source]
            tl.store(base + (source * COPIES + destination), value, mask=here)
