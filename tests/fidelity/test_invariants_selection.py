"""Invariants 25 to 28, 30, 31 of model_spec 7.3 that only a whole model shows: selection and variants."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from stepahead.engine.model.v41.rows import BLOCK_TOKENS

from .fast_path import FastModel, Recorder, Session
from .oracle import ImageSpan, Oracle
from .random_weights import random_weights
from .small import EXACT, Small, distance


def _recorded(small: Small) -> Recorder:
    recorder = Recorder()
    small.fast.fresh_session().feed(small.tokens, recorder)
    return recorder


@pytest.mark.parametrize("layer", [2, 4, 5, 7])
def test_invariant_25_index_sources_select_what_the_oracle_selects(small: Small, layer: int) -> None:
    assert _recorded(small).lists("topk", layer) == small.trace.topk[layer]


def test_invariant_25_reindexing_stays_within_the_candidates(small: Small) -> None:
    recorder, size = _recorded(small), small.config.candidate_block_size
    candidates = recorder.lists("candidate_blocks", 5)
    assert candidates == small.trace.candidates
    for reindexed, blocks in zip(recorder.lists("topk", 7), candidates, strict=True):
        assert {entry // size for entry in reindexed} <= set(blocks)


def test_invariant_25_the_newest_visible_block_is_always_a_candidate(small: Small) -> None:
    size = small.config.candidate_block_size
    for position, blocks in enumerate(_recorded(small).lists("candidate_blocks", 5)):
        assert position // size in blocks
        assert len(blocks) == min(small.config.candidate_topk_blocks, position // size + 1)


def _next_row_reads_only(small: Small, layer: int, sources: tuple[int, ...]) -> None:
    """Spoil every entry of a KV source that these index sources do not select for the next row."""
    position = len(small.tokens) - 1
    session = small.fast.fresh_session()
    session.feed(small.tokens[:-1])
    ratio = small.config.compress_ratios[layer]
    per_block = BLOCK_TOKENS // ratio
    wanted = {entry for source in sources for entry in small.trace.topk[source][position]}
    assert len(wanted) < position // ratio
    spoiled = [j for j in range(per_block) if j not in wanted]
    pool = small.fast.caches.entries[layer]
    pool[torch.tensor(spoiled) + session.table[0] * per_block] = torch.nan
    fed = session.feed(small.tokens[-1:])
    assert distance(fed.logits[0], small.trace.logits[position]) < EXACT


@pytest.mark.parametrize(("layer", "sources"), [(2, (2,)), (4, (4,)), (5, (5, 7))])
def test_invariant_25_reuse_layers_read_the_selection_of_their_source(
    small: Small, layer: int, sources: tuple[int, ...]
) -> None:
    """Layer 3 reuses layer 2's selection; 6 reuses 5's; 8 and 9 reuse 7's. Nothing else is ever read."""
    _next_row_reads_only(small, layer, sources)


def _logits(config_changes: dict[str, Any], small: Small) -> np.ndarray:
    """Logits of the small weights under a changed configuration, checked against the oracle."""
    changed = Small(Small.build(**config_changes).config, small.weights)
    fed = changed.fast.fresh_session().feed_in_chunks(small.tokens, [23])
    assert distance(fed.logits, changed.oracle.forward(small.tokens).logits) < EXACT
    return fed.logits


def test_invariant_26_enough_candidate_blocks_equal_no_candidate_stage(small: Small) -> None:
    blocks = len(small.tokens) // small.config.candidate_block_size
    disabled = _logits({"candidate_source_layer_id": None}, small)
    assert distance(_logits({"candidate_topk_blocks": blocks + 2}, small), disabled) < EXACT
    assert distance(small.trace.logits, disabled) > 1e-3


def test_invariant_26_one_candidate_block_changes_the_logits(small: Small) -> None:
    """Fewer entries than index_topk: the top-k of layer 7 is padded instead of filled from elsewhere."""
    restricted = _logits({"candidate_topk_blocks": 1}, small)
    assert distance(restricted, small.trace.logits) > 1e-3
    assert distance(restricted[:2], small.trace.logits[:2]) < EXACT  # two entries, one block


