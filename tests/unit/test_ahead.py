"""Asking ahead: fewer plans wait for the cache, and nothing else changes, however short everything is."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from stepahead.engine.scheduling import ahead, planner
from stepahead.engine.scheduling.ledger import Ledger
from stepahead.engine.scheduling.rows import StepRows
from stepahead.engine.scheduling.window_saves import WindowSaves

from .core_driver import random_workload

SEEDS = (0, 1, 2, 3, 7, 13, 14, 21, 39, 40, 47, 52)  # most of them run out of blocks


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Everybody asks ahead; counts of what was asked."""
    counts: Counter[str] = Counter()

    def counted(
        ledger: Ledger, saves: WindowSaves, rows: StepRows, due: list[int]
    ) -> tuple[np.ndarray, list[int]]:
        blocks, states = ahead.near_boundaries(ledger, saves, rows, due)
        counts["blocks"] += blocks.size
        counts["states"] += len(states)
        assert not set(blocks.tolist()) & set(rows.decode.slots[rows.short].tolist())
        return blocks, states

    monkeypatch.setattr(ahead, "FEW", 0)
    monkeypatch.setattr(planner, "near_boundaries", counted)
    return counts


def test_random_workloads_are_exact_and_leave_nothing_behind(asked: Counter[str]) -> None:
    preemptions = 0
    for seed in SEEDS:
        preemptions += random_workload(seed).core.counts().preemptions
    assert asked["blocks"] > 20
    assert asked["states"] > 20
    assert preemptions > 5
