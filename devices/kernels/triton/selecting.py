"""The exact best of many scores, ties to the lower number, in ascending order of numbers.

Scores become integers of the same order. A program holds up to `CHUNK` of them in registers and searches the
range of values for one that separates the best from the rest, by counting how many reach it: no sorting, no
atomics. What is larger is chosen; of what is equal, the first ones. Longer lists are cut into chunks: each
leaves its own best to a next launch, until one chunk holds them all. That is exact, and since every chunk but
the last is full, what the chunks leave is again a list without holes.
"""

from __future__ import annotations

import triton
import triton.language as tl

ENTRIES = tl.constexpr(0)
BLOCKS = tl.constexpr(1)
LISTED = tl.constexpr(2)


@triton.jit
def as_ordered(score):
    """uint32 of the order of float32; -0 equals +0."""
    bits = tl.where(score == 0.0, 0.0, score).to(tl.uint32, bitcast=True)
    return tl.where(bits >= 0x80000000, bits ^ 0xFFFFFFFF, bits | 0x80000000)


@triton.jit
def threshold_of(keys, inside, count):
    """A number that separates the `count` largest keys from the others: fewer than `count` keys are above
    it, and `count` or more reach it.

    The range between the smallest and the largest key is cut in three until that is so. The two counts of a
    round share one sum, 16 bits each: a warp adds up 32 bits in one instruction, and the latency of such sums
    is what a round takes. Where exactly `count` keys reach a trial, the search is over: for distinct scores
    that is after about half as many rounds as the bits of the range.
    """
    tl.static_assert(keys.shape[0] < 65536)
    low = tl.min(tl.where(inside, keys, 0xFFFFFFFF), axis=0).to(tl.int64)
    high = tl.max(keys, axis=0).to(tl.int64)
    while low < high:
        width = high - low
        first = low + ((width * 21845) >> 16) + 1
        second = low + ((width * 43690) >> 16) + 1
        reached = (keys >= first.to(tl.uint32)).to(tl.uint32)
        reached += (keys >= second.to(tl.uint32)).to(tl.uint32) << 16
        counts = tl.sum(reached, axis=0).to(tl.uint32)
        of_first, of_second = (counts & 0xFFFF).to(tl.int32), (counts >> 16).to(tl.int32)
        bottom = tl.where(of_second >= count, second, tl.where(of_first >= count, first, low))
        top = tl.where(of_second >= count, high, tl.where(of_first >= count, second - 1, first - 1))
        met = tl.where(of_second >= count, of_second, of_first)
        low = bottom
        high = tl.where(met == count, bottom, top)
    return low.to(tl.uint32)


@triton.jit
def length_of(
    visible, level, CHUNK: tl.constexpr, COUNT: tl.constexpr, MODE: tl.constexpr, SIZE: tl.constexpr,
    CANDIDATES: tl.constexpr,
):  # fmt: skip
    """How many items a row has at a level."""
    length = visible
    if MODE != ENTRIES:
        length = (visible + SIZE - 1) // SIZE
    if MODE == LISTED:
        length = tl.minimum(length, CANDIDATES) * SIZE
    for _ in range(level):
        length = length // CHUNK * COUNT + tl.minimum(length % CHUNK, COUNT)
    return length


@triton.jit(do_not_specialize=["first_row", "width", "next_width", "table_stride", "level", "last"])
def select_best(
    scores_pointer, keys_pointer, numbers_pointer, next_keys_pointer, next_numbers_pointer, visible_pointer,
    sequence_pointer, table_pointer, chosen_pointer, entries_pointer, places_pointer, first_row, width,
    next_width, table_stride, level, last, COUNT: tl.constexpr, COUNT_PADDED: tl.constexpr,
    CHUNK: tl.constexpr, MODE: tl.constexpr, SIZE: tl.constexpr, CANDIDATES: tl.constexpr,
    PER_BLOCK: tl.constexpr,
):  # fmt: skip
    """Grid: rows from `first_row` on, chunks. Level 0 reads scores, later ones what the level before left.

    The last level writes entries (or blocks) `[rows, COUNT]` and, but for blocks, their places. All levels
    share their code: between large products it comes from memory, which takes a third of a launch.
    """
    line, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    row = first_row + line
    visible = tl.load(visible_pointer + row).to(tl.int32)
    table_pointer += tl.load(sequence_pointer + row) * table_stride
    length = length_of(visible, level, CHUNK, COUNT, MODE, SIZE, CANDIDATES)
    number = tl.arange(0, CHUNK)
    here = tl.minimum(length - part * CHUNK, CHUNK)
    if (last > 0) | (here > 0):
        cell = line * width + part * CHUNK + number
        inside = number < here
        item = part * CHUNK + number
        if level == 0:
            score = tl.load(scores_pointer + cell, mask=inside, other=0.0)
            keys = tl.where(inside, as_ordered(score), 0)
        else:
            keys = tl.load(keys_pointer + cell, mask=inside, other=0).to(tl.uint32, bitcast=True)
            item = tl.load(numbers_pointer + cell, mask=inside, other=0)
        # Minus infinity is never chosen in the end.
        threshold = tl.where(last > 0, 0x007FFFFF, 0).to(tl.uint32)
        if here > COUNT:
            threshold = tl.maximum(threshold, threshold_of(keys, inside, COUNT))
        above = (keys > threshold) & inside
        equal = (keys == threshold) & inside
        equal = equal & ((last == 0) | (threshold > 0x007FFFFF))
        # Both running counts in one scan: what stands above the threshold, and the first of its equals.
        running = tl.cumsum(above.to(tl.int32) + (equal.to(tl.int32) << 16), axis=0)
        wanted = COUNT - tl.sum(above.to(tl.int32), axis=0)
        equals = running >> 16
        taken = above | (equal & (equals <= wanted))
        place = (running & 0xFFFF) + tl.minimum(equals, wanted) - 1
        if last > 0:
            if MODE == LISTED:
                block = tl.load(chosen_pointer + row * CANDIDATES + item // SIZE, mask=taken, other=0)
                item = block.to(tl.int32) * SIZE + item % SIZE
            tl.store(entries_pointer + row * COUNT + place, item, mask=taken)
            rest = tl.arange(0, COUNT_PADDED)
            unused = (rest >= tl.sum(taken.to(tl.int32), axis=0)) & (rest < COUNT)
            tl.store(entries_pointer + row * COUNT + rest, rest * 0 - 1, mask=unused)
            if MODE != BLOCKS:
                page = tl.load(table_pointer + item // PER_BLOCK, mask=taken, other=0).to(tl.int32)
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
