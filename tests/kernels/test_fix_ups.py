"""State copies and table entries of a step in one launch, against the twin and against one after another."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from stepahead.devices.kernels.operations import REFERENCE, Operations
from stepahead.devices.kernels.reference.fix_ups import FixUps
from stepahead.devices.kernels.triton import fix_ups as kernels
from stepahead.devices.kernels.triton.operations import TRITON

SLOTS, COLUMNS = 40, 7
POOLS: tuple[tuple[tuple[int, ...], torch.dtype], ...] = (
    ((18, 12), torch.bfloat16),
    ((134, 32), torch.bfloat16),  # more than one piece
    ((7, 16), torch.float32),
    ((3, 1), torch.float64),
)


def pools(device: torch.device) -> list[Tensor]:
    """Each with rows behind its states, as staging areas are."""
    generator = torch.Generator().manual_seed(3)
    return [
        torch.randn(SLOTS * ring + 5, width, generator=generator).to(dtype).to(device)
        for (ring, width), dtype in POOLS
    ]


def rings(pools: Sequence[Tensor]) -> tuple[Tensor, ...]:
    return tuple(
        pool[: SLOTS * shape[0]].view(SLOTS, *shape) for pool, (shape, _) in zip(pools, POOLS, strict=True)
    )


def fix_ups(
    copies: Sequence[Sequence[int]],
    entries: Sequence[Sequence[int]],
    device: torch.device,
    unused: int = 0,
) -> FixUps:
    """With so many unused places behind both, which hold nonsense."""
    counts = torch.tensor([len(copies), len(entries)], device=device)

    def padded(rows: Sequence[Sequence[int]], width: int) -> Tensor:
        filled = [*rows, *[[10**9] * width] * unused]
        return torch.tensor(filled, dtype=torch.int64, device=device).view(-1, width)

    return FixUps(counts, padded(copies, 2), padded(entries, 3))


def fixed(operations: Operations, made: FixUps, device: torch.device) -> list[Tensor]:
    memory = pools(device)
    table = torch.zeros(SLOTS, COLUMNS, dtype=torch.int64, device=device)
    operations.fix_up_(operations.open_state_pools(rings(memory)), table, made)
    return [*memory, table]


CASES: dict[str, tuple[list[list[int]], list[list[int]]]] = {
    "nothing": ([], []),
    "one copy": ([[3, 20]], []),
    "one entry": ([], [[2, 6, 99]]),
    "a slot that is saved and then restored": ([[1, 30], [2, 31], [33, 1], [34, 2]], [[1, 0, 5]]),
    "more than are read at a time": (
        [*([slot, 20 + slot] for slot in range(1, 20)), [20, 5], [20, 6]],
        [[slot, slot % COLUMNS, 1000 + slot] for slot in range(1, 20)],
    ),
}


@pytest.mark.parametrize("unused", [0, 3])
@pytest.mark.parametrize("case", CASES)
def test_equals_the_twin_and_one_after_another(case: str, unused: int, device: torch.device) -> None:
    copies, entries = CASES[case]
    made = fix_ups(copies, entries, device, unused)
    expected = pools(device)
    for ring in rings(expected):
        for source, destination in copies:
            ring[destination] = ring[source]
    table = torch.zeros(SLOTS, COLUMNS, dtype=torch.int64, device=device)
    for slot, column, block in entries:
        table[slot, column] = block
    for operations in (REFERENCE, TRITON):
        for ours, theirs in zip(fixed(operations, made, device), [*expected, table], strict=True):
            assert torch.equal(ours, theirs), operations.name


@pytest.mark.parametrize("seed", range(3))
def test_random_copies_in_order(seed: int, device: torch.device) -> None:
    """Saves of distinct slots, then restores over some of them."""
    random = np.random.default_rng(seed)
    live, kept = random.permutation(np.arange(1, 20)), random.permutation(np.arange(20, SLOTS))
    saves = np.stack((live, kept[:19]), 1)[: random.integers(1, 20)]
    restores = np.stack((np.full(5, kept[19]), live[:5]), 1)[: random.integers(0, 6)]
    copies = np.concatenate((saves, restores)).tolist()
    made = fix_ups(copies, [[3, 1, seed]], device, unused=2)
    for ours, theirs in zip(fixed(TRITON, made, device), fixed(REFERENCE, made, device), strict=True):
        assert torch.equal(ours, theirs)


def test_states_that_are_not_whole_words_are_left_to_the_twin(device: torch.device) -> None:
    ring = torch.arange(4 * 3, device=device, dtype=torch.int32).view(4, 3)
    expected = ring.clone()
    expected[2] = ring[1]
    table = torch.zeros(2, 2, dtype=torch.int64, device=device)
    kernels.fix_up_(kernels.open_state_pools((ring,)), table, fix_ups([[1, 2]], [[1, 1, 9]], device))
    assert torch.equal(ring, expected)
    assert table.tolist() == [[0, 0], [0, 9]]
