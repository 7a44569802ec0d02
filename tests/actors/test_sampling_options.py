"""Sampling options through a whole engine: drafts on and off, and rules about whole answers."""

from __future__ import annotations

import asyncio
import math
from itertools import pairwise
from typing import Any

import pytest

from stepahead import InvalidRequestError, SamplingParams
from stepahead.engine.errors import InvalidParameterError
from stepahead.engine.model.hashed import HashedModel
from stepahead.engine.model.hashed.solo import solo
from tests.actors.hashed_engine import DRAFTING, MODEL, as_request, exact, open_hashed, prompt_of

EVERYTHING: dict[str, Any] = {
    "temperature": 0.8,
    "min_p": 0.02,
    "presence_penalty": 0.5,
    "frequency_penalty": 0.4,
    "repetition_penalty": 1.3,
    "logit_bias": {7: 3.0, 9: 3.0, 12: -4.0},
    "banned_token_ids": (20,),
    "bad_words": ((7, 9), (9, 7, 9)),
    "allowed_token_ids": (*range(5, 30),),
    "logprobs": 3,
    "logprobs_of": "processed",
    "max_tokens": 60,
}


@pytest.mark.parametrize("model", [MODEL, DRAFTING], ids=["alone", "drafted"])
async def test_every_option_together_is_exact(model: HashedModel) -> None:
    async with open_hashed(model) as engine:
        asked = [SamplingParams(seed=seed, **EVERYTHING) for seed in range(8)]
        prompts = [prompt_of(12, seed) for seed in range(8)]
        done = await asyncio.gather(
            *(engine.generate(p, a) for p, a in zip(prompts, asked, strict=True)),
            *(engine.generate(prompt_of(9, seed), SamplingParams(temperature=0)) for seed in range(8)),
        )
        for completion, prompt, params in zip(done, prompts, asked, strict=False):
            exact(completion, prompt, params, model)
            tokens = completion.token_ids
            assert 20 not in tokens
            assert (7, 9) not in pairwise(tokens)
            truth = solo(model, as_request(prompt, params, model))
            heard = [entry.logprob for entry in completion.logprobs or ()]
            assert heard == pytest.approx(truth.logprobs[: len(heard)], abs=1e-5)


async def test_best_of_keeps_the_likeliest_choices() -> None:
    params = SamplingParams(temperature=1.5, seed=4, max_tokens=8, ignore_eos=True)
    wide = SamplingParams(temperature=1.5, seed=4, max_tokens=8, ignore_eos=True, n=6, logprobs=0)
    async with open_hashed(MODEL) as engine:
        every = [c async for c in engine.generate_many([prompt_of(5)], wide)]
        means = {c.token_ids: math.fsum(e.logprob for e in c.logprobs or ()) / 8 for c in every}
        ranked = sorted(means, key=lambda tokens: -means[tokens])
        best = await engine.generate(prompt_of(5), SamplingParams(**{**fields(params), "best_of": 6}))
        assert (best.token_ids, best.index, best.logprobs) == (ranked[0], 0, None)
        two = SamplingParams(**{**fields(params), "best_of": 6, "n": 2, "logprobs": 1})
        kept = [c async for c in engine.generate_many([prompt_of(5)], two)]
        assert [(c.index, c.token_ids) for c in kept] == [(0, ranked[0]), (1, ranked[1])]
        assert all(len(entry.top) == 1 for c in kept for entry in c.logprobs or ())
        assert engine.stats().running == 0


def fields(params: SamplingParams) -> dict[str, Any]:
    return {name: getattr(params, name) for name in params.__struct_fields__}


async def test_a_stream_cannot_choose_afterwards() -> None:
    async with open_hashed(MODEL) as engine:
        with pytest.raises(InvalidParameterError, match="best_of"):
            await anext(engine.stream([2, 3], SamplingParams(best_of=2)))
        with pytest.raises(InvalidRequestError, match="best_of"):
            await engine.generate([2, 3], SamplingParams(best_of=0))
