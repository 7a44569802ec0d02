"""The whole pure core under random workloads: text, invariants and returns, checked after every event."""

from __future__ import annotations

import pytest

from .core_driver import random_workload


@pytest.mark.parametrize("seed", range(60))
def test_random_workload(seed: int) -> None:
    random_workload(seed)
