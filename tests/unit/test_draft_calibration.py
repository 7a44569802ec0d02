"""Fitting confidence temperatures: known ones are found again, errors are what they are by construction."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import numpy as np
import pytest

from stepahead import Engine, EngineConfig, SamplingParams
from stepahead.engine.model.v41.config import load_config
from tests.actors.hashed_engine import DRAFTING, SMALL, hashed_opener, prompt_of

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from nano.acceptance import WatchedRunner, judgements, uncalibrated, watched  # noqa: E402
from nano.calibration import (  # noqa: E402
    Judgements,
    calibrated,
    calibration_error,
    chances,
    discrimination,
    fit_head,
    fit_line,
    fit_peak,
    fit_temperature,
    reliability,
    spared,
    table,
)

DRAFTS = 40_000


def drawn(scale: float, offset: float = 0.0, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Log-odds that are wrong by a line, and what was accepted."""
    random = np.random.default_rng(seed)
    raw = random.normal(0.5, 2.5, DRAFTS)
    return raw, random.random(DRAFTS) < chances(raw * scale + offset)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7, 4.0])
def test_the_temperature_that_made_the_data_is_found_again(temperature: float) -> None:
    raw, accepted = drawn(1 / temperature)
    fitted = fit_temperature(raw, accepted)
    assert fitted == pytest.approx(temperature, rel=0.04)
    assert calibration_error(chances(raw / fitted), accepted) < 0.01
    if temperature != 1.0:
        assert calibration_error(chances(raw), accepted) > 0.03


@pytest.mark.parametrize("line", [(1.0, 0.0), (0.6, -1.0), (2.0, 0.5)])
def test_the_line_that_made_the_data_is_found_again(line: tuple[float, float]) -> None:
    raw, accepted = drawn(*line)
    assert fit_line(raw, accepted) == pytest.approx(line, abs=0.06)


def test_places_are_fitted_apart() -> None:
    parts = [drawn(scale, seed=seed) for seed, scale in enumerate((2.0, 0.5))]
    raw, accepted = (np.concatenate([p[i] for p in parts]) for i in (0, 1))
    judged = Judgements(np.repeat([0, 1], DRAFTS), raw, accepted)
    temperatures = [1 / scale for scale, _ in fit_head(judged, 2)]
    assert temperatures == pytest.approx([0.5, 2.0], rel=0.04)
    lines = fit_peak(judged, 2)
    assert [scale for scale, _ in lines] == pytest.approx([2.0, 0.5], rel=0.04)
    assert calibration_error(calibrated(judged, lines), accepted) < 0.01
    assert len(list(table(judged, lines))) == 2 + 2 + 2 + 10 + 10  # heads, all; two places; ten bins a place


def test_discrimination_is_how_often_the_better_draft_was_thought_better() -> None:
    said, accepted = np.array([0.1, 0.4, 0.6, 0.9]), np.array([False, True, False, True])
    assert discrimination(said, accepted) == pytest.approx(3 / 4)
    assert np.isnan(discrimination(said, np.ones(4, dtype=bool)))


def test_spared_drafts_are_those_that_would_not_have_been_accepted() -> None:
    sure = np.array([[9.0, 9.0, -9.0], [9.0, -9.0, -9.0], [-9.0, 9.0, 9.0]])
    plain = [(1.0, 0.0)] * 3
    assert spared(sure, np.array([2, 1, 0]), plain) == pytest.approx(6 / 9)  # all behind a -9, too
    assert spared(sure, np.array([3, 3, 3]), plain) < 1 / 9 + 1e-9  # none can be left out
    assert spared(sure, np.array([3, 3, 3]), plain, kept=0.5) > 0.5


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
    """Drafts of the hashed model are right as often as it says: only a wrong pairing looks uncalibrated."""
    runners: list[WatchedRunner] = []
    knobs = EngineConfig(**{**SMALL, "verify": "all"})
    async with Engine.open(config=knobs, opener=watched(hashed_opener(DRAFTING), runners)) as engine:
        params = SamplingParams(temperature=0, max_tokens=400, ignore_eos=True)
        done = await asyncio.gather(*(engine.generate(prompt_of(20, seed), params) for seed in range(8)))
    taken = runners[0].taken()
    assert not runners[0].taken()
    judged = judgements(taken)
    assert set(judged.place.tolist()) == {0, 1, 2}
    assert 0 <= judged.accepted.sum() - sum(c.usage.accepted_tokens for c in done) <= 3 * len(done)
    said, accepted = chances(judged.raw), judged.accepted
    assert calibration_error(said, accepted) < 0.03
    assert discrimination(said, accepted) > 0.6
    shifted = np.roll(accepted, 1)
    assert calibration_error(said, shifted) > 0.06


@pytest.mark.parametrize("sign", ["head", "peak"])
def test_a_model_is_opened_without_its_calibration(sign: str, tmp_path: Path) -> None:
    config = load_config(uncalibrated(ROOT / "engine/nano", sign, tmp_path))
    assert config.dspark_confidence_temperatures == ()
    assert config.dspark_peak_calibration == ((1.0, 0.0),) * 5 * (sign == "peak")
    assert (tmp_path / "tokenizer.json").is_file()
