"""Decides every step: who has rows in it, what the cache must give for that, and what its commit changes.

A plan never depends on the step in flight; it counts on the most that step can do. So the same code plans
with and without overlap, prompt steps and decode steps, and the device corrects the optimism
(model/runner.py). `plan` is a generator because it may have to ask the cache, which belongs to another actor:
it yields a `Demand`, the caller answers with the `Grant`. Rows are read off the ledger and remembered
nowhere, so after a preemption planning simply looks again.

Invariants: at most one step is uncommitted while planning (none without overlap); the oldest sequence is
never preempted; a sequence that ended is in no later plan, and everything it held returns with the next one.
"""

from __future__ import annotations

from collections.abc import Generator

import msgspec
import numpy as np

from stepahead.engine.cache.reservation import EMPTY, Demand, Grant, Publication
from stepahead.engine.model.runner import BatchLayout, Bools, Int32s, StepPlan
from stepahead.engine.sampling.commit import RUNNING, StepCommit
from stepahead.engine.types import Occupant, Request

from .admitting import Admitting, PlanWork
from .ahead import near_boundaries
from .chunks import NO_COPIES, NO_UPDATES, decode_plan, lay_out, mixed_plan
from .cost_curve import CostModel
from .horizon import Horizon
from .limits import SchedulingLimits
from .members import Members
from .prompt_scores import scored_rows
from .rows import StepRows, missing_blocks


