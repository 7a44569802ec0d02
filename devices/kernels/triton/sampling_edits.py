"""Edits of one row's logits, a tile of its tokens at a time, chosen by the bits of the row's slot.

What is as wide as the vocabulary (grammar bits, counts of tokens seen) is read beside the logits. Lists of
ids are scattered: the tile goes to a scratch row, every program writes the listed ids that fall into its own
tile, and reads the tile back. Programs share no token, so nothing needs an atomic; a row without lists leaves
its scratch untouched. Rejected: comparing every token with every listed id, 300 comparisons a token where a
request has 300 biases.
"""

from __future__ import annotations

import triton
import triton.language as tl

RANDOM = tl.constexpr(1)
FILTER = tl.constexpr(2)
EARLY_BAN = tl.constexpr(4)
BIAS = tl.constexpr(8)
ALLOWED = tl.constexpr(16)
WORDS = tl.constexpr(32)
PENALTY = tl.constexpr(64)
PROCESSED = tl.constexpr(128)
"""The bits of `reference.sampling.tables`, which a test compares with these."""

_LISTED = tl.constexpr(512)
"""List entries a program reads at a time."""
_WORDS = tl.constexpr(32)
"""Bad words that it compares at a time, all their tokens at once."""


@triton.jit
def sequence_rows(sequences, decodes, first_prompt_row, sequence, place):
    """(row of the logits, whether the sequence draws there, slot, position of the token to draw).

    A decode's rows begin behind those of the decodes before it, a prompt's only row stands at the end.
    """
    slot = tl.load(sequences.slots + sequence)
    first = tl.load(sequences.first + sequence)
    length = tl.load(sequences.lengths + sequence)
    lane = tl.arange(0, 128)
    before = tl.zeros((128,), tl.int64)
    start = 0
    while start < tl.minimum(sequence, decodes):
        before += tl.load(sequences.lengths + start + lane, mask=start + lane < sequence, other=0)
        start += 128
    prompt = sequence >= decodes
    row = tl.where(prompt, first_prompt_row + sequence, tl.sum(before) + place)
    count = tl.where(prompt, 1, length)
    output = first + tl.where(prompt, length, 1) + place
    return row, place < count, slot, output


@triton.jit
def needs_scratch(work, early):
    return ((work & (BIAS | ALLOWED | WORDS)) != 0) | early


