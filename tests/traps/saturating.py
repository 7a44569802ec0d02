"""Engines on the hashed model whose steps cost by their rows, and what they say in how much virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from stepahead import Completion, Engine, EngineConfig, SamplingParams
from stepahead.devices.clock import run_virtual
from stepahead.devices.simulated import SimulatedDevice
from stepahead.engine.backend import Backend
from stepahead.engine.model.hashed import HashedModel, HashedRunner
from stepahead.engine.model.runner import RunnerShape, StepPlan, StepTime
from stepahead.engine.sizing import runner_shape
from stepahead.engine.speculation_stats import SpeculationStats
from stepahead.engine.step_costs import CostsWanted, measure
from tests.actors.hashed_engine import prompt_of


@dataclass(frozen=True)
class Pace:
    """Seconds of a forward, of each of its rows, and of drafting: for the step and for each sequence."""

    step: float = 10e-3
    row: float = 1e-3
    draft: float = 1e-3
    draft_each: float = 0.05e-3

    def forward(self, rows: int) -> float:
        return self.step + self.row * rows

    def drafting(self, sequences: int) -> float:
        return self.draft + self.draft_each * sequences


class PacedRunner(HashedRunner):
    """Tells its device's latencies, and what steps will take, from one pace."""

    def __init__(self, model: HashedModel, shape: RunnerShape, device: SimulatedDevice, pace: Pace) -> None:
        super().__init__(model, shape, device)
        self._pace, self._plan = pace, None
        device.latency = self._latency

    def launch_forward(self, plan: StepPlan) -> None:
        self._plan: StepPlan | None = plan
        super().launch_forward(plan)

    def _latency(self, label: str) -> float:
        assert self._plan is not None
        layout = self._plan.layout
        if label.startswith("forward"):
            return self._pace.forward(layout.rows)
        drafts = self._plan.drafts and self.shape.draft_tokens > 0
        return self._pace.drafting(int(layout.samples.sum())) if drafts else 0.0

    def time_step(self, sequences: int, rows: int) -> StepTime:
        drafting = self._pace.drafting(sequences) if self.shape.draft_tokens else 0.0
        return StepTime(self._pace.forward(rows), drafting)


@dataclass(frozen=True)
class Told:
    """What an engine said, how long it took, and what speculation did."""

    completions: list[Completion]
    seconds: float
    stats: SpeculationStats

    @property
    def texts(self) -> list[tuple[int, ...]]:
        return [completion.token_ids for completion in self.completions]

    @property
    def rate(self) -> float:
        return sum(map(len, self.texts)) / self.seconds


def tell(
    model: HashedModel,
    pace: Pace,
    sequences: int,
    tokens: int,
    runner: type[PacedRunner] = PacedRunner,
    sampling: SamplingParams | None = None,
    run: Callable[[Engine], Awaitable[list[Completion]]] | None = None,
    **knobs: Any,
) -> Told:
    """So many sequences of so many tokens, together; or what `run` asks."""

    async def opener(config: EngineConfig) -> Backend:
        device = SimulatedDevice(asyncio.get_running_loop())
        made = runner(model, runner_shape(config, model.facts, device.memory().free), device, pace)
        return Backend(made, device, None, measure(made, CostsWanted(seconds=1.0, folder=None, key="")))

    params = sampling or SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)

    async def ask(engine: Engine) -> list[Completion]:
        prompts = [prompt_of(4, seed, model) for seed in range(sequences)]
        return await asyncio.gather(*(engine.generate(prompt, params) for prompt in prompts))

    async def main() -> Told:
        config = EngineConfig(
            max_sequences=max(sequences, 1), max_step_rows=2048, max_context=512, snapshot_slots=0, **knobs
        )
        async with Engine.open(config=config, opener=opener) as engine:
            loop = asyncio.get_running_loop()
            began = loop.time()
            done = await (ask if run is None else run)(engine)
            return Told(done, loop.time() - began, engine.stats().speculation)

    return run_virtual(main())
