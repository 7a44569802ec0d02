"""Programs of `experts`: a tile of rows of one expert against some rows of its weights.

A weight is the left factor, expanded in registers as it arrives; activations are the right one. The same
functions serve routed experts, whose rows are named by the order that `routing` left, and the shared expert,
which has all rows in their own order.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .codes import (
    FP8_BLOCK,
    MXFP4,
    PLAIN,
    dot,
    expand_e2m1,
    expand_e4m3,
    fp8_round_trip,
    scale_places,
)


@triton.jit
def _weight_places(
    weight_ptr, scales_ptr, row, columns: tl.constexpr, STEP: tl.constexpr, FORMAT: tl.constexpr,
    WORDS: tl.constexpr,
):  # fmt: skip
    """Where the first `STEP` columns of some weight rows are, and their scales."""
    if FORMAT == MXFP4:
        weight_ptr += row[:, None] * (columns // 2) + tl.arange(0, STEP // 2)[None, :]
        scales_ptr = scale_places(scales_ptr, row, columns, STEP, WORDS)
    else:
        weight_ptr += row[:, None] * columns + tl.arange(0, STEP)[None, :]
        scales_ptr = scale_places(scales_ptr, row // 32, columns, STEP, WORDS)
    return weight_ptr, scales_ptr


@triton.jit
def _input_places(row, columns: tl.constexpr, STEP: tl.constexpr, FORMAT: tl.constexpr):
    width: tl.constexpr = STEP // 2 if FORMAT == MXFP4 else STEP
    return row.to(tl.int64)[None, :] * columns + tl.arange(0, width)[:, None]


@triton.jit
def _inputs(x_ptr, half: tl.constexpr, FORMAT: tl.constexpr):
    """Some columns of the activations; of 4-bit weights the even ones and the odd ones."""
    even = tl.load(x_ptr)
    odd = even
    if FORMAT == MXFP4:
        odd = tl.load(x_ptr + half)
    return even, odd


@triton.jit
def _weights(payload_ptr, scales_ptr, like, FORMAT: tl.constexpr, ASSEMBLY: tl.constexpr):
    """A tile of weights expanded to the type of `like`: two parts for 4-bit weights, else one twice."""
    if FORMAT == PLAIN:
        even = tl.load(payload_ptr)
        odd = even
    elif FORMAT == FP8_BLOCK:
        even = expand_e4m3(tl.load(payload_ptr), tl.load(scales_ptr), ASSEMBLY).to(like.dtype)
        odd = even
    else:
        even, odd = expand_e2m1(tl.load(payload_ptr), tl.load(scales_ptr), ASSEMBLY)
        even, odd = even.to(like.dtype), odd.to(like.dtype)
    return even, odd


@triton.jit
def _add_product(sums, even, odd, x_even, x_odd, FORMAT: tl.constexpr, ASSEMBLY: tl.constexpr):
    sums = dot(even, x_even, sums, ASSEMBLY)
    if FORMAT == MXFP4:
        sums = dot(odd, x_odd, sums, ASSEMBLY)
    return sums


@triton.jit
def _rows_of_tile(
    order_ptr, shares_ptr, first, count, HEIGHT: tl.constexpr, TOP_K: tl.constexpr, ROUTED: tl.constexpr
):  # fmt: skip
    """Of the lanes of a tile: input row, hidden row, share, output row, and whether there is such a row.

    Lanes without a row repeat the last one. A pick's outputs lie behind the shared expert's of its row.
    """
    lane = tl.arange(0, HEIGHT)
    place = first + tl.minimum(lane, count - 1)
    if ROUTED:
        pick = tl.load(order_ptr + place)
        row, out = pick // TOP_K, pick // TOP_K * (TOP_K + 1) + pick % TOP_K + 1
        share = tl.load(shares_ptr + pick)
    else:
        row, out = place, place * (TOP_K + 1)
        share = tl.full((HEIGHT,), 1.0, tl.float32)
    return row, place, share, out, lane < count


@triton.jit
def _store_hidden(
    sums, share, hidden_ptr, place, exists, column, limit, INNER: tl.constexpr, PART: tl.constexpr,
    ROUND: tl.constexpr,
):  # fmt: skip
    halves = tl.reshape(sums, (2, sums.shape[0] // 2, sums.shape[1]))
    gate, up = tl.split(tl.permute(halves, (1, 2, 0)))
    gate = tl.minimum(gate, limit)
    up = tl.minimum(tl.maximum(up, -limit), limit)
    hidden = tl.trans(gate * tl.sigmoid(gate) * up) * share[:, None]
    dtype = hidden_ptr.dtype.element_ty
    if ROUND:
        hidden = fp8_round_trip(hidden.to(dtype).to(tl.float32), hidden.shape[1] // 32)
    if PART:
        column = column % 2 * (INNER // 2) + column // 2
    place = place.to(tl.int64)[:, None] * INNER + column[None, :]
    tl.store(hidden_ptr + place, hidden.to(dtype), mask=exists[:, None])


@triton.jit
def _gate_up_tile(
    x_ptr, order_ptr, shares_ptr, first, count, weight_ptr, scales_ptr, expert, block, hidden_ptr, limit,
    TOP_K: tl.constexpr, DIM: tl.constexpr, INNER: tl.constexpr, FORMAT: tl.constexpr, ROUND: tl.constexpr,
    ROUTED: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
    STEP: tl.constexpr, WORDS: tl.constexpr, ASSEMBLY: tl.constexpr,
):  # fmt: skip
    """Some columns of the hidden activations of up to `HEIGHT` rows of one expert.

    Gate and up projection are the halves of one factor: fewer, larger steps for the matrix units.
    """
    column = block * WIDTH + tl.arange(0, WIDTH)
    bytes_per_row: tl.constexpr = DIM // 2 if FORMAT == MXFP4 else DIM
    scale_rows: tl.constexpr = INNER // 32 if FORMAT == FP8_BLOCK else INNER
    lane = tl.arange(0, 2 * WIDTH)
    weight_row = block * WIDTH + lane % WIDTH + lane // WIDTH * INNER
    weight_ptr, scales_ptr = _weight_places(
        weight_ptr + expert.to(tl.int64) * (2 * INNER * bytes_per_row),
        scales_ptr + expert.to(tl.int64) * (2 * scale_rows * (DIM // 32)),
        weight_row, DIM, STEP, FORMAT, WORDS,
    )  # fmt: skip
    row, place, share, _, exists = _rows_of_tile(order_ptr, shares_ptr, first, count, HEIGHT, TOP_K, ROUTED)
    input_ptr = x_ptr + _input_places(row, DIM, STEP, FORMAT)
    sums = tl.zeros((2 * WIDTH, HEIGHT), tl.float32)
    step: tl.constexpr = STEP // 2 if FORMAT == MXFP4 else STEP
    scale_unit: tl.constexpr = STEP // (128 if WORDS else 32)
    for _ in range(0, DIM, STEP):
        x_even, x_odd = _inputs(input_ptr, DIM // 2, FORMAT)
        even, odd = _weights(weight_ptr, scales_ptr, x_even, FORMAT, ASSEMBLY)
        sums = _add_product(sums, even, odd, x_even, x_odd, FORMAT, ASSEMBLY)
        input_ptr += step
        weight_ptr += step
        scales_ptr += scale_unit
    PART: tl.constexpr = ROUTED and FORMAT == MXFP4
    _store_hidden(sums, share, hidden_ptr, place, exists, column, limit, INNER, PART, ROUND)


@triton.jit(do_not_specialize=["rows", "tiles"])
def gate_up(
    x_ptr, parted_ptr, order_ptr, expert_ptr, first_ptr, count_ptr, shares_ptr, hidden_ptr,
    weight_ptr, scales_ptr, shared_ptr, shared_scales_ptr, rows, tiles, limit,
    TOP_K: tl.constexpr, DIM: tl.constexpr, INNER: tl.constexpr, SHARED_INNER: tl.constexpr,
    FORMAT: tl.constexpr, SHARED_FORMAT: tl.constexpr, ROUND: tl.constexpr,
    HEIGHT: tl.constexpr, SHARED_HEIGHT: tl.constexpr, WIDTH: tl.constexpr, SHARED_WIDTH: tl.constexpr,
    STEP: tl.constexpr, SHARED_STEP: tl.constexpr, WORDS: tl.constexpr, SHARED_WORDS: tl.constexpr,
    ASSEMBLY: tl.constexpr,
):  # fmt: skip
    blocks: tl.constexpr = INNER // WIDTH
    program = tl.program_id(0)
    input_ptr = parted_ptr if FORMAT == MXFP4 else x_ptr
    if program < tiles * blocks:
        tile, block = program // blocks, program % blocks
        count, first, expert = (
            tl.load(count_ptr + tile),
            tl.load(first_ptr + tile),
            tl.load(expert_ptr + tile),
        )
        low: tl.constexpr = 64 if HEIGHT > 64 else HEIGHT
        if (count > 0) & (count <= low):
            _gate_up_tile(
                input_ptr, order_ptr, shares_ptr, first, count, weight_ptr, scales_ptr, expert, block,
                hidden_ptr, limit, TOP_K, DIM, INNER, FORMAT, ROUND, True, low, WIDTH, STEP, WORDS,
                ASSEMBLY,
            )  # fmt: skip
        if low < HEIGHT:  # noqa: SIM102 - decided when compiling
            if count > low:
                _gate_up_tile(
                    input_ptr, order_ptr, shares_ptr, first, count, weight_ptr, scales_ptr, expert, block,
                    hidden_ptr, limit, TOP_K, DIM, INNER, FORMAT, ROUND, True, HEIGHT, WIDTH, STEP,
                    WORDS, ASSEMBLY,
                )  # fmt: skip
    else:
        shared_blocks: tl.constexpr = SHARED_INNER // SHARED_WIDTH
        program -= tiles * blocks
        first = program // shared_blocks * SHARED_HEIGHT
        # Behind the hidden rows of all picks, which may be wider or narrower than those of the shared expert.
        hidden_ptr += rows.to(tl.int64) * (TOP_K * INNER)
        _gate_up_tile(
            x_ptr, order_ptr, shares_ptr, first, rows - first, shared_ptr, shared_scales_ptr, 0 * program,
            program % shared_blocks, hidden_ptr, limit, TOP_K, DIM, SHARED_INNER, SHARED_FORMAT, ROUND, False,
            SHARED_HEIGHT, SHARED_WIDTH, SHARED_STEP, SHARED_WORDS, ASSEMBLY,
        )  # fmt: skip


@triton.jit
def _down_tile(
    hidden_ptr, order_ptr, first, count, weight_ptr, scales_ptr, expert, block, out_ptr,
    TOP_K: tl.constexpr, DIM: tl.constexpr, INNER: tl.constexpr, FORMAT: tl.constexpr,
    ROUTED: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
    STEP: tl.constexpr, WORDS: tl.constexpr, ASSEMBLY: tl.constexpr,
):  # fmt: skip
    column = block * WIDTH + tl.arange(0, WIDTH)
    bytes_per_row: tl.constexpr = INNER // 2 if FORMAT == MXFP4 else INNER
    scale_rows: tl.constexpr = DIM // 32 if FORMAT == FP8_BLOCK else DIM
    weight_ptr += expert.to(tl.int64) * (DIM * bytes_per_row)
    scales_ptr += expert.to(tl.int64) * (scale_rows * (INNER // 32))
    weight_ptr, scales_ptr = _weight_places(weight_ptr, scales_ptr, column, INNER, STEP, FORMAT, WORDS)
    # Shares were applied to the hidden activations: any readable memory does in their place here.
    _, place, _, out, exists = _rows_of_tile(order_ptr, out_ptr, first, count, HEIGHT, TOP_K, ROUTED)
    input_ptr = hidden_ptr + _input_places(place, INNER, STEP, FORMAT)
    sums = tl.zeros((WIDTH, HEIGHT), tl.float32)
    step: tl.constexpr = STEP // 2 if FORMAT == MXFP4 else STEP
    scale_unit: tl.constexpr = STEP // (128 if WORDS else 32)
    for _ in range(0, INNER, STEP):
        x_even, x_odd = _inputs(input_ptr, INNER // 2, FORMAT)
        even, odd = _weights(weight_ptr, scales_ptr, x_even, FORMAT, ASSEMBLY)
        sums = _add_product(sums, even, odd, x_even, x_odd, FORMAT, ASSEMBLY)
        input_ptr += step
        weight_ptr += step
        scales_ptr += scale_unit
    out_ptr += out.to(tl.int64)[None, :] * DIM + column[:, None]
    tl.store(out_ptr, sums.to(out_ptr.dtype.element_ty), mask=exists[None, :])


@triton.jit(do_not_specialize=["rows", "tiles"])
def down(
    hidden_ptr, order_ptr, expert_ptr, first_ptr, count_ptr, out_ptr,
    weight_ptr, scales_ptr, shared_ptr, shared_scales_ptr, rows, tiles,
    TOP_K: tl.constexpr, DIM: tl.constexpr, INNER: tl.constexpr, SHARED_INNER: tl.constexpr,
    FORMAT: tl.constexpr, SHARED_FORMAT: tl.constexpr, HEIGHT: tl.constexpr, SHARED_HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr, SHARED_WIDTH: tl.constexpr, STEP: tl.constexpr, SHARED_STEP: tl.constexpr,
    WORDS: tl.constexpr, SHARED_WORDS: tl.constexpr, ASSEMBLY: tl.constexpr,
):  # fmt: skip
    blocks: tl.constexpr = DIM // WIDTH
    program = tl.program_id(0)
    tile, block = program // blocks, program % blocks
    if tile < tiles:
        count, first, expert = (
            tl.load(count_ptr + tile),
            tl.load(first_ptr + tile),
            tl.load(expert_ptr + tile),
        )
        low: tl.constexpr = 64 if HEIGHT > 64 else HEIGHT
        if (count > 0) & (count <= low):
            _down_tile(
                hidden_ptr, order_ptr, first, count, weight_ptr, scales_ptr, expert, block, out_ptr,
                TOP_K, DIM, INNER, FORMAT, True, low, WIDTH, STEP, WORDS, ASSEMBLY,
            )  # fmt: skip
        if low < HEIGHT:  # noqa: SIM102 - decided when compiling
            if count > low:
                _down_tile(
                    hidden_ptr, order_ptr, first, count, weight_ptr, scales_ptr, expert, block, out_ptr,
                    TOP_K, DIM, INNER, FORMAT, True, HEIGHT, WIDTH, STEP, WORDS, ASSEMBLY,
                )  # fmt: skip
    else:
        shared_blocks: tl.constexpr = DIM // SHARED_WIDTH
        program -= tiles * blocks
        first = program // shared_blocks * SHARED_HEIGHT
        hidden_ptr += rows.to(tl.int64) * (TOP_K * INNER)
        _down_tile(
            hidden_ptr, order_ptr, first, rows - first, shared_ptr, shared_scales_ptr, 0 * program,
            program % shared_blocks, out_ptr, TOP_K, DIM, SHARED_INNER, SHARED_FORMAT, False, SHARED_HEIGHT,
            SHARED_WIDTH, SHARED_STEP, SHARED_WORDS, ASSEMBLY,
        )  # fmt: skip


@triton.jit
def activate(gate_up_ptr, hidden_ptr, limit, INNER: tl.constexpr, ROUND: tl.constexpr, COLUMNS: tl.constexpr):
    """Hidden activations of the shared expert from its projections `[rows, 2 * INNER]`."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    mask = column < INNER
    gate_up_ptr += row * (2 * INNER) + column
    gate = tl.minimum(tl.load(gate_up_ptr, mask=mask, other=0.0).to(tl.float32), limit)
    up = tl.load(gate_up_ptr + INNER, mask=mask, other=0.0).to(tl.float32)
    hidden = gate * tl.sigmoid(gate) * tl.minimum(tl.maximum(up, -limit), limit)
    dtype = hidden_ptr.dtype.element_ty
    if ROUND:
        hidden = fp8_round_trip(hidden.to(dtype).to(tl.float32)[None, :], COLUMNS // 32).reshape(COLUMNS)
    tl.store(hidden_ptr + row * INNER + column, hidden.to(dtype), mask=mask)


@triton.jit
def combine(
    partial_ptr, shared_ptr, out_ptr, DIM: tl.constexpr, COUNT: tl.constexpr, SHARED_STRIDE: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    """`shared_ptr`: the shared expert's, wherever it left them, `SHARED_STRIDE` from row to row."""
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    mask = column < DIM
    row = tl.program_id(0).to(tl.int64)
    partial_ptr += row * (COUNT * DIM) + column
    routed = tl.load(partial_ptr + DIM, mask=mask).to(tl.float32)
    for k in tl.static_range(2, COUNT):
        routed += tl.load(partial_ptr + k * DIM, mask=mask).to(tl.float32)
    shared = tl.load(shared_ptr + row * SHARED_STRIDE + column, mask=mask).to(tl.float32)
    total = shared + routed
    tl.store(out_ptr + row * DIM + column, total.to(out_ptr.dtype.element_ty), mask=mask)
