"""The engine on a card says what it says on a CPU, stops when told to, and leaves nothing behind.

    python scripts/gpu/check_engine.py [--prompts N] [--tokens N] [--sequences N] [--weights stored]
                                       [--rounding published] [--cpu-file FILE]

Greedy output of the built-in model for many prompts, computed in float32 on both. Where a pair differs, both
continuations are alike up to a first token; there the CPU's logits of the two candidates must be so close
that rounding decides (`TOLERANCE`). `--rounding published` compares that level instead, in bfloat16, and
`--weights stored` keeps the matrices of both as the checkpoint does. Prints a table; exits non-zero if a
disagreement is not explained or something is left behind.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.gpu_load import prompts

from stepahead import Engine, EngineConfig, EngineFailedError, NoDeviceMemoryError, SamplingParams
from stepahead.devices.device import OutOfMemoryError
from stepahead.devices.kernels.operations import REFERENCE
from stepahead.engine.model import opening
from stepahead.engine.model.opening import describe, load_model, numerics_for
from stepahead.engine.model.v41.batch import SequenceChunk, build_batch
from stepahead.engine.model.v41.caches import CacheShape
from stepahead.engine.model.v41.rows import BLOCK_TOKENS

TOLERANCE = {"none": 2e-3, "published": 1.0}
"""Logits on two machines differ by less; the built-in model's reach from about -20 to 20. In float32; and
where one bit of bfloat16 decides what a code of FP8 or FP4 is."""


async def generate(device: str, texts: Sequence[str], arguments: argparse.Namespace) -> list[tuple[int, ...]]:
    config = EngineConfig(
        max_sequences=arguments.sequences,
        max_step_rows=2048,
        max_context=1024,
        kv_blocks=1024,
        dtype="float32" if arguments.rounding == "none" else None,
        rounding=arguments.rounding,
        weights=arguments.weights,
        verify="all",
    )
    params = SamplingParams(temperature=0, max_tokens=arguments.tokens, ignore_eos=True)
    began = time.perf_counter()
    async with Engine.open(config=config, device=device) as engine:
        opened, report = time.perf_counter(), engine.stats()
        print(f"{device}: open in {opened - began:.1f} s; graphs: {report.graphs}", flush=True)
        done = await asyncio.gather(*(engine.generate(text, params) for text in texts))
        seconds = time.perf_counter() - opened
        tokens = sum(len(completion.token_ids) for completion in done)
        print(f"{device}: {tokens} tokens in {seconds:.1f} s, {engine.stats().steps} steps", flush=True)
    return [completion.token_ids for completion in done]


class Judge:
    """The logits of a plain forward on the CPU."""

    def __init__(self, rounding: str) -> None:
        self._described = describe(None, numerics_for("cpu", "float32", rounding))
        self._model, self._blocks = load_model(self._described, torch.device("cpu")), 8
        self._caches = self._model.new_caches(CacheShape(1 + self._blocks, 2, BLOCK_TOKENS * self._blocks))

    def gap(self, text: str, common: Sequence[int], ours: int, theirs: int) -> float:
        """How far apart the two candidates behind the common text are."""
        ids = [*self._described.tokenizer.encode(text), *common]
        chunk = SequenceChunk(ids, 0, 1, list(range(1, 1 + self._blocks)))
        batch = build_batch([chunk], torch.device("cpu"), ngram=self._described.config.engram_max_ngram_size)
        logits = self._model.forward(batch, self._caches).logits[-1]
        return abs(float(logits[ours] - logits[theirs]))


def compare(
    texts: Sequence[str], card: list[tuple[int, ...]], cpu: list[tuple[int, ...]], rounding: str
) -> int:
    judge, unexplained, differing = Judge(rounding), 0, 0
    for text, ours, theirs in zip(texts, card, cpu, strict=True):
        if ours == theirs:
            continue
        differing += 1
        place = next(i for i, pair in enumerate(zip(ours, theirs, strict=False)) if pair[0] != pair[1])
        gap = judge.gap(text, theirs[:place], ours[place], theirs[place])
        unexplained += gap > TOLERANCE[rounding]
        print(f"  differs at {place}: {ours[place]} / {theirs[place]}, gap {gap:.2e}  {text!r}")
    print(f"{len(texts) - differing} of {len(texts)} equal; {differing} differ, {unexplained} unexplained")
    return unexplained


async def check_cancelling(arguments: argparse.Namespace) -> int:
    """Streams left in the middle give back their slots and blocks; the engine goes on."""
    config = EngineConfig(max_sequences=arguments.sequences, max_context=1024, kv_blocks=1024, verify="all")
    params = SamplingParams(max_tokens=400, ignore_eos=True)
    async with Engine.open(config=config, device="cuda") as engine:

        async def leave_early(text: str, after: int) -> None:
            stream = engine.stream(text, params)
            seen = 0
            async for delta in stream:
                seen += len(delta.token_ids)
                if seen >= after:
                    break
            await stream.aclose()

        await asyncio.gather(*(leave_early(text, 5 + i % 40) for i, text in enumerate(prompts(64))))
        await engine.generate("The", SamplingParams(max_tokens=8, ignore_eos=True))
        await engine.reset_prefix_cache()
        stats = engine.stats()
        held = stats.kv_blocks - stats.kv_blocks_free
        print(
            f"after 64 streams were left: {stats.running} running, {held} blocks held, "
            f"{stats.aborted} aborted"
        )
        return stats.running + held


def used_bytes() -> int:
    """Of the card, without what torch keeps for later. An error's traceback may hold an engine until it is
    collected, so that comes first.
    """
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    return int(total - free)


async def check_closing(arguments: argparse.Namespace) -> int:
    """Opening and closing again and again leaves neither threads nor memory."""
    config = EngineConfig(max_sequences=8, max_context=1024, kv_blocks=128, graph_sequences=4, verify="all")
    seen = []
    for _ in range(3):
        async with Engine.open(config=config, device="cuda") as engine:
            await engine.generate("Once", SamplingParams(max_tokens=20, ignore_eos=True))
        del engine
        seen.append((used_bytes() >> 20, threading.active_count()))
    print("MiB used and threads after each of three engines:", seen)
    return int(seen[-1][0] > seen[0][0] + 8 or seen[-1][1] > seen[0][1])


async def check_memory(arguments: argparse.Namespace) -> int:
    """Too little memory: a typed error at opening, in a step the typed end of all that runs; then as new."""
    failed, left = 0, []
    for _ in range(2):
        try:
            async with Engine.open(config=EngineConfig(kv_blocks=1 << 24), device="cuda"):
                failed += 1
        except NoDeviceMemoryError as error:
            print(f"opening: {error}")
        left.append(used_bytes() >> 20)
    print(f"MiB used after each of two engines that did not fit: {left}")
    failed += left[1] > left[0] + 8
    config = EngineConfig(
        max_sequences=4, max_context=2048, kv_blocks=128, max_step_rows=1024, prefill_chunk=1024
    )
    async with Engine.open(config=config, device="cuda") as engine:
        torch.cuda.empty_cache()
        hoard = _hoard()
        try:
            await engine.generate("word " * 1500, SamplingParams(max_tokens=4))
            failed += 1
        except EngineFailedError as error:
            print(f"in a step: {error}; cause: {error.__cause__!r}; {engine.health()}")
            failed += not isinstance(error.__cause__, OutOfMemoryError)
        hoard.clear()
    del engine
    torch.cuda.empty_cache()
    async with Engine.open(config=config, device="cuda") as engine:
        said = await engine.generate("Once upon a time", SamplingParams(temperature=0, max_tokens=8))
        print(f"opened again: {said.text!r}")
    return failed


def _hoard() -> list[torch.Tensor]:
    """All that is left of the card's memory."""
    pieces, size = list[torch.Tensor](), 1 << 34
    while size >= 1 << 21:
        try:
            pieces.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
        except torch.OutOfMemoryError:
            size //= 2
    return pieces


