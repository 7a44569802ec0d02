"""Whether the host keeps ahead of the device: how long the device waits between decode steps, and what for.

Three devices. A simulated one keeps the timeline a real one would keep, 2 ms a step with 256 streams, so its
gaps are the host's lateness alone. The CPU's thread shares the interpreter with the loop: overlap can hide
little there and must cost nothing. The CPU's process shares nothing, and must gain what the host costs.
Engines with and without overlap take turns, so that they share what the machine does meanwhile.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import uvloop

from stepahead import Engine, EngineConfig, SamplingParams
from stepahead.devices.clock import VirtualClockLoop
from stepahead.engine.backend import Backend, Opener, model_opener
from stepahead.engine.model.opening import BUILT_IN
from stepahead.engine.text.tokenizer import Tokenizer

from .report import print_table, write_json
from .simulation import PreparedRunner, knobs, prompt_of, simulated_opener

HELP = "how long the device waits for the host between decode steps, with and without overlap"

STEP_SECONDS, SAMPLE_SECONDS = 2e-3, 2e-4  # of the simulated device; the second is part of the first
STREAMS, CPU_STREAMS, CPU_TOKENS, WARMUP_STEPS = 256, 16, 64, 8
IDLE_GOAL, THREAD_GOAL, HIDDEN_GOAL = 0.01, 0.97, 0.90


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--steps", type=int, default=400, metavar="N", help="simulated steps a turn (400)")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="turns of each engine (5)")
    parser.add_argument("--model", type=Path, metavar="FOLDER", help="another model than the built-in one")
    parser.add_argument("--only", metavar="TEXT", default="", help="devices whose name contains this")


class _OwnTimeLoop(VirtualClockLoop):
    """A loop whose time is what its thread computes plus what it would have slept: a core of its own, so that
    a busy machine disturbs only caches. It is asyncio's loop in Python, slower than the one engines run on.
    """

    def time(self) -> float:
        return self._now + time.thread_time()

    def jump(self) -> None:
        timers: list[Any] = self._scheduled  # type: ignore[attr-defined]
        self._now += max(0.0, timers[0].when() - self.time())


class Turn(msgspec.Struct, frozen=True):
    """One turn of one engine: medians over its steady decode steps, milliseconds."""

    period: float  # from the start of one step to the next
    idle: float  # of it, the device had nothing to run
    idle_mean: float  # the same as a mean: rare long waits count
    rate: float  # steady steps per second


class _Timeline:
    """Pieces of work as a device tells them: (label, begin, end) in nanoseconds, in order."""

    def __init__(self) -> None:
        self.pieces: list[tuple[str, int, int]] = []

    def observe(self, stream: str, label: str, begin: int, end: int) -> None:
        self.pieces.append((label, begin, end))

    def turn(self, first_step: int, last_step: int) -> Turn:
        """Of the steps from `first_step` up to `last_step`."""
        begins, idle = dict[int, int](), dict[int, int]()
        free_at: int | None = None
        for label, begin, end in self.pieces:
            step = int(label.partition(":")[2])
            if step not in begins:
                begins[step], idle[step] = begin, 0
            if free_at is not None:
                idle[step] += max(0, begin - free_at)
            free_at = end
        steps = range(first_step, last_step)
        periods = [begins[step + 1] - begins[step] for step in steps]
        waits = [idle[step] for step in steps]
        return Turn(
            period=statistics.median(periods) / 1e6,
            idle=statistics.median(waits) / 1e6,
            idle_mean=statistics.fmean(waits) / 1e6,
            rate=len(periods) / (sum(periods) / 1e9),
        )


Measure = Callable[[bool], Turn]
"""One turn with or without overlap."""


def run(arguments: argparse.Namespace) -> None:
    measures: dict[str, Measure] = {
        "simulated": partial(_simulated, steps=arguments.steps, own_time=False),
        "simulated, own time": partial(_simulated, steps=arguments.steps, own_time=True),
        "cpu thread": partial(_cpu, backing="thread", folder=arguments.model),
        "cpu process": partial(_cpu, backing="process", folder=arguments.model),
    }
    chosen = {name: measure for name, measure in measures.items() if arguments.only in name}
    turns = {name: _alternate(measure, arguments.rounds) for name, measure in chosen.items()}
    rows = [_row(name, overlap, turn) for name, pair in turns.items() for overlap, turn in pair.items()]
    notes = [
        f"medians of {arguments.rounds} alternating turns; steady decode steps only",
        f"simulated: {STEP_SECONDS * 1e3:g} ms a step in real time, {STREAMS} streams, each read by a task",
        "own time: the same if the loop had a core of its own, however busy the machine is",
        f"cpu: {CPU_STREAMS} streams of {CPU_TOKENS} tokens; host time is the device's waiting, overlap off",
        *(_conclusion(name, pair) for name, pair in turns.items()),
    ]
    columns = ("device", "overlap", "step ms", "idle ms", "idle", "mean idle", "steps/s")
    print_table("overlap: the device's waiting between steady decode steps", columns, rows, notes)
    content = {
        name: {"on" if overlap else "off": msgspec.structs.asdict(turn) for overlap, turn in pair.items()}
        for name, pair in turns.items()
    }
    path = write_json("bench_overlap", {"rounds": arguments.rounds, "milliseconds": content})
    print(f"  written to {path}")


def _row(name: str, overlap: bool, turn: Turn) -> list[str]:
    return [
        name,
        "on" if overlap else "off",
        f"{turn.period:.3f}",
        f"{turn.idle:.3f}",
        f"{turn.idle / turn.period:.1%}",
        f"{turn.idle_mean / turn.period:.1%}",
        f"{turn.rate:,.1f}",
    ]


def _conclusion(name: str, pair: dict[bool, Turn]) -> str:
    on, off = pair[True], pair[False]
    ratio = f"{name}: on/off {on.rate / off.rate:.3f}"
    if name.startswith("simulated"):
        return f"{ratio}; idle {on.idle_mean / on.period:.2%} of a step (goal at most {IDLE_GOAL:.0%})"
    if name == "cpu thread":
        return f"{ratio} (goal at least {THREAD_GOAL})"
    return (
        f"{ratio} (goal above 1); {1 - on.idle / off.idle:.1%} of host time hidden (goal {HIDDEN_GOAL:.0%})"
    )


def _alternate(measure: Measure, rounds: int) -> dict[bool, Turn]:
    turns: dict[bool, list[Turn]] = {True: [], False: []}
    for _ in range(rounds):
        for overlap, done in turns.items():
            done.append(measure(overlap))
    return {overlap: _median(done) for overlap, done in turns.items()}


def _median(turns: list[Turn]) -> Turn:
    return Turn(
        *(statistics.median(values) for values in zip(*map(msgspec.structs.astuple, turns), strict=True))
    )


def _loop(main: Any, new_loop: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop) -> Turn:
    gc.collect()
    gc.freeze()  # as a program would that runs for days
    with asyncio.Runner(loop_factory=new_loop) as runner:
        turn: Turn = runner.run(main)
        return turn


# The simulated device.


def _simulated(overlap: bool, steps: int, own_time: bool) -> Turn:
    simulation = _simulate(overlap, steps, real_time=not own_time)
    return _loop(simulation, _OwnTimeLoop) if own_time else _loop(simulation)


async def _simulate(overlap: bool, steps: int, real_time: bool) -> Turn:
    tokenizer, timeline = Tokenizer.from_file(BUILT_IN), _Timeline()
    collected = _Steps(STREAMS)

    def on_open(runner: PreparedRunner) -> None:
        runner.on_collect = collected.tick

    opener = simulated_opener(
        latency=_latency, real_time=real_time, tokenizer=tokenizer, on_open=on_open, observe=_told(timeline)
    )
    async with Engine.open(config=knobs(STREAMS, overlap=overlap), opener=opener) as engine:
        random = np.random.default_rng(0)
        prompts = [prompt_of(random, tokenizer.vocab_size) for _ in range(STREAMS)]
        async with asyncio.TaskGroup() as group:
            readers = [group.create_task(_read(engine, prompt, None)) for prompt in prompts]
            first = await collected.steady(engine) + WARMUP_STEPS
            await collected.reach(first + steps + 2)
            turn = timeline.turn(first, first + steps)
            for reader in readers:
                reader.cancel()
    return turn


def _latency(label: str) -> float:
    return SAMPLE_SECONDS if label.startswith("sample") else STEP_SECONDS - SAMPLE_SECONDS


def _told(timeline: _Timeline) -> Callable[[str, float, float], None]:
    def observe(label: str, start: float, end: float) -> None:
        timeline.observe("compute", label, round(start * 1e9), round(end * 1e9))

    return observe


class _Steps:
    """Counts the collected steps of an engine, and lets one wait for a number of them."""

    def __init__(self, streams: int) -> None:
        self._streams, self._count = streams, 0
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []

    def tick(self) -> None:
        self._count += 1
        for number, future in self._waiting:
            if self._count >= number and not future.done():
                future.set_result(None)

    async def reach(self, number: int) -> None:
        future = asyncio.get_running_loop().create_future()
        self._waiting = [(number, future)]
        await future

    async def steady(self, engine: Engine) -> int:
        """The next step once every stream has had a token, so that all of them decode."""
        while engine.stats().output_tokens < 2 * self._streams:
            await self.reach(self._count + 1)
        return self._count


async def _read(engine: Engine, prompt: list[int], max_tokens: int | None) -> None:
    params = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=max_tokens)
    async for _ in engine.stream(prompt, params):
        pass


# The CPU.


def _cpu(overlap: bool, backing: str, folder: Path | None) -> Turn:
    return _loop(_compute(overlap, backing, folder))


async def _compute(overlap: bool, backing: str, folder: Path | None) -> Turn:
    timeline = _Timeline()
    config = EngineConfig(
        overlap=overlap,
        cpu_backing=backing,  # type: ignore[arg-type]
        max_sequences=CPU_STREAMS,
        max_context=1024,
        prefix_cache=False,
    )
    opened: list[Backend] = []
    async with Engine.open(config=config, opener=_noted(model_opener(folder, "cpu"), opened)) as engine:
        # The engine's own recorder hears of the device no more; what it costs otherwise, it still costs.
        timed = opened[0].runner if opened[0].device is None else opened[0].device
        timed.time_work(timeline.observe)
        random = np.random.default_rng(0)
        prompts = [prompt_of(random, 4096) for _ in range(CPU_STREAMS)]
        await asyncio.gather(*(_read(engine, prompt, CPU_TOKENS) for prompt in prompts))
    steps = [int(label.partition(":")[2]) for label, _, _ in timeline.pieces]
    # All prompts arrive at once, and their last chunks are in one of the first steps; the last steps have
    # fewer rows, one for every stream that was admitted later.
    return timeline.turn(WARMUP_STEPS + 4, max(steps) - 8)


def _noted(opener: Opener, opened: list[Backend]) -> Opener:
    async def open_backend(config: EngineConfig) -> Backend:
        opened.append(await opener(config))
        return opened[-1]

    return open_backend
