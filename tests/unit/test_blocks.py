"""Reference counts return a block exactly once, and bugs of callers are errors."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from stepahead.engine.cache.blocks import BlockPool
from stepahead.engine.model.runner import Int32s


def ids(*values: int) -> Int32s:
    return np.array(values, dtype=np.int32)


def test_blocks_are_granted_lowest_first_and_never_the_scratch_block() -> None:
    pool = BlockPool(6)
    assert (pool.free, pool.allocate(2).tolist(), pool.allocate(3).tolist()) == (5, [1, 2], [3, 4, 5])
    assert pool.free == 0


def test_a_shared_block_comes_back_with_its_last_reference() -> None:
    pool = BlockPool(6)
    blocks = pool.allocate(3)
    pool.retain(blocks[:2])
    assert pool.release(blocks).tolist() == [3]
    assert pool.release(ids(2, 1)).tolist() == [2, 1]
    assert pool.free == 2  # blocks 4 and 5: a block without references is on no list until it is recycled
    pool.recycle(ids(3, 2, 1))
    assert pool.free == 5
    assert sorted(pool.free_ids().tolist()) == [1, 2, 3, 4, 5]


def test_repeated_ids_lose_one_reference_per_mention() -> None:
    pool = BlockPool(4)
    block = pool.allocate(1)
    pool.retain(block)
    assert pool.release(ids(1, 1)).tolist() == [1]


@pytest.mark.parametrize(
    ("misuse", "message"),
    [
        (lambda pool: pool.allocate(9), "9 blocks asked, 2 free"),
        (lambda pool: pool.release(ids(3)), "block 3 was released more often"),
        (lambda pool: pool.release(ids(1, 1)), "block 1 was released more often"),
        (lambda pool: pool.recycle(ids(1)), "referenced block cannot be free"),
        (lambda pool: pool.recycle(ids(2, 3)), "more blocks would be free"),
        (lambda pool: BlockPool(1), "none beside the scratch block"),
    ],
)
def test_what_only_a_bug_asks_is_an_error(misuse: Callable[[BlockPool], object], message: str) -> None:
    pool = BlockPool(4)
    pool.allocate(1)
    with pytest.raises(ValueError, match=message):
        misuse(pool)
