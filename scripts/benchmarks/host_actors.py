"""Where the host's time in a decode step goes: each actor's, and what the device waits for meanwhile.

`host` says what a lap costs in all, on a device that takes no time; there every step waits for the host, and
the order in which actors run does not show. Here the device takes the time a card takes, so the questions are
those of a user: does the device wait, for whom, and who has to become quicker. Times by actor come from the
tracer, as `stepahead trace` shows them; what no actor's span covers (the tasks that read streams, the loop
itself) is the rest of the processor time of the loop's thread.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import uvloop

from stepahead import Engine, SamplingParams
from stepahead.engine.model.opening import BUILT_IN
from stepahead.engine.text.tokenizer import Tokenizer
from stepahead.engine.tracing.reader import read_trace
from stepahead.engine.tracing.summary import summarise

from .report import print_table, write_json
from .simulation import knobs, open_simulated, prompt_of

HELP = "each actor's microseconds in a decode step, and what a device waits for that takes a card's time"

DEVICE_US = {0: (540.0, 30.0), 5: (740.0, 200.0)}
"""Forward and sampling of the built-in model at 64 sequences on an H200, by drafts: docs/nvidia.md."""
ACTORS = ("scheduler", "cache_manager", "sampler", "device_worker", "output")
CAUSES = ("plan late", "mailbox", "commit late", "launch", "synchronisation")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=float, default=1.5, metavar="S", help="measured time a case (1.5)")
    parser.add_argument("--sequences", type=int, nargs="+", default=[64, 256], metavar="N", help="(64 256)")
    parser.add_argument("--no-time", action="store_true", help="a device that takes no time")


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """Microseconds of a step: medians by actor, means of thread and rest; shares of the window for causes."""

    step_us: float
    thread_us: float
    actors_us: dict[str, float]
    busy: float
    causes: dict[str, float]

    @property
    def rest_us(self) -> float:
        return self.thread_us - sum(self.actors_us.values())


def run(arguments: argparse.Namespace) -> None:
    cases: dict[str, Case] = {}
    for count in arguments.sequences:
        for drafts in DEVICE_US:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                case = runner.run(_measure(count, drafts, arguments.seconds, arguments.no_time))
            cases[f"{count}, {drafts} drafts"] = case
    columns = ("sequences", *(name.replace("_", " ") for name in ACTORS), "rest", "thread", "step", "busy")
    rows = [
        [
            name,
            *(f"{case.actors_us[actor]:.0f}" for actor in ACTORS),
            *(f"{value:.0f}" for value in (case.rest_us, case.thread_us, case.step_us)),
            f"{case.busy:.1%}",
        ]
        for name, case in cases.items()
    ]
    notes = [
        "by actor: median of its spans in a step; rest: readers of streams and the loop; thread: all of it",
        "busy: share of time the device had work; forward and sampling take "
        + ", ".join(f"{a:.0f} + {b:.0f} us with {d} drafts" for d, (a, b) in DEVICE_US.items()),
    ]
    print_table("host microseconds of a decode step, by actor", columns, rows, notes)
    waits = [[name, *(f"{case.causes.get(c, 0.0):.1%}" for c in CAUSES)] for name, case in cases.items()]
    print_table("what the device waited for, share of time", ("sequences", *CAUSES), waits)
    print(f"  written to {write_json('bench_host_actors', msgspec.to_builtins(cases))}")


async def _measure(count: int, drafts: int, seconds: float, no_time: bool) -> Case:
    tokenizer = Tokenizer.from_file(BUILT_IN)
    forward, sample = (us * 1e-6 for us in DEVICE_US[drafts])
    options: dict[str, Any] = {"drafts": drafts, "tokenizer": tokenizer}
    if not no_time:
        options |= {"real_time": True, "latency": lambda label: forward if label[0] == "f" else sample}
    async with open_simulated(knobs(count, trace_steps=4096), **options) as engine:
        random = np.random.default_rng(0)
        prompts = [prompt_of(random, tokenizer.vocab_size) for _ in range(count)]
        readers = [asyncio.create_task(_read(engine, prompt)) for prompt in prompts]
        while engine.stats().output_tokens < 20 * count:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        gc.collect()
        gc.disable()
        steps, thread, began = engine.stats().steps, time.thread_time(), time.perf_counter()
        await asyncio.sleep(seconds)
        steps, thread = engine.stats().steps - steps, time.thread_time() - thread
        taken = time.perf_counter() - began
        gc.enable()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "trace.json"
            await engine.dump_trace(path)
            summary = summarise(read_trace(path))
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
    return Case(
        step_us=taken / steps * 1e6,
        thread_us=thread / steps * 1e6,
        actors_us={actor: summary.host_by_actor[actor].p50 for actor in ACTORS},
        busy=summary.device_busy,
        causes=summary.critical_path,
    )


async def _read(engine: Engine, prompt: list[int]) -> None:
    while True:
        async for _ in engine.stream(prompt, SamplingParams(ignore_eos=True, seed=0)):
            pass
