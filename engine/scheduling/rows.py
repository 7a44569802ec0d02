"""Which sequences have rows in the next step, and what those rows lack.

Everything here reads the ledger and writes nothing, so planning may look again after a preemption.
"""

from __future__ import annotations

import msgspec
import numpy as np

from stepahead.engine.cache.reservation import EMPTY
from stepahead.engine.model.runner import BatchLayout, Int32s, Int64s
from stepahead.engine.model.selectors import Rows

from .chunks import PromptRows, chunk_end
from .ledger import DECODE, PREFILL, Ledger
from .members import Members
from .speculation import Speculation
from .window_saves import WindowSaves


class StepRows(msgspec.Struct, eq=False):
    """The rows of a step that is being planned; prompts are appended as they are admitted."""

    members: Members
    decode: BatchLayout
    decode_rows: Rows
    decode_first: Int32s  # optimistic first positions
    short: Int64s  # decode rows whose tables do not cover what the step may write
    reached: Int64s  # decode rows that may have passed a boundary whose state is worth keeping
    prompts: list[PromptRows]
    budget: int  # rows left

    @property
    def empty(self) -> bool:
        return not (self.decode.rows or self.prompts)

    def prompt_slots(self) -> Int32s:
        return np.array([rows.slot for rows in self.prompts], dtype=np.int32)


class RowChooser:
    """Remembers who decodes for as long as their membership does not change."""

    def __init__(self, ledger: Ledger, speculation: Speculation, saves: WindowSaves) -> None:
        self._ledger, self._speculation, self._saves = ledger, speculation, saves
        self.stale = True  # set by whoever changes the phase of a slot
        self._members = Members(ledger, np.empty(0, dtype=np.int32))
        self._prefilling = False

    def repeated(self) -> Members | None:
        """Who decodes in a step that would repeat its predecessor's members, unless a prompt joins them."""
        return None if self.stale or self._prefilling else self._members

    def first_positions(self, members: Members) -> Int32s:
        """Optimistic first positions of their rows."""
        first: Int32s = self._ledger.cached[members.rows] + self._ledger.inflight[members.rows]
        return first

    def choose(self, step: int) -> StepRows:
        """Every sequence that decodes and can still need a token, then prompts in the rest of the budget."""
        ledger = self._ledger
        if self.stale:
            self._refresh()
        members, limits = self._members, ledger.limits
        rows = members.rows
        open_ended = ledger.output[rows] + ledger.sampling[rows] < ledger.max_output[rows]
        if np.count_nonzero(open_ended) < open_ended.size:
            members = Members(ledger, members.slots[open_ended])
            rows = members.rows
        others = self._prompt_rows(members.count) if self._prefilling else 0
        layout = members.layout(self._speculation.spare(members, others, step))
        first = self.first_positions(members)
        short = (first + limits.width > ledger.block_count[rows] * limits.block_tokens).nonzero()[0]
        reached = (first >= self._saves.next_position[rows]).nonzero()[0]
        chosen = StepRows(members, layout, rows, first, short, reached, [], limits.max_rows - layout.rows)
        if self._prefilling:
            self._continue_prompts(chosen)
        return chosen

    def _refresh(self) -> None:
        phase = self._ledger.phase
        self._members = Members(self._ledger, np.flatnonzero(phase == DECODE).astype(np.int32))
        self._prefilling = bool((phase == PREFILL).any())
        self.stale = False

    def _prompt_rows(self, decoding: int) -> int:
        """Rows that prompts in their slots would take beside one row of each sequence that decodes."""
        ledger, limits = self._ledger, self._ledger.limits
        slots = np.flatnonzero(ledger.phase == PREFILL)
        left = ledger.prefill_end[slots] - ledger.cached[slots] - ledger.inflight[slots]
        return min(int(np.minimum(left, limits.prefill_chunk).sum()), limits.max_rows - decoding)

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
    if not (rows.short.size or rows.prompts):
        return EMPTY, EMPTY
    block, width = ledger.limits.block_tokens, ledger.limits.width
    slots, ends = rows.decode.slots[rows.short], rows.decode_first[rows.short] + width
    if rows.prompts:
        slots = np.concatenate([slots, rows.prompt_slots()])
        ends = np.concatenate([ends, np.array([prompt.end for prompt in rows.prompts], dtype=np.int32)])
    order = ledger.seniority[slots].argsort()
    slots = slots[order]
    if not rows.prompts and width <= block:  # tables cover what is in flight, so one more block is enough
        return slots, np.ones_like(slots)
    counts = -(-ends[order] // block) - ledger.block_count[slots]
    if rows.prompts:  # decode rows here are short, a prompt's chunk may be covered already
        lacking = np.flatnonzero(counts > 0)
        slots, counts = slots[lacking], counts[lacking]
    return slots, counts
