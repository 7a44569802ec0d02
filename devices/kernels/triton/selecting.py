"""The exact best of many scores, ties to the lower number, in ascending order of numbers.

Scores are compared as integers of the same order, their ranks. A program holds a few thousand of them in
registers and searches the range of ranks for one that separates the best from the rest, by counting how many
reach it: no sorting, no atomics. What is larger is chosen; of what is equal, the first ones.

Rejected: cutting a longer list into chunks that each leave their best to a next launch. One row over 131,072
entries took three launches one after the other, each of them mostly its beginning and its end. Here a list is
cut into groups whose best ranks are known (the kernel that scores entries leaves them), and the best groups
are chosen first. That is exact: an item of a group that was not chosen is beaten by an item of each group
that was, and where ranks are equal by a lower number. So both choices are of about the square root of the
list's length times `COUNT`, and one program makes both, with the same code.
"""

from __future__ import annotations

import triton
import triton.language as tl

ENTRIES = tl.constexpr(0)
BLOCKS = tl.constexpr(1)
LISTED = tl.constexpr(2)
THIRD, TWO_THIRDS = tl.constexpr(0x55555555), tl.constexpr(0xAAAAAAAA)
"""Shares of a range, in units of 2^-32."""
ALIGNED = tl.constexpr(64)
"""In units of so many ranks parts of a row begin: whole groups and whole loads lie within."""


@triton.jit
def as_ordered(score):
    """uint32 of the order of float32; -0 equals +0."""
    bits = tl.where(score == 0.0, 0.0, score).to(tl.uint32, bitcast=True)
    return tl.where(bits >= 0x80000000, bits ^ 0xFFFFFFFF, bits | 0x80000000)


@triton.jit
def as_rank(score, like_pointer):
    """The order of scores in as many bits as are stored: of bfloat16 numbers the upper 16 are enough."""
    drop: tl.constexpr = 32 - like_pointer.dtype.element_ty.primitive_bitwidth
    return as_ordered(score) >> drop


@triton.jit
def threshold_of(ranks, low, count, first_share, second_share):
    """A number from `low` on that separates the `count` largest ranks from the others: fewer than `count` are
    above it, and `count` or more reach it, if so many reach `low`.

    The range from `low` to the largest rank is cut in three until that is so: at first at two shares of it,
    in units of 2^-32, then evenly. The two counts of a round share one sum, 16 bits each: a warp adds up 32
    bits in one instruction, and the latency of such sums is what a round takes. Where exactly `count` ranks
    reach a trial, the search is over.
    """
    tl.static_assert(ranks.numel < 65536)
    high = tl.max(ranks)
    while low < high:
        width = high - low
        first = low + tl.umulhi(width, first_share) + 1
        second = low + tl.umulhi(width, second_share) + 1
        counts = tl.sum((ranks >= first).to(tl.uint32) + ((ranks >= second).to(tl.uint32) << 16))
        of_first, of_second = counts & 0xFFFF, counts >> 16
        bottom = tl.where(of_second >= count, second, tl.where(of_first >= count, first, low))
        top = tl.where(of_second >= count, high, tl.where(of_first >= count, second - 1, first - 1))
        met = tl.where(of_second >= count, of_second, of_first)
        low = bottom
        high = tl.where(met == count, bottom, top)
        first_share, second_share = first_share * 0 + THIRD, second_share * 0 + TWO_THIRDS
    return low


