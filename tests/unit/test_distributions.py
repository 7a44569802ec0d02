"""Draws of the device follow the distribution a request asks for: chi-square over 200,000 of them."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from stepahead.engine.config import RequestLimits
from stepahead.engine.model.hashed.choosing import RowParams, log_softmax, processed
from stepahead.engine.model.hashed.edits import edits_of_request
from stepahead.engine.model.runner import NO_TOKEN, RunnerShape
from stepahead.engine.model.v41.processing import DrawRows, Processor
from stepahead.engine.model.v41.sampling_slots import SamplingSlots
from stepahead.engine.sampling.edits import edit_rows
from stepahead.engine.sampling.table import SamplingTable
from stepahead.engine.types import Occupant, ResolvedParams, SamplingParams
from stepahead.engine.validation import validate

from .hashed_driver import request

DRAWS = 200_000
VOCAB = 8
PROMPT = [0, 3, 3, 5]
LEAST_P = 0.01

CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "temperature 0.5": {"temperature": 0.5},
    "temperature 1.7": {"temperature": 1.7},
    "top-p": {"top_p": 0.8, "temperature": 0.9},
    "top-k": {"top_k": 3},
    "min-p": {"min_p": 0.25, "temperature": 1.3},
    "all filters": {"top_k": 6, "top_p": 0.9, "min_p": 0.05, "temperature": 1.4},
    "penalties": {"presence_penalty": 0.8, "frequency_penalty": -0.3, "repetition_penalty": 1.5},
    "bias and bans": {"logit_bias": {1: 1.5, 2: -1.0}, "banned_token_ids": (4,)},
    "allowed": {"allowed_token_ids": (1, 2, 6), "temperature": 0.7},
    "everything": {
        "temperature": 1.2, "top_p": 0.95, "min_p": 0.01, "repetition_penalty": 1.2, "frequency_penalty": 0.5,
        "logit_bias": {7: 0.7}, "banned_token_ids": (4,), "bad_words": ((3, 6),),
    },
}  # fmt: skip


def p_value(counts: np.ndarray, expected: np.ndarray, *, totals: int = 1) -> float:
    """Of the chi-square statistic, by Wilson and Hilferty's cube root; impossible cells must be empty.

    `totals`: how many sums of cells were given, and so are no surprise.
    """
    possible = expected > 0
    assert not counts[~possible].any(), "drew what has no probability"
    freedom = int(possible.sum()) - totals
    statistic = float((((counts - expected) ** 2)[possible] / expected[possible]).sum())
    spread = 2 / (9 * freedom)
    normal = ((statistic / freedom) ** (1 / 3) - (1 - spread)) / math.sqrt(spread)
    return 0.5 * math.erfc(normal / math.sqrt(2))


class Toy:
    """One request in slot 1, its device tables, and its distribution by the definition."""

    def __init__(self, **fields: Any) -> None:
        limits = RequestLimits(
            vocab_size=VOCAB, context=DRAWS, block_tokens=4, usable_blocks=DRAWS, lookahead=4,
            eos_token_ids=(1,), max_logprobs=5, max_stop_ids=4,
        )  # fmt: skip
        shape = RunnerShape(
            sequence_slots=1, snapshot_slots=0, blocks=2, table_columns=1, max_rows=1, max_positions=64,
            draft_tokens=1, max_stop_ids=4, max_logprobs=5,
        )  # fmt: skip
        asked = SamplingParams(seed=11, **fields)
        self.params: ResolvedParams = validate(np.array(PROMPT, dtype=np.int32), asked, limits)
        made = msgspec.structs.replace(request(1, PROMPT), params=self.params)
        occupants = [Occupant(slot=1, request=made, output=0)]
        tables = SamplingSlots(shape, VOCAB, torch.device("cpu"))
        tables.update(SamplingTable(shape).occupy(occupants), edit_rows(occupants))
        self._processor = Processor(tables)

    def draw(self, logits: np.ndarray, positions: np.ndarray, ahead: np.ndarray | None = None) -> np.ndarray:
        """Tokens at output `positions`, each behind its token `ahead`."""
        count = positions.size
        assumed = np.full(count, NO_TOKEN) if ahead is None else ahead
        rows = DrawRows(
            numbers=torch.zeros(count, dtype=torch.int64),
            slots=torch.ones(count, dtype=torch.int64),
            output=torch.from_numpy(positions),
            ahead=torch.from_numpy(assumed.astype(np.int64)).unsqueeze(1),
            host_slots=np.ones(count, dtype=np.int32),
        )
        return self._processor.draw(torch.from_numpy(logits[None]), rows).tokens.numpy()

    def probabilities(self, logits: np.ndarray, ahead: list[int]) -> np.ndarray:
        p, edits = self.params, None
        if p.edits is not None:
            edits = edits_of_request(p.edits, PROMPT).assuming(ahead)
        row = RowParams(
            temperature=np.array([p.temperature], dtype=np.float32),
            top_k=np.array([p.top_k]),
            top_p=np.array([p.top_p]),
            min_p=np.array([p.min_p]),
            seed=np.array([p.seed], dtype=np.uint64),
            choice=np.array([0]),
            min_output=np.array([0]),
            end_ids=np.array([[NO_TOKEN]]),
            edits=(edits,),
        )
        left = processed(logits[None], row, np.array([0], dtype=np.int32))
        return np.exp(log_softmax(left)[0].astype(np.float64))


def some_logits(seed: int) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(VOCAB) * 1.2).astype(np.float32)


@pytest.mark.parametrize("name", CASES)
def test_draws_follow_the_processed_distribution(name: str) -> None:
    toy, logits = Toy(**CASES[name]), some_logits(5)
    counts = np.bincount(toy.draw(logits, np.arange(DRAWS)), minlength=VOCAB)
    assert p_value(counts, DRAWS * toy.probabilities(logits, [])) > LEAST_P


@pytest.mark.parametrize("name", ["plain", "temperature 1.7", "top-p", "penalties", "everything"])
@pytest.mark.parametrize("quality", [0.1, 1.5])
def test_d4_pairs_emitted_by_speculation_follow_the_target(name: str, quality: float) -> None:
    """A draft from another model, verified in one window; behind a rejected one the next step draws again."""
    toy, first, second = Toy(**CASES[name]), some_logits(5), some_logits(6)
    positions = 2 * np.arange(DRAWS)
    drafts = toy.draw(first + quality * some_logits(7), positions)
    tokens = toy.draw(first, positions)
    within = toy.draw(second, positions + 1, drafts)
    after = toy.draw(second, positions + 1, tokens)
    accepted = drafts == tokens
    following = np.where(accepted, within, after)
    counts = np.bincount(tokens * VOCAB + following, minlength=VOCAB**2)
    expected = np.concatenate(
        [p * toy.probabilities(second, [t]) for t, p in enumerate(toy.probabilities(first, []))]
    )
    assert p_value(counts, DRAWS * expected) > LEAST_P
    assert np.array_equal(within[accepted], after[accepted])
    target, guess = toy.probabilities(first, []), toy.probabilities(first + quality * some_logits(7), [])
    overlap = np.minimum(target, guess).sum()
    assert accepted.mean() > overlap / (2 - overlap) - 0.01, "coupled draws agree less than they must"


def test_the_test_sees_a_slight_bias() -> None:
    toy, logits = Toy(), some_logits(5)
    counts = np.bincount(toy.draw(logits, np.arange(DRAWS)), minlength=VOCAB)
    slightly = toy.probabilities(logits + np.float32(0.02) * np.arange(VOCAB, dtype=np.float32), [])
    assert p_value(counts, DRAWS * slightly) < 1e-6
