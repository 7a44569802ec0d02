"""Activations as they come back from FP8, in one launch. Twin: `reference.quantization.fp8_round_trip`."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..reference import quantization as reference
from .codes import fp8_round_trip as round_trip_in_registers

GROUPS = 64
"""Groups of 32 elements that a program takes."""


@triton.jit(do_not_specialize=["groups"])
def _round(x_pointer, out_pointer, groups, GROUPS: tl.constexpr):
    group = tl.program_id(0).to(tl.int64) * GROUPS + tl.arange(0, GROUPS)
    cells = group[:, None] * 32 + tl.arange(0, 32)[None, :]
    inside = (group < groups)[:, None]
    x = tl.load(x_pointer + cells, mask=inside, other=0.0).to(tl.float32)
    rounded = round_trip_in_registers(x, 1).to(out_pointer.dtype.element_ty)
    tl.store(out_pointer + cells, rounded, mask=inside)


def fp8_round_trip(x: Tensor, group: int = 32) -> Tensor:
    """See the twin."""
    if group != 32 or x.shape[-1] % 32:
        return reference.fp8_round_trip(x, group)
    given = x.contiguous()
    out = torch.empty_like(given)
    groups = given.numel() // 32
    if groups:
        _round[(triton.cdiv(groups, GROUPS),)](given, out, groups, GROUPS=GROUPS, num_warps=4)
    return out
