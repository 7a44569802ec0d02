"""Engines whose model costs nothing: what is left is the host's own work."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np

from stepahead import Engine, EngineConfig
from stepahead.devices.device import Device, Ticket
from stepahead.devices.simulated import SimulatedDevice
from stepahead.engine.backend import Backend
from stepahead.engine.model.runner import ModelFacts, Runner, RunnerShape, SamplePlan, StepPlan, StepResult
from stepahead.engine.opening import Opening
from stepahead.engine.sizing import runner_shape
from tests.unit.text_tokenizer import small_tokenizer

FACTS = ModelFacts(
    vocab_size=300,
    eos_token_ids=(1,),
    max_positions=2**15,
    block_tokens=128,
    block_bytes=1024,
    state_bytes=1024,
    draft_tokens=0,
    backtracking=6,
    hit_margin=1,
)
SAYS = 107


class NullRunner(Runner):
    """Every sampled token is `SAYS`."""

    def __init__(self, shape: RunnerShape, device: Device) -> None:
        self.facts, self.shape, self._device = FACTS, shape, device
        self._tickets: dict[Ticket, StepPlan] = {}

    def launch_forward(self, plan: StepPlan) -> None:
        self._plan = plan
        self._device.compute.enqueue(lambda: None, f"forward:{plan.step}")

    def launch_sample(self, plan: SamplePlan) -> Ticket:
        self._device.compute.enqueue(lambda: None, f"sample:{plan.step}")
        ticket = self._device.watch(self._device.compute.record(), asyncio.get_running_loop())
        self._tickets[ticket] = self._plan
        return ticket

    def collect(self, ticket: Ticket) -> StepResult:
        plan = self._tickets.pop(ticket)
        layout = plan.layout
        emitted = layout.samples.astype(np.int32)
        return StepResult(
            step=plan.step,
            tokens=np.where(layout.samples, SAYS, -1).astype(np.int32)[:, None],
            emitted=emitted,
            drafted=np.zeros_like(emitted),
            positions=plan.first_positions,
            finite=np.ones(emitted.size, dtype=bool),
        )

    def close(self) -> None:
        self._tickets.clear()


def open_null(**knobs: Any) -> Opening[Engine]:
    """An engine on a free device, with a small vocabulary."""

    async def open_backend(config: EngineConfig) -> Backend:
        device = SimulatedDevice(asyncio.get_running_loop())
        return Backend(NullRunner(runner_shape(config, FACTS, 1 << 40), device), device, small_tokenizer())

    return Engine.open(config=EngineConfig(**knobs), opener=open_backend)
