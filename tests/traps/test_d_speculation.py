"""Traps D, as far as they concern the engine around a model: tokens drafted, accepted, reported."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from stepahead import Completion, Engine, SamplingParams
from stepahead.devices.clock import run_virtual
from stepahead.engine.model.hashed import HashedModel
from stepahead.engine.model.hashed.solo import solo
from stepahead.engine.model.runner import SamplePlan, StepPlan
from tests.actors.hashed_engine import DRAFTING, as_request, exact, open_hashed, prompt_of

from .saturating import Pace, PacedRunner, tell


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


PAY_BY_ROW = HashedModel(draft_tokens=4, draft_accuracy=0.5, vocab_size=32)
"""Half of the drafts are right, on a device that pays for every row: a trap once many sequences run."""


@pytest.mark.parametrize(("sequences", "tokens"), [(1, 120), (8, 300), (48, 120)])
def test_d6_speculation_is_never_slower_than_none(sequences: int, tokens: int) -> None:
    """Long enough that the last sequences, which drafts let end one by one, do not decide."""
    off = tell(PAY_BY_ROW, Pace(), sequences, tokens, draft_tokens=0)
    everything = tell(PAY_BY_ROW, Pace(), sequences, tokens, verify="all")
    adaptive = tell(PAY_BY_ROW, Pace(), sequences, tokens, verify="adaptive")
    assert adaptive.texts == everything.texts == off.texts
    assert adaptive.rate > 0.97 * max(off.rate, everything.rate)
    drafts_each = adaptive.stats.verified / adaptive.stats.decode_steps
    if sequences == 48:
        assert everything.rate < 0.7 * off.rate, "the trap is open"
        assert drafts_each < 1
        assert adaptive.stats.steps_without_drafts > 0
    if sequences == 1:
        assert adaptive.rate > 1.1 * off.rate
    saved = adaptive.stats.seconds_saved_measured
    assert saved == pytest.approx((adaptive.rate / off.rate - 1) * adaptive.seconds, abs=0.05 * off.seconds)


def test_d6_drafts_come_back_when_the_crowd_has_gone() -> None:
    """Sequences end one after the other; the last ones are alone and draft again."""
    tokens = [20] * 47 + [400]

    async def run(engine: Engine) -> list[Completion]:
        return await asyncio.gather(
            *(
                engine.generate(
                    prompt_of(4, seed, PAY_BY_ROW),
                    SamplingParams(temperature=0, max_tokens=count, ignore_eos=True),
                )
                for seed, count in enumerate(tokens)
            )
        )

    told = tell(PAY_BY_ROW, Pace(), 48, 0, run=run, verify="adaptive")
    last = told.completions[-1].usage
    assert last.drafted_tokens > 2 * (last.decode_steps - 60), "alone, it verifies most of its drafts"
    assert told.stats.steps_without_drafts > 5


class _Permuted(PacedRunner):
    """Reports, and deals by, confidences whose later places were exchanged among sequences."""

    def _sample(self, plan: SamplePlan) -> None:
        super()._sample(plan)
        confidences = self._slots.confidences
        confidences[:, 1:] = confidences[:, :0:-1]
        result = self._results[plan.step]
        if result.confidences is not None:
            made = confidences[self._layouts[plan.step].slots]
            self._results[plan.step] = msgspec.structs.replace(result, confidences=made)

    def launch_forward(self, plan: StepPlan) -> None:
        self._layouts = {**getattr(self, "_layouts", {}), plan.step: plan.layout}
        super().launch_forward(plan)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_d7_later_confidences_change_timing_only(temperature: float) -> None:
    """Also: adaptive, all, fixed and forced budgets say the same."""
    params = SamplingParams(temperature=temperature, seed=3, max_tokens=60, ignore_eos=True)
    model = HashedModel(draft_tokens=4, draft_accuracy=0.6, vocab_size=32)
    pace = Pace(row=0.4e-3)
    plain = tell(model, pace, 6, 60, sampling=params, draft_tokens=0)
    told = {
        "adaptive": tell(model, pace, 6, 60, sampling=params),
        "permuted": tell(model, pace, 6, 60, _Permuted, sampling=params),
        "all": tell(model, pace, 6, 60, sampling=params, verify="all"),
        **{f"{n} drafts": tell(model, pace, 6, 60, sampling=params, verify=n) for n in range(1, 5)},
        "at most 2": tell(model, pace, 6, 60, sampling=params, draft_tokens=2),
    }
    assert all(one.texts == plain.texts for one in told.values())
    verified = {name: one.stats.verified_by_position for name, one in told.items()}
    assert verified["adaptive"] != verified["permuted"]
    assert len({one.seconds for one in told.values()}) >= 5
    assert told["2 drafts"].stats.verified_by_position[2:] == ()
