"""Traps F: what a cache, a queue and a pause may do to a text, which is nothing."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from stepahead import Completion, Engine, SamplingParams
from stepahead.devices.clock import run_virtual
from stepahead.engine.cache import prefix_index
from stepahead.engine.model.hashed import HashedModel
from tests.actors.hashed_engine import DRAFTING, MODEL, exact, open_hashed, prompt_of, settle, until

MODELS = pytest.mark.parametrize("model", [MODEL, DRAFTING], ids=["plain", "drafts"])
GREEDY = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)


@pytest.mark.parametrize(
    ("model", "overlap", "count"),
    [
        pytest.param(DRAFTING, True, 512, marks=pytest.mark.slow),
        (DRAFTING, True, 96),
        (DRAFTING, False, 96),
        (MODEL, True, 96),
    ],
)
def test_f3_many_prompts_with_shared_prefixes_in_a_small_pool(
    model: HashedModel, overlap: bool, count: int
) -> None:
    """Preemptions, evictions and hits of every kind happen; no text changes."""
    chance = random.Random(3)
    stems = [prompt_of(length, seed) for seed, length in enumerate((8, 24, 25, 60, 64))]
    prompts = [
        chance.choice(stems)[: chance.randint(1, 64)] + prompt_of(chance.randint(0, 20), seed)
        for seed in range(count)
    ]
    params = [
        SamplingParams(seed=i, temperature=i % 2, max_tokens=chance.randint(0, 30)) for i in range(count)
    ]

    async def main() -> None:
        async with open_hashed(model, kv_blocks=28, snapshot_slots=3, overlap=overlap) as engine:
            async for completion in engine.generate_many(prompts, params, concurrency=64):
                index = int(completion.request_id or -1)
                exact(completion, prompts[index], params[index], model)
            await settle(engine)
            stats = engine.stats()
            assert stats.preemptions > 0
            assert stats.cached_tokens > 0
            assert stats.finished == count

    run_virtual(main())


@MODELS
@pytest.mark.parametrize("abort_first", [False, True])
def test_f4_a_prefix_that_is_not_written_yet_is_no_hit(model: HashedModel, abort_first: bool) -> None:
    prefix = prompt_of(200)
    first, second = [*prefix, 5, 6], [*prefix, 7, 8]

    async def main() -> None:
        async with open_hashed(model, latency=lambda label: 0.01) as engine:
            leading = engine.stream(first, GREEDY)
            await leading.start()
            following = asyncio.create_task(engine.generate(second, GREEDY))
            if abort_first:
                await asyncio.sleep(0.05)  # between two of its chunks
                await leading.aclose()
            else:
                tokens = [token async for delta in leading for token in delta.token_ids]
                exact(await engine.generate(first, GREEDY), first, GREEDY, model)
                assert len(tokens) == 20
            exact(await following, second, GREEDY, model)

    run_virtual(main())


def test_f5_a_large_head_is_overtaken_but_not_for_ever() -> None:
    """64 blocks; 50 are free beside a long runner; the head wants 60; small ones keep coming."""

    async def main() -> None:
        knobs: dict[str, Any] = {"kv_blocks": 65, "max_bypass": 5, "prefix_cache": False}
        async with open_hashed(latency=lambda label: 0.001, **knobs) as engine:
            runner = engine.stream(prompt_of(100), SamplingParams(max_tokens=12, ignore_eos=True))
            await anext(runner)
            order: list[str] = []

            async def run(name: str, length: int) -> None:
                prompt = prompt_of(length, len(name) + length)
                params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
                exact(await engine.generate(prompt, params), prompt, params)
                order.append(name)

            head = asyncio.create_task(run("head", 470))
            await until(lambda: engine.stats().waiting == 1)
            small = [asyncio.create_task(run(f"small {i}", 40)) for i in range(40)]
            await asyncio.gather(head, *small)
            place = order.index("head")
            assert 0 < place <= 5 + 8, "overtaken, at most max_bypass admissions and what then ran"

    run_virtual(main())


@MODELS
async def test_f6_the_first_answer_is_the_second_bit_for_bit(model: HashedModel) -> None:
    """Cold, warm, alone, with neighbours, in chunks of any size: ids and log-probability bits."""
    prompt = prompt_of(90)
    params = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True, logprobs=2)
    answers: list[Completion] = []
    for chunk in (16, 64, 512):
        async with open_hashed(model, prefill_chunk=chunk, max_step_rows=512) as engine:
            answers += [await engine.generate(prompt, params), await engine.generate(prompt, params)]
            assert answers[-1].usage.cached_tokens > 0
            beside = [engine.generate(prompt_of(50, seed), GREEDY) for seed in range(7)]
            answers.append((await asyncio.gather(engine.generate(prompt, params), *beside))[0])
            await engine.reset_prefix_cache()
            answers.append(await engine.generate(prompt, params))
            assert answers[-1].usage.cached_tokens == 0
    assert len({(answer.token_ids, answer.logprobs) for answer in answers}) == 1


@MODELS
def test_f7_finishing_in_the_first_mixed_step_leaks_nothing(model: HashedModel) -> None:
    one = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)
    long = SamplingParams(temperature=0, max_tokens=400, ignore_eos=True)

    async def main() -> None:
        async with open_hashed(model) as engine:
            count = 0
            async with engine.stream(prompt_of(9, 77), long) as decoding:
                await anext(decoding)
                prompts = (prompt_of(1 + seed % 30, seed) for seed in range(1000))
                async for completion in engine.generate_many(prompts, one):
                    assert len(completion.token_ids) == 1
                    count += 1
            assert count == 1000
            await settle(engine)
            core = engine._host.wiring.scheduler.core
            assert len(core._free_slots) == 8
            core.check()
            engine._host.wiring.cache_manager.core.check()

    run_virtual(main())


async def test_f8_colliding_digests_are_told_apart_by_their_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix_index, "chain_digest", lambda *parts: b"always the same")
    async with open_hashed() as engine:
        for seed in range(6):
            prompt = prompt_of(40, seed)
            exact(await engine.generate(prompt, GREEDY), prompt, GREEDY)


async def test_f8_salts_never_share_and_equal_salts_do() -> None:
    prompt = prompt_of(60)
    async with open_hashed(snapshot_slots=64) as engine:

        async def cached(salt: str | bytes) -> int:
            completion = await engine.generate(prompt, GREEDY, cache_salt=salt)
            exact(completion, prompt, GREEDY)
            return completion.usage.cached_tokens

        assert [await cached(salt) for salt in ("a", "b", b"", "ab")] == [0, 0, 0, 0]
        assert all([await cached(salt) > 0 for salt in ("a", b"a", "b", "", "ab")])


@MODELS
@pytest.mark.parametrize("seed", range(5))
def test_f9_a_pause_with_a_reset_loses_nothing(model: HashedModel, seed: int) -> None:
    chance = random.Random(seed)
    prompts = [prompt_of(chance.randint(1, 120), seed) for seed in range(6)]

    async def interrupt(engine: Engine) -> None:
        for _ in range(5):
            await asyncio.sleep(chance.random() * 0.02)
            await engine.pause()
            core = engine._host.wiring.scheduler.core
            assert core.uncommitted == 0
            steps = core._steps
            await asyncio.sleep(0.01)
            assert core._steps == steps
            await engine.reset_prefix_cache()
            await engine.resume()

    async def main() -> None:
        async with open_hashed(model, latency=lambda label: 0.001, kv_blocks=60) as engine:
            interrupting = asyncio.create_task(interrupt(engine))
            done = await asyncio.gather(*(engine.generate(prompt, GREEDY) for prompt in prompts))
            for completion, prompt in zip(done, prompts, strict=True):
                exact(completion, prompt, GREEDY, model)
            await interrupting
            await settle(engine)

    run_virtual(main())
