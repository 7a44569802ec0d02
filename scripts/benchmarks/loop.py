"""How long the event loop keeps others waiting: the longest time between two of its turns.

An engine shares its loop with the program around it, and whatever holds the loop delays every connection of
that program. A task that does nothing but yield sees every turn. Its longest wait is given twice: by the
clock, which counts what else the machine did, and by the processor time of the loop's thread, which is ours.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import numpy as np
import uvloop

from stepahead import Engine, SamplingParams
from stepahead.engine.model.opening import BUILT_IN
from stepahead.engine.text.tokenizer import Tokenizer

from .report import print_table, write_json
from .simulation import LONGEST, PreparedRunner, knobs, open_simulated, prompt_of

HELP = "the longest the event loop keeps others waiting, under load and at bad moments"

STREAMS, FINISHING, LONG_PROMPTS, LONG_BYTES = 64, 512, 4, 2 << 20
STEADY_SECONDS = 3.0
GOAL_MILLISECONDS = 20.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--rounds", type=int, default=3, metavar="N", help="repetitions; the worst counts (3)"
    )


class Lag(msgspec.Struct):
    """The longest time between two turns of the loop, milliseconds."""

    wall: float = 0.0
    own: float = 0.0


def run(arguments: argparse.Namespace) -> None:
    lags: dict[str, Lag] = {}
    for _ in range(arguments.rounds):
        gc.collect()
        gc.freeze()  # as a program would that runs for days
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            for name, lag in runner.run(_measure()).items():
                worst = lags.setdefault(name, Lag())
                worst.wall, worst.own = max(worst.wall, lag.wall), max(worst.own, lag.own)
    rows = [
        [name, f"{lag.own:.1f}", f"{lag.wall:.1f}", f"{GOAL_MILLISECONDS:.0f}"] for name, lag in lags.items()
    ]
    notes = [
        f"the worst of {arguments.rounds} rounds; the goal is for the clock on an otherwise idle machine",
        f"a simulated device at 2 ms a step; {STREAMS} streams decode all the time",
    ]
    columns = ("while", "own time ms", "clock ms", "goal")
    print_table("loop: the longest time between two turns", columns, rows, notes)
    content = {name: msgspec.structs.asdict(lag) for name, lag in lags.items()}
    print(f"  written to {write_json('bench_loop', {'rounds': arguments.rounds, 'milliseconds': content})}")


async def _measure() -> dict[str, Lag]:
    tokenizer = Tokenizer.from_file(BUILT_IN)
    runners: list[PreparedRunner] = []
    config = knobs(
        STREAMS + FINISHING,
        max_context=LONGEST,
        max_step_rows=2048,
        kv_blocks=1 + (STREAMS + FINISHING) * 8 + LONG_PROMPTS * LONGEST // 128,
    )
    opening = open_simulated(
        config, latency=_latency, real_time=True, tokenizer=tokenizer, on_open=runners.append
    )
    text = _text()
    lags: dict[str, Lag] = {}
    async with opening as engine, _decoding(engine, tokenizer.vocab_size):
        lags[f"{STREAMS} streams decode"] = await _watch(asyncio.sleep(STEADY_SECONDS))
        lags[f"{LONG_PROMPTS} prompts of {LONG_BYTES >> 20} MB arrive"] = await _watch(
            _long_prompts(engine, text)
        )
        finishing = await _start_finishing(engine, tokenizer.vocab_size)

        async def finish() -> None:
            runners[0].ends = True
            await asyncio.gather(*finishing)
            runners[0].ends = False

        lags[f"{FINISHING} streams finish in one step"] = await _watch(finish())
    return lags


def _latency(label: str) -> float:
    return 2e-4 if label.startswith("sample") else 1.8e-3


async def _watch(work: Coroutine[Any, Any, object]) -> Lag:
    """Does the work while a task sees every turn of the loop."""
    lag = Lag()
    ticker = asyncio.create_task(_tick(lag))
    await work
    ticker.cancel()
    return lag


async def _tick(lag: Lag) -> None:
    wall, own = time.perf_counter(), time.thread_time()
    while True:
        await asyncio.sleep(0)
        now, used = time.perf_counter(), time.thread_time()
        lag.wall, lag.own = max(lag.wall, (now - wall) * 1e3), max(lag.own, (used - own) * 1e3)
        wall, own = now, used


@asynccontextmanager
async def _decoding(engine: Engine, vocabulary: int) -> AsyncIterator[None]:
    """The streams in the background: none of them ends."""
    random = np.random.default_rng(0)
    async with asyncio.TaskGroup() as group:
        readers = [
            group.create_task(_read(engine, prompt_of(random, vocabulary), ignore_eos=True))
            for _ in range(STREAMS)
        ]
        await _until(lambda: engine.stats().output_tokens >= 2 * STREAMS)
        yield
        for reader in readers:
            reader.cancel()


async def _start_finishing(engine: Engine, vocabulary: int) -> list[asyncio.Task[None]]:
    """Streams that decode until the end id comes."""
    random = np.random.default_rng(1)
    before = engine.stats().output_tokens
    readers = [
        asyncio.create_task(_read(engine, prompt_of(random, vocabulary), ignore_eos=False))
        for _ in range(FINISHING)
    ]
    await _until(lambda: engine.stats().running == STREAMS + FINISHING)
    await _until(lambda: engine.stats().output_tokens > before + 8 * FINISHING)
    return readers


async def _long_prompts(engine: Engine, text: str) -> None:
    """Each arrives whole, gets one token, and leaves."""
    params = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)
    await asyncio.gather(*(engine.generate(f"{number} {text}", params) for number in range(LONG_PROMPTS)))


async def _read(engine: Engine, prompt: list[int], *, ignore_eos: bool) -> None:
    params = SamplingParams(temperature=0.0, ignore_eos=ignore_eos)
    async for _ in engine.stream(prompt, params):
        pass


def _text() -> str:
    """Two megabytes that no tokenizer finds easy or absurd."""
    words = ("the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog", "and", "runs", "home")
    random = np.random.default_rng(0)
    chosen = random.integers(0, len(words), LONG_BYTES // 4)
    return " ".join(words[index] for index in chosen.tolist())[:LONG_BYTES]


async def _until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110  (what is waited for is a counter)
        await asyncio.sleep(0.001)
