"""The hashed model behind the `Runner` interface, on any device: numpy in the work it enqueues.

Besides computing, it watches: launches out of order, positions without blocks, a step larger than the shape
or a plan that disagrees with the slots raise `MisuseError` where a real device would go on with nonsense.
"""

from __future__ import annotations

from asyncio import get_running_loop
from collections import deque

import numpy as np

from stepahead.devices.device import Device, Ticket

from ..runner import Int32s, Runner, RunnerShape, SamplePlan, StepPlan, StepResult
from .dealing import redealt
from .forward import Forward, Rows, forward, place_rows
from .model import HashedModel
from .sampling import sample
from .slots import Slots, require


class HashedRunner(Runner):
    """One hashed model with its caches on one device."""

    def __init__(self, model: HashedModel, shape: RunnerShape, device: Device) -> None:
        require(shape.max_positions <= model.max_positions, "the shape has more positions than the model")
        require(shape.draft_tokens <= model.backtracking, "drafts overwrite what a rollback needs")
        self.facts, self.shape = model.facts, shape
        self._model, self._device = model, device
        self._slots = Slots(model, shape)
        self._rows: Rows | None = None
        self._forwarded: deque[Forward] = deque()
        self._results: dict[int, StepResult] = {}
        self._tickets: dict[Ticket, int] = {}
        self._next_forward = self._next_sample = self._next_collect = 0

    def launch_forward(self, plan: StepPlan) -> None:
        self._check_launch(plan)
        self._next_forward += 1
        self._device.compute.enqueue(lambda: self._forward(plan), f"forward:{plan.step}")

    def launch_sample(self, plan: SamplePlan) -> Ticket:
        step = plan.step
        require(step == self._next_sample, "S({}) is launched instead of S({})", step, self._next_sample)
        require(step < self._next_forward, "S({}) is launched before its forward", step)
        require(step == self._next_collect, "S({}) is launched before S({}) is known", step, step - 1)
        self._next_sample += 1
        stream = self._device.compute
        stream.enqueue(lambda: self._sample(plan), f"sample:{plan.step}")
        ticket = self._device.watch(stream.record(), get_running_loop())
        self._tickets[ticket] = plan.step
        return ticket

    def collect(self, ticket: Ticket) -> StepResult:
        step = self._tickets.pop(ticket)
        if ticket.error is not None:
            raise ticket.error
        require(ticket.settled, "step {} is collected before it ended", step)
        self._next_collect = step + 1
        return self._results.pop(step)

    def close(self) -> None:
        self._tickets.clear()
        self._results.clear()
        self._forwarded.clear()

    def _check_launch(self, plan: StepPlan) -> None:
        layout, shape, step = plan.layout, self.shape, plan.step
        require(step == self._next_forward, "F({}) is launched instead of F({})", step, self._next_forward)
        require(step == self._next_sample, "F({}) is launched before S({})", step, step - 1)
        require(
            0 < layout.rows <= shape.max_rows, "a step of {} rows, at most {}", layout.rows, shape.max_rows
        )
        require(layout.rows == int(layout.query_lengths.sum()), "a layout miscounts its rows")
        slots = np.sort(layout.slots)
        require(slots[0] > 0 and slots[-1] <= shape.sequence_slots, "a step uses unknown slots")
        require((slots[1:] != slots[:-1]).all(), "a slot is twice in a step")
        lengths = layout.query_lengths[: layout.decode_count]
        require((lengths <= shape.draft_tokens + 1).all(), "step {} verifies {} drafts", step, lengths - 1)

    # Work on the compute stream.

    def _forward(self, plan: StepPlan) -> None:
        slots, decode = self._slots, plan.layout.decode_count
        slots.copy_states(plan.state_copies)
        prompts, first = plan.layout.slots[decode:], plan.first_positions[decode:]
        starts = (first == 0) | (prompts[:, None] == plan.state_copies[:, 1]).any(axis=1)
        slots.forget_tables(prompts[starts])
        slots.update_tables(plan.table_updates)
        self._check_positions(plan, first[~starts], prompts[~starts])
        if plan.redeal:
            plan = redealt(plan, slots)
        if self._rows is None or self._rows.layout is not plan.layout:
            self._rows = place_rows(plan.layout)
        self._forwarded.append(forward(self._model, slots, plan, self._rows))

    def _sample(self, plan: SamplePlan) -> None:
        step = self._forwarded.popleft()
        self._results[plan.step] = sample(self._model, self.shape, self._slots, step, plan)

    def _check_positions(self, plan: StepPlan, continued: Int32s, slots: Int32s) -> None:
        """Prompts go on where they were (`continued` by `slots`), decodes at most D behind the plan."""
        decode, position = plan.layout.decode_count, self._slots.position
        ahead = plan.first_positions[:decode] - position[plan.layout.slots[:decode]]
        within = (ahead >= 0) & (ahead <= self.shape.draft_tokens)
        require(within.all(), "step {} plans decodes {} positions ahead of the device", plan.step, ahead)
        known = position[slots]
        require((known == continued).all(), "step {} continues at {}, not {}", plan.step, continued, known)
        last = plan.first_positions + plan.layout.reach
        require(last.max() <= self.shape.max_positions, "step {} leaves the positions there are", plan.step)
