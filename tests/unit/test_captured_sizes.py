"""Sizes of captured steps: geometric, covering, tight where it matters."""

from __future__ import annotations

from itertools import pairwise

import pytest

from stepahead.engine.model.v41.captured_sizes import GraphSizes, column_sizes, sequence_sizes


@pytest.mark.parametrize("largest", [1, 2, 3, 8, 9, 64, 200, 256])
def test_sequence_sizes_end_in_the_largest_and_waste_at_most_half(largest: int) -> None:
    sizes = sequence_sizes(largest)
    assert sizes == sorted(set(sizes))
    assert sizes[-1] == largest
    for smaller, larger in pairwise(sizes):
        assert larger <= 2 * smaller
    assert len(sizes) < 20


@pytest.mark.parametrize("reach", [1, 2, 6, 7])
def test_a_step_that_verifies_everything_is_padded_only_by_sequences(reach: int) -> None:
    sizes = GraphSizes(64, reach, 9)
    for count in sizes.sequences:
        assert sizes.rows_for(count * reach) == count * reach
        assert sizes.sequences_for(count) == count


def test_beyond_the_largest_there_is_none() -> None:
    sizes = GraphSizes(4, 6, 9)
    assert sizes.sequences_for(5) is None
    assert sizes.rows_for(25) is None
    assert sizes.rows_for(1) == 1


def test_columns_cover_every_table() -> None:
    assert column_sizes(1) == [1]
    assert column_sizes(9) == [4, 9]
    assert column_sizes(257) == [4, 32, 257]
    sizes = GraphSizes(1, 1, 257)
    assert all(sizes.columns_for(n) >= n for n in range(1, 258))
