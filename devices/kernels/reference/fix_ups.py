"""What a plan changes before its forward: whole window states copied, entries of block tables written.

Most steps of many sequences have a few of these, and made layer by layer they are more launches than the rest
of a captured step. So one operation makes them all, from numbers that lie on the device: it can stand inside
a captured step, whose launches cannot depend on what a plan holds, and a step without any costs it a look at
two counts.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class FixUps(NamedTuple):
    """int64 on the device. Places beyond the counts are unused and hold anything.

    Copies are independent: none reads or writes what one before it writes, so all may be read before any is
    written. Entries are distinct.
    """

    counts: Tensor  # [2] of copies, of entries
    copies: Tensor  # [places, 2] source and destination slot
    entries: Tensor  # [places, 3] slot, column, block id


class StatePools(NamedTuple):
    """Where states of slots lie."""

    rings: tuple[Tensor, ...]  # of every pool a contiguous view [slots, ...]
    pieces: Tensor  # the same for a faster set, in its own form


def open_state_pools(rings: tuple[Tensor, ...]) -> StatePools:
    """Once, when the caches are made; they must stay where they are."""
    return StatePools(rings, torch.empty(0, dtype=torch.int64))


def fix_up_(pools: StatePools, table_slots_columns: Tensor, fix_ups: FixUps) -> None:
    """Copy states and write entries of the block table. Unused places copy slot 0, which is scratch, to
    itself and write block 0 there.
    """
    source, destination = _used(fix_ups.copies, fix_ups.counts[0]).unbind(1)
    for ring in pools.rings:
        ring.index_copy_(0, destination, ring.index_select(0, source))
    slot, column, block = _used(fix_ups.entries, fix_ups.counts[1]).unbind(1)
    table_slots_columns.index_put_((slot, column), block)


def _used(places: Tensor, count: Tensor) -> Tensor:
    number = torch.arange(places.shape[0], device=places.device)
    return torch.where((number < count).unsqueeze(1), places, 0)
