"""The readable sampling kernels: the host reference's random integers, exact filters, exact bans."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from stepahead.devices.kernels.reference import sampling
from stepahead.engine.sampling import seeds

SEEDS = np.array([0, 1, 2**63 + 5, 2**64 - 1], dtype=np.uint64)


def keys_of(seed: np.ndarray, position: int, purpose: int) -> torch.Tensor:
    words = torch.from_numpy(seed.view(np.int64))
    return sampling.random_keys(words, torch.zeros_like(words), torch.full_like(words, position), purpose)


@pytest.mark.parametrize("position", [0, 1, 2**20])
@pytest.mark.parametrize("purpose", [seeds.TARGET, seeds.DRAFT])
def test_keys_and_uniforms_equal_the_host_reference(position: int, purpose: int) -> None:
    expected = seeds.key(SEEDS, 0, position, purpose)
    keys = keys_of(SEEDS, position, purpose)
    assert np.array_equal(keys.numpy().view(np.uint64), expected)
    uniform = seeds.uniform(expected[:, None], np.arange(500))
    assert np.array_equal(sampling.uniforms(keys, 500).numpy(), uniform)


def test_draws_equal_the_host_reference() -> None:
    many = np.arange(200, dtype=np.uint64)
    logits = torch.randn(200, 50, generator=torch.Generator().manual_seed(3))
    expected = seeds.draw(logits.numpy(), seeds.key(many, 0, 7, seeds.TARGET))
    assert np.array_equal(sampling.gumbel_argmax(logits, keys_of(many, 7, seeds.TARGET)).numpy(), expected)


def test_draws_follow_the_distribution() -> None:
    """Chi-square over 20,000 keyed draws; the bound is the 0.999 quantile for 4 degrees of freedom."""
    logits = torch.tensor([1.0, 0.0, -1.0, 2.0, 0.5])
    many = np.arange(20_000, dtype=np.uint64)
    drawn = sampling.gumbel_argmax(logits.expand(20_000, 5), keys_of(many, 0, seeds.TARGET))
    counts = torch.bincount(drawn, minlength=5)
    expected = logits.softmax(-1) * 20_000
    assert float(((counts - expected) ** 2 / expected).sum()) < 18.5


def test_a_lone_survivor_is_always_drawn() -> None:
    logits = torch.full((1000, 8), -torch.inf)
    logits[:, 5] = -1e30
    drawn = sampling.gumbel_argmax(logits, keys_of(np.arange(1000, dtype=np.uint64), 0, seeds.TARGET))
    assert drawn.unique().tolist() == [5]


def by_sorting(row: torch.Tensor, top_k: int, top_p: float, min_p: float) -> torch.Tensor:
    return sampling.keep_best(row, torch.tensor([top_k]), torch.tensor([top_p]), torch.tensor([min_p]))


def by_candidates(row: torch.Tensor, top_k: int, top_p: float, min_p: float) -> torch.Tensor:
    limits = torch.tensor([top_k]), torch.tensor([top_p]), torch.tensor([min_p])
    maxima = sampling.likeliest(row)[1]
    if top_k:
        return sampling.keep_candidates(row, maxima, *limits, count=top_k).dense(row.shape[1])
    ((_, kept),) = sampling.deepen_candidates(row, maxima, *limits, count=1)
    return kept.dense(row.shape[1])


def by_threshold(row: torch.Tensor, top_k: int, top_p: float, min_p: float) -> torch.Tensor:
    limits = torch.tensor([top_k]), torch.tensor([top_p]), torch.tensor([min_p])
    return sampling.keep_by_threshold(row, sampling.likeliest(row)[1], *limits)


@pytest.mark.parametrize("keep", [by_sorting, by_candidates, by_threshold])
@pytest.mark.parametrize(
    ("top_k", "top_p", "min_p", "expected"),
    [
        (0, 1.0, 0.0, [0, 1, 2, 3]),
        (1, 1.0, 0.0, [1]),
        (2, 1.0, 0.0, [1, 2]),
        (3, 1.0, 0.0, [0, 1, 2]),  # 0 and 3 tie for the third place: the lower id wins
        (99, 1.0, 0.0, [0, 1, 2, 3]),
        (0, 1e-6, 0.0, [1]),  # the best token's better-ranked mass is 0: it always stays
        (0, 0.6, 0.0, [1, 2]),  # masses 0.5, 0.3, 0.1, 0.1: the crossing token stays
        (1, 0.6, 0.0, [1]),
        (3, 0.6, 0.0, [1, 2]),
        (0, 1.0, 0.5, [1, 2]),  # at least half of the likeliest's 0.5
        (0, 1.0, 1.0, [1]),
        (3, 0.9, 0.1, [0, 1, 2]),  # the strictest wins
    ],
)
def test_filters_keep_the_best(
    keep: Callable[..., torch.Tensor], top_k: int, top_p: float, min_p: float, expected: list[int]
) -> None:
    row = torch.tensor([[0.1, 0.5, 0.3, 0.1]]).log()
    filtered = keep(row, top_k, top_p, min_p)
    alive = filtered[0].isfinite()
    assert torch.equal(filtered[0][alive], row[0][alive])
    assert alive.nonzero().flatten().tolist() == expected


def coarse(rows: int, vocab: int, seed: int = 0) -> torch.Tensor:
    """Logits with many ties, also between 0 and -0."""
    noise = torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed))
    return (noise * 4).round() / 4


@pytest.mark.parametrize("vocab", [50, 4096, 4097, 5000, 20_000])
@pytest.mark.parametrize("count", [1, 5, 20, 40, 600])
def test_the_best_are_those_of_a_stable_sort(vocab: int, count: int) -> None:
    logits = coarse(5, vocab)
    logits[2, 7:] = -torch.inf
    expected = logits.sort(dim=-1, descending=True, stable=True)
    values, ids = sampling.best(logits, count)
    count = min(count, vocab)
    assert torch.equal(ids, expected.indices[:, :count])
    assert torch.equal(values, expected.values[:, :count])
    assert [part.tolist() for part in sampling.likeliest(logits)] == [
        expected.indices[:, 0].tolist(),
        expected.values[:, 0].tolist(),
    ]


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("vocab", [50, 5000])
def test_a_row_that_is_no_distribution_has_no_finite_maximum(bad: float, vocab: int) -> None:
    logits = coarse(3, vocab)
    logits[1, vocab - 1] = bad
    logits[2] = -torch.inf
    assert sampling.likeliest(logits)[1].isfinite().tolist() == [True, False, False]


def test_a_wide_nucleus_is_ranked_deeper_until_it_is_whole() -> None:
    """Nearly flat: 0.9 of the mass is thousands of tokens, far beyond the first candidates."""
    logits = torch.randn(3, 6000, generator=torch.Generator().manual_seed(1)) / 100
    limits = torch.zeros(3, dtype=torch.int64), torch.tensor([0.9, 0.01, 1.0]), torch.tensor([0.0, 0.0, 0.99])
    maxima = sampling.likeliest(logits)[1]
    expected = sampling.keep_best(logits, *limits)
    groups = list(sampling.deepen_candidates(logits, maxima, *limits, count=4))
    assert sorted(row for rows, _ in groups for row in rows.tolist()) == [0, 1, 2]
    alive = {}
    for rows, kept in groups:
        assert torch.equal(kept.dense(6000), expected[rows])
        alive |= dict(zip(rows.tolist(), kept.values.isfinite().sum(-1).tolist(), strict=True))
        if 0 not in rows.tolist():
            assert kept.values.shape[1] < 6000, "a narrow row is not ranked as deep as a wide one"
    assert alive[0] > 5000
    assert 20 < alive[1] < 100


@pytest.mark.parametrize("vocab", [7, 300, 5000])
@pytest.mark.parametrize("seed", range(4))
def test_the_threshold_keeps_what_ranking_keeps(vocab: int, seed: int) -> None:
    """Every mix of filters over rows with ties, -inf, and both zeros."""
    chance = np.random.default_rng(seed)
    rows = 40
    logits = coarse(rows, vocab, seed)
    logits[chance.random((rows, vocab)) < 0.1] = -torch.inf
    logits[:, 3] = torch.where(torch.arange(rows) % 2 == 0, 0.0, -0.0)
    logits[:, 5] = 0.0
    top_k = torch.from_numpy(chance.choice([0, 0, 1, 3, vocab // 2, vocab - 1], rows))
    top_p = torch.from_numpy(chance.choice([1.0, 1e-9, 0.3, 0.77, 0.95, 0.99999], rows).astype(np.float32))
    min_p = torch.from_numpy(chance.choice([0.0, 0.0, 0.021, 0.5, 1.0], rows).astype(np.float32))
    expected = sampling.keep_best(logits, top_k, top_p, min_p)
    maxima = sampling.likeliest(logits)[1]
    found = sampling.keep_by_threshold(logits, maxima, top_k, top_p, min_p)
    different = (found != expected).nonzero()
    for row, token in different.tolist():  # only where the better ones hold top_p to rounding
        order = logits[row].sort(descending=True, stable=True)
        better = logits[row].double().softmax(-1)[order.indices].cumsum(-1)
        before = better[order.indices.tolist().index(token) - 1]
        assert abs(float(before) - float(top_p[row])) < 1e-6
    assert different.shape[0] <= 2
    for row in range(0, rows, 7):
        alone = slice(row, row + 1)
        own = sampling.keep_by_threshold(
            logits[alone], maxima[alone], top_k[alone], top_p[alone], min_p[alone]
        )
        assert torch.equal(own, found[alone]), "a row is the same alone"


def test_a_draw_among_candidates_is_the_draw_among_all() -> None:
    logits = coarse(300, 200)
    keys = keys_of(np.arange(300, dtype=np.uint64), 1, seeds.TARGET)
    ones = torch.ones(300)
    kept = sampling.keep_candidates(logits, logits.amax(-1), 20 * ones.long(), 0.8 * ones, 0 * ones, count=30)
    shuffled = torch.randperm(30, generator=torch.Generator().manual_seed(2))
    drawn = sampling.draw_candidate(kept.values[:, shuffled], kept.ids[:, shuffled], keys)
    assert torch.equal(drawn, sampling.gumbel_argmax(kept.dense(200), keys))


def test_bans_touch_only_marked_rows_and_pads_touch_nothing() -> None:
    logits = torch.zeros(2, 4)
    ids = torch.tensor([[0, -1, 3], [0, -1, 3]])
    sampling.ban_(logits, ids, torch.tensor([True, False]))
    assert logits.tolist() == [[-torch.inf, 0, 0, -torch.inf], [0, 0, 0, 0]]


def test_grammar_bits_cover_every_id_of_a_word_and_the_partial_last_word() -> None:
    allowed = np.zeros((1, 2), dtype=np.uint32)
    allowed[0] = [1 << 31 | 1 << 0, 1 << 2]
    logits = sampling.forbid_(torch.zeros(1, 40), torch.from_numpy(allowed.view(np.int32)))
    assert logits[0].isfinite().nonzero().flatten().tolist() == [0, 31, 34]


def test_accepted_prefix_ends_at_the_first_disagreement_or_the_last_verified_draft() -> None:
    drafts = torch.tensor([[1, 2, 3], [1, 9, 3], [1, 2, 3]])
    drawn = torch.tensor([[1, 2, 3, 4], [1, 2, 3, 4], [1, 2, 3, 4]])
    assert sampling.accept_equal(drafts, drawn, torch.tensor([3, 3, 1])).tolist() == [3, 1, 1]
