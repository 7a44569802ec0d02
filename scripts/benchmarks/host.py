"""What one steady decode step costs the host: plan, commit and every message between the real actors.

The device takes no time, so the lap goes round as fast as the host can turn it, and the time between two
collected results is the host's. Time is this thread's own, so that a busy machine disturbs it less. What
streams cost is measured apart: text and delivery are work per token, wherever they are done.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import statistics
import time
from collections.abc import Callable
from typing import Any

import anyio
import numpy as np

from stepahead import Engine, EngineConfig, SamplingParams
from stepahead.actors.actor import Actor, Reply, Supervisor
from stepahead.actors.cache_manager import CacheManager
from stepahead.actors.device_worker import DeviceWorker
from stepahead.actors.messages import RequestSubmitted, SequencesAdmitted, SequencesClosed, StepCommitted
from stepahead.actors.sampler import Sampler
from stepahead.actors.scheduler import Scheduler
from stepahead.devices.device import Ticket
from stepahead.devices.simulated import SimulatedDevice
from stepahead.engine.cache.core import CacheCore
from stepahead.engine.model.opening import BUILT_IN
from stepahead.engine.model.runner import BatchLayout
from stepahead.engine.sampling.table import SamplingTable
from stepahead.engine.scheduling.chunks import decode_plan
from stepahead.engine.scheduling.cost_curve import CostCurve, CostModel
from stepahead.engine.scheduling.planner import SchedulingCore
from stepahead.engine.sizing import runner_shape, scheduling_limits
from stepahead.engine.text.tokenizer import Tokenizer

from .report import print_table, write_json
from .simulation import PreparedRunner, facts_of, knobs, open_simulated, prompt_of, request_of

HELP = "microseconds of plan, commit and messages per decode step, through the real actors"

SEQUENCES = (1, 64, 256, 1024)
GOALS = {1: 60.0, 256: 540.0, 1024: 1500.0}
QUOTED = {1: 31.0, 64: 710.0, 256: 2704.0}
"""vLLM 0.33's scheduler alone, without messages; as quoted in the design, not measured here."""
MORE_THAN_PREFILL = 64
"""Steps after the last prompt step before measuring, so that caches and branches are warm."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--steps", type=int, default=1500, metavar="N", help="measured steps (1500)")
    parser.add_argument("--drafts", type=int, default=0, metavar="D", help="drafts per sequence (0)")
    parser.add_argument("--adaptive", action="store_true", help="choose the drafts of every step")
    parser.add_argument("--asyncio", action="store_true", help="asyncio's own loop instead of uvloop")
    parser.add_argument("--no-streams", action="store_true", help="leave out the cost of streams")
    parser.add_argument("--profile", metavar="FILE", help="write a cProfile of the last lap")


def run(arguments: argparse.Namespace) -> None:
    laps = {count: _run(_lap, count, arguments) for count in SEQUENCES}
    devices = {count: _run(_device_alone, count, arguments) for count in SEQUENCES}
    streams = {} if arguments.no_streams else {n: _run(_with_streams, n, arguments) for n in SEQUENCES}
    rows = [_row(n, times, devices[n], streams.get(n)) for n, times in laps.items()]
    columns = ("sequences", "lap", "device", "engine", "median", "goal", "vLLM 0.33 (quoted)", "with streams")
    notes = [
        "means over all steps, block boundaries included; engine = lap - device, and the goal is for it",
        "device: the simulated device and the prepared runner alone; median: of the engine's part",
        "with streams: the whole process, text decoded and every delta read by a task of its own",
        "quoted: vLLM 0.33's scheduler alone (no messages, no streams), from the design, another machine",
    ]
    print_table(f"host microseconds per steady decode step, {arguments.drafts} drafts", columns, rows, notes)
    content: dict[str, Any] = {
        "drafts": arguments.drafts,
        "mean_microseconds_of_device": {n: statistics.fmean(times) for n, times in devices.items()},
        "quoted_scheduler_microseconds": QUOTED,
        "goals": GOALS,
        "mean_microseconds": {n: statistics.fmean(times) for n, times in laps.items()},
        "median_microseconds": {n: statistics.median(times) for n, times in laps.items()},
        "mean_microseconds_with_streams": {n: statistics.fmean(times) for n, times in streams.items()},
    }
    print(f"  written to {write_json('bench_host', content)}")


def _row(count: int, times: list[float], device: list[float], streams: list[float] | None) -> list[str]:
    goal, quoted = GOALS.get(count), QUOTED.get(count)
    return [
        str(count),
        f"{statistics.fmean(times):.0f}",
        f"{statistics.fmean(device):.0f}",
        f"{statistics.fmean(times) - statistics.fmean(device):.0f}",
        f"{statistics.median(times) - statistics.median(device):.0f}",
        "" if goal is None else f"{goal:.0f}",
        "" if quoted is None else f"{quoted:,.0f}",
        "" if streams is None else f"{statistics.fmean(streams):,.0f}",
    ]


def _run(measure: Callable[..., Any], count: int, arguments: argparse.Namespace) -> list[float]:
    """Microseconds of each step, on a loop of its own."""
    stopwatch = _Stopwatch(arguments.steps)
    with asyncio.Runner(loop_factory=_loop_factory(arguments.asyncio)) as runner:
        runner.run(measure(count, arguments, stopwatch))
    return stopwatch.microseconds()


def _loop_factory(plain: bool) -> Callable[[], asyncio.AbstractEventLoop]:
    if plain:
        return asyncio.new_event_loop
    import uvloop

    return uvloop.new_event_loop


class _Stopwatch:
    """Takes the thread's time at every collected result, once started."""

    def __init__(self, steps: int) -> None:
        self._steps, self._times, self._running = steps, list[float](), False
        self.done = asyncio.Event()

    def start(self) -> None:
        gc.collect()
        gc.freeze()
        self._running = True

    def tick(self) -> None:
        if self._running:
            self._times.append(time.thread_time())
            if len(self._times) > self._steps:
                self._running = False
                gc.unfreeze()
                self.done.set()

    def microseconds(self) -> list[float]:
        return [(after - before) * 1e6 for before, after in zip(self._times, self._times[1:], strict=False)]


