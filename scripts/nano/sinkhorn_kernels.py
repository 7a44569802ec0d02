# mypy: ignore-errors
"""Sinkhorn normalisation with a gradient as two GPU kernels, one launch each way.

A program keeps a block of matrices in registers. The backward kernel recomputes the forward chain up to each
half-step instead of storing it: 225 tiny half-steps cost less than one round trip to memory. Kernel source is
a language of its own with Python's grammar, so types are not checked in this file. It needs triton.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

# Half-step k divides by column sums when k is even and by row sums when k is odd; there are
# 2 * iterations - 1 of them after the softmax.


@triton.jit
def _start(logits, eps):
    shifted = tl.exp(logits - tl.max(logits, 2)[:, :, None])
    return shifted / tl.sum(shifted, 2)[:, :, None] + eps


@triton.jit
def _half_step(value, k, eps):
    columns = tl.sum(value, 1)[:, None, :]
    rows = tl.sum(value, 2)[:, :, None]
    return tl.where(k % 2 == 0, value / (columns + eps), value / (rows + eps))


@triton.jit
def _offsets(rows, size: tl.constexpr, block: tl.constexpr):
    row = tl.program_id(0) * block + tl.arange(0, block)
    inside = tl.arange(0, size)[:, None] * size + tl.arange(0, size)[None, :]
    offsets = row[:, None, None] * size * size + inside[None, :, :]
    return offsets, (row < rows)[:, None, None]


@triton.jit
def _forward_kernel(logits, result, rows, eps, steps: tl.constexpr, size: tl.constexpr, block: tl.constexpr):
    offsets, mask = _offsets(rows, size, block)
    value = _start(tl.load(logits + offsets, mask=mask, other=0.0), eps)
    for k in range(steps):
        value = _half_step(value, k, eps)
    tl.store(result + offsets, value, mask=mask)


@triton.jit
def _backward_kernel(
    logits, grad, result, rows, eps, steps: tl.constexpr, size: tl.constexpr, block: tl.constexpr
):
    offsets, mask = _offsets(rows, size, block)
    start = tl.load(logits + offsets, mask=mask, other=0.0)
    first = _start(start, eps)
    slope = tl.load(grad + offsets, mask=mask, other=0.0)
    for back in range(steps):
        k = steps - 1 - back
        value = first
        for earlier in range(steps):
            value = tl.where(earlier < k, _half_step(value, earlier, eps), value)
        # y = x / (s + eps):  dx = (dy - sum(dy * y)) / (s + eps), sums along the normalised index.
        columns = tl.sum(value, 1)[:, None, :] + eps
        rows_sum = tl.sum(value, 2)[:, :, None] + eps
        by_column = (slope - tl.sum(slope * value / columns, 1)[:, None, :]) / columns
        by_row = (slope - tl.sum(slope * value / rows_sum, 2)[:, :, None]) / rows_sum
        slope = tl.where(k % 2 == 0, by_column, by_row)
    soft = first - eps
    slope = soft * (slope - tl.sum(slope * soft, 2)[:, :, None])
    tl.store(result + offsets, slope, mask=mask)


def sinkhorn_kernels(logits: Tensor, iterations: int, eps: float) -> Tensor:
    """What `sinkhorn` computes, of float32 `[rows, source, destination]` logits on a GPU."""
    return _Sinkhorn.apply(logits, iterations, eps)


class _Sinkhorn(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, iterations: int, eps: float) -> Tensor:
        logits = logits.contiguous()
        ctx.save_for_backward(logits)
        ctx.steps, ctx.eps = 2 * iterations - 1, eps
        return _launch(_forward_kernel, (logits,), ctx.steps, eps)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (logits,) = ctx.saved_tensors
        return _launch(_backward_kernel, (logits, grads[0].contiguous()), ctx.steps, ctx.eps), None, None


def _launch(kernel: Any, inputs: tuple[Tensor, ...], steps: int, eps: float) -> Tensor:
    rows, size, _ = inputs[0].shape
    result = torch.empty_like(inputs[0])
    block = 64
    kernel[(triton.cdiv(rows, block),)](*inputs, result, rows, eps, steps=steps, size=size, block=block)
    return result
