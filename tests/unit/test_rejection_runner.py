"""Rejection mode of the real runner, driven by hand-made plans: what it promises, on a model of float64."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import numpy as np
import pytest

from stepahead.engine.model.runner import RunnerShape, SamplingRows
from stepahead.engine.model.v41.rejection import RejectionChooser
from stepahead.engine.model.v41.runner import V41Runner, model_facts

from . import test_v41_runner
from .test_v41_runner import EDITS, PROMPTS, SLOTS, Driver, ImmediateDevice, Sampling, int32, model
from .test_v41_runner import generate as generate_coupled

RANDOM = (
    Sampling(0.8),
    Sampling(1.2, top_k=12, top_p=0.9),
    Sampling(0.9, min_p=0.01, edits=EDITS),
)


class Rejecting(Driver):
    """The same plans; the shape asks for rejection."""

    def __post_init__(self) -> None:
        shape = RunnerShape(
            sequence_slots=3, snapshot_slots=1, blocks=9, table_columns=4, max_rows=128, max_positions=512,
            draft_tokens=self.drafts, max_stop_ids=2, max_logprobs=3, rejection=True,
        )  # fmt: skip
        facts = model_facts(model().config, model().numerics)
        self.runner = V41Runner(model(), facts, shape, ImmediateDevice())  # type: ignore[arg-type]


def generate(drafts: int, sampling: Sampling, tokens: int = 12, chunk: int = 64) -> dict[int, list[int]]:
    return asyncio.run(Rejecting(drafts, sampling, chunk).run(tokens))


def test_greedy_text_and_text_without_drafts_are_the_coupled_modes() -> None:
    greedy = generate_coupled(0, Sampling(edits=EDITS), tokens=12)
    assert generate(2, Sampling(edits=EDITS)) == greedy
    assert generate(5, Sampling(edits=EDITS)) == greedy
    for sampling in RANDOM:
        assert generate(0, sampling) == generate_coupled(0, sampling, tokens=12)


@pytest.mark.parametrize("sampling", RANDOM, ids=["temperature", "filtered", "edited and filtered"])
def test_random_text_depends_on_drafts_and_not_on_chunks(sampling: Sampling) -> None:
    drafted = generate(5, sampling)
    assert drafted == generate(5, sampling, chunk=10)
    assert drafted != generate(0, sampling), "the mode is on"
    if sampling.edits is not None:
        assert all(token < 50 and token != 9 for tokens in drafted.values() for token in tokens)


@pytest.mark.parametrize("drafts", [0, 5])
def test_processed_logprobs_of_a_certain_token_are_zero(drafts: int) -> None:
    driver = Rejecting(drafts, Sampling(1.3, top_k=1, processed=True))
    asyncio.run(driver.run(8))
    for result in driver.results:
        assert result.logprobs is not None
        emitted = np.arange(drafts + 1) < result.emitted[:, None]
        assert (np.abs(result.logprobs[emitted]) < 1e-6).all()


@pytest.mark.parametrize("processed", [False, True])
def test_logprobs_cover_exactly_the_emitted_tokens(processed: bool) -> None:
    driver = Rejecting(5, Sampling(0.8, top_k=30, processed=processed))
    asyncio.run(driver.run(12))
    for result in driver.results:
        assert result.logprobs is not None
        assert result.top_logprobs is not None
        emitted = np.arange(6) < result.emitted[:, None]
        assert np.isfinite(result.logprobs[emitted]).all()
        assert (result.logprobs[~emitted] == 0).all()
        assert (result.top_logprobs[..., 0][emitted] >= result.logprobs[emitted]).all()


class Returning(Rejecting):
    """The second admission of sequences that had output: all of it but the last token is prompt."""

    said: dict[int, list[int]]
    origins: dict[int, int]

    def _launch(self, plan: Any) -> None:
        rows = self.sampling.rows()
        self.sampling.rows = lambda: msgspec.structs.replace(  # type: ignore[method-assign]
            rows,
            origin=int32([self.origins[slot] for slot in SLOTS]),
            forced=int32([self.said[slot][-1] for slot in SLOTS]),
        )
        super()._launch(plan)


@pytest.mark.parametrize("sampling", RANDOM[:2], ids=["temperature", "filtered"])
def test_who_returns_goes_on_as_if_never_gone(sampling: Sampling, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        stayed = Rejecting(5, sampling)
        await stayed.run(8)
        said = {slot: [*tokens] for slot, tokens in stayed.output.items()}
        for _ in range(5):
            stayed._decode()
        origins = {slot: len(prompt) for slot, prompt in PROMPTS.items()}
        longer = {slot: PROMPTS[slot] + said[slot][:-1] for slot in SLOTS}
        monkeypatch.setattr(test_v41_runner, "PROMPTS", longer)
        returned = Returning(5, Sampling(sampling.temperature, sampling.top_k, sampling.top_p))
        returned.said, returned.origins = said, origins
        returned._prefill()
        for _ in range(5):
            returned._decode()
        for slot in SLOTS:
            assert returned.output[slot][0] == said[slot][-1]
            assert said[slot][:-1] + returned.output[slot] == stayed.output[slot]

    asyncio.run(main())


def test_distributions_of_drafts_are_kept_in_that_mode_only() -> None:
    kept = Rejecting(5).runner._chooser
    assert isinstance(kept, RejectionChooser)
    assert tuple(kept._guessed.shape) == (4, 5, model().config.vocab_size)
    assert not hasattr(Driver(5).runner._chooser, "_guessed")
    assert isinstance(Sampling().rows(), SamplingRows)
