"""The forward of the hashed model over a step's flat rows: reads and writes what a real one would.

Old entries of a sequence come from the pools, through its block table and its ring; those of the step's own
rows are computed first and written at the end, so a chunk may be longer than the ring. Sums over the rows of
one sequence are differences of running sums over all rows.
"""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt

from ..runner import HISTORY, BatchLayout, Int32s, Int64s, StepPlan, UInt64s
from .model import NGRAM, HashedModel, words
from .slots import Slots, require

Index = npt.NDArray[np.intp]


class Rows(msgspec.Struct, frozen=True, eq=False):
    """Where the rows of a layout belong; the same object for the same layout."""

    layout: BatchLayout
    owner: Index  # [n] sequence of each row
    offset: Index  # [n] within its sequence
    slots: Index  # [n]


class Forward(msgspec.Struct, frozen=True, eq=False):
    """What sampling needs of a forward."""

    plan: StepPlan
    rows: Rows
    first: Int32s  # [b] true first positions
    positions: Int32s  # [n]
    tokens: Int32s  # [n]
    history: Int32s  # [b, HISTORY] before the first rows
    everything: UInt64s  # [n] sums over all entries up to each row
    digests: UInt64s  # [n]


def place_rows(layout: BatchLayout) -> Rows:
    lengths = layout.query_lengths
    owner = np.repeat(np.arange(lengths.size), lengths)
    offset = np.arange(layout.rows) - layout.row_starts[owner]
    return Rows(layout, owner, offset, layout.slots[owner].astype(np.intp))


