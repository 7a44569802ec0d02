"""Traps C5 to C8 and D3 where they concern edits of logits and filters, beside undisturbed neighbours."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec
import pytest

from stepahead import SamplingParams
from stepahead.engine.errors import InvalidParameterError
from stepahead.engine.model.hashed.solo import solo
from tests.actors.hashed_engine import DRAFTING, MODEL, as_request, exact, open_hashed, prompt_of

WRONG: list[dict[str, Any]] = [
    {"repetition_penalty": 0.0},
    {"presence_penalty": float("inf")},
    {"logit_bias": {"a": 1.0}},
    {"logit_bias": {10**9: 1.0}},
    {"logit_bias": {3: float("nan")}},
    {"bad_words": ((3, -1),)},
    {"allowed_token_ids": (True, "x")},
    {"min_p": -0.1},
    {"logprobs_of": "draft"},
]


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: str(wrong))
async def test_c7_c8_a_wrong_number_is_its_callers_error(wrong: dict[str, Any]) -> None:
    params = SamplingParams(temperature=0, max_tokens=10)
    async with open_hashed(MODEL) as engine:
        neighbour = asyncio.create_task(engine.generate(prompt_of(8), params))
        with pytest.raises(InvalidParameterError, match=next(iter(wrong))):
            await engine.generate(prompt_of(8), msgspec.structs.replace(params, **wrong))
        exact(await neighbour, prompt_of(8), params)


async def test_c5_c6_extremes_mixed_in_one_batch() -> None:
    """Temperatures near zero with one allowed token, greedy rows, filters wider than the vocabulary."""
    one = {"allowed_token_ids": (9,), "ignore_eos": True}
    kinds: list[dict[str, Any]] = [
        *({"temperature": t, **one} for t in (0.0, 1e-10, 1e-6, 1e-5, 1e-4, 1e-3, 0.01, 1.0)),
        *({"top_k": k, "min_p": 0.5} for k in (MODEL.vocab_size - 1, 10**7, -1)),
        {"temperature": 0.0},
        {"temperature": 1e-5, "logit_bias": {4: 100.0, 5: -100.0}, "repetition_penalty": 100.0},
    ]
    params = [SamplingParams(seed=1, max_tokens=20, logprobs=2, **kind) for kind in kinds]
    async with open_hashed(DRAFTING) as engine:
        done = await asyncio.gather(*(engine.generate(prompt_of(9), p) for p in params))
    for completion, asked in zip(done, params, strict=True):
        exact(completion, prompt_of(9), asked, DRAFTING)
        json.dumps(msgspec.to_builtins(completion.logprobs), allow_nan=False)
    assert all(set(completion.token_ids) == {9} for completion in done[:8])


@pytest.mark.parametrize("kind", ["model", "processed"])
async def test_d3_logprobs_of_either_distribution_with_drafts(kind: Any) -> None:
    async with open_hashed(DRAFTING) as engine:
        for seed in range(4):
            params = SamplingParams(
                seed=seed, temperature=0.7, top_p=0.9, frequency_penalty=0.5, logprobs=4, logprobs_of=kind,
                max_tokens=40, ignore_eos=True,
            )  # fmt: skip
            completion = await engine.generate(prompt_of(10, seed), params)
            truth = solo(DRAFTING, as_request(prompt_of(10, seed), params, DRAFTING))
            entries = completion.logprobs or ()
            assert [entry.token_id for entry in entries] == list(truth.tokens)
            assert [entry.logprob for entry in entries] == pytest.approx(truth.logprobs, abs=1e-5)
            assert completion.usage.accepted_tokens > 0