@pytest.mark.parametrize("topk", [64, 128, 300])
def test_invariant_27_few_visible_entries_are_all_attended(small: Small, topk: int) -> None:
    """Then the indexer has no influence; 128 is the width of a block table, where scoring may be skipped."""
    changes = {"index_topk": topk, "candidate_source_layer_id": None}
    dense = _logits(changes, small)
    weights = {n: (w * 0 + 0.5 if ".indexer." in n else w) for n, w in small.weights.items()}
    model = FastModel(Small.build(**changes).config, weights)
    recorder = Recorder()
    fed = model.fresh_session().feed(small.tokens, recorder)
    assert distance(fed.logits, dense) < EXACT
    assert recorder.lists("topk", 5) == [list(range(p + 1)) for p in range(len(small.tokens))]
    assert recorder.lists("topk", 2) == [list(range((p + 1) // 2)) for p in range(len(small.tokens))]


def _image(small: Small, start: int) -> ImageSpan:
    features = np.random.default_rng(1).normal(size=(6, small.config.hidden_size))
    return ImageSpan(start, (2, 3), features)


def _with_image(small: Small, start: int) -> list[int]:
    tokens = list(small.tokens[:40])
    tokens[start : start + 10] = [small.config.image_token_id or 0] * 10
    return tokens


@pytest.mark.parametrize("start", [1, 20])
def test_invariant_28_image_rows_are_routed_by_their_own_bias(small: Small, start: int) -> None:
    tokens, image = _with_image(small, start), _image(small, start)
    expected = small.oracle.forward(tokens, image=image)
    recorder = Recorder()
    fed = small.fast.fresh_session(image=image).feed(tokens, recorder)
    assert distance(fed.logits, expected.logits) < EXACT
    chosen = [sorted(row) for row in recorder["experts", 6].tolist()]
    assert chosen == [routing.experts for routing in expected.routing[6]]
    weights = {n: (w.flip(0) if n.endswith("bias_vl") else w) for n, w in small.weights.items()}
    other = FastModel(small.config, weights).fresh_session(image=image).feed(tokens)
    assert distance(other.logits[:start], fed.logits[:start]) < EXACT
    assert distance(other.logits[start : start + 10], fed.logits[start : start + 10]) > 1e-3


def test_invariant_30_image_rows_take_no_memory_and_end_ngrams(small: Small) -> None:
    """Tokens before an image do not reach the n-grams of its rows or of the text behind it."""
    tokens, image = _with_image(small, 20), _image(small, 20)
    recorder = Recorder()
    small.fast.fresh_session(image=image).feed(tokens, recorder)
    rows = recorder["engram_rows", 1]
    tokens[17:20] = [9, 9, 9]
    changed = Recorder()
    small.fast.fresh_session(image=image).feed(tokens, changed)
    other = changed["engram_rows", 1]
    assert not np.array_equal(rows[17:20], other[17:20])
    assert np.array_equal(rows[20:], other[20:])


@pytest.mark.parametrize("lengths", [[], [22], [29], [30, 1, 1]], ids=str)
def test_invariant_30_three_ids_are_all_the_state_memory_needs(small: Small, lengths: list[int]) -> None:
    """A session hands over its last three ids with every chunk, image positions as NOT_TEXT."""
    tokens, image = _with_image(small, 20), _image(small, 20)
    expected = small.oracle.forward(tokens, image=image)
    recorder = Recorder()
    fed = small.fast.fresh_session(image=image).feed_in_chunks(tokens, lengths, recorder)
    assert recorder["engram_rows", 4].tolist() == expected.engram_rows[4]
    assert distance(fed.logits, expected.logits) < EXACT


def test_invariant_30_tokens_of_one_compressed_id_share_their_memory() -> None:
    """With a token map, hashes see compressed ids; the pad is mapped too."""
    mapping = [i // 2 for i in range(64)]
    small = Small.build(engram_compressed_vocab_size=32)
    oracle = Oracle(small.config, small.weights, mapping)
    model = FastModel(small.config, small.weights, token_map=mapping)
    recorder = Recorder()
    fed = model.fresh_session().feed_in_chunks(small.tokens, [11], recorder)
    expected = oracle.forward(small.tokens)
    assert recorder["engram_rows", 1].tolist() == expected.engram_rows[1]
    assert distance(fed.logits, expected.logits) < EXACT


VARIANTS: dict[str, dict[str, Any]] = {
    "no candidates": {"candidate_source_layer_id": None},
    "no engram": {"engram_layer_ids": (), "engram_num_embeddings": ()},
    "no drafts": {
        "num_nextn_predict_layers": 0, "dspark_target_layer_ids": (),
        "compress_ratios": (0, 0, 2, 2, 2, 1, 1, 1, 1, 1),
    },
    "no yarn": {"rope_scaling": None},
    "bigrams only": {"engram_max_ngram_size": 2, "engram_num_embeddings": (112, 128)},
    "two copies": {"hc_mult": 2},
    "two shared experts": {"n_shared_experts": 2},
    "one draft layer": {"num_nextn_predict_layers": 1, "compress_ratios": (0, 0, 2, 2, 2, 1, 1, 1, 1, 1, 0)},
    "draft features of two producer layers": {"dspark_target_layer_ids": (2, 3)},
    "no consumers": {
        "compress_ratios": (0, 0, 2, 2, 2, 2, 2, 2, 2, 2, 0, 0, 0), "candidate_source_layer_id": None,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", VARIANTS)
def test_invariant_31_variants_of_the_configuration_run(name: str) -> None:
    small = Small.build(**VARIANTS[name])
    tokens = small.tokens[:40]
    expected = small.oracle.forward(tokens)
    session = small.fast.fresh_session()
    fed = session.feed_in_chunks(tokens, [17, 1])
    assert distance(fed.logits, expected.logits) < EXACT
    if small.config.num_nextn_predict_layers:
        draft = small.oracle.draft(expected, 39, 5)
        assert session.draft(5).tokens == draft.tokens


def test_invariant_31_a_model_without_drafts_refuses_to_draft() -> None:
    small = Small.build(**VARIANTS["no drafts"])
    session: Session = small.fast.fresh_session()
    session.feed([3])
    with pytest.raises(ValueError, match="no draft layers"):
        session.draft(5)


def test_random_weights_are_reproducible(small: Small) -> None:
    again = random_weights(small.config)
    assert all(torch.equal(again[name], weight) for name, weight in small.weights.items())
