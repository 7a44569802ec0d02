"""Opening a sublayer where a row is wide: programs take slabs of columns, and others finish their sums.

A slab is some columns of all streams of a tile of rows: its program writes the new streams and, while they
are in registers, multiplies and contracts them. What runs across the width (norm, coefficients) is left to a
second launch that adds up the parts of all slabs, always in their order, so that repeated runs agree bit for
bit; several programs share a row there.

Rejected: one launch for few rows, whose last programs wait for the others and rehearse meanwhile. On an H200
it took what the two take (8.2 us in a step of one row), since waiting costs what a launch does. And letting
the last slab finish: it would do one after the other what others do at once.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .mixing import add_product, balance, store_logits


@triton.jit
def _mix_slab(
    streams_pointer, output_pointer, post_pointer, comb_pointer, new_pointer, pre_pointer, weight_pointer,
    row, rows, column, DIM: tl.constexpr, COPIES: tl.constexpr, PADDED: tl.constexpr, EXPANDS: tl.constexpr,
):  # fmt: skip
    """New streams of a tile, and of it: raw products `[rows, PADDED]`, sums of squares, contracted input."""
    here = row < rows
    inside = here[:, None] & (column < DIM)[None, :]
    number = row.to(tl.int64)
    cell = number[:, None] * (COPIES * DIM) + column[None, :]
    coefficient = tl.arange(0, PADDED)
    real = (coefficient < (2 + COPIES) * COPIES)[None, :] & (column < DIM)[:, None]
    part: tl.constexpr = (2 + COPIES) * COPIES * COPIES * DIM
    raw = tl.zeros((row.shape[0], PADDED), tl.float32)
    squares = tl.zeros((row.shape[0], column.shape[0]), tl.float32)
    read = tl.zeros((row.shape[0], column.shape[0]), tl.float32)
    if EXPANDS:
        written = tl.load(output_pointer + number[:, None] * DIM + column[None, :], mask=inside, other=0.0)
        sources = ()
        for source in tl.static_range(COPIES):
            stream = tl.load(streams_pointer + cell + source * DIM, mask=inside, other=0.0)
            sources = sources + (stream,)  # noqa: RUF005
    # A loop at run time: unrolled, the weights of all copies are fetched at once and the registers run out.
    for copy in range(COPIES):
        at = weight_pointer + coefficient[None, :] * (COPIES * DIM) + copy * DIM + column[:, None]
        high = tl.load(at, mask=real, other=0.0)
        middle = tl.load(at + part, mask=real, other=0.0)
        low = tl.load(at + 2 * part, mask=real, other=0.0)
        if EXPANDS:
            factor = tl.load(post_pointer + number * COPIES + copy, mask=here, other=0.0)
            mixed = factor[:, None] * written.to(tl.float32)
            for source in tl.static_range(COPIES):
                at = comb_pointer + (number * COPIES + source) * COPIES + copy
                share = tl.load(at, mask=here, other=0.0)
                mixed += share[:, None] * sources[source].to(tl.float32)
            value = mixed.to(new_pointer.dtype.element_ty)
            tl.store(new_pointer + cell + copy * DIM, value, mask=inside)
        else:
            value = tl.load(streams_pointer + cell + copy * DIM, mask=inside, other=0.0)
        raw = add_product(raw, value, high, middle, low)
        wide = value.to(tl.float32)
        squares += wide * wide
        pre = tl.load(pre_pointer + number * COPIES + copy, mask=here, other=0.0)
        read += pre[:, None] * wide
    return raw, tl.sum(squares, axis=1), read.to(streams_pointer.dtype.element_ty)


@triton.jit(do_not_specialize=["rows"])
def open_slabs(
    streams_pointer, output_pointer, post_pointer, comb_pointer, new_pointer, pre_pointer, weight_pointer,
    partial_pointer, squares_pointer, read_pointer, rows, DIM: tl.constexpr, COPIES: tl.constexpr,
    PADDED: tl.constexpr, SLABS: tl.constexpr, EXPANDS: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    """The first launch: a slab's part of all sums, and of the input before its norm. Grid: slabs, tiles.

    Products `[rows, SLABS, PADDED]`; squares `[2, rows, SLABS]`, of the streams and of that input.
    """
    slab = tl.program_id(0)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    column = slab * COLUMNS + tl.arange(0, COLUMNS)
    raw, squares, read = _mix_slab(
        streams_pointer, output_pointer, post_pointer, comb_pointer, new_pointer, pre_pointer, weight_pointer,
        row, rows, column, DIM, COPIES, PADDED, EXPANDS,
    )  # fmt: skip
    here, number = row < rows, row.to(tl.int64)
    part = number * SLABS + slab
    wide = read.to(tl.float32)
    tl.store(
        partial_pointer + part[:, None] * PADDED + tl.arange(0, PADDED)[None, :], raw, mask=here[:, None]
    )
    tl.store(squares_pointer + part, squares, mask=here)
    tl.store(squares_pointer + rows * SLABS + part, tl.sum(wide * wide, axis=1), mask=here)
    place = number[:, None] * DIM + column[None, :]
    tl.store(read_pointer + place, read, mask=here[:, None] & (column < DIM)[None, :])


@triton.jit(do_not_specialize=["rows"])
def finish(
    partial_pointer, squares_pointer, read_pointer, base_pointer, scale_pointer, norm_pointer, normed_pointer,
    mixes_pointer, rows, hc_eps, norm_eps, DIM: tl.constexpr, COPIES: tl.constexpr, PADDED: tl.constexpr,
    SLABS: tl.constexpr, SLABS_PADDED: tl.constexpr, ITERATIONS: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    """The second launch. Grid: tiles of rows; tasks: 0 makes coefficients, n the n-th COLUMNS of the input.

    A row is summed after the other, then the Sinkhorn iterations of all are done at once.
    """
    first, task = tl.program_id(0) * ROWS, tl.program_id(1)
    slab = tl.arange(0, SLABS_PADDED)
    if task == 0:
        for one in range(ROWS):
            number = (first + one).to(tl.int64)
            part = number * SLABS + slab
            place = part[:, None] * PADDED + tl.arange(0, PADDED)[None, :]
            given = (number < rows) & (slab < SLABS)
            raw = tl.sum(tl.load(partial_pointer + place, mask=given[:, None], other=0.0), axis=0)
            squares = tl.sum(tl.load(squares_pointer + part, mask=given, other=0.0), axis=0)
            inverse_rms = tl.rsqrt(squares / (COPIES * DIM) + norm_eps) + tl.zeros((1,), tl.float32)
            store_logits(
                raw[:, None], inverse_rms, number + tl.zeros((1,), tl.int64), rows, base_pointer,
                scale_pointer, mixes_pointer, hc_eps, COPIES, PADDED,
            )  # fmt: skip
        tl.debug_barrier()  # what follows reads what other threads of this program have written
        balance(mixes_pointer, first + tl.arange(0, ROWS), rows, hc_eps, COPIES, ITERATIONS)
    else:
        column = (task - 1) * COLUMNS + tl.arange(0, COLUMNS)
        norm = tl.load(norm_pointer + column, mask=column < DIM, other=0.0).to(tl.float32)
        for one in range(ROWS):
            number = (first + one).to(tl.int64)
            part = (rows + number) * SLABS + slab
            given = (number < rows) & (slab < SLABS)
            inside = (number < rows) & (column < DIM)
            wide = tl.load(read_pointer + number * DIM + column, mask=inside, other=0.0).to(tl.float32)
            squares = tl.sum(tl.load(squares_pointer + part, mask=given, other=0.0), axis=0)
            normed = wide * tl.rsqrt(squares / DIM + norm_eps) * norm
            tl.store(
                normed_pointer + number * DIM + column,
                normed.to(normed_pointer.dtype.element_ty),
                mask=inside,
            )
