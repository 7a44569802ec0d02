"""Invariants 6 to 12 of model_spec 7.3: truncated prefill ("bounded replay") by definition and by short cut.

In mask mode every row is computed and the consumer layers see no window key below the kept suffix: the
definition, which the oracle states too. In compact mode the other rows leave at the boundary.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch

from stepahead.engine.model.v41.batch import Truncation
from stepahead.engine.model.v41.caches import window_ring
from stepahead.engine.model.v41.model import Model

from .fast_path import FastModel, Fed, Recorder, Session
from .oracle import ImageSpan, Trace
from .small import EXACT, KEEP, Small, distance

PROMPT = 48
KEPT_FROM = PROMPT - KEEP  # 34

CHUNKS = [
    [],
    [KEPT_FROM],  # one chunk ends where the kept suffix begins
    [10, 10, 10],  # three chunks wholly below, one that straddles
    [KEPT_FROM - 1, 1, 1, 1],
    [33, 14],
    [1] * PROMPT,
]


def _prefill(
    model: FastModel, small: Small, lengths: list[int], probe: Recorder | None = None
) -> tuple[Session, Fed]:
    session = model.fresh_session(prompt_length=PROMPT)
    return session, session.feed_in_chunks(small.tokens[:PROMPT], lengths, probe)


def _kept(fed: Fed) -> np.ndarray:
    """Logits of the kept rows; placeholders of chunks below the suffix are dropped."""
    rows = {position: logits for position, logits in zip(fed.positions, fed.logits, strict=True)}
    return np.array([rows[position] for position in range(KEPT_FROM, PROMPT)])


@pytest.fixture(scope="module")
def definition(small: Small) -> Trace:
    """The whole text, of which the first `PROMPT` tokens were a truncated prompt and the rest is decoded."""
    return small.oracle.forward(small.tokens, truncation=KEEP, prompt_length=PROMPT)


def test_invariant_06_producer_layers_do_not_know_of_truncation(small: Small) -> None:
    recorders = []
    for model in (small.fast, small.mask, small.compact):
        recorders.append(Recorder())
        _prefill(model, small, [10, 17], recorders[-1])
    boundary = small.config.n_prefill_layer
    assert boundary == 5
    for layer in range(boundary):
        streams = [recorder["streams", layer] for recorder in recorders]
        assert streams[0].shape[0] == PROMPT
        assert all(np.array_equal(a, b) for a, b in pairwise(streams))


@pytest.mark.parametrize("lengths", CHUNKS, ids=lambda lengths: "-".join(map(str, lengths[:4])) or "one")
def test_invariant_07_mask_equals_compact_for_any_chunks(
    small: Small, definition: Trace, lengths: list[int]
) -> None:
    mask = _kept(_prefill(small.mask, small, lengths)[1])
    compact = _kept(_prefill(small.compact, small, lengths)[1])
    assert distance(mask, definition.logits[KEPT_FROM:PROMPT]) < EXACT
    assert distance(compact, mask) < EXACT


@pytest.mark.parametrize("lengths", [[], [KEPT_FROM + 3]], ids=str)
def test_invariant_07_an_image_may_straddle_the_kept_suffix(small: Small, lengths: list[int]) -> None:
    """Rows that go on above the boundary keep their image bias."""
    features = np.random.default_rng(1).normal(size=(6, small.config.hidden_size))
    image = ImageSpan(KEPT_FROM - 4, (2, 3), features)
    expected = small.oracle.forward(small.tokens[:PROMPT], image=image, truncation=KEEP)
    for model in (small.mask, small.compact):
        session = model.fresh_session(prompt_length=PROMPT, image=image)
        fed = session.feed_in_chunks(small.tokens[:PROMPT], lengths)
        assert distance(_kept(fed), expected.logits[KEPT_FROM:]) < EXACT


@pytest.mark.parametrize("keep", [PROMPT, PROMPT + 5])
def test_invariant_08_keeping_the_whole_prompt_is_no_truncation_bitwise(small: Small, keep: int) -> None:
    for mode in ("compact", "mask"):
        fed = _prefill(small.truncated(mode, keep), small, [20])[1]
        whole = _prefill(small.fast, small, [20])[1]
        assert np.array_equal(fed.logits, whole.logits)


def test_invariant_09_decoding_and_drafts_after_compact_equal_those_after_mask(
    small: Small, definition: Trace
) -> None:
    results = []
    for model in (small.mask, small.compact):
        session, _ = _prefill(model, small, [10, 30])
        drafts = [session.draft(small.tokens[PROMPT])]
        rows = []
        for token in small.tokens[PROMPT:]:
            rows.append(session.feed([token]).logits[0])
            drafts.append(session.draft(7))
        assert distance(rows, definition.logits[PROMPT:]) < EXACT
        results.append((rows, drafts))
    assert distance(results[0][0], results[1][0]) < EXACT
    for mask, compact in zip(results[0][1], results[1][1], strict=True):
        assert mask.tokens == compact.tokens
        assert distance(mask.logits, compact.logits) < EXACT
        assert distance(mask.confidences, compact.confidences) < EXACT


def test_invariant_09_drafts_after_compact_when_their_features_come_from_producer_layers() -> None:
    """All target layers may lie below the boundary: features exist of all rows, and the kept ones count."""
    small = Small.build(dspark_target_layer_ids=(2, 3, 4))
    expected = small.oracle.forward(small.tokens[:PROMPT], truncation=KEEP)
    session, fed = _prefill(small.compact, small, [10, 30])
    assert distance(_kept(fed), expected.logits[KEPT_FROM:]) < EXACT
    assert session.draft(5).tokens == small.oracle.draft(expected, PROMPT - 1, 5).tokens


def test_invariant_10_compact_does_no_consumer_work_outside_the_kept_rows(small: Small) -> None:
    recorder = Recorder()
    _prefill(small.compact, small, [], recorder)
    for layer in range(small.config.num_hidden_layers):
        expected = PROMPT if layer < 5 else KEEP
        assert recorder["streams", layer].shape[0] == expected
        assert recorder["experts", layer].shape[0] == expected


def test_invariant_10_a_chunk_below_the_suffix_costs_one_placeholder_row(small: Small) -> None:
    recorder = Recorder()
    _prefill(small.compact, small, [10, 10], recorder)
    assert recorder["experts", 5].shape[0] == 1 + 1 + KEEP


def test_invariant_10_the_boundary_layer_stores_the_entries_of_all_rows(
    small: Small, definition: Trace
) -> None:
    session, _ = _prefill(small.compact, small, [10, 30])
    first = session.table[0] * 128
    entries = small.compact.caches.entries[5][first : first + PROMPT]
    assert distance(entries, np.array(definition.entries[5][:PROMPT])) < EXACT
    keys = small.compact.caches.index_keys[5][session.table[0], :PROMPT]
    assert distance(keys, np.array(definition.index_keys[5][:PROMPT])) < EXACT


@pytest.mark.parametrize("mode", ["mask", "compact"])
def test_invariant_11_a_suffix_shorter_than_window_and_rollback_is_rejected(small: Small, mode: str) -> None:
    with pytest.raises(ValueError, match="at least 14"):
        small.truncated(mode, KEEP - 1)
    small.truncated(mode, KEEP)


def _poison_consumer_windows(model: FastModel, session: Session) -> None:
    """NaN wherever this session's consumer and draft layers keep window keys."""
    ring = window_ring(model.config)
    for pool in model.caches.window[5:]:
        pool[session.slot * ring : (session.slot + 1) * ring] = torch.nan


