"""The counters of every running sequence as arrays, so that a decode step costs vector operations only.

One row per slot; slot 0 is scratch and stays zero. Planning and committing a step read and write the rows of
the step's sequences with a handful of numpy calls whatever their number; Python looks at single sequences
only when one arrives, leaves, or crosses a block boundary. Rejected: an object per sequence, whose attribute
accesses alone cost the field's engines 10 us per sequence and step.

Invariants: see `check`. The meaning of each array is tabulated in engine/README.md.
"""

from __future__ import annotations

from collections.abc import Sequence as Items

import numpy as np
import numpy.typing as npt

from stepahead.engine.cache.reservation import Admitted
from stepahead.engine.model.runner import BatchLayout, Bools, Int8s, Int32s, Int64s
from stepahead.engine.model.selectors import Rows, Selector
from stepahead.engine.sampling.commit import StepCommit

from .limits import SchedulingLimits
from .sequence import Sequence

FREE, PREFILL, DECODE, LEAVING = np.int8(0), np.int8(1), np.int8(2), np.int8(3)

NOBODY = 0
"""The admission of a row whose commits are ignored: free, or leaving."""


class Ledger:
    """Structure of arrays, index = slot. Only `scheduling/` writes it."""

    def __init__(self, limits: SchedulingLimits) -> None:
        self.limits = limits
        slots = 1 + limits.sequence_slots
        self.phase: Int8s = np.zeros(slots, dtype=np.int8)
        self.sequence_keys: Int64s = np.zeros(slots, dtype=np.int64)
        self.admissions: Int64s = np.zeros(slots, dtype=np.int64)
        self.seniority: Int64s = np.zeros(slots, dtype=np.int64)
        self.most_drafts: Int32s = np.zeros(slots, dtype=np.int32)  # verified in a step, by request
        self.latency_target: npt.NDArray[np.float64] = np.full(slots, np.inf)  # seconds a token
        counters: Int32s = np.zeros((12, slots), dtype=np.int32)
        self._counters = counters
        # Neighbours change together: a decode step's plan is one operation on two rows, its commit two on 5.
        self._grown, self._flying = counters[:3], counters[3:5]
        self.length, self.output, self.cached, self.inflight, self.sampling = counters[:5]
        self.prefill_end, self.max_output, self.block_count, self.published = counters[5:9]
        self.scored_from, self.scored_until, self.scored_alternatives = counters[9:]  # prompt logprobs asked
        self._decode_planned: Int32s = np.array([[limits.width], [1]], dtype=np.int32)
        self._decode_done: Int32s = -self._decode_planned
        self.table: Int32s = np.zeros((slots, limits.table_columns), dtype=np.int32)
        self.tokens: Int32s = np.empty((slots, limits.max_positions), dtype=np.int32)
        self._flat_tokens = self.tokens.reshape(-1)
        self._columns: Int64s = np.arange(limits.width, dtype=np.int64)
        self._selector = Selector()

    # Occupants come and go.

    def occupy(self, sequence: Sequence, slot: int, admission: int, admitted: Admitted) -> None:
        """Moves a waiting sequence into a free slot; its hit counts as cached and as published."""
        length, blocks = len(sequence.tokens), admitted.blocks.size
        self.phase[slot] = PREFILL
        self.sequence_keys[slot] = sequence.key
        self.admissions[slot] = admission
        self.seniority[slot] = sequence.seniority
        params = sequence.request.params
        self.most_drafts[slot] = params.draft_tokens
        self.latency_target[slot] = np.inf if params.latency_target is None else params.latency_target
        self.length[slot] = self.prefill_end[slot] = length
        self.cached[slot] = self.published[slot] = admitted.hit_tokens
        self.output[slot] = sequence.output
        self.max_output[slot] = params.max_output
        if sequence.unscored:
            self.scored_from[slot], self.scored_until[slot] = sequence.scored, sequence.prompt_length - 1
            self.scored_alternatives[slot] = sequence.request.params.prompt_logprobs
        self.block_count[slot] = blocks
        self.table[slot, :blocks] = admitted.blocks
        self.tokens[slot, :length] = sequence.tokens

    def leave(self, slot: int) -> None:
        """The occupant has ended: later commits of its rows are ignored; its blocks stay until `vacate`."""
        self.phase[slot] = LEAVING
        self.admissions[slot] = NOBODY
        self.inflight[slot] = self.sampling[slot] = 0

    def vacate(self, slot: int) -> Int32s:
        """Frees the row and returns its block ids, deepest first (the order in which a cache forgets)."""
        count = int(self.block_count[slot])
        ids: Int32s = self.table[slot, :count][::-1].copy()
        self.table[slot, :count] = 0
        self._counters[:, slot] = 0
        for array in (self.phase, self.sequence_keys, self.admissions, self.seniority):
            array[slot] = 0
        return ids

    def grow(self, slots: Int32s, counts: Int32s, ids: Int32s) -> Int32s:
        """Appends `counts[i]` >= 1 of the concatenated `ids` to the table of `slots[i]`.

        Returns the new entries as int32 [u, 3] (slot, column, block id).
        """
        owners, columns = slots, self.block_count[slots]
        if ids.size > slots.size:
            before = np.cumsum(counts) - counts
            owners = np.repeat(slots, counts)
            columns = np.repeat(columns - before, counts) + np.arange(ids.size, dtype=np.int32)
        entries: Int32s = np.empty((ids.size, 3), dtype=np.int32)
        entries[:, 0], entries[:, 1], entries[:, 2] = owners, columns, ids
        self.table[owners, columns] = ids
        self.block_count[slots] += counts
        return entries

    # Steps.

    def plan(self, layout: BatchLayout) -> None:
        """Counts a planned step in; a prompt whose last chunk it holds decodes from the next plan on."""
        rows = self.rows(layout)
        if layout.decode_count == layout.slots.size:
            _add(self._flying, rows, self._decode_planned)
            return
        self.inflight[rows] += layout.reach
        self.sampling[rows] += layout.samples
        if layout.decode_count < layout.slots.size:
            prompts = slice(layout.decode_count, None)
            self.phase[layout.slots[prompts][layout.samples[prompts]]] = DECODE

    def commit(self, commit: StepCommit) -> Bools:
        """Applies what became of a step; returns bool [b]: rows whose occupant is still here."""
        layout = commit.layout
        rows = self.rows(layout)
        here: Bools = self.admissions[rows] == layout.admissions
        present = np.count_nonzero(here)
        if present == here.size:
            self._store_tokens(self._selector.indices(layout), self.length[rows], commit.tokens)
            self._advance(rows, commit.counts, commit.advanced, layout.reach, layout.samples)
        elif present:
            kept = np.flatnonzero(here)
            slots = self._selector.indices(layout)[kept]
            self._store_tokens(slots, self.length[slots], commit.tokens[kept])
            self._advance(
                slots, commit.counts[kept], commit.advanced[kept], layout.reach[kept], layout.samples[kept]
            )
        return here

    def rows(self, layout: BatchLayout) -> Rows:
        """The selector of a layout's slots."""
        return self._selector.rows(layout)

    def _store_tokens(self, slots: npt.NDArray[np.intp], lengths: Int32s, tokens: Int32s) -> None:
        """Columns past a row's count hold no token of it; the next commit of the sequence overwrites them."""
        begins = slots * self.limits.max_positions + lengths  # one index a token: half the time of two
        if self.limits.width == 1:
            self._flat_tokens[begins] = tokens[:, 0]
        else:
            self._flat_tokens[begins[:, None] + self._columns] = tokens

    def _advance(self, rows: Rows, counts: Int32s, advanced: Int32s, reach: Int32s, samples: Bools) -> None:
        if advanced is counts:  # nothing but decode rows
            _add(self._grown, rows, counts)
            _add(self._flying, rows, self._decode_done)
            return
        self.length[rows] += counts
        self.output[rows] += counts
        self.cached[rows] += advanced
        self.inflight[rows] -= reach
        self.sampling[rows] -= samples

    # Readers.

    def occupied(self) -> Int64s:
        """Slots whose occupant lives, oldest first."""
        slots = np.flatnonzero((self.phase == PREFILL) | (self.phase == DECODE))
        return slots[np.argsort(self.seniority[slots])]

    def sequence_tokens(self, slot: int) -> Int32s:
        """A copy of the committed tokens, int32 [length]."""
        return self.tokens[slot, : self.length[slot]].copy()

    def check(self, uncommitted: Items[BatchLayout]) -> None:
        """Raises AssertionError naming slot and invariant; `uncommitted` are the layouts in flight."""
        limits = self.limits
        reach, sampling = np.zeros_like(self.inflight), np.zeros_like(self.sampling)
        prompting = np.zeros(self.phase.size, dtype=bool)
        for layout in uncommitted:
            here = self.admissions[layout.slots] == layout.admissions
            slots = layout.slots[here]
            reach[slots] += layout.reach[here]
            sampling[slots] += layout.samples[here]
            prompting[layout.slots[layout.decode_count :][here[layout.decode_count :]]] = True
        alive = (self.phase == PREFILL) | (self.phase == DECODE)
        decoding = (self.phase == DECODE) & ~prompting
        ahead = self.cached + self.inflight
        steps, partial = np.divmod(self.inflight, limits.width)
        free = self.phase == FREE
        rules = {
            "inflight is the reach of uncommitted rows": self.inflight == reach,
            "sampling counts uncommitted steps that sample": self.sampling == sampling,
            "a decoding sequence has 0, K or 2K in flight": ~decoding | ((partial == 0) & (steps <= 2)),
            "length is cached + 1 between decode steps": ~decoding
            | (self.inflight > 0)
            | (self.length == self.cached + 1),
            "a prompt is not cached beyond its end": (self.phase != PREFILL) | (ahead <= self.prefill_end),
            "the table covers cached + inflight": ~alive | (self.block_count * limits.block_tokens >= ahead),
            "cached + inflight stay within the context and lookahead": ahead
            <= limits.max_context + 2 * limits.width,
            "output is capped": self.output <= self.max_output,
            "published is a multiple of a block and cached": (self.published % limits.block_tokens == 0)
            & (self.published <= self.cached),
            "free rows are zero": ~free | ~(self._counters.any(axis=0) | self.table.any(axis=1)),
            "free rows have no occupant": ~free | ((self.sequence_keys | self.admissions) == 0),
        }
        for rule, holds in rules.items():
            if np.count_nonzero(holds) < holds.size:
                raise AssertionError(f"slot {int(np.flatnonzero(~holds)[0])} breaks: {rule}")


def _add(counters: Int32s, rows: Rows, amounts: Int32s) -> None:
    """Adds to some columns of counters."""
    if isinstance(rows, slice):  # `array[rows] += x` would copy the view onto itself once more
        view = counters[:, rows]
        np.add(view, amounts, view)
    else:
        counters[:, rows] += amounts