@triton.jit
def _places(ranks, threshold, nothing, COUNT: tl.constexpr):
    """Which of `[threads, loads, neighbours]` are the best COUNT, their places among these, and how many.

    Both counts, of what is above the threshold and of what equals it, go through one sum and one scan.
    """
    above = ranks > threshold
    equal = (ranks == threshold) & (threshold > nothing)
    either = above.to(tl.uint32) + (equal.to(tl.uint32) << 16)
    of_load = tl.sum(either, axis=2)
    warps: tl.constexpr = ranks.shape[0] // 32
    of_thread = tl.sum(of_load, axis=1).reshape(warps, 32)
    # Every warp sees the sums of all: what is before it, and the total.
    others = tl.broadcast_to(tl.sum(of_thread, axis=1)[None, :], (warps, warps))
    earlier = tl.arange(0, warps)[None, :] < tl.arange(0, warps)[:, None]
    total = tl.sum(others, axis=1)
    before = tl.sum(tl.where(earlier, others, 0), axis=1)[:, None] + tl.cumsum(of_thread, axis=1) - of_thread
    before = before.reshape(ranks.shape[0])[:, None] + tl.cumsum(of_load, axis=1) - of_load
    running = before[:, :, None] + tl.cumsum(either, axis=2)
    total = tl.broadcast_to(total[:, None], (warps, 32)).reshape(ranks.shape[0])[:, None, None]
    wanted = COUNT - (total & 0xFFFF)
    equals = running >> 16
    place = (running & 0xFFFF) + tl.minimum(equals, wanted) - 1
    count = (total & 0xFFFF) + tl.minimum(total >> 16, wanted)
    return above | (equal & (equals <= wanted)), place, count


@triton.jit
def _store_rest(pointer, begin, COUNT: tl.constexpr):
    """-1 from place `begin` on, `[threads, 1, 1]`."""
    for start in tl.static_range(0, COUNT, begin.shape[0]):
        place = start + tl.arange(0, begin.shape[0])[:, None, None]
        tl.store(pointer + place, place * 0 - 1, mask=(place >= begin) & (place < COUNT))


@triton.jit
def _length(visible, MODE: tl.constexpr, SIZE: tl.constexpr, CANDIDATES: tl.constexpr):
    """How many items there are to choose from."""
    length = visible
    if MODE != ENTRIES:
        length = (visible + SIZE - 1) // SIZE
    if MODE == LISTED:
        length = tl.minimum(length, CANDIDATES) * SIZE
    return length


