"""The indexer of the Triton set chooses exactly what its twin chooses, ties included.

Queries, keys and weights are small integers over a power of two, so that scores are exact whatever the order
of their sums, and equal ones are frequent.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from stepahead.devices.kernels.reference import indexer as reference
from stepahead.devices.kernels.reference.indexer import Candidates, ChosenEntries, EntryView, IndexQuery
from stepahead.devices.kernels.reference.quantization import Format
from stepahead.devices.kernels.reference.rows import lay_rows, uniform_tiles
from stepahead.devices.kernels.triton import indexer

DIM, ROTARY, PER_BLOCK = 32, 8, 64


class Problem:
    """Rows of some sequences over pages in random order."""

    def __init__(
        self,
        first: Sequence[int],
        lengths: Sequence[int],
        heads: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.generator = torch.Generator().manual_seed(sum(first) + heads)
        self.device, self.dtype = device, dtype
        columns = max(f + n for f, n in zip(first, lengths, strict=True)) // 128 + 2
        count = sum(lengths)
        rows = lay_rows(
            torch.tensor(list(first), device=device),
            torch.tensor(list(lengths), device=device),
            count,
            uniform_tiles(len(first), max(lengths), device),
        )
        pages = torch.randperm(len(first) * columns, generator=self.generator) + 1
        table = pages.view(len(first), columns).to(device)
        self.view = EntryView(rows, table, (rows.position + 1) // 2, PER_BLOCK)
        self.keys = self.integers(len(first) * columns + 1, PER_BLOCK, DIM)
        self.query = self.integers(count, heads, DIM)
        self.weights = self.integers(count, heads)
        quarter = torch.randint(0, 4, (count, ROTARY // 2), generator=self.generator)
        steps = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0]])
        self.turns = steps[quarter].flatten(1).to(device)

    def integers(self, *shape: int) -> Tensor:
        return torch.randint(-1, 2, shape, generator=self.generator).to(self.dtype).to(self.device)

    def asked(self, form: Format = "plain", *, narrow: bool = False) -> IndexQuery:
        return IndexQuery(self.query.clone(), self.turns, self.weights, 0.25, form, narrow)


def assert_same_choice(ours: ChosenEntries, theirs: ChosenEntries) -> None:
    assert torch.equal(ours.entries.long(), theirs.entries)
    assert torch.equal(ours.places.long(), theirs.places)
    assert (ours.candidate_blocks is None) == (theirs.candidate_blocks is None)
    if ours.candidate_blocks is not None and theirs.candidate_blocks is not None:
        assert torch.equal(ours.candidate_blocks.long(), theirs.candidate_blocks)


ALL = Candidates(8, 4, None, False)
STEPS = [((300, 0, 71), (1, 1, 1)), ((40, 380), (7, 3)), ((0,), (9,)), ((700,), (1,))]


@pytest.mark.parametrize(("first", "lengths"), STEPS)
@pytest.mark.parametrize("heads", [4, 6])
def test_the_best_entries(
    first: Sequence[int], lengths: Sequence[int], heads: int, device: torch.device
) -> None:
    problem = Problem(first, lengths, heads, torch.float32, device)
    arguments = (problem.keys, problem.view, 16)
    theirs = reference.choose_entries(problem.asked(), *arguments, ALL)
    assert_same_choice(indexer.choose_entries(problem.asked(), *arguments, ALL), theirs)


@pytest.mark.parametrize("narrow", [False, True])
def test_in_low_precision(narrow: bool, device: torch.device) -> None:
    problem = Problem((300, 0, 71), (2, 1, 1), 4, torch.bfloat16, device)
    arguments = (problem.keys, problem.view, 16, ALL)
    form: Format = "fp4_ue8m0" if narrow else "plain"
    theirs = reference.choose_entries(problem.asked(form, narrow=narrow), *arguments)
    assert_same_choice(indexer.choose_entries(problem.asked(form, narrow=narrow), *arguments), theirs)


@pytest.mark.parametrize("chunk", [64, 128])
def test_long_lists_in_chunks(chunk: int, device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several levels: 64 items at a time, of which 16 go on."""
    monkeypatch.setattr(indexer, "CHUNK", chunk)
    monkeypatch.setattr(indexer, "SCORES_AT_A_TIME", 1100)  # two rows
    problem = Problem((900, 0, 20, 257, 383), (1, 1, 1, 1, 1), 4, torch.float32, device)
    arguments = (problem.keys, problem.view, 16, ALL)
    theirs = reference.choose_entries(problem.asked(), *arguments)
    assert_same_choice(indexer.choose_entries(problem.asked(), *arguments), theirs)


def test_candidate_blocks(device: torch.device) -> None:
    """One source publishes blocks, the next looks at no others."""
    problem = Problem((300, 3, 0, 71), (3, 1, 1, 1), 4, torch.float32, device)
    arguments = (problem.keys, problem.view, 16)
    publishing = Candidates(8, 4, None, True)
    theirs = reference.choose_entries(problem.asked(), *arguments, publishing)
    ours = indexer.choose_entries(problem.asked(), *arguments, publishing)
    assert_same_choice(ours, theirs)
    restricted = Candidates(8, 4, theirs.candidate_blocks, False)
    theirs = reference.choose_entries(problem.asked(), *arguments, restricted)
    again = Candidates(8, 4, ours.candidate_blocks, False)
    assert_same_choice(indexer.choose_entries(problem.asked(), *arguments, again), theirs)


def test_all_visible_entries(device: torch.device) -> None:
    problem = Problem((300, 0, 71), (2, 1, 1), 4, torch.float32, device)
    ours, theirs = indexer.visible_entries(problem.view), reference.visible_entries(problem.view)
    assert_same_choice(ours, theirs)
