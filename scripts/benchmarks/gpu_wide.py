"""The engine on the full-width slice: six layers of the published dimensions, random weights, token ids only.

The built-in model's steps are so short on a card that planning and delivering them is the longer part. What
matters to a user of a real model is another question: does its device ever wait? Six layers at full width are
less than a sixth of the real depth, so the host weighs six times as much here as it will.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

import torch

from stepahead import Engine, EngineConfig
from stepahead.devices.kernels.selection import operations_for
from stepahead.devices.nvidia import NvidiaDevice
from stepahead.engine.backend import Backend
from stepahead.engine.model.opening import sized_runner
from stepahead.engine.model.v41.model import Model
from stepahead.engine.model.v41.numerics import exact
from stepahead.engine.model.v41.runner import model_facts
from stepahead.engine.sizing import runner_shape

from .gpu_load import Steady, steady
from .gpu_slice_model import BF16, slice_config, slice_weights

CONTEXT, PROMPT_TOKENS = 4096, 200


def wide_knobs(sequences: int, **changed: Any) -> EngineConfig:
    return EngineConfig(
        max_sequences=sequences,
        max_context=CONTEXT,
        max_step_rows=max(2048, sequences),
        snapshot_slots=8,
        trace_steps=1024,
        **changed,
    )


async def measure_wide(config: EngineConfig, sequences: int, seconds: float) -> Steady:
    async def opener(knobs: EngineConfig) -> Backend:
        return await asyncio.to_thread(_open, knobs)

    dice = random.Random(0)
    vocab = slice_config().vocab_size
    asked = [[dice.randrange(3, vocab) for _ in range(PROMPT_TOKENS)] for _ in range(sequences)]
    async with Engine.open(config=config, opener=opener) as engine:
        print(engine.stats().graphs, flush=True)
        return await steady(engine, sequences, seconds=seconds, asked=asked)


def _open(knobs: EngineConfig) -> Backend:
    device, config, numerics = NvidiaDevice(), slice_config(), exact(BF16)
    with device.placing():
        operations = operations_for(device.capabilities, BF16, numerics.quantized)
        with torch.inference_mode():
            model = Model(config, slice_weights(config), numerics, operations=operations)
        facts = model_facts(config, numerics)
        runner = sized_runner(model, facts, lambda free: runner_shape(knobs, facts, free), device)
    return Backend(runner, device, None)
