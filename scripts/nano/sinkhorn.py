"""Sinkhorn normalisation: plain tensor operations, or the kernels where there is a GPU.

Written with tensor operations, 8 alternating normalisations of 4 x 4 matrices are about fifty launches
forward and a hundred backward, for 26 sublayers of every step: more launches than the rest of the model.
"""

from __future__ import annotations

import importlib.util

import torch
from torch import Tensor

_use_kernels = importlib.util.find_spec("triton") is not None  # torch without a GPU comes without it


def without_kernels() -> None:
    """Use the plain form on GPUs too, for this process."""
    global _use_kernels
    _use_kernels = False


def sinkhorn(logits_rows_copies_copies: Tensor, iterations: int, eps: float) -> Tensor:
    """Nearly doubly stochastic `[rows, source, destination]` matrices (model_spec 2.2, step 4)."""
    logits = logits_rows_copies_copies
    if _use_kernels and logits.is_cuda and logits.dtype == torch.float32:
        from .sinkhorn_kernels import sinkhorn_kernels

        return sinkhorn_kernels(logits, iterations, eps)
    value = logits.softmax(-1) + eps
    value = value / (value.sum(-2, keepdim=True) + eps)
    for _ in range(iterations - 1):
        value = value / (value.sum(-1, keepdim=True) + eps)
        value = value / (value.sum(-2, keepdim=True) + eps)
    return value
