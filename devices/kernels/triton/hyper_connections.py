"""Hyper-connections in one launch a sublayer, or two where a row is wide (model_spec 2.2).

Between two sublayers lie: mixing the first one's output into the streams (`expand`), the products of the new
streams with the mix weights, sigmoids and Sinkhorn iterations, the contraction to the second one's input and
its norm. The reference takes some fifty launches for it. Here a program takes a tile of rows and a slab of
columns of all streams: it writes the new streams and, while they are in registers, multiplies and contracts
them. Where a slab can hold the whole width, the same program finishes; else partial sums go through memory
and a second launch finishes, in a fixed order, so that repeated runs agree bit for bit.

Rejected: a last program that finishes what others began (a counter in memory and an order that varies), and a
tile height that follows the number of rows: one shape for all is what makes a row's result the same, bit for
bit, whatever shares its step.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..reference import hyper_connections as reference
from ..reference.hyper_connections import SumMatrices
from .mixing import add_product, balance, store_logits
from .narrow_streams import open_narrow

ROWS, SLAB = 16, 64
"""A tile where rows are split: the fewest rows that matrix units take, and columns of each stream."""

SLAB_WARPS, FINISH_WARPS = 4, 4

FEW_ROWS, MANY_FINISHED = 256, 8
"""Beyond this many rows a finishing program takes several. Each is summed alone: the bits stay the same."""

NARROW = 256
"""The widest rows that a program holds whole."""

NARROW_ROWS, NARROW_COLUMNS, NARROW_WARPS = 4, 128, 8


@triton.jit
def _slab(
    streams_pointer,
    output_pointer,
    post_pointer,
    comb_pointer,
    new_pointer,
    pre_pointer,
    weight_pointer,
    row,
    rows,
    column,
    DIM: tl.constexpr,
    COPIES: tl.constexpr,
    PADDED: tl.constexpr,
    EXPANDS: tl.constexpr,
):
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
def _open_slab(
    streams_pointer,
    output_pointer,
    post_pointer,
    comb_pointer,
    new_pointer,
    pre_pointer,
    weight_pointer,
    partial_pointer,
    squares_pointer,
    read_pointer,
    rows,
    DIM: tl.constexpr,
    COPIES: tl.constexpr,
    PADDED: tl.constexpr,
    SLABS: tl.constexpr,
    EXPANDS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """The first of two launches: partial sums `[rows, SLABS, PADDED]`, the contracted input before norm."""
    slab = tl.program_id(0)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    column = slab * COLUMNS + tl.arange(0, COLUMNS)
    raw, squares, read = _slab(
        streams_pointer, output_pointer, post_pointer, comb_pointer, new_pointer, pre_pointer, weight_pointer,
        row, rows, column, DIM, COPIES, PADDED, EXPANDS,
    )  # fmt: skip
    here = row < rows
    part = row.to(tl.int64) * SLABS + slab
    tl.store(
        partial_pointer + part[:, None] * PADDED + tl.arange(0, PADDED)[None, :], raw, mask=here[:, None]
    )
    tl.store(squares_pointer + part, squares, mask=here)
    place = row.to(tl.int64)[:, None] * DIM + column[None, :]
    tl.store(read_pointer + place, read, mask=here[:, None] & (column < DIM)[None, :])


@triton.jit(do_not_specialize=["rows"])
def _finish(
    partial_pointer,
    squares_pointer,
    read_pointer,
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
    SLABS: tl.constexpr,
    SLABS_PADDED: tl.constexpr,
    ITERATIONS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """The second launch. Grid: tiles of rows; the norm of the input, or coefficients, at the same time.

    A row is summed after the other, then the Sinkhorn iterations of all are done at once.
    """
    first = tl.program_id(0) * ROWS
    if tl.program_id(1) == 0:
        column = tl.arange(0, COLUMNS)
        for one in range(ROWS):
            number = (first + one).to(tl.int64)
            inside = (number < rows) & (column < DIM)
            wide = tl.load(read_pointer + number * DIM + column, mask=inside, other=0.0).to(tl.float32)
            norm = tl.load(norm_pointer + column, mask=inside, other=0.0).to(tl.float32)
            inverse = tl.rsqrt(tl.sum(wide * wide, axis=0) / DIM + norm_eps)
            normed = (wide * inverse * norm).to(normed_pointer.dtype.element_ty)
            tl.store(normed_pointer + number * DIM + column, normed, mask=inside)
    else:
        slab = tl.arange(0, SLABS_PADDED)
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


def expand_and_open(
    output_rows_dim: Tensor,
    streams_rows_copies_dim: Tensor,
    post_rows_copies: Tensor,
    comb: Tensor,
    carried_pre_rows_copies: Tensor,
    mix_weight: Tensor,
    base: Tensor,
    scale_per_coefficient: Tensor,
    norm_weight: Tensor,
    sums: SumMatrices,
    *,
    iterations: int,
    hc_eps: float,
    norm_eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """See the twin: new streams, then what `open_sublayer` returns for them."""
    if not _takes(streams_rows_copies_dim, base):
        return reference.expand_and_open(
            output_rows_dim, streams_rows_copies_dim, post_rows_copies, comb, carried_pre_rows_copies,
            mix_weight, base, scale_per_coefficient, norm_weight, sums,
            iterations=iterations, hc_eps=hc_eps, norm_eps=norm_eps,
        )  # fmt: skip
    new = torch.empty_like(streams_rows_copies_dim)
    opened = _open(
        (output_rows_dim, post_rows_copies, comb, new),
        streams_rows_copies_dim, carried_pre_rows_copies, mix_weight, base, scale_per_coefficient,
        norm_weight, iterations, hc_eps, norm_eps,
    )  # fmt: skip
    return new, *opened


def open_sublayer(
    streams_rows_copies_dim: Tensor,
    carried_pre_rows_copies: Tensor,
    mix_weight: Tensor,
    base: Tensor,
    scale_per_coefficient: Tensor,
    norm_weight: Tensor,
    sums: SumMatrices,
    *,
    iterations: int,
    hc_eps: float,
    norm_eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """See the twin."""
    if not _takes(streams_rows_copies_dim, base):
        return reference.open_sublayer(
            streams_rows_copies_dim, carried_pre_rows_copies, mix_weight, base, scale_per_coefficient,
            norm_weight, sums, iterations=iterations, hc_eps=hc_eps, norm_eps=norm_eps,
        )  # fmt: skip
    return _open(
        None, streams_rows_copies_dim, carried_pre_rows_copies, mix_weight, base, scale_per_coefficient,
        norm_weight, iterations, hc_eps, norm_eps,
    )  # fmt: skip


def _takes(streams: Tensor, base: Tensor) -> bool:
    """Tiles have sides that are powers of two, and sums are float32."""
    copies = streams.shape[1]
    return base.dtype == torch.float32 and copies & (copies - 1) == 0


def prepare_mix(mix_weight: Tensor, copies: int) -> Tensor:
    """See the twin. Where rows are split: bfloat16 parts `[3, coefficients, copies * dim]`, large to small.

    Their sum is the weight. Splitting it in the kernel took longer than the products.
    """
    narrow = mix_weight.shape[1] <= copies * NARROW
    if narrow or mix_weight.dtype != torch.float32 or copies & (copies - 1):
        return mix_weight
    high = mix_weight.to(torch.bfloat16)
    rest = mix_weight - high
    middle = rest.to(torch.bfloat16)
    return torch.stack((high, middle, (rest - middle).to(torch.bfloat16)))


def _open(
    expanding: tuple[Tensor, Tensor, Tensor, Tensor] | None,
    streams: Tensor,
    carried_pre: Tensor,
    mix_weight: Tensor,
    base: Tensor,
    scale: Tensor,
    norm_weight: Tensor,
    iterations: int,
    hc_eps: float,
    norm_eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`expanding` is (output, post, comb, new streams), or None where the streams are final already."""
    rows, copies, dim = streams.shape
    padded = triton.next_power_of_2((2 + copies) * copies)
    normed = streams.new_empty(rows, dim)
    mixes = base.new_empty(rows * (2 + copies) * copies)
    pre, post, comb = mixes.split([rows * copies, rows * copies, rows * copies * copies])
    opened = (normed, pre.view(rows, copies), post.view(rows, copies), comb.view(rows, copies, copies))
    if rows == 0:
        return opened
    # Without an output to mix in, those pointers are never followed; any tensor stands in for them.
    old = expanding or (streams, carried_pre, carried_pre, streams)
    weight = mix_weight if mix_weight.dim() == 3 else prepare_mix(mix_weight, copies)
    inputs = [x.contiguous() for x in (streams, *old[:3])] + [old[3], carried_pre.contiguous(), weight]
    finish = (base, scale, norm_weight, normed, mixes)
    fixed = {"DIM": dim, "COPIES": copies, "PADDED": padded, "EXPANDS": expanding is not None}
    if dim <= NARROW:
        width = triton.next_power_of_2(dim)
        open_narrow[(triton.cdiv(rows, NARROW_ROWS),)](
            *inputs, *finish, rows, hc_eps, norm_eps, **fixed, ITERATIONS=iterations, ROWS=NARROW_ROWS,
            WIDTH=width, COLUMNS=min(NARROW_COLUMNS, width), num_warps=NARROW_WARPS,
        )  # fmt: skip
        return opened
    slabs = triton.cdiv(dim, SLAB)
    partial = base.new_empty(rows, slabs, padded)
    squares = base.new_empty(rows, slabs)
    read = torch.empty_like(normed)
    _open_slab[(slabs, triton.cdiv(rows, ROWS))](
        *inputs,
        partial,
        squares,
        read,
        rows,
        **fixed,
        SLABS=slabs,
        ROWS=ROWS,
        COLUMNS=SLAB,
        num_warps=SLAB_WARPS,
    )
    height = 1 if rows <= FEW_ROWS else MANY_FINISHED
    _finish[(triton.cdiv(rows, height), 2)](
        partial, squares, read, *finish, rows, hc_eps, norm_eps, DIM=dim, COPIES=copies, PADDED=padded,
        SLABS=slabs, SLABS_PADDED=triton.next_power_of_2(slabs), ITERATIONS=iterations, ROWS=height,
        COLUMNS=triton.next_power_of_2(dim), num_warps=FINISH_WARPS,
    )  # fmt: skip
    return opened
