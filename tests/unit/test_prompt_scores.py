"""A prompt's logprobs by the model: equal to one forward of the whole prompt, in bounded memory."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from stepahead import Engine, EngineConfig, SamplingParams
from stepahead.engine.model.opening import open_model
from stepahead.engine.model.runner import ScoredRows, StepPlan
from stepahead.engine.model.v41 import prompt_scores
from stepahead.engine.model.v41.batch import SequenceChunk, build_batch
from stepahead.engine.model.v41.caches import CacheShape
from stepahead.engine.model.v41.model import Model

from .test_v41_runner import CPU, PROMPTS, SLOTS, Driver, int32, model

ALTERNATIVES = 3


def one_shot(own: Model, prompt: list[int]) -> Tensor:
    """Log-probabilities of every row `[tokens, vocab]` by a single forward."""
    caches = own.new_caches(CacheShape(9, 2, len(prompt)))
    batch = build_batch([SequenceChunk(prompt, 0, 1, list(range(1, 9)))], CPU, ngram=4)
    return own.forward(batch, caches).logits.log_softmax(-1)


class Scoring(Driver):
    """Asks for every prompt's logprobs."""

    def _launch(self, plan: StepPlan) -> None:
        layout = plan.layout
        ends = {slot: len(PROMPTS[slot]) for slot in SLOTS}
        slots, starts = layout.slots.tolist(), layout.row_starts.tolist()
        rows, tokens, first, counts, sequences = [], [], [], [], []
        for index, slot in enumerate(slots[layout.decode_count :]):
            start = int(plan.first_positions[index])
            count = min(start + int(layout.query_lengths[index]), ends[slot] - 1) - start
            if count > 0:
                rows += range(starts[index], starts[index] + count)
                tokens += PROMPTS[slot][start + 1 : start + count + 1]
                first.append(start)
                counts.append(count)
                sequences.append(index)
        scored = ScoredRows(
            sequences=int32(sequences), first=int32(first), counts=int32(counts), rows=int32(rows),
            tokens=int32(tokens), alternatives=ALTERNATIVES,
        )  # fmt: skip
        if rows:
            plan = StepPlan(**{n: getattr(plan, n) for n in plan.__struct_fields__} | {"scored": scored})
        self.scored = [*getattr(self, "scored", []), (plan, scored if rows else None)]
        super()._launch(plan)


@pytest.mark.parametrize("chunk", [7, 10, 16, 64])
def test_chunks_report_what_one_forward_reports(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_scores, "_LOGITS_AT_ONCE_ON_CPU", 7 * model().config.vocab_size)
    driver = Scoring(2, chunk=chunk)
    asyncio.run(driver.run(3))
    found = {slot: np.full((len(PROMPTS[slot]) - 1, 1 + 2 * ALTERNATIVES), np.nan) for slot in SLOTS}
    for result, (plan, scored) in zip(driver.results, driver.scored, strict=True):
        assert (result.prompt_scores is None) == (scored is None)
        if scored is None or result.prompt_scores is None:
            continue
        made, row = result.prompt_scores, 0
        for sequence, first, count in zip(scored.sequences, scored.first, scored.counts, strict=True):
            part, own = slice(row, row + count), found[int(plan.layout.slots[sequence])]
            columns = (made.logprobs[part, None], made.top_logprobs[part], made.top_tokens[part])
            own[first : first + count] = np.concatenate(columns, axis=1)
            row += int(count)
    for slot, own in found.items():
        truth = one_shot(model(), PROMPTS[slot])[:-1]
        chosen = truth.gather(1, torch.tensor(PROMPTS[slot][1:]).unsqueeze(1))
        best = truth.topk(ALTERNATIVES)
        np.testing.assert_allclose(own[:, :1], chosen, atol=1e-5)
        np.testing.assert_allclose(own[:, 1 : 1 + ALTERNATIVES], best.values, atol=1e-5)
        assert (own[:, 1 + ALTERNATIVES :] == best.indices.numpy()).all()


def test_logits_of_a_long_chunk_never_exist_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    own, pieces = model(), []
    vocab = own.config.vocab_size
    monkeypatch.setattr(prompt_scores, "_LOGITS_AT_ONCE_ON_CPU", 10 * vocab + 3)
    logits: Callable[[Model, Tensor], Tensor] = Model.logits

    def watched(self: Model, hidden: Tensor) -> Tensor:
        pieces.append(hidden.shape[0])
        return logits(self, hidden)

    monkeypatch.setattr(Model, "logits", watched)
    hidden = torch.randn(57, own.config.hidden_size, dtype=torch.float64)
    tokens = int32(range(57))
    scored = ScoredRows(
        sequences=int32([0]), first=int32([0]), counts=int32([57]), rows=tokens, tokens=tokens, alternatives=2
    )
    made = prompt_scores.score_rows(own, hidden, scored).to_host()
    assert pieces == [10, 10, 10, 10, 10, 7]
    truth = logits(own, hidden).log_softmax(-1)
    np.testing.assert_allclose(made.logprobs, truth[torch.arange(57), torch.arange(57)], atol=1e-5)
    assert made.top_logprobs.shape == made.top_tokens.shape == (57, 2)


@pytest.mark.slow
def test_the_built_in_model_in_random_chunks() -> None:
    opened = open_model()
    prompt = opened.tokenizer.encode(
        "In a village by the sea there lived an old woman. Every morning she " * 9
    )
    truth = one_shot(opened.model, prompt)[:-1].numpy()
    chance = random.Random(1)

    async def main(chunk: int, rows: int) -> None:
        config = EngineConfig(
            max_sequences=4, max_step_rows=rows, prefill_chunk=chunk, max_context=1024, kv_blocks=33
        )
        async with Engine.open(config=config) as engine:
            params = SamplingParams(prompt_logprobs=4, max_tokens=2, temperature=0)
            others = [engine.generate(prompt[seed : seed + 60]) for seed in range(3)]
            done, *_ = await asyncio.gather(engine.generate(prompt, params), *others)
            scores = done.prompt_logprobs
            assert scores is not None
            assert scores.token_ids.tolist() == prompt[1:]
            np.testing.assert_allclose(scores.logprobs, truth[np.arange(len(truth)), prompt[1:]], atol=2e-3)
            best = np.sort(truth, axis=-1)[:, ::-1][:, :4]
            np.testing.assert_allclose(scores.top_logprobs, best, atol=2e-3)

    for _ in range(3):
        asyncio.run(main(chance.randint(3, 90), chance.randint(60, 200)))
