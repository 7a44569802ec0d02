"""State slots copied at once say what copying them one after another says."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepahead.engine.model.v41.fix_ups import independent_copies

SLOTS = st.integers(0, 5)


@given(st.lists(st.tuples(SLOTS, SLOTS), max_size=12))
def test_runs_of_copies_are_copies_in_order(pairs: list[tuple[int, int]]) -> None:
    copies = np.array(pairs, dtype=np.int32).reshape(-1, 2)
    expected, found = np.arange(6), np.arange(6)
    for source, destination in pairs:
        expected[destination] = expected[source]
    for run in independent_copies(copies):
        assert len(set(run[:, 1].tolist())) == len(run)  # the order of writes to one slot is not defined
        found[run[:, 1]] = found[run[:, 0]]
    assert found.tolist() == expected.tolist()


@pytest.mark.parametrize(
    ("copies", "runs"),
    [([], 0), ([[1, 7], [2, 8], [3, 1]], 1), ([[1, 7], [7, 2]], 2), ([[1, 7], [2, 7]], 2)],
)
def test_as_few_runs_as_there_can_be(copies: list[list[int]], runs: int) -> None:
    assert len(independent_copies(np.array(copies, dtype=np.int32).reshape(-1, 2))) == runs
