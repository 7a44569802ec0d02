"""Invariants 1 to 5 of model_spec 7.3: the same rows give the same results however they are executed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from stepahead.engine.model.v41.batch import SequenceChunk, build_batch
from stepahead.engine.model.v41.model import StepTooLarge

from .fast_path import CPU, FastModel, Session
from .oracle import ImageSpan
from .small import EXACT, KEEP, Small, distance


def test_invariant_01_token_by_token_equals_one_shot(small: Small) -> None:
    session = small.fast.fresh_session()
    fed = session.feed_in_chunks(small.tokens, [1] * len(small.tokens))
    assert distance(fed.logits, small.trace.logits) < EXACT


@pytest.mark.parametrize("lengths", [[], [1], [7, 1, 1, 30], [31], [59], [13, 13, 13]], ids=str)
def test_invariant_02_any_chunks_equal_one_shot(small: Small, lengths: list[int]) -> None:
    """Odd lengths cut a ratio-2 group in half; 31 exceeds the window ring of 14 positions."""
    fed = small.fast.fresh_session().feed_in_chunks(small.tokens, lengths)
    assert distance(fed.logits, small.trace.logits) < EXACT


def test_invariant_02_chunks_across_blocks(small: Small) -> None:
    """Two blocks of 128 tokens and a part of a third."""
    tokens = small.text(270)
    whole = small.fast.fresh_session().feed(tokens)
    for lengths in ([127, 2, 127], [128, 128], [100, 57, 101]):
        fed = small.fast.fresh_session().feed_in_chunks(tokens, lengths)
        assert distance(fed.logits, whole.logits) < EXACT


def test_invariant_03_a_batch_equals_each_sequence_alone(small: Small) -> None:
    """Three sequences in one step: a prompt, a chunk that continues one, and a single decode row."""
    small.fast.reset()
    texts = [small.text(40, seed) for seed in range(3)]
    sessions = [small.fast.session() for _ in texts]
    small.fast.step([(sessions[1], texts[1][:17]), (sessions[2], texts[2][:39])])
    fed = small.fast.step(
        [(sessions[0], texts[0]), (sessions[1], texts[1][17:]), (sessions[2], texts[2][39:])]
    )
    for text, rows in zip(texts, fed, strict=True):
        alone = small.oracle.forward(text).logits
        assert distance(rows.logits, alone[rows.positions]) < EXACT


def test_invariant_03_a_long_sequence_widens_the_tables_of_short_ones(small: Small) -> None:
    """Tables are padded to the longest sequence of a step; what the padding names is seen by nobody."""
    long = small.text(270, seed=4)
    alone = small.fast.fresh_session().feed(long)
    small.fast.reset()
    sessions = [small.fast.session() for _ in range(3)]
    small.fast.step([(sessions[0], long[:262]), (sessions[1], small.tokens[:20])])
    feeds = [(sessions[2], small.tokens[:45]), (sessions[0], long[262:]), (sessions[1], small.tokens[20:21])]
    fed = small.fast.step(feeds)
    assert distance(fed[0].logits, small.trace.logits[:45]) < EXACT
    assert distance(fed[1].logits, alone.logits[262:]) < EXACT
    assert distance(fed[2].logits, small.trace.logits[20:21]) < EXACT


def test_invariant_03_only_wanted_rows_reach_the_head(small: Small) -> None:
    model = small.fast
    session = model.fresh_session()
    session.table = [3]
    chunk = SequenceChunk(small.tokens, 0, session.slot, session.table)
    batch = build_batch([chunk], CPU, ngram=small.config.engram_max_ngram_size)
    wanted = replace(batch, logit_rows=torch.tensor([59, 0, 17]))
    output = model.model.forward(wanted, model.caches)
    assert distance(output.logits, small.trace.logits[[59, 0, 17]]) < EXACT
    assert output.hidden.shape == (3, small.config.hidden_size)


def test_a_step_larger_than_the_staging_area_is_refused_before_anything_is_written(small: Small) -> None:
    model = FastModel(small.config, small.weights, max_rows=40)
    session = model.session()
    session.feed(small.tokens[:40])
    before = [pool.clone() for pool in model.caches.window]
    with pytest.raises(StepTooLarge, match="41 rows; the caches take 40"):
        model.session().feed(small.text(41))
    assert all(torch.equal(a, b) for a, b in zip(before, model.caches.window, strict=True))
    assert distance(session.feed(small.tokens[40:41]).logits, small.trace.logits[40:41]) < EXACT


def test_invariant_03_equal_sequences_in_one_batch_agree(small: Small) -> None:
    small.fast.reset()
    first, second = small.fast.step(
        [(small.fast.session(), small.tokens), (small.fast.session(), small.tokens)]
    )
    assert distance(first.logits, second.logits) < EXACT


@pytest.mark.parametrize("mode", ["off", "compact"])
def test_invariant_03_a_sequence_of_nan_does_not_reach_its_neighbours(small: Small, mode: str) -> None:
    """Not in its own step and not in later ones: rows without a place of their own leave NaN in scratch."""
    model = small.fast if mode == "off" else small.compact
    expected = small.trace if mode == "off" else small.oracle.forward(small.tokens, truncation=KEEP)
    image = ImageSpan(0, (2, 30), np.full((60, small.config.hidden_size), np.nan))
    model.reset()
    broken = model.session(image=image, prompt_length=200)
    before, after = (model.session(prompt_length=60) for _ in range(2))
    span = [small.config.image_token_id or 0] * 64
    rows = model.step([(broken, span), (before, small.tokens)])
    assert np.isnan(rows[0].logits).any()
    model.step([(broken, small.text(80))])
    for fed in (rows[1], after.feed(small.tokens)):
        assert distance(fed.logits, expected.logits[fed.positions]) < EXACT


@pytest.mark.parametrize("changed", [0, 1, 20, 59])
def test_invariant_04_a_token_changes_nothing_before_it(small: Small, changed: int) -> None:
    tokens = list(small.tokens)
    before = small.fast.fresh_session().feed(tokens).logits
    tokens[changed] = tokens[changed] % 40 + 5
    after = small.fast.fresh_session().feed(tokens).logits
    assert np.array_equal(after[:changed], before[:changed])
    # A later row may see nothing of the changed token, but its own row and most others moved.
    moved = np.max(np.abs(after - before), axis=1)[changed:]
    assert moved[0] > 1e-3
    assert np.mean(moved > EXACT) > 0.9


def _window_only(engram_layers: tuple[int, ...]) -> Small:
    """Four layers without compressed keys."""
    return Small.build(
        num_hidden_layers=4, compress_ratios=(0,) * 7, kv_source_layer_ids=(), index_source_layer_ids=(),
        index_k_source_layer_ids=(), candidate_source_layer_id=None, dspark_target_layer_ids=(1, 2, 3),
        sliding_window=4, engram_layer_ids=engram_layers, engram_num_embeddings=(384,) * len(engram_layers),
    )  # fmt: skip


@pytest.mark.parametrize(("engram_layers", "reach"), [((), 4 * 3), ((0,), 4 * 3 + 3)])
def test_invariant_05_windows_reach_a_bounded_distance(engram_layers: tuple[int, ...], reach: int) -> None:
    """Each of the 4 layers reaches W - 1 = 3 tokens back, an n-gram memory below them another 3."""
    model = _window_only(engram_layers)
    tokens = model.text(40)
    before = model.fast.fresh_session().feed(tokens).logits
    tokens[10] = tokens[10] % 40 + 5
    after = model.fast.fresh_session().feed(tokens).logits
    moved = np.flatnonzero(np.max(np.abs(after - before), axis=1))
    assert moved.min() == 10
    assert moved.max() <= 10 + reach
    assert moved.max() >= 10 + reach - 1
    assert distance(before, model.oracle.forward(model.text(40)).logits) < EXACT


def test_invariant_23_a_shift_of_all_positions_changes_nothing_without_compressed_keys() -> None:
    """A sequence that starts at position 500, with nothing before it, equals one that starts at 0."""
    model = _window_only(())
    tokens = model.text(40)
    at_zero = model.fast.fresh_session().feed(tokens)
    shifted = _shifted_session(model, 500)
    fed = shifted.feed_in_chunks(tokens, [9, 1, 1])
    assert distance(fed.logits, at_zero.logits) < EXACT


def _shifted_session(model: Small, shift: int) -> Session:
    session = model.fast.fresh_session()
    session.tokens = [0] * shift
    session.window_floor = shift
    return session