def forward(model: HashedModel, slots: Slots, plan: StepPlan, rows: Rows) -> Forward:
    """Runs all rows of a plan; `slots` holds the new entries afterwards."""
    layout = plan.layout
    first, tokens, history = _inputs(slots, plan, rows)
    positions = (first[rows.owner] + rows.offset).astype(np.int32)
    blocks = slots.table[rows.slots, positions // model.block_tokens]
    require((blocks > 0).all(), "step {} computes positions whose blocks it never received", plan.step)
    content = model.content(words(tokens), positions)
    ring = _scan(model, rows, first, positions, content, _ring_before(model, slots, layout, first))
    recent = _recent(model, slots, rows, first, ring * model.weights[positions])
    hidden = model.hidden(recent, _ngram(rows, tokens, history))
    entries = _scan(model, rows, first, positions, hidden, _entry_before(model, slots, layout, first))
    everything = _old_entries(model, slots, layout, first)[rows.owner]
    everything += _running(entries * model.weights[positions], rows)
    slots.blocks[blocks, positions % model.block_tokens] = entries
    lasting = rows.offset >= layout.query_lengths[rows.owner] - model.ring
    slots.rings[rows.slots[lasting], positions[lasting] % model.ring] = ring[lasting]
    return Forward(
        plan, rows, first, positions, tokens, history, everything, model.digest(everything, hidden)
    )


def _inputs(slots: Slots, plan: StepPlan, rows: Rows) -> tuple[Int32s, Int32s, Int32s]:
    """First positions [b], tokens [n], history [b, 3]: of decode sequences from the slots, always."""
    layout, decode = plan.layout, plan.layout.decode_count
    occupied = layout.slots[:decode]
    first = plan.first_positions.copy()
    first[:decode] = slots.position[occupied]
    fed = np.concatenate([slots.token[occupied, None], slots.drafts[occupied]], axis=1)
    decode_rows = layout.rows - plan.chunk_tokens.size
    drafted = fed[rows.owner[:decode_rows], rows.offset[:decode_rows]]
    require((drafted >= 0).all(), "step {} verifies drafts that nobody made", plan.step)
    history = np.concatenate([slots.history[occupied], plan.chunk_history])
    return first, np.concatenate([drafted, plan.chunk_tokens]), history


def _running(values: UInt64s, rows: Rows) -> UInt64s:
    """Sums from the first row of each sequence up to every row."""
    sums = np.cumsum(values, dtype=np.uint64)
    starts = rows.layout.row_starts
    running: UInt64s = sums - (sums[starts] - values[starts])[rows.owner]
    return running


def _scan(
    model: HashedModel,
    rows: Rows,
    first: Int32s,
    positions: Int32s,
    content: UInt64s,
    before: UInt64s,
) -> UInt64s:
    """x[p] = FACTOR * x[p-1] + content[p] over the rows of each sequence, from `before` [b]."""
    forward, backward = model.powers
    start = before * backward[np.maximum(first - 1, 0)]
    scanned: UInt64s = forward[positions] * (
        start[rows.owner] + _running(content * backward[positions], rows)
    )
    return scanned


def _entry_before(model: HashedModel, slots: Slots, layout: BatchLayout, first: Int32s) -> UInt64s:
    last = np.maximum(first - 1, 0)
    blocks = slots.table[layout.slots, last // model.block_tokens]
    return np.where(first > 0, slots.blocks[blocks, last % model.block_tokens], np.uint64(0))


def _ring_before(model: HashedModel, slots: Slots, layout: BatchLayout, first: Int32s) -> UInt64s:
    last = np.maximum(first - 1, 0)
    return np.where(first > 0, slots.rings[layout.slots, last % model.ring], np.uint64(0))


def _old_entries(model: HashedModel, slots: Slots, layout: BatchLayout, first: Int32s) -> UInt64s:
    """[b] weighted sums over all entries before the step, read through the block tables."""
    columns = -(-int(first.max(initial=0)) // model.block_tokens)
    size = columns * model.block_tokens
    entries = slots.blocks[slots.table[layout.slots, :columns]].reshape(layout.slots.size, size)
    visible = np.where(np.arange(size) < first[:, None], entries, np.uint64(0))
    sums: UInt64s = (visible * model.weights[:size]).sum(axis=1, dtype=np.uint64)
    return sums


def _recent(model: HashedModel, slots: Slots, rows: Rows, first: Int32s, terms: UInt64s) -> UInt64s:
    """[n] weighted sums over the window that ends at each row; `terms` are the step's own."""
    inside = np.minimum(rows.offset, model.window - 1)
    sums = np.cumsum(terms, dtype=np.uint64)
    oldest = np.arange(terms.size) - inside
    own = sums - sums[oldest] + terms[oldest]
    nearest_first = np.cumsum(ring_terms(model, slots, rows.layout.slots, first), axis=1, dtype=np.uint64)
    padded = np.concatenate([np.zeros((first.size, 1), dtype=np.uint64), nearest_first], axis=1)
    recent: UInt64s = own + padded[rows.owner, np.maximum(model.window - 1 - rows.offset, 0)]
    return recent


def ring_terms(model: HashedModel, slots: Slots, of: Int32s, before: Int32s) -> UInt64s:
    """[b, window - 1] weighted ring entries at `before - 1`, `before - 2`, ...; 0 before the start."""
    positions: Int64s = before[:, None] - np.arange(1, model.window)
    known = np.maximum(positions, 0)
    terms = slots.rings[of[:, None], known % model.ring] * model.weights[known]
    return np.where(positions >= 0, terms, np.uint64(0))


def _ngram(rows: Rows, tokens: Int32s, history: Int32s) -> UInt64s:
    """[n] each row's token and the three before it, from the step or from the history."""
    total = words(tokens) * np.uint64(NGRAM[0])
    number = np.arange(tokens.size)
    for back in range(1, HISTORY + 1):
        inside = rows.offset >= back
        before = history[rows.owner, np.minimum(HISTORY - back + rows.offset, HISTORY - 1)]
        token = np.where(inside, tokens[np.where(inside, number - back, 0)], before)
        total += words(token) * np.uint64(NGRAM[back])
    return total
