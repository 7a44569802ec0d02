"""Texts of a whole engine follow the model's distribution, however drafts are verified: chi-square.

    pytest tests/actors/test_engine_distribution.py -s      prints every p-value

Triples of tokens behind one prompt, 16,000 choices with noise of their own: mostly inside one window of three
drafts, whose distribution is often not the target's. Draws by the hundred thousand are in
`tests/unit/test_rejection_sampling.py`.
"""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import numpy as np
import pytest

from stepahead import SamplingParams
from stepahead.engine.model.hashed import HashedModel
from stepahead.engine.model.hashed.choosing import log_softmax, processed
from stepahead.engine.model.hashed.edits import edits_of_request
from stepahead.engine.model.hashed.solo import _History, _row_params
from tests.actors.hashed_engine import as_request, open_hashed
from tests.checker.budgets import force_budgets
from tests.unit.test_distributions import LEAST_P, p_value

MODEL = HashedModel(vocab_size=6, draft_tokens=3, draft_accuracy=0.5)
PROMPT = [2, 5, 3, 3, 4]
LENGTH, CHOICES, REQUESTS = 3, 1000, 16

OPTIONS: dict[str, dict[str, Any]] = {
    "temperature 2": {"temperature": 2.0},
    "filters": {"temperature": 4.0, "top_p": 0.9, "top_k": 5, "min_p": 0.05},
    "edits": {
        "temperature": 3.0,
        "frequency_penalty": 1.5,
        "repetition_penalty": 1.3,
        "bad_words": ((2, 2),),
    },
}
MODES: dict[str, dict[str, Any]] = {
    "coupled": {"verify": "all"},
    "rejection": {"verify": "all", "acceptance": "rejection"},
    "rejection, adaptive": {"verify": "adaptive", "acceptance": "rejection"},
}


def expected(fields: dict[str, Any]) -> np.ndarray:
    """Probability of every triple, by the definition."""
    request = as_request(PROMPT, SamplingParams(seed=0, **fields), MODEL)
    edits = request.params.edits
    chances = np.ones((MODEL.vocab_size,) * LENGTH)
    for said in itertools.chain(
        *(itertools.product(range(MODEL.vocab_size), repeat=n) for n in range(LENGTH))
    ):
        history, digest = _History(MODEL), 0
        for token in (*PROMPT, *said):
            digest = history.append(token)
        own = None if edits is None else edits_of_request(edits, PROMPT).assuming(said)
        logits = MODEL.logits(np.array([digest], dtype=np.uint64))
        left = processed(logits, _row_params(request, own), np.array([len(said)], dtype=np.int32))
        row = np.exp(log_softmax(left)[0].astype(np.float64))
        chances[said] *= row.reshape(-1, *(1,) * (LENGTH - len(said) - 1))
    return chances.ravel()


CASES = [*(("rejection", name) for name in OPTIONS), ("coupled", "edits"), ("rejection, adaptive", "filters")]


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "name"), CASES)
def test_triples_follow_the_model(mode: str, name: str) -> None:
    asyncio.run(_check(mode, name))


async def _check(mode: str, name: str) -> None:
    fields = {**OPTIONS[name], "ignore_eos": True, "max_tokens": LENGTH, "n": CHOICES}
    counts = np.zeros((MODEL.vocab_size,) * LENGTH)
    knobs = {"max_sequences": 256, "max_step_rows": 2048, "max_context": 64, "kv_blocks": 4096, **MODES[mode]}
    async with open_hashed(MODEL, **knobs) as engine:
        if MODES[mode]["verify"] == "adaptive":
            force_budgets(engine, 7)  # any number of drafts in all, dealt by confidence
        params = [SamplingParams(seed=seed, **fields) for seed in range(REQUESTS)]
        async for done in engine.generate_many([PROMPT] * REQUESTS, params, concurrency=3):
            counts[done.token_ids] += 1
        stats = engine.stats()
    total = REQUESTS * CHOICES
    assert counts.sum() == total
    chances = total * expected(fields)
    assert not counts.ravel()[chances == 0].any(), "drew what has no probability"
    large = chances >= 8  # rare ones count together
    found = np.append(counts.ravel()[large], counts.ravel()[~large].sum())
    p = p_value(found, np.append(chances[large], chances[~large].sum()))
    print(f"{mode}, {name}: p = {p:.3f}; drafts accepted {stats.accepted_tokens / stats.drafted_tokens:.3f}")
    assert p > LEAST_P / len(CASES), "the least of as many"
