"""Rejection mode, prompt logprobs and the filters' threshold on a card, beside a CPU.

    python scripts/gpu/check_sampling_modes.py

The same requests alone and all at once, on the card and on a CPU, in float32: texts drawn at random may part
where rounding decides a near tie, so agreement is counted; prompt logprobs must be close, and the threshold
form of the filters must keep what a sort keeps. Exits non-zero where something must hold and does not.
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any

import numpy as np
import torch

from stepahead import Completion, Engine, EngineConfig, SamplingParams
from stepahead.devices.kernels.reference import sampling

PROMPTS = ("Once upon a time", "The little dog said", "Tom and his mom went to", "2 + 3 =")
OPTIONS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.7},
    {"temperature": 1.0, "top_p": 0.9},
    {"temperature": 1.0, "top_k": 20, "frequency_penalty": 0.5, "logprobs": 2, "logprobs_of": "processed"},
    {"temperature": 0.0},
)


def requests() -> list[tuple[str, SamplingParams]]:
    return [
        (prompt, SamplingParams(max_tokens=16, seed=7 * i + j, ignore_eos=True, prompt_logprobs=3, **fields))
        for i, prompt in enumerate(PROMPTS)
        for j, fields in enumerate(OPTIONS)
    ]


async def answers(device: str) -> tuple[list[Completion], list[Completion], float]:
    config = EngineConfig(
        acceptance="rejection",
        verify="all",
        dtype="float32",
        max_sequences=32,
        max_context=512,
        kv_blocks=256,
        cost_folder=None,
        graph_sequences=0,
    )
    async with Engine.open(config=config, device=device) as engine:
        together = await asyncio.gather(*(engine.generate(p, a) for p, a in requests()))
        alone = [await engine.generate(p, a) for p, a in requests()[:4]]
        stats = engine.stats()
        return together, alone, stats.accepted_tokens / stats.drafted_tokens


def same(one: list[Completion], other: list[Completion]) -> str:
    equal = sum(a.token_ids == b.token_ids for a, b in zip(one, other, strict=False))
    return f"{equal} of {min(len(one), len(other))} texts equal"


def check_engine() -> bool:
    begun = time.perf_counter()
    card, card_alone, card_share = asyncio.run(answers("cuda"))
    took = time.perf_counter() - begun
    cpu, _, cpu_share = asyncio.run(answers("cpu"))
    print(
        f"card in {took:.1f} s; together and alone: {same(card, card_alone)}; card and CPU: {same(card, cpu)}"
    )
    print(f"drafts accepted: card {card_share:.3f}, CPU {cpu_share:.3f}")
    worst = 0.0
    for one, other in zip(card, cpu, strict=True):
        assert one.prompt_logprobs is not None
        assert other.prompt_logprobs is not None
        worst = max(worst, float(np.abs(one.prompt_logprobs.logprobs - other.prompt_logprobs.logprobs).max()))
        entries = one.logprobs or ()
        assert not entries or len(entries) == len(one.token_ids)
    greedy = all(a.token_ids == b.token_ids for a, b in zip(card[3::4], cpu[3::4], strict=True))
    print(f"prompt logprobs differ by {worst:.2e} at most; greedy texts {'equal' if greedy else 'DIFFER'}")
    return worst < 2e-3


def check_threshold() -> bool:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(32, 129_280, generator=generator) * 2
    top_p = torch.tensor([0.3, 0.9, 0.95, 0.999] * 8)
    top_k = torch.tensor([0, 0, 5000, 0] * 8)
    min_p = torch.tensor([0.0, 0.0, 0.0, 1e-4] * 8)
    expected = sampling.keep_best(logits, top_k, top_p, min_p)
    placed = [part.cuda() for part in (logits, logits.amax(-1), top_k, top_p, min_p)]
    found = sampling.keep_by_threshold(*placed)
    differing = int((found.cpu() != expected).sum())
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        sampling.keep_by_threshold(*placed)
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(10):
        graph.replay()
    end.record()
    torch.cuda.synchronize()
    kept = int(found.isfinite().sum())
    print(f"threshold of 32 x 129,280, captured: {begin.elapsed_time(end) / 10:.2f} ms; "
          f"{differing} of {kept} kept tokens differ from a sort's")  # fmt: skip
    return differing <= 32


def main() -> int:
    return 0 if check_threshold() & check_engine() else 1


if __name__ == "__main__":
    sys.exit(main())