class _Sink(Actor[StepCommitted | SequencesAdmitted | SequencesClosed]):
    """Where streams would begin."""

    name = "sink"
    accepts = (StepCommitted, SequencesAdmitted, SequencesClosed)

    async def handle(self, message: object) -> None:
        pass


async def _lap(count: int, arguments: argparse.Namespace, stopwatch: _Stopwatch) -> None:
    """Scheduler, cache manager, sampler and device worker, joined as in an engine, without streams."""
    config = knobs(count, verify="adaptive" if arguments.adaptive else "all")
    runner, device = _runner(config, arguments.drafts)
    facts, shape = runner.facts, runner.shape
    runner.on_collect, runner.confident = stopwatch.tick, arguments.adaptive
    core = SchedulingCore(scheduling_limits(config, facts, shape), _costs(count, arguments))
    capacity = config.mailbox_capacity
    scheduler = Scheduler(core, queue_capacity=count, queue_policy="reject", capacity=capacity)
    cache_manager = CacheManager(CacheCore(shape, facts, config.prefix_cache), capacity=capacity)
    sampler, sink = Sampler(shape, capacity=capacity), _Sink(capacity)
    worker = DeviceWorker(runner, stall_seconds=config.stall_seconds, capacity=capacity)
    scheduler.connect(cache_manager.mailbox, worker.mailbox, sampler.mailbox, sink.mailbox)
    sampler.connect(worker.mailbox, scheduler.mailbox)
    worker.connect(sampler.mailbox)
    supervisor = Supervisor((scheduler, cache_manager, sampler, worker, sink), _raise)
    async with anyio.create_task_group() as group:
        group.start_soon(supervisor.run)
        random = np.random.default_rng(0)
        for key in range(1, 1 + count):
            requests = (request_of(key, random),)
            await scheduler.mailbox.send(RequestSubmitted(requests=requests, reply=Reply()))
        await _all_decode(lambda: core.counts().running == count and not core.counts().waiting)
        await _measured(stopwatch, arguments.profile)
        supervisor.stop()
    device.close()


