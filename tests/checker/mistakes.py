"""Classic mistakes of such engines, made on purpose: the checker must see each of them.

Each function breaks one thing through `monkeypatch`. What they have in common: nothing crashes where the
mistake is made.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest

from stepahead.actors.messages import StepPlanned
from stepahead.actors.output import Output
from stepahead.actors.sampler import Sampler
from stepahead.engine.cache.core import CacheCore
from stepahead.engine.model.hashed import dealing, forward, runner
from stepahead.engine.model.runner import NO_TOKEN, StepPlan
from stepahead.engine.sampling import table
from stepahead.engine.scheduling import planner
from stepahead.engine.scheduling.groups import ChoiceGroups
from stepahead.engine.scheduling.ledger import Ledger
from stepahead.engine.scheduling.limits import SchedulingLimits
from stepahead.engine.scheduling.members import Members
from stepahead.engine.scheduling.planner import SchedulingCore
from stepahead.engine.scheduling.speculation import Speculation
from stepahead.engine.scheduling.window_saves import WindowSaves

Patch = pytest.MonkeyPatch
Mistake = Callable[[Patch], None]


def _plans(patch: Patch, change: Callable[[StepPlan], dict[str, Any]]) -> None:
    made = planner.mixed_plan

    def changed(*arguments: Any) -> StepPlan:
        plan = made(*arguments)
        return msgspec.structs.replace(plan, **change(plan))

    patch.setattr(planner, "mixed_plan", changed)


def a_kept_window_is_not_restored(patch: Patch) -> None:
    _plans(patch, lambda plan: {"state_copies": plan.state_copies[:-1]})


def the_history_before_a_chunk_is_lost(patch: Patch) -> None:
    _plans(patch, lambda plan: {"chunk_history": np.full_like(plan.chunk_history, NO_TOKEN)})


def the_last_new_block_is_not_told(patch: Patch) -> None:
    _plans(patch, lambda plan: {"table_updates": plan.table_updates[:-1]})


def a_commit_is_applied_to_whoever_is_in_the_slot(patch: Patch) -> None:
    commit = Ledger.commit

    def careless(self: Ledger, step: Any) -> Any:
        layout = msgspec.structs.replace(step.layout, admissions=self.admissions[step.layout.slots])
        return commit(self, msgspec.structs.replace(step, layout=layout))

    patch.setattr(Ledger, "commit", careless)


def tokens_of_a_preempted_sequence_are_dropped(patch: Patch) -> None:
    settle = SchedulingCore._settle_absent

    def forgetful(self: Any, commit: Any, row: int, finished: list[int]) -> None:
        counts = commit.counts.copy()
        counts[row] = 0
        settle(self, msgspec.structs.replace(commit, counts=counts), row, finished)

    patch.setattr(SchedulingCore, "_settle_absent", forgetful)


def a_block_is_lost_when_a_sequence_leaves(patch: Patch) -> None:
    vacate = Ledger.vacate
    patch.setattr(Ledger, "vacate", lambda self, slot: vacate(self, slot)[1:])


def a_block_is_given_back_twice(patch: Patch) -> None:
    reserve = CacheCore.reserve

    def generous(self: CacheCore, demand: Any) -> Any:
        again = demand.released[self.references()[demand.released] > 1][:1]
        released = np.concatenate([demand.released, again])
        return reserve(self, msgspec.structs.replace(demand, released=released))

    patch.setattr(CacheCore, "reserve", generous)


def a_state_slot_is_lost_when_a_sequence_leaves(patch: Patch) -> None:
    vacate = WindowSaves.vacate
    patch.setattr(WindowSaves, "vacate", lambda self, slot: vacate(self, slot) and [])


def salts_are_ignored(patch: Patch) -> None:
    reserve, publish = CacheCore.reserve, CacheCore.publish

    def unsalted(parts: Any) -> tuple[Any, ...]:
        return tuple(msgspec.structs.replace(part, salt=b"") for part in parts)

    def reserve_any(self: CacheCore, demand: Any) -> Any:
        return reserve(self, msgspec.structs.replace(demand, candidates=unsalted(demand.candidates)))

    patch.setattr(CacheCore, "reserve", reserve_any)
    patch.setattr(CacheCore, "publish", lambda self, publications: publish(self, unsalted(publications)))


def output_positions_start_again_after_a_preemption(patch: Patch) -> None:
    rows = table._sampling_rows

    def restarted(occupants: Any, width: int) -> Any:
        made = rows(occupants, width)
        done = np.array([occupant.output for occupant in occupants], dtype=np.int32)
        return msgspec.structs.replace(made, origin=made.origin + done)

    patch.setattr(table, "_sampling_rows", restarted)


def newcomers_are_written_before_the_step_is_resolved(patch: Patch) -> None:
    handle, prepare = Sampler.handle, table.SamplingTable.prepare
    early: dict[int, Any] = {}

    async def hasty(self: Any, message: Any) -> None:
        if isinstance(message, StepPlanned) and self._uncommitted and message.admitted:
            early[message.plan.step] = self._table.occupy(message.admitted)
            message = msgspec.structs.replace(message, admitted=())
        await handle(self, message)

    def prepared(self: Any, layout: Any, admitted: Any, step: int) -> Any:
        plan = prepare(self, layout, admitted, step)
        return msgspec.structs.replace(plan, updates=early.pop(step, plan.updates))

    patch.setattr(Sampler, "handle", hasty)
    patch.setattr(table.SamplingTable, "prepare", prepared)


def decode_rows_trust_the_plans_positions(patch: Patch) -> None:
    inputs = forward._inputs

    def trusting(slots: Any, plan: StepPlan, rows: Any) -> Any:
        _, tokens, history = inputs(slots, plan, rows)
        return plan.first_positions, tokens, history

    patch.setattr(forward, "_inputs", trusting)


def followers_wait_for_a_leader_that_is_gone(patch: Patch) -> None:
    patch.setattr(ChoiceGroups, "leave", lambda self, request: None)


def a_cancelled_waiting_sequence_keeps_its_place(patch: Patch) -> None:
    cancel = SchedulingCore.cancel

    def lazy(self: Any, key: int) -> bool:
        sequence = self._live.get(key)
        return True if sequence is not None and not sequence.slot else cancel(self, key)

    patch.setattr(SchedulingCore, "cancel", lazy)


def what_follows_a_stop_string_is_shown(patch: Patch) -> None:
    row = Output._row

    def talkative(self: Any, live: Any, commit: Any, index: int, now: float) -> None:
        push = live.text.push
        live.text.push = lambda tokens: (push(tokens)[0], len(tokens))
        row(self, live, commit, index, now)

    patch.setattr(Output, "_row", talkative)


def the_next_step_waits_for_this_one(patch: Patch) -> None:
    patch.setattr(SchedulingLimits, "depth", property(lambda self: 0))


def a_redealt_sequence_keeps_its_first_row(patch: Patch) -> None:
    """The device splits rows anew and looks for them where the host's split had them."""
    redealt = runner.redealt

    def misplaced(plan: StepPlan, slots: Any) -> StepPlan:
        made = redealt(plan, slots)
        layout = msgspec.structs.replace(made.layout, row_starts=plan.layout.row_starts)
        return msgspec.structs.replace(made, layout=layout)

    patch.setattr(runner, "redealt", misplaced)


