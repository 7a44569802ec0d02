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
        require(
            plan.step == self._next_sample, f"S({plan.step}) is launched instead of S({self._next_sample})"
        )
        require(plan.step < self._next_forward, f"S({plan.step}) is launched before its forward")
        require(
            plan.step == self._next_collect, f"S({plan.step}) is launched before S({plan.step - 1}) is known"
        )
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
        require(ticket.settled, f"step {step} is collected before it ended")
        self._next_collect = step + 1
        return self._results.pop(step)

    def close(self) -> None:
        self._tickets.clear()
        self._results.clear()
        self._forwarded.clear()

    def _check_launch(self, plan: StepPlan) -> None:
        layout, shape = plan.layout, self.shape
        require(
            plan.step == self._next_forward, f"F({plan.step}) is launched instead of F({self._next_forward})"
        )
        require(plan.step == self._next_sample, f"F({plan.step}) is launched before S({plan.step - 1})")
        require(0 < layout.rows <= shape.max_rows, f"a step of {layout.rows} rows, at most {shape.max_rows}")
        require(layout.rows == int(layout.query_lengths.sum()), "a layout miscounts its rows")
        require(np.unique(layout.slots).size == layout.slots.size, "a slot is twice in a step")
        require(
            ((layout.slots > 0) & (layout.slots <= shape.sequence_slots)).all(), "a step uses unknown slots"
        )
        require(not plan.redeal, "no rule for adaptive verification was given to the hashed runner")

    # Work on the compute stream.

    def _forward(self, plan: StepPlan) -> None:
        slots = self._slots
        slots.copy_states(plan.state_copies)
        slots.forget_tables(self._newcomers(plan))
        slots.update_tables(plan.table_updates)
        self._check_positions(plan)
        if self._rows is None or self._rows.layout is not plan.layout:
            self._rows = place_rows(plan.layout)
        self._forwarded.append(forward(self._model, slots, plan, self._rows))

    def _sample(self, plan: SamplePlan) -> None:
        step = self._forwarded.popleft()
        self._results[plan.step] = sample(self._model, self.shape, self._slots, step, plan)

    def _newcomers(self, plan: StepPlan) -> Int32s:
        """Slots whose occupant starts here: its first row is at 0, or behind a state just restored."""
        decode = plan.layout.decode_count
        slots, first = plan.layout.slots[decode:], plan.first_positions[decode:]
        restored = np.isin(slots, plan.state_copies[:, 1])
        newcomers: Int32s = slots[(first == 0) | restored]
        return newcomers

    def _check_positions(self, plan: StepPlan) -> None:
        layout, decode = plan.layout, plan.layout.decode_count
        position = self._slots.position[layout.slots]
        ahead = plan.first_positions[:decode] - position[:decode]
        require(
            ((ahead >= 0) & (ahead <= self.shape.draft_tokens)).all(),
            f"step {plan.step} plans decodes {ahead} positions ahead of the device",
        )
        continued = ~np.isin(layout.slots[decode:], self._newcomers(plan))
        expected, planned = position[decode:][continued], plan.first_positions[decode:][continued]
        require(
            (expected == planned).all(), f"step {plan.step} continues prompts at {planned}, not {expected}"
        )
        last = np.where(np.arange(layout.slots.size) < decode, position, plan.first_positions)
        require(
            (last + layout.query_lengths <= self.shape.max_positions).all(), "positions beyond the last one"
        )