@pytest.mark.parametrize(("back", "lengths"), [(1, []), (3, [10, 30]), (6, [])])
def test_invariant_11_a_rollback_after_compact_reads_nothing_below_it(
    small: Small, back: int, lengths: list[int]
) -> None:
    session = small.compact.fresh_session(prompt_length=PROMPT)
    _poison_consumer_windows(small.compact, session)
    session.feed_in_chunks(small.tokens[:PROMPT], lengths)
    session.rollback(back)
    session.prompt_length = None
    before = session.draft(9)
    tokens = small.tokens[: PROMPT - back] + small.text(12, seed=1)
    rows = [session.feed([token]).logits[0] for token in tokens[PROMPT - back :]]
    trace = small.oracle.forward(tokens, truncation=KEEP, prompt_length=PROMPT)
    assert distance(rows, trace.logits[PROMPT - back :]) < EXACT
    for position, draft in ((PROMPT - back - 1, before), (len(tokens) - 1, session.draft(9))):
        expected = small.oracle.draft(trace, position, 9)
        assert draft.tokens == expected.tokens
        assert distance(draft.logits, expected.logits) < EXACT


def test_invariant_12_truncation_changes_the_kept_rows(small: Small, definition: Trace) -> None:
    """Otherwise all of the above would hold for an implementation that truncates nothing."""
    mask = _kept(_prefill(small.mask, small, [])[1])
    assert distance(mask, small.trace.logits[KEPT_FROM:PROMPT]) > 0.1


def test_a_truncation_mode_that_does_not_exist_is_rejected(small: Small) -> None:
    model: Model = small.fast.model
    with pytest.raises(ValueError, match="'mask', 'compact'"):
        model.check_truncation(Truncation("off", 100))
