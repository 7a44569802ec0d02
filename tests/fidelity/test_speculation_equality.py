"""No way of speculating changes what the built-in model says: tokens equal, log-probabilities to rounding.

The same comparison over 200 held-out prompts is `scripts/bench spec --equality`; here a few own texts.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from benchmarks.spec_equality import TOLERANCE, compare_all  # noqa: E402
from benchmarks.spec_modes import MODES, mixed  # noqa: E402
from nano.prompts import held_out_prompts  # noqa: E402


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_mode_says_the_same() -> None:
    prompts = mixed(held_out_prompts(ROOT / "no corpus", ROOT / "engine/nano", 3, 24), 12)
    made = compare_all(prompts, list(MODES), 12, (0.0, 1.0))
    for comparison in made:
        assert comparison.equal == len(prompts), comparison
        assert comparison.largest < TOLERANCE, comparison
    by_mode = {(c.mode, c.temperature): c for c in made}
    for temperature in (0.0, 1.0):
        full, alone = by_mode["fixed 5", temperature], by_mode["all, no overlap", temperature]
        assert (full.verified, full.accepted) == (alone.verified, alone.accepted)  # trap D5
        assert 0 < full.accepted < full.verified
        assert by_mode["off", temperature].verified == 0
        assert 0 < by_mode["forced budgets", temperature].verified < full.verified
