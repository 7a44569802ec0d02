"""Who lives, where, and what they hold: the state that planning and committing share.

A sequence waits in the queue or runs in a slot. However it ends, it ends here, and what it held goes back
with the next demand: there is one way out, so nothing can be forgotten on another.

Invariants: a key is live until its end is decided, once; a slot is free, running or leaving; an ended key is
retired when no uncommitted step mentions it any more.
"""

from __future__ import annotations

from collections import deque
from heapq import heapify, heappush

import msgspec
import numpy as np

from stepahead.engine.cache.reservation import EMPTY, Candidate, Demand
from stepahead.engine.model.runner import NO_TOKEN, BatchLayout, Int32s
from stepahead.engine.types import Request

from .admission import AdmissionQueue
from .cost_curve import CostModel
from .deadlines import Deadlines
from .groups import ChoiceGroups
from .ledger import Ledger
from .limits import SchedulingLimits
from .outlook import Outlook
from .preemption import choose_victims
from .rows import RowChooser
from .sequence import Sequence
from .speculation import Speculation, SpeculationTotals
from .window_saves import WindowSaves


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    running: int
    waiting: int
    preemptions: int


class Returns:
    """What goes back to the cache with the next demand."""

    __slots__ = ("blocks", "closed", "snapshots")

    def __init__(self) -> None:
        self.blocks: list[Int32s] = []
        self.snapshots: list[int] = []
        self.closed: list[int] = []

    def __bool__(self) -> bool:
        return bool(self.closed or self.blocks or self.snapshots)


class Roster:
    """Every sequence of one engine. Times are seconds on one clock, passed in as `now`."""

    def __init__(self, limits: SchedulingLimits, costs: CostModel | None = None) -> None:
        self.limits = limits
        self.ledger = Ledger(limits)
        self.queue = AdmissionQueue(limits.max_bypass)
        self.paused = False  # plans only give back, no step is made
        self._speculation = Speculation(self.ledger, limits, costs)
        self._saves = WindowSaves(self.ledger)
        self._chooser = RowChooser(self.ledger, self._speculation, self._saves)
        self._outlook = Outlook(self.ledger)
        self._groups = ChoiceGroups()
        self._deadlines = Deadlines()
        self._live: dict[int, Sequence] = {}
        self._running: dict[int, Sequence] = {}  # by slot, those that leave included
        self._leaving: list[int] = []
        self._free_slots = list(range(1, 1 + limits.sequence_slots))
        heapify(self._free_slots)
        self._in_flight: deque[BatchLayout] = deque()
        self._returns = Returns()
        self._retiring: dict[int, int] = {}  # ended key -> uncommitted steps that still mention it
        self._retired: list[int] = []
        self._admission_worthwhile = False
        self._preemptions = 0
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

    def speculation(self) -> SpeculationTotals:
        return self._speculation.totals()

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

    # What they held goes back.

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

    def _demand(
        self, growth: Int32s, snapshots: int, candidates: list[Candidate], promised: int, ahead: int = 0
    ) -> Demand:
        """The wishes, with everything that is to be returned."""
        returns, self._returns = self._returns, Returns()
        return Demand(
            released=np.concatenate(returns.blocks) if returns.blocks else EMPTY,
            returned_snapshots=np.array(returns.snapshots, dtype=np.int32) if returns.snapshots else EMPTY,
            closed=tuple(returns.closed),
            growth=growth,
            ahead=ahead,
            snapshots=snapshots,
            candidates=tuple(candidates),
            reserved=promised,
        )

    def _preempt(self, blocks_short: int) -> list[int]:
        """Makes room among the running; the caller asks again. Returns the slots that are free now."""
        victims: list[int] = choose_victims(self.ledger, self._saves.retained, blocks_short).tolist()
        if not victims:
            raise AssertionError("the oldest sequence does not fit although it runs alone")
        for slot in victims:
            tokens, output = self.ledger.sequence_tokens(slot), int(self.ledger.output[slot])
            admission = int(self.ledger.admissions[slot])
            cached = int(self.ledger.cached[slot])
            sequence = self._vacate(slot)
            if sequence.unscored:
                sequence.scored = max(sequence.scored, min(cached, sequence.prompt_length - 1))
            if output > sequence.output:
                sequence.forced = NO_TOKEN
            sequence.tokens, sequence.output, sequence.slot = tokens, output, 0
            sequence.uncommitted = sum(
                bool((layout.admissions == admission).any()) for layout in self._in_flight
            )
            sequence.preemptions += 1
            self.queue.push(sequence)
        self._preemptions += len(victims)
        self._outlook.preempted()
        return victims
