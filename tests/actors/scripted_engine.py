"""Engines that say what a test wants them to say, token by token, with a small byte-level vocabulary.

Everything but the tokens is the hashed model's: how many of them a step brings, positions, blocks, slots.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np

from stepahead import Engine, EngineConfig
from stepahead.devices.device import Device, Ticket
from stepahead.devices.simulated import SimulatedDevice
from stepahead.engine.backend import Backend
from stepahead.engine.model.hashed import HashedModel, HashedRunner
from stepahead.engine.model.runner import RunnerShape, SamplePlan, StepPlan, StepResult
from stepahead.engine.opening import Opening
from stepahead.engine.sizing import runner_shape
from stepahead.engine.text.tokenizer import Tokenizer
from tests.actors.hashed_engine import SMALL
from tests.unit.text_tokenizer import small_tokenizer

Edit = Callable[[StepResult], StepResult]


class ScriptedRunner(HashedRunner):
    """Output position i of every sequence is `script[i]`, then `script[-1]` for ever."""

    def __init__(
        self, model: HashedModel, shape: RunnerShape, device: Device, script: Sequence[int], edit: Edit
    ) -> None:
        super().__init__(model, shape, device)
        self._script, self._edit = np.array(script, dtype=np.int32), edit
        self._origin = np.zeros(1 + shape.sequence_slots, dtype=np.int64)
        self._plans: dict[int, StepPlan] = {}

    def launch_forward(self, plan: StepPlan) -> None:
        self._plans[plan.step] = plan
        super().launch_forward(plan)

    def launch_sample(self, plan: SamplePlan) -> Ticket:
        self._origin[plan.updates.slots] = plan.updates.origin
        return super().launch_sample(plan)

    def collect(self, ticket: Ticket) -> StepResult:
        result = super().collect(ticket)
        layout = self._plans.pop(result.step).layout
        first = result.positions - self._origin[layout.slots] + 1
        first[layout.decode_count :] = 0
        positions = first[:, None] + np.arange(result.tokens.shape[1])
        said = self._script[np.minimum(positions, self._script.size - 1)]
        tokens = np.where(result.tokens >= 0, said, result.tokens).astype(np.int32)
        return self._edit(msgspec.structs.replace(result, tokens=tokens))


def open_scripted(
    script: Sequence[int], *, at_once: int = 1, edit: Edit = lambda result: result, **knobs: Any
) -> Opening[Engine]:
    """An engine whose every step brings `at_once` tokens of the script."""
    tokenizer: Tokenizer = small_tokenizer()
    model = HashedModel(vocab_size=tokenizer.vocab_size, draft_tokens=at_once - 1, draft_accuracy=1.0)

    async def open_backend(config: EngineConfig) -> Backend:
        device = SimulatedDevice(asyncio.get_running_loop())
        shape = runner_shape(config, model.facts, device.memory().free)
        return Backend(ScriptedRunner(model, shape, device, script, edit), device, tokenizer)

    return Engine.open(config=EngineConfig(**{**SMALL, **knobs}), opener=open_backend)
