"""Scripts that once failed, as small as the shrinker made them. Each names what was wrong."""

from __future__ import annotations

import pytest

from .check import check
from .script import Client, Knobs, Model, Script

FOUND: dict[str, Script] = {
    "a reader that keeps up was closed as slow (seed 30)": Script(
        knobs=Knobs(slow_reader="abort", unread_tokens=1), clients=(Client(prompt=(3, 4, 5)),)
    ),
    "a window copied too early was published when its sequence ended (seeds 10879, 10997)": Script(
        model=Model(vocab_size=128, window=1, draft_tokens=3, draft_accuracy=0.5),
        clients=(
            Client(prompt=(73, 121, 81, 91), max_tokens=5),
            Client(prompt=(73, 121, 81, 91, 85, 121, 32, 25, 0), at=0.05, max_tokens=1),
        ),
    ),
    "a request for no token failed for want of a finite logit (seed 281)": Script(
        model=Model(nonfinite_rate=1.0), clients=(Client(prompt=(3, 4, 5), max_tokens=0),)
    ),
}


@pytest.mark.parametrize("what", FOUND)
def test_it_stays_right(what: str) -> None:
    verdict = check(FOUND[what])
    assert verdict.right, verdict.report
