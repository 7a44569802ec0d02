"""Many requests of random lengths on a CPU: the engine beside what a Python user would have otherwise.

The other way is transformers' DeepSeek V4 of the built-in model's dimensions (what differs is named in
`model_contenders.py`). Its continuous batching is tried first; where that does not know these layers, its
requests run in static batches sorted by length, which wastes least. It is slow, so it gets some of these
batches. Both take turns in one run; what counts is output tokens per second.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
import uvloop

from stepahead import Engine, EngineConfig, SamplingParams
from stepahead.engine.model.opening import BUILT_IN, describe, numerics_for

from .model_contenders import peer_model
from .report import print_table, write_json

HELP = "output tokens/s of 256 requests of random lengths, beside transformers' deepseek_v4"

PROMPT_TOKENS, OUTPUT_TOKENS = (16, 257), (16, 97)
GOAL = 5.0
PAD = 2
TEXTS = ("README.md", "CONTRIBUTING.md", "engine/README.md", "LICENSE")
"""What prompts are cut from: prose that is at hand. The peer's weights are random, it does not mind."""


class Work(msgspec.Struct, frozen=True):
    prompt: list[int]
    output: int  # tokens to generate, whatever they are


class Result(msgspec.Struct, frozen=True):
    """One turn."""

    seconds: float
    prompt_tokens: int
    output_tokens: int
    steps: int

    @property
    def rate(self) -> float:
        return self.output_tokens / self.seconds


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--requests", type=int, default=256, metavar="N", help="requests of ours (256)")
    parser.add_argument("--sequences", type=int, default=256, metavar="N", help="of ours at a time (256)")
    parser.add_argument("--drafts", type=int, default=0, metavar="D", help="drafts of ours a step (0)")
    parser.add_argument(
        "--backing", default="thread", choices=("thread", "process"), help="of our CPU device"
    )
    parser.add_argument("--model", type=Path, metavar="FOLDER", help="another model than the built-in one")
    parser.add_argument(
        "--sample", type=int, default=64, metavar="N", help="requests of the peer (64; 0: none)"
    )
    parser.add_argument("--peer-batch", type=int, default=32, metavar="B", help="batch size of the peer (32)")
    parser.add_argument("--rounds", type=int, default=2, metavar="N", help="turns of each (2)")
    parser.add_argument("--threads", type=int, metavar="N", help="torch threads of the peer (all cores)")


def run(arguments: argparse.Namespace) -> None:
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    folder = arguments.model or BUILT_IN
    work = _work(folder, arguments.requests)
    peer = _Peer(folder) if arguments.sample else None
    sample = _sample(work, arguments.peer_batch, arguments.sample)
    ours: list[Result] = []
    theirs: list[Result] = []
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        for _ in range(arguments.rounds):
            ours.append(runner.run(_serve(work, arguments)))
            if peer is not None:
                theirs.append(peer.serve(sample))
    _report(ours, theirs, sample, peer, arguments)


def _work(folder: Path, count: int) -> list[Work]:
    """The same requests in every run."""
    root, random = Path(__file__).parents[2], np.random.default_rng(0)
    tokenizer = describe(folder, numerics_for("cpu")).tokenizer
    text = "\n".join((root / name).read_text() for name in TEXTS)
    tokens = tokenizer.encode(text, literal=True)
    work = []
    for _ in range(count):
        length, output = int(random.integers(*PROMPT_TOKENS)), int(random.integers(*OUTPUT_TOKENS))
        start = int(random.integers(len(tokens) - length))
        work.append(Work(tokens[start : start + length], output))
    return work


