"""Decides every step: who has rows in it, what the cache must give for that, and what its commit changes.

A plan never depends on the step in flight; it counts on the most that step can do. So the same code plans
with and without overlap, prompt steps and decode steps, and the device corrects the optimism
(model/runner.py). `plan` is a generator because it may have to ask the cache, which belongs to another actor:
it yields a `Demand`, the caller answers with the `Grant`. Nothing is written before the last answer, so a
preemption in between simply looks again.

Invariants: at most one step is uncommitted while planning (none without overlap); the oldest sequence is
never preempted; a sequence that ended is in no later plan, and everything it held returns with the next one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from heapq import heapify, heappop, heappush

import msgspec
import numpy as np

from stepahead.engine.cache.reservation import EMPTY, Admitted, Candidate, Demand, Grant, Publication
from stepahead.engine.model.runner import BatchLayout, Bools, Int32s, StepPlan
from stepahead.engine.sampling.commit import RUNNING, StepCommit
from stepahead.engine.types import Occupant, Request

from .admission import AdmissionQueue
from .chunks import NO_COPIES, NO_UPDATES, PromptRows, chunk_end, decode_plan, lay_out, mixed_plan
from .deadlines import Deadlines
from .groups import ChoiceGroups
from .horizon import Horizon
from .ledger import Ledger
from .limits import SchedulingLimits
from .outlook import Outlook
from .preemption import choose_victims
from .rows import RowChooser, StepRows, missing_blocks
from .sequence import Sequence
from .window_saves import WindowSaves

MAX_ADMISSIONS = 64
"""Admissions per plan: each costs some 50 us of the loop's time across the actors, and a plan must stay
short."""


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


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    running: int
    waiting: int
    preemptions: int


NO_NEWS = CommitNews()
Planning = Generator[Demand, Grant | None, Planned | None]


class SchedulingCore:
    """Ledger, queue and plans of one engine. Times are seconds on one clock, passed in as `now`."""

    def __init__(self, limits: SchedulingLimits) -> None:
        self.limits = limits
        self.ledger = Ledger(limits)
        self.queue = AdmissionQueue(limits.max_bypass)
        self.paused = False  # plans only give back, no step is made
        self._chooser = RowChooser(self.ledger)
        self._saves = WindowSaves(self.ledger)
        self._horizon = Horizon(self.ledger, self._saves)
        self._outlook = Outlook(self.ledger)
        self._groups = ChoiceGroups()
        self._deadlines = Deadlines()
        self._live: dict[int, Sequence] = {}
        self._running: dict[int, Sequence] = {}  # by slot, those that leave included
        self._leaving: list[int] = []
        self._free_slots = list(range(1, 1 + limits.sequence_slots))
        heapify(self._free_slots)
        self._in_flight: deque[BatchLayout] = deque()
        self._returns = _Returns()
        self._retiring: dict[int, int] = {}  # ended key -> uncommitted steps that still mention it
        self._retired: list[int] = []
        self._admission_worthwhile = False
        self._steps = self._committed = self._admissions = self._preemptions = 0
        self._now = 0.0

    # What callers ask.

    @property
    def uncommitted(self) -> int:
        """Steps planned and not committed."""
        return len(self._in_flight)

    @property
    def has_work(self) -> bool:
        """Whether any sequence lives or still holds something a plan would return."""
        return bool(self._live or self._leaving)

    def counts(self) -> Counts:
        running = len(self._running) - len(self._leaving)
        return Counts(running=running, waiting=len(self.queue), preemptions=self._preemptions)

    def estimate_seconds(self) -> float | None:
        """Seconds until one more sequence is likely admitted; None when there is no pace to judge by."""
        return self.queue.estimate_seconds(self._now)

    def next_deadline(self) -> float | None:
        """The earliest deadline of a live sequence."""
        return self._deadlines.next()

    def check(self) -> None:
        """Raises AssertionError on any broken invariant of the ledger."""
        self.ledger.check(tuple(self._in_flight))

    def held_snapshots(self) -> list[int]:
        """State slots granted to running sequences and neither published nor returned, for checks."""
        return [*self._saves.held(), *self._returns.snapshots]

    # Sequences come and end.

    def submit(self, request: Request, now: float) -> None:
        """Queues a validated sequence; the choices of a request in order."""
        self._now = now
        sequence = Sequence(request, now)
        self._live[request.key] = sequence
        if sequence.prompt_length - self.limits.hit_margin >= self.limits.block_tokens:
            self._groups.join(request)  # a shorter prompt has no block to share, so nothing to wait for
        self._deadlines.add(request.key, request.deadline)
        self.queue.push(sequence)
        self._admission_worthwhile = True

    def cancel(self, key: int) -> bool:
        """Ends a live sequence at once; it leaves its slot at the next plan. False: it has ended before."""
        sequence = self._live.get(key)
        if sequence is None:
            return False
        if sequence.slot:
            self._depart(sequence)
        else:
            self.queue.remove(sequence)
        self._end(sequence)
        return True

    def cancel_all(self) -> tuple[int, ...]:
        """Ends every live sequence; returns their keys."""
        keys = tuple(self._live)
        for key in keys:
            self.cancel(key)
        return keys

    def expire(self, now: float) -> tuple[int, ...]:
        """Ends the sequences whose deadline has passed; returns their keys."""
        self._now = now
        keys = tuple(self._deadlines.expired(now))
        for key in keys:
            self.cancel(key)
        return keys

    def _depart(self, sequence: Sequence) -> None:
        self._outlook.ended(int(self.ledger.output[sequence.slot]))
        self.ledger.leave(sequence.slot)
        self._leaving.append(sequence.slot)
        self._chooser.stale = True

    def _end(self, sequence: Sequence) -> None:
        del self._live[sequence.key]
        self._deadlines.discard(sequence.key)
        self._groups.leave(sequence.request)
        self._admission_worthwhile = True
        mentions = sum(bool((layout.sequence_keys == sequence.key).any()) for layout in self._in_flight)
        if mentions:
            self._retiring[sequence.key] = mentions
        else:
            self._retired.append(sequence.key)

    # Planning.

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
        layout = self._chooser.repeated()
        if (
            layout is not None
            and self._horizon.covers(layout, self._steps)
            and not self._disturbed(layout.rows)
        ):
            return self._emit(decode_plan(self._steps, layout, self._chooser.first_positions()))
        rows = self._chooser.choose()
        if self._is_steady(rows):
            self._horizon.look(rows, self._steps)
            return self._emit(decode_plan(self._steps, rows.decode, rows.decode_first))
        return (yield from self._plan_with_cache(rows))

    def _disturbed(self, decode_rows: int) -> bool:
        """Whether a step must talk to the cache whatever its decode rows need."""
        return bool(self._returns) or self._may_admit(self.limits.max_rows - decode_rows)

    def _is_steady(self, rows: StepRows) -> bool:
        """Whether the step only repeats its decode rows: nothing arrives, grows, is kept or is given back."""
        if rows.prompts or not rows.decode.rows or self._disturbed(rows.decode.rows):
            return False
        at = rows.decode_rows
        reach, width = rows.decode_first, self.limits.width
        if np.count_nonzero(reach + width > self.ledger.block_count[at] * self.limits.block_tokens):
            return False
        return not (self.limits.prefix_cache and np.count_nonzero(reach >= self._saves.next_position[at]))

    def _plan_with_cache(self, rows: StepRows) -> Planning:
        work = _Work()
        while True:
            slots, growth = missing_blocks(self.ledger, rows)
            due = self._due(rows)
            candidates = [] if work.preempted else self._candidates(rows.budget)
            promised = max(self._outlook.future_blocks() - int(growth.sum()), 0) if candidates else 0
            demand = self._demand(growth, self._saves.lacking(due), candidates, promised)
            if not demand.asks:
                yield from self._send(demand)
                granted = EMPTY
                break
            grant = yield demand
            assert grant is not None
            granted = grant.snapshot_slots
            served = slots[: grant.grown]
            work.updates.append(self.ledger.grow(served, growth[: grant.grown], grant.growth_blocks))
            if grant.grown == growth.size:
                self._admit(candidates, grant.admitted, rows, work)
                break
            self._preempt(int(growth[grant.grown :].sum()), work)
            rows = self._chooser.choose()
        copies, proven = self._saves.copy(due, granted, self._steps - 1)
        yield from self._admit_more(rows, work)
        if rows.empty:
            return None
        work.publications.extend(self._publish(proven))
        return self._emit_work(rows, work, copies)

    def _due(self, rows: StepRows) -> list[int]:
        """Slots with rows in this step whose state the step should copy first."""
        if not self.limits.prefix_cache:
            return []
        reached = np.flatnonzero(rows.decode_first >= self._saves.next_position[rows.decode_rows])
        due = self._saves.due(rows.decode.slots[reached])
        if not rows.prompts:
            return due
        starts = np.array([prompt.start for prompt in rows.prompts], dtype=np.int32)
        prompts = rows.prompt_slots()
        return due + self._saves.due(prompts[starts >= self._saves.next_position[prompts]])

    def _emit_work(self, rows: StepRows, work: _Work, copies: list[tuple[int, int]]) -> Planned:
        copies = copies + work.restores
        updates = np.concatenate(work.updates) if work.updates else NO_UPDATES
        if work.preempted:
            updates = updates[~np.isin(updates[:, 0], work.preempted)]
        starts = np.array([prompt.start for prompt in rows.prompts], dtype=np.int32)
        plan = mixed_plan(
            self._steps,
            lay_out(self.ledger, rows.decode, rows.prompts),
            np.concatenate([rows.decode_first, starts]) if rows.prompts else rows.decode_first,
            self.ledger,
            rows.prompts,
            updates,
            np.array(copies, dtype=np.int32) if copies else NO_COPIES,
        )
        for prompt in rows.prompts:
            self._saves.chunk_planned(prompt.slot, prompt.end)
            self._chooser.stale = True
        return self._emit(plan, work)

    def _emit(self, plan: StepPlan, work: _Work | None = None) -> Planned:
        self.ledger.plan(plan.layout)
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

    # Giving back.

    def _reap(self) -> None:
        for slot in self._leaving:
            self._vacate(slot)
        self._leaving.clear()

    def _vacate(self, slot: int) -> Sequence:
        sequence = self._running.pop(slot)
        self._returns.blocks.append(self.ledger.vacate(slot))
        self._returns.snapshots.extend(self._saves.vacate(slot))
        self._returns.closed.append(sequence.key)
        heappush(self._free_slots, slot)
        self._chooser.stale = True
        self._admission_worthwhile = True
        return sequence

    def _give_back(self) -> Planning:
        if self._returns:
            yield self._demand(EMPTY, 0, [], 0)
        return None

    def _send(self, demand: Demand) -> Planning:
        if demand.released.size or demand.returned_snapshots.size or demand.closed:
            yield demand
        return None

    def _demand(self, growth: Int32s, snapshots: int, candidates: list[Candidate], promised: int) -> Demand:
        """The wishes, with everything that is to be returned."""
        returns, self._returns = self._returns, _Returns()
        return Demand(
            released=np.concatenate(returns.blocks) if returns.blocks else EMPTY,
            returned_snapshots=np.array(returns.snapshots, dtype=np.int32) if returns.snapshots else EMPTY,
            closed=tuple(returns.closed),
            growth=growth,
            snapshots=snapshots,
            candidates=tuple(candidates),
            reserved=promised,
        )

    def _preempt(self, blocks_short: int, work: _Work) -> None:
        """Makes room among the running; the caller asks again."""
        victims = choose_victims(self.ledger, self._saves.retained, blocks_short).tolist()
        if not victims:
            raise AssertionError("the oldest sequence does not fit although it runs alone")
        for slot in victims:
            tokens, output = self.ledger.sequence_tokens(slot), int(self.ledger.output[slot])
            admission = int(self.ledger.admissions[slot])
            sequence = self._vacate(slot)
            sequence.tokens, sequence.output, sequence.slot = tokens, output, 0
            sequence.uncommitted = sum(
                bool((layout.admissions == admission).any()) for layout in self._in_flight
            )
            sequence.preemptions += 1
            self.queue.push(sequence)
            work.preempted.append(slot)
        self._preemptions += len(victims)
        self._outlook.preempted()

    # Admission.

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
                )
            )
            budget -= rows
        self._admission_worthwhile = False  # everybody who may start is asked for; see _admit
        return chosen

    def _admit(
        self, candidates: list[Candidate], admitted: tuple[Admitted, ...], rows: StepRows, work: _Work
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
        self, sequence: Sequence, entry: Admitted, chunk_rows: int, rows: StepRows, work: _Work
    ) -> None:
        slot = heappop(self._free_slots)
        self._admissions += 1
        self.ledger.occupy(sequence, slot, self._admissions, entry)
        self._saves.occupy(slot, entry.hit_tokens)
        self._running[slot] = sequence
        request, output = sequence.request, sequence.output
        looks_back = output and request.params.edits is not None
        generated = sequence.tokens[sequence.prompt_length :].tobytes() if looks_back else b""
        work.admitted.append(Occupant(slot=slot, request=request, output=output, generated=generated))
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

    def _admit_more(self, rows: StepRows, work: _Work) -> Generator[Demand, Grant | None, None]:
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

    # Committing.

    def commit(self, commit: StepCommit, now: float) -> CommitNews:
        """Applies the oldest uncommitted step. Raises AssertionError for any other step."""
        self._now = now
        layout = self._in_flight.popleft()
        if commit.layout is not layout or commit.step != self._committed:
            raise AssertionError(f"commit of step {commit.step} while step {self._committed} is the oldest")
        self._committed += 1
        here = self.ledger.commit(commit)
        everybody = np.count_nonzero(here) == here.size
        publications: tuple[Publication, ...] = ()
        if not self._horizon.covers(layout, commit.step) or self._saves.any_in_flight:
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
            found.extend(self._saves.publish(slot, request.key, request.salt))
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

    def _count_mentions(self, layout: BatchLayout) -> None:
        """One step less mentions the sequences that had ended before this commit."""
        if not self._retiring:
            return
        for key in layout.sequence_keys.tolist():
            mentions = self._retiring.get(key)
            if mentions == 1:
                del self._retiring[key]
                self._retired.append(key)
            elif mentions is not None:
                self._retiring[key] = mentions - 1


class _Returns:
    """What goes back to the cache with the next demand."""

    __slots__ = ("blocks", "closed", "snapshots")

    def __init__(self) -> None:
        self.blocks: list[Int32s] = []
        self.snapshots: list[int] = []
        self.closed: list[int] = []

    def __bool__(self) -> bool:
        return bool(self.closed or self.blocks or self.snapshots)


class _Work:
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
