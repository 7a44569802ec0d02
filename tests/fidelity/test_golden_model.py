"""The fast path reproduces the publisher's own numbers, however the prompt is cut into steps.

Level N0 of data/micro/README.md: logits within 1e-9 in float64 and 1e-3 in float32, everything discrete
equal. Vectors that are stored as float32 are compared at float32 resolution.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from stepahead.engine.model.checkpoint.reader import CheckpointReader
from stepahead.engine.model.v41.config import load_config
from stepahead.engine.model.v41.numerics import exact

from .configurations import MICRO
from .fast_path import FastModel, Fed, Recorder
from .golden import Golden
from .oracle import Draft

EXACT = 1e-9
SINGLE = 1e-3
STORED_FLOAT32 = 2e-6


@dataclass(frozen=True)
class Decoded:
    """The whole prompt fed token by token, with a draft after every position that has one recorded."""

    logits: np.ndarray
    drafts: list[Draft]


def _decode(golden: Golden, model: FastModel) -> Decoded:
    rounds = dict(golden.draft_rounds)
    session, logits, drafts = model.fresh_session(), [], []
    for position, token in enumerate(golden.tokens):
        logits.append(session.feed([token]).logits)
        if position in rounds:
            drafts.append(session.draft(rounds[position]))
    return Decoded(np.concatenate(logits), drafts)


@pytest.fixture(scope="module")
def model(golden: Golden) -> FastModel:
    return FastModel(golden.config, golden.tensors)


@pytest.fixture(scope="module")
def single_model(golden: Golden) -> FastModel:
    return FastModel(golden.config, golden.tensors, exact(torch.float32))


@pytest.fixture(scope="module")
def decoded(golden: Golden, model: FastModel) -> Decoded:
    return _decode(golden, model)


@pytest.fixture(scope="module")
def single_decoded(golden: Golden, single_model: FastModel) -> Decoded:
    return _decode(golden, single_model)


@pytest.fixture(scope="module")
def one_shot(golden: Golden, model: FastModel) -> tuple[Fed, Recorder]:
    recorder = Recorder()
    return model.fresh_session().feed(golden.tokens, recorder), recorder


def assert_close(actual: object, expected: np.ndarray, tolerance: float) -> None:
    array = np.asarray(actual, dtype=np.float64)
    assert array.shape == expected.shape
    assert np.max(np.abs(array - expected)) < tolerance


def test_from_the_checkpoint_on_disk(golden: Golden) -> None:
    """The other tests take weights from the oracle's reader; the project's own gives the same model."""
    directory = MICRO / "checkpoint"
    model = FastModel(load_config(directory), CheckpointReader(directory))
    fed = model.fresh_session().feed(golden.tokens)
    assert_close(fed.logits, golden.vectors["logits"], EXACT)


@pytest.mark.parametrize("length", [1, 2, 3, 17, 64, 160])
def test_one_shot_prefixes(golden: Golden, model: FastModel, length: int) -> None:
    fed = model.fresh_session().feed(golden.tokens[:length])
    assert_close(fed.logits, golden.vectors["logits"][:length], EXACT)


CHUNKS = [[64], [1, 2, 3, 7, 50, 33], [127, 1], [129], [31] * 5]


@pytest.mark.parametrize("lengths", CHUNKS, ids=str)
def test_chunks(golden: Golden, model: FastModel, lengths: list[int]) -> None:
    fed = model.fresh_session().feed_in_chunks(golden.tokens, lengths)
    assert_close(fed.logits, golden.vectors["logits"], EXACT)


def test_token_by_token(golden: Golden, decoded: Decoded) -> None:
    assert_close(decoded.logits, golden.vectors["logits"], EXACT)


@pytest.mark.parametrize("lengths", [[], *CHUNKS], ids=str)
def test_chunks_in_float32(golden: Golden, single_model: FastModel, lengths: list[int]) -> None:
    fed = single_model.fresh_session().feed_in_chunks(golden.tokens, lengths)
    assert_close(fed.logits, golden.vectors["logits"], SINGLE)


def test_token_by_token_in_float32(golden: Golden, single_decoded: Decoded) -> None:
    assert_close(single_decoded.logits, golden.vectors["logits"], SINGLE)


def test_residual_streams_and_mixes(golden: Golden, one_shot: tuple[Fed, Recorder]) -> None:
    recorder, vectors = one_shot[1], golden.vectors
    probes = vectors["probe_positions"]
    for layer in range(golden.config.num_hidden_layers):
        assert_close(recorder["streams", layer][probes], vectors["streams"][layer], STORED_FLOAT32)
        assert_close(recorder["carried_pre", layer], vectors["carried_pre"][layer], STORED_FLOAT32)
        assert_close(recorder["attention_pre", layer], vectors["mhc_attn_pre"][layer], STORED_FLOAT32)
        assert_close(recorder["attention_post", layer], vectors["mhc_attn_post"][layer], STORED_FLOAT32)
        combs = recorder["attention_comb", layer][probes]
        assert_close(combs, vectors["mhc_attn_comb"][layer], STORED_FLOAT32)


def test_experts_and_their_weights(golden: Golden, one_shot: tuple[Fed, Recorder]) -> None:
    recorder, vectors = one_shot[1], golden.vectors
    for layer in range(golden.config.num_hidden_layers):
        chosen, weights = recorder["experts", layer], recorder["expert_weights", layer]
        order = np.argsort(chosen, axis=1)
        assert np.array_equal(np.take_along_axis(chosen, order, 1), vectors["gate_experts"][layer])
        by_id = np.take_along_axis(weights, order, 1)
        assert_close(by_id, vectors["gate_weights"][layer], STORED_FLOAT32)


@pytest.mark.parametrize("layer", [2, 4, 5, 7])
def test_selected_entries(golden: Golden, one_shot: tuple[Fed, Recorder], layer: int) -> None:
    stored = golden.vectors[f"topk_layer{layer}"]
    assert one_shot[1].lists("topk", layer) == [[int(j) for j in row if j >= 0] for row in stored]


def test_candidate_blocks(golden: Golden, one_shot: tuple[Fed, Recorder]) -> None:
    stored = golden.vectors["candidate_blocks"]
    assert one_shot[1].lists("candidate_blocks", 5) == [np.flatnonzero(row).tolist() for row in stored]


def test_engram_rows(golden: Golden, one_shot: tuple[Fed, Recorder]) -> None:
    for index, layer in enumerate(golden.config.engram_layer_ids):
        stored = golden.vectors["engram_hash_ids"][:, index]
        assert np.array_equal(one_shot[1]["engram_rows", layer], stored)


def test_draft_features(golden: Golden, one_shot: tuple[Fed, Recorder]) -> None:
    hidden = one_shot[1]["main_hidden", -1][golden.vectors["probe_positions"]]
    assert_close(hidden, golden.vectors["main_hidden"], STORED_FLOAT32)


def test_draft_rounds(golden: Golden, decoded: Decoded) -> None:
    vectors = golden.vectors
    assert [d.tokens for d in decoded.drafts] == vectors["draft_tokens"].tolist()
    assert_close([d.confidences for d in decoded.drafts], vectors["draft_confidence_raw"], STORED_FLOAT32)
    logits = [decoded.drafts[row].logits for row in vectors["draft_logits_rows"]]
    assert_close(logits, vectors["draft_logits"], STORED_FLOAT32)


def test_draft_rounds_in_float32(golden: Golden, single_decoded: Decoded) -> None:
    vectors = golden.vectors
    assert [d.tokens for d in single_decoded.drafts] == vectors["draft_tokens"].tolist()
    confidences = [d.confidences for d in single_decoded.drafts]
    assert_close(confidences, vectors["draft_confidence_raw"], SINGLE)


def test_draft_rounds_after_a_prefill_in_one_step(golden: Golden, model: FastModel) -> None:
    """The draft block's keys about the past come from a prefill as well as from decode rows."""
    for row, (position, token) in list(enumerate(golden.draft_rounds))[::8]:
        session = model.fresh_session()
        session.feed(golden.tokens[: position + 1])
        assert session.draft(token).tokens == golden.vectors["draft_tokens"][row].tolist()


@pytest.mark.parametrize("lengths", [[], [20, 8], [10, 25]], ids=str)
def test_image_span(golden: Golden, model: FastModel, lengths: list[int]) -> None:
    """START, IMAGE, NEWLINE and END rows, also when the step boundary lies beside or inside the span."""
    recorder = Recorder()
    session = model.fresh_session(image=golden.image)
    fed = session.feed_in_chunks(golden.image_tokens, lengths, recorder)
    assert_close(fed.logits, golden.vectors["image_logits"], EXACT)
    for index, layer in enumerate(golden.config.engram_layer_ids):
        stored = golden.vectors["image_engram_hash_ids"][:, index]
        assert np.array_equal(recorder["engram_rows", layer], stored)
