"""Fitting confidence temperatures: known ones are found again, errors are what they are by construction."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from stepahead import Engine, EngineConfig, SamplingParams
from tests.actors.hashed_engine import DRAFTING, SMALL, hashed_opener, prompt_of

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from nano.acceptance import WatchedRunner, judgements, watched  # noqa: E402
from nano.calibration import (  # noqa: E402
    Judgements,
    calibration_error,
    chances,
    fit,
    fit_temperature,
    reliability,
    table,
)

DRAFTS = 40_000


def drawn(temperature: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Raw confidences of a head that is wrong by a temperature, and what was accepted."""
    random = np.random.default_rng(seed)
    raw = random.normal(0.5, 2.5, DRAFTS)
    return raw, random.random(DRAFTS) < chances(raw, temperature)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7, 4.0])
def test_the_temperature_that_made_the_data_is_found_again(temperature: float) -> None:
    raw, accepted = drawn(temperature)
    fitted = fit_temperature(raw, accepted)
    assert fitted == pytest.approx(temperature, rel=0.04)
    assert calibration_error(chances(raw, fitted), accepted) < 0.01
    if temperature != 1.0:
        assert calibration_error(chances(raw), accepted) > 0.03


def test_places_are_fitted_apart() -> None:
    parts = [drawn(temperature, seed) for seed, temperature in enumerate((0.5, 2.0))]
    judged = Judgements(
        np.repeat([0, 1], DRAFTS),
        np.concatenate([p[0] for p in parts]),
        np.concatenate([p[1] for p in parts]),
    )
    assert fit(judged, 2) == pytest.approx([0.5, 2.0], rel=0.04)
    lines = list(table(judged, [0.5, 2.0]))
    assert len(lines) == 4 + 2 + 10 + 10  # two heads, two places, all; ten bins a place


def test_without_a_likeliest_temperature_the_bounds_hold() -> None:
    raw = np.array([0.5, 1.0, 3.0])
    assert fit_temperature(raw, np.array([True] * 3)) == pytest.approx(1 / 64, rel=1e-6)
    assert fit_temperature(raw, np.array([False] * 3)) == pytest.approx(64, rel=1e-6)


def test_the_error_is_the_weighted_distance_of_bins() -> None:
    said = np.array([0.95] * 6 + [0.15] * 4)
    accepted = np.array([True, True, True, False, False, False] + [False] * 4)
    assert calibration_error(said, accepted) == pytest.approx(0.6 * 0.45 + 0.4 * 0.15)
    assert [(b.count, b.happened) for b in reliability(said, accepted)] == [(4, 0.0), (6, 0.5)]
    assert calibration_error(np.array([1.0, 0.0]), np.array([True, False])) == 0.0


async def test_watching_an_engine_pairs_each_draft_with_its_fate() -> None:
    """The hashed model says 0.75 of drafts that are right, 0.25 of those that are not, 0 of those behind."""
    runners: list[WatchedRunner] = []
    opener = watched(hashed_opener(DRAFTING), runners)
    async with Engine.open(config=EngineConfig(**SMALL), opener=opener) as engine:
        params = SamplingParams(temperature=0, max_tokens=80, ignore_eos=True)
        done = [await engine.generate(prompt_of(20, seed), params) for seed in range(4)]
    taken = runners[0].taken()
    assert not runners[0].taken()
    judged = judgements(taken, ())
    sure = judged.raw > 0
    assert set(np.round(chances(judged.raw), 6).tolist()) <= {0.0, 0.25, 0.75}
    assert judged.accepted[sure].all()
    assert judged.accepted[~sure].mean() < 0.1  # a wrong guess may be right by accident
    assert 20 < (~sure).sum() < sure.sum()
    assert set(judged.place.tolist()) == {0, 1, 2}
    assert 0 <= judged.accepted.sum() - sum(c.usage.accepted_tokens for c in done) <= 3 * len(done)
    hot = judgements(taken, (2.0, 2.0, 2.0))
    assert np.allclose(hot.raw, 2 * judged.raw)
