"""Requests as tables on the card, for the checks of fused sampling; nothing of the engine is needed."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from stepahead.devices.kernels.reference.sampling import whole
from stepahead.devices.kernels.reference.sampling.tables import (
    ALLOWED,
    BIAS,
    EARLY_BAN,
    FILTER,
    NO_TOKEN,
    PENALTY,
    PROCESSED,
    RANDOM,
    WORDS,
    SampledSequences,
    SamplingTables,
)
from stepahead.devices.kernels.triton import sampling

_EDITS: dict[str, Any] = {"work": PENALTY | BIAS | WORDS | EARLY_BAN}
_FILTERS: dict[str, Any] = {"temperature": 0.8, "top_k": 50, "top_p": 0.95, "min_p": 0.02}
CASES: dict[str, dict[str, Any]] = {
    "greedy": {},
    "edits": _EDITS,
    "filters": _FILTERS,
    "nucleus": {"temperature": 0.8, "top_p": 0.95},
    "wide nucleus": {"temperature": 3.0, "top_p": 0.99},
    "unfiltered": {"temperature": 1.0},
    "logprobs": {"logprobs": 5},
    "all": _EDITS | _FILTERS | {"logprobs": 5, "processed": True},
}
"""What half of the rows ask for, as in `scripts/bench sampler`: 300 biases, 20 bans, 20 bad words."""


def tables_of(requests: list[dict[str, Any]], vocab: int, device: torch.device) -> SamplingTables:
    """Slot i + 1 belongs to request i."""
    slots = len(requests) + 1
    generator = torch.Generator().manual_seed(0)

    def numbers(name: str, off: float, dtype: torch.dtype) -> Tensor:
        return torch.tensor([off] + [r.get(name, off) for r in requests], dtype=dtype)

    temperature, top_k = numbers("temperature", 0, torch.float32), numbers("top_k", 0, torch.int64)
    top_p, min_p = numbers("top_p", 1, torch.float32), numbers("min_p", 0, torch.float32)
    random = temperature > 0
    filtered = random & ((top_k > 0) | (top_p < 1) | (min_p > 0))
    work = numbers("work", 0, torch.int32) + RANDOM * random + FILTER * filtered
    work += PROCESSED * numbers("processed", 0, torch.int32)
    seen = torch.where(torch.rand(slots, vocab, generator=generator) < 1000 / vocab, 1, 0).to(torch.int32)
    listed, words = min(300, vocab // 4), min(20, vocab // 4)
    bias = torch.full((slots, 8192), NO_TOKEN)
    values = torch.zeros(slots, 8192)
    for slot in range(slots):
        bias[slot, : listed + words] = torch.randperm(vocab, generator=generator)[: listed + words]
        values[slot, :listed], values[slot, listed : listed + words] = 0.5, -math.inf
    ends = torch.full((slots, 256), NO_TOKEN)
    ends[:, :words] = torch.randint(vocab, (slots, words), generator=generator)
    beginnings = torch.full((slots, 256, 16), NO_TOKEN)
    beginnings[:, :words, 14:] = torch.randint(4, (slots, words, 2), generator=generator)
    recent = torch.randint(4, (slots, 16), generator=generator)
    allowed = torch.full((slots, 4096), NO_TOKEN)
    allowed[:, : vocab // 2] = torch.arange(min(vocab // 2, 4096))
    counts = [
        torch.full((slots,), n, dtype=torch.int32) for n in (listed + words, min(vocab // 2, 4096), words)
    ]
    end_ids = torch.full((slots, 16), NO_TOKEN)
    end_ids[:, :3] = torch.tensor([1, 5, 7])
    tables = SamplingTables(
        work, numbers("logprobs", -1, torch.int32), temperature, top_p, min_p, top_k,
        torch.arange(slots) * 7919 - 3, torch.zeros(slots, dtype=torch.int64), torch.full((slots,), 100),
        torch.full((slots,), 1 << 40), torch.full((slots,), 0.3), torch.full((slots,), 0.2),
        torch.full((slots,), 1.1), end_ids, bias, values, allowed, beginnings, ends, *counts, recent, seen,
    )  # fmt: skip
    return SamplingTables(*(table.to(device) for table in tables))


def sharp_logits(rows: int, vocab: int, device: torch.device) -> Tensor:
    """As a language model's: a few likely tokens above a wide rest."""
    generator = torch.Generator(device=device).manual_seed(rows)
    logits = torch.randn(rows, vocab, generator=generator, device=device) * 1.5
    likely = torch.randint(vocab, (rows, 40), generator=generator, device=device)
    return logits.scatter_add_(1, likely, 20 * torch.rand(rows, 40, generator=generator, device=device))


