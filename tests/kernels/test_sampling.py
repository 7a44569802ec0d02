"""Fused sampling against its readable twin: the same tokens, and log-probabilities to rounding."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from stepahead.devices.kernels.reference.sampling import drafting, settling, whole
from stepahead.devices.kernels.reference.sampling.tables import (
    DraftInputs,
    DrawnTokens,
    SamplingTables,
    SlotTensors,
)
from stepahead.devices.kernels.triton import sampling, sampling_drafts, sampling_settle

from .sampling_cases import DRAFTS, Case, some_case


def assert_same(made: DrawnTokens, expected: DrawnTokens) -> None:
    assert torch.equal(made.finite, expected.finite)
    assert (
        made.tokens.masked_fill(~made.finite, 0).tolist()
        == expected.tokens.masked_fill(~made.finite, 0).tolist()
    )
    for own, other in zip(made[2:], expected[2:], strict=True):
        assert (own is None) == (other is None)
    if made.logprobs is None or expected.logprobs is None:
        return
    torch.testing.assert_close(made.logprobs, expected.logprobs, atol=2e-5, rtol=1e-5)
    torch.testing.assert_close(made.top_logprobs, expected.top_logprobs, atol=2e-5, rtol=1e-5)
    assert torch.equal(made.top_tokens, expected.top_tokens)


def both(case: Case, alternatives: int, bits: torch.Tensor | None = None) -> None:
    asked = {"alternatives": alternatives, "allowed_bits": bits}
    assert_same(sampling.draw_tokens(*case, **asked), whole.draw_tokens(*case, **asked))


@pytest.mark.parametrize(("vocab", "seed"), [(60, 0), (60, 1), (257, 2)])
def test_any_mix_of_options(vocab: int, seed: int, device: torch.device) -> None:
    both(some_case(vocab, seed, device), 3)


def slot_tensors(case: Case, seed: int) -> SlotTensors:
    """Drafts often agree with what is drawn."""
    generator = torch.Generator().manual_seed(seed)
    slots, kept = case.drafts.shape[0], 3
    history = torch.randint(60, (slots, kept), generator=generator)
    token = torch.randint(60, (slots,), generator=generator)
    position = torch.zeros(slots, dtype=torch.int64)
    device = case.drafts.device
    return SlotTensors(position.to(device), token.to(device), case.drafts.clone(), history.to(device))


@pytest.mark.parametrize("alternatives", [-1, 2])
@pytest.mark.parametrize("seed", range(4))
def test_drafts_stand_and_slots_advance(seed: int, alternatives: int, device: torch.device) -> None:
    vocab = 60
    case = some_case(vocab, seed, device)
    lengths = case.sequences.lengths.clone()
    lengths[1] = 0  # a placeholder
    sequences = case.sequences._replace(lengths=lengths)
    generator = torch.Generator().manual_seed(seed)
    shape = (sequences.slots.shape[0], DRAFTS + 1)
    drawn = torch.randint(vocab, shape, generator=generator).to(device)
    drafts = case.drafts[sequences.slots]
    agree = (torch.rand(drafts.shape, generator=generator) < 0.7).to(device)
    drawn[:, :DRAFTS] = torch.where(agree, drafts, drawn[:, :DRAFTS])
    beyond = torch.arange(DRAFTS + 1, device=device) >= lengths.unsqueeze(1)
    drawn[: sequences.decodes].masked_fill_(beyond[: sequences.decodes], -1)
    finite = (torch.rand(shape, generator=generator) < 0.8).to(device)
    reports = (None,) * 3
    if alternatives >= 0:
        top = torch.randn(*shape, alternatives, generator=generator).to(device)
        reports = (top[..., 0].clone(), top, (100 * top).long())
    tail = torch.randint(vocab, (shape[0] - sequences.decodes, 3), generator=generator).to(device)
    results, states = [], []
    for settle in (settling.settle_, sampling_settle.settle_):
        own = [None if report is None else report.clone() for report in reports]
        tables = SamplingTables(*(table.clone() for table in case.tables))
        state = slot_tensors(case, seed)
        made = settle(DrawnTokens(drawn, finite, *own), sequences, state, tables, tail)
        results.append([report for report in made if report is not None])
        states.append([*state, tables.seen, tables.recent])
    for expected, made in zip(*results, strict=True):
        assert torch.equal(expected, made)
    for expected, made in zip(*states, strict=True):
        assert torch.equal(expected, made)


PEAKS = ((0.5, 1.0, 2.0), (-0.25, 0.0, 0.5))


@pytest.mark.parametrize("multiplied", [True, False], ids=["table", "product"])
@pytest.mark.parametrize("peaks", [((), ()), PEAKS], ids=["head", "peak"])
@pytest.mark.parametrize("seed", range(2))
def test_the_chain_of_drafts(
    seed: int, peaks: tuple[tuple[float, ...], ...], multiplied: bool, device: torch.device
) -> None:
    vocab, block, dim, rank = 60, DRAFTS + 1, 24, 8
    case = some_case(vocab, seed, device)
    slots, generator = case.sequences.slots, torch.Generator().manual_seed(seed)

    def normal(*size: int) -> torch.Tensor:
        return torch.randn(*size, generator=generator).to(device)

    embed, head = normal(vocab, rank), normal(vocab, rank)
    inputs = DraftInputs(
        normal(slots.shape[0], block, vocab), normal(slots.shape[0], block, dim), embed, head,
        normal(1, dim + rank), (0.5, 2.0, 1.5) if seed else (),
        sampling_drafts.markov_table(embed, head) if multiplied else None, *peaks,
    )  # fmt: skip
    results = []
    for chain in (drafting.draft_chain_, sampling_drafts.draft_chain_):
        state = slot_tensors(case, seed)
        state.position[slots] = case.sequences.first + 1
        confidence = torch.full(state.drafts.shape, torch.nan, device=device)
        chain(inputs, slots, state, case.tables, confidence)
        results.append((state.drafts, confidence))
    (expected, odds), (made, own) = results
    assert torch.equal(expected, made)
    torch.testing.assert_close(own, odds, atol=1e-4, rtol=1e-5, equal_nan=True)


@pytest.fixture
def split(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every vocabulary is large: several tiles, levels among few groups, and lists that overflow."""
    monkeypatch.setattr(sampling, "WHOLE", 0)
    monkeypatch.setattr(sampling, "SPLIT", sampling.Split(tile=64, group=8, room=24, resident=16))


@pytest.mark.usefixtures("split")
@pytest.mark.parametrize(("vocab", "seed"), [(60, 0), (257, 1)])
def test_any_mix_of_options_over_tiles(vocab: int, seed: int, device: torch.device) -> None:
    both(some_case(vocab, seed, device), 3)
