"""Opening a sublayer where a program holds whole rows: hyper-connections of small models in one launch.

A decode step of a small model is a chain of short kernels, so what counts is the time of one program from its
first load to its last store, not the work of all. A program takes a few rows. It asks for all mix weights
first; while they are on their way it mixes the streams, norms the next input and writes both. Products are
plain multiply-adds: matrix units would want tiles of sixteen rows, which leaves most of the chip idle, and a
passage through shared memory for every factor. They read the streams again, a vector a row, which every warp
can have where its weights are; a tile of rows would be laid out its own way and drag the weights along.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .mixing import balance, store_logits


@triton.jit
def _fetch_weights(
    weight_pointer, DIM: tl.constexpr, COPIES: tl.constexpr, PADDED: tl.constexpr, COLUMNS: tl.constexpr
):
    """All mix weights, in pieces of COLUMNS columns of one stream."""
    column = tl.arange(0, COLUMNS)
    coefficient = tl.arange(0, PADDED)[:, None]
    weights = ()
    for start in tl.static_range(0, DIM, COLUMNS):
        place = start + column
        for copy in tl.static_range(COPIES):
            at = weight_pointer + coefficient * (COPIES * DIM) + copy * DIM + place[None, :]
            real = (coefficient < (2 + COPIES) * COPIES) & (place < DIM)[None, :]
            weights = weights + (tl.load(at, mask=real, other=0.0),)  # noqa: RUF005
    return weights


@triton.jit
def _mix_and_read(
    streams_pointer,
    output_pointer,
    post_pointer,
    comb_pointer,
    new_pointer,
    pre_pointer,
    row,
    rows,
    DIM: tl.constexpr,
    COPIES: tl.constexpr,
    EXPANDS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Write the new streams of a tile of rows; return their squares, and what the next sublayer reads."""
    narrow: tl.constexpr = new_pointer.dtype.element_ty
    number, column = row.to(tl.int64), tl.arange(0, WIDTH)
    here = row < rows
    inside = here[:, None] & (column < DIM)[None, :]
    cell = number[:, None] * (COPIES * DIM) + column[None, :]
    sources = ()
    for source in tl.static_range(COPIES):
        stream = tl.load(streams_pointer + cell + source * DIM, mask=inside, other=0.0).to(tl.float32)
        sources = sources + (stream,)  # noqa: RUF005
    # Loads first: none is moved up past a store.
    pres = ()
    for copy in tl.static_range(COPIES):
        pre = tl.load(pre_pointer + number * COPIES + copy, mask=here, other=0.0)
        pres = pres + (pre[:, None],)  # noqa: RUF005
    mixed = sources
    if EXPANDS:
        place = number[:, None] * DIM + column[None, :]
        written = tl.load(output_pointer + place, mask=inside, other=0.0).to(tl.float32)
        mixed = ()
        for copy in tl.static_range(COPIES):
            factor = tl.load(post_pointer + number * COPIES + copy, mask=here, other=0.0)
            new = factor[:, None] * written
            for source in tl.static_range(COPIES):
                at = comb_pointer + (number * COPIES + source) * COPIES + copy
                new += tl.load(at, mask=here, other=0.0)[:, None] * sources[source]
            mixed = mixed + (new.to(narrow).to(tl.float32),)  # noqa: RUF005
    read = tl.zeros((row.shape[0], WIDTH), tl.float32)
    squares = tl.zeros((row.shape[0], WIDTH), tl.float32)
    for copy in tl.static_range(COPIES):
        if EXPANDS:
            tl.store(new_pointer + cell + copy * DIM, mixed[copy].to(narrow), mask=inside)
        read += pres[copy] * mixed[copy]
        squares += mixed[copy] * mixed[copy]
    return squares, read.to(narrow).to(tl.float32)


@triton.jit
def _side_by_side(sums, ROWS: tl.constexpr):
    """Vectors `[n]` of 1, 2 or 4 rows as a tile `[n, rows]`."""
    if ROWS == 1:
        tile = sums[0][:, None]
    elif ROWS == 2:
        tile = tl.join(sums[0], sums[1])
    else:
        tl.static_assert(ROWS == 4)
        pairs = tl.join(tl.join(sums[0], sums[2]), tl.join(sums[1], sums[3]))
        tile = tl.reshape(pairs, (sums[0].shape[0], ROWS))
    return tile


