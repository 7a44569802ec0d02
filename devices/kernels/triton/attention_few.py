"""Attention of small vectors over few keys: one tile, no loop.

A small model's rows see a hundred keys of 64 numbers. What counts then is the number of steps that wait for
each other, so keys of both pools come in one gather and meet all heads at once.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .attention_parts import LOWEST, final_factor, turn_back, turned_queries
from .codes import wide_dot


@triton.jit
def attend_few(
    query_pointer, turns_pointer, window_pointer, window_places_pointer, entry_pointer, entry_places_pointer,
    sink_pointer, out_pointer, scale, HEADS: tl.constexpr, HEADS_PADDED: tl.constexpr, DIM: tl.constexpr,
    ROTARY: tl.constexpr, WINDOW: tl.constexpr, ENTRIES: tl.constexpr, KEYS: tl.constexpr,
    ROUND: tl.constexpr, ASSEMBLY: tl.constexpr,
):  # fmt: skip
    """All heads of a row over all of its keys at once, where they are no more than a tile.

    Keys of both pools come in one gather, so nothing waits for a loop.
    """
    row = tl.program_id(0).to(tl.int64)
    head = tl.arange(0, HEADS_PADDED)
    column = tl.arange(0, DIM)
    number = tl.arange(0, KEYS)
    of_window = number < WINDOW
    place = tl.load(window_places_pointer + row * WINDOW + number, mask=of_window, other=-1).to(tl.int64)
    cells = window_pointer + place[:, None] * DIM + column[None, :]
    keys = tl.load(cells, mask=(place >= 0)[:, None], other=0.0)
    seen = place >= 0
    if ENTRIES > 0:
        entry = number - WINDOW
        of_entries = (entry >= 0) & (entry < ENTRIES)
        chosen = tl.load(entry_places_pointer + row * ENTRIES + entry, mask=of_entries, other=-1).to(tl.int64)
        cells = entry_pointer + chosen[:, None] * DIM + column[None, :]
        entry_keys = tl.load(cells, mask=(chosen >= 0)[:, None], other=0.0)
        keys = tl.where(of_window[:, None], keys, entry_keys)
        seen = seen | (chosen >= 0)
    turns = turns_pointer + row * ROTARY
    query = turned_queries(query_pointer + row * (HEADS * DIM), turns, head, column, HEADS, DIM, ROTARY)
    scores = wide_dot(query, tl.trans(keys), tl.zeros([HEADS_PADDED, KEYS], tl.float32), ASSEMBLY)
    scores = tl.where(seen[None, :], scores * scale, -float("inf"))
    top = tl.maximum(tl.max(scores, axis=1), LOWEST)
    weights = tl.exp(scores - top[:, None])
    total = tl.sum(weights, axis=1)
    rounded = weights.to(keys.dtype)
    value = wide_dot(rounded, keys, tl.zeros([HEADS_PADDED, DIM], tl.float32), ASSEMBLY)
    if not ROUND and keys.dtype != tl.float32:
        rest = (weights - rounded.to(tl.float32)).to(keys.dtype)
        value = wide_dot(rest, keys, value, ASSEMBLY)
    inside = head < HEADS
    sink = tl.load(sink_pointer + head, mask=inside, other=0.0).to(tl.float32)
    out = out_pointer + row * (HEADS * DIM)
    shares = value * final_factor(top, total, sink)[:, None]
    cells = out + head[:, None] * DIM + column[None, :]
    tl.store(cells, shares.to(out_pointer.dtype.element_ty), mask=inside[:, None])
    turn_back(out, turns, head, HEADS, DIM, ROTARY)