@triton.jit
def _numbers(THREADS: tl.constexpr, DEPTH: tl.constexpr, LOAD: tl.constexpr):
    """Numbers `[threads, loads, neighbours]`, DEPTH in a row of each thread; and the first of each load."""
    first = tl.arange(0, THREADS)[:, None, None] * DEPTH + tl.arange(0, DEPTH // LOAD)[None, :, None] * LOAD
    number = first + tl.arange(0, LOAD)[None, None, :]
    return first.to(tl.uint32), number.to(tl.uint32)


@triton.jit
def _choose(
    ranks_pointer, table_pointer, chosen_pointer, entries_pointer, places_pointer, visible, fine, coarse,
    COUNT: tl.constexpr, THREADS: tl.constexpr, DEPTH: tl.constexpr, GROUP: tl.constexpr, MODE: tl.constexpr,
    SIZE: tl.constexpr, CANDIDATES: tl.constexpr, PER_BLOCK: tl.constexpr,
):  # fmt: skip
    """The best COUNT of one row: entries (or blocks) and, but for blocks, their places.

    Ranks of items lie from `fine` on, those of groups of GROUP items from `coarse` on, in units of `ALIGNED`.
    The groups chosen stand where the entries will until these are known. A thread holds DEPTH neighbours: it
    adds those up by itself, and a scan over threads is all that is left of one over items.
    """
    length = _length(visible, MODE, SIZE, CANDIDATES).to(tl.uint32)
    drop: tl.constexpr = 32 - ranks_pointer.dtype.element_ty.primitive_bitwidth
    # Minus infinity is never chosen.
    nothing: tl.constexpr = 0x007FFFFF >> drop
    infinity: tl.constexpr = 0xFF800000 >> drop
    low = (visible * 0 + nothing).to(tl.uint32)
    # The best of most lists lie within a few octaves of a range of hundreds; and once the worst of the best
    # groups is known, hardly more items reach it than are wanted.
    first_share, second_share = low * 0 + 0xFC000000, low * 0 + 0xFF000000
    most: tl.constexpr = min(DEPTH, 128 // ranks_pointer.dtype.element_ty.primitive_bitwidth)
    load: tl.constexpr = most if GROUP == 1 else min(most, GROUP)
    first, number = _numbers(THREADS, DEPTH, load)
    groups = tl.zeros((THREADS, 1, 1), tl.uint32)
    for stage in range(1 if GROUP == 1 else 2):
        last = stage == (0 if GROUP == 1 else 1)
        begin, end, item, near = fine, length, number, first < length
        if GROUP > 1:
            begin = tl.where(last, fine, coarse)
            end = tl.where(last, length, (length + GROUP - 1) // GROUP)
            known = last & (first < groups * GROUP)
            group = tl.load(entries_pointer + first // GROUP, mask=known, other=0).to(tl.uint32)
            item = tl.where(last, group * GROUP + number % GROUP, number)
            near = tl.where(last, known, first < end)
        # Neighbours come in one load; what stands beyond the end is no rank.
        ranks = tl.load(ranks_pointer + begin * ALIGNED + item, mask=near, other=0).to(tl.uint32)
        ranks = tl.where(near & (item < end), ranks, 0)
        if MODE == BLOCKS:
            # The block of the newest entry always is one.
            ranks = tl.where(near & (item + 1 == end), tl.maximum(ranks, infinity), ranks)
        threshold = low
        if end > COUNT:
            threshold = threshold_of(ranks, low, COUNT, first_share, second_share)
        taken, place, groups = _places(ranks, threshold, nothing, COUNT)
        if last:
            if MODE == LISTED:
                block = tl.load(chosen_pointer + item // SIZE, mask=taken, other=0)
                item = block.to(tl.uint32) * SIZE + item % SIZE
            _store_rest(entries_pointer, groups, COUNT)
            if MODE != BLOCKS:
                page = tl.load(table_pointer + item // PER_BLOCK, mask=taken, other=0).to(tl.uint32)
                slot = page * PER_BLOCK + item % PER_BLOCK
                tl.store(places_pointer + place, slot, mask=taken)
                _store_rest(places_pointer, groups, COUNT)
        tl.store(entries_pointer + place, item, mask=taken)
        if GROUP > 1:
            tl.debug_barrier()
            low = threshold
            first_share, second_share = low * 0 + 0x10000000, low * 0 + 0x40000000


@triton.jit(do_not_specialize=["first_row", "stride", "blocks_at", "groups_at", "table_stride"])
def select_best(
    ranks_pointer, visible_pointer, sequence_pointer, table_pointer, chosen_pointer, entries_pointer,
    places_pointer, blocks_pointer, first_row, stride, blocks_at, groups_at, table_stride,
    COUNT: tl.constexpr, COUNT_BLOCKS: tl.constexpr, THREADS: tl.constexpr, DEPTH: tl.constexpr,
    DEPTH_BLOCKS: tl.constexpr, GROUP: tl.constexpr, GROUP_BLOCKS: tl.constexpr, SIZE: tl.constexpr,
    CANDIDATES: tl.constexpr, PER_BLOCK: tl.constexpr,
):  # fmt: skip
    """Grid: rows from `first_row` on; entries, blocks. Writes entries `[rows, COUNT]` and their places, and
    blocks `[rows, COUNT_BLOCKS]` if there are any. A row's ranks lie `stride` apart, in units of `ALIGNED`.
    """
    line = tl.program_id(0).to(tl.int64)
    row = first_row + line
    visible = tl.load(visible_pointer + row).to(tl.int32)
    table_pointer += tl.load(sequence_pointer + row) * table_stride
    ranks_pointer += line * stride * ALIGNED
    if COUNT_BLOCKS == 0 or tl.program_id(1) == 0:
        _choose(
            ranks_pointer, table_pointer, chosen_pointer + row * CANDIDATES, entries_pointer + row * COUNT,
            places_pointer + row * COUNT, visible, 0, groups_at, COUNT, THREADS, DEPTH, GROUP,
            LISTED if CANDIDATES > 0 else ENTRIES, SIZE, CANDIDATES, PER_BLOCK,
        )  # fmt: skip
    else:
        _choose(
            ranks_pointer, table_pointer, chosen_pointer, blocks_pointer + row * COUNT_BLOCKS, blocks_pointer,
            visible, blocks_at, groups_at, COUNT_BLOCKS, THREADS, DEPTH_BLOCKS, GROUP_BLOCKS, BLOCKS, SIZE,
            CANDIDATES, PER_BLOCK,
        )  # fmt: skip


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
