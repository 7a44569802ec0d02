"""Fused sampling against its readable twin: the same tokens, and log-probabilities to rounding."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("triton")

import triton
import triton.language as tl

from scripts.gpu.sampling_requests import p_value, tables_of
from stepahead.devices.kernels.reference.sampling import drafting, settling, whole
from stepahead.devices.kernels.reference.sampling import tables as tables_module
from stepahead.devices.kernels.reference.sampling.tables import (
    DraftInputs,
    DrawnTokens,
    SampledSequences,
    SamplingTables,
    SlotTensors,
)
from stepahead.devices.kernels.triton import sampling, sampling_drafts, sampling_edits, sampling_settle
from stepahead.devices.kernels.triton.sampling_noise import negative_gumbel, row_key, uniform
from stepahead.engine.sampling import seeds

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


def in_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every vocabulary is large: several tiles, levels among few groups, and lists that overflow."""
    monkeypatch.setattr(sampling, "WHOLE", 0)
    monkeypatch.setattr(sampling, "SPLIT", sampling.Split(tile=64, group=8, room=40, few=16, many=32))


@pytest.fixture(params=["whole", "tiles"])
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "tiles":
        in_tiles(monkeypatch)


@pytest.mark.parametrize(("vocab", "seed"), [(60, 0), (257, 1)])
def test_any_mix_of_options_over_tiles(
    vocab: int, seed: int, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_tiles(monkeypatch)
    both(some_case(vocab, seed, device), 3)


def test_rows_beyond_the_scratch_are_drawn_in_parts(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampling, "_SCRATCH", 2 * (DRAFTS + 1) * 60)
    both(some_case(60, 5, device), 2)


def one_row_each(vocab: int, device: torch.device, *fields: dict[str, Any]) -> Case:
    """Sequences with these parameters, each at its first output token, and random logits."""
    tables = tables_of(list(fields), vocab, device)
    slots = torch.arange(1, len(fields) + 1, device=device)
    sequences = SampledSequences(slots, 99 + slots, torch.ones_like(slots), len(fields))
    generator = torch.Generator().manual_seed(vocab)
    logits = (torch.randn(len(fields), vocab, generator=generator) * 3).to(device)
    return Case(logits, sequences, slots.new_zeros(len(fields) + 1, 0), tables)


FILTERED: dict[str, Any] = {"temperature": 0.7, "top_k": 5, "top_p": 0.9}


@pytest.mark.usefixtures("form")
def test_a_broken_row_is_told_apart_and_harms_nobody(device: torch.device) -> None:
    vocab, reports = 150, {"logprobs": 2, "processed": True}
    kinds = ({}, {"temperature": 1.0}, FILTERED | reports)
    case = one_row_each(vocab, device, *kinds * 3)
    sound = sampling.draw_tokens(*case, alternatives=2)
    case.logits[[3, 5, 4], 149] = torch.tensor([torch.nan, torch.nan, torch.inf], device=device)
    case.logits[6:8] = -torch.inf
    made = sampling.draw_tokens(*case, alternatives=2)
    whole_rows = [0, 1, 2, 8]
    assert made.finite.flatten().tolist() == [row in whole_rows for row in range(9)]
    assert ((made.tokens >= 0) & (made.tokens < vocab)).all()
    for own, other in zip(made, sound, strict=True):
        assert own is not None
        assert other is not None
        assert torch.equal(own[whole_rows], other[whole_rows])


@pytest.mark.usefixtures("form")
def test_ties_go_to_the_lowest_ids(device: torch.device) -> None:
    """Also between the zeros, and where some of many equal tokens fill the last place."""
    case = one_row_each(100, device, {}, FILTERED, {"temperature": 0.5, "top_k": 70}, {"logprobs": 2})
    case.logits.copy_((case.logits / 3).round() * 0.5)
    case.logits[case.logits == 0] = -0.0
    case.logits[:, ::7] = 0.0
    case.logits[3] = 1.5
    both(case, 2)


@pytest.mark.usefixtures("form")
@pytest.mark.parametrize("fields", [{}, {"temperature": 1.0}, FILTERED | {"logprobs": 3, "processed": True}])
def test_grammar_masks(fields: dict[str, Any], device: torch.device) -> None:
    case = one_row_each(150, device, fields, fields)
    bits = torch.randint(-(2**31), 2**31, (2, 5), generator=torch.Generator().manual_seed(0))
    both(case, 3, bits.to(torch.int32).to(device))


@pytest.mark.usefixtures("form")
def test_nobody_draws(device: torch.device) -> None:
    case = one_row_each(60, device, {})
    nobody = SampledSequences(*(part[:0] for part in case.sequences[:3]), 0)
    made = sampling.draw_tokens(case.logits[:0], nobody, case.drafts, case.tables, alternatives=2)
    assert [tuple(part.shape) for part in made if part is not None] == [
        (0, 1), (0, 1), (0, 1), (0, 1, 2), (0, 1, 2)
    ]  # fmt: skip


@pytest.mark.usefixtures("form")
def test_a_row_is_the_same_bit_for_bit_alone_and_among_others(device: torch.device) -> None:
    reports = {"logprobs": 3, "processed": True}
    heavy = FILTERED | reports
    case = one_row_each(150, device, heavy, {}, {"temperature": 1.0} | reports, {"logprobs": 3})
    together = sampling.draw_tokens(*case, alternatives=3)
    for row in range(4):
        part = slice(row, row + 1)
        alone = SampledSequences(*(x[part] for x in case.sequences[:3]), 1)
        made = sampling.draw_tokens(case.logits[part], alone, case.drafts, case.tables, alternatives=3)
        for own, other in zip(made, together, strict=True):
            assert own is not None
            assert other is not None
            assert torch.equal(own, other[part])


@pytest.mark.parametrize("fields", [{"temperature": 1.3}, {"temperature": 0.9, "min_p": 0.1}])
def test_draws_follow_the_distribution(fields: dict[str, Any], device: torch.device) -> None:
    """A few hundred; `scripts/gpu/kernels_sampling.py` draws 200,000 of every kind on a card."""
    assert p_value(fields, 8, device, 20_000 if device.type == "cuda" else 200) > 0.001


@triton.jit
def _numbers(seed, choice, position, uniforms, noise, count: tl.constexpr):
    key = row_key(tl.load(seed), tl.load(choice), tl.load(position))
    ids = tl.arange(0, count)
    tl.store(uniforms + ids, uniform(key, ids))
    tl.store(noise + ids, negative_gumbel(key, ids))


@pytest.mark.parametrize("seed", [0, 2**63 + 11, 2**64 - 1])
def test_random_numbers_are_those_of_the_host(seed: int, device: torch.device) -> None:
    count, choice, position = 1 << 15, 3, 70_000
    uniforms, noise = (torch.empty(count, device=device) for _ in range(2))
    signed = torch.from_numpy(np.array([seed], dtype=np.uint64).view(np.int64)).to(device)
    parts = (torch.tensor([part], device=device) for part in (choice, position))
    _numbers[(1,)](signed, *parts, uniforms, noise, count)
    key = seeds.key(np.array([seed], dtype=np.uint64), choice, position, seeds.TARGET)
    expected = seeds.uniform(key[:, None], np.arange(count))[0]
    assert (uniforms.cpu().numpy() == expected).all()
    exact = np.log(-np.log1p(-expected.astype(np.float64)))
    np.testing.assert_allclose(noise.cpu().numpy(), exact, atol=3e-7, rtol=2e-7)


def test_bits_mean_what_the_tables_mean() -> None:
    for name in ("RANDOM", "FILTER", "EARLY_BAN", "BIAS", "ALLOWED", "WORDS", "PENALTY", "PROCESSED"):
        assert getattr(sampling_edits, name).value == getattr(tables_module, name)
