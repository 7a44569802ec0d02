"""Rejection mode through a whole engine: the text is the oracle's, whatever happens around a request."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest

from stepahead import Completion, ConfigError, EngineConfig, FinishReason, SamplingParams
from stepahead.engine.model.hashed import HashedModel, solo
from stepahead.engine.sampling.commit import STOP
from stepahead.engine.sizing import draft_distribution_bytes, runner_shape
from tests.actors.hashed_engine import DRAFTING, MODEL, as_request, collect, exact, open_hashed, prompt_of

REJECTION: dict[str, Any] = {"acceptance": "rejection", "verify": "all"}
PROMPTS = [prompt_of(9 + 7 * seed, seed) for seed in range(6)]
OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"temperature": 0.6, "top_p": 0.9},
    {"temperature": 1.4, "top_k": 20, "min_p": 0.01},
    {"frequency_penalty": 0.8, "presence_penalty": 0.3, "repetition_penalty": 1.2},
    {"allowed_token_ids": tuple(range(5, 25)), "bad_words": ((7, 9), (9, 7)), "logit_bias": {8: 4.0}},
    {"stop_token_ids": (30, 31, 32), "min_tokens": 6, "temperature": 2.0},
)


def asked(number: int, **fields: Any) -> SamplingParams:
    return SamplingParams(**{"seed": number, "max_tokens": 40, **OPTIONS[number % len(OPTIONS)], **fields})


def said_by_the_oracle(
    prompt: list[int], params: SamplingParams, model: HashedModel
) -> tuple[tuple[int, ...], FinishReason]:
    answer = solo(model, as_request(prompt, params, model), rejection=True)
    ended = answer.finish == STOP
    return answer.tokens[:-1] if ended else answer.tokens, (
        FinishReason.STOP if ended else FinishReason.LENGTH
    )


def is_exact(done: Completion, prompt: list[int], params: SamplingParams, model: HashedModel) -> None:
    assert (done.token_ids, done.finish_reason) == said_by_the_oracle(prompt, params, model)


@pytest.mark.parametrize(
    "knobs",
    [{}, {"overlap": False}, {"max_step_rows": 40, "prefill_chunk": 5}, {"max_sequences": 2}],
    ids=str,
)
async def test_text_does_not_depend_on_neighbours_order_or_chunks(knobs: dict[str, Any]) -> None:
    params = [asked(number) for number in range(6)]
    async with open_hashed(DRAFTING, **REJECTION, **knobs) as engine:
        alone = [await engine.generate(p, a) for p, a in zip(PROMPTS, params, strict=True)]
        backwards = list(zip(PROMPTS, params, strict=True))[::-1]
        together = await asyncio.gather(
            *(engine.generate(p, a) for p, a in backwards),
            *(engine.generate(p, SamplingParams(temperature=0, max_tokens=30)) for p in PROMPTS),
        )
        for prompt, own, done in zip(PROMPTS, params, alone, strict=True):
            is_exact(done, prompt, own, DRAFTING)
        for (prompt, own), done in zip(backwards, together, strict=False):
            is_exact(done, prompt, own, DRAFTING)
        stats = engine.stats()
        assert 0 < stats.accepted_tokens < stats.drafted_tokens


@pytest.mark.parametrize("overlap", [True, False])
async def test_text_does_not_depend_on_preemption(overlap: bool) -> None:
    """Who returns draws its newest token again, unseen, and goes on with the drafts it had."""
    params = [asked(number, max_tokens=90, ignore_eos=True, logprobs=1) for number in range(6)]
    params[5] = SamplingParams(seed=5, temperature=2.0, max_tokens=90, ignore_eos=True, logprobs=1)
    knobs = {"kv_blocks": 22, "snapshot_slots": 3, "overlap": overlap}
    async with open_hashed(DRAFTING, **REJECTION, **knobs) as engine:
        streams = [collect(engine, p, a) for p, a in zip(PROMPTS, params, strict=True)]
        for prompt, own, deltas in zip(PROMPTS, params, await asyncio.gather(*streams), strict=True):
            tokens = tuple(token for delta in deltas for token in delta.token_ids)
            assert tokens == said_by_the_oracle(prompt, own, DRAFTING)[0]
            entries = [entry for delta in deltas for entry in delta.logprobs or ()]
            assert [entry.token_id for entry in entries] == list(tokens)
            usage = deltas[-1].usage
            assert usage is not None
            assert usage.output_tokens == len(tokens) == 90, "what is drawn again is not counted again"
        assert engine.stats().preemptions > 3
        assert engine.stats().output_tokens == 6 * 90


async def test_greedy_and_undrafted_texts_are_those_of_the_coupled_mode() -> None:
    greedy = [asked(number, temperature=0) for number in range(6)]
    async with open_hashed(DRAFTING, **REJECTION) as engine:
        done = await asyncio.gather(*(engine.generate(p, a) for p, a in zip(PROMPTS, greedy, strict=True)))
        for completion, prompt, own in zip(done, PROMPTS, greedy, strict=True):
            exact(completion, prompt, own, DRAFTING)
    for model, knobs in ((MODEL, {}), (DRAFTING, {"draft_tokens": 0})):
        async with open_hashed(model, **REJECTION, **knobs) as engine:
            exact(await engine.generate(PROMPTS[3], asked(1)), PROMPTS[3], asked(1), model)


async def test_options_hold_and_logprobs_are_the_oracles() -> None:
    async with open_hashed(DRAFTING, **REJECTION) as engine:
        for number in range(6):
            for of in ("model", "processed"):
                params = asked(number, logprobs=2, logprobs_of=of)
                done = await engine.generate(PROMPTS[number], params)
                truth = solo(DRAFTING, as_request(PROMPTS[number], params, DRAFTING), rejection=True)
                heard = [entry.logprob for entry in done.logprobs or ()]
                assert len(heard) == len(done.token_ids)
                assert heard == pytest.approx(truth.logprobs[: len(heard)], abs=1e-5)
        banned = asked(4)
        tokens = (await engine.generate(PROMPTS[4], banned)).token_ids
        assert set(tokens) <= set(range(5, 25))
        assert not {(7, 9), (9, 7)} & set(pairwise(tokens))


def test_memory_for_draft_distributions_is_counted_in_that_mode_only() -> None:
    coupled, rejection = EngineConfig(max_sequences=8), EngineConfig(max_sequences=8, **REJECTION)
    assert draft_distribution_bytes(coupled, DRAFTING.facts) == 0
    assert draft_distribution_bytes(rejection, DRAFTING.facts) == 9 * 3 * 96 * 4
    free = 60_000
    blocks = [runner_shape(config, DRAFTING.facts, free).blocks for config in (coupled, rejection)]
    bytes_less = 0.9 * 9 * 3 * 96 * 4
    assert blocks[0] - blocks[1] == pytest.approx(bytes_less / DRAFTING.facts.block_bytes, abs=1)
    with pytest.raises(ConfigError, match="acceptance"):
        EngineConfig(acceptance="sometimes")  # type: ignore[arg-type]
