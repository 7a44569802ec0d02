"""State copies and table entries of a step in one launch. Twin: `reference.fix_ups`.

A program owns a piece of every slot's state, the same bytes of each, and makes all copies of it: no other
program reads or writes them, so the order of copies is kept without anybody waiting. A few copies are read at
a time before they are written, which hides the latency of all but the first. One more program writes the
table. Where the counts are 0 every program ends after one look.

The pools are many and of several types, and a launch takes a fixed number of pointers, so pieces are found
through a table of addresses, and copied as 64-bit words.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..reference import fix_ups as reference
from ..reference.fix_ups import FixUps, StatePools

_WORD = 8
_PIECE = 512
"""Words of a slot's state that a program copies."""
_TOGETHER = 8
"""Copies that it reads at a time."""
_ENTRIES = 128


@triton.jit
def _copy_pieces(piece_pointer, count, copies_pointer, PIECE: tl.constexpr, TOGETHER: tl.constexpr):
    pool = tl.load(piece_pointer).to(tl.pointer_type(tl.int64))
    stride = tl.load(piece_pointer + 1)
    word = tl.arange(0, PIECE)[None, :]
    inside = word < tl.load(piece_pointer + 2)
    for begin in range(0, count, TOGETHER):
        place = begin + tl.arange(0, TOGETHER)
        used = place < count
        source = tl.load(copies_pointer + 2 * place, mask=used, other=0)
        destination = tl.load(copies_pointer + 2 * place + 1, mask=used, other=0)
        mask = used[:, None] & inside
        words = tl.load(pool + source[:, None] * stride + word, mask=mask)
        tl.debug_barrier()
        tl.store(pool + destination[:, None] * stride + word, words, mask=mask)
        tl.debug_barrier()


@triton.jit
def _write_entries(table_pointer, table_stride, count, entries_pointer, ENTRIES: tl.constexpr):
    for begin in range(0, count, ENTRIES):
        place = begin + tl.arange(0, ENTRIES)
        used = place < count
        slot = tl.load(entries_pointer + 3 * place, mask=used, other=0)
        column = tl.load(entries_pointer + 3 * place + 1, mask=used, other=0)
        block = tl.load(entries_pointer + 3 * place + 2, mask=used, other=0)
        tl.store(table_pointer + slot * table_stride + column, block, mask=used)


@triton.jit(do_not_specialize=["pieces", "table_stride"])
def _fix_up(
    pieces_pointer, counts_pointer, copies_pointer, entries_pointer, table_pointer, pieces, table_stride,
    PIECE: tl.constexpr, TOGETHER: tl.constexpr, ENTRIES: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    if program < pieces:
        count = tl.load(counts_pointer)
        _copy_pieces(pieces_pointer + 3 * program, count, copies_pointer, PIECE, TOGETHER)
    else:
        count = tl.load(counts_pointer + 1)
        _write_entries(table_pointer, table_stride, count, entries_pointer, ENTRIES)


def open_state_pools(rings: tuple[Tensor, ...]) -> StatePools:
    """The twin's; pieces are int64 `[pieces, 3]`: address in slot 0, words from slot to slot, words."""
    if not rings or any(_state_bytes(ring) % _WORD for ring in rings):
        return reference.open_state_pools(rings)
    pieces = [piece for ring in rings for piece in _pieces(ring)]
    return StatePools(rings, torch.tensor(pieces, dtype=torch.int64, device=rings[0].device))


def _pieces(ring: Tensor) -> list[tuple[int, int, int]]:
    words = _state_bytes(ring) // _WORD
    begins = range(0, words, _PIECE)
    return [(ring.data_ptr() + _WORD * begin, words, min(_PIECE, words - begin)) for begin in begins]


def _state_bytes(ring: Tensor) -> int:
    return ring[0].numel() * ring.element_size()


def fix_up_(pools: StatePools, table_slots_columns: Tensor, fix_ups: FixUps) -> None:
    """See the twin."""
    pieces = pools.pieces.shape[0]
    if not pieces:
        reference.fix_up_(pools, table_slots_columns, fix_ups)
        return
    _fix_up[(pieces + 1,)](
        pools.pieces, fix_ups.counts, fix_ups.copies, fix_ups.entries, table_slots_columns, pieces,
        table_slots_columns.stride(0), PIECE=_PIECE, TOGETHER=_TOGETHER, ENTRIES=_ENTRIES, num_warps=4,
    )  # fmt: skip