def start_cpu(arguments: argparse.Namespace, answer: Path) -> subprocess.Popen[bytes]:
    """The CPU's side runs beside the card's, in a process of its own."""
    names = ("prompts", "tokens", "sequences", "rounding", "weights")
    given = {name: value for name in names if (value := getattr(arguments, name)) is not None}
    options = [f"--{name}={value}" for name, value in given.items()]
    return subprocess.Popen([sys.executable, __file__, *options, "--cpu-answer", str(answer)])


def check_greedy(arguments: argparse.Namespace) -> int:
    texts = prompts(arguments.prompts)
    with tempfile.TemporaryDirectory() as folder:
        answer = arguments.cpu_file or Path(folder) / "cpu.json"
        cpu = None if answer.exists() else start_cpu(arguments, answer)
        card = asyncio.run(generate("cuda", texts, arguments))
        if cpu is not None and cpu.wait():
            return 1
        said = [tuple(ids) for ids in json.loads(answer.read_text())]
        return compare(texts, card, said, arguments.rounding)


PARTS: dict[str, Callable[[argparse.Namespace], int]] = {
    "greedy": check_greedy,
    "cancelling": lambda arguments: asyncio.run(check_cancelling(arguments)),
    "closing": lambda arguments: asyncio.run(check_closing(arguments)),
    "memory": lambda arguments: asyncio.run(check_memory(arguments)),
}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=12)
    parser.add_argument("--sequences", type=int, default=64)
    parser.add_argument("--part", choices=("all", *PARTS), default="all")
    parser.add_argument("--rounding", choices=("none", "published"), default="none")
    parser.add_argument("--weights", choices=("expanded", "stored"))
    parser.add_argument("--reference", action="store_true", help="no kernels of ours on the card")
    parser.add_argument(
        "--cpu-file", type=Path, help="what a CPU answered: read, or written if it is not there"
    )
    parser.add_argument("--cpu-answer", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.reference:
        opening.operations_for = lambda *asked: REFERENCE  # type: ignore[assignment]
    if arguments.cpu_answer is not None:
        arguments.cpu_answer.write_text(
            json.dumps(asyncio.run(generate("cpu", prompts(arguments.prompts), arguments)))
        )
        return 0
    print(torch.cuda.get_device_name(), "torch", torch.__version__, flush=True)
    failed = sum(check(arguments) for part, check in PARTS.items() if arguments.part in (part, "all"))
    print("failed" if failed else "passed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
