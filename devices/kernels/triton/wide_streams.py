"""Opening a sublayer where a row is wide: programs take slabs of columns, and others finish their sums.

A slab is some columns of all streams of a tile of rows: its program writes the new streams and, while they
are in registers, multiplies and contracts them. What runs across the width (norm, coefficients) is left to
programs that add up the parts of all slabs, always in their order, so repeated runs agree bit for bit. Few
rows: these programs are the last of the same launch and wait for the parts (`mailbox.py`). Many rows: they
are a launch of their own, since waiting programs would take the place of working ones. Both ways are made of
the same code, so a row's bits do not tell which it went.

Rejected for few rows: letting the last slab finish. It would do one after the other what others do at once,
for each row of the tile, and fetch its code and weights only then. Programs that wait have time: they
rehearse with a row that does not exist, which brings code, base, scale and norm weights near.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .mailbox import collect_two, post
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


@triton.jit
def _work_slab(
    streams_pointer, output_pointer, post_pointer, comb_pointer, new_pointer, pre_pointer, weight_pointer,
    partial_pointer, squares_pointer, read_pointer, slab, first, rows, DIM: tl.constexpr,
    COPIES: tl.constexpr, PADDED: tl.constexpr, SLABS: tl.constexpr, EXPANDS: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, NORMS: tl.constexpr,
):  # fmt: skip
    """A slab's part of all sums, and of the input before its norm, as `post` leaves them.

    Products `[rows, SLABS, PADDED]`; squares `[1 + NORMS, rows, SLABS]`: of the streams, then of that input.
    """
    row = first + tl.arange(0, ROWS)
    column = slab * COLUMNS + tl.arange(0, COLUMNS)
    raw, squares, read = _mix_slab(
        streams_pointer, output_pointer, post_pointer, comb_pointer, new_pointer, pre_pointer, weight_pointer,
        row, rows, column, DIM, COPIES, PADDED, EXPANDS,
    )  # fmt: skip
    here, number = row < rows, row.to(tl.int64)
    part = number * SLABS + slab
    post(partial_pointer + part[:, None] * PADDED + tl.arange(0, PADDED)[None, :], raw, here[:, None])
    post(squares_pointer + part, squares, here)
    place = number[:, None] * DIM + column[None, :]
    post(read_pointer + place, read, here[:, None] & (column < DIM)[None, :])
    wide = read.to(tl.float32)
    squares = tl.sum(wide * wide, axis=1)
    for task in tl.static_range(NORMS):
        post(squares_pointer + (1 + task) * rows.to(tl.int64) * SLABS + part, squares, here)


@triton.jit
def _received(pointer, mask, others_pointer, others_mask, WAITS: tl.constexpr):
    """What was posted: in this launch, or in an earlier one."""
    if WAITS:
        bits, others = collect_two(pointer, mask, others_pointer, others_mask)
    else:
        bits = tl.load(pointer, mask=mask, other=0)
        others = tl.load(others_pointer, mask=others_mask, other=0)
    return bits, others.to(tl.float32, bitcast=True)


@triton.jit
def _finish_rows(
    partial_pointer, squares_pointer, read_pointer, base_pointer, scale_pointer, norm_pointer, normed_pointer,
    mixes_pointer, first, task, rows, iterations, hc_eps, norm_eps, DIM: tl.constexpr, COPIES: tl.constexpr,
    PADDED: tl.constexpr, SLABS: tl.constexpr, SLABS_PADDED: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr, WAITS: tl.constexpr,
):  # fmt: skip
    """Task 0 of some rows: their coefficients; task `n`: the n-th COLUMNS of their normed input.

    A row is summed after the other, then the Sinkhorn iterations of all are done at once.
    """
    slab = tl.arange(0, SLABS_PADDED)
    narrow: tl.constexpr = normed_pointer.dtype.element_ty
    if task == 0:
        for one in range(ROWS):
            number = (first + one).to(tl.int64)
            part = number * SLABS + slab
            place = part[:, None] * PADDED + tl.arange(0, PADDED)[None, :]
            given = (number < rows) & (slab < SLABS)
            parts, squares = _received(
                partial_pointer + place, given[:, None], squares_pointer + part, given, WAITS
            )
            raw = tl.sum(parts.to(tl.float32, bitcast=True), axis=0)
            mean = tl.sum(squares, axis=0) / (COPIES * DIM)
            inverse_rms = tl.rsqrt(mean + norm_eps) + tl.zeros((1,), tl.float32)
            store_logits(
                raw[:, None], inverse_rms, number + tl.zeros((1,), tl.int64), rows, base_pointer,
                scale_pointer, mixes_pointer, hc_eps, COPIES, PADDED,
            )  # fmt: skip
        tl.debug_barrier()  # what follows reads what other threads of this program have written
        balance(mixes_pointer, first + tl.arange(0, ROWS), rows, hc_eps, COPIES, iterations)
    else:
        column = (task - 1) * COLUMNS + tl.arange(0, COLUMNS)
        norm = tl.load(norm_pointer + column, mask=column < DIM, other=0.0).to(tl.float32)
        list_of_squares = 1
        if WAITS:
            list_of_squares = task
        for one in range(ROWS):
            number = (first + one).to(tl.int64)
            part = (list_of_squares * rows + number) * SLABS + slab
            given = (number < rows) & (slab < SLABS)
            inside = (number < rows) & (column < DIM)
            read, squares = _received(
                read_pointer + number * DIM + column, inside, squares_pointer + part, given, WAITS
            )
            wide = read.to(narrow, bitcast=True).to(tl.float32)
            normed = wide * tl.rsqrt(tl.sum(squares, axis=0) / DIM + norm_eps) * norm
            tl.store(normed_pointer + number * DIM + column, normed.to(narrow), mask=inside)


@triton.jit(do_not_specialize=["rows"])
def open_slabs(
    streams_pointer, output_pointer, post_pointer, comb_pointer, new_pointer, pre_pointer, weight_pointer,
    partial_pointer, squares_pointer, read_pointer, rows, DIM: tl.constexpr, COPIES: tl.constexpr,
    PADDED: tl.constexpr, SLABS: tl.constexpr, EXPANDS: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    """The first of two launches. Grid: slabs, tiles of rows."""
    _work_slab(
        streams_pointer, output_pointer, post_pointer, comb_pointer, new_pointer, pre_pointer, weight_pointer,
        partial_pointer, squares_pointer, read_pointer, tl.program_id(0), tl.program_id(1) * ROWS, rows,
        DIM, COPIES, PADDED, SLABS, EXPANDS, ROWS, COLUMNS, 1,
    )  # fmt: skip


@triton.jit(do_not_specialize=["rows", "iterations"])
def finish(
    partial_pointer, squares_pointer, read_pointer, base_pointer, scale_pointer, norm_pointer, normed_pointer,
    mixes_pointer, rows, iterations, hc_eps, norm_eps, DIM: tl.constexpr, COPIES: tl.constexpr,
    PADDED: tl.constexpr, SLABS: tl.constexpr, SLABS_PADDED: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    """The second launch. Grid: tiles of rows, tasks."""
    _finish_rows(
        partial_pointer, squares_pointer, read_pointer, base_pointer, scale_pointer, norm_pointer,
        normed_pointer, mixes_pointer, tl.program_id(0) * ROWS, tl.program_id(1), rows, iterations, hc_eps,
        norm_eps, DIM, COPIES, PADDED, SLABS, SLABS_PADDED, ROWS, COLUMNS, False,
    )  # fmt: skip


@triton.jit(do_not_specialize=["rows", "iterations", "turns"])
def open_tile(
    streams_pointer, output_pointer, post_pointer, comb_pointer, new_pointer, pre_pointer, weight_pointer,
    partial_pointer, squares_pointer, read_pointer, base_pointer, scale_pointer, norm_pointer, normed_pointer,
    mixes_pointer, rows, iterations, turns, hc_eps, norm_eps, DIM: tl.constexpr, COPIES: tl.constexpr,
    PADDED: tl.constexpr, SLABS: tl.constexpr, SLABS_PADDED: tl.constexpr, EXPANDS: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, NORMS: tl.constexpr, NORM_COLUMNS: tl.constexpr,
):  # fmt: skip
    """One tile of rows in one launch. Grid: slabs, then the tasks of every row.

    All turns but the last are rehearsals (at run time: a compiler that sees two of them makes two copies of
    the code).
    """
    number = tl.program_id(0)
    if number < SLABS:
        _work_slab(
            streams_pointer, output_pointer, post_pointer, comb_pointer, new_pointer, pre_pointer,
            weight_pointer, partial_pointer, squares_pointer, read_pointer, number, 0, rows,
            DIM, COPIES, PADDED, SLABS, EXPANDS, ROWS, COLUMNS, NORMS,
        )  # fmt: skip
    else:
        row, task = (number - SLABS) % rows, (number - SLABS) // rows
        for turn in range(turns):
            last = turn == turns - 1
            _finish_rows(
                partial_pointer, squares_pointer, read_pointer, base_pointer, scale_pointer, norm_pointer,
                normed_pointer, mixes_pointer, tl.where(last, row, rows), task, rows,
                tl.where(last, iterations, 1), hc_eps, norm_eps, DIM, COPIES, PADDED, SLABS, SLABS_PADDED,
                1, NORM_COLUMNS, True,
            )  # fmt: skip
