"""Engines on the hashed model and a scripted device, and what their requests must say.

`exact` compares with the oracle: the text of a request alone, whatever happened around it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stepahead import Completion, Delta, Engine, EngineConfig, FinishReason, SamplingParams
from stepahead.devices.cpu import CpuDevice
from stepahead.devices.simulated import Fault, Latency, SimulatedDevice
from stepahead.engine.backend import Backend, Opener
from stepahead.engine.config import RequestLimits
from stepahead.engine.model.hashed import HashedModel, HashedRunner, solo
from stepahead.engine.model.runner import StepPlan
from stepahead.engine.opening import Opening
from stepahead.engine.sampling.commit import STOP
from stepahead.engine.sizing import runner_shape
from stepahead.engine.text.tokenizer import Tokenizer
from stepahead.engine.types import Request
from stepahead.engine.validation import validate

MODEL = HashedModel()
DRAFTING = HashedModel(draft_tokens=3)

SMALL: dict[str, Any] = {
    "max_sequences": 8,
    "max_step_rows": 128,
    "prefill_chunk": 32,
    "max_context": 512,
    "kv_blocks": 257,
    "snapshot_slots": 8,
}
"""Knobs of an engine that is small enough for tests."""


def hashed_opener(
    model: HashedModel = MODEL,
    *,
    latency: Latency = lambda label: 0.0,
    fault: Fault = lambda label: None,
    tokenizer: Tokenizer | None = None,
) -> Opener:
    async def open_backend(config: EngineConfig) -> Backend:
        device = SimulatedDevice(asyncio.get_running_loop(), latency=latency, fault=fault)
        shape = runner_shape(config, model.facts, device.memory().free)
        return Backend(HashedRunner(model, shape, device), device, tokenizer)

    return open_backend


def open_hashed(
    model: HashedModel = MODEL,
    *,
    latency: Latency = lambda label: 0.0,
    fault: Fault = lambda label: None,
    tokenizer: Tokenizer | None = None,
    trace: Path | None = None,
    **knobs: Any,
) -> Opening[Engine]:
    """An engine of `SMALL` knobs, changed by `knobs`."""
    opener = hashed_opener(model, latency=latency, fault=fault, tokenizer=tokenizer)
    return Engine.open(config=EngineConfig(**{**SMALL, **knobs}), opener=opener, trace=trace)


class SlowRunner(HashedRunner):
    """Every forward takes real time on the device's thread."""

    seconds = 0.0

    def launch_forward(self, plan: StepPlan) -> None:
        self._device.compute.enqueue(lambda: time.sleep(self.seconds), f"slow:{plan.step}")
        super().launch_forward(plan)


def open_on_cpu(model: HashedModel = MODEL, *, seconds: float = 0.0, **knobs: Any) -> Opening[Engine]:
    """The same on the CPU device: a real thread."""

    async def open_backend(config: EngineConfig) -> Backend:
        device = CpuDevice()
        runner = SlowRunner(model, runner_shape(config, model.facts, device.memory().free), device)
        runner.seconds = seconds
        return Backend(runner, device, None)

    return Engine.open(config=EngineConfig(**{**SMALL, **knobs}), opener=open_backend)


def prompt_of(length: int, seed: int = 0, model: HashedModel = MODEL) -> list[int]:
    """Random token ids without end-of-text."""
    ids = np.random.default_rng(seed).integers(2, model.vocab_size, length)
    return [int(token) for token in ids]


def as_request(
    prompt: Sequence[int], params: SamplingParams, model: HashedModel = MODEL, choice: int = 0
) -> Request:
    """What an engine of `SMALL` knobs makes of a submission. The seed must be given, or not matter."""
    limits = RequestLimits(
        vocab_size=model.vocab_size,
        context=SMALL["max_context"],
        block_tokens=model.block_tokens,
        usable_blocks=10**6,
        lookahead=2 * (model.draft_tokens + 1),
        eos_token_ids=model.eos_token_ids,
        max_logprobs=20,
        max_stop_ids=16,
        draft_tokens=model.draft_tokens,
        model_draft_tokens=model.draft_tokens,
    )
    tokens = np.array(prompt, dtype=np.int32)
    return Request(
        key=1,
        group=1,
        choice=choice,
        leader=1,
        label=None,
        prompt=tokens.tobytes(),
        params=validate(tokens, params, limits),
        priority=0,
        arrival=0.0,
        deadline=None,
        salt=b"",
    )


def expected(
    prompt: Sequence[int], params: SamplingParams, model: HashedModel = MODEL, choice: int = 0
) -> tuple[tuple[int, ...], FinishReason]:
    """Token ids as a stream shows them, and the reason, by the oracle."""
    answer = solo(model, as_request(prompt, params, model, choice))
    if answer.finish == STOP:
        shown = answer.tokens if params.include_stop else answer.tokens[:-1]
        return shown, FinishReason.STOP
    return answer.tokens, FinishReason.LENGTH


def exact(
    completion: Completion, prompt: Sequence[int], params: SamplingParams, model: HashedModel = MODEL
) -> None:
    """Asserts that a completion is what its request says alone."""
    assert (completion.token_ids, completion.finish_reason) == expected(
        prompt, params, model, completion.index
    )


async def until(condition: Callable[[], bool]) -> None:
    """Lets the loop run until something has happened."""
    while True:
        if condition():
            return
        await asyncio.sleep(0)


async def settle(engine: Engine) -> None:
    """Lets the engine come to rest: nothing runs, waits, or has yet to be given back."""
    while True:
        stats = engine.stats()
        quiet = not (stats.running or stats.waiting) and all(
            not box.depth for box in stats.mailboxes.values()
        )
        if quiet and stats.kv_blocks_free == stats.kv_blocks:
            return
        await asyncio.sleep(0.001)


async def collect(
    engine: Engine, prompt: Sequence[int], params: SamplingParams, **options: Any
) -> list[Delta]:
    return [delta async for delta in engine.stream(prompt, params, **options)]
