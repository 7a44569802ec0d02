"""Fills the budget that running sequences leave with sequences that wait.

The cache decides who fits, since only it knows how much of a prompt it holds; this side decides whom to ask
for, with how many rows and how much room for what they will generate, and enters those who may start.
"""

from __future__ import annotations

from collections.abc import Generator
from heapq import heappop

import numpy as np

from stepahead.engine.cache.reservation import EMPTY, Admitted, Candidate, Demand, Grant, Publication
from stepahead.engine.model.runner import Int32s
from stepahead.engine.types import Occupant

from .chunks import PromptRows, chunk_end
from .cost_curve import CostModel
from .limits import SchedulingLimits
from .roster import Roster
from .rows import StepRows
from .sequence import Sequence

MAX_ADMISSIONS = 64
"""Admissions per plan: each costs the loop some 50 us across the actors, and a plan must stay short."""


class PlanWork:
    """What one plan has done so far besides choosing rows."""

    __slots__ = ("admitted", "cached_tokens", "preempted", "publications", "restores", "resumed", "updates")

    def __init__(self) -> None:
        self.admitted: list[Occupant] = []
        self.resumed: list[bool] = []
        self.cached_tokens: list[int] = []
        self.updates: list[Int32s] = []
        self.restores: list[tuple[int, int]] = []
        self.preempted: list[int] = []
        self.publications: list[Publication] = []


class Admitting(Roster):
    """A roster that lets sequences in."""

    def __init__(self, limits: SchedulingLimits, costs: CostModel | None = None) -> None:
        super().__init__(limits, costs)
        self._admissions = 0

    def _may_admit(self, budget: int) -> bool:
        return bool(self._admission_worthwhile and budget and self._free_slots and len(self.queue))

    def _may_start(self, sequence: Sequence) -> bool:
        if sequence.uncommitted:
            return False
        return not self.limits.prefix_cache or self._groups.may_start(sequence.request)

    def _candidates(self, budget: int) -> list[Candidate]:
        """Waiting sequences to try, each with what the budget leaves it if none before it has a hit."""
        if not self._may_admit(budget):
            return []
        chosen: list[Candidate] = []
        for sequence in self.queue.eligible(min(len(self._free_slots), MAX_ADMISSIONS), self._may_start):
            if self.limits.replay_last:
                sequence.hold_back_last()
            rows = min(budget, self.limits.prefill_chunk, len(sequence.tokens))
            if rows == 0:
                return chosen
            chosen.append(
                Candidate(
                    sequence_key=sequence.key,
                    tokens=sequence.prefill_bytes(),
                    salt=sequence.request.salt,
                    chunk_rows=rows,
                    headroom=self._outlook.headroom(
                        len(sequence.tokens), sequence.request.params.max_output - sequence.output
                    ),
                    lasting=sequence.request.retention == "agent",
                    most_hit=sequence.most_hit,
                )
            )
            budget -= rows
        self._admission_worthwhile = False  # everybody who may start is asked for; see _admit
        return chosen

    def _admit(
        self, candidates: list[Candidate], admitted: tuple[Admitted, ...], rows: StepRows, work: PlanWork
    ) -> None:
        if not candidates:
            return
        limits = {candidate.sequence_key: candidate.chunk_rows for candidate in candidates}
        sequences = [self._live[candidate.sequence_key] for candidate in candidates]
        self.queue.admit(sequences, {entry.sequence_key for entry in admitted}, self._now)
        for entry in admitted:
            self._start(self._live[entry.sequence_key], entry, limits[entry.sequence_key], rows, work)
        if admitted:
            self._admission_worthwhile = True  # hits may have left budget, and refused ones count anew

    def _start(
        self, sequence: Sequence, entry: Admitted, chunk_rows: int, rows: StepRows, work: PlanWork
    ) -> None:
        slot = heappop(self._free_slots)
        self._admissions += 1
        self.ledger.occupy(sequence, slot, self._admissions, entry)
        self._saves.occupy(slot, entry.hit_tokens)
        self._running[slot] = sequence
        request, output = sequence.request, sequence.output
        looks_back = output and request.params.edits is not None
        generated = sequence.tokens[sequence.prompt_length :].tobytes() if looks_back else b""
        work.admitted.append(
            Occupant(slot=slot, request=request, output=output, generated=generated, forced=sequence.forced)
        )
        work.resumed.append(sequence.preemptions > 0)
        work.cached_tokens.append(entry.hit_tokens)
        if entry.snapshot:
            work.restores.append((entry.snapshot, slot))
        columns = np.arange(entry.blocks.size, dtype=np.int32)
        owner = np.full_like(columns, slot)
        work.updates.append(np.stack([owner, columns, entry.blocks], axis=1))
        end = chunk_end(entry.hit_tokens, len(sequence.tokens), chunk_rows, self.limits)
        rows.prompts.append(PromptRows(slot, entry.hit_tokens, end))
        rows.budget -= end - entry.hit_tokens
        sequence.slot, sequence.admission, sequence.tokens = slot, self._admissions, EMPTY
        if sequence.admitted_at is None:
            sequence.admitted_at = self._now

    def _admit_more(self, rows: StepRows, work: PlanWork) -> Generator[Demand, Grant | None, None]:
        """Spends the budget that prefix hits left over."""
        while work.admitted and len(work.admitted) < MAX_ADMISSIONS:
            candidates = self._candidates(rows.budget)
            if not candidates:
                return
            grant = yield self._demand(EMPTY, 0, candidates, self._outlook.future_blocks())
            assert grant is not None
            self._admit(candidates, grant.admitted, rows, work)
            if not grant.admitted:
                return