@triton.jit
def edited(
    x, ids, low, row, slot, output, place, work, tables, drafts, bits, scratch,
    VOCAB: tl.constexpr, DRAFTS: tl.constexpr, HAS_BITS: tl.constexpr, TILE: tl.constexpr,
    ALLOWED_TILE: tl.constexpr, REACH: tl.constexpr,
):  # fmt: skip
    """The tile `x` of tokens `ids` (from `low` on) under all edits of its row; -inf beyond the vocabulary.

    `scratch` points at the row's own scratch.
    """
    inside = ids < VOCAB
    if HAS_BITS:
        words: tl.constexpr = (VOCAB + 31) // 32
        word = tl.load(bits + row * words + ids // 32, mask=inside, other=0)
        x = tl.where(((word >> (ids % 32)) & 1) == 1, x, float("-inf"))
    if (work & PENALTY) != 0:
        x = _penalised(x, ids, inside, slot, place, tables, drafts, VOCAB, DRAFTS)
    early = ((work & EARLY_BAN) != 0) & (output < tl.load(tables.min_output + slot))
    if needs_scratch(work, early):
        tl.store(scratch + ids, x, mask=inside)
        tl.debug_barrier()
        high = low + TILE
        if (work & BIAS) != 0:
            _add(scratch, low, high, slot, tables)
        if (work & ALLOWED) != 0:
            _allow_only(scratch, ids, inside, low, high, slot, tables, ALLOWED_TILE)
        if (work & WORDS) != 0:
            _ban_completed(scratch, low, high, slot, place, tables, drafts, DRAFTS, REACH)
        if early:
            _ban_ends(scratch, low, high, slot, tables)
        x = tl.load(scratch + ids, mask=inside, other=float("-inf"))
        tl.debug_barrier()
    return x


@triton.jit
def _penalised(
    x, ids, inside, slot, place, tables, drafts, VOCAB: tl.constexpr, DRAFTS: tl.constexpr
):  # fmt: skip
    counts = tl.load(tables.seen + slot * VOCAB + ids, mask=inside, other=0)
    times = counts >> 1
    for ahead in tl.static_range(DRAFTS):
        token = tl.load(drafts + slot * DRAFTS + ahead, mask=ahead < place, other=-1)
        times += tl.where(ids == token, 1, 0)
    factor = tl.load(tables.repetition + slot)
    value = tl.where(x > 0, tl.div_rn(x, factor), x * factor)
    value = value - tl.load(tables.frequency + slot) * times.to(tl.float32)
    value = value - tl.where(times > 0, tl.load(tables.presence + slot), 0.0)
    return tl.where((counts > 0) | (times > 0), value, x)


@triton.jit
def _add(scratch, low, high, slot, tables):
    width = tables.bias_width
    start = 0
    count = tl.load(tables.bias_count + slot)
    while start < count:
        entry = start + tl.arange(0, _LISTED)
        listed = tl.load(tables.bias_ids + slot * width + entry, mask=entry < width, other=-1)
        own = (listed >= low) & (listed < high)
        value = tl.load(scratch + listed, mask=own, other=0.0)
        added = tl.load(tables.bias_values + slot * width + entry, mask=own, other=0.0)
        tl.store(scratch + listed, value + added, mask=own)
        start += _LISTED
    tl.debug_barrier()


@triton.jit
def _allow_only(scratch, ids, inside, low, high, slot, tables, ALLOWED_TILE: tl.constexpr):
    entry = tl.arange(0, ALLOWED_TILE)
    width = tables.allowed_width
    listed = tl.load(tables.allowed_ids + slot * width + entry, mask=entry < width, other=-1)
    own = (listed >= low) & (listed < high)
    kept = tl.load(scratch + listed, mask=own, other=0.0)
    tl.debug_barrier()
    tl.store(scratch + ids, tl.zeros_like(ids).to(tl.float32) - float("inf"), mask=inside)
    tl.debug_barrier()
    tl.store(scratch + listed, kept, mask=own)
    tl.debug_barrier()


@triton.jit
def _ban(scratch, listed, own):
    """Adding keeps a NaN one: a broken row stays broken."""
    value = tl.load(scratch + listed, mask=own, other=0.0)
    tl.store(scratch + listed, value - float("inf"), mask=own)


@triton.jit
def _ban_completed(
    scratch, low, high, slot, place, tables, drafts, DRAFTS: tl.constexpr, REACH: tl.constexpr
):  # fmt: skip
    """Words whose beginning is what the last tokens and the drafts before this place say."""
    words, reach = tables.words_width, tables.reach
    lane = tl.arange(0, REACH)
    at = place + lane
    older = tl.load(tables.recent + slot * reach + at, mask=(lane < reach) & (at < reach), other=-1)
    newer = tl.load(drafts + slot * DRAFTS + at - reach, mask=(lane < reach) & (at >= reach), other=-1)
    said = tl.where(at < reach, older, newer)
    start = 0
    count = tl.load(tables.word_count + slot)
    while start < count:
        word = start + tl.arange(0, _WORDS)
        end = tl.load(tables.word_ends + slot * words + word, mask=word < words, other=-1)
        own = (end >= low) & (end < high)
        beginnings = tl.load(
            tables.word_beginnings + (slot * words + word)[:, None] * reach + lane[None, :],
            mask=own[:, None] & (lane < reach)[None, :],
            other=-1,
        )
        differs = (beginnings >= 0) & (beginnings != said[None, :])
        _ban(scratch, end, own & (tl.max(differs.to(tl.int32), axis=1) == 0))
        start += _WORDS
    tl.debug_barrier()


@triton.jit
def _ban_ends(scratch, low, high, slot, tables):
    start = 0
    while start < tables.ends_width:
        entry = start + tl.arange(0, 16)
        end = tl.load(
            tables.end_ids + slot * tables.ends_width + entry, mask=entry < tables.ends_width, other=-1
        )
        _ban(scratch, end, (end >= low) & (end < high))
        start += 16
    tl.debug_barrier()