def a_redeal_forgets_a_sequence(patch: Patch) -> None:
    """The best drafts win all rows, and whoever has none among them gets no row at all."""
    deal = dealing.deal

    def greedy(survival: Any, most: Any, spare: int) -> Any:
        lengths = deal(survival, most, spare)
        if lengths.size > 1:
            richest = int(lengths[:-1].argmax())
            lengths[richest] += lengths[-1]
            lengths[-1] = 0
        return lengths

    patch.setattr(dealing, "deal", greedy)


def a_redeal_ignores_the_maximum_of_a_request(patch: Patch) -> None:
    deal = dealing.deal
    patch.setattr(
        dealing, "deal", lambda survival, most, spare: deal(survival, most * 0 + survival.shape[1], spare)
    )


def only_planned_rows_may_be_in_flight(patch: Patch) -> None:
    """Tables and counters follow the host's split, which the device does not keep to."""
    lay_out = Members._lay_out

    def short(self: Members, spare: int) -> Any:
        layout = lay_out(self, spare)
        return msgspec.structs.replace(layout, reach=layout.query_lengths)

    patch.setattr(Members, "_lay_out", short)


def drafts_are_verified_that_nobody_made(patch: Patch) -> None:
    planned = Speculation.planned

    def forgetful(self: Speculation, layout: Any, *, drafts: bool) -> None:
        planned(self, layout, drafts=drafts)
        self._at_hand = self.adaptive

    patch.setattr(Speculation, "planned", forgetful)


MISTAKES: tuple[Mistake, ...] = (
    a_kept_window_is_not_restored,
    the_history_before_a_chunk_is_lost,
    the_last_new_block_is_not_told,
    a_commit_is_applied_to_whoever_is_in_the_slot,
    tokens_of_a_preempted_sequence_are_dropped,
    a_block_is_lost_when_a_sequence_leaves,
    a_block_is_given_back_twice,
    a_state_slot_is_lost_when_a_sequence_leaves,
    salts_are_ignored,
    output_positions_start_again_after_a_preemption,
    newcomers_are_written_before_the_step_is_resolved,
    decode_rows_trust_the_plans_positions,
    followers_wait_for_a_leader_that_is_gone,
    a_cancelled_waiting_sequence_keeps_its_place,
    what_follows_a_stop_string_is_shown,
    the_next_step_waits_for_this_one,
    a_redealt_sequence_keeps_its_first_row,
    a_redeal_forgets_a_sequence,
    a_redeal_ignores_the_maximum_of_a_request,
    only_planned_rows_may_be_in_flight,
    drafts_are_verified_that_nobody_made,
)