@triton.jit
def _multiply(
    mixed_pointer,
    weights,
    first,
    rows,
    DIM: tl.constexpr,
    COPIES: tl.constexpr,
    PADDED: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Raw products `[PADDED, ROWS]` of the rows from `first` on with weights that are in registers."""
    column = tl.arange(0, COLUMNS)
    sums = ()
    for one in tl.static_range(ROWS):
        number = (first + one).to(tl.int64)
        products = tl.zeros((PADDED, COLUMNS), tl.float32)
        for start in tl.static_range(0, DIM, COLUMNS):
            place = start + column
            for copy in tl.static_range(COPIES):
                at = mixed_pointer + (number * COPIES + copy) * DIM + place
                value = tl.load(at, mask=(place < DIM) & (number < rows), other=0.0).to(tl.float32)
                products += value[None, :] * weights[start // COLUMNS * COPIES + copy]
        sums = sums + (tl.sum(products, axis=1),)  # noqa: RUF005
    return _side_by_side(sums, ROWS)


@triton.jit
def _store_normed(
    read, norm_pointer, normed_pointer, row, rows, norm_eps, DIM: tl.constexpr, WIDTH: tl.constexpr
):
    """The input of the next sublayer, normed."""
    column = tl.arange(0, WIDTH)
    norm = tl.load(norm_pointer + column, mask=column < DIM, other=0.0).to(tl.float32)
    inverse = tl.rsqrt(tl.sum(read * read, axis=1) / DIM + norm_eps)
    normed = (read * inverse[:, None] * norm[None, :]).to(normed_pointer.dtype.element_ty)
    cell = row.to(tl.int64)[:, None] * DIM + column[None, :]
    tl.store(normed_pointer + cell, normed, mask=(row < rows)[:, None] & (column < DIM)[None, :])


@triton.jit(do_not_specialize=["rows"])
def open_narrow(
    streams_pointer,
    output_pointer,
    post_pointer,
    comb_pointer,
    new_pointer,
    pre_pointer,
    weight_pointer,
    base_pointer,
    scale_pointer,
    norm_pointer,
    normed_pointer,
    mixes_pointer,
    rows,
    hc_eps,
    norm_eps,
    DIM: tl.constexpr,
    COPIES: tl.constexpr,
    PADDED: tl.constexpr,
    ITERATIONS: tl.constexpr,
    EXPANDS: tl.constexpr,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """WIDTH holds a row's columns; weights come in pieces of COLUMNS."""
    weights = _fetch_weights(weight_pointer, DIM, COPIES, PADDED, COLUMNS)
    tl.debug_barrier()  # keeps these loads first: the compiler would have them wait for the streams
    first = tl.program_id(0) * ROWS
    row = first + tl.arange(0, ROWS)
    squares, read = _mix_and_read(
        streams_pointer, output_pointer, post_pointer, comb_pointer, new_pointer, pre_pointer, row, rows,
        DIM, COPIES, EXPANDS, WIDTH,
    )  # fmt: skip
    mixed_pointer = streams_pointer
    if EXPANDS:
        mixed_pointer = new_pointer
        tl.debug_barrier()  # what follows reads what other threads of this program have written
    raw = _multiply(mixed_pointer, weights, first, rows, DIM, COPIES, PADDED, ROWS, COLUMNS)
    inverse_rms = tl.rsqrt(tl.sum(squares, axis=1) / (COPIES * DIM) + norm_eps)
    store_logits(
        raw, inverse_rms, row, rows, base_pointer, scale_pointer, mixes_pointer, hc_eps, COPIES, PADDED
    )
    _store_normed(read, norm_pointer, normed_pointer, row, rows, norm_eps, DIM, WIDTH)
    tl.debug_barrier()  # the logits are another thread's
    balance(mixes_pointer, row, rows, hc_eps, COPIES, ITERATIONS)
