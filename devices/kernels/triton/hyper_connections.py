"""Hyper-connections in one launch a sublayer, or two where a row is wide (model_spec 2.2).

Between two sublayers lie: mixing the first one's output into the streams (`expand`), the products of the new
streams with the mix weights, sigmoids and Sinkhorn iterations, the contraction to the second one's input and
its norm. The reference takes some fifty launches for it. Here a program takes a tile of rows and a slab of
columns of all streams. Where a slab can hold the whole width, the same program finishes
(`narrow_streams.py`); else partial sums go through memory and others finish (`wide_streams.py`).

Rejected: a tile height that follows the number of rows. One shape for all is what makes a row's result the
same, bit for bit, whatever shares its step.
"""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from ..reference import hyper_connections as reference
from ..reference.hyper_connections import SumMatrices
from .narrow_streams import open_narrow
from .wide_streams import finish, open_slabs

ROWS, SLAB = 16, 64
"""A tile where rows are split: the fewest rows that matrix units take, and columns of each stream."""

SLAB_WARPS = 4
"""Of every program: how many there are decides in which order some sums are taken."""

NORM_COLUMNS = 1024
"""Of a row's input, normed by one program."""

FEW_ROWS, MANY_FINISHED = 256, 8
"""Beyond this many rows a finishing program takes several. Each is summed alone: the bits stay the same."""

NARROW = 256
"""The widest rows that a program holds whole."""

NARROW_ROWS, NARROW_COLUMNS, NARROW_WARPS = 4, 128, 8


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
    ends = (base, scale, norm_weight, normed, mixes)
    expands, fixed = expanding is not None, {"DIM": dim, "COPIES": copies, "PADDED": padded}
    if dim <= NARROW:
        width = triton.next_power_of_2(dim)
        open_narrow[(triton.cdiv(rows, NARROW_ROWS),)](
            *inputs, *ends, rows, hc_eps, norm_eps, **fixed, EXPANDS=expands, ITERATIONS=iterations,
            ROWS=NARROW_ROWS, WIDTH=width, COLUMNS=min(NARROW_COLUMNS, width), num_warps=NARROW_WARPS,
        )  # fmt: skip
        return opened
    slabs = triton.cdiv(dim, SLAB)
    sums = (base.new_empty(rows, slabs, padded), base.new_empty(2, rows, slabs), torch.empty_like(normed))
    open_slabs[(slabs, triton.cdiv(rows, ROWS))](
        *inputs, *sums, rows, **fixed, EXPANDS=expands, SLABS=slabs, ROWS=ROWS, COLUMNS=SLAB,
        num_warps=SLAB_WARPS,
    )  # fmt: skip
    height = 1 if rows <= FEW_ROWS else MANY_FINISHED
    finish[(triton.cdiv(rows, height), 1 + triton.cdiv(dim, NORM_COLUMNS))](
        *sums, *ends, rows, hc_eps, norm_eps, **fixed, SLABS=slabs,
        SLABS_PADDED=triton.next_power_of_2(slabs), ITERATIONS=iterations, ROWS=height, COLUMNS=NORM_COLUMNS,
        num_warps=SLAB_WARPS,
    )  # fmt: skip
    return opened
