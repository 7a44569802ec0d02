"""Numbers that programs of a launch leave for other programs of the same launch.

With a counter, a sender waits until what it wrote has arrived before it counts, and a receiver asks for the
count again and again before it reads: together as long as the end of a launch and the beginning of another.
Here a number is the sign of its own arrival. The memory holds a NaN that no arithmetic makes; a receiver
reads until it finds none, and puts it back. So a number has one receiver, and between launches all is empty.

Receivers stand behind senders in the grid. A card starts programs in the order of their numbers, so whoever
is waited for runs or has run, on a card of any size.
"""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

EMPTY = tl.constexpr(-1)


@triton.jit
def post(pointer, values, mask):
    """`values` of as many bits as what `pointer` points to, integers."""
    bits = values.to(pointer.dtype.element_ty, bitcast=True)
    tl.store(pointer, tl.where(bits == EMPTY, EMPTY - 1, bits), mask=mask)


@triton.jit
def _missing(bits):
    return tl.sum((bits == EMPTY).to(tl.int32))


@triton.jit
def collect(pointer, mask):
    """The bits of a tile of numbers, as soon as all are there; zeros where `mask` is not."""
    bits = tl.load(pointer, mask=mask, other=0, volatile=True)
    while _missing(bits) > 0:
        bits = tl.load(pointer, mask=mask, other=0, volatile=True)
    tl.store(pointer, tl.full(bits.shape, EMPTY, bits.dtype), mask=mask)
    return bits


@triton.jit
def collect_two(pointer, mask, others_pointer, others_mask):
    """`collect` for two tiles at once."""
    bits = tl.load(pointer, mask=mask, other=0, volatile=True)
    others = tl.load(others_pointer, mask=others_mask, other=0, volatile=True)
    while _missing(bits) + _missing(others) > 0:
        bits = tl.load(pointer, mask=mask, other=0, volatile=True)
        others = tl.load(others_pointer, mask=others_mask, other=0, volatile=True)
    tl.store(pointer, tl.full(bits.shape, EMPTY, bits.dtype), mask=mask)
    tl.store(others_pointer, tl.full(others.shape, EMPTY, others.dtype), mask=others_mask)
    return bits, others


@triton.jit
def collect_sum(pointer, stride, mask, COUNT: tl.constexpr):
    """The sum of COUNT float32 tiles, `stride` apart, in their order, as soon as all are there."""
    total = tl.zeros(pointer.shape, tl.float32)
    missing = 1
    while missing > 0:
        empty = tl.zeros(pointer.shape, tl.int32)
        for number in tl.static_range(COUNT):
            bits = tl.load(pointer + number * stride, mask=mask, other=0, volatile=True)
            empty += (bits == EMPTY).to(tl.int32)
            part = bits.to(tl.float32, bitcast=True)
            if number == 0:
                total = part
            else:
                total += part
        missing = tl.sum(empty)
    for number in tl.static_range(COUNT):
        tl.store(pointer + number * stride, tl.full(pointer.shape, EMPTY, tl.int32), mask=mask)
    return total


@cache
def mailbox(device: torch.device, name: str, words: int, dtype: torch.dtype = torch.int32) -> Tensor:
    """Empty, of its own for each `name` and size. Calls of one device run on one stream."""
    return torch.full((words,), EMPTY.value, dtype=dtype, device=device)
