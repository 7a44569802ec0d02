"""The exact best of many scores, ties to the lower number, in ascending order of numbers.

Scores become integers of the same order. A program holds up to `CHUNK` of them in registers and finds the
count-th largest by setting its bits one after another, each time counting how many are as large: thirty-two
counts, no sorting, no atomics. What is larger is chosen; of what is equal, the first ones. Longer lists are
cut into chunks: each leaves its own best to a next launch, until one chunk holds them all. That is exact, and
since every chunk but the last is full, what the chunks leave is again a list without holes.
"""

from __future__ import annotations

import triton
import triton.language as tl

ENTRIES = tl.constexpr(0)
BLOCKS = tl.constexpr(1)
LISTED = tl.constexpr(2)


@triton.jit
def _ordered(score):
    """uint32 of the order of float32; -0 equals +0."""
    bits = tl.where(score == 0.0, 0.0, score).to(tl.uint32, bitcast=True)
    return tl.where(bits >= 0x80000000, bits ^ 0xFFFFFFFF, bits | 0x80000000)


@triton.jit
def _threshold(keys, count):
    """The largest number that at least `count` keys reach."""
    found = tl.full([1], 0, tl.uint32)
    for step in range(32):
        trial = found | (tl.full([1], 1, tl.uint32) << (31 - step))
        reached = tl.sum((keys >= trial).to(tl.int32), axis=0)
        found = tl.where(reached >= count, trial, found)
    return found


@triton.jit
def length_of(
    visible,
    CHUNK: tl.constexpr,
    COUNT: tl.constexpr,
    LEVEL: tl.constexpr,
    MODE: tl.constexpr,
    SIZE: tl.constexpr,
    CANDIDATES: tl.constexpr,
):
    """How many items a row has at a level."""
    length = visible
    if MODE != ENTRIES:
        length = (visible + SIZE - 1) // SIZE
    if MODE == LISTED:
        length = tl.minimum(length, CANDIDATES) * SIZE
    for _ in tl.static_range(LEVEL):
        length = length // CHUNK * COUNT + tl.minimum(length % CHUNK, COUNT)
    return length


@triton.jit(do_not_specialize=["first_row", "width", "next_width", "table_stride"])
def select_best(
    scores_pointer,
    keys_pointer,
    numbers_pointer,
    next_keys_pointer,
    next_numbers_pointer,
    visible_pointer,
    sequence_pointer,
    table_pointer,
    chosen_pointer,
    entries_pointer,
    places_pointer,
    first_row,
    width,
    next_width,
    table_stride,
    COUNT: tl.constexpr,
    COUNT_PADDED: tl.constexpr,
    CHUNK: tl.constexpr,
    LEVEL: tl.constexpr,
    LAST: tl.constexpr,
    MODE: tl.constexpr,
    SIZE: tl.constexpr,
    CANDIDATES: tl.constexpr,
    PER_BLOCK: tl.constexpr,
):
    """Grid: rows from `first_row` on, chunks. Level 0 reads scores, later ones what the level before left.

    The last level writes entries (or blocks) `[rows, COUNT]` and, but for blocks, their places.
    """
    line = tl.program_id(0).to(tl.int64)
    row = first_row + line
    part = tl.program_id(1)
    visible = tl.load(visible_pointer + row).to(tl.int32)
    length = length_of(visible, CHUNK, COUNT, LEVEL, MODE, SIZE, CANDIDATES)
    number = tl.arange(0, CHUNK)
    here = tl.minimum(length - part * CHUNK, CHUNK)
    if LAST or here > 0:
        cell = line * width + part * CHUNK + number
        inside = number < here
        if LEVEL == 0:
            score = tl.load(scores_pointer + cell, mask=inside, other=0.0)
            keys = tl.where(inside, _ordered(score), 0)
            item = part * CHUNK + number
        else:
            keys = tl.load(keys_pointer + cell, mask=inside, other=0).to(tl.uint32, bitcast=True)
            item = tl.load(numbers_pointer + cell, mask=inside, other=0)
        taken = inside
        if here > COUNT:
            threshold = _threshold(keys, COUNT)
            above = keys > threshold
            equal = (keys == threshold) & inside
            wanted = COUNT - tl.sum(above.to(tl.int32), axis=0)
            taken = above | (equal & (tl.cumsum(equal.to(tl.int32), axis=0) <= wanted))
        if LAST:
            taken = taken & (keys > 0x007FFFFF)  # minus infinity is never chosen
        place = tl.cumsum(taken.to(tl.int32), axis=0) - 1
        if LAST:
            if MODE == LISTED:
                block = tl.load(chosen_pointer + row * CANDIDATES + item // SIZE, mask=taken, other=0)
                item = block.to(tl.int32) * SIZE + item % SIZE
            tl.store(entries_pointer + row * COUNT + place, item, mask=taken)
            rest = tl.arange(0, COUNT_PADDED)
            unused = (rest >= tl.sum(taken.to(tl.int32), axis=0)) & (rest < COUNT)
            tl.store(entries_pointer + row * COUNT + rest, rest * 0 - 1, mask=unused)
            if MODE != BLOCKS:
                table = table_pointer + tl.load(sequence_pointer + row) * table_stride
                page = tl.load(table + item // PER_BLOCK, mask=taken, other=0).to(tl.int32)
                slot = page * PER_BLOCK + item % PER_BLOCK
                tl.store(places_pointer + row * COUNT + place, slot, mask=taken)
                tl.store(places_pointer + row * COUNT + rest, rest * 0 - 1, mask=unused)
        else:
            cell = line * next_width + part * COUNT + place
            tl.store(next_keys_pointer + cell, keys.to(tl.int32, bitcast=True), mask=taken)
            tl.store(next_numbers_pointer + cell, item, mask=taken)


@triton.jit(do_not_specialize=["table_stride", "width"])
def list_visible(
    visible_pointer,
    sequence_pointer,
    table_pointer,
    entries_pointer,
    places_pointer,
    table_stride,
    width,
    TILE: tl.constexpr,
    PER_BLOCK: tl.constexpr,
):
    """Every visible entry of a row, and its place. Grid: rows, tiles."""
    row = tl.program_id(0).to(tl.int64)
    entry = tl.program_id(1) * TILE + tl.arange(0, TILE)
    seen = entry < tl.load(visible_pointer + row)
    inside = entry < width
    table = table_pointer + tl.load(sequence_pointer + row) * table_stride
    page = tl.load(table + entry // PER_BLOCK, mask=seen & inside, other=0).to(tl.int32)
    tl.store(entries_pointer + row * width + entry, tl.where(seen, entry, -1), mask=inside)
    place = tl.where(seen, page * PER_BLOCK + entry % PER_BLOCK, -1)
    tl.store(places_pointer + row * width + entry, place, mask=inside)
