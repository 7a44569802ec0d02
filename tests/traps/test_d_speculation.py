"""Traps D, as far as they concern the engine around a model: tokens drafted, accepted, reported."""

from __future__ import annotations

import asyncio

import pytest

from stepahead import SamplingParams
from stepahead.devices.clock import run_virtual
from stepahead.engine.model.hashed import HashedModel
from stepahead.engine.model.hashed.solo import solo
from tests.actors.hashed_engine import DRAFTING, as_request, exact, open_hashed, prompt_of


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("accuracy", [0.0, 0.7, 1.0])
async def test_d3_one_logprob_per_token_of_the_target_model(temperature: float, accuracy: float) -> None:
    """Whether a token was drafted, corrected or a bonus; cut by the end of text; with alternatives."""
    model = HashedModel(draft_tokens=3, draft_accuracy=accuracy, eos_token_ids=(1, 5, 9))
    async with open_hashed(model) as engine:
        for seed in range(6):
            params = SamplingParams(temperature=temperature, seed=seed, max_tokens=60, logprobs=5)
            prompt = prompt_of(10, seed)
            completion = await engine.generate(prompt, params)
            exact(completion, prompt, params, model)
            entries = completion.logprobs or ()
            assert [entry.token_id for entry in entries] == list(completion.token_ids)
            truth = solo(model, as_request(prompt, params, model))
            shown = len(entries)
            assert [entry.logprob for entry in entries] == pytest.approx(truth.logprobs[:shown], abs=1e-5)
            tops = [[token for token, _ in entry.top] for entry in entries]
            assert tops == [[token for token, _ in top] for top in truth.top[:shown]]


def test_d5_overlap_does_not_change_what_is_accepted() -> None:
    async def main(overlap: bool) -> tuple[int, int]:
        async with open_hashed(DRAFTING, overlap=overlap, latency=lambda label: 0.001) as engine:
            params = SamplingParams(temperature=0, max_tokens=100, ignore_eos=True)
            prompts = [prompt_of(20, seed) for seed in range(8)]
            done = await asyncio.gather(*(engine.generate(prompt, params) for prompt in prompts))
            for completion, prompt in zip(done, prompts, strict=True):
                exact(completion, prompt, params, DRAFTING)
            usages = [completion.usage for completion in done]
            drafted, accepted = (
                sum(u.drafted_tokens for u in usages),
                sum(u.accepted_tokens for u in usages),
            )
            stats = engine.stats()
            assert (stats.drafted_tokens, stats.accepted_tokens) == (drafted, accepted)
            return drafted, accepted

    overlapped, serial = run_virtual(main(True)), run_virtual(main(False))
    assert overlapped == serial
    assert 0.3 < overlapped[1] / overlapped[0] < 1.0
