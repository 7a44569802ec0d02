"""What a captured decode step of the built-in model consists of: launches and device time by kernel.

    python scripts/gpu/profile_step.py [--rows 64] [--drafts 0] [--dtype bfloat16] [--shown 40]

Replays the graphs that the engine itself would replay, through `V41Runner.time_step`, under torch's profiler:
the host only launches graphs, so what is listed is what the device does. Times of single kernels contain what
profiling adds to each; the time of the whole step is measured without.
"""

from __future__ import annotations

import argparse
from collections import Counter

import torch

from stepahead import EngineConfig
from stepahead.devices.nvidia import NvidiaDevice
from stepahead.engine.model.opening import BUILT_IN, describe, numerics_for, open_sized_runner
from stepahead.engine.sizing import runner_shape

ONCE_A_STEP = "_collect_ngrams"
"""A kernel that every step launches exactly once."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=64, help="sequences, each with one row unless drafts")
    parser.add_argument("--drafts", type=int, help="drafts a step; 0 is no speculation (the model's own)")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--shown", type=int, default=40, metavar="N", help="the N most expensive kernels")
    arguments = parser.parse_args()
    device = NvidiaDevice()
    config = EngineConfig(
        max_sequences=arguments.rows, max_context=8192, kv_blocks=4096, dtype=arguments.dtype,
        draft_tokens=arguments.drafts, max_step_rows=max(2048, 6 * arguments.rows),
    )  # fmt: skip
    described = describe(BUILT_IN, numerics_for(device.torch_device, config.dtype))
    runner = open_sized_runner(described, lambda free: runner_shape(config, described.facts, free), device)
    print(torch.cuda.get_device_name(), "step:", runner.time_step(arguments.rows, arguments.rows))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        runner.time_step(arguments.rows, arguments.rows)
    events = [e for e in profiler.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    count: Counter[str] = Counter(event.name for event in events)
    spent: Counter[str] = Counter()
    for event in events:
        spent[event.name] += event.time_range.elapsed_us()
    steps = max(count[ONCE_A_STEP], 1)
    for name, microseconds in spent.most_common(arguments.shown):
        print(f"{count[name] / steps:7.1f} x {name[:76]:76} {microseconds / steps:8.1f} us")
    print(f"{len(events) / steps:7.1f} launches a step, device busy {sum(spent.values()) / steps:.1f} us")
    runner.close()


if __name__ == "__main__":
    main()
