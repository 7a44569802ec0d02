"""Invariants 13 to 15 of model_spec 7.3: what a sequence needs to go on from cached blocks of another one."""

from __future__ import annotations

import pytest
import torch

from stepahead.engine.model.v41.caches import group_ring, state_rings, window_ring
from stepahead.engine.model.v41.rows import BLOCK_TOKENS

from .fast_path import FastModel, Session
from .oracle import Persisted, Trace
from .small import EXACT, KEEP, Small, distance

PROMPT = 150  # the kept suffix of a truncated prompt starts at 136, behind the block boundary
BOUNDARY_LAYER = 5


@pytest.fixture(scope="module")
def cold(small: Small) -> Trace:
    """The whole prompt without any reuse and without truncation."""
    return small.oracle.forward(small.text(PROMPT))


@pytest.fixture(scope="module")
def cold_truncated(small: Small) -> Trace:
    return small.oracle.forward(small.text(PROMPT), truncation=KEEP)


def _overwrite_groups(model: FastModel, session: Session) -> None:
    """Large noise where this session keeps unfinished compressor groups."""
    ring = group_ring(model.config, 2)
    for pool in model.caches.groups.values():
        state = pool[session.slot * ring : (session.slot + 1) * ring]
        state.copy_(1000 * torch.randn(state.shape, dtype=torch.float64))


def _poison_windows(model: FastModel, session: Session, first_layer: int) -> None:
    ring = window_ring(model.config)
    for pool in model.caches.window[first_layer:]:
        pool[session.slot * ring : (session.slot + 1) * ring] = torch.nan


def test_invariant_13_restart_from_blocks_and_producer_windows_equals_a_cold_truncated_run(
    small: Small, cold_truncated: Trace
) -> None:
    model, tokens = small.compact, small.text(PROMPT)
    donor = model.fresh_session(prompt_length=PROMPT)
    donor.feed_in_chunks(tokens[:BLOCK_TOKENS], [50])
    restarted = donor.branch(BLOCK_TOKENS)
    for ring in state_rings(model.config, model.caches):
        ring[restarted.slot] = ring[donor.slot]
    _poison_windows(model, restarted, BOUNDARY_LAYER)
    _overwrite_groups(model, restarted)
    # The donor goes on with another text: what the restarted sequence uses must be its own.
    model.step([(donor, small.text(20, seed=3)), (restarted, tokens[BLOCK_TOKENS : BLOCK_TOKENS + 10])])
    fed = restarted.feed(tokens[BLOCK_TOKENS + 10 :])
    kept = [position for position in fed.positions if position >= PROMPT - KEEP]
    assert kept[-1] == PROMPT - 1
    assert distance(fed.logits[-len(kept) :], cold_truncated.logits[kept]) < EXACT
    draft = restarted.draft(5)
    assert draft.tokens == small.oracle.draft(cold_truncated, PROMPT - 1, 5).tokens


def test_invariant_13_without_the_producer_windows_the_restart_would_differ(
    small: Small, cold_truncated: Trace
) -> None:
    model, tokens = small.compact, small.text(PROMPT)
    donor = model.fresh_session(prompt_length=PROMPT)
    donor.feed(tokens[:BLOCK_TOKENS])
    restarted = donor.branch(BLOCK_TOKENS)
    fed = restarted.feed(tokens[BLOCK_TOKENS:])
    assert distance(fed.logits[-1], cold_truncated.logits[-1]) > 1e-3


@pytest.mark.parametrize("truncated", [False, True])
@pytest.mark.parametrize("lengths", [[], [3, 9]], ids=str)
def test_invariant_14_replay_equals_its_definition_and_leaves_the_blocks_alone(
    small: Small, cold: Trace, truncated: bool, lengths: list[int]
) -> None:
    """Only blocks are cached; the last W tokens of the prefix run again, seeing no window key before them."""
    model, tokens = (small.compact if truncated else small.fast), small.text(PROMPT)
    replay_from = BLOCK_TOKENS - small.config.sliding_window
    donor = model.fresh_session()
    donor.feed(tokens[:BLOCK_TOKENS])
    replayed = donor.branch(BLOCK_TOKENS)
    replayed.prompt_length = PROMPT if truncated else None
    replayed.rollback(BLOCK_TOKENS - replay_from)
    replayed.window_floor, replayed.entry_floor = replay_from, BLOCK_TOKENS
    _poison_windows(model, replayed, 0)
    before = _blocks(model, donor.table)
    fed = replayed.feed_in_chunks(tokens[replay_from:], lengths)
    definition = small.oracle.forward(
        tokens,
        valid_start=replay_from,
        persisted=Persisted(cold, BLOCK_TOKENS),
        truncation=KEEP if truncated else None,
    )
    lowest = PROMPT - KEEP if truncated else replay_from
    kept = [i for i, position in enumerate(fed.positions) if position >= lowest]
    assert len(kept) == PROMPT - lowest
    assert distance(fed.logits[kept], definition.logits[lowest:]) < EXACT
    assert all(torch.equal(a, b) for a, b in zip(before, _blocks(model, donor.table), strict=True))


def test_invariant_14_replay_is_an_approximation(small: Small, cold: Trace) -> None:
    """The definition differs from the full model, as model_spec 5.5 says: nobody should rely on equality."""
    replay_from = BLOCK_TOKENS - small.config.sliding_window
    definition = small.oracle.forward(
        small.text(PROMPT), valid_start=replay_from, persisted=Persisted(cold, BLOCK_TOKENS)
    )
    assert distance(definition.logits[-1], cold.logits[-1]) > 1e-3


def _blocks(model: FastModel, table: list[int]) -> list[torch.Tensor]:
    """Copies of everything stored in these blocks."""
    copies = []
    for layer, pool in model.caches.entries.items():
        per_block = BLOCK_TOKENS // model.config.compress_ratios[layer]
        by_block = pool.view(model.caches.shape.blocks, per_block, -1)
        copies += [by_block[table].clone(), model.caches.index_keys[layer][table].clone()]
    return copies


def test_invariant_15_no_group_is_unfinished_at_a_block_boundary(small: Small, cold: Trace) -> None:
    session = small.fast.fresh_session()
    session.feed(small.text(PROMPT)[:BLOCK_TOKENS])
    _overwrite_groups(small.fast, session)
    fed = session.feed_in_chunks(small.text(PROMPT)[BLOCK_TOKENS:], [1, 1, 5])
    assert distance(fed.logits, cold.logits[BLOCK_TOKENS:]) < EXACT


def test_invariant_15_inside_a_block_an_odd_position_does_need_its_group(small: Small, cold: Trace) -> None:
    session = small.fast.fresh_session()
    session.feed(small.text(PROMPT)[: BLOCK_TOKENS - 1])
    _overwrite_groups(small.fast, session)
    fed = session.feed(small.text(PROMPT)[BLOCK_TOKENS - 1 :])
    assert distance(fed.logits, cold.logits[BLOCK_TOKENS - 1 :]) > 1e-3