def _sample(work: Sequence[Work], batch: int, most: int) -> list[list[Work]]:
    """Of all requests in batches sorted by length, so that little is padded and few rows run on after their
    end, some batches spread evenly: at most so many requests, at least one batch.
    """
    ordered = sorted(work, key=lambda w: (w.output, len(w.prompt)))
    batches = [ordered[i : i + batch] for i in range(0, len(ordered), batch)]
    count = min(max(most // batch, 1), len(batches))
    return [batches[(2 * i + 1) * len(batches) // (2 * count)] for i in range(count)]


async def _serve(work: Sequence[Work], arguments: argparse.Namespace) -> Result:
    """An engine with the defaults but for its size; opening it is not counted."""
    config = EngineConfig(
        max_sequences=arguments.sequences,
        max_context=1024,
        draft_tokens=arguments.drafts,
        cpu_backing=arguments.backing,
    )
    params = [SamplingParams(temperature=0.0, max_tokens=w.output, ignore_eos=True) for w in work]
    async with Engine.open(arguments.model, config) as engine:
        await engine.generate([5, 6, 7], SamplingParams(max_tokens=8, ignore_eos=True))
        before, began = engine.stats(), time.perf_counter()
        async for _ in engine.generate_many([w.prompt for w in work], params):
            pass
        seconds, after = time.perf_counter() - began, engine.stats()
    return Result(
        seconds=seconds,
        prompt_tokens=after.prompt_tokens - before.prompt_tokens,
        output_tokens=after.output_tokens - before.output_tokens,
        steps=after.steps - before.steps,
    )


class _Peer:
    """transformers' way to generate for many prompts."""

    def __init__(self, folder: Path) -> None:
        self._model = peer_model(describe(folder, numerics_for("cpu")).config)
        self.no_continuous_batching = self._try_continuous_batching()

    def _try_continuous_batching(self) -> str | None:
        """Why it does not run here; None if it does."""
        prompts = [[5, 6, 7], [8, 9]]
        try:
            self._model.generate_batch(
                inputs=prompts, generation_config=self._generation(2), progress_bar=False
            )
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return None

    @torch.inference_mode()
    def serve(self, batches: Sequence[Sequence[Work]]) -> Result:
        sample = [w for batch in batches for w in batch]
        begun = time.perf_counter()
        if self.no_continuous_batching is None:
            self._continuously(sample)
        else:
            for batch in batches:
                self._static(batch)
        seconds = time.perf_counter() - begun
        return Result(seconds, sum(len(w.prompt) for w in sample), sum(w.output for w in sample), 0)

    def _continuously(self, sample: Sequence[Work]) -> None:
        """All requests get the longest output, since the interface knows one; what they asked for counts."""
        config = self._generation(max(w.output for w in sample))
        self._model.generate_batch(inputs=[w.prompt for w in sample], generation_config=config)

    def _static(self, batch: Sequence[Work]) -> None:
        """Padded on the left; the batch runs until its longest output is done."""
        width = max(len(w.prompt) for w in batch)
        ids = torch.tensor([[PAD] * (width - len(w.prompt)) + w.prompt for w in batch])
        mask = torch.tensor([[0] * (width - len(w.prompt)) + [1] * len(w.prompt) for w in batch])
        config = self._generation(max(w.output for w in batch))
        self._model.generate(ids, attention_mask=mask, generation_config=config)

    def _generation(self, tokens: int) -> Any:
        """Greedy, without an end."""
        from transformers import GenerationConfig

        return GenerationConfig(do_sample=False, eos_token_id=None, pad_token_id=PAD, max_new_tokens=tokens)


def _report(
    ours: list[Result],
    theirs: list[Result],
    sample: Sequence[Sequence[Work]],
    peer: _Peer | None,
    arguments: argparse.Namespace,
) -> None:
    sampled = sum(len(batch) for batch in sample)
    rows = [_row("engine", ours, arguments.requests)]
    notes = [
        f"medians of {arguments.rounds} alternating turns; prompts of {PROMPT_TOKENS[0]} to "
        f"{PROMPT_TOKENS[1] - 1} tokens, outputs of {OUTPUT_TOKENS[0]} to {OUTPUT_TOKENS[1] - 1}",
        f"engine: {arguments.sequences} sequences at a time, CPU device with a {arguments.backing}",
    ]
    ratio = None
    if peer is not None:
        rows.append(_row("transformers", theirs, sampled))
        ratio = _median(ours) / _median(theirs)
        notes += [
            f"ratio {ratio:.1f}x (goal at least {GOAL:g}x)",
            f"transformers serves {sampled} of the {arguments.requests} requests: batches spread by length",
        ]
        reason = peer.no_continuous_batching
        if reason is None:
            notes.append("transformers batches continuously")
        else:
            notes.append(f"transformers: static batches of {arguments.peer_batch} sorted by length, since")
            notes.append(f"  its continuous batching stops with {reason}")
    columns = ("contender", "requests", "seconds", "prompt tok/s", "output tok/s", "tokens a step")
    print_table("throughput: requests of random lengths on the CPU", columns, rows, notes)
    content: dict[str, Any] = {
        "ratio": ratio,
        "engine": [msgspec.structs.asdict(result) for result in ours],
        "transformers": [msgspec.structs.asdict(result) for result in theirs],
        "arguments": {name: str(value) for name, value in vars(arguments).items() if name != "run"},
        "no_continuous_batching": None if peer is None else peer.no_continuous_batching,
    }
    print(f"  written to {write_json('bench_throughput', content)}")


def _median(results: list[Result]) -> float:
    return statistics.median(result.rate for result in results)


def _row(name: str, results: list[Result], requests: int) -> list[str]:
    seconds = statistics.median(result.seconds for result in results)
    first = results[0]
    return [
        name,
        str(requests),
        f"{seconds:.1f}",
        f"{first.prompt_tokens / seconds:,.0f}",
        f"{_median(results):,.0f}",
        f"{first.output_tokens / first.steps:.1f}" if first.steps else "",
    ]
