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


@pytest.mark.parametrize(("first", "lengths"), [((900, 0, 257, 383), (1,) * 4), ((40, 380), (7, 3))])
@pytest.mark.parametrize("count", [4, 100])
def test_long_lists_in_groups(
    first: Sequence[int], lengths: Sequence[int], count: int, device: torch.device,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """The best groups first, then the best of these; one row, two and four at a time."""
    monkeypatch.setattr(indexer, "DIRECT", 64)
    monkeypatch.setattr(indexer, "SCORES_AT_A_TIME", 1200)  # two rows
    problem = Problem(first, lengths, 4, torch.float32, device)
    arguments = (problem.keys, problem.view, count, ALL)
    theirs = reference.choose_entries(problem.asked(), *arguments)
    assert_same_choice(indexer.choose_entries(problem.asked(), *arguments), theirs)


BLOCKS = [(16, 4096, torch.float32), (16, 64, torch.bfloat16), (4, 8, torch.float32)]


@pytest.mark.parametrize(("count", "direct", "dtype"), BLOCKS)
def test_candidate_blocks(
    count: int, direct: int, dtype: torch.dtype, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One source publishes blocks, the next looks at no others."""
    monkeypatch.setattr(indexer, "DIRECT", direct)
    problem = Problem((600, 3, 0, 71), (3, 1, 1, 1), 4, dtype, device)
    arguments = (problem.keys, problem.view, count)
    publishing = Candidates(8, 4 if direct < 4096 else 6, None, True)
    theirs = reference.choose_entries(problem.asked(), *arguments, publishing)
    ours = indexer.choose_entries(problem.asked(), *arguments, publishing)
    assert_same_choice(ours, theirs)
    restricted = Candidates(8, 4, theirs.candidate_blocks, True)
    theirs = reference.choose_entries(problem.asked(), *arguments, restricted)
    again = Candidates(8, 4, ours.candidate_blocks, True)
    assert_same_choice(indexer.choose_entries(problem.asked(), *arguments, again), theirs)


def ranks_of(scores: Tensor) -> Tensor:
    """Integers of the order of scores, in int64."""
    bits = scores.float().add(0.0).view(torch.int32).long()
    ordered = torch.where(bits < 0, ~bits & 0xFFFFFFFF, bits | 0x80000000)
    return ordered >> 16 if scores.dtype == torch.bfloat16 else ordered


def laid_out(scores: Tensor, visible: Tensor, kept: indexer._Kept) -> Tensor:
    """Rows of ranks as scoring leaves them; what it leaves out is the largest number."""
    short = scores.dtype == torch.bfloat16
    rows, unit = len(scores), indexer.ALIGNED.value
    out = torch.full((rows, kept.stride * unit), 0xFFFF if short else 0xFFFFFFFF)
    ranks = ranks_of(scores)
    for row in range(rows):
        seen = ranks[row, : int(visible[row])]
        out[row, : len(seen)] = seen
        best = [part.max() for part in seen.split(kept.group)] if len(seen) else []
        if kept.group > 1 and best:
            out[row, kept.groups_at * unit :][: len(best)] = torch.stack(best)
    return out.to(torch.uint16 if short else torch.uint32)


@pytest.mark.parametrize("kind", ["ties", "distinct", "odd", "low", "crowded"])
@pytest.mark.parametrize(("count", "direct"), [(64, 512), (16, 64), (16, 4096), (300, 64), (1, 64)])
def test_ranks_of_every_kind(
    kind: str, count: int, direct: int, device: torch.device,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Rows of lengths around groups and counts; infinities, zeros of both signs, numbers that are none."""
    monkeypatch.setattr(indexer, "DIRECT", direct)
    lengths = (0, 17, 64, count, count + 1, 1021, 1024)
    dtype = torch.float32 if (kind == "ties") == (count == 16) else torch.bfloat16
    problem = Problem([2000] * len(lengths), [1] * len(lengths), 4, dtype, device)
    visible = torch.tensor(lengths, device=device)
    view = problem.view._replace(visible=visible, block_table=problem.view.block_table[:, :16])
    generator = torch.Generator().manual_seed(count)
    scores = torch.randn(len(lengths), view.available, generator=generator)
    if kind == "ties":
        scores = scores.round()
    elif kind == "odd":
        numbers = torch.tensor([torch.inf, -torch.inf, 0.0, -0.0, torch.nan, -torch.nan, 1e-40, -1.0])
        scores = numbers[torch.randint(0, 8, scores.shape, generator=generator)]
    elif kind == "low":
        scores.masked_fill_(torch.rand(scores.shape, generator=generator) < 0.97, -torch.inf)
    elif kind == "crowded":  # all of the best in the last groups of those that are looked at
        scores[:, 900:] += 10
    scores = scores.to(dtype).to(device)
    kept = indexer._Kept.of(view.available, count, ALL, 64)
    ranks = laid_out(scores, visible, kept).to(device)
    entries, places = torch.empty(2, len(lengths), count, dtype=torch.int32, device=device).unbind()
    indexer._select(ranks, view, ALL, kept, ChosenEntries(entries, places, None), 0)
    hidden = torch.arange(view.available, device=device) >= visible.unsqueeze(1)
    expected = reference.select_topk(scores.masked_fill(hidden, -torch.inf), count)
    assert torch.equal(entries.long(), expected)
    assert torch.equal(places.long(), view.slots(expected))


def test_lists_beyond_what_is_counted(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexer, "DIRECT", 16)
    monkeypatch.setattr(indexer, "MOST", 32)
    problem = Problem((300, 0), (1, 1), 4, torch.float32, device)
    arguments = (problem.keys, problem.view, 16, ALL)
    theirs = reference.choose_entries(problem.asked(), *arguments)
    assert_same_choice(indexer.choose_entries(problem.asked(), *arguments), theirs)


def test_all_visible_entries(device: torch.device) -> None:
    problem = Problem((300, 0, 71), (2, 1, 1), 4, torch.float32, device)
    ours, theirs = indexer.visible_entries(problem.view), reference.visible_entries(problem.view)
    assert_same_choice(ours, theirs)