def rows_case(
    name: str, sequences: int, vocab: int, device: torch.device
) -> tuple[Tensor, SampledSequences, Tensor, SamplingTables, int]:
    """Every second sequence as named, one row each: logits, sequences, drafts, tables, alternatives."""
    requests = [CASES[name] if row % 2 else {} for row in range(sequences)]
    slots = torch.arange(1, sequences + 1, device=device)
    drawing = SampledSequences(slots, 1000 + slots, torch.ones_like(slots), sequences)
    drafts = torch.zeros(sequences + 1, 0, dtype=torch.int64, device=device)
    alternatives = CASES[name].get("logprobs", -1)
    return (
        sharp_logits(sequences, vocab, device),
        drawing,
        drafts,
        tables_of(requests, vocab, device),
        alternatives,
    )


_TOYS: dict[str, dict[str, Any]] = {
    "plain": {"temperature": 1.0},
    "temperature 1.7": {"temperature": 1.7},
    "top-p": {"temperature": 0.9, "top_p": 0.8},
    "top-k": {"temperature": 1.0, "top_k": 3},
    "min-p": {"temperature": 1.3, "min_p": 0.1},
    "penalties": {"temperature": 1.0, "work": PENALTY},
    "bias and bans": {"temperature": 1.0, "work": BIAS},
    "allowed": {"temperature": 0.7, "work": ALLOWED},
    "everything": {"temperature": 1.2, "top_k": 9, "top_p": 0.97, "min_p": 0.01, "work": PENALTY | BIAS},
}


def toy_p_value(vocab: int, device: torch.device, draws: int = 200_000) -> dict[str, float]:
    """Of the chi-square statistic of draws at as many output positions, by kind of request."""
    return {name: p_value(fields, vocab, device, draws) for name, fields in _TOYS.items()}


def p_value(fields: dict[str, Any], vocab: int, device: torch.device, draws: int) -> float:
    tables = tables_of([fields], vocab, device)
    logits = torch.full((1, vocab), -9.0, device=device)
    likely = torch.arange(8, device=device) * (vocab // 8)
    logits[0, likely] = torch.tensor([1.2, -0.5, 0.1, 2.0, 0.3, 1.9, -1.0, 0.8], device=device)
    piece = min(draws, (1 << 28) // vocab)
    counts = torch.zeros(vocab, device=device, dtype=torch.float64)
    drafts = torch.zeros(2, 0, dtype=torch.int64, device=device)
    for first in range(0, draws, piece):
        count = min(piece, draws - first)
        slots = torch.ones(count, dtype=torch.int64, device=device)
        positions = 100 + first + torch.arange(count, device=device)
        sequences = SampledSequences(slots, positions, slots, count)
        made = sampling.draw_tokens(logits.expand(count, -1).contiguous(), sequences, drafts, tables)
        counts += torch.bincount(made.tokens.flatten(), minlength=vocab)
    slot, empty = torch.ones(1, dtype=torch.int64, device=device), drafts[:1]
    kept = whole._draw(logits, slot, slot, empty, tables, None)[3]
    expected = draws * kept[0].double().softmax(0)
    if counts[expected == 0].any():
        return 0.0
    return _chi_square(counts, expected)


def _chi_square(counts: Tensor, expected: Tensor) -> float:
    """By Wilson and Hilferty's cube root; cells that expect fewer than ten draws are one cell."""
    few = expected < 10
    cells = torch.cat((expected[~few], expected[few].sum().view(1)))
    found = torch.cat((counts[~few], counts[few].sum().view(1)))
    real = cells > 0
    freedom = int(real.sum()) - 1
    statistic = float((((found - cells) ** 2)[real] / cells[real]).sum())
    spread = 2 / (9 * freedom)
    normal = ((statistic / freedom) ** (1 / 3) - (1 - spread)) / math.sqrt(spread)
    return 0.5 * math.erfc(normal / math.sqrt(2))