async def _with_streams(count: int, arguments: argparse.Namespace, stopwatch: _Stopwatch) -> None:
    """A whole engine, every stream read by a task of its own."""
    tokenizer = Tokenizer.from_file(BUILT_IN)

    def on_open(runner: PreparedRunner) -> None:
        runner.on_collect = stopwatch.tick

    opening = open_simulated(knobs(count), drafts=arguments.drafts, tokenizer=tokenizer, on_open=on_open)
    async with opening as engine:
        random = np.random.default_rng(0)
        prompts = [prompt_of(random, tokenizer.vocab_size) for _ in range(count)]
        async with asyncio.TaskGroup() as group:
            readers = [group.create_task(_read(engine, prompt)) for prompt in prompts]
            await _all_decode(lambda: engine.stats().output_tokens >= 2 * count)
            await _measured(stopwatch, arguments.profile)
            for reader in readers:
                reader.cancel()


async def _read(engine: Engine, prompt: list[int]) -> None:
    async for _ in engine.stream(prompt, SamplingParams(ignore_eos=True, seed=0)):
        pass


async def _device_alone(count: int, arguments: argparse.Namespace, stopwatch: _Stopwatch) -> None:
    """A lap's calls of the runner and the device, with nobody around: what is not the engine's."""
    runner, device = _runner(knobs(count), arguments.drafts)
    runner.on_collect = stopwatch.tick
    plan = decode_plan(0, _layout(count, arguments.drafts + 1), np.zeros(count, dtype=np.int32))
    sampling = SamplingTable(runner.shape).prepare(plan.layout, (), 0)

    def step() -> None:
        runner.launch_forward(plan)
        ticket = runner.launch_sample(sampling)
        ticket.on_settled(lambda error: collect(ticket))

    def collect(ticket: Ticket) -> None:
        runner.collect(ticket)
        if not stopwatch.done.is_set():
            step()

    stopwatch.start()
    step()
    await stopwatch.done.wait()
    device.close()


def _costs(count: int, arguments: argparse.Namespace) -> CostModel | None:
    """Of steps in which verifying everything takes twice as long as verifying nothing."""
    if not arguments.adaptive:
        return None
    most = count * (arguments.drafts + 1)
    return CostModel(CostCurve(rows=(count, most), seconds=(1e-3, 2e-3)), most)


def _runner(config: EngineConfig, drafts: int) -> tuple[PreparedRunner, SimulatedDevice]:
    facts, device = facts_of(drafts), SimulatedDevice(asyncio.get_running_loop())
    return PreparedRunner(facts, runner_shape(config, facts, device.memory().free), device), device


def _layout(count: int, width: int) -> BatchLayout:
    lengths = np.full(count, width, dtype=np.int32)
    slots = np.arange(1, 1 + count, dtype=np.int32)
    return BatchLayout(
        slots=slots,
        sequence_keys=slots.astype(np.int64),
        admissions=slots.astype(np.int64),
        query_lengths=lengths,
        row_starts=np.cumsum(lengths, dtype=np.int32) - lengths,
        reach=lengths,
        samples=np.ones(count, dtype=np.bool_),
        decode_count=count,
        rows=count * width,
    )


async def _all_decode(condition: Callable[[], bool]) -> None:
    """Polls at every turn of the loop, which turns once a step or more often."""
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0)
    for _ in range(MORE_THAN_PREFILL):
        await asyncio.sleep(0)


async def _measured(stopwatch: _Stopwatch, profile: str | None) -> None:
    if profile is None:
        stopwatch.start()
        await stopwatch.done.wait()
        return
    import cProfile

    profiler = cProfile.Profile()
    stopwatch.start()
    profiler.enable()
    await stopwatch.done.wait()
    profiler.disable()
    profiler.dump_stats(profile)


def _raise(failure: Exception) -> None:
    raise failure
