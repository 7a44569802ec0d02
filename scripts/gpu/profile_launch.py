"""Where the host's time goes while it launches captured decode steps of the built-in model.

    python scripts/gpu/profile_launch.py [--sequences 64] [--drafts 0] [--steps 300]

Drives the engine's runner from an event loop as the device worker does, step after step with two in flight at
most, once without fix-ups and once with three state copies and three table entries a step. Prints the median
microseconds of each call, of what it calls inside, and of what only costs because a thread waits for marks.
Wrapping a call costs about half a microsecond, which is counted in whatever calls it.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Callable
from statistics import median
from typing import Any

import msgspec
import numpy as np
import torch
import uvloop

from stepahead import EngineConfig
from stepahead.devices.nvidia import NvidiaDevice
from stepahead.engine.model.opening import BUILT_IN, describe, numerics_for, open_sized_runner
from stepahead.engine.model.runner import SamplePlan, SamplingRows, StepPlan
from stepahead.engine.model.step_trials import decode_step
from stepahead.engine.model.v41.runner import V41Runner
from stepahead.engine.sizing import runner_shape

Times = dict[str, list[float]]


def timed(times: Times, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped(*arguments: Any, **named: Any) -> Any:
        began = time.perf_counter_ns()
        try:
            return call(*arguments, **named)
        finally:
            times[name].append((time.perf_counter_ns() - began) / 1e3)

    return wrapped


def watched(runner: V41Runner, times: Times) -> None:
    """Wrap what a step calls."""
    graphs, stream, device = runner._graphs, runner._device.compute, runner._device
    assert graphs is not None
    for name in ("launch_forward", "launch_sample", "collect"):
        setattr(runner, name, timed(times, name, getattr(runner, name)))
    runner._tables.update = timed(times, "  update tables", runner._tables.update)  # type: ignore[method-assign]
    for owner, name in (
        (graphs, "key_of"), (graphs, "fixes"), (graphs._buffers, "give"), (graphs, "samples"),
        (stream, "record"), (device, "watch"), (runner, "_replay_forward"), (runner, "_replay_sample"),
    ):  # fmt: skip
        setattr(owner, name, timed(times, f"  {name}", getattr(owner, name)))
    pieces = {
        kind: timed(times, f"  enqueue {kind}", stream.enqueue) for kind in ("forward", "sample", "fixups")
    }
    stream.enqueue = lambda work, label: pieces[label.split(":")[0]](work, label)  # type: ignore[method-assign]
    for kind, replayed in (("forward", graphs._forwards), ("sampling", graphs._samplings)):
        for graph in replayed.values():
            graph.replay = timed(times, f"  replay {kind}", graph.replay)  # type: ignore[method-assign]


def nobody(rows: SamplingRows) -> SamplingRows:
    return SamplingRows(**{name: getattr(rows, name)[:0] for name in rows.__struct_fields__})


async def drive(runner: V41Runner, plan: StepPlan, sample: SamplePlan, steps: int) -> float:
    """Seconds a step."""
    runner.launch_forward(plan)
    began = time.perf_counter()
    for number in range(1, steps + 1):
        ticket = runner.launch_sample(msgspec.structs.replace(sample, step=plan.step))
        plan = msgspec.structs.replace(plan, step=number)
        runner.launch_forward(plan)
        await ticket
        runner.collect(ticket)
    ticket = runner.launch_sample(msgspec.structs.replace(sample, step=plan.step))
    await ticket
    runner.collect(ticket)
    return (time.perf_counter() - began) / steps


async def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sequences", type=int, default=64)
    parser.add_argument("--drafts", type=int)
    parser.add_argument("--steps", type=int, default=300)
    arguments = parser.parse_args()
    count, device = arguments.sequences, NvidiaDevice()
    config = EngineConfig(
        max_sequences=count, max_context=8192, kv_blocks=2048, dtype="bfloat16", graph_sequences=count,
        draft_tokens=arguments.drafts, max_step_rows=max(2048, 6 * count),
    )  # fmt: skip
    described = describe(BUILT_IN, numerics_for(device.torch_device, config.dtype))
    device.time_work(lambda *told: None)
    runner = open_sized_runner(described, lambda free: runner_shape(config, described.facts, free), device)
    print(torch.cuda.get_device_name(), runner.captured, flush=True)
    reach = runner.shape.draft_tokens + 1
    plan, sample = decode_step(runner.shape, count, count * reach, drafts=reach > 1)
    first = runner.shape.sequence_slots + 1
    copies = np.array([[1 + i, first + i] for i in range(min(3, count))], dtype=np.int32)
    entries = np.array([[1 + i, 0, 0] for i in range(min(3, count))], dtype=np.int32)
    fixing = msgspec.structs.replace(plan, state_copies=copies, table_updates=entries)
    old = msgspec.structs.replace(sample, updates=nobody(sample.updates))
    runner._tables.update(sample.updates, None)
    await drive(runner, plan, old, 20)
    times: Times = defaultdict(list)
    watched(runner, times)
    for name, step in (("no fix-ups", plan), ("3 copies, 3 entries", fixing)):
        runner._state.position[1:] = 0
        times.clear()
        seconds = await drive(runner, step, old, arguments.steps)
        print(f"\n{name}: {1e6 * seconds:.0f} us a step of {plan.layout.rows} rows")
        for call, spent in times.items():
            print(f"  {call:20} {len(spent) / arguments.steps:4.1f} x {median(spent):7.1f} us")
    runner.close()
    device.close()


if __name__ == "__main__":
    uvloop.run(main())
