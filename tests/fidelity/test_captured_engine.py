"""The built-in model through the whole engine on a device that replays: joins, leaves, preemption."""

from __future__ import annotations

import asyncio
from functools import cache
from typing import Any

import pytest

from stepahead import Engine, EngineConfig, SamplingParams
from stepahead.engine.model.opening import open_model
from stepahead.engine.model.plain_loop import generate
from tests.device.replaying import ReplayingDevice

PROMPTS = (
    "Once upon a time",
    "Tom was a cat who",
    "In a village by the sea there lived an old woman. Every morning she " * 8,
    "The",
)
TOKENS = 20


@cache
def truth() -> dict[str, tuple[int, ...]]:
    """What each prompt continues with, alone, one token after the other."""
    opened = open_model()
    return {
        prompt: tuple(generate(opened.model, opened.tokenizer.encode(prompt), max_tokens=TOKENS))
        for prompt in PROMPTS
    }


def knobs(**changed: Any) -> EngineConfig:
    values = {"max_sequences": 6, "max_step_rows": 256, "max_context": 1024, "kv_blocks": 64}
    return EngineConfig(**{**values, **changed})


@pytest.mark.slow
@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"overlap": False, "draft_tokens": 0},
        {"verify": "all", "graph_sequences": 2},
        {"verify": 2},
    ],
    ids=str,
)
def test_greedy_text_is_that_of_the_model_alone(changed: dict[str, Any]) -> None:
    device = ReplayingDevice()

    async def main() -> None:
        params = SamplingParams(temperature=0, max_tokens=TOKENS, include_stop=True)
        async with Engine.open(config=knobs(**changed), device=device) as engine:

            async def later(prompt: str, turns: int) -> None:
                for _ in range(turns):
                    await asyncio.sleep(0)
                completion = await engine.generate(prompt, params)
                end = engine.tokenizer.end_id if engine.tokenizer else None
                assert tuple(t for t in completion.token_ids if t != end) == truth()[prompt]

            async def leave(prompt: str, after: int) -> None:
                stream, seen = engine.stream(prompt, params), 0
                async for delta in stream:
                    seen += len(delta.token_ids)
                    if seen > after:
                        break
                await stream.aclose()

            stays = [later(prompt, 40 * i) for i, prompt in enumerate(PROMPTS * 2)]
            goes = [leave(prompt, 3) for prompt in PROMPTS]
            await asyncio.gather(*stays, *goes)

    asyncio.run(main())
    assert device.replays > 10


@pytest.mark.slow
def test_preempted_sequences_come_back_into_captured_steps() -> None:
    """Six prompts of one block each grow into a second one; seven blocks are all there is."""
    opened = open_model()
    ids = opened.tokenizer.encode(PROMPTS[2] * 2)
    prompts = [ids[: 115 + number] for number in range(6)]
    alone = [tuple(generate(opened.model, prompt, max_tokens=30)) for prompt in prompts]
    device = ReplayingDevice()

    async def main() -> None:
        async with Engine.open(config=knobs(kv_blocks=8, prefix_cache=False), device=device) as engine:
            params = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
            done = await asyncio.gather(*(engine.generate(prompt, params) for prompt in prompts))
            for completion, expected in zip(done, alone, strict=True):
                assert completion.token_ids[: len(expected)] == expected
            assert engine.stats().preemptions > 0

    asyncio.run(main())
    assert device.replays > 10
