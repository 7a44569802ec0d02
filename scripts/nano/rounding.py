"""Weights as a quantized checkpoint returns them, with gradients passed straight through.

The same scale rules as the checkpoint writer: a power of two that just holds the largest magnitude. A value
that is already on the grid stays there, so writing weights rounded here loses nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor

from stepahead.devices.kernels.reference.quantization import (
    E2M1_MAX,
    E4M3_MAX,
    SMALLEST_FP4_AMAX,
    SMALLEST_FP8_AMAX,
    encode_e4m3,
    round_to_e2m1,
    ue8m0_scale,
)
from stepahead.engine.model.checkpoint.storage import StorageKind

GROUP = 32  # elements that share a scale


def stored_value(weight: Tensor, kind: StorageKind) -> Tensor:
    """`weight` (float32, `[..., rows, columns]` or a vector) after a round trip through its stored format."""
    if kind is StorageKind.FP8_BLOCK:
        return _blocks(weight, GROUP)
    if kind is StorageKind.FP8_ROWS:
        return _blocks(weight, 1)
    if kind is StorageKind.MXFP4:
        groups = weight.unflatten(-1, (-1, GROUP))
        scale = ue8m0_scale(groups.abs().amax(-1, keepdim=True).clamp(min=SMALLEST_FP4_AMAX), E2M1_MAX)
        return (round_to_e2m1(groups / scale) * scale).flatten(-2)
    return weight if kind is StorageKind.FP32 else weight.to(torch.bfloat16).to(weight.dtype)


def _blocks(weight: Tensor, height: int) -> Tensor:
    """FP8 with one scale per `height` rows and 32 columns; blocks divide both dimensions here."""
    rows, columns = weight.shape
    blocks = weight.view(rows // height, height, columns // GROUP, GROUP)
    amax = blocks.abs().amax((1, 3), keepdim=True).clamp(min=SMALLEST_FP8_AMAX)
    scale = ue8m0_scale(amax, E4M3_MAX)
    return (encode_e4m3(blocks / scale).to(weight.dtype) * scale).view(rows, columns)


def straight_through(weight: Tensor, kind: StorageKind) -> Tensor:
    """`stored_value` in the forward pass, the identity in the backward pass."""
    return weight + (stored_value(weight.detach(), kind) - weight.detach())
