"""The oracle reproduces the publisher's own numbers, so that everything else may be compared with the oracle.

Vectors stored as float32 are compared at float32 resolution, the others at 1e-9.
"""

from __future__ import annotations

import numpy as np
import pytest

from .golden import Golden

EXACT = 1e-9
STORED_FLOAT32 = 2e-6  # half a unit in the last place at the largest stored magnitude, about 16


def assert_close(actual: object, expected: np.ndarray, tolerance: float) -> None:
    array = np.asarray(actual, dtype=np.float64)
    assert array.shape == expected.shape
    assert np.max(np.abs(array - expected)) < tolerance


@pytest.mark.parametrize("length", [1, 2, 3, 17, 64])
def test_logits_of_every_prefix(golden: Golden, length: int) -> None:
    trace = golden.oracle.forward(golden.tokens[:length])
    assert_close(trace.logits, golden.vectors["logits"][:length], EXACT)


def test_logits_of_the_whole_prompt(golden: Golden) -> None:
    assert_close(golden.trace.logits, golden.vectors["logits"], EXACT)


def test_residual_streams_and_carried_mixes(golden: Golden) -> None:
    probes = golden.vectors["probe_positions"]
    for layer in range(golden.config.num_hidden_layers):
        streams = np.array(golden.trace.streams[layer])[probes]
        assert_close(streams, golden.vectors["streams"][layer], STORED_FLOAT32)
        assert_close(golden.trace.carried_pre[layer], golden.vectors["carried_pre"][layer], STORED_FLOAT32)


def test_attention_mixes(golden: Golden) -> None:
    probes = golden.vectors["probe_positions"]
    for layer in range(golden.config.num_hidden_layers):
        mixes = golden.trace.attention_mixes[layer]
        assert_close([m.pre for m in mixes], golden.vectors["mhc_attn_pre"][layer], STORED_FLOAT32)
        assert_close([m.post for m in mixes], golden.vectors["mhc_attn_post"][layer], STORED_FLOAT32)
        combs = [mixes[p].comb for p in probes]
        assert_close(combs, golden.vectors["mhc_attn_comb"][layer], STORED_FLOAT32)


def test_experts_and_their_weights(golden: Golden) -> None:
    for layer in range(golden.config.num_hidden_layers):
        routing = golden.trace.routing[layer]
        assert [r.experts for r in routing] == golden.vectors["gate_experts"][layer].tolist()
        assert_close([r.weights for r in routing], golden.vectors["gate_weights"][layer], STORED_FLOAT32)


@pytest.mark.parametrize("layer", [2, 4, 5, 7])
def test_selected_entries(golden: Golden, layer: int) -> None:
    stored = golden.vectors[f"topk_layer{layer}"]
    assert golden.trace.topk[layer] == [[int(j) for j in row if j >= 0] for row in stored]


def test_candidate_blocks(golden: Golden) -> None:
    stored = golden.vectors["candidate_blocks"]
    assert golden.trace.candidates == [np.flatnonzero(row).tolist() for row in stored]


def test_engram_rows(golden: Golden) -> None:
    for index, layer in enumerate(golden.config.engram_layer_ids):
        assert golden.trace.engram_rows[layer] == golden.vectors["engram_hash_ids"][:, index].tolist()


def test_draft_features(golden: Golden) -> None:
    hidden = [golden.trace.main_hidden[p] for p in golden.vectors["probe_positions"]]
    assert_close(hidden, golden.vectors["main_hidden"], STORED_FLOAT32)


def test_draft_rounds(golden: Golden) -> None:
    assert [d.tokens for d in golden.drafts] == golden.vectors["draft_tokens"].tolist()
    confidences = [d.confidences for d in golden.drafts]
    assert_close(confidences, golden.vectors["draft_confidence_raw"], STORED_FLOAT32)
    logits = [golden.drafts[row].logits for row in golden.vectors["draft_logits_rows"]]
    assert_close(logits, golden.vectors["draft_logits"], STORED_FLOAT32)


def test_golden_tokens_of_draft_rounds_are_greedy(golden: Golden) -> None:
    for position, token in golden.draft_rounds:
        assert int(np.argmax(golden.trace.logits[position])) == token


def test_image_span(golden: Golden) -> None:
    assert_close(golden.image_trace.logits, golden.vectors["image_logits"], EXACT)
    for index, layer in enumerate(golden.config.engram_layer_ids):
        stored = golden.vectors["image_engram_hash_ids"][:, index]
        assert golden.image_trace.engram_rows[layer] == stored.tolist()