class Planned(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A step to launch, and the news that go with it. The tuples run parallel to `admitted`."""

    plan: StepPlan
    admitted: tuple[Occupant, ...] = ()
    resumed: tuple[bool, ...] = ()  # admitted again after a preemption
    cached_tokens: tuple[int, ...] = ()  # found by a prefix hit
    publications: tuple[Publication, ...] = ()  # states that this plan copies and that are good already


class CommitNews(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """What a commit changed for others."""

    finished: tuple[int, ...] = ()  # keys that ended by this commit
    publications: tuple[Publication, ...] = ()  # to be told to the cache before the next demand
    retired: tuple[int, ...] = ()  # ended keys that no later commit mentions: everybody may forget them


NO_NEWS = CommitNews()
Planning = Generator[Demand, Grant | None, Planned | None]


class SchedulingCore(Admitting):
    """Ledger, queue and plans of one engine. Times are seconds on one clock, passed in as `now`."""

    def __init__(self, limits: SchedulingLimits, costs: CostModel | None = None) -> None:
        """Without `costs` every step verifies as many drafts as `limits.verify` and requests allow."""
        super().__init__(limits, costs)
        self._horizon = Horizon(self.ledger, self._saves)
        self._steps = self._committed = 0

    # Planning.

    def repeat(self, now: float) -> Planned | None:
        """The next step where it only repeats the one before and concerns nobody else; else None, for `plan`.

        Most decode steps of a small batch are such, and need neither a generator nor somebody to drive it.
        """
        members = self._chooser.repeated()
        if members is None or self.paused or self.uncommitted > self.limits.depth:
            return None
        if not self._horizon.covers(members.slots, self._steps):
            return None
        layout = members.layout(self._speculation.spare(members, 0, self._steps))
        if self._disturbed(layout.rows):
            return None
        self._now = now
        return self._emit(self._decode_plan(members, layout, self._chooser.first_positions(members)))

    def plan(self, now: float) -> Planning:
        """Makes the next step, or returns None when nobody has a row for it.

        Yields the demands of the step in order. One that asks is answered by its `Grant`; for one that only
        gives back, None will do. Raises AssertionError when more steps are uncommitted than the mode allows.
        """
        self._now = now
        self._reap()
        if self.paused:
            yield from self._give_back()
            return None
        if self.uncommitted > self.limits.depth:
            raise AssertionError(
                f"{self.uncommitted} steps are uncommitted while planning step {self._steps}"
            )
        if (repeated := self.repeat(now)) is not None:
            return repeated
        rows = self._chooser.choose(self._steps)
        if self._is_steady(rows):
            self._horizon.look(rows, self._steps)
            return self._emit(self._decode_plan(rows.members, rows.decode, rows.decode_first))
        return (yield from self._plan_with_cache(rows))

    def _disturbed(self, decode_rows: int) -> bool:
        """Whether a step must talk to the cache whatever its decode rows need."""
        return bool(self._returns) or self._may_admit(self.limits.max_rows - decode_rows)

    def _is_steady(self, rows: StepRows) -> bool:
        """Whether the step only repeats its decode rows: nothing arrives, grows, is kept or is given back."""
        if rows.prompts or rows.short.size or rows.reached.size or not rows.decode.rows:
            return False
        return not self._disturbed(rows.decode.rows)

    def _plan_with_cache(self, rows: StepRows) -> Planning:
        work = PlanWork()
        while True:
            slots, growth = missing_blocks(self.ledger, rows)
            due, soon, needed = self._due(rows), list[int](), growth.size
            lacking = len(self._saves.unprovided(due))
            candidates = [] if work.preempted else self._candidates(rows.budget)
            if not (needed or lacking or candidates):
                yield from self._give_back()
                granted = EMPTY
                break
            more, soon = near_boundaries(self.ledger, self._saves, rows, due)
            if more.size:
                slots = np.concatenate([slots, more])
                growth = np.concatenate([growth, np.ones_like(more)])
            promised = max(self._outlook.future_blocks() - int(growth.sum()), 0) if candidates else 0
            grant = yield self._demand(
                growth, lacking + len(soon), candidates, promised, growth.size - needed
            )
            assert grant is not None
            granted = grant.snapshot_slots
            served = slots[: grant.grown]
            work.updates.append(self.ledger.grow(served, growth[: grant.grown], grant.growth_blocks))
            if grant.grown >= needed:
                self._admit(candidates, grant.admitted, rows, work)
                break
            work.preempted += self._preempt(int(growth[grant.grown : needed].sum()))
            rows = self._chooser.choose(self._steps)
        copies, proven = self._saves.copy(due, granted, self._steps - 1, soon)
        yield from self._admit_more(rows, work)
        if rows.empty:
            return None
        work.publications.extend(self._publish(proven))
        return self._emit_work(rows, work, copies)

    def _due(self, rows: StepRows) -> list[int]:
        """Slots with rows in this step whose state the step should copy first."""
        if not self.limits.prefix_cache:
            return []
        due = self._saves.due(rows.decode.slots[rows.reached])
        if not rows.prompts:
            return due
        starts = np.array([prompt.start for prompt in rows.prompts], dtype=np.int32)
        prompts = rows.prompt_slots()
        return due + self._saves.due(prompts[starts >= self._saves.next_position[prompts]])

    def _emit_work(self, rows: StepRows, work: PlanWork, copies: list[tuple[int, int]]) -> Planned:
        pairs = copies + work.restores
        moved = np.array(pairs, dtype=np.int32) if pairs else NO_COPIES
        updates = work.updates[0] if len(work.updates) == 1 else np.concatenate([NO_UPDATES, *work.updates])
        if work.preempted:
            updates = updates[~np.isin(updates[:, 0], work.preempted)]
        if rows.prompts:
            return self._emit(self._plan_with_prompts(rows, updates, moved), work)
        return self._emit(
            self._decode_plan(rows.members, rows.decode, rows.decode_first, updates, moved), work
        )

    def _plan_with_prompts(self, rows: StepRows, updates: Int32s, copies: Int32s) -> StepPlan:
        prompts, speculation = rows.prompts, self._speculation
        starts = np.array([prompt.start for prompt in prompts], dtype=np.int32)
        layout = lay_out(self.ledger, rows.decode, prompts)
        ending = layout.slots[rows.members.count :][layout.samples[rows.members.count :]]
        plan = mixed_plan(
            self._steps,
            layout,
            np.concatenate([rows.decode_first, starts]),
            self.ledger,
            prompts,
            updates,
            copies,
            scored_rows(self.ledger, layout, prompts),
            speculation.needs_redeal(rows.members, rows.decode),
            speculation.drafts(rows.members, bool(self.ledger.most_drafts[ending].any()), mixed=True),
        )
        for prompt in prompts:
            self._saves.chunk_planned(prompt.slot, prompt.end)
        self._chooser.stale = True
        return plan

    def _decode_plan(
        self,
        members: Members,
        layout: BatchLayout,
        first_positions: Int32s,
        updates: Int32s = NO_UPDATES,
        copies: Int32s = NO_COPIES,
    ) -> StepPlan:
        speculation = self._speculation
        redeal, drafts = speculation.needs_redeal(members, layout), speculation.drafts(members, False)
        return decode_plan(self._steps, layout, first_positions, redeal, drafts, updates, copies)

    def _emit(self, plan: StepPlan, work: PlanWork | None = None) -> Planned:
        self.ledger.plan(plan.layout)
        self._speculation.planned(plan.layout, drafts=plan.drafts)
        self._in_flight.append(plan.layout)
        self._steps += 1
        if work is None:
            return Planned(plan=plan)
        return Planned(
            plan=plan,
            admitted=tuple(work.admitted),
            resumed=tuple(work.resumed),
            cached_tokens=tuple(work.cached_tokens),
            publications=tuple(work.publications),
        )

    # Giving back without a step.

    def _give_back(self) -> Planning:
        if self._returns:
            yield self._demand(EMPTY, 0, [], 0)
        return None

    # Committing.

    def commit(self, commit: StepCommit, now: float, seconds: float = 0.0) -> CommitNews:
        """Applies the oldest uncommitted step, which took the device so long (0: nobody knows).

        Raises AssertionError for any other step.
        """
        self._now = now
        layout = self._in_flight.popleft()
        if commit.layout is not layout or commit.step != self._committed:
            raise AssertionError(f"commit of step {commit.step} while step {self._committed} is the oldest")
        self._committed += 1
        here = self.ledger.commit(commit)
        self._speculation.committed(commit, seconds)
        everybody = np.count_nonzero(here) == here.size
        publications: tuple[Publication, ...] = ()
        if not self._horizon.covers(layout.slots, commit.step) or self._saves.any_in_flight:
            publications = self._publish(self._shareable(layout, here, commit.step))
        prompts = layout.decode_count < layout.slots.size and len(self._groups) > 0
        if everybody and not (commit.any_finish or prompts or self._retiring or self._retired):
            return CommitNews(publications=publications) if publications else NO_NEWS
        return self._settle(commit, here, publications)

    def _shareable(self, layout: BatchLayout, here: Bools, step: int) -> list[int]:
        """Slots with filled blocks, or a copied state, that the commit made good."""
        if not self.limits.prefix_cache:
            return []
        ledger = self.ledger
        rows = ledger.rows(layout)
        filled = ledger.cached[rows] - ledger.published[rows] >= self.limits.block_tokens
        slots = self._saves.settle(step)
        if np.count_nonzero(filled):
            slots = list(dict.fromkeys(slots + layout.slots[filled & here].tolist()))
        return slots

    def _publish(self, slots: list[int]) -> tuple[Publication, ...]:
        found: list[Publication] = []
        for slot in slots:
            request = self._running[slot].request
            publications = self._saves.publish(slot, request.key, request.salt)
            if request.session or request.retention != "chat":
                publications = [_kept_as(request, publication) for publication in publications]
            found.extend(publications)
        return tuple(found)

    def _settle(self, commit: StepCommit, here: Bools, publications: tuple[Publication, ...]) -> CommitNews:
        layout = commit.layout
        self._count_mentions(layout)
        finished: list[int] = []
        for row in np.flatnonzero(here & (commit.finish != RUNNING)).tolist():
            sequence = self._running[int(layout.slots[row])]
            self._depart(sequence)
            self._end(sequence)
            finished.append(sequence.key)
        for row in np.flatnonzero(~here).tolist():
            self._settle_absent(commit, row, finished)
        if self._groups:
            self._note_cached_prompts(layout, here)
        retired, self._retired = tuple(self._retired), []
        return CommitNews(finished=tuple(finished), publications=publications, retired=retired)

    def _settle_absent(self, commit: StepCommit, row: int, finished: list[int]) -> None:
        """A row whose sequence lost its slot: preempted ones still get their tokens, ended ones nothing."""
        sequence = self._live.get(int(commit.layout.sequence_keys[row]))
        if sequence is None:
            return
        sequence.uncommitted -= 1
        sequence.append(commit.tokens[row, : commit.counts[row]])
        self._admission_worthwhile = True
        if commit.finish[row] != RUNNING:
            self.queue.remove(sequence)
            self._end(sequence)
            finished.append(sequence.key)

    def _note_cached_prompts(self, layout: BatchLayout, here: Bools) -> None:
        for slot in layout.slots[layout.decode_count :][here[layout.decode_count :]].tolist():
            sequence = self._running[slot]
            if self.ledger.cached[slot] >= sequence.prompt_length and self._groups.prompt_cached(
                sequence.request
            ):
                self._admission_worthwhile = True


def _kept_as(request: Request, publication: Publication) -> Publication:
    return msgspec.structs.replace(publication, session=request.session, lasting=request.retention == "agent")
