"""Which sequences have rows in the next step, and what those rows lack.

Everything here reads the ledger and writes nothing, so planning may look again after a preemption.
"""

from __future__ import annotations

import msgspec
import numpy as np

from stepahead.engine.cache.reservation import EMPTY
from stepahead.engine.model.runner import BatchLayout, Int32s
from stepahead.engine.model.selectors import Rows, rows_of

from .chunks import PromptRows, chunk_end, decode_layout
from .ledger import DECODE, PREFILL, Ledger


class StepRows(msgspec.Struct, eq=False):
    """The rows of a step that is being planned; prompts are appended as they are admitted."""

    decode: BatchLayout
    decode_rows: Rows
    decode_first: Int32s  # optimistic first positions
    prompts: list[PromptRows]
    budget: int  # rows left

    @property
    def empty(self) -> bool:
        return not (self.decode.rows or self.prompts)

    def prompt_slots(self) -> Int32s:
        return np.array([rows.slot for rows in self.prompts], dtype=np.int32)


class RowChooser:
    """Remembers the decode rows for as long as their membership does not change."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.stale = True  # set by whoever changes the phase of a slot
        self._layout = decode_layout(ledger, np.empty(0, dtype=np.int32))
        self._rows: Rows = slice(0, 0)
        self._prefilling = False

    def repeated(self) -> BatchLayout | None:
        """The layout of a step that would repeat its predecessor's members, unless a prompt joins them."""
        return None if self.stale or self._prefilling else self._layout

    def first_positions(self) -> Int32s:
        """Optimistic first positions of that layout's rows."""
        first: Int32s = self._ledger.cached[self._rows] + self._ledger.inflight[self._rows]
        return first

    def choose(self) -> StepRows:
        """Every sequence that decodes and can still need a token, then prompts in the rest of the budget."""
        ledger = self._ledger
        if self.stale:
            self._refresh()
        layout, rows = self._layout, self._rows
        open_ended = ledger.output[rows] + ledger.sampling[rows] < ledger.max_output[rows]
        if np.count_nonzero(open_ended) < open_ended.size:
            layout = decode_layout(ledger, layout.slots[open_ended])
            rows = rows_of(layout.slots)
        first = ledger.cached[rows] + ledger.inflight[rows]
        budget = ledger.limits.max_rows - layout.rows
        chosen = StepRows(layout, rows, first, [], budget)
        if self._prefilling:
            self._continue_prompts(chosen)
        return chosen

    def _refresh(self) -> None:
        phase = self._ledger.phase
        self._layout = decode_layout(self._ledger, np.flatnonzero(phase == DECODE).astype(np.int32))
        self._rows = rows_of(self._layout.slots)
        self._prefilling = bool((phase == PREFILL).any())
        self.stale = False

    def _continue_prompts(self, chosen: StepRows) -> None:
        ledger = self._ledger
        slots = np.flatnonzero(ledger.phase == PREFILL)
        for slot in slots[np.argsort(ledger.seniority[slots])].tolist():
            if chosen.budget == 0:
                return
            start = int(ledger.cached[slot] + ledger.inflight[slot])
            end = chunk_end(start, int(ledger.prefill_end[slot]), chosen.budget, ledger.limits)
            chosen.prompts.append(PromptRows(slot, start, end))
            chosen.budget -= end - start


def missing_blocks(ledger: Ledger, rows: StepRows) -> tuple[Int32s, Int32s]:
    """Slots whose tables do not cover their rows, oldest first, and how many blocks each lacks."""
    block, width = ledger.limits.block_tokens, ledger.limits.width
    short = np.flatnonzero(rows.decode_first + width > ledger.block_count[rows.decode_rows] * block)
    slots, ends = rows.decode.slots[short], rows.decode_first[short] + width
    if rows.prompts:
        slots = np.concatenate([slots, rows.prompt_slots()])
        ends = np.concatenate([ends, np.array([prompt.end for prompt in rows.prompts], dtype=np.int32)])
    if not slots.size:
        return EMPTY, EMPTY
    order = np.argsort(ledger.seniority[slots])
    slots = slots[order]
    counts = -(-ends[order] // block) - ledger.block_count[slots]
    if rows.prompts:  # decode rows here are short, a prompt's chunk may be covered already
        short = np.flatnonzero(counts > 0)
        slots, counts = slots[short], counts[short]
    return slots, counts
