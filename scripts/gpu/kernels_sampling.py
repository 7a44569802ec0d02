"""Fused sampling on the card: the tokens of its twin, chi-square of its draws, and times beside the floor."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from measuring import DEVICE, Row, measured
from sampling_requests import CASES, rows_case, toy_p_value

from stepahead.devices.kernels.reference.sampling import drafting, settling, whole
from stepahead.devices.kernels.reference.sampling.tables import (
    DraftInputs,
    DrawnTokens,
    SamplingTables,
    SlotTensors,
)
from stepahead.devices.kernels.triton import sampling, sampling_drafts, sampling_settle

SHARP, LARGE = 4096, 129_280
LEAST_P = 0.001


def run(small: bool) -> list[Row]:
    rows = [_settling(small), _chain(small, 6 if small else 64, SHARP, 32)]
    if not small:
        rows.append(_chain(small, 64, LARGE, 256))
    for vocab in (SHARP, 20_000) if small else (SHARP, LARGE):
        rows += [_draws(name, vocab, small, 6 if small else 64) for name in CASES]
    if not small:
        rows += [_draws("all", SHARP, small, 384), _draws("greedy", LARGE, small, 384)]
        rows += [_chi_square(vocab) for vocab in (8, 40_000)]
    return rows


def _draws(name: str, vocab: int, small: bool, sequences: int) -> Row:
    """Half of the rows as named, the other half greedy."""
    logits, drawing, drafts, tables, alternatives = rows_case(name, sequences, vocab, DEVICE)
    call = functools.partial(sampling.draw_tokens, logits, drawing, drafts, tables, alternatives=alternatives)
    made = call()
    expected = whole.draw_tokens(logits, drawing, drafts, tables, alternatives=alternatives)
    wrong = (made.tokens != expected.tokens).double().mean().item() + (~made.finite).double().sum().item()
    if alternatives >= 0:
        wrong += (made.top_tokens != expected.top_tokens).double().mean().item()
        wrong += (made.logprobs - expected.logprobs).abs().amax().item() * 0.1
    others = [
        functools.partial(sampling.draw_tokens, x, drawing, drafts, tables, alternatives=alternatives)
        for x in (logits.clone() for _ in range(1 if vocab < LARGE else 3))
    ]
    twin = functools.partial(torch.argmax, logits, -1)
    return measured(
        f"draw: {name}", f"{sequences} x {vocab}", wrong, 1e-4, [call, *others], dtype=torch.float32,
        moved_bytes=logits.numel() * 4, twin=twin, small=small,
    )  # fmt: skip


def _settling(small: bool) -> Row:
    sequences, places, vocab = 64, 6, SHARP
    _, drawing, drafts, tables, _ = rows_case("all", sequences, vocab, DEVICE)
    drawn = torch.randint(vocab, (sequences, places), device=DEVICE)
    drafts = torch.randint(vocab, (drafts.shape[0], places - 1), device=DEVICE)
    drafts[drawing.slots, :3] = drawn[:, :3]
    drawing = drawing._replace(lengths=torch.full_like(drawing.slots, places))
    finite = torch.ones_like(drawn, dtype=torch.bool)
    results = []
    calls: list[Callable[[], Any]] = []
    for settle in (settling.settle_, sampling_settle.settle_):
        slots = drafts.shape[0]
        position, history = (
            torch.zeros(slots, dtype=torch.int64, device=DEVICE),
            torch.zeros_like(drafts[:, :3]),
        )
        state = SlotTensors(position, position.clone(), drafts, history)
        own = SamplingTables(*(table.clone() for table in tables))
        tail = drawn.new_empty(0, 3)
        call = functools.partial(
            settle, DrawnTokens(drawn, finite, None, None, None), drawing, state, own, tail
        )
        made = call()
        calls.append(call)
        results.append([*(x for x in made if x is not None), *state, own.seen.clone(), own.recent.clone()])
    error = sum(float(not torch.equal(a, b)) for a, b in zip(*results, strict=True))
    return measured(
        "settle", f"{sequences} x {places}", error, 0, [calls[1]], dtype=torch.float32,
        moved_bytes=drawn.numel() * 24, twin=calls[0], small=small,
    )  # fmt: skip


def _chain(small: bool, sequences: int, vocab: int, rank: int) -> Row:
    block, dim = 5, 256 if vocab == SHARP else 4096
    dtype = torch.float32 if vocab == SHARP else torch.bfloat16
    _, drawing, _, tables, _ = rows_case("unfiltered", sequences, vocab, DEVICE)
    normal = functools.partial(torch.randn, device=DEVICE)
    embed, head = normal(vocab, rank).to(dtype), normal(vocab, rank).to(dtype)
    peaks = ((0.7,) * block, (0.3,) * block) if vocab == SHARP else ()  # the built-in model goes by them
    inputs = DraftInputs(
        normal(sequences, block, vocab) * 2, normal(sequences, block, dim).to(dtype), embed, head,
        normal(1, dim + rank).to(dtype), (), sampling_drafts.markov_table(embed, head), *peaks,
    )  # fmt: skip
    states, odds, calls = [], [], []
    for chain in (drafting.draft_chain_, sampling_drafts.draft_chain_):
        slots = tables.work.shape[0]
        position = torch.full((slots,), 900, dtype=torch.int64, device=DEVICE)
        token = torch.arange(slots, device=DEVICE)
        drafts = torch.zeros(slots, block, dtype=torch.int64, device=DEVICE)
        state = SlotTensors(position, token, drafts, drafts[:, :3].clone())
        confidence = torch.zeros(slots, block, device=DEVICE)
        call = functools.partial(chain, inputs, drawing.slots, state, tables, confidence)
        call()
        states.append(drafts)
        odds.append(confidence)
        calls.append(call)
    error = (states[0] != states[1]).double().mean().item()
    error += (odds[0] - odds[1]).abs().amax().item() / odds[0].abs().amax().item()
    per_place = vocab * rank * head.element_size() if vocab > SHARP else sequences * vocab * 4
    return measured(
        "draft chain", f"{sequences} x 5 x {vocab}", error, 0.01 if vocab > SHARP else 1e-4, [calls[1]],
        dtype=torch.float32, moved_bytes=inputs.base_logits.numel() * 4 + block * per_place,
        twin=calls[0] if vocab == SHARP else None,
        small=small,
    )  # fmt: skip


def _chi_square(vocab: int) -> Row:
    """The smallest p-value over kinds of requests; the limit is on its distance from passing."""
    worst = 1.0
    for name, p_value in toy_p_value(vocab, DEVICE).items():
        print(f"chi-square, {vocab} tokens, 200,000 draws, {name}: p = {p_value:.4f}")
        worst = min(worst, p_value)
    failed = max(LEAST_P - worst, 0.0)
    return Row(f"chi-square p {worst:.3f}", f"200000 of {vocab}", torch.float32, failed, 0.0, 0.0, 0.0)
