"""A prompt's logprobs through a whole engine: whatever happens to the request, they are those of it alone."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from stepahead import Completion, EngineConfig, SamplingParams
from stepahead.engine.errors import InvalidParameterError
from stepahead.engine.logprobs import LOGPROB_FLOOR, GatheredScores, PromptLogprobs
from stepahead.engine.model.hashed import HashedModel, HashedRunner, solo
from stepahead.engine.model.runner import StepPlan
from tests.actors.hashed_engine import DRAFTING, MODEL, as_request, collect, open_hashed, prompt_of
from tests.unit.text_tokenizer import small_tokenizer

LONG = prompt_of(70)
MODELS = pytest.mark.parametrize("model", [MODEL, DRAFTING], ids=["alone", "drafted"])


def asked(alternatives: int = 2, **fields: Any) -> SamplingParams:
    return SamplingParams(**{"prompt_logprobs": alternatives, "seed": 3, "max_tokens": 4, **fields})


def is_exact(done: Completion, prompt: list[int], params: SamplingParams, model: HashedModel) -> None:
    truth = solo(model, as_request(prompt, params, model)).prompt
    assert done.prompt_logprobs is not None
    assert tuple(done.prompt_logprobs) == truth
    assert [entry.token_id for entry in done.prompt_logprobs] == prompt[1:]


@MODELS
@pytest.mark.parametrize("alternatives", [0, 1, 20])
async def test_every_prompt_token_after_the_first_has_an_entry(model: HashedModel, alternatives: int) -> None:
    async with open_hashed(model) as engine:
        for prompt in (LONG, LONG[:32], LONG[:2]):
            params = asked(alternatives)
            is_exact(await engine.generate(prompt, params), prompt, params, model)


@MODELS
@pytest.mark.parametrize("chunk", [1, 7, 16, 64])
async def test_chunks_batches_and_overlap_change_nothing(model: HashedModel, chunk: int) -> None:
    prompts = [prompt_of(length, seed) for seed, length in enumerate((70, 41, 8, 9, 17, 3))]
    params = [asked(seed % 3, seed=seed) for seed in range(len(prompts))]
    for overlap in (True, False):
        knobs = {"prefill_chunk": chunk, "max_step_rows": 40, "overlap": overlap}
        async with open_hashed(model, **knobs) as engine:
            done = await asyncio.gather(
                *(engine.generate(p, a) for p, a in zip(prompts, params, strict=True)),
                *(engine.generate(prompt_of(30, seed)) for seed in range(4)),
            )
            for completion, prompt, own in zip(done, prompts, params, strict=False):
                is_exact(completion, prompt, own, model)
            assert all(completion.prompt_logprobs is None for completion in done[len(prompts) :])


async def test_a_cached_prefix_is_not_skipped_by_who_asks_and_still_is_by_others() -> None:
    async with open_hashed() as engine:
        await engine.generate(LONG, SamplingParams(max_tokens=1))
        params = asked()
        done = await engine.generate(LONG, params)
        is_exact(done, LONG, params, MODEL)
        assert done.usage.cached_tokens == 0
        again = await engine.generate(LONG, SamplingParams(max_tokens=1))
        assert again.usage.cached_tokens >= 64


async def test_choices_share_the_entries_of_the_first() -> None:
    params = asked(n=3, temperature=1.3)
    async with open_hashed() as engine:
        done = {c.index: c async for c in engine.generate_many([LONG], params)}
        is_exact(done[0], LONG, asked(), MODEL)
        assert [done[i].prompt_logprobs for i in (1, 2)] == [None, None]
        assert done[1].usage.cached_tokens > 0, "the prompt is computed once"
        best = await engine.generate(LONG, asked(best_of=3, temperature=1.3))
        is_exact(best, LONG, asked(), MODEL)


async def test_a_stream_tells_them_with_its_first_delta() -> None:
    async with open_hashed(DRAFTING) as engine:
        deltas = await collect(engine, LONG, asked(max_tokens=12, ignore_eos=True))
        assert isinstance(deltas[0].prompt_logprobs, PromptLogprobs)
        assert len(deltas[0].prompt_logprobs) == len(LONG) - 1
        assert [delta.prompt_logprobs for delta in deltas[1:]] == [None] * (len(deltas) - 1)


async def test_a_request_for_no_token_gets_them_with_its_end() -> None:
    async with open_hashed() as engine:
        done = await engine.generate(LONG, asked(max_tokens=0))
        is_exact(done, LONG, asked(), MODEL)
        assert (done.token_ids, done.usage.output_tokens) == ((), 0)
        nothing = await engine.generate(LONG[:1], asked(5))
        assert nothing.prompt_logprobs is not None
        assert len(nothing.prompt_logprobs) == 0


async def test_text_held_back_holds_them_back_and_loses_nothing() -> None:
    """The first delta comes once a stop string can no longer begin in it."""
    params = asked(stop=("never seen",), max_tokens=12, ignore_eos=True)
    async with open_hashed(HashedModel(vocab_size=128), tokenizer=small_tokenizer()) as engine:
        prompt = prompt_of(40)
        deltas = await collect(engine, prompt, params)
        told = [delta.prompt_logprobs for delta in deltas if delta.prompt_logprobs is not None]
        assert told == [deltas[0].prompt_logprobs]
        assert len(told[0]) == len(prompt) - 1


@MODELS
async def test_preemption_while_the_prompt_runs_or_later(model: HashedModel) -> None:
    """A pool that holds little more than one of six: some are thrown out, no entry is missing or wrong."""
    prompts = [prompt_of(40 + 5 * seed, seed) for seed in range(6)]
    params = [asked(seed=seed, max_tokens=60, ignore_eos=True) for seed in range(6)]
    async with open_hashed(model, kv_blocks=24, snapshot_slots=3, prefill_chunk=9) as engine:
        done = await asyncio.gather(*(engine.generate(p, a) for p, a in zip(prompts, params, strict=True)))
        assert engine.stats().preemptions > 0
        for completion, prompt, own in zip(done, prompts, params, strict=True):
            is_exact(completion, prompt, own, model)


async def test_only_asked_rows_are_scored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neighbours in the same step have none, and steps without an asker carry nothing."""
    plans: list[StepPlan] = []
    launch = HashedRunner.launch_forward

    def watched(self: HashedRunner, plan: StepPlan) -> None:
        plans.append(plan)
        launch(self, plan)

    monkeypatch.setattr(HashedRunner, "launch_forward", watched)
    async with open_hashed() as engine:
        await asyncio.gather(engine.generate(LONG, asked()), engine.generate(prompt_of(50, 1)))
        rows = [plan.scored.rows.size for plan in plans if plan.scored is not None]
        assert sum(rows) == len(LONG) - 1
        assert len(rows) < len(plans)
        plans.clear()
        await engine.generate(prompt_of(50, 2))
        assert all(plan.scored is None for plan in plans)


async def test_values_outside_are_refused() -> None:
    async with open_hashed() as engine:
        for wrong in (-1, EngineConfig().max_logprobs + 1):
            with pytest.raises(InvalidParameterError, match="prompt_logprobs"):
                await engine.generate(LONG, asked(wrong))


def test_parts_may_come_twice_and_impossible_tokens_have_the_floor() -> None:
    gathered = GatheredScores(np.array([5, 6, 7, 8], dtype=np.int32), 1)
    part = np.array([-1, -np.inf], dtype=np.float32)
    top = np.array([[-0.5, -2], [np.nan, -3]], dtype=np.float32)
    ids = np.array([[1, 2], [3, 4]], dtype=np.int32)
    gathered.add(1, part, top, ids)
    gathered.add(1, part, top, ids)
    assert not gathered.complete
    gathered.add(0, part[:1], top[:1], ids[:1])
    assert gathered.complete
    result = gathered.result()
    assert [entry.token_id for entry in result] == [6, 7, 8]
    assert [entry.logprob for entry in result[1:]] == [-1, LOGPROB_FLOOR]
    assert result[2].top == ((3, LOGPROB_FLOOR),)
    assert not result.logprobs.flags.writeable
