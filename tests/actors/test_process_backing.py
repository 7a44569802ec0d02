"""An engine whose CPU device is a process says what one with a thread says, and refuses what it cannot do."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from stepahead import Completion, Engine, EngineConfig, SamplingParams
from stepahead.devices.cpu import CpuDevice
from stepahead.engine.errors import ConfigError
from stepahead.engine.model.checkpoint.dummy import DummyReader
from stepahead.engine.model.checkpoint.layout import tensor_specs
from stepahead.engine.model.checkpoint.writer import write_checkpoint
from stepahead.engine.model.opening import BUILT_IN, ModelFilesError
from stepahead.engine.model.v41.config import load_config

KNOBS = {"max_sequences": 4, "max_context": 512, "kv_blocks": 33, "max_step_rows": 256}
PROMPTS = [[64 + i * 7 + j for j in range(40 + 90 * i)] for i in range(3)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The built-in model's shape with random weights."""
    config = load_config(BUILT_IN)
    weights = DummyReader(config)
    write_checkpoint(
        tmp_path, config, ((name, weights.read(name, torch.float32)) for name in tensor_specs(config))
    )
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(BUILT_IN / name, tmp_path)
    return tmp_path


async def _answers(folder: Path, backing: str) -> list[Completion]:
    params = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True, prompt_logprobs=2)
    config = EngineConfig(cpu_backing=backing, **KNOBS)  # type: ignore[arg-type]
    async with Engine.open(folder, config) as engine:
        done = [completion async for completion in engine.generate_many(PROMPTS, params)]
    return sorted(done, key=lambda completion: int(completion.request_id or 0))


@pytest.mark.slow
async def test_thread_and_process_say_the_same(folder: Path) -> None:
    for one, other in zip(await _answers(folder, "process"), await _answers(folder, "thread"), strict=True):
        assert one.token_ids == other.token_ids
        assert one.prompt_logprobs is not None
        assert other.prompt_logprobs is not None
        assert np.array_equal(one.prompt_logprobs.token_ids, other.prompt_logprobs.token_ids)
        np.testing.assert_allclose(one.prompt_logprobs.logprobs, other.prompt_logprobs.logprobs, atol=1e-4)


async def test_an_open_device_cannot_become_a_process() -> None:
    device = CpuDevice(inline=True)
    with pytest.raises(ConfigError, match="cpu_backing"):
        await Engine.open(None, EngineConfig(cpu_backing="process"), device=device)
    device.close()


async def test_missing_weights_are_named_before_a_process_starts(tmp_path: Path) -> None:
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(BUILT_IN / name, tmp_path)
    with pytest.raises(ModelFilesError):
        await Engine.open(tmp_path, EngineConfig(cpu_backing="process"))
