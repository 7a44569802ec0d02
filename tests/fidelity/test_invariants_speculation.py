"""Invariants 16 to 21 of model_spec 7.3: drafting, verifying, taking back; rejected rows leave no trace."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
import torch

from stepahead.devices.kernels.reference import sampling

from .fast_path import Session
from .oracle import Draft, Trace
from .oracle.verification import verify, verify_greedy
from .small import EXACT, Small, distance

PROMPT = 30
BLOCK = 5
ROWS = BLOCK + 1  # of a verification step: the newest token and the drafts


@dataclass
class History:
    """What a speculating session computed for tokens that it kept."""

    rows: dict[int, np.ndarray] = field(default_factory=dict)
    drafts: list[tuple[int, int, Draft]] = field(default_factory=list)  # position a, golden token, result


def _speculate(session: Session, kept: list[int], rng: np.random.Generator) -> History:
    """Rounds of verification that keep `kept[i]` of 6 random rows; the golden row is always kept."""
    history = History()
    for count in kept:
        verified = [int(t) for t in rng.integers(3, 50, ROWS)]
        history.drafts.append((session.length - 1, verified[0], session.draft(verified[0])))
        fed = session.feed(verified)
        for position, logits in list(zip(fed.positions, fed.logits, strict=True))[:count]:
            history.rows[position] = logits
        session.rollback(ROWS - count)
    return history


def _assert_equals_only_accepted(small: Small, trace: Trace, history: History) -> None:
    """All kept rows and all drafts equal those of a run that only ever saw accepted tokens."""
    for position, logits in history.rows.items():
        assert distance(logits, trace.logits[position]) < EXACT
    for position, golden, draft in history.drafts:
        expected = small.oracle.draft(trace, position, golden)
        assert draft.tokens == expected.tokens
        assert distance(draft.logits, expected.logits) < EXACT
        assert distance(draft.confidences, expected.confidences) < EXACT


@pytest.mark.parametrize("kept", range(1, ROWS + 1))
def test_invariant_16_any_number_of_accepted_rows(small: Small, kept: int) -> None:
    """Round after round with one count: the rings pass every alignment with positions."""
    session = small.fast.fresh_session()
    session.feed(small.tokens[:PROMPT])
    history = _speculate(session, [kept] * 5, np.random.default_rng(kept))
    trace = small.oracle.forward(session.tokens)
    _assert_equals_only_accepted(small, trace, history)


def test_invariant_16_a_chain_of_random_rollbacks(small: Small) -> None:
    rng = np.random.default_rng(7)
    session = small.fast.fresh_session()
    session.feed_in_chunks(small.tokens[:PROMPT], [13])
    history = _speculate(session, [int(k) for k in rng.integers(1, ROWS + 1, 24)], rng)
    trace = small.oracle.forward(session.tokens)
    _assert_equals_only_accepted(small, trace, history)


def _greedy(small: Small, prompt: list[int], count: int) -> list[int]:
    session = small.fast.fresh_session()
    logits = session.feed(prompt).logits[-1]
    text = []
    for _ in range(count):
        text.append(int(np.argmax(logits)))
        logits = session.feed(text[-1:]).logits[-1]
    return text


@pytest.mark.parametrize("right_guesses", [0, 2, 5])
def test_invariant_17_greedy_speculation_writes_the_greedy_text(small: Small, right_guesses: int) -> None:
    """Random weights rarely draft well, so the first guesses of a round are replaced by the right ones."""
    prompt = small.tokens[:20]
    expected = _greedy(small, prompt, 30)
    session = small.fast.fresh_session()
    text = [int(np.argmax(session.feed(prompt).logits[-1]))]
    rounds = 0
    while len(text) < len(expected):
        drafts = session.draft(text[-1]).tokens
        right = expected[len(text) : len(text) + right_guesses]
        drafts = right + drafts[len(right) :]
        fed = session.feed([text[-1], *drafts])
        emitted = verify_greedy([int(np.argmax(row)) for row in fed.logits], drafts)
        session.rollback(ROWS - len(emitted))
        text += emitted
        rounds += 1
    assert text[: len(expected)] == expected
    assert rounds <= -(-len(expected) // (right_guesses + 1))


def test_invariant_18_rows_of_the_draft_block_see_later_rows(small: Small) -> None:
    noise = small.config.dspark_noise_token_id
    plain = small.oracle.draft(small.trace, 40, 7)
    changed = small.oracle.draft(small.trace, 40, 7, block=[7, noise, noise, noise, 9])
    assert distance(plain.logits[0], changed.logits[0]) > 1e-3


def test_invariant_18_a_shorter_block_changes_its_first_row(small: Small) -> None:
    """The same on the fast path: were the block causal, row 0 would not know how many rows follow."""
    five, four = small, Small.build(dspark_block_size=4)
    rows = []
    for model in (five, four):
        session = model.fast.fresh_session()
        session.feed(small.tokens[:41])
        rows.append(session.draft(7).logits[0])
    assert distance(rows[0], small.oracle.draft(small.trace, 40, 7).logits[0]) < EXACT
    assert distance(rows[0], rows[1]) > 1e-3


@pytest.mark.parametrize("position", [0, 3, 7, 8, 40])
def test_invariant_18_drafts_equal_the_oracle_at_any_fill_of_the_window(small: Small, position: int) -> None:
    session = small.fast.fresh_session()
    session.feed(small.tokens[: position + 1])
    draft, expected = session.draft(11), small.oracle.draft(small.trace, position, 11)
    assert draft.tokens == expected.tokens
    assert distance(draft.logits, expected.logits) < EXACT
    assert distance(draft.confidences, expected.confidences) < EXACT


def test_invariant_18_a_draft_writes_nothing_that_lasts(small: Small) -> None:
    session = small.fast.fresh_session()
    session.feed(small.tokens[:40])
    first = session.draft(7)
    again = session.draft(7)
    fed = session.feed_in_chunks(small.tokens[40:], [1, 6])
    assert np.array_equal(first.logits, again.logits)
    assert distance(fed.logits, small.trace.logits[40:]) < EXACT


def test_invariant_18_drafts_of_several_sequences_in_one_pass(small: Small) -> None:
    small.fast.reset()
    lengths = [3, 41, 20]
    sessions = [small.fast.session() for _ in lengths]
    small.fast.step([(s, small.tokens[:n]) for s, n in zip(sessions, lengths, strict=True)])
    drafts = small.fast.draft([(s, 7 + i) for i, s in enumerate(sessions)])
    for i, (draft, length) in enumerate(zip(drafts, lengths, strict=True)):
        expected = small.oracle.draft(small.trace, length - 1, 7 + i)
        assert draft.tokens == expected.tokens
        assert distance(draft.logits, expected.logits) < EXACT


def test_invariant_19_rejected_rows_never_influence_drafts(small: Small) -> None:
    results = []
    for seed in (1, 2):
        session = small.fast.fresh_session()
        session.feed(small.tokens[:40])
        session.feed([small.tokens[40], *small.text(BLOCK, seed)])
        session.rollback(BLOCK)
        results.append(session.draft(small.tokens[41]))
    assert np.array_equal(results[0].logits, results[1].logits)
    assert results[0].confidences == results[1].confidences


def _draft_with(small: Small, forced: list[int]) -> Draft:
    session = small.fast.fresh_session()
    session.feed(small.tokens[:40])
    return session.draft(7, forced)


def test_invariant_20_a_forced_guess_changes_the_next_place_only(small: Small) -> None:
    free, forced = _draft_with(small, []), _draft_with(small, [13, 21])
    assert np.array_equal(free.logits[0], forced.logits[0])
    for place in (1, 2):
        assert distance(free.logits[place], forced.logits[place]) > 1e-3
    expected = small.oracle.draft(small.trace, 39, 7, forced=[13, 21])
    assert distance(forced.logits, expected.logits) < EXACT
    assert distance(forced.confidences, expected.confidences) < EXACT


def test_invariant_20_without_a_markov_head_guesses_are_independent(small: Small) -> None:
    weights = dict(small.weights)
    name = "mtp.2.markov_head.head.weight"
    weights[name] = weights[name] * 0
    silent = Small(small.config, weights)
    free, forced = _draft_with(silent, []), _draft_with(silent, [13, 21, 3])
    assert np.array_equal(free.logits, forced.logits)
    assert free.tokens == np.argmax(free.logits, axis=1).tolist()


CHI_SQUARE_7_DEGREES = 24.32  # exceeded with probability 0.001


def test_invariant_21_the_engine_draws_from_the_target_whatever_was_drafted() -> None:
    """Its rule is another one: a draft is kept where it equals what the target draws with noise of its own.

    So the text never depends on drafts. To show: draws follow the distribution, and drafts drawn with the
    same noise from a close distribution mostly agree.
    """
    rng, rounds = np.random.default_rng(3), 20_000
    p = rng.dirichlet(np.ones(8))
    q = 0.8 * p + 0.2 / 8
    zeros = torch.zeros(rounds, dtype=torch.int64)
    keys = sampling.random_keys(torch.arange(rounds), zeros, zeros, 0)
    drawn, guessed = (
        sampling.gumbel_argmax(torch.from_numpy(np.log(x)).expand(rounds, 8), keys) for x in (p, q)
    )
    expected = rounds * p
    counts = np.bincount(drawn.numpy(), minlength=8)
    assert np.sum((counts - expected) ** 2 / expected) < CHI_SQUARE_7_DEGREES
    ones = torch.ones(rounds, dtype=torch.int64)
    accepted = sampling.accept_equal(guessed[:, None], torch.stack([drawn, drawn], 1), ones)
    assert torch.equal(accepted, (guessed == drawn).to(torch.int64))
    assert accepted.double().mean() > 0.7


@pytest.mark.parametrize("quality", ["good", "bad"])
def test_invariant_21_rejection_sampling_preserves_the_target_distribution(quality: str) -> None:
    """20000 rounds of one draft over 8 tokens, for a draft close to the target and for an unrelated one."""
    rng = np.random.default_rng(3)
    p = rng.dirichlet(np.ones(8))
    q = 0.8 * p + 0.2 / 8 if quality == "good" else rng.dirichlet(np.ones(8))
    counts, accepted, rounds = np.zeros(8), 0, 20_000
    for _ in range(rounds):
        guess = int(rng.choice(8, p=q))
        emitted = verify([p, p], [q], [guess], rng.random)
        counts[emitted[0]] += 1
        accepted += len(emitted) == 2
    expected = rounds * p
    assert np.sum((counts - expected) ** 2 / expected) < CHI_SQUARE_7_DEGREES
    assert accepted / rounds == pytest.approx(np.minimum(p, q).sum(), abs=0.02)
