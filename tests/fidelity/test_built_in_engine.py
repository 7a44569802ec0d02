"""The built-in model says the same in the engine as alone, however the engine is run.

The plain loop (one sequence, one token after the other, no speculation) is the yardstick. Greedy, since a
draw would hide a small error and an argmax of a near tie is the likeliest thing to show one.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from stepahead import Completion, Engine, EngineConfig, SamplingParams
from stepahead.engine.model.opening import open_model
from stepahead.engine.model.plain_loop import generate
from tests.checker.budgets import force_budgets

PROMPTS = (
    "Once upon a time",
    "Tom was a cat who",
    "In a village by the sea there lived an old woman. Every morning she " * 12,
    "The",
)
TOKENS = 24
GREEDY = SamplingParams(temperature=0, max_tokens=TOKENS, include_stop=True)


@pytest.fixture(scope="module")
def truth() -> dict[str, tuple[int, ...]]:
    """What each prompt continues with, end-of-text excluded."""
    opened = open_model()
    texts: dict[str, tuple[int, ...]] = {}
    for prompt in PROMPTS:
        ids = opened.tokenizer.encode(prompt)
        texts[prompt] = tuple(generate(opened.model, ids, max_tokens=TOKENS))
    return texts


def said(completion: Completion, engine: Engine) -> tuple[int, ...]:
    end = engine.tokenizer.end_id if engine.tokenizer else None
    return tuple(token for token in completion.token_ids if token != end)


async def check(engine: Engine, truth: dict[str, tuple[int, ...]], copies: int = 1) -> list[Completion]:
    prompts = [prompt for prompt in PROMPTS for _ in range(copies)]
    done = await asyncio.gather(*(engine.generate(prompt, GREEDY) for prompt in prompts))
    for completion, prompt in zip(done, prompts, strict=True):
        assert said(completion, engine) == truth[prompt]
    return list(done)


def knobs(**changed: Any) -> EngineConfig:
    return EngineConfig(
        **{"max_sequences": 16, "max_step_rows": 512, "max_context": 1024, "kv_blocks": 128, **changed}
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"overlap": False},
        {"prefill_chunk": 16},
        {"prefill_chunk": 64, "draft_tokens": 0},
        {"prefix_cache": False},
    ],
    ids=str,
)
def test_greedy_text_does_not_depend_on_how_the_engine_is_run(
    changed: dict[str, Any], truth: dict[str, tuple[int, ...]]
) -> None:
    async def main() -> None:
        async with Engine.open(config=knobs(**changed)) as engine:
            for prompt in PROMPTS:  # alone, cold
                assert said(await engine.generate(prompt, GREEDY), engine) == truth[prompt]
            warm = await check(engine, truth, copies=4)  # sixteen at once, warm
            hits = any(completion.usage.cached_tokens for completion in warm)
            assert hits == engine.config.prefix_cache

    asyncio.run(main())


SPECULATION = (
    {"draft_tokens": 0},
    *({"verify": drafts} for drafts in range(1, 6)),
    {"verify": "all"},
    {"verify": "adaptive"},
    {"verify": "adaptive", "draft_tokens": 3},
    {"verify": "adaptive", "overlap": False},
)


@pytest.mark.slow
@pytest.mark.parametrize("changed", SPECULATION, ids=str)
def test_greedy_text_does_not_depend_on_how_many_drafts_are_verified(
    changed: dict[str, Any], truth: dict[str, tuple[int, ...]]
) -> None:
    async def main() -> None:
        async with Engine.open(config=knobs(**changed)) as engine:
            await check(engine, truth, copies=2)
            if isinstance(most := changed.get("verify"), int):
                assert len(engine.stats().speculation.verified_by_position) == most

    asyncio.run(main())


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_greedy_text_under_forced_budgets(seed: int, truth: dict[str, tuple[int, ...]]) -> None:
    """Any number of drafts, dealt by the device, and steps that leave none."""

    async def main() -> None:
        async with Engine.open(config=knobs()) as engine:
            force_budgets(engine, seed)
            await check(engine, truth, copies=2)
            done = engine.stats().speculation
            assert 0 < done.verified < 5 * done.decode_steps
            assert done.steps_without_drafts > 0

    asyncio.run(main())


@pytest.mark.slow
def test_requests_of_one_batch_choose_their_own_drafts(truth: dict[str, tuple[int, ...]]) -> None:
    async def main() -> None:
        async with Engine.open(config=knobs()) as engine:
            force_budgets(engine, 3)
            most = [None, 0, 1, 3]
            params = [msgspec.structs.replace(GREEDY, draft_tokens=drafts) for drafts in most]
            done = await asyncio.gather(*map(engine.generate, PROMPTS, params))
            for completion, prompt, drafts in zip(done, PROMPTS, most, strict=True):
                assert said(completion, engine) == truth[prompt]
                usage = completion.usage
                assert usage.drafted_tokens <= (5 if drafts is None else drafts) * usage.decode_steps
            assert done[1].usage.accepted_tokens == 0

    asyncio.run(main())


@pytest.mark.slow
def test_greedy_text_survives_preemption() -> None:
    """Six prompts of one block each grow into a second one; seven blocks are all there is."""
    opened = open_model()
    ids = opened.tokenizer.encode(PROMPTS[2])
    prompts = [ids[: 115 + number] for number in range(6)]
    alone = [tuple(generate(opened.model, prompt, max_tokens=40)) for prompt in prompts]

    async def main() -> None:
        async with Engine.open(config=knobs(kv_blocks=8, prefix_cache=False)) as engine:
            params = SamplingParams(temperature=0, max_tokens=40, include_stop=True)
            done = await asyncio.gather(*(engine.generate(prompt, params) for prompt in prompts))
            assert [said(completion, engine) for completion in done] == alone
            assert engine.stats().preemptions > 0

    asyncio.run(main())
