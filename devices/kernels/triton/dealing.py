"""The split of verified drafts in one launch. Twin: `reference.dealing`.

One program holds the survivals of all sequences (a few thousand at most) and finds the best of them by the
search of `selecting`: ties go to the lower flat index there too.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..reference import dealing as reference
from .launching import power_of_two
from .selecting import THIRD, TWO_THIRDS, as_ordered, threshold_of

MOST_ITEMS = 8192
"""Drafts that one program ranks."""


@triton.jit
def _product(a, b):
    return a * b


@triton.jit
def _deal_lengths(
    odds_pointer,
    most_pointer,
    slots_pointer,
    lengths_pointer,
    redeal_pointer,
    out_pointer,
    ROWS: tl.constexpr,
    ROWS_PADDED: tl.constexpr,
    DEALT: tl.constexpr,
    DEALT_PADDED: tl.constexpr,
    DRAFTS: tl.constexpr,
    DRAFTS_PADDED: tl.constexpr,
):
    sequence = tl.arange(0, DEALT_PADDED)
    here = sequence < DEALT
    slot = tl.load(slots_pointer + sequence, mask=here, other=0)
    length = tl.load(lengths_pointer + sequence, mask=here, other=1)
    real = slot > 0
    place = tl.arange(0, DRAFTS_PADDED)
    item = here[:, None] & (place < DRAFTS)[None, :]
    odds = tl.load(odds_pointer + slot[:, None] * DRAFTS + place[None, :], mask=item, other=0.0)
    chance = 1.0 / (1.0 + tl.exp(-odds.to(tl.float32)))
    survival = tl.associative_scan(chance, 1, _product)
    most = tl.load(most_pointer + slot, mask=here, other=0)
    allowed = real[:, None] & (place[None, :] < most[:, None])
    flat: tl.constexpr = DEALT_PADDED * DRAFTS_PADDED
    inside = item.reshape(flat)
    keys = tl.where(inside, as_ordered(tl.where(allowed, survival, -1.0).reshape(flat)), 0)
    spare = tl.sum(tl.where(real, length - 1, 0), axis=0).to(tl.int32)
    separating = tl.where(spare > 0, 0, 0xFFFFFFFF).to(tl.uint32)
    if (spare > 0) & (spare < DEALT * DRAFTS):
        zero = (spare * 0).to(tl.uint32)
        separating = threshold_of(keys, zero, spare, zero + THIRD, zero + TWO_THIRDS)
    above = (keys > separating) & inside
    equal = (keys == separating) & inside
    wanted = spare - tl.sum(above.to(tl.int32), axis=0)
    chosen = above | (equal & (tl.cumsum(equal.to(tl.int32), axis=0) <= wanted))
    count = tl.sum(chosen.to(tl.int32).reshape(DEALT_PADDED, DRAFTS_PADDED), axis=1)
    dealt = real & (tl.load(redeal_pointer) > 0)
    tl.store(out_pointer + sequence, tl.where(dealt, count.to(tl.int64) + 1, length), mask=here)
    other = tl.arange(0, ROWS_PADDED)
    beyond = (other >= DEALT) & (other < ROWS)
    tl.store(out_pointer + other, tl.load(lengths_pointer + other, mask=beyond, other=0), mask=beyond)


def deal_lengths(
    log_odds_slots: Tensor, most_slots: Tensor, slots: Tensor, lengths: Tensor, redeal: Tensor, dealt: int
) -> Tensor:
    """See the twin. Survivals next to each other may rank otherwise than torch's: their last bits differ."""
    rows, drafts = slots.shape[0], log_odds_slots.shape[1]
    padded = power_of_two(dealt) * power_of_two(drafts)
    if dealt == 0 or drafts == 0 or padded > MOST_ITEMS or log_odds_slots.dtype == torch.float64:
        return reference.deal_lengths(log_odds_slots, most_slots, slots, lengths, redeal, dealt)
    out = torch.empty_like(lengths)
    _deal_lengths[(1,)](
        log_odds_slots, most_slots, slots, lengths, redeal, out, ROWS=rows, ROWS_PADDED=power_of_two(rows),
        DEALT=dealt, DEALT_PADDED=power_of_two(dealt), DRAFTS=drafts, DRAFTS_PADDED=power_of_two(drafts),
        num_warps=1 if padded <= 512 else 4,
    )  # fmt: skip
    return out
