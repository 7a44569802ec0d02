"""What tracing costs: nothing when off, the always-on ring, a file being written.

Host time is the loop's thread's own, on a device that takes no time, so that all of a step is the host's. The
file's writer is a thread beside the loop, which the loop feels as the interpreter's lock; so throughput is
measured too, on a device that takes real time. Modes take turns, since a machine is never equally fast twice.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import numpy as np

from stepahead import Engine, EngineConfig, SamplingParams
from stepahead.engine.model.opening import BUILT_IN
from stepahead.engine.text.tokenizer import Tokenizer
from stepahead.engine.tracing.clock import real_clock
from stepahead.engine.tracing.reader import read_trace
from stepahead.engine.tracing.recorder import SILENT, Recorder

from .report import print_table, write_json
from .simulation import PreparedRunner, knobs, open_simulated, prompt_of

HELP = "what tracing costs: per span, per step, and in throughput"

MODES = ("off", "ring", "file")
SEQUENCES = (1, 64, 256)
GOALS = {"ring": 0.01, "file": 0.03}
SPAN_GOAL = 0.5
PACED = {1: 0.002, 64: 0.003, 256: 0.006}  # seconds of the device per step


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--steps", type=int, default=600, metavar="N", help="measured steps a round (600)")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="rounds of all modes (5)")


def run(arguments: argparse.Namespace) -> None:
    spans = {"recorded": _span_microseconds(_recorder()), "off": _span_microseconds(SILENT)}
    tokenizer = Tokenizer.from_file(BUILT_IN)
    host: dict[int, dict[str, float]] = {}
    paced: dict[int, dict[str, float]] = {}
    last: dict[int, _Round] = {}
    for count in SEQUENCES:
        measured = _rounds(count, arguments, tokenizer, seconds=0.0)
        host[count] = {mode: statistics.median(r.host_microseconds for r in measured[mode]) for mode in MODES}
        last[count] = measured["file"][-1]
        slow = _rounds(count, arguments, tokenizer, seconds=PACED[count])
        paced[count] = {mode: statistics.median(r.steps_per_second for r in slow[mode]) for mode in MODES}
    _report(spans, host, paced, last, arguments.rounds)


def _recorder() -> Recorder:
    return Recorder(real_clock(), 2048)


def _span_microseconds(recorder: Recorder, count: int = 100_000) -> float:
    """As the actors record one: the begin read before, the loop around it taken off."""

    def recording() -> None:
        for step in range(count):
            began = recorder.clock()
            recorder.span("scheduler.plan", began, step, 1)

    def nothing() -> None:
        for _ in range(count):
            pass

    return min(_thread_time(recording) - _thread_time(nothing) for _ in range(5)) / count * 1e6


def _thread_time(work: Callable[[], None]) -> float:
    begun = time.thread_time()
    work()
    return time.thread_time() - begun


class _Round:
    def __init__(self, stopwatch: _Stopwatch, size: int, records: int) -> None:
        differences = np.diff(stopwatch.host)
        self.host_microseconds = float(np.mean(np.sort(differences)[: -max(len(differences) // 50, 1)])) * 1e6
        self.steps_per_second = len(differences) / (stopwatch.wall[-1] - stopwatch.wall[0])
        self.bytes_per_step = size / len(differences)
        self.records_per_step = records / len(differences)


class _Stopwatch:
    """Host time and wall time at every collected result, once started."""

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self.host: list[float] = []
        self.wall: list[float] = []
        self.running = False
        self.done = asyncio.Event()

    def tick(self) -> None:
        if self.running:
            self.host.append(time.thread_time())
            self.wall.append(time.perf_counter())
            if len(self.host) > self._steps:
                self.running = False
                self.done.set()


def _rounds(
    count: int, arguments: argparse.Namespace, tokenizer: Tokenizer, *, seconds: float
) -> dict[str, list[_Round]]:
    results: dict[str, list[_Round]] = {mode: [] for mode in MODES}
    for _ in range(arguments.rounds):
        for mode in MODES:
            results[mode].append(_one_round(mode, count, arguments.steps, tokenizer, seconds))
    return results


def _one_round(mode: str, count: int, steps: int, tokenizer: Tokenizer, seconds: float) -> _Round:
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_measured(mode, count, steps, tokenizer, seconds))


async def _measured(mode: str, count: int, steps: int, tokenizer: Tokenizer, seconds: float) -> _Round:
    stopwatch = _Stopwatch(steps)

    def on_open(runner: PreparedRunner) -> None:
        runner.on_collect = stopwatch.tick

    config: EngineConfig = knobs(count, trace_steps=0 if mode == "off" else 2048)
    options: dict[str, Any] = {"tokenizer": tokenizer, "on_open": on_open}
    if seconds:
        options |= {"real_time": True, "latency": lambda label: seconds if label[0] == "f" else seconds / 10}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        async with open_simulated(config, **options) as engine:
            await _steady(engine, count, tokenizer, stopwatch, path if mode == "file" else None)
        if mode != "file":
            return _Round(stopwatch, 0, 0)
        end = read_trace(path).end
        assert end is not None
        return _Round(stopwatch, path.stat().st_size, end["records"])


async def _steady(
    engine: Engine, count: int, tokenizer: Tokenizer, stopwatch: _Stopwatch, path: Path | None
) -> None:
    random = np.random.default_rng(0)
    prompts = [prompt_of(random, tokenizer.vocab_size) for _ in range(count)]
    readers = [asyncio.create_task(_read(engine, prompt)) for prompt in prompts]
    while engine.stats().output_tokens < 20 * count:  # noqa: ASYNC110
        await asyncio.sleep(0)
    async with AsyncExitStack() as stack:
        if path is not None:
            await stack.enter_async_context(engine.trace(path))
        gc.collect()
        stopwatch.running = True
        await stopwatch.done.wait()
    for reader in readers:
        reader.cancel()
    await asyncio.gather(*readers, return_exceptions=True)


async def _read(engine: Engine, prompt: list[int]) -> None:
    async for _ in engine.stream(prompt, SamplingParams(ignore_eos=True, seed=0)):
        pass


def _report(
    spans: dict[str, float],
    host: dict[int, dict[str, float]],
    paced: dict[int, dict[str, float]],
    last: dict[int, _Round],
    rounds: int,
) -> None:
    rows = []
    for count in SEQUENCES:
        times, rates = host[count], paced[count]
        rows.append(
            [
                str(count),
                f"{times['off']:.1f}",
                *(f"{times[mode]:.1f} ({times[mode] / times['off'] - 1:+.1%})" for mode in ("ring", "file")),
                f"{rates['off']:.0f}",
                *(f"{rates[mode]:.0f} ({rates[mode] / rates['off'] - 1:+.1%})" for mode in ("ring", "file")),
                f"{last[count].records_per_step:.0f}",
                f"{last[count].records_per_step * spans['recorded'] / times['off']:.1%}",
                f"{last[count].bytes_per_step:,.0f}",
            ]
        )
    columns = (
        "sequences",
        "off us",
        "ring us",
        "file us",
        "off /s",
        "ring /s",
        "file /s",
        "records",
        "ring",
        "bytes",
    )
    notes = [
        f"medians of {rounds} alternating rounds; us: host time per step on a device that takes none",
        f"/s: steps per second on a device that takes {', '.join(f'{s * 1e3:g}' for s in PACED.values())} ms",
        f"a span recorded: {spans['recorded']:.2f} us (goal {SPAN_GOAL}), switched off {spans['off']:.2f} us",
        "records and bytes: per step of a file; ring: records times the cost of one, of host time per step",
        f"goals: ring {GOALS['ring']:.0%} of host time per step, file {GOALS['file']:.0%} of throughput",
    ]
    print_table("what tracing costs", columns, rows, notes)
    content: dict[str, Any] = {"span_microseconds": spans, "host_microseconds": host}
    content |= {"steps_per_second": paced, "rounds": rounds}
    content |= {"bytes_per_step": {count: each.bytes_per_step for count, each in last.items()}}
    content |= {"records_per_step": {count: each.records_per_step for count, each in last.items()}}
    print(f"  written to {write_json('bench_trace', content)}")
